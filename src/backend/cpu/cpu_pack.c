// From rows of blocks, as files store them, to the panels of cpu_layout.h. Exact: codes and f16 scales are moved, and
// the f32 scales of the *_HALVES forms are products that f32 holds without rounding (11 + 8 bits at most).
#include "backend/cpu/cpu_pack.h"

#include <string.h>

// One group of 32 elements of one row, taken apart. Which members count depends on the form.
typedef struct group_parts {
    uint8_t codes[GROUP]; // as the form stores them
    uint16_t d, m;        // f16 bits; of the whole super-block in *_K forms
    uint8_t sc, mn;       // *_K
    float d_half[2], m_half[2];
} group_parts;

static uint16_t load_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

// Nibbles of a 32-element block: low ones first.
static void unpack_nibbles(const uint8_t *qs, uint8_t *codes) {
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *qh, uint8_t *codes) {
    for (int j = 0; j < GROUP; j++) {
        codes[j] |= (uint8_t)((qh[j / 8] >> (j % 8) & 1) << 4);
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void unpack_iq4(const uint8_t *qs, uint8_t *codes) {
    unpack_nibbles(qs, codes);
    for (int j = 0; j < GROUP; j++) {
        codes[j] = (uint8_t)(iq4_values[codes[j]] + 128);
    }
}

// Six-bit scale and minimum of sub-block j in the 12 packed bytes of Q4_K and Q5_K.
static void unpack_k_scale(const uint8_t *scales, int j, uint8_t *sc, uint8_t *mn) {
    if (j < 4) {
        *sc = scales[j] & 63;
        *mn = scales[j + 4] & 63;
    } else {
        *sc = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *mn = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6) << 4);
    }
}

// b: sub-block 0..7 of a Q4_K or Q5_K super-block; qh NULL for Q4_K.
static void unpack_k45(const uint8_t *block, const uint8_t *qh, const uint8_t *qs, int b, group_parts *out) {
    out->d = load_u16(block);
    out->m = load_u16(block + 2);
    unpack_k_scale(block + 4, b, &out->sc, &out->mn);
    const uint8_t *q = qs + 32 * (b / 2);
    for (int j = 0; j < GROUP; j++) {
        out->codes[j] = b % 2 ? q[j] >> 4 : q[j] & 15;
        if (qh) {
            out->codes[j] |= (uint8_t)((qh[j] >> b & 1) << 4);
        }
    }
}

// Q2_K and Q3_K keep the two-bit codes of 128 elements in 32 bytes, four groups by shift.
static uint8_t two_bits(const uint8_t *qs, int b, int j) {
    return qs[32 * (b / 4) + j] >> (2 * (b % 4)) & 3;
}

static void unpack_q2_k(const uint8_t *block, int b, group_parts *out) {
    float d = f16_to_f32(load_u16(block + 80)), dmin = f16_to_f32(load_u16(block + 82));
    for (int h = 0; h < 2; h++) {
        uint8_t s = block[2 * b + h];
        out->d_half[h] = d * (float)(s & 15);
        out->m_half[h] = -(dmin * (float)(s >> 4));
    }
    for (int j = 0; j < GROUP; j++) {
        out->codes[j] = (uint8_t)(two_bits(block + 16, b, j) + 128);
    }
}

static void unpack_q3_k(const uint8_t *block, int b, group_parts *out) {
    const uint8_t *hmask = block, *qs = block + 32, *scales = block + 96;
    float d = f16_to_f32(load_u16(block + 108));
    for (int h = 0; h < 2; h++) {
        int i = 2 * b + h;
        int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
        int high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
        out->d_half[h] = d * (float)((low | high << 4) - 32);
    }
    for (int j = 0; j < GROUP; j++) {
        int q = two_bits(qs, b, j) - ((hmask[j] >> b & 1) ? 0 : 4);
        out->codes[j] = (uint8_t)(q + 128);
    }
}

