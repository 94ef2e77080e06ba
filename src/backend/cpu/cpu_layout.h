// Memory layouts that the CPU kernels share: repacked weight panels and quantised activation rows.
//
// Weights. A matmul weight [n, k] is repacked at plan time into panels of PANEL_ROWS output rows (the last one padded
// with zero rows), so that SIMD lanes are outputs and k runs in order. A panel is a run of units, ascending in k:
//
//   unit of a *_F16 form      32 elements of k:  d f16[16]                                       | codes of 1 group
//   unit of a *_F16_MIN form  32:                d f16[16], m f16[16]                            | codes of 1 group
//   unit of a *_K form        256:               d f16[16], dmin f16[16], sc u8[8][16], mn u8[8][16] | codes of 8
//   groups unit of C8_F32_HALVES     32:                d f32[2][16], one row per 16 elements           | codes of 1
//   group unit of C8_F32_HALVES_MIN 32:                d f32[2][16], m f32[2][16]                      | codes of 1
//   group
//
// Codes of one group, with element e = 4 * quad + i of output row r in "byte b = 4 * r + i of quad":
//   C4: 256 bytes, four 64-byte vectors; vector v holds quad v in its low and quad v + 4 in its high nibbles.
//   C5: as C4, then 64 bytes: the fifth bits, 64 bits per quad, bit b.
//   C8: 512 bytes, eight vectors, code + 128.
//
// The element's value is d * (code - offset) for forms without a minimum (offset 8, 16, 128 for C4, C5, C8), and
// d * code + m, or d * sc * code - dmin * mn, with one (C8: d * (code - 128) + m).
#ifndef BACKEND_CPU_CPU_LAYOUT_H
#define BACKEND_CPU_CPU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

enum { PANEL_ROWS = 16, GROUP = 32, SUPER_GROUP = 256 };

typedef enum pack_form {
    PACK_C4_F16 = 0,        // Q4_0
    PACK_C4_F16_MIN,        // Q4_1
    PACK_C4_K,              // Q4_K
    PACK_C5_F16,            // Q5_0
    PACK_C5_F16_MIN,        // Q5_1
    PACK_C5_K,              // Q5_K
    PACK_C8_F16,            // Q8_0, IQ4_NL
    PACK_C8_F32_HALVES,     // Q3_K, Q6_K, IQ4_XS
    PACK_C8_F32_HALVES_MIN, // Q2_K
    PACK_FORM_COUNT
} pack_form;

enum { C4_GROUP_BYTES = 256, C5_GROUP_BYTES = 320, C8_GROUP_BYTES = 512 };
enum {
    F16_SCALES_BYTES = 32,
    F16_MIN_SCALES_BYTES = 64,
    K_SCALES_BYTES = 64 + 2 * 8 * PANEL_ROWS,
    F32_HALVES_BYTES = 128,
    F32_HALVES_MIN_BYTES = 256
};

// Activations quantised to int8 in groups of 32: x ~ scale * code, code = round(x * 127 / max|x|) in -127..127.
// One row lies in one piece; the parts of a row of k elements (a multiple of 32), in bytes from its start:
typedef struct q8_layout {
    size_t codes;       // int8 [k]
    size_t scales;      // f32 [k / 32]
    size_t scaled_sums; // f32 [k / 32]: scale * sum of the group's codes
    size_t half_sums;   // i32 [k / 16]: sums of 16 codes
    size_t bytes;       // distance of rows, a multiple of 64
} q8_layout;

static inline q8_layout q8_layout_of(int64_t k) {
    size_t n = (size_t)k;
    return (q8_layout){.codes = 0,
                       .scales = n,
                       .scaled_sums = n + n / 8,
                       .half_sums = n + n / 4,
                       .bytes = (n + n / 2 + 63) & ~(size_t)63};
}

// Activations rounded to bf16, padded with one zero to an even count.
static inline size_t bf16_row_bytes(int64_t k) {
    return ((size_t)k * 2 + 2 + 63) & ~(size_t)63;
}

#endif
