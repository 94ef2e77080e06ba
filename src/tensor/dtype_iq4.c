// Four-bit codes that index a fixed non-uniform table.
//
//   IQ4_NL  18 bytes /  32 elements: d[2] qs[16]                          d * T[q]
//   IQ4_XS 136 bytes / 256 elements: d[2] scales_h[2] scales_l[4] qs[128]  d * (sc - 32) * T[q]
//
// Byte j of a run of 32 elements holds element j in its low nibble, element j + 16 in its high one.
#include "tensor/dtype_int.h"

static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void decode_run(const uint8_t *qs, float scale, float *dst) {
    for (int j = 0; j < 16; j++) {
        dst[j] = scale * (float)values[qs[j] & 15];
        dst[j + 16] = scale * (float)values[qs[j] >> 4];
    }
}

void iq4_nl_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += 32, p += 18) {
        decode_run(p + 2, load_f16(p), dst + at);
    }
}

void iq4_xs_decode(const void *src, float *dst, int64_t n) {
    const uint8_t *p = src;
    for (int64_t at = 0; at < n; at += 256, p += 136) {
        float d = load_f16(p);
        unsigned scales_h = load_u16(p + 2);
        for (int sub = 0; sub < 8; sub++) {
            unsigned low = p[4 + sub / 2] >> (sub % 2 * 4) & 15u;
            unsigned high = scales_h >> (2 * sub) & 3u;
            float scale = d * (float)((int)(low | high << 4) - 32);
            decode_run(p + 8 + 16 * sub, scale, dst + at + 32 * sub);
        }
    }
}
