// 8-bit floats of safetensors files: the OCP encodings (E4M3 "fn", E5M2, E8M0 scales) and the FNUZ ones of older AMD
// accelerators. One rule covers the four signed ones; they differ in field widths, bias and which codes are special.
#include "tensor/dtype_int.h"

// magnitude holds exponent and mantissa of a finite code. Exact: every value is a normal f32.
static float small_float(uint32_t magnitude, int mantissa_bits, int bias) {
    uint32_t exponent = magnitude >> mantissa_bits;
    if (exponent == 0) { // subnormal: a count of steps of 2^(1 - bias - mantissa_bits)
        return (float)magnitude * f32_from_bits((uint32_t)(127 + 1 - bias - mantissa_bits) << 23);
    }
    return f32_from_bits((magnitude << (23 - mantissa_bits)) + ((uint32_t)(127 - bias) << 23));
}

static float with_sign(float value, uint8_t code) {
    return f32_from_bits(f32_bits(value) | (uint32_t)(code & 0x80u) << 24);
}

void f8_e4m3_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = p[i] & 0x7fu;
        float value = magnitude == 0x7fu ? f32_from_bits(0x7fc00000u) : small_float(magnitude, 3, 7);
        dst[i] = with_sign(value, p[i]);
    }
}

void f8_e5m2_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        dst[i] = f16_to_f32((uint16_t)(p[i] << 8)); // the upper half of an f16
    }
}

void f8_e8m0_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        // A bare exponent. Code 0 is the subnormal 2^-127, code 255 NaN.
        uint32_t bits = p[i] == 0 ? 0x00400000u : p[i] == 255 ? 0x7fc00000u : (uint32_t)p[i] << 23;
        dst[i] = f32_from_bits(bits);
    }
}

void f8_e4m3fnuz_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        // The code of minus zero is the only NaN.
        dst[i] = p[i] == 0x80u ? f32_from_bits(0x7fc00000u) : with_sign(small_float(p[i] & 0x7fu, 3, 8), p[i]);
    }
}

void f8_e5m2fnuz_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < n; i++) {
        dst[i] = p[i] == 0x80u ? f32_from_bits(0x7fc00000u) : with_sign(small_float(p[i] & 0x7fu, 2, 16), p[i]);
    }
}
