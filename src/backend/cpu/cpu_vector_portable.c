// Row-wise and elementwise kernels in portable C.
#include "backend/cpu/cpu_kernels.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static void rms_norm(const float *x, const float *w, float *out, int64_t n, float eps, float offset) {
    float lanes[LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        lanes[i % LANES] += x[i] * x[i];
    }
    for (int step = LANES / 2; step > 0; step /= 2) {
        for (int i = 0; i < step; i++) {
            lanes[i] += lanes[i + step];
        }
    }
    float factor = 1.0f / sqrtf(lanes[0] / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        out[i] = x[i] * factor * (offset + w[i]);
    }
}

static void add(const float *a, const float *b, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = a[i] + b[i];
    }
}

static float activate(activation act, float x) {
    switch (act) {
    case ACTIVATION_SILU:
        return x / (1.0f + expf(-x));
    case ACTIVATION_GELU_TANH: {
        // 0.5 x (1 + tanh u) = x / (1 + exp(-2u)): no cancellation where tanh is near -1.
        float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return x / (1.0f + expf(-2.0f * u));
    }
    case ACTIVATION_GELU_ERF:
        break;
    }
    return 0.5f * x * erfcf(-0.7071067811865476f * x);
}

static void act_gate(activation act, const float *gate, const float *up, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = activate(act, gate[i]) * up[i];
    }
}

static void rope(rope_style style, const float *x, const float *cosines, const float *sines, int64_t n_freqs,
                 int64_t head_dim, float *out) {
    for (int64_t i = 0; i < n_freqs; i++) {
        int64_t first = style == ROPE_HALF ? i : 2 * i, second = style == ROPE_HALF ? i + n_freqs : 2 * i + 1;
        float a = x[first], b = x[second];
        out[first] = a * cosines[i] - b * sines[i];
        out[second] = b * cosines[i] + a * sines[i];
    }
    if (out != x) {
        memcpy(out + 2 * n_freqs, x + 2 * n_freqs, (size_t)(head_dim - 2 * n_freqs) * sizeof(float));
    }
}

static void to_f16(const float *x, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        ((uint16_t *)out)[i] = f32_to_f16(x[i]);
    }
}

static void to_bf16(const float *x, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        ((uint16_t *)out)[i] = f32_to_bf16(x[i]);
    }
}

void cpu_vector_portable(vector_kernels *k) {
    *k = (vector_kernels){.rms_norm = rms_norm,
                          .add = add,
                          .act_gate = act_gate,
                          .rope = rope,
                          .to_f16 = to_f16,
                          .to_bf16 = to_bf16,
                          .level = CPU_PORTABLE};
}
