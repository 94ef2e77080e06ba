// Attention kernels for AVX-512. Shapes are given at attention_kernels (cpu_kernels.h).
//
// Scores: a product q . k_j is 16 partial sums over i mod 16, i ascending, added as one fixed tree; 16 products are
// finished together, each through the same tree. Weighted sums: lanes are channels, positions ascend.
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/x86/math_avx512.h"

#include <math.h>
#include <string.h>

ALWAYS_INLINE __m512 load_state(dtype type, const void *src, int64_t at, __mmask16 mask) {
    if (type == DTYPE_F32) {
        return _mm512_maskz_loadu_ps(mask, (const float *)src + at);
    }
    __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)src + at);
    if (type == DTYPE_F16) {
        return _mm512_cvtph_ps(half);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Lane sums of 16 vectors: out lane i = sum of v[i]. Adds lane pairs at distance 2, then 1, then 128-bit parts.
ALWAYS_INLINE __m512 sum_16_vectors(const __m512 v[16]) {
    __m512 quads[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512 a = v[4 * i], b = v[4 * i + 1], c = v[4 * i + 2], d = v[4 * i + 3];
        // in each 128-bit part: a0+a2, b0+b2, a1+a3, b1+b3
        __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        quads[i] = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high)); // in each part: a, b, c, d
    }
    __m512 pair01 =
        _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    __m512 pair23 =
        _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(pair01, pair23, 0x88), _mm512_shuffle_f32x4(pair01, pair23, 0xdd));
}

enum { SCORE_QUERIES = 4, SCORE_KEYS = 4 }; // products made together

// n_queries x n_keys products of the tile at (query, key); sums are padded to 4 x 4 with zeros.
ALWAYS_INLINE void score_tile(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim,
                              int64_t key, int n_keys, float *scores) {
    __m512 sums[16];
    UNROLL
    for (int i = 0; i < 16; i++) {
        sums[i] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < dim; i += 16) {
        __mmask16 mask = tail_mask(dim - i);
        __m512 k[SCORE_KEYS];
        UNROLL
        for (int j = 0; j < n_keys; j++) {
            k[j] = load_state(type, keys, (key + j) * dim + i, mask);
        }
        UNROLL
        for (int q = 0; q < n_queries; q++) {
            __m512 query = _mm512_maskz_loadu_ps(mask, queries + q * dim + i);
            UNROLL
            for (int j = 0; j < n_keys; j++) {
                sums[q * SCORE_KEYS + j] = _mm512_fmadd_ps(query, k[j], sums[q * SCORE_KEYS + j]);
            }
        }
    }
    __m512 totals = sum_16_vectors(sums);
    UNROLL
    for (int q = 0; q < n_queries; q++) {
        __m128 row = q == 0   ? _mm512_castps512_ps128(totals)
                     : q == 1 ? _mm512_extractf32x4_ps(totals, 1)
                     : q == 2 ? _mm512_extractf32x4_ps(totals, 2)
                              : _mm512_extractf32x4_ps(totals, 3);
        _mm_mask_storeu_ps(scores + q * SCORE_COLUMNS + key, (__mmask8)((1 << n_keys) - 1), row);
    }
}

ALWAYS_INLINE void scores_of(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim, int lo,
                             int hi, float *scores) {
    for (int q = 0; q < n_queries;) {
        const float *query = queries + q * dim;
        float *out = scores + q * SCORE_COLUMNS;
        int left = n_queries - q, j = lo;
        if (left >= SCORE_QUERIES) {
            for (; j + SCORE_KEYS <= hi; j += SCORE_KEYS) {
                score_tile(type, query, SCORE_QUERIES, keys, dim, j, SCORE_KEYS, out);
            }
            for (; j < hi; j++) {
                score_tile(type, query, SCORE_QUERIES, keys, dim, j, 1, out);
            }
            q += SCORE_QUERIES;
        } else if (left == 3) {
            for (; j + SCORE_KEYS <= hi; j += SCORE_KEYS) {
                score_tile(type, query, 3, keys, dim, j, SCORE_KEYS, out);
            }
            for (; j < hi; j++) {
                score_tile(type, query, 3, keys, dim, j, 1, out);
            }
            q += 3;
        } else {
            for (; j + SCORE_KEYS <= hi; j += SCORE_KEYS) {
                score_tile(type, query, 1, keys, dim, j, SCORE_KEYS, out);
            }
            for (; j < hi; j++) {
                score_tile(type, query, 1, keys, dim, j, 1, out);
            }
            q += 1;
        }
    }
}

static void scores_avx512(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim, int lo,
                          int hi, float *scores) {
    if (type == DTYPE_F16) {
        scores_of(DTYPE_F16, queries, n_queries, keys, dim, lo, hi, scores);
    } else if (type == DTYPE_BF16) {
        scores_of(DTYPE_BF16, queries, n_queries, keys, dim, lo, hi, scores);
    } else {
        scores_of(DTYPE_F32, queries, n_queries, keys, dim, lo, hi, scores);
    }
}

// exp of one number through the vector kernel, for equal bits everywhere.
ALWAYS_INLINE float exp_one(float x) {
    return _mm512_cvtss_f32(exp_ps(_mm512_set1_ps(x)));
}