static void unpack_q6_k(const uint8_t *block, int b, group_parts *out) {
    int half = b / 4, quarter = b % 4; // four groups of 32 in each half
    const uint8_t *ql = block + 64 * half + 32 * (quarter % 2), *qh = block + 128 + 32 * half;
    const int8_t *scales = (const int8_t *)block + 192 + 8 * half;
    float d = f16_to_f32(load_u16(block + 208));
    for (int h = 0; h < 2; h++) {
        out->d_half[h] = d * (float)scales[2 * quarter + h];
    }
    for (int j = 0; j < GROUP; j++) {
        int low = quarter < 2 ? ql[j] & 15 : ql[j] >> 4;
        int high = qh[j] >> (2 * quarter) & 3;
        out->codes[j] = (uint8_t)((low | high << 4) - 32 + 128);
    }
}

static void unpack_iq4_xs(const uint8_t *block, int b, group_parts *out) {
    int low = b % 2 ? block[4 + b / 2] >> 4 : block[4 + b / 2] & 15;
    int high = load_u16(block + 2) >> (2 * b) & 3;
    out->d_half[0] = out->d_half[1] = f16_to_f32(load_u16(block)) * (float)((low | high << 4) - 32);
    unpack_iq4(block + 8 + 16 * b, out->codes);
}

// Group g (32 elements) of the row that starts at `row`.
static void unpack_group(dtype type, const uint8_t *row, int64_t g, group_parts *out) {
    const dtype_info *info = dtype_get(type);
    const uint8_t *block = row + g * GROUP / info->block_elements * info->block_bytes;
    int b = (int)(g % (SUPER_GROUP / GROUP));
    switch (type) {
    case DTYPE_Q4_0:
        out->d = load_u16(block);
        unpack_nibbles(block + 2, out->codes);
        break;
    case DTYPE_Q4_1:
        out->d = load_u16(block);
        out->m = load_u16(block + 2);
        unpack_nibbles(block + 4, out->codes);
        break;
    case DTYPE_Q5_0:
        out->d = load_u16(block);
        unpack_nibbles(block + 6, out->codes);
        add_fifth_bits(block + 2, out->codes);
        break;
    case DTYPE_Q5_1:
        out->d = load_u16(block);
        out->m = load_u16(block + 2);
        unpack_nibbles(block + 8, out->codes);
        add_fifth_bits(block + 4, out->codes);
        break;
    case DTYPE_Q8_0:
        out->d = load_u16(block);
        for (int j = 0; j < GROUP; j++) {
            out->codes[j] = block[2 + j] ^ 0x80; // two's complement + 128
        }
        break;
    case DTYPE_IQ4_NL:
        out->d = load_u16(block);
        unpack_iq4(block + 2, out->codes);
        break;
    case DTYPE_Q4_K:
        unpack_k45(block, NULL, block + 16, b, out);
        break;
    case DTYPE_Q5_K:
        unpack_k45(block, block + 16, block + 48, b, out);
        break;
    case DTYPE_Q2_K:
        unpack_q2_k(block, b, out);
        break;
    case DTYPE_Q3_K:
        unpack_q3_k(block, b, out);
        break;
    case DTYPE_Q6_K:
        unpack_q6_k(block, b, out);
        break;
    case DTYPE_IQ4_XS:
        unpack_iq4_xs(block, b, out);
        break;
    default: // pack_form_of lets no other type through
        break;
    }
}

bool pack_form_of(dtype type, pack_form *form) {
    switch (type) {
    case DTYPE_Q4_0:
        *form = PACK_C4_F16;
        return true;
    case DTYPE_Q4_1:
        *form = PACK_C4_F16_MIN;
        return true;
    case DTYPE_Q4_K:
        *form = PACK_C4_K;
        return true;
    case DTYPE_Q5_0:
        *form = PACK_C5_F16;
        return true;
    case DTYPE_Q5_1:
        *form = PACK_C5_F16_MIN;
        return true;
    case DTYPE_Q5_K:
        *form = PACK_C5_K;
        return true;
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
        *form = PACK_C8_F16;
        return true;
    case DTYPE_Q3_K:
    case DTYPE_Q6_K:
    case DTYPE_IQ4_XS:
        *form = PACK_C8_F32_HALVES;
        return true;
    case DTYPE_Q2_K:
        *form = PACK_C8_F32_HALVES_MIN;
        return true;
    default:
        return false;
    }
}

