// Attention kernels in portable C. Shapes are given at attention_kernels (cpu_kernels.h).
#include "backend/cpu/cpu_kernels.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static float load_element(dtype type, const void *src, int64_t i) {
    switch (type) {
    case DTYPE_F16:
        return f16_to_f32(((const uint16_t *)src)[i]);
    case DTYPE_BF16:
        return bf16_to_f32(((const uint16_t *)src)[i]);
    default:
        return ((const float *)src)[i];
    }
}

static void scores_portable(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim, int lo,
                            int hi, float *scores) {
    for (int q = 0; q < n_queries; q++) {
        for (int j = lo; j < hi; j++) {
            float lanes[LANES] = {0};
            for (int64_t i = 0; i < dim; i++) {
                lanes[i % LANES] += queries[q * dim + i] * load_element(type, keys, j * dim + i);
            }
            for (int step = LANES / 2; step > 0; step /= 2) {
                for (int i = 0; i < step; i++) {
                    lanes[i] += lanes[i + step];
                }
            }
            scores[q * SCORE_COLUMNS + j] = lanes[0];
        }
    }
}

static float softmax_portable(float *scores, int lo, int hi, float scale, softmax_state *state) {
    float max = state->max;
    for (int j = lo; j < hi; j++) {
        scores[j] *= scale;
        max = fmaxf(max, scores[j]);
    }
    float sum = 0.0f;
    for (int j = 0; j < SCORE_COLUMNS; j++) {
        scores[j] = j >= lo && j < hi ? expf(scores[j] - max) : 0.0f;
        sum += scores[j];
    }
    float factor = expf(state->max - max);
    state->max = max;
    state->sum = state->sum * factor + sum;
    return factor;
}

static void weigh_portable(dtype type, const float *p, const float *factor, int n_queries, const void *values,
                           int64_t dim, int lo, int hi, float *sums) {
    for (int q = 0; q < n_queries; q++) {
        float *sum = sums + q * dim;
        for (int64_t i = 0; i < dim; i++) {
            sum[i] *= factor[q];
        }
        for (int j = lo; j < hi; j++) {
            float weight_j = p[q * SCORE_COLUMNS + j];
            for (int64_t i = 0; i < dim; i++) {
                sum[i] += weight_j * load_element(type, values, j * dim + i);
            }
        }
    }
}

static void merge_portable(float *total, softmax_state *total_state, const float *part, const softmax_state *part_state,
                           int64_t dim) {
    float max = fmaxf(total_state->max, part_state->max);
    float total_factor = expf(total_state->max - max), part_factor = expf(part_state->max - max);
    for (int64_t i = 0; i < dim; i++) {
        total[i] = total[i] * total_factor + part[i] * part_factor;
    }
    total_state->sum = total_state->sum * total_factor + part_state->sum * part_factor;
    total_state->max = max;
}

void cpu_attention_portable(attention_kernels *k) {
    *k = (attention_kernels){.scores = scores_portable,
                             .softmax = softmax_portable,
                             .weigh = weigh_portable,
                             .merge = merge_portable,
                             .level = CPU_PORTABLE};
}
