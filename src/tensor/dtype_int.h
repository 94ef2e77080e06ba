// Codecs behind the rows of dtype.def. Each decodes or encodes n elements, n a multiple of the type's block; the
// contract is at dtype_decode_fn and dtype_encode_fn. One family, one file.
#ifndef TENSOR_DTYPE_INT_H
#define TENSOR_DTYPE_INT_H

#include "tensor/tensor.h"

#include <string.h>

// dtype_plain.c
void f32_decode(const void *src, float *dst, int64_t n);
void f32_encode(const float *src, void *dst, int64_t n);
void f16_decode(const void *src, float *dst, int64_t n);
void f16_encode(const float *src, void *dst, int64_t n);
void bf16_decode(const void *src, float *dst, int64_t n);
void bf16_encode(const float *src, void *dst, int64_t n);
void f64_decode(const void *src, float *dst, int64_t n);

// dtype_f8.c
void f8_e4m3_decode(const void *src, float *dst, int64_t n);
void f8_e5m2_decode(const void *src, float *dst, int64_t n);
void f8_e8m0_decode(const void *src, float *dst, int64_t n);
void f8_e4m3fnuz_decode(const void *src, float *dst, int64_t n);
void f8_e5m2fnuz_decode(const void *src, float *dst, int64_t n);

// dtype_legacy.c
void q4_0_decode(const void *src, float *dst, int64_t n);
void q4_0_encode(const float *src, void *dst, int64_t n);
void q4_1_decode(const void *src, float *dst, int64_t n);
void q4_1_encode(const float *src, void *dst, int64_t n);
void q5_0_decode(const void *src, float *dst, int64_t n);
void q5_0_encode(const float *src, void *dst, int64_t n);
void q5_1_decode(const void *src, float *dst, int64_t n);
void q5_1_encode(const float *src, void *dst, int64_t n);
void q8_0_decode(const void *src, float *dst, int64_t n);
void q8_0_encode(const float *src, void *dst, int64_t n);

// dtype_kquant.c
void q2_k_decode(const void *src, float *dst, int64_t n);
void q3_k_decode(const void *src, float *dst, int64_t n);
void q4_k_decode(const void *src, float *dst, int64_t n);
void q5_k_decode(const void *src, float *dst, int64_t n);
void q6_k_decode(const void *src, float *dst, int64_t n);

// dtype_iq4.c
void iq4_nl_decode(const void *src, float *dst, int64_t n);
void iq4_xs_decode(const void *src, float *dst, int64_t n);

// Unaligned little-endian reads and writes; every supported host is little-endian.
static inline uint16_t load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t load_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store_u16(void *p, uint16_t v) {
    memcpy(p, &v, sizeof v);
}
static inline void store_u32(void *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}
static inline float load_f16(const void *p) {
    return f16_to_f32(load_u16(p));
}

static inline float f32_from_bits(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static inline uint32_t f32_bits(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

#endif