// Codes of output row `lane` into the group's place; the place is zero at first.
static void store_codes(pack_form form, const uint8_t *codes, int lane, uint8_t *dst) {
    switch (form) {
    case PACK_C8_F16:
    case PACK_C8_F32_HALVES:
    case PACK_C8_F32_HALVES_MIN:
        for (int e = 0; e < GROUP; e++) {
            dst[64 * (e / 4) + 4 * lane + e % 4] = codes[e];
        }
        return;
    default:
        break;
    }
    for (int e = 0; e < GROUP; e++) {
        int quad = e / 4, byte = 4 * lane + e % 4;
        dst[64 * (quad % 4) + byte] |= (uint8_t)((codes[e] & 15) << (quad < 4 ? 0 : 4));
        if (codes[e] & 16) { // only the C5 forms have it, and the bytes to hold it
            dst[C4_GROUP_BYTES + 8 * quad + byte / 8] |= (uint8_t)(1 << (byte % 8));
        }
    }
}

static void store_u16(uint8_t *dst, int lane, uint16_t bits) {
    memcpy(dst + 2 * lane, &bits, 2);
}
static void store_f32(uint8_t *dst, int lane, float value) {
    memcpy(dst + 4 * lane, &value, 4);
}

// Sizes of a unit: its scales and the codes of its groups.
typedef struct unit_shape {
    int groups, scale_bytes, group_bytes;
} unit_shape;

static unit_shape unit_shape_of(pack_form form) {
    static const unit_shape shapes[PACK_FORM_COUNT] = {
        [PACK_C4_F16] = {1, F16_SCALES_BYTES, C4_GROUP_BYTES},
        [PACK_C4_F16_MIN] = {1, F16_MIN_SCALES_BYTES, C4_GROUP_BYTES},
        [PACK_C4_K] = {8, K_SCALES_BYTES, C4_GROUP_BYTES},
        [PACK_C5_F16] = {1, F16_SCALES_BYTES, C5_GROUP_BYTES},
        [PACK_C5_F16_MIN] = {1, F16_MIN_SCALES_BYTES, C5_GROUP_BYTES},
        [PACK_C5_K] = {8, K_SCALES_BYTES, C5_GROUP_BYTES},
        [PACK_C8_F16] = {1, F16_SCALES_BYTES, C8_GROUP_BYTES},
        [PACK_C8_F32_HALVES] = {1, F32_HALVES_BYTES, C8_GROUP_BYTES},
        [PACK_C8_F32_HALVES_MIN] = {1, F32_HALVES_MIN_BYTES, C8_GROUP_BYTES},
    };
    return shapes[form];
}

static void store_scales(pack_form form, const group_parts *parts, int group_in_unit, int lane, uint8_t *scales) {
    switch (form) {
    case PACK_C4_F16:
    case PACK_C5_F16:
    case PACK_C8_F16:
        store_u16(scales, lane, parts->d);
        break;
    case PACK_C4_F16_MIN:
    case PACK_C5_F16_MIN:
    case PACK_C4_K:
    case PACK_C5_K:
        store_u16(scales, lane, parts->d);
        store_u16(scales + 32, lane, parts->m);
        if (form == PACK_C4_K || form == PACK_C5_K) {
            scales[64 + PANEL_ROWS * group_in_unit + lane] = parts->sc;
            scales[64 + PANEL_ROWS * (8 + group_in_unit) + lane] = parts->mn;
        }
        break;
    case PACK_C8_F32_HALVES:
    case PACK_C8_F32_HALVES_MIN:
        for (int h = 0; h < 2; h++) {
            store_f32(scales + 64 * h, lane, parts->d_half[h]);
            if (form == PACK_C8_F32_HALVES_MIN) {
                store_f32(scales + 128 + 64 * h, lane, parts->m_half[h]);
            }
        }
        break;
    case PACK_FORM_COUNT:
        break;
    }
}

