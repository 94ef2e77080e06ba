// Matmul panel kernels in portable C: the plainest statement of the arithmetic that the other levels repeat.
//
//   weights  one panel of PANEL_ROWS output rows (cpu_layout.h)
//   acts     [n_rows] quantised or f32 rows
//   out      [n_rows, PANEL_ROWS]
#include "backend/cpu/cpu_forms.h"
#include "backend/cpu/cpu_kernels.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 4 }; // rows that share the decoding of a group

// Codes of one group as [GROUP][PANEL_ROWS], the offset subtracted.
ALWAYS_INLINE void decode_group(pack_form form, const uint8_t *src, int16_t codes[GROUP][PANEL_ROWS]) {
    for (int e = 0; e < GROUP; e++) {
        int quad = e / 4;
        for (int lane = 0; lane < PANEL_ROWS; lane++) {
            int byte = 4 * lane + e % 4, code;
            if (form_is_c8(form)) {
                code = src[64 * quad + byte];
            } else {
                code = src[64 * (quad % 4) + byte] >> (quad < 4 ? 0 : 4) & 15;
                if (form_is_c5(form)) {
                    code |= (src[C4_GROUP_BYTES + 8 * quad + byte / 8] >> (byte % 8) & 1) << 4;
                }
            }
            codes[e][lane] = (int16_t)(code - form_offset(form));
        }
    }
}

static float load_f16(const uint8_t *src, int lane) {
    uint16_t bits;
    memcpy(&bits, src + 2 * lane, 2);
    return f16_to_f32(bits);
}

// Scales (and minima) of one group: d[h][lane], m[h][lane] for its two halves, equal where the form has one scale.
ALWAYS_INLINE void decode_scales(pack_form form, const uint8_t *src, int group_in_unit, float d[2][PANEL_ROWS],
                                 float m[2][PANEL_ROWS]) {
    if (form_has_halves(form)) {
        memcpy(d, src, 2 * PANEL_ROWS * sizeof(float));
        if (form_has_min(form)) {
            memcpy(m, src + 128, 2 * PANEL_ROWS * sizeof(float));
        }
        return;
    }
    for (int lane = 0; lane < PANEL_ROWS; lane++) {
        d[0][lane] = load_f16(src, lane);
        m[0][lane] = form_has_min(form) ? load_f16(src + 32, lane) : 0.0f;
        if (form_is_k(form)) {
            d[0][lane] *= (float)src[64 + PANEL_ROWS * group_in_unit + lane];
            m[0][lane] *= -(float)src[64 + PANEL_ROWS * (8 + group_in_unit) + lane];
        }
    }
}

ALWAYS_INLINE void add_group(pack_form form, const int16_t codes[GROUP][PANEL_ROWS], const float d[2][PANEL_ROWS],
                             const float m[2][PANEL_ROWS], const int8_t *act, float act_scale, float scaled_sum,
                             const int32_t *half_sums, float *sums) {
    int n_halves = form_has_halves(form) ? 2 : 1, half_len = GROUP / n_halves;
    for (int h = 0; h < n_halves; h++) {
        int32_t dot[PANEL_ROWS] = {0};
        for (int e = h * half_len; e < (h + 1) * half_len; e++) {
            for (int lane = 0; lane < PANEL_ROWS; lane++) {
                dot[lane] += codes[e][lane] * act[e];
            }
        }
        float min_factor = form_has_halves(form) ? act_scale * (float)half_sums[h] : scaled_sum;
        for (int lane = 0; lane < PANEL_ROWS; lane++) {
            sums[lane] += (float)dot[lane] * (d[h][lane] * act_scale);
            if (form_has_min(form)) {
                sums[lane] += m[h][lane] * min_factor;
            }
        }
    }
}

ALWAYS_INLINE void panel_q8(pack_form form, const void *panel, int64_t k, const void *acts, int n_rows, float *out) {
    memset(out, 0, (size_t)n_rows * PANEL_ROWS * sizeof(float));
    for (int first = 0; first < n_rows; first += TILE_ROWS) {
        int end = first + TILE_ROWS < n_rows ? first + TILE_ROWS : n_rows;
        for (int64_t g = 0; g < k / GROUP; g++) {
            const uint8_t *unit = (const uint8_t *)panel + g / form_unit_groups(form) * form_unit_bytes(form);
            int in_unit = (int)(g % form_unit_groups(form));
            int16_t codes[GROUP][PANEL_ROWS];
            float d[2][PANEL_ROWS], m[2][PANEL_ROWS];
            decode_group(form, unit + form_scale_bytes(form) + in_unit * form_group_bytes(form), codes);
            decode_scales(form, unit, in_unit, d, m);
            for (int r = first; r < end; r++) {
                act_parts row = act_parts_of(acts, k, r);
                const int32_t half_sums[2] = {act_i32(row.half_sums, 2 * g), act_i32(row.half_sums, 2 * g + 1)};
                add_group(form, codes, d, m, row.codes + g * GROUP, act_f32(row.scales, g), act_f32(row.scaled_sums, g),
                          half_sums, out + r * PANEL_ROWS);
            }
        }
    }
}

