// Matmul panel kernels for AVX-512 with VNNI. Lanes are the panel's 16 output rows.
//
//   weights  one panel (cpu_layout.h)
//   acts     [n_rows] quantised or f32 rows
//   out      [n_rows, PANEL_ROWS]
//
// Every form and tile height is one instance of panel_q8(): its `form` and `n` arguments are constants, so that the
// branches on them fold away. An element's sum is made group by group whatever the tile height.
#include "backend/cpu/cpu_forms.h"
#include "backend/cpu/cpu_kernels.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { TILE_ROWS = 8 }; // rows that share the decoding of a group; 8 sums and 8 code vectors fit the registers

ALWAYS_INLINE __m512 load_f16(const uint8_t *src) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)src));
}
ALWAYS_INLINE __m512 load_u8(const uint8_t *src) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)src)));
}

// Codes of one group, one vector a quad, unsigned.
ALWAYS_INLINE void load_codes(pack_form form, const uint8_t *src, __m512i codes[8]) {
    if (form_is_c8(form)) {
        UNROLL
        for (int quad = 0; quad < 8; quad++) {
            codes[quad] = _mm512_loadu_si512(src + 64 * quad);
        }
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    UNROLL
    for (int quad = 0; quad < 4; quad++) {
        __m512i both = _mm512_loadu_si512(src + 64 * quad);
        codes[quad] = _mm512_and_si512(both, low);
        codes[quad + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    if (form_is_c5(form)) {
        const __m512i fifth = _mm512_set1_epi8(16);
        UNROLL
        for (int quad = 0; quad < 8; quad++) {
            uint64_t bits;
            memcpy(&bits, src + C4_GROUP_BYTES + 8 * quad, 8);
            codes[quad] = _mm512_mask_add_epi8(codes[quad], (__mmask64)bits, codes[quad], fifth);
        }
    }
}

ALWAYS_INLINE __m512i broadcast_quad(const int8_t *codes) {
    int32_t quad;
    memcpy(&quad, codes, 4);
    return _mm512_set1_epi32(quad);
}

// Exact integer sums of quads [first, first + count), count even, starting from -offset * (sum of those activations).
ALWAYS_INLINE __m512 dot_quads(const __m512i codes[8], const int8_t *act, int first, int count, int32_t start) {
    __m512i even = _mm512_set1_epi32(start), odd = _mm512_setzero_si512();
    UNROLL
    for (int quad = first; quad < first + count; quad += 2) {
        even = _mm512_dpbusd_epi32(even, codes[quad], broadcast_quad(act + 4 * quad));
        odd = _mm512_dpbusd_epi32(odd, codes[quad + 1], broadcast_quad(act + 4 * quad + 4));
    }
    return _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
}

// Adds group g to the sums of n rows. d, m: scales and minima of the group (of its halves).
ALWAYS_INLINE void add_group(pack_form form, int n, const __m512i codes[8], const __m512 d[2], const __m512 m[2],
                             const act_parts *acts, int64_t g, __m512 *sums) {
    const int offset = form_offset(form);
    UNROLL
    for (int r = 0; r < n; r++) {
        size_t row = (size_t)r * acts->pitch;
        const int8_t *act = acts->codes + row + g * GROUP;
        float scale = act_f32(acts->scales + row, g);
        if (form_has_halves(form)) {
            UNROLL
            for (int h = 0; h < 2; h++) {
                int32_t half_sum = act_i32(acts->half_sums + row, 2 * g + h);
                __m512 dot = dot_quads(codes, act, 4 * h, 4, -offset * half_sum);
                sums[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d[h], _mm512_set1_ps(scale)), sums[r]);
                if (form_has_min(form)) {
                    sums[r] = _mm512_fmadd_ps(m[h], _mm512_set1_ps(scale * (float)half_sum), sums[r]);
                }
            }
            continue;
        }
        int32_t start = 0;
        if (offset) {
            start = -offset * (act_i32(acts->half_sums + row, 2 * g) + act_i32(acts->half_sums + row, 2 * g + 1));
        }
        __m512 dot = dot_quads(codes, act, 0, 8, start);
        sums[r] = _mm512_fmadd_ps(dot, _mm512_mul_ps(d[0], _mm512_set1_ps(scale)), sums[r]);
        if (form_has_min(form)) {
            sums[r] = _mm512_fmadd_ps(m[0], _mm512_set1_ps(act_f32(acts->scaled_sums + row, g)), sums[r]);
        }
    }
}

ALWAYS_INLINE void load_scales(pack_form form, const uint8_t *unit, int group_in_unit, __m512 d[2], __m512 m[2]) {
    if (form_has_halves(form)) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            d[h] = _mm512_loadu_ps(unit + 64 * h);
            m[h] = form_has_min(form) ? _mm512_loadu_ps(unit + 128 + 64 * h) : _mm512_setzero_ps();
        }
        return;
    }
    d[0] = d[1] = load_f16(unit);
    m[0] = m[1] = form_has_min(form) ? load_f16(unit + 32) : _mm512_setzero_ps();
    if (form_is_k(form)) {
        d[0] = _mm512_mul_ps(d[0], load_u8(unit + 64 + PANEL_ROWS * group_in_unit));
        m[0] = _mm512_mul_ps(m[0], load_u8(unit + 64 + PANEL_ROWS * (8 + group_in_unit)));
        m[0] = _mm512_sub_ps(_mm512_setzero_ps(), m[0]);
    }
}

