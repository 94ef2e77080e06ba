// Row-wise and elementwise kernels for AVX2. Tails are masked full vectors, so an element's bits do not depend on
// where it stands in a row.
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/x86/math_avx2.h"

#include <math.h>
#include <string.h>

static void rms_norm(const float *x, const float *w, float *out, int64_t n, float eps, float offset) {
    __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t i = 0; i < n; i += 16) {
        for (int half = 0; half < 2 && i + 8 * half < n; half++) {
            __m256 v = _mm256_maskload_ps(x + i + 8 * half, tail_mask(n - i - 8 * half));
            squares[half] = _mm256_fmadd_ps(v, v, squares[half]);
        }
    }
    __m256 factor = _mm256_set1_ps(1.0f / sqrtf(sum_ps(_mm256_add_ps(squares[0], squares[1])) / (float)n + eps));
    for (int64_t i = 0; i < n; i += 8) {
        __m256i mask = tail_mask(n - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), factor);
        __m256 scale = _mm256_add_ps(_mm256_set1_ps(offset), _mm256_maskload_ps(w + i, mask));
        _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(v, scale));
    }
}

static void add(const float *a, const float *b, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        __m256i mask = tail_mask(n - i);
        _mm256_maskstore_ps(out + i, mask,
                            _mm256_add_ps(_mm256_maskload_ps(a + i, mask), _mm256_maskload_ps(b + i, mask)));
    }
}

// x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): equal to 0.5 x (1 + tanh u), without its cancellation.
ALWAYS_INLINE __m256 gelu_tanh(__m256 x) {
    __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
    __m256 u = _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, x);
    __m256 e = exp_ps(_mm256_mul_ps(u, _mm256_set1_ps(-2.0f * 0.7978845608028654f)));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

ALWAYS_INLINE __m256 silu(__m256 x) {
    __m256 e = exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), x));
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

static void act_gate(activation act, const float *gate, const float *up, float *out, int64_t n) {
    if (act == ACTIVATION_GELU_ERF) { // no served model has it in a hot place: one libm call an element
        for (int64_t i = 0; i < n; i++) {
            out[i] = 0.5f * gate[i] * erfcf(-0.7071067811865476f * gate[i]) * up[i];
        }
        return;
    }
    for (int64_t i = 0; i < n; i += 8) {
        __m256i mask = tail_mask(n - i);
        __m256 g = _mm256_maskload_ps(gate + i, mask);
        __m256 activated = act == ACTIVATION_SILU ? silu(g) : gelu_tanh(g);
        _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(activated, _mm256_maskload_ps(up + i, mask)));
    }
}

static void rope_half(const float *x, const float *cosines, const float *sines, int64_t n_freqs, float *out) {
    for (int64_t i = 0; i < n_freqs; i += 8) {
        __m256i mask = tail_mask(n_freqs - i);
        __m256 a = _mm256_maskload_ps(x + i, mask), b = _mm256_maskload_ps(x + n_freqs + i, mask);
        __m256 c = _mm256_maskload_ps(cosines + i, mask), s = _mm256_maskload_ps(sines + i, mask);
        _mm256_maskstore_ps(out + i, mask, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_maskstore_ps(out + n_freqs + i, mask, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
}

static void rope_interleaved(const float *x, const float *cosines, const float *sines, int64_t n_freqs, float *out) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for (int64_t i = 0; i < n_freqs; i += 4) {
        int64_t left = n_freqs - i;
        __m256i pairs = tail_mask(2 * left), freqs = tail_mask(left < 4 ? left : 4);
        __m256 v = _mm256_maskload_ps(x + 2 * i, pairs), swapped = _mm256_permute_ps(v, 0xb1);
        __m256 c = _mm256_permutevar8x32_ps(_mm256_maskload_ps(cosines + i, freqs), twice);
        __m256 s = _mm256_permutevar8x32_ps(_mm256_maskload_ps(sines + i, freqs), twice);
        // even lanes: a c - b s; odd lanes: b c + a s
        _mm256_maskstore_ps(out + 2 * i, pairs, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(swapped, s)));
    }
}

static void rope(rope_style style, const float *x, const float *cosines, const float *sines, int64_t n_freqs,
                 int64_t head_dim, float *out) {
    if (style == ROPE_HALF) {
        rope_half(x, cosines, sines, n_freqs, out);
    } else {
        rope_interleaved(x, cosines, sines, n_freqs, out);
    }
    if (out != x) {
        memcpy(out + 2 * n_freqs, x + 2 * n_freqs, (size_t)(head_dim - 2 * n_freqs) * sizeof(float));
    }
}

// Store the first of eight 16-bit values, as many as there are left.
ALWAYS_INLINE void store_halves(uint16_t *dst, __m128i halves, int64_t left) {
    if (left >= 8) {
        _mm_storeu_si128((__m128i *)dst, halves);
    } else {
        uint16_t all[8];
        _mm_storeu_si128((__m128i *)all, halves);
        memcpy(dst, all, (size_t)left * 2);
    }
}

static void to_f16(const float *x, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_maskload_ps(x + i, tail_mask(n - i));
        store_halves((uint16_t *)out + i, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n - i);
    }
}

// bf16 is the upper half of f32: add half a step, and the lowest kept bit for ties. NaNs are made quiet instead.
static void to_bf16(const float *x, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_maskload_ps(x + i, tail_mask(n - i));
        __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
        __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
        rounded = _mm256_castps_si256(
            _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
        rounded = _mm256_srli_epi32(rounded, 16);
        __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
        store_halves((uint16_t *)out + i, halves, n - i);
    }
}

void cpu_vector_avx2(vector_kernels *k) {
    *k = (vector_kernels){.rms_norm = rms_norm,
                          .add = add,
                          .act_gate = act_gate,
                          .rope = rope,
                          .to_f16 = to_f16,
                          .to_bf16 = to_bf16,
                          .level = CPU_AVX2};
}
