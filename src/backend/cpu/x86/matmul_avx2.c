// Matmul panel kernels for AVX2. Lanes are output rows; a panel is done in two halves of 8, because a tile of 16 would
// not leave enough registers.
//
//   weights  one panel (cpu_layout.h)
//   acts     [n_rows] quantised or f32 rows
//   out      [n_rows, PANEL_ROWS]
//
// Every form and tile height is one instance of panel_q8(): its `form` and `n` arguments are constants, so that the
// branches on them fold away. An element's sum is made group by group whatever the tile height.
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/x86/math_avx2.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 4 };

ALWAYS_INLINE __m256 load_f16(const uint8_t *src) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)src));
}
ALWAYS_INLINE __m256 load_u8(const uint8_t *src) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)src)));
}

// Codes of one quad of 8 output rows, unsigned bytes. src: the group's codes; half: 0 or 1.
ALWAYS_INLINE __m256i load_quad(pack_form form, const uint8_t *src, int half, int quad) {
    if (form_is_c8(form)) {
        return _mm256_loadu_si256((const __m256i *)(src + 64 * quad + 32 * half));
    }
    __m256i codes = _mm256_loadu_si256((const __m256i *)(src + 64 * (quad % 4) + 32 * half));
    if (quad >= 4) {
        codes = _mm256_srli_epi16(codes, 4);
    }
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    if (form_is_c5(form)) {
        uint32_t bits;
        memcpy(&bits, src + C4_GROUP_BYTES + 8 * quad + 4 * half, 4);
        // byte i of the vector gets the byte that holds bit i, then keeps that bit
        const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2,
                                                3, 3, 3, 3, 3, 3, 3, 3);
        const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
        __m256i held = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread), bit);
        __m256i fifth = _mm256_and_si256(_mm256_cmpeq_epi8(held, bit), _mm256_set1_epi8(16));
        codes = _mm256_or_si256(codes, fifth);
    }
    return codes;
}

ALWAYS_INLINE __m256i broadcast_quad(const int8_t *codes) {
    int32_t quad;
    memcpy(&quad, codes, 4);
    return _mm256_set1_epi32(quad);
}

// Pair products of one quad with four activations, as 16-bit sums. C8 codes are made signed first, and the activation
// takes their sign: products of two bytes of full range would not fit 16 bits.
ALWAYS_INLINE __m256i pair_products(pack_form form, __m256i codes, __m256i act) {
    if (form_is_c8(form)) {
        codes = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
        return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(act, codes));
    }
    return _mm256_maddubs_epi16(codes, act);
}

// Adds quads [first, first + 4) of a group to 32-bit sums of n rows. Four 16-bit products of C4 and C5 codes can be
// added before they are widened (4 * 2 * 31 * 127 < 32768); C8 ones are widened at once.
ALWAYS_INLINE void dot_quads(pack_form form, int n, const uint8_t *src, int half, int first, const act_parts *acts,
                             int64_t g, __m256i *dots) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n; r++) {
        pairs[r] = _mm256_setzero_si256();
    }
    UNROLL
    for (int quad = first; quad < first + 4; quad++) {
        __m256i codes = load_quad(form, src, half, quad);
        UNROLL
        for (int r = 0; r < n; r++) {
            __m256i act = broadcast_quad(acts->codes + (size_t)r * acts->pitch + g * GROUP + 4 * quad);
            __m256i products = pair_products(form, codes, act);
            if (form_is_c8(form)) {
                dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(products, ones));
            } else {
                pairs[r] = _mm256_add_epi16(pairs[r], products);
            }
        }
    }
    if (!form_is_c8(form)) {
        UNROLL
        for (int r = 0; r < n; r++) {
            dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(pairs[r], ones));
        }
    }
}

// Scale and minimum of one group (form_has_halves: of its half h) for 8 output rows.
ALWAYS_INLINE void load_scales(pack_form form, const uint8_t *unit, int half, int group_in_unit, int h, __m256 *d,
                               __m256 *m) {
    *m = _mm256_setzero_ps();
    if (form_has_halves(form)) {
        *d = _mm256_loadu_ps((const float *)(const void *)(unit + 64 * h + 32 * half));
        if (form_has_min(form)) {
            *m = _mm256_loadu_ps((const float *)(const void *)(unit + 128 + 64 * h + 32 * half));
        }
        return;
    }
    *d = load_f16(unit + 16 * half);
    if (form_has_min(form)) {
        *m = load_f16(unit + 32 + 16 * half);
    }
    if (form_is_k(form)) {
        *d = _mm256_mul_ps(*d, load_u8(unit + 64 + PANEL_ROWS * group_in_unit + 8 * half));
        *m = _mm256_mul_ps(*m, load_u8(unit + 64 + PANEL_ROWS * (8 + group_in_unit) + 8 * half));
        *m = _mm256_sub_ps(_mm256_setzero_ps(), *m);
    }
}