ALWAYS_INLINE void panel_tile(pack_form form, int n, const uint8_t *panel, int64_t k, const act_parts *acts,
                              float *out) {
    const int unit_groups = form_unit_groups(form);
    __m512 sums[TILE_ROWS];
    UNROLL
    for (int r = 0; r < n; r++) {
        sums[r] = _mm512_setzero_ps();
    }
    for (int64_t first = 0; first < k / GROUP; first += unit_groups, panel += form_unit_bytes(form)) {
        for (int in_unit = 0; in_unit < unit_groups; in_unit++) {
            __m512i codes[8];
            __m512 d[2], m[2];
            load_codes(form, panel + form_scale_bytes(form) + in_unit * form_group_bytes(form), codes);
            load_scales(form, panel, in_unit, d, m);
            add_group(form, n, codes, d, m, acts, first + in_unit, sums);
        }
    }
    UNROLL
    for (int r = 0; r < n; r++) {
        _mm512_storeu_ps(out + r * PANEL_ROWS, sums[r]);
    }
}

ALWAYS_INLINE void panel_q8(pack_form form, const void *panel, int64_t k, const void *acts, int n_rows, float *out) {
    for (int r = 0; r < n_rows;) {
        act_parts tile = act_parts_of(acts, k, r);
        float *tile_out = out + r * PANEL_ROWS;
        if (n_rows - r >= TILE_ROWS) {
            panel_tile(form, TILE_ROWS, panel, k, &tile, tile_out);
            r += TILE_ROWS;
        } else if (n_rows - r >= 4) {
            panel_tile(form, 4, panel, k, &tile, tile_out);
            r += 4;
        } else if (n_rows - r >= 2) {
            panel_tile(form, 2, panel, k, &tile, tile_out);
            r += 2;
        } else {
            panel_tile(form, 1, panel, k, &tile, tile_out);
            r += 1;
        }
    }
}

DEFINE_PANEL_Q8_TABLE(q8_table)

// ---- float panels ----

