// Blocks of 32 elements with one f16 scale (and a minimum in the _1 forms). Byte j of the codes holds element j in its
// low nibble and element j + 16 in its high one; five-bit forms keep the fifth bits in a u32, bit i for element i.
//
//   Q4_0 [d, qs 16]   d * (q - 8)         Q4_1 [d, m, qs 16]      d * q + m
//   Q5_0 [d, qh 4, qs 16]   d * (q - 16)  Q5_1 [d, m, qh 4, qs 16]   d * q + m
//   Q8_0 [d, qs 32]   d * q, q signed
//
// Encoders follow the formats' reference rule: _0 forms map the element of largest magnitude to the most negative
// code, _1 forms span minimum to maximum. The f32 scale is used for rounding, its f16 form is what is stored.
#include "tensor/dtype_int.h"

#include <math.h>

enum { BLOCK = 32, HALF = BLOCK / 2 };

void q4_0_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += BLOCK, p += 18, dst += BLOCK) {
        float d = load_f16(p);
        for (int j = 0; j < HALF; j++) {
            dst[j] = d * (float)((p[2 + j] & 15) - 8);
            dst[j + HALF] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

void q4_1_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += BLOCK, p += 20, dst += BLOCK) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (int j = 0; j < HALF; j++) {
            dst[j] = d * (float)(p[4 + j] & 15) + m;
            dst[j + HALF] = d * (float)(p[4 + j] >> 4) + m;
        }
    }
}

// Five-bit codes of elements j and j + HALF, from the high bits and byte j of the low nibbles.
static void five_bit_codes(uint32_t high, uint8_t low, int j, int *first, int *second) {
    *first = (int)((low & 15u) | (high >> j & 1u) << 4);
    *second = (int)(low >> 4 | (high >> (j + HALF) & 1u) << 4);
}

void q5_0_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += BLOCK, p += 22, dst += BLOCK) {
        float d = load_f16(p);
        uint32_t high = load_u32(p + 2);
        for (int j = 0; j < HALF; j++) {
            int first, second;
            five_bit_codes(high, p[6 + j], j, &first, &second);
            dst[j] = d * (float)(first - 16);
            dst[j + HALF] = d * (float)(second - 16);
        }
    }
}

void q5_1_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += BLOCK, p += 24, dst += BLOCK) {
        float d = load_f16(p), m = load_f16(p + 2);
        uint32_t high = load_u32(p + 4);
        for (int j = 0; j < HALF; j++) {
            int first, second;
            five_bit_codes(high, p[8 + j], j, &first, &second);
            dst[j] = d * (float)first + m;
            dst[j + HALF] = d * (float)second + m;
        }
    }
}

void q8_0_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += BLOCK, p += 34, dst += BLOCK) {
        float d = load_f16(p);
        for (int j = 0; j < BLOCK; j++) {
            dst[j] = d * (float)(int8_t)p[2 + j];
        }
    }
}

// The element of largest magnitude, with its sign; the first one wins a tie.
static float signed_extreme(const float *x) {
    float extreme = x[0];
    for (int j = 1; j < BLOCK; j++) {
        if (fabsf(x[j]) > fabsf(extreme)) {
            extreme = x[j];
        }
    }
    return extreme;
}

static void extent(const float *x, float *min, float *max) {
    *min = *max = x[0];
    for (int j = 1; j < BLOCK; j++) {
        *min = x[j] < *min ? x[j] : *min;
        *max = x[j] > *max ? x[j] : *max;
    }
}

static float inverse(float d) {
    return d == 0.0f ? 0.0f : 1.0f / d;
}

// Truncate to 0..most. A block of tiny values has an infinite inverse scale and NaN or infinity arrives here: any code
// will do then (the stored scale is zero), but the conversion must be defined.
static uint8_t code_of(float value, int most) {
    if (!(value > 0.0f)) {
        return 0;
    }
    return value >= (float)most ? (uint8_t)most : (uint8_t)value;
}

static void pack_nibbles(const uint8_t codes[BLOCK], uint8_t *dst) {
    for (int j = 0; j < HALF; j++) {
        dst[j] = (uint8_t)((codes[j] & 15u) | (unsigned)codes[j + HALF] << 4);
    }
}

static uint32_t fifth_bits(const uint8_t codes[BLOCK]) {
    uint32_t bits = 0;
    for (int j = 0; j < BLOCK; j++) {
        bits |= (uint32_t)(codes[j] >> 4) << j;
    }
    return bits;
}

// Codes around a zero point of `half`: 8 or 16. Returns the scale.
static float encode_symmetric(const float *x, int half, uint8_t codes[BLOCK]) {
    float d = signed_extreme(x) / (float)-half;
    float id = inverse(d);
    for (int j = 0; j < BLOCK; j++) {
        codes[j] = code_of(x[j] * id + ((float)half + 0.5f), 2 * half - 1);
    }
    return d;
}

// Codes 0..most from minimum to maximum. Returns the scale.
static float encode_affine(const float *x, int most, uint8_t codes[BLOCK], float *min) {
    float max;
    extent(x, min, &max);
    float d = (max - *min) / (float)most;
    float id = inverse(d);
    for (int j = 0; j < BLOCK; j++) {
        codes[j] = code_of((x[j] - *min) * id + 0.5f, most);
    }
    return d;
}

void q4_0_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t at = 0; at < n; at += BLOCK, p += 18) {
        uint8_t codes[BLOCK];
        store_u16(p, f32_to_f16(encode_symmetric(src + at, 8, codes)));
        pack_nibbles(codes, p + 2);
    }
}

void q4_1_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t at = 0; at < n; at += BLOCK, p += 20) {
        uint8_t codes[BLOCK];
        float min;
        store_u16(p, f32_to_f16(encode_affine(src + at, 15, codes, &min)));
        store_u16(p + 2, f32_to_f16(min));
        pack_nibbles(codes, p + 4);
    }
}

void q5_0_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t at = 0; at < n; at += BLOCK, p += 22) {
        uint8_t codes[BLOCK];
        store_u16(p, f32_to_f16(encode_symmetric(src + at, 16, codes)));
        store_u32(p + 2, fifth_bits(codes));
        pack_nibbles(codes, p + 6);
    }
}

void q5_1_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t at = 0; at < n; at += BLOCK, p += 24) {
        uint8_t codes[BLOCK];
        float min;
        store_u16(p, f32_to_f16(encode_affine(src + at, 31, codes, &min)));
        store_u16(p + 2, f32_to_f16(min));
        store_u32(p + 4, fifth_bits(codes));
        pack_nibbles(codes, p + 8);
    }
}

void q8_0_encode(const float *src, void *dst, int64_t n) {
    uint8_t *p = dst;
    for (int64_t at = 0; at < n; at += BLOCK, p += 34) {
        const float *x = src + at;
        float d = fabsf(signed_extreme(x)) / 127.0f;
        float id = inverse(d);
        store_u16(p, f32_to_f16(d));
        for (int j = 0; j < BLOCK; j++) {
            float q = roundf(x[j] * id); // half away from zero
            q = q > 127.0f ? 127.0f : q >= -127.0f ? q : -127.0f;
            p[2 + j] = (uint8_t)(int8_t)q;
        }
    }
}