DEFINE_PANEL_Q8_TABLE(q8_table)

// ---- float panels ----

static void load_row_f32(const void *panel, int64_t at, float *w) {
    memcpy(w, (const float *)panel + at * PANEL_ROWS, PANEL_ROWS * sizeof(float));
}
static void load_row_f16(const void *panel, int64_t at, float *w) {
    for (int lane = 0; lane < PANEL_ROWS; lane++) {
        w[lane] = f16_to_f32(((const uint16_t *)panel)[at * PANEL_ROWS + lane]);
    }
}
static void load_row_bf16(const void *panel, int64_t at, float *w) {
    for (int lane = 0; lane < PANEL_ROWS; lane++) {
        w[lane] = bf16_to_f32(((const uint16_t *)panel)[at * PANEL_ROWS + lane]);
    }
}

typedef void (*load_row_fn)(const void *panel, int64_t at, float *w);

static inline void panel_float(load_row_fn load_row, const void *panel, int64_t k, const float *acts, int n_rows,
                               float *out) {
    for (int first = 0; first < n_rows; first += TILE_ROWS) {
        int n = first + TILE_ROWS < n_rows ? TILE_ROWS : n_rows - first;
        float sums[TILE_ROWS][4][PANEL_ROWS] = {{{0}}};
        for (int64_t i = 0; i < k; i++) {
            float w[PANEL_ROWS];
            load_row(panel, i, w);
            for (int r = 0; r < n; r++) {
                float x = acts[(first + r) * k + i];
                for (int lane = 0; lane < PANEL_ROWS; lane++) {
                    sums[r][i % 4][lane] += w[lane] * x;
                }
            }
        }
        for (int r = 0; r < n; r++) {
            for (int lane = 0; lane < PANEL_ROWS; lane++) {
                out[(first + r) * PANEL_ROWS + lane] =
                    (sums[r][0][lane] + sums[r][1][lane]) + (sums[r][2][lane] + sums[r][3][lane]);
            }
        }
    }
}

static void panel_f32(const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    panel_float(load_row_f32, panel, k, acts, n_rows, out);
}
static void panel_f16(const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    panel_float(load_row_f16, panel, k, acts, n_rows, out);
}
static void panel_bf16(const void *panel, int64_t k, const float *acts, int n_rows, float *out) {
    panel_float(load_row_bf16, panel, k, acts, n_rows, out);
}

// ---- activations ----

// Magnitudes are compared as integers, so that a NaN is the largest and reaches the scale: the group's products are
// then NaN, as they must be. Groups whose scale is of no use (NaN, infinity, below 127 / FLT_MAX) get zero codes.
static void quantize_q8(const float *x, int64_t k, void *row, int64_t first_group, int64_t end_group) {
    q8_layout parts = q8_layout_of(k);
    for (int64_t g = first_group; g < end_group; g++) {
        const float *group = x + g * GROUP;
        int8_t *codes = (int8_t *)row + parts.codes + g * GROUP;
        uint32_t most_bits = 0;
        for (int i = 0; i < GROUP; i++) {
            uint32_t bits;
            memcpy(&bits, &group[i], 4);
            bits &= 0x7fffffff;
            most_bits = bits > most_bits ? bits : most_bits;
        }
        float most;
        memcpy(&most, &most_bits, 4);
        float inverse = 127.0f / most, scale = most / 127.0f;
        bool is_usable = isfinite(most) && isfinite(inverse);
        int32_t half_sums[2] = {0, 0};
        for (int i = 0; i < GROUP; i++) {
            int32_t code = is_usable ? (int32_t)lrintf(group[i] * inverse) : 0;
            codes[i] = (int8_t)code;
            half_sums[i / 16] += code;
        }
        float scaled_sum = scale * (float)(half_sums[0] + half_sums[1]);
        memcpy((char *)row + parts.scales + 4 * g, &scale, 4);
        memcpy((char *)row + parts.scaled_sums + 4 * g, &scaled_sum, 4);
        memcpy((char *)row + parts.half_sums + 8 * g, half_sums, 8);
    }
}

void cpu_matmul_portable(matmul_kernels *k) {
    memcpy(k->q8, q8_table, sizeof q8_table);
    k->f32 = panel_f32;
    k->f16 = panel_f16;
    k->bf16 = panel_bf16;
    k->quantize_q8 = quantize_q8;
}
