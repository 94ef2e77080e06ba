// Super-blocks of 256 elements: sub-blocks of 16 or 32 with small integer scales (and minima), which one f16 pair d,
// dmin turns into numbers. Field order in the file, bytes in brackets:
//
//   Q2_K  84: scales[16] qs[64] d[2] dmin[2]          16 sub-blocks of 16; d*sc*q - dmin*mn
//   Q3_K 110: hmask[32] qs[64] scales[12] d[2]        16 sub-blocks of 16; d*(sc - 32)*q
//   Q4_K 144: d[2] dmin[2] scales[12] qs[128]          8 sub-blocks of 32; d*sc*q - dmin*mn
//   Q5_K 176: d[2] dmin[2] scales[12] qh[32] qs[128]   8 sub-blocks of 32; d*sc*q - dmin*mn
//   Q6_K 210: ql[128] qh[64] scales[16] d[2]          16 sub-blocks of 16; d*sc*(q - 32), sc signed
#include "tensor/dtype_int.h"

enum { SUPER = 256 };

void q2_k_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += SUPER, p += 84) {
        const uint8_t *scales = p, *qs = p + 16;
        float d = load_f16(p + 80), dmin = load_f16(p + 82);
        for (int sub = 0; sub < 16; sub++) {
            float scale = d * (float)(scales[sub] & 15);
            float min = dmin * (float)(scales[sub] >> 4);
            // Sub-blocks 2t and 2t+1 of each half share shift 2t of the same 32 bytes.
            const uint8_t *q = qs + 32 * (sub / 8) + 16 * (sub % 2);
            int shift = sub % 8 / 2 * 2;
            for (int l = 0; l < 16; l++) {
                *dst++ = scale * (float)(q[l] >> shift & 3) - min;
            }
        }
    }
}

void q3_k_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += SUPER, p += 110) {
        const uint8_t *hmask = p, *qs = p + 32, *scales = p + 96;
        float d = load_f16(p + 108);
        for (int sub = 0; sub < 16; sub++) {
            int low = sub < 8 ? scales[sub] & 15 : scales[sub - 8] >> 4;
            int high = scales[8 + sub % 4] >> (2 * (sub / 4)) & 3;
            float scale = d * (float)((low | high << 4) - 32);
            const uint8_t *q = qs + 32 * (sub / 8) + 16 * (sub % 2);
            const uint8_t *h = hmask + 16 * (sub % 2);
            int shift = sub % 8 / 2 * 2;
            int bit = sub / 2; // 4 * half + shift / 2
            for (int l = 0; l < 16; l++) {
                // A clear mask bit subtracts 4, a set one does not.
                *dst++ = scale * (float)((q[l] >> shift & 3) - (h[l] >> bit & 1 ? 0 : 4));
            }
        }
    }
}

// 6-bit scale and minimum of sub-block j (0..7) out of the 12 packed bytes of Q4_K and Q5_K: the first four of each
// lie in the low six bits of bytes 0..7; the last four are split over bytes 8..11 and the spare top bits of 0..7.
static void scale_min(const uint8_t *packed, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
        *min = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
    }
}

void q4_k_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += SUPER, p += 144) {
        float d = load_f16(p), dmin = load_f16(p + 2);
        for (int sub = 0; sub < 8; sub++) {
            int sc, mn;
            scale_min(p + 4, sub, &sc, &mn);
            float scale = d * (float)sc, min = dmin * (float)mn;
            const uint8_t *q = p + 16 + 32 * (sub / 2);
            int shift = sub % 2 * 4;
            for (int l = 0; l < 32; l++) {
                *dst++ = scale * (float)(q[l] >> shift & 15) - min;
            }
        }
    }
}

void q5_k_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += SUPER, p += 176) {
        float d = load_f16(p), dmin = load_f16(p + 2);
        const uint8_t *qh = p + 16;
        for (int sub = 0; sub < 8; sub++) {
            int sc, mn;
            scale_min(p + 4, sub, &sc, &mn);
            float scale = d * (float)sc, min = dmin * (float)mn;
            const uint8_t *q = p + 48 + 32 * (sub / 2);
            int shift = sub % 2 * 4;
            for (int l = 0; l < 32; l++) {
                *dst++ = scale * (float)((q[l] >> shift & 15) | (qh[l] >> sub & 1) << 4) - min;
            }
        }
    }
}

void q6_k_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += SUPER, p += 210) {
        const int8_t *scales = (const int8_t *)(p + 192);
        float d = load_f16(p + 208);
        for (int group = 0; group < 8; group++) { // 32 elements, two sub-blocks
            int half = group / 4, quarter = group % 4;
            const uint8_t *ql = p + 64 * half + 32 * (quarter % 2);
            const uint8_t *qh = p + 128 + 32 * half;
            int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
            for (int l = 0; l < 32; l++) {
                int q = ((ql[l] >> low_shift & 15) | (qh[l] >> high_shift & 3) << 4) - 32;
                *dst++ = d * (float)scales[2 * group + l / 16] * (float)q;
            }
        }
    }
}
