// What the matmul kernels of every level share: the traits of a pack form as foldable functions, and access to the
// parts of a quantised activation row. Plain C, so that it may be included whatever flags a file is compiled with;
// everything is forced inline, so that no copy made for one level can end up in another.
#ifndef BACKEND_CPU_CPU_FORMS_H
#define BACKEND_CPU_CPU_FORMS_H

#include "backend/cpu/cpu_layout.h"

#include <stdbool.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

// Full unrolling of short loops over register arrays; -O2 alone leaves them in memory.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

ALWAYS_INLINE bool form_is_c8(pack_form form) {
    return form == PACK_C8_F16 || form == PACK_C8_F32_HALVES || form == PACK_C8_F32_HALVES_MIN;
}
ALWAYS_INLINE bool form_is_c5(pack_form form) {
    return form == PACK_C5_F16 || form == PACK_C5_F16_MIN || form == PACK_C5_K;
}
ALWAYS_INLINE bool form_is_k(pack_form form) {
    return form == PACK_C4_K || form == PACK_C5_K;
}
ALWAYS_INLINE bool form_has_halves(pack_form form) {
    return form == PACK_C8_F32_HALVES || form == PACK_C8_F32_HALVES_MIN;
}
ALWAYS_INLINE bool form_has_min(pack_form form) {
    return form == PACK_C4_F16_MIN || form == PACK_C5_F16_MIN || form_is_k(form) || form == PACK_C8_F32_HALVES_MIN;
}
// What must be subtracted from the codes.
ALWAYS_INLINE int form_offset(pack_form form) {
    return form_is_c8(form) ? 128 : form_has_min(form) ? 0 : form_is_c5(form) ? 16 : 8;
}
ALWAYS_INLINE int form_scale_bytes(pack_form form) {
    return form_is_k(form)                  ? K_SCALES_BYTES
           : form == PACK_C8_F32_HALVES_MIN ? F32_HALVES_MIN_BYTES
           : form == PACK_C8_F32_HALVES     ? F32_HALVES_BYTES
           : form_has_min(form)             ? F16_MIN_SCALES_BYTES
                                            : F16_SCALES_BYTES;
}
ALWAYS_INLINE int form_group_bytes(pack_form form) {
    return form_is_c8(form) ? C8_GROUP_BYTES : form_is_c5(form) ? C5_GROUP_BYTES : C4_GROUP_BYTES;
}
ALWAYS_INLINE int form_unit_groups(pack_form form) {
    return form_is_k(form) ? SUPER_GROUP / GROUP : 1;
}
ALWAYS_INLINE int form_unit_bytes(pack_form form) {
    return form_scale_bytes(form) + form_unit_groups(form) * form_group_bytes(form);
}

// The parts of the first of some quantised rows; `pitch` bytes lead to the same part of the next row.
typedef struct act_parts {
    const int8_t *codes;
    const uint8_t *scales, *scaled_sums, *half_sums;
    size_t pitch;
} act_parts;

ALWAYS_INLINE act_parts act_parts_of(const void *acts, int64_t k, int64_t row) {
    q8_layout parts = q8_layout_of(k);
    const uint8_t *base = (const uint8_t *)acts + (size_t)row * parts.bytes;
    return (act_parts){.codes = (const int8_t *)base + parts.codes,
                       .scales = base + parts.scales,
                       .scaled_sums = base + parts.scaled_sums,
                       .half_sums = base + parts.half_sums,
                       .pitch = parts.bytes};
}
ALWAYS_INLINE float act_f32(const uint8_t *part, int64_t index) {
    float value;
    memcpy(&value, part + 4 * index, 4);
    return value;
}
ALWAYS_INLINE int32_t act_i32(const uint8_t *part, int64_t index) {
    int32_t value;
    memcpy(&value, part + 4 * index, 4);
    return value;
}

// One panel kernel a form, from an inline function panel_q8(form, panel, k, acts, n_rows, out).
#define DEFINE_PANEL_Q8(name, form)                                                                                    \
    static void panel_##name(const void *panel, int64_t k, const void *acts, int n_rows, float *out) {                 \
        panel_q8(form, panel, k, acts, n_rows, out);                                                                   \
    }
#define DEFINE_PANEL_Q8_TABLE(table)                                                                                   \
    DEFINE_PANEL_Q8(c4_f16, PACK_C4_F16)                                                                               \
    DEFINE_PANEL_Q8(c4_f16_min, PACK_C4_F16_MIN)                                                                       \
    DEFINE_PANEL_Q8(c4_k, PACK_C4_K)                                                                                   \
    DEFINE_PANEL_Q8(c5_f16, PACK_C5_F16)                                                                               \
    DEFINE_PANEL_Q8(c5_f16_min, PACK_C5_F16_MIN)                                                                       \
    DEFINE_PANEL_Q8(c5_k, PACK_C5_K)                                                                                   \
    DEFINE_PANEL_Q8(c8_f16, PACK_C8_F16)                                                                               \
    DEFINE_PANEL_Q8(c8_f32_halves, PACK_C8_F32_HALVES)                                                                 \
    DEFINE_PANEL_Q8(c8_f32_halves_min, PACK_C8_F32_HALVES_MIN)                                                         \
    static const panel_q8_fn table[PACK_FORM_COUNT] = {                                                                \
        [PACK_C4_F16] = panel_c4_f16,                                                                                  \
        [PACK_C4_F16_MIN] = panel_c4_f16_min,                                                                          \
        [PACK_C4_K] = panel_c4_k,                                                                                      \
        [PACK_C5_F16] = panel_c5_f16,                                                                                  \
        [PACK_C5_F16_MIN] = panel_c5_f16_min,                                                                          \
        [PACK_C5_K] = panel_c5_k,                                                                                      \
        [PACK_C8_F16] = panel_c8_f16,                                                                                  \
        [PACK_C8_F32_HALVES] = panel_c8_f32_halves,                                                                    \
        [PACK_C8_F32_HALVES_MIN] = panel_c8_f32_halves_min,                                                            \
    };

#endif
