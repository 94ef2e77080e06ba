// Converting activation rows for the integer and bf16 matmul kernels.
//
// One rounded row would cost the answer: 8 bits a group of 32 put 2 to 4 % of error into the logits of small models
// with outlier channels. So a row is carried in ACT_PIECES pieces: the first is the row rounded, the second the rounded
// difference, and a product is the sum of both. Two int8 pieces keep 15 bits of a group's largest element, two bf16
// pieces 16 bits of each. The kernels see twice the rows; the weights are read and unpacked once for both.
#include "backend/cpu/cpu_plan.h"

#include <string.h>

static const uint8_t *main_piece(const act_copy *copy, int64_t row) {
    return copy->rows + (size_t)(row * ACT_PIECES) * copy->row_bytes;
}

static void second_q8(const cpu_kernels *kernels, const act_copy *copy, const float *values, int64_t row, int64_t g) {
    q8_layout parts = q8_layout_of(copy->k), one = q8_layout_of(GROUP);
    const uint8_t *first = main_piece(copy, row);
    uint8_t *second = (uint8_t *)first + copy->row_bytes;
    const int8_t *codes = (const int8_t *)first + parts.codes + g * GROUP;
    float scale, rest[GROUP];
    memcpy(&scale, first + parts.scales + 4 * g, 4);
    for (int i = 0; i < GROUP; i++) {
        rest[i] = values[g * GROUP + i] - scale * (float)codes[i];
    }
    uint8_t group[64]; // a row of one group
    _Static_assert(GROUP + GROUP / 2 <= sizeof group, "codes, scale and sums of one group");
    kernels->matmul.quantize_q8(rest, GROUP, group, 0, 1);
    memcpy(second + parts.codes + g * GROUP, group + one.codes, GROUP);
    memcpy(second + parts.scales + 4 * g, group + one.scales, 4);
    memcpy(second + parts.scaled_sums + 4 * g, group + one.scaled_sums, 4);
    memcpy(second + parts.half_sums + 8 * g, group + one.half_sums, 8);
}

static void second_bf16(const cpu_kernels *kernels, const act_copy *copy, const float *values, int64_t row, int64_t g) {
    const uint8_t *first = main_piece(copy, row);
    uint8_t *second = (uint8_t *)first + copy->row_bytes;
    int64_t left = copy->k - g * GROUP, n = left < GROUP ? left : GROUP;
    float rest[GROUP];
    uint16_t rounded[GROUP + 1];
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, first + 2 * (size_t)(g * GROUP + i), 2);
        rest[i] = values[g * GROUP + i] - bf16_to_f32(bits);
    }
    kernels->matmul.round_bf16(rest, n, rounded, 0, 1);
    memcpy(second + 2 * (size_t)(g * GROUP), rounded, 2 * (size_t)(n + n % 2)); // with the padding of an odd count
}

void cpu_convert_groups(const cpu_kernels *kernels, const act_copy *copy, const float *values, int64_t row,
                        int64_t first, int64_t end) {
    uint8_t *dst = (uint8_t *)main_piece(copy, row);
    if (copy->form == ACT_Q8) {
        kernels->matmul.quantize_q8(values, copy->k, dst, first, end);
        for (int64_t g = first; g < end; g++) {
            second_q8(kernels, copy, values, row, g);
        }
    } else {
        kernels->matmul.round_bf16(values, copy->k, dst, first, end);
        for (int64_t g = first; g < end; g++) {
            second_bf16(kernels, copy, values, row, g);
        }
    }
}
