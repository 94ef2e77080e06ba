// Row-wise and elementwise kernels for AVX-512. Tails are masked full vectors, so an element's bits do not depend on
// where it stands in a row.
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/x86/math_avx512.h"

#include <math.h>
#include <string.h>

static void rms_norm(const float *x, const float *w, float *out, int64_t n, float eps, float offset) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(tail_mask(n - i), x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    __m512 factor = _mm512_set1_ps(1.0f / sqrtf(sum_ps(squares) / (float)n + eps));
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
        __m512 scale = _mm512_add_ps(_mm512_set1_ps(offset), _mm512_maskz_loadu_ps(mask, w + i));
        _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(v, scale));
    }
}

static void add(const float *a, const float *b, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, a + i), _mm512_maskz_loadu_ps(mask, b + i));
        _mm512_mask_storeu_ps(out + i, mask, sum);
    }
}

// x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): equal to 0.5 x (1 + tanh u), without its cancellation.
ALWAYS_INLINE __m512 gelu_tanh(__m512 x) {
    __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    __m512 u = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, x);
    __m512 e = exp_ps(_mm512_mul_ps(u, _mm512_set1_ps(-2.0f * 0.7978845608028654f)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

ALWAYS_INLINE __m512 silu(__m512 x) {
    __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

static void act_gate(activation act, const float *gate, const float *up, float *out, int64_t n) {
    if (act == ACTIVATION_GELU_ERF) { // no served model has it in a hot place: one libm call an element
        for (int64_t i = 0; i < n; i++) {
            out[i] = 0.5f * gate[i] * erfcf(-0.7071067811865476f * gate[i]) * up[i];
        }
        return;
    }
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
        __m512 activated = act == ACTIVATION_SILU ? silu(g) : gelu_tanh(g);
        _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(activated, _mm512_maskz_loadu_ps(mask, up + i)));
    }
}

static void rope_half(const float *x, const float *cosines, const float *sines, int64_t n_freqs, float *out) {
    for (int64_t i = 0; i < n_freqs; i += 16) {
        __mmask16 mask = tail_mask(n_freqs - i);
        __m512 a = _mm512_maskz_loadu_ps(mask, x + i), b = _mm512_maskz_loadu_ps(mask, x + n_freqs + i);
        __m512 c = _mm512_maskz_loadu_ps(mask, cosines + i), s = _mm512_maskz_loadu_ps(mask, sines + i);
        _mm512_mask_storeu_ps(out + i, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(out + n_freqs + i, mask, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

static void rope_interleaved(const float *x, const float *cosines, const float *sines, int64_t n_freqs, float *out) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (int64_t i = 0; i < n_freqs; i += 8) {
        int64_t left = n_freqs - i;
        __mmask16 pairs = tail_mask(2 * left), freqs = tail_mask(left < 8 ? left : 8);
        __m512 v = _mm512_maskz_loadu_ps(pairs, x + 2 * i), swapped = _mm512_permute_ps(v, 0xb1);
        __m512 c = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(freqs, cosines + i));
        __m512 s = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(freqs, sines + i));
        // even lanes: a c - b s; odd lanes: b c + a s
        _mm512_mask_storeu_ps(out + 2 * i, pairs, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
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

static void to_f16(const float *x, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16((uint16_t *)out + i, mask, half);
    }
}

// bf16 is the upper half of f32: add half a step, and the lowest kept bit for ties. NaNs are made quiet instead.
static void to_bf16(const float *x, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
        __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
        __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
        _mm256_mask_storeu_epi16((uint16_t *)out + i, mask, half);
    }
}

void cpu_vector_avx512(vector_kernels *k) {
    *k = (vector_kernels){.rms_norm = rms_norm,
                          .add = add,
                          .act_gate = act_gate,
                          .rope = rope,
                          .to_f16 = to_f16,
                          .to_bf16 = to_bf16,
                          .level = CPU_AVX512};
}
