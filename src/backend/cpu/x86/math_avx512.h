// Vector helpers shared by the AVX-512 files; included by nothing else, everything forced inline.
#ifndef BACKEND_CPU_X86_MATH_AVX512_H
#define BACKEND_CPU_X86_MATH_AVX512_H

#include "backend/cpu/cpu_forms.h"

#include <immintrin.h>
#include <stdint.h>

// Lanes [0, left) when left < 16, else all.
ALWAYS_INLINE __mmask16 tail_mask(int64_t left) {
    return left >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << left) - 1);
}

// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2, exp(r) by its Taylor polynomial of degree 7
// (truncation 5e-9): within 1 ulp. Overflows to infinity, underflows through subnormals to 0, keeps NaN.
ALWAYS_INLINE __m512 exp_ps(__m512 x) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    // ln 2 in two parts, the first with few enough bits that n times it is exact
    const __m512 ln2_high = _mm512_set1_ps(0.693359375f), ln2_low = _mm512_set1_ps(-2.12194440e-4f);
    // Results beyond +-140 are infinity and 0; the bound keeps r finite. A NaN survives as the second operand.
    x = _mm512_min_ps(_mm512_set1_ps(140.0f), _mm512_max_ps(_mm512_set1_ps(-140.0f), x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, ln2_low, _mm512_fnmadd_ps(n, ln2_high, x));
    __m512 p = _mm512_set1_ps(1.0f / 5040.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// Lanes added as a tree: 16 -> 8 -> 4 -> 2 -> 1, each half onto the other.
ALWAYS_INLINE float sum_ps(__m512 v) {
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

ALWAYS_INLINE float max_ps(__m512 v) {
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

#endif