// What an activation row contributes beside its codes: for offset forms the integers to start from, for forms with a
// minimum the factor of it.
ALWAYS_INLINE int32_t group_sum(const act_parts *acts, size_t row, int64_t g) {
    return act_i32(acts->half_sums + row, 2 * g) + act_i32(acts->half_sums + row, 2 * g + 1);
}

ALWAYS_INLINE void add_group(pack_form form, int n, const uint8_t *unit, int half, int in_unit, const act_parts *acts,
                             int64_t g, __m256 *sums) {
    const uint8_t *src = unit + form_scale_bytes(form) + in_unit * form_group_bytes(form);
    const int n_parts = form_has_halves(form) ? 2 : 1;
    UNROLL
    for (int part = 0; part < n_parts; part++) {
        __m256i dots[TILE_ROWS];
        __m256 d, m;
        load_scales(form, unit, half, in_unit, part, &d, &m);
        UNROLL
        for (int r = 0; r < n; r++) {
            // C8 codes are signed in pair_products; the others carry their offset here
            int offset = form_is_c8(form) ? 0 : form_offset(form);
            dots[r] = _mm256_set1_epi32(offset ? -offset * group_sum(acts, (size_t)r * acts->pitch, g) : 0);
        }
        dot_quads(form, n, src, half, 4 * part, acts, g, dots);
        if (n_parts == 1) {
            dot_quads(form, n, src, half, 4, acts, g, dots);
        }
        UNROLL
        for (int r = 0; r < n; r++) {
            size_t row = (size_t)r * acts->pitch;
            float scale = act_f32(acts->scales + row, g);
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_mul_ps(d, _mm256_set1_ps(scale)), sums[r]);
            if (form_has_min(form)) {
                float factor = n_parts == 2 ? scale * (float)act_i32(acts->half_sums + row, 2 * g + part)
                                            : act_f32(acts->scaled_sums + row, g);
                sums[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(factor), sums[r]);
            }
        }
    }
}

ALWAYS_INLINE void panel_tile(pack_form form, int n, const uint8_t *panel, int64_t k, const act_parts *acts,
                              float *out) {
    const int unit_groups = form_unit_groups(form);
    for (int half = 0; half < 2; half++) {
        const uint8_t *unit = panel;
        __m256 sums[TILE_ROWS];
        UNROLL
        for (int r = 0; r < n; r++) {
            sums[r] = _mm256_setzero_ps();
        }
        for (int64_t first = 0; first < k / GROUP; first += unit_groups, unit += form_unit_bytes(form)) {
            for (int in_unit = 0; in_unit < unit_groups; in_unit++) {
                add_group(form, n, unit, half, in_unit, acts, first + in_unit, sums);
            }
        }
        UNROLL
        for (int r = 0; r < n; r++) {
            _mm256_storeu_ps(out + r * PANEL_ROWS + 8 * half, sums[r]);
        }
    }
}

ALWAYS_INLINE void panel_q8(pack_form form, const void *panel, int64_t k, const void *acts, int n_rows, float *out) {
    int r = 0;
    for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS) {
        act_parts tile = act_parts_of(acts, k, r);
        panel_tile(form, TILE_ROWS, panel, k, &tile, out + r * PANEL_ROWS);
    }
    for (; r < n_rows; r++) {
        act_parts tile = act_parts_of(acts, k, r);
        panel_tile(form, 1, panel, k, &tile, out + r * PANEL_ROWS);
    }
}

DEFINE_PANEL_Q8_TABLE(q8_table)

// ---- float panels ----

