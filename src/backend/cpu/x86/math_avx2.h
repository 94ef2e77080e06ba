// Vector helpers shared by the AVX2 files; included by nothing else, everything forced inline.
#ifndef BACKEND_CPU_X86_MATH_AVX2_H
#define BACKEND_CPU_X86_MATH_AVX2_H

#include "backend/cpu/cpu_forms.h"

#include <immintrin.h>
#include <stdint.h>

// Lanes [0, left) when left < 8, else all, for masked loads and stores.
ALWAYS_INLINE __m256i tail_mask(int64_t left) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left < 8 ? (int)left : 8), lanes);
}

// 2^n for n in -252..254, as two factors whose product may leave the range of f32 on either side.
ALWAYS_INLINE __m256 times_power_of_two(__m256 p, __m256 n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, first), second);
}

// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2, exp(r) by its Taylor polynomial of degree 7
// (truncation 5e-9): within 1 ulp. Overflows to infinity, underflows through subnormals to 0, keeps NaN.
ALWAYS_INLINE __m256 exp_ps(__m256 x) {
    const __m256 log2e = _mm256_set1_ps(1.44269504f);
    // ln 2 in two parts, the first with few enough bits that n times it is exact
    const __m256 ln2_high = _mm256_set1_ps(0.693359375f), ln2_low = _mm256_set1_ps(-2.12194440e-4f);
    // Results beyond +-140 are infinity and 0; the bound keeps r finite. A NaN survives as the second operand.
    x = _mm256_min_ps(_mm256_set1_ps(140.0f), _mm256_max_ps(_mm256_set1_ps(-140.0f), x));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, ln2_low, _mm256_fnmadd_ps(n, ln2_high, x));
    __m256 p = _mm256_set1_ps(1.0f / 5040.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    return times_power_of_two(p, n);
}

// Lanes added as a tree: 8 -> 4 -> 2 -> 1, each half onto the other.
ALWAYS_INLINE float sum_ps(__m256 v) {
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

ALWAYS_INLINE float max_ps(__m256 v) {
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
}

#endif
