// BF16 matmul with hardware dot products: activations are rounded to bf16, products are exact, and pairs of them are
// added to f32 sums. Lanes are the panel's 16 output rows.
//
//   weights  [ceil(k / 2), PANEL_ROWS, 2] bf16
//   acts     [n_rows] rows of bf16, bf16_row_bytes(k) apart, padded with a zero to an even count
//   out      [n_rows, PANEL_ROWS]; per output two sums over pairs mod 2, ascending, added at the end
#include "backend/cpu/cpu_forms.h"
#include "backend/cpu/cpu_kernels.h"

#include <immintrin.h>
#include <string.h>

enum { TILE_ROWS = 8 };

ALWAYS_INLINE __m512bh broadcast_pair(const uint8_t *row, int64_t pair) {
    int32_t bits;
    memcpy(&bits, row + 4 * pair, 4);
    return (__m512bh)_mm512_set1_epi32(bits);
}

ALWAYS_INLINE void pairs_tile(int n, const uint8_t *panel, int64_t n_pairs, const uint8_t *acts, size_t pitch,
                              float *out) {
    __m512 sums[TILE_ROWS][2];
    UNROLL
    for (int r = 0; r < n; r++) {
        sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    }
    int64_t pair = 0;
    for (; pair + 2 <= n_pairs; pair += 2) {
        UNROLL
        for (int part = 0; part < 2; part++) {
            __m512bh w = (__m512bh)_mm512_loadu_si512(panel + 64 * (pair + part));
            UNROLL
            for (int r = 0; r < n; r++) {
                sums[r][part] =
                    _mm512_dpbf16_ps(sums[r][part], w, broadcast_pair(acts + (size_t)r * pitch, pair + part));
            }
        }
    }
    if (pair < n_pairs) {
        __m512bh w = (__m512bh)_mm512_loadu_si512(panel + 64 * pair);
        UNROLL
        for (int r = 0; r < n; r++) {
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], w, broadcast_pair(acts + (size_t)r * pitch, pair));
        }
    }
    UNROLL
    for (int r = 0; r < n; r++) {
        _mm512_storeu_ps(out + r * PANEL_ROWS, _mm512_add_ps(sums[r][0], sums[r][1]));
    }
}

static void panel_bf16_pairs(const void *panel, int64_t k, const void *acts, int n_rows, float *out) {
    size_t pitch = bf16_row_bytes(k);
    int64_t n_pairs = (k + 1) / 2;
    int r = 0;
    for (; r + TILE_ROWS <= n_rows; r += TILE_ROWS) {
        pairs_tile(TILE_ROWS, panel, n_pairs, (const uint8_t *)acts + (size_t)r * pitch, pitch, out + r * PANEL_ROWS);
    }
    for (; r + 2 <= n_rows; r += 2) {
        pairs_tile(2, panel, n_pairs, (const uint8_t *)acts + (size_t)r * pitch, pitch, out + r * PANEL_ROWS);
    }
    for (; r < n_rows; r++) {
        pairs_tile(1, panel, n_pairs, (const uint8_t *)acts + (size_t)r * pitch, pitch, out + r * PANEL_ROWS);
    }
}

// Groups of 32 elements, the last one shorter where k asks for it. Rounds to nearest even.
static void round_bf16(const float *x, int64_t k, void *row, int64_t first_group, int64_t end_group) {
    for (int64_t g = first_group; g < end_group; g++) {
        for (int64_t i = g * GROUP; i < (g + 1) * GROUP && i < k; i += 16) {
            int64_t left = k - i;
            __mmask16 mask = left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + i));
            // One more than k may be written: the padding of an odd count, which is zero.
            __mmask16 stored = left >= 16 ? mask : (__mmask16)((1u << (left + left % 2)) - 1);
            _mm256_mask_storeu_epi16((uint16_t *)row + i, stored, rounded);
        }
    }
}

void cpu_matmul_avx512bf16(matmul_kernels *k) {
    k->bf16_pairs = panel_bf16_pairs;
    k->round_bf16 = round_bf16;
}