static float softmax_avx512(float *scores, int lo, int hi, float scale, softmax_state *state) {
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
    uint64_t visible = (hi == 64 ? ~0ull : (1ull << hi) - 1) & ~((1ull << lo) - 1);
    __m512 v[SCORE_COLUMNS / 16], most = _mm512_set1_ps(state->max), sum = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < SCORE_COLUMNS / 16; i++) {
        __mmask16 mask = (__mmask16)(visible >> (16 * i));
        v[i] = _mm512_mask_mul_ps(nothing, mask, _mm512_maskz_loadu_ps(mask, scores + 16 * i), _mm512_set1_ps(scale));
        most = _mm512_max_ps(most, v[i]);
    }
    float max = max_ps(most);
    UNROLL
    for (int i = 0; i < SCORE_COLUMNS / 16; i++) {
        __m512 p = exp_ps(_mm512_sub_ps(v[i], _mm512_set1_ps(max)));
        _mm512_storeu_ps(scores + 16 * i, p);
        sum = _mm512_add_ps(sum, p);
    }
    float factor = exp_one(state->max - max);
    state->max = max;
    state->sum = state->sum * factor + sum_ps(sum);
    return factor;
}

enum { WEIGH_VECTORS = 4 }; // 64 channels of a query at once

// Channels [at, at + 16 * n_vectors) of n_queries sums; `last` masks the last vector.
ALWAYS_INLINE void weigh_tile(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                              int64_t dim, int lo, int hi, int64_t at, int n_vectors, __mmask16 last, float *sums) {
    __m512 acc[SCORE_QUERIES][WEIGH_VECTORS];
    UNROLL
    for (int q = 0; q < n_queries; q++) {
        UNROLL
        for (int i = 0; i < n_vectors; i++) {
            __mmask16 mask = i == n_vectors - 1 ? last : (__mmask16)0xffff;
            acc[q][i] =
                _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, sums + q * dim + at + 16 * i), _mm512_set1_ps(factor[q]));
        }
    }
    for (int j = lo; j < hi; j++) {
        __m512 v[WEIGH_VECTORS];
        UNROLL
        for (int i = 0; i < n_vectors; i++) {
            v[i] = load_state(type, values, j * dim + at + 16 * i, i == n_vectors - 1 ? last : (__mmask16)0xffff);
        }
        UNROLL
        for (int q = 0; q < n_queries; q++) {
            __m512 weight_j = _mm512_set1_ps(p[q * SCORE_COLUMNS + j]);
            UNROLL
            for (int i = 0; i < n_vectors; i++) {
                acc[q][i] = _mm512_fmadd_ps(weight_j, v[i], acc[q][i]);
            }
        }
    }
    UNROLL
    for (int q = 0; q < n_queries; q++) {
        UNROLL
        for (int i = 0; i < n_vectors; i++) {
            __mmask16 mask = i == n_vectors - 1 ? last : (__mmask16)0xffff;
            _mm512_mask_storeu_ps(sums + q * dim + at + 16 * i, mask, acc[q][i]);
        }
    }
}

ALWAYS_INLINE void weigh_channels(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                                  int64_t dim, int lo, int hi, float *sums) {
    int64_t at = 0;
    for (; at + 16 * WEIGH_VECTORS <= dim; at += 16 * WEIGH_VECTORS) {
        weigh_tile(type, p, factor, n_queries, values, dim, lo, hi, at, WEIGH_VECTORS, (__mmask16)0xffff, sums);
    }
    for (; at < dim; at += 16) {
        weigh_tile(type, p, factor, n_queries, values, dim, lo, hi, at, 1, tail_mask(dim - at), sums);
    }
}

ALWAYS_INLINE void weigh_of(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                            int64_t dim, int lo, int hi, float *sums) {
    int q = 0;
    for (; q + SCORE_QUERIES <= n_queries; q += SCORE_QUERIES) {
        weigh_channels(type, p + q * SCORE_COLUMNS, factor + q, SCORE_QUERIES, values, dim, lo, hi, sums + q * dim);
    }
    if (n_queries - q == 3) {
        weigh_channels(type, p + q * SCORE_COLUMNS, factor + q, 3, values, dim, lo, hi, sums + q * dim);
        q += 3;
    }
    for (; q < n_queries; q++) {
        weigh_channels(type, p + q * SCORE_COLUMNS, factor + q, 1, values, dim, lo, hi, sums + q * dim);
    }
}

static void weigh_avx512(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                         int64_t dim, int lo, int hi, float *sums) {
    if (type == DTYPE_F16) {
        weigh_of(DTYPE_F16, p, factor, n_queries, values, dim, lo, hi, sums);
    } else if (type == DTYPE_BF16) {
        weigh_of(DTYPE_BF16, p, factor, n_queries, values, dim, lo, hi, sums);
    } else {
        weigh_of(DTYPE_F32, p, factor, n_queries, values, dim, lo, hi, sums);
    }
}

static void merge_avx512(float *total, softmax_state *total_state, const float *part, const softmax_state *part_state,
                         int64_t dim) {
    float max = part_state->max > total_state->max ? part_state->max : total_state->max;
    float total_factor = exp_one(total_state->max - max), part_factor = exp_one(part_state->max - max);
    for (int64_t i = 0; i < dim; i += 16) {
        __mmask16 mask = tail_mask(dim - i);
        __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, total + i), _mm512_set1_ps(total_factor));
        __m512 sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, part + i), _mm512_set1_ps(part_factor), scaled);
        _mm512_mask_storeu_ps(total + i, mask, sum);
    }
    total_state->sum = total_state->sum * total_factor + part_state->sum * part_factor;
    total_state->max = max;
}

void cpu_attention_avx512(attention_kernels *k) {
    *k = (attention_kernels){.scores = scores_avx512,
                             .softmax = softmax_avx512,
                             .weigh = weigh_avx512,
                             .merge = merge_avx512,
                             .level = CPU_AVX512};
}
