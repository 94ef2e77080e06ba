// Plain floats: one element, one number. The conversions work on bits, so neither the compiler's half-float support
// nor flush-to-zero modes of the CPU can change them.
#include "tensor/dtype_int.h"

float f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) { // infinity, or NaN made quiet as the hardware conversion does
        uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0;
        return f32_from_bits(sign | 0x7f800000u | quiet | (magnitude & 0x3ffu) << 13);
    }
    if (magnitude >= 0x0400u) { // normal: the exponent bias grows from 15 to 127
        return f32_from_bits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
    }
    // Subnormal: a count of 2^-24 steps, which f32 holds as a normal number.
    return f32_from_bits(sign | f32_bits((float)magnitude * 0x1p-24f));
}

uint16_t f32_to_f16(float value) {
    uint32_t bits = f32_bits(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { // 65520 and more round to infinity
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) {
        // Below 2^-14 the result is subnormal. Next to 0.5 an f32 has steps of 2^-24, exactly those of a subnormal
        // f16, so that one addition rounds to nearest even and leaves the count of steps in the low bits.
        float shifted = f32_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (f32_bits(shifted) - 0x3f000000u));
    }
    magnitude += 0x0fffu + (magnitude >> 13 & 1u); // round to nearest even; a carry moves into the exponent
    return (uint16_t)(sign | (magnitude - ((127u - 15u) << 23)) >> 13);
}

float bf16_to_f32(uint16_t bits) {
    return f32_from_bits((uint32_t)bits << 16);
}

uint16_t f32_to_bf16(float value) {
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(bits >> 16 | 0x0040u); // quiet: the payload may lie in the bits that are cut off
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void f32_decode(const void *src, float *dst, int64_t n) {
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

void f32_encode(const float *src, void *dst, int64_t n) {
    memcpy(dst, src, (size_t)n * sizeof *src);
}

void f16_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        dst[i] = load_f16(p + 2 * i);
    }
}

void f16_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++) {
        store_u16(p + 2 * i, f32_to_f16(src[i]));
    }
}

void bf16_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        dst[i] = bf16_to_f32(load_u16(p + 2 * i));
    }
}

void bf16_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t i = 0; i < n; i++) {
        store_u16(p + 2 * i, f32_to_bf16(src[i]));
    }
}

void f64_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, p + 8 * i, sizeof v);
        dst[i] = (float)v;
    }
}