static void pack_q8_panel(const weight *w, pack_form form, int64_t first_row, int n_rows, uint8_t *dst) {
    unit_shape shape = unit_shape_of(form);
    int64_t k = weight_columns(w), n_groups = k / GROUP;
    uint64_t row_bytes = 0;
    dtype_bytes(w->type, k, &row_bytes);
    const uint8_t *rows = (const uint8_t *)w->planes[0].data + (uint64_t)first_row * row_bytes;
    size_t unit_bytes = (size_t)(shape.scale_bytes + shape.groups * shape.group_bytes);
    memset(dst, 0, (size_t)(n_groups / shape.groups) * unit_bytes);
    for (int64_t g = 0; g < n_groups; g++) {
        uint8_t *unit = dst + (size_t)(g / shape.groups) * unit_bytes;
        int in_unit = (int)(g % shape.groups);
        for (int lane = 0; lane < n_rows; lane++) {
            group_parts parts;
            unpack_group(w->type, rows + (uint64_t)lane * row_bytes, g, &parts);
            store_scales(form, &parts, in_unit, lane, unit);
            store_codes(form, parts.codes, lane, unit + shape.scale_bytes + in_unit * shape.group_bytes);
        }
    }
}

static void pack_u16_panel(const weight *w, int64_t first_row, int n_rows, bool pairs, uint16_t *dst) {
    int64_t k = weight_columns(w), n_pairs = (k + 1) / 2;
    const uint8_t *rows = (const uint8_t *)w->planes[0].data + first_row * k * 2;
    memset(dst, 0, (size_t)(pairs ? n_pairs * 2 : k) * PANEL_ROWS * 2);
    for (int lane = 0; lane < n_rows; lane++) {
        for (int64_t i = 0; i < k; i++) {
            int64_t at = pairs ? (i / 2 * PANEL_ROWS + lane) * 2 + i % 2 : i * PANEL_ROWS + lane;
            memcpy(&dst[at], rows + (lane * k + i) * 2, 2);
        }
    }
}

static void pack_f32_panel(const weight *w, int64_t first_row, int n_rows, float *row_buffer, float *dst) {
    int64_t k = weight_columns(w);
    for (int lane = 0; lane < PANEL_ROWS; lane++) {
        if (lane < n_rows) {
            weight_decode_row(w, first_row + lane, row_buffer);
        }
        for (int64_t i = 0; i < k; i++) {
            dst[i * PANEL_ROWS + lane] = lane < n_rows ? row_buffer[i] : 0.0f;
        }
    }
}

const char *pack_form_name(pack_form form) {
    static const char *const names[PACK_FORM_COUNT] = {
        [PACK_C4_F16] = "c4_f16",
        [PACK_C4_F16_MIN] = "c4_f16_min",
        [PACK_C4_K] = "c4_k",
        [PACK_C5_F16] = "c5_f16",
        [PACK_C5_F16_MIN] = "c5_f16_min",
        [PACK_C5_K] = "c5_k",
        [PACK_C8_F16] = "c8_f16",
        [PACK_C8_F32_HALVES] = "c8_f32_halves",
        [PACK_C8_F32_HALVES_MIN] = "c8_f32_halves_min",
    };
    return names[form];
}

uint64_t pack_panel_bytes(pack_kind kind, pack_form form, int64_t k) {
    switch (kind) {
    case PACKED_Q8: {
        unit_shape s = unit_shape_of(form);
        return (uint64_t)(k / (s.groups * GROUP)) * (uint64_t)(s.scale_bytes + s.groups * s.group_bytes);
    }
    case PACKED_F32:
        return (uint64_t)k * PANEL_ROWS * 4;
    case PACKED_F16:
    case PACKED_BF16:
        return (uint64_t)k * PANEL_ROWS * 2;
    case PACKED_BF16_PAIRS:
        return (uint64_t)((k + 1) / 2) * PANEL_ROWS * 4;
    case PACKED_GENERIC:
        break;
    }
    return 0;
}

void pack_panel(const weight *w, pack_kind kind, pack_form form, int64_t panel, float *row_buffer, void *dst) {
    int64_t first_row = panel * PANEL_ROWS, left = weight_rows(w) - first_row;
    int n_rows = left < PANEL_ROWS ? (int)left : PANEL_ROWS;
    switch (kind) {
    case PACKED_Q8:
        pack_q8_panel(w, form, first_row, n_rows, dst);
        break;
    case PACKED_F16:
    case PACKED_BF16:
        pack_u16_panel(w, first_row, n_rows, false, dst);
        break;
    case PACKED_BF16_PAIRS:
        pack_u16_panel(w, first_row, n_rows, true, dst);
        break;
    case PACKED_GENERIC:
    case PACKED_F32:
        pack_f32_panel(w, first_row, n_rows, row_buffer, dst);
        break;
    }
}
