// Attention kernels for AVX2. Shapes are given at attention_kernels (cpu_kernels.h).
//
// Scores: a product q . k_j is 8 partial sums over i mod 8, i ascending, added as one fixed tree; 8 products are
// finished together, each through the same tree. Weighted sums: lanes are channels, positions ascend.
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/x86/math_avx2.h"

#include <math.h>
#include <string.h>

// left: elements from `at` to the end of the row; lanes past it are zero.
ALWAYS_INLINE __m256 load_state(dtype type, const void *src, int64_t at, int64_t left) {
    if (type == DTYPE_F32) {
        return _mm256_maskload_ps((const float *)src + at, tail_mask(left));
    }
    __m128i halves;
    if (left >= 8) {
        halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)src + at));
    } else {
        uint16_t all[8] = {0};
        memcpy(all, (const uint16_t *)src + at, (size_t)left * 2);
        halves = _mm_loadu_si128((const __m128i *)all);
    }
    if (type == DTYPE_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// Lane sums of 8 vectors: out lane i = sum of v[i]. Adds lane pairs at distance 2, then 1, then 128-bit parts.
ALWAYS_INLINE __m256 sum_8_vectors(const __m256 v[8]) {
    __m256 quads[2];
    UNROLL
    for (int i = 0; i < 2; i++) {
        __m256 a = v[4 * i], b = v[4 * i + 1], c = v[4 * i + 2], d = v[4 * i + 3];
        __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        __m256d low = _mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        __m256d high = _mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        quads[i] = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high)); // in each part: a, b, c, d
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                         _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
}

enum { TILE_QUERIES = 2, TILE_KEYS = 4 }; // products made together

ALWAYS_INLINE void score_tile(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim,
                              int64_t key, int n_keys, float *scores) {
    __m256 sums[TILE_QUERIES * TILE_KEYS];
    UNROLL
    for (int i = 0; i < TILE_QUERIES * TILE_KEYS; i++) {
        sums[i] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < dim; i += 8) {
        __m256 k[TILE_KEYS];
        UNROLL
        for (int j = 0; j < n_keys; j++) {
            k[j] = load_state(type, keys, (key + j) * dim + i, dim - i);
        }
        UNROLL
        for (int q = 0; q < n_queries; q++) {
            __m256 query = _mm256_maskload_ps(queries + q * dim + i, tail_mask(dim - i));
            UNROLL
            for (int j = 0; j < n_keys; j++) {
                sums[q * TILE_KEYS + j] = _mm256_fmadd_ps(query, k[j], sums[q * TILE_KEYS + j]);
            }
        }
    }
    float totals[8];
    _mm256_storeu_ps(totals, sum_8_vectors(sums));
    for (int q = 0; q < n_queries; q++) {
        memcpy(scores + q * SCORE_COLUMNS + key, totals + q * TILE_KEYS, (size_t)n_keys * sizeof(float));
    }
}

ALWAYS_INLINE void scores_of(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim, int lo,
                             int hi, float *scores) {
    for (int q = 0; q < n_queries;) {
        const float *query = queries + q * dim;
        float *out = scores + q * SCORE_COLUMNS;
        int j = lo;
        if (n_queries - q >= TILE_QUERIES) {
            for (; j + TILE_KEYS <= hi; j += TILE_KEYS) {
                score_tile(type, query, TILE_QUERIES, keys, dim, j, TILE_KEYS, out);
            }
            for (; j < hi; j++) {
                score_tile(type, query, TILE_QUERIES, keys, dim, j, 1, out);
            }
            q += TILE_QUERIES;
        } else {
            for (; j + TILE_KEYS <= hi; j += TILE_KEYS) {
                score_tile(type, query, 1, keys, dim, j, TILE_KEYS, out);
            }
            for (; j < hi; j++) {
                score_tile(type, query, 1, keys, dim, j, 1, out);
            }
            q += 1;
        }
    }
}

static void scores_avx2(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim, int lo, int hi,
                        float *scores) {
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
    return _mm256_cvtss_f32(exp_ps(_mm256_set1_ps(x)));
}

static float softmax_avx2(float *scores, int lo, int hi, float scale, softmax_state *state) {
    __m256 v[SCORE_COLUMNS / 8], most = _mm256_set1_ps(state->max), sum = _mm256_setzero_ps();
    for (int i = 0; i < lo; i++) {
        scores[i] = -INFINITY;
    }
    for (int i = hi; i < SCORE_COLUMNS; i++) {
        scores[i] = -INFINITY;
    }
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int i = 0; i < SCORE_COLUMNS / 8; i++) {
        // Hidden columns are put back after scaling: a scale of 0 would make them NaN.
        __m256i column = _mm256_add_epi32(lanes, _mm256_set1_epi32(8 * i));
        __m256i seen = _mm256_and_si256(_mm256_cmpgt_epi32(column, _mm256_set1_epi32(lo - 1)),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), column));
        __m256 raw = _mm256_loadu_ps(scores + 8 * i);
        v[i] = _mm256_blendv_ps(raw, _mm256_mul_ps(raw, _mm256_set1_ps(scale)), _mm256_castsi256_ps(seen));
        most = _mm256_max_ps(most, v[i]);
    }
    float max = max_ps(most);
    for (int i = 0; i < SCORE_COLUMNS / 8; i++) {
        __m256 p = exp_ps(_mm256_sub_ps(v[i], _mm256_set1_ps(max)));
        _mm256_storeu_ps(scores + 8 * i, p);
        sum = _mm256_add_ps(sum, p);
    }
    float factor = exp_one(state->max - max);
    state->max = max;
    state->sum = state->sum * factor + sum_ps(sum);
    return factor;
}