// at: element of k; 8 lanes of the given half.
ALWAYS_INLINE __m256 load_weights(dtype type, const void *panel, int64_t at, int half) {
    if (type == DTYPE_F32) {
        return _mm256_loadu_ps((const float *)panel + at * PANEL_ROWS + 8 * half);
    }
    __m128i halves = _mm_loadu_si128((const __m128i *)((const uint16_t *)panel + at * PANEL_ROWS + 8 * half));
    if (type == DTYPE_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

enum { FLOAT_TILE_ROWS = 3 }; // x 4 sums: 12 of 16 registers

ALWAYS_INLINE void float_tile(dtype type, int n, const void *panel, int64_t k, const float *acts, float *out) {
    for (int half = 0; half < 2; half++) {
        __m256 sums[FLOAT_TILE_ROWS][4];
        UNROLL
        for (int r = 0; r < n; r++) {
            UNROLL
            for (int part = 0; part < 4; part++) {
                sums[r][part] = _mm256_setzero_ps();
            }
        }
        int64_t i = 0;
        for (; i + 4 <= k; i += 4) {
            UNROLL
            for (int part = 0; part < 4; part++) {
                __m256 w = load_weights(type, panel, i + part, half);
                UNROLL
                for (int r = 0; r < n; r++) {
                    sums[r][part] = _mm256_fmadd_ps(w, _mm256_set1_ps(acts[r * k + i + part]), sums[r][part]);
                }
            }
        }
        UNROLL
        for (int part = 0; part < 3; part++) { // k mod 4 elements are left
            if (i + part < k) {
                __m256 w = load_weights(type, panel, i + part, half);
                UNROLL
                for (int r = 0; r < n; r++) {
                    sums[r][part] = _mm256_fmadd_ps(w, _mm256_set1_ps(acts[r * k + i + part]), sums[r][part]);
                }
            }
        }
        UNROLL
        for (int r = 0; r < n; r++) {
            __m256 sum = _mm256_add_ps(_mm256_add_ps(sums[r][0], sums[r][1]), _mm256_add_ps(sums[r][2], sums[r][3]));
            _mm256_storeu_ps(out + r * PANEL_ROWS + 8 * half, sum);
        }
    }
}

ALWAYS_INLINE void panel_float(dtype type, const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    int r = 0;
    for (; r + FLOAT_TILE_ROWS <= n_rows; r += FLOAT_TILE_ROWS) {
        float_tile(type, FLOAT_TILE_ROWS, panel, k, acts + r * k, out + r * PANEL_ROWS);
    }
    for (; r < n_rows; r++) {
        float_tile(type, 1, panel, k, acts + r * k, out + r * PANEL_ROWS);
    }
}

static void panel_f32(const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    panel_float(DTYPE_F32, panel, k, acts, n_rows, out);
}
static void panel_f16(const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    panel_float(DTYPE_F16, panel, k, acts, n_rows, out);
}
static void panel_bf16(const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    panel_float(DTYPE_BF16, panel, k, acts, n_rows, out);
}

// ---- activations ----

ALWAYS_INLINE uint32_t max_epu32(__m256i v) {
    __m128i quarter = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    quarter = _mm_max_epu32(quarter, _mm_shuffle_epi32(quarter, 0x4e));
    quarter = _mm_max_epu32(quarter, _mm_shuffle_epi32(quarter, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(quarter);
}

// Eight codes from eight integers in -127..127, and their sum.
ALWAYS_INLINE int32_t store_codes(int8_t *dst, __m256i codes) {
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    _mm_storel_epi64((__m128i *)dst, _mm_packs_epi16(words, words));
    __m128i sum = _mm_madd_epi16(words, _mm_set1_epi16(1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(sum);
}

// The rules for unusable scales are those of the portable version.
static void quantize_q8(const float *x, int64_t k, void *row, int64_t first_group, int64_t end_group) {
    q8_layout parts = q8_layout_of(k);
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (int64_t g = first_group; g < end_group; g++) {
        __m256 v[4];
        __m256i most_lanes = _mm256_setzero_si256();
        UNROLL
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + g * GROUP + 8 * i);
            most_lanes = _mm256_max_epu32(most_lanes, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        uint32_t most_bits = max_epu32(most_lanes);
        float most;
        memcpy(&most, &most_bits, 4);
        float inverse = 127.0f / most, scale = most / 127.0f;
        bool is_usable = isfinite(most) && isfinite(inverse);
        int8_t *codes = (int8_t *)row + parts.codes + g * GROUP;
        int32_t half_sums[2] = {0, 0};
        UNROLL
        for (int i = 0; i < 4; i++) {
            __m256i rounded =
                is_usable ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse))) : _mm256_setzero_si256();
            half_sums[i / 2] += store_codes(codes + 8 * i, rounded);
        }
        float scaled_sum = scale * (float)(half_sums[0] + half_sums[1]);
        memcpy((char *)row + parts.scales + 4 * g, &scale, 4);
        memcpy((char *)row + parts.scaled_sums + 4 * g, &scaled_sum, 4);
        memcpy((char *)row + parts.half_sums + 8 * g, half_sums, 8);
    }
}

void cpu_matmul_avx2(matmul_kernels *k) {
    memcpy(k->q8, q8_table, sizeof q8_table);
    for (int i = 0; i < PACK_FORM_COUNT; i++) {
        k->q8_level[i] = CPU_AVX2;
    }
    k->f32 = panel_f32;
    k->f16 = panel_f16;
    k->bf16 = panel_bf16;
    k->f32_level = k->f16_level = k->bf16_level = CPU_AVX2;
    k->quantize_q8 = quantize_q8;
}
