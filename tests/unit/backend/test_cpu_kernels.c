// CPU kernels against plain statements of what they do: exhaustive conversions, exp and the activations against libm in
// double, NaN through quantised matmuls, and the names of levels.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/cpu_kernels.h"

#include "unit.h"

#include <math.h>
#include <string.h>

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static const cpu_kernels *kernels_at(int level) {
    static cpu_kernels table;
    cpu_kernels_get((cpu_level)level, &table);
    return &table;
}

#define FOR_EACH_LEVEL(level) for (int level = CPU_PORTABLE; level <= (int)cpu_detect_level(); level++)

static void test_level_names(void **state) {
    (void)state;
    cpu_level level;
    FOR_EACH_LEVEL(i) {
        assert_true(cpu_level_from_name(cpu_level_name((cpu_level)i), &level));
        assert_int_equal(level, i);
    }
    assert_false(cpu_level_from_name("avx1024", &level));
    backend *b;
    error_ctx err = {0};
    assert_int_equal(cpu_backend_type.open(&(backend_options){.cpu_level = "avx1024"}, &b, &err), STATUS_INVALID);
    assert_null(b);
}

// All f32 values whose upper 20 bits differ, with lower bits at and next to rounding ties.
static void test_half_conversions(void **state) {
    (void)state;
    static const uint32_t low[] = {0x000, 0x001, 0x7ff, 0x800, 0xfff};
    FOR_EACH_LEVEL(level) {
        const vector_kernels *k = &kernels_at(level)->vector;
        float x[64];
        uint16_t f16[64 + 1], bf16[64 + 1];
        for (uint32_t high = 0; high < 1u << 20; high += 64) {
            for (uint32_t i = 0; i < 64; i++) {
                x[i] = from_bits((high + i) << 12 | low[(high / 64 + i) % 5]);
            }
            int64_t n = 64 - high / 64 % 19; // all tail lengths
            f16[n] = bf16[n] = 0xabcd;
            k->to_f16(x, f16, n);
            k->to_bf16(x, bf16, n);
            assert_true(f16[n] == 0xabcd && bf16[n] == 0xabcd);
            for (int64_t i = 0; i < n; i++) {
                if (isnan(x[i])) { // which NaN is not promised
                    assert_true(isnan(f16_to_f32(f16[i])) && isnan(bf16_to_f32(bf16[i])));
                } else {
                    assert_int_equal(f16[i], f32_to_f16(x[i]));
                    assert_int_equal(bf16[i], f32_to_bf16(x[i]));
                }
            }
        }
    }
}

// Softmax with one visible score s below a maximum of 0 gives exp(s): the vector exp is within 2 ulp of the real one.
static void test_exp_accuracy(void **state) {
    (void)state;
    FOR_EACH_LEVEL(level) {
        const attention_kernels *k = &kernels_at(level)->attention;
        double worst = 0;
        for (int i = 0; i < 200000; i++) {
            float s = -87.0f * (float)i / 200000.0f;
            float scores[SCORE_COLUMNS] = {0};
            int place = i % SCORE_COLUMNS;
            scores[place] = s;
            softmax_state sums = {.max = 0.0f, .sum = 0.0f};
            float factor = k->softmax(scores, place, place + 1, 1.0f, &sums);
            double truth = exp((double)s), ulp = (double)(nextafterf((float)truth, INFINITY) - (float)truth);
            worst = fmax(worst, fabs((double)scores[place] - truth) / ulp);
            assert_true(factor == 1.0f && sums.sum == scores[place]);
        }
        assert_true(worst <= 2.0);
    }
}

// An element has the same bits at every place of a vector and in every tail.
static void test_activation_places(void **state) {
    (void)state;
    FOR_EACH_LEVEL(level) {
        const vector_kernels *k = &kernels_at(level)->vector;
        for (int act = ACTIVATION_SILU; act <= ACTIVATION_GELU_ERF; act++) {
            float gate[40], up[40], out[40], expected = 0;
            for (int n = 1; n <= 40; n++) {
                for (int i = 0; i < n; i++) {
                    gate[i] = -1.2345678f;
                    up[i] = 0.7654321f;
                }
                k->act_gate((activation)act, gate, up, out, n);
                expected = n == 1 ? out[0] : expected;
                for (int i = 0; i < n; i++) {
                    assert_true(to_bits(out[i]) == to_bits(expected));
                }
            }
            // limits: x -> x for large x, 0 for very negative x, NaN stays NaN
            const float edges[] = {3e4f, -3e4f, INFINITY, NAN, 0.0f};
            const float ones[] = {1, 1, 1, 1, 1};
            k->act_gate((activation)act, edges, ones, out, 5);
            assert_true(out[0] == 3e4f && out[1] == 0.0f && out[2] == INFINITY && isnan(out[3]) && out[4] == 0.0f);
        }
    }
}

// A NaN or infinity in an activation row reaches every output of that row and no other row.
static void test_nan_is_visible(void **state) {
    (void)state;
    enum { K = 64 };
    FOR_EACH_LEVEL(level) {
        const matmul_kernels *k = &kernels_at(level)->matmul;
        const float bad_values[] = {NAN, INFINITY, -INFINITY};
        for (int b = 0; b < 3; b++) {
            float x[2][K];
            _Alignas(64) uint8_t rows[2 * 128] = {0}, panel[2 * (F16_MIN_SCALES_BYTES + C4_GROUP_BYTES)];
            float out[2][PANEL_ROWS];
            assert_int_equal(q8_layout_of(K).bytes, 128);
            for (int i = 0; i < K; i++) {
                x[0][i] = x[1][i] = (float)i - 30.0f;
            }
            x[1][40] = bad_values[b];
            for (int r = 0; r < 2; r++) {
                k->quantize_q8(x[r], K, rows + 128 * r, 0, K / GROUP);
            }
            memset(panel, 0x33, sizeof panel); // small positive scales and codes
            k->q8[PACK_C4_F16_MIN](panel, K, rows, 2, out[0]);
            for (int lane = 0; lane < PANEL_ROWS; lane++) {
                assert_true(isfinite(out[0][lane]));
                assert_false(isfinite(out[1][lane]));
            }
        }
    }
}

// Activation codes, scales and sums have the same bits at every level.
static void test_quantization_agrees(void **state) {
    (void)state;
    enum { K = 8 * GROUP };
    float x[K];
    uint32_t random = 1;
    for (int i = 0; i < K; i++) {
        random = random * 1664525u + 1013904223u;
        float scale = i / GROUP == 2 ? 0.0f : i / GROUP == 3 ? 1e-38f : i / GROUP == 4 ? 1e30f : 1.0f;
        x[i] = scale * ((float)(random >> 8) * 0x1p-23f - 1.0f);
    }
    _Alignas(64) uint8_t expected[K * 3 / 2], found[K * 3 / 2];
    assert_int_equal(q8_layout_of(K).bytes, sizeof expected);
    kernels_at(CPU_PORTABLE)->matmul.quantize_q8(x, K, expected, 0, K / GROUP);
    FOR_EACH_LEVEL(level) {
        memset(found, 0xee, sizeof found);
        const matmul_kernels *k = &kernels_at(level)->matmul;
        k->quantize_q8(x, K, found, 5, K / GROUP); // in two parts, as threads may do it
        k->quantize_q8(x, K, found, 0, 5);
        assert_memory_equal(found, expected, sizeof expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_level_names),    cmocka_unit_test(test_half_conversions),
        cmocka_unit_test(test_exp_accuracy),   cmocka_unit_test(test_activation_places),
        cmocka_unit_test(test_nan_is_visible), cmocka_unit_test(test_quantization_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