enum { WEIGH_VECTORS = 4 }; // 32 channels of a query at once

// Channels [at, at + 8 * n_vectors) of n_queries sums; with one vector the row may end inside it.
ALWAYS_INLINE void weigh_tile(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                              int64_t dim, int lo, int hi, int64_t at, int n_vectors, float *sums) {
    __m256 acc[TILE_QUERIES][WEIGH_VECTORS];
    UNROLL
    for (int q = 0; q < n_queries; q++) {
        UNROLL
        for (int i = 0; i < n_vectors; i++) {
            __m256 old = _mm256_maskload_ps(sums + q * dim + at + 8 * i, tail_mask(dim - at - 8 * i));
            acc[q][i] = _mm256_mul_ps(old, _mm256_set1_ps(factor[q]));
        }
    }
    for (int j = lo; j < hi; j++) {
        __m256 v[WEIGH_VECTORS];
        UNROLL
        for (int i = 0; i < n_vectors; i++) {
            v[i] = load_state(type, values, j * dim + at + 8 * i, dim - at - 8 * i);
        }
        UNROLL
        for (int q = 0; q < n_queries; q++) {
            __m256 weight_j = _mm256_set1_ps(p[q * SCORE_COLUMNS + j]);
            UNROLL
            for (int i = 0; i < n_vectors; i++) {
                acc[q][i] = _mm256_fmadd_ps(weight_j, v[i], acc[q][i]);
            }
        }
    }
    UNROLL
    for (int q = 0; q < n_queries; q++) {
        UNROLL
        for (int i = 0; i < n_vectors; i++) {
            _mm256_maskstore_ps(sums + q * dim + at + 8 * i, tail_mask(dim - at - 8 * i), acc[q][i]);
        }
    }
}

ALWAYS_INLINE void weigh_channels(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                                  int64_t dim, int lo, int hi, float *sums) {
    int64_t at = 0;
    for (; at + 8 * WEIGH_VECTORS <= dim; at += 8 * WEIGH_VECTORS) {
        weigh_tile(type, p, factor, n_queries, values, dim, lo, hi, at, WEIGH_VECTORS, sums);
    }
    for (; at < dim; at += 8) {
        weigh_tile(type, p, factor, n_queries, values, dim, lo, hi, at, 1, sums);
    }
}

ALWAYS_INLINE void weigh_of(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                            int64_t dim, int lo, int hi, float *sums) {
    int q = 0;
    for (; q + TILE_QUERIES <= n_queries; q += TILE_QUERIES) {
        weigh_channels(type, p + q * SCORE_COLUMNS, factor + q, TILE_QUERIES, values, dim, lo, hi, sums + q * dim);
    }
    for (; q < n_queries; q++) {
        weigh_channels(type, p + q * SCORE_COLUMNS, factor + q, 1, values, dim, lo, hi, sums + q * dim);
    }
}

static void weigh_avx2(dtype type, const float *p, const float *factor, int n_queries, const void *values, int64_t dim,
                       int lo, int hi, float *sums) {
    if (type == DTYPE_F16) {
        weigh_of(DTYPE_F16, p, factor, n_queries, values, dim, lo, hi, sums);
    } else if (type == DTYPE_BF16) {
        weigh_of(DTYPE_BF16, p, factor, n_queries, values, dim, lo, hi, sums);
    } else {
        weigh_of(DTYPE_F32, p, factor, n_queries, values, dim, lo, hi, sums);
    }
}

static void merge_avx2(float *total, softmax_state *total_state, const float *part, const softmax_state *part_state,
                       int64_t dim) {
    float max = part_state->max > total_state->max ? part_state->max : total_state->max;
    float total_factor = exp_one(total_state->max - max), part_factor = exp_one(part_state->max - max);
    for (int64_t i = 0; i < dim; i += 8) {
        __m256i mask = tail_mask(dim - i);
        __m256 scaled = _mm256_mul_ps(_mm256_maskload_ps(total + i, mask), _mm256_set1_ps(total_factor));
        __m256 sum = _mm256_fmadd_ps(_mm256_maskload_ps(part + i, mask), _mm256_set1_ps(part_factor), scaled);
        _mm256_maskstore_ps(total + i, mask, sum);
    }
    total_state->sum = total_state->sum * total_factor + part_state->sum * part_factor;
    total_state->max = max;
}

void cpu_attention_avx2(attention_kernels *k) {
    *k = (attention_kernels){
        .scores = scores_avx2, .softmax = softmax_avx2, .weigh = weigh_avx2, .merge = merge_avx2, .level = CPU_AVX2};
}