ALWAYS_INLINE __m512 load_weights(dtype type, const void *panel, int64_t at) {
    if (type == DTYPE_F32) {
        return _mm512_loadu_ps((const float *)panel + at * PANEL_ROWS);
    }
    __m256i half = _mm256_loadu_si256((const __m256i *)((const uint16_t *)panel + at * PANEL_ROWS));
    if (type == DTYPE_F16) {
        return _mm512_cvtph_ps(half);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

enum { FLOAT_TILE_ROWS = 6 }; // x 4 sums

ALWAYS_INLINE void float_tile(dtype type, int n, const void *panel, int64_t k, const float *acts, float *out) {
    __m512 sums[FLOAT_TILE_ROWS][4];
    UNROLL
    for (int r = 0; r < n; r++) {
        UNROLL
        for (int part = 0; part < 4; part++) {
            sums[r][part] = _mm512_setzero_ps();
        }
    }
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
        UNROLL
        for (int part = 0; part < 4; part++) {
            __m512 w = load_weights(type, panel, i + part);
            UNROLL
            for (int r = 0; r < n; r++) {
                sums[r][part] = _mm512_fmadd_ps(w, _mm512_set1_ps(acts[r * k + i + part]), sums[r][part]);
            }
        }
    }
    for (int part = 0; i + part < k; part++) {
        __m512 w = load_weights(type, panel, i + part);
        UNROLL
        for (int r = 0; r < n; r++) {
            sums[r][part] = _mm512_fmadd_ps(w, _mm512_set1_ps(acts[r * k + i + part]), sums[r][part]);
        }
    }
    UNROLL
    for (int r = 0; r < n; r++) {
        __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[r][0], sums[r][1]), _mm512_add_ps(sums[r][2], sums[r][3]));
        _mm512_storeu_ps(out + r * PANEL_ROWS, sum);
    }
}

ALWAYS_INLINE void panel_float(dtype type, const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    int r = 0;
    for (; r + FLOAT_TILE_ROWS <= n_rows; r += FLOAT_TILE_ROWS) {
        float_tile(type, FLOAT_TILE_ROWS, panel, k, acts + r * k, out + r * PANEL_ROWS);
    }
    for (; r + 2 <= n_rows; r += 2) {
        float_tile(type, 2, panel, k, acts + r * k, out + r * PANEL_ROWS);
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

// The rules for unusable scales are those of the portable version.
static void quantize_q8(const float *x, int64_t k, void *row, int64_t first_group, int64_t end_group) {
    q8_layout parts = q8_layout_of(k);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int64_t g = first_group; g < end_group; g++) {
        __m512 a = _mm512_loadu_ps(x + g * GROUP), b = _mm512_loadu_ps(x + g * GROUP + 16);
        __m512i a_bits = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
        __m512i b_bits = _mm512_and_si512(_mm512_castps_si512(b), magnitude);
        uint32_t most_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(a_bits, b_bits));
        float most;
        memcpy(&most, &most_bits, 4);
        float inverse = 127.0f / most, scale = most / 127.0f;
        __m512i a_codes = _mm512_setzero_si512(), b_codes = a_codes;
        if (isfinite(most) && isfinite(inverse)) {
            a_codes = _mm512_cvtps_epi32(_mm512_mul_ps(a, _mm512_set1_ps(inverse)));
            b_codes = _mm512_cvtps_epi32(_mm512_mul_ps(b, _mm512_set1_ps(inverse)));
        }
        int8_t *codes = (int8_t *)row + parts.codes + g * GROUP;
        _mm_storeu_si128((__m128i *)codes, _mm512_cvtepi32_epi8(a_codes));
        _mm_storeu_si128((__m128i *)(codes + 16), _mm512_cvtepi32_epi8(b_codes));
        int32_t half_sums[2] = {_mm512_reduce_add_epi32(a_codes), _mm512_reduce_add_epi32(b_codes)};
        float scaled_sum = scale * (float)(half_sums[0] + half_sums[1]);
        memcpy((char *)row + parts.scales + 4 * g, &scale, 4);
        memcpy((char *)row + parts.scaled_sums + 4 * g, &scaled_sum, 4);
        memcpy((char *)row + parts.half_sums + 8 * g, half_sums, 8);
    }
}

void cpu_matmul_avx512(matmul_kernels *k) {
    memcpy(k->q8, q8_table, sizeof q8_table);
    for (int i = 0; i < PACK_FORM_COUNT; i++) {
        k->q8_level[i] = CPU_AVX512;
    }
    k->f32 = panel_f32;
    k->f16 = panel_f16;
    k->bf16 = panel_bf16;
    k->f32_level = k->f16_level = k->bf16_level = CPU_AVX512;
    k->quantize_q8 = quantize_q8;
}
