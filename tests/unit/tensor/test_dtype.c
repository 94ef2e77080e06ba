// The dtype table and the scalar codecs: f16 and bf16 exhaustively against arithmetic in double, every codec against
// records made by the gguf package, numpy and torch (scripts/golden_tensor.py), and the block decoders against the
// checksums that the format notes publish.
#include "tensor/tensor.h"

#include "crc32.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void assert_same_float(float got, double want, uint32_t where) {
    if (isnan(want)) {
        if (!isnan(got)) {
            fail_msg("pattern 0x%04x gives %a, want NaN", where, (double)got);
        }
    } else if (bits_of(got) != bits_of((float)want)) {
        fail_msg("pattern 0x%04x gives %a, want %a", where, (double)got, want);
    }
}

// Value of a binary float with the given fields, straight from its definition.
static double defined_value(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = bits & ((1u << mantissa_bits) - 1);
    double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    double value = exponent ? ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias)
                            : ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * value;
}

static void test_f16_to_f32_every_pattern(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        assert_same_float(f16_to_f32((uint16_t)h), defined_value(h, 5, 10, 15), h);
    }
}

static void test_bf16_to_f32_every_pattern(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        assert_same_float(bf16_to_f32((uint16_t)h), defined_value(h, 8, 7, 127), h);
    }
}

// Rounding to nearest even is fully described by: every value comes back to its own pattern, what lies between two
// neighbours goes to the nearer one, and the midpoint goes to the even pattern.
static void check_rounding(uint16_t (*narrow)(float), int exponent_bits, int mantissa_bits, int bias) {
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = 0; h < infinity; h++) {
            float low = (float)defined_value(sign | h, exponent_bits, mantissa_bits, bias);
            // The neighbour above the largest finite value is where the next step would be.
            double next = h + 1 < infinity ? defined_value(sign | (h + 1), exponent_bits, mantissa_bits, bias)
                                           : copysign(ldexp(1, (1 << exponent_bits) - 1 - bias), low);
            double middle = ((double)low + next) / 2;
            uint32_t even = (h & 1) ? h + 1 : h;
            assert_int_equal(narrow(low), sign | h);
            assert_true((double)(float)middle == middle);
            if (narrow((float)middle) != (sign | even)) {
                fail_msg("midpoint above 0x%04x gives 0x%04x", sign | h, narrow((float)middle));
            }
            assert_int_equal(narrow(nextafterf((float)middle, 0.0f)), sign | h);
            assert_int_equal(narrow(nextafterf((float)middle, copysignf(INFINITY, low))), sign | (h + 1));
        }
        assert_int_equal(narrow(sign ? -INFINITY : INFINITY), sign | infinity);
    }
    float nan_low_payload; // its payload lies in the bits that are cut off: it must not turn into infinity
    uint32_t bits = 0x7f800001u;
    memcpy(&nan_low_payload, &bits, sizeof bits);
    assert_true((uint32_t)(narrow(nan_low_payload) & 0x7fffu) > infinity);
    assert_true((uint32_t)(narrow(NAN) & 0x7fffu) > infinity);
}

static void test_f32_to_f16_rounding(void **state) {
    (void)state;
    check_rounding(f32_to_f16, 5, 10, 15);
    assert_int_equal(f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(f32_to_f16(-1e-30f), 0x8000);
}

static void test_f32_to_bf16_rounding(void **state) {
    (void)state;
    check_rounding(f32_to_bf16, 8, 7, 127);
}

typedef struct record {
    uint32_t kind;
    char name[16];
    uint32_t n_elements, n_bytes;
} record;

static void check_decode(const dtype_info *info, const record *r, const uint8_t *encoded, const float *want) {
    // Odd addresses: decoders promise to need no alignment. Exact sizes, so that a sanitizer sees any overrun.
    uint8_t *shifted = malloc(r->n_bytes + 1);
    float *got = malloc(r->n_elements * sizeof *got);
    assert_non_null(shifted);
    assert_non_null(got);
    memcpy(shifted + 1, encoded, r->n_bytes);
    info->decode(shifted + 1, got, r->n_elements);
    for (uint32_t i = 0; i < r->n_elements; i++) {
        if (isnan(want[i]) ? !isnan(got[i]) : bits_of(got[i]) != bits_of(want[i])) {
            fail_msg("%s element %u: got %a, want %a", info->name, i, (double)got[i], (double)want[i]);
        }
    }
    free(got);
    free(shifted);
}

static void check_encode(const dtype_info *info, const record *r, const uint8_t *want, const float *values) {
    uint8_t *got = malloc(r->n_bytes + 1);
    assert_non_null(got);
    info->encode(values, got + 1, r->n_elements);
    for (uint32_t i = 0; i < r->n_bytes; i++) {
        if (got[1 + i] != want[i]) {
            fail_msg("%s byte %u (block %u): got 0x%02x, want 0x%02x", info->name, i, i / (unsigned)info->block_bytes,
                     got[1 + i], want[i]);
        }
    }
    free(got);
}

static void test_codecs_match_golden(void **state) {
    (void)state;
    FILE *f = fopen(TEST_DATA_DIR "/tensor/codecs.bin", "rb");
    assert_non_null(f);
    bool is_decoded[DTYPE_COUNT] = {false}, is_encoded[DTYPE_COUNT] = {false};
    record r;
    while (fread(&r, sizeof r, 1, f) == 1) {
        char name[17] = "";
        memcpy(name, r.name, 16);
        dtype type = dtype_from_name(name);
        const dtype_info *info = dtype_get(type);
        assert_non_null(info);
        uint64_t bytes = 0;
        assert_true(dtype_bytes(type, r.n_elements, &bytes));
        assert_int_equal(bytes, r.n_bytes);
        uint8_t *encoded = malloc(r.n_bytes);
        float *values = malloc(r.n_elements * sizeof *values);
        assert_true(encoded && values);
        assert_int_equal(fread(encoded, 1, r.n_bytes, f), r.n_bytes);
        assert_int_equal(fread(values, sizeof *values, r.n_elements, f), r.n_elements);
        if (r.kind == 1) {
            check_decode(info, &r, encoded, values);
            is_decoded[type] = true;
        } else {
            check_encode(info, &r, encoded, values);
            is_encoded[type] = true;
        }
        free(values);
        free(encoded);
    }
    fclose(f);
    for (int type = 1; type < DTYPE_COUNT; type++) { // no codec goes untested; F32 is a copy
        const dtype_info *info = dtype_get((dtype)type);
        assert_true(type == DTYPE_F32 || !info->decode || is_decoded[type]);
        assert_true(type == DTYPE_F32 || !info->encode || is_encoded[type]);
    }
}

static void put_u16(uint8_t *p, uint16_t v) {
    memcpy(p, &v, 2);
}

static void test_published_block_vectors(void **state) {
    (void)state;
    // Scale d = 0x2C00 and minimum m = 0x2800 overwrite the pseudo-random bytes at these places (-1: no such field).
    static const struct {
        dtype type;
        int d_at, m_at;
        float first[4], last;
        uint32_t crc;
    } rows[] = {
        {DTYPE_Q4_0, 0, -1, {-0.5f, 0.3125f, -0.0625f, 0.375f}, -0.1875f, 0xFC1F2663},
        {DTYPE_Q4_1, 0, 2, {0.15625f, 0.84375f, 0.21875f, 0.21875f}, 0.28125f, 0x6BA682AE},
        {DTYPE_Q5_0, 0, -1, {0.875f, -0.8125f, 0.9375f, 0.8125f}, -0.125f, 0xE97F3F97},
        {DTYPE_Q5_1, 0, 2, {0.09375f, 0.71875f, 1.59375f, 1.53125f}, 0.71875f, 0x1F70241E},
        {DTYPE_Q8_0, 0, -1, {4.75f, -0.625f, -4.5625f, -6.375f}, 3.625f, 0x5B0839DC},
        {DTYPE_Q2_K, 80, 82, {0.71875f, 1.53125f, 1.53125f, 2.34375f}, -0.0625f, 0x33BE3AC0},
        {DTYPE_Q3_K, 108, -1, {-5.0625f, 6.75f, 0, -3.375f}, 0.625f, 0xDAE64F90},
        {DTYPE_Q4_K, 0, 2, {21.8125f, 28, 13.5625f, 17.6875f}, 38.78125f, 0xC4516FE5},
        {DTYPE_Q5_K, 0, 2, {6.5625f, 9.5625f, 13.3125f, 3.5625f}, 22.09375f, 0xB9063ADF},
        {DTYPE_Q6_K, 208, -1, {-25.1875f, 7.75f, -44.5625f, 1.9375f}, 67.5f, 0x0B2D3AA0},
        {DTYPE_IQ4_NL, 0, -1, {-4.0625f, 0.0625f, -1.375f, -4.0625f}, 0.8125f, 0x7D53571E},
        {DTYPE_IQ4_XS, 0, -1, {21.875f, 6.25f, -23.75f, -33.125f}, -15.125f, 0x19322E20},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const dtype_info *info = dtype_get(rows[r].type);
        uint8_t block[256];
        float x[256];
        uint32_t seed = (uint32_t)info->gguf_type;
        for (int i = 0; i < info->block_bytes; i++) {
            seed = 1664525u * seed + 1013904223u;
            block[i] = (uint8_t)(seed >> 24);
        }
        put_u16(block + rows[r].d_at, 0x2C00);
        if (rows[r].m_at >= 0) {
            put_u16(block + rows[r].m_at, 0x2800);
        }
        info->decode(block, x, info->block_elements);
        for (int i = 0; i < info->block_elements; i++) {
            x[i] += 0.0f; // minus zero becomes plus zero, as in the published recipe
        }
        for (int i = 0; i < 4; i++) {
            assert_true(x[i] == rows[r].first[i]);
        }
        assert_true(x[info->block_elements - 1] == rows[r].last);
        assert_int_equal(crc32_update(0, x, (size_t)info->block_elements * sizeof x[0]), rows[r].crc);
    }
}

static void test_table_lookups(void **state) {
    (void)state;
    assert_null(dtype_get(DTYPE_NONE));
    assert_null(dtype_get(DTYPE_COUNT));
    assert_null(dtype_get((dtype)-1));
    assert_int_equal(dtype_from_gguf(12), DTYPE_Q4_K);
    assert_int_equal(dtype_from_gguf(0), DTYPE_F32);
    assert_int_equal(dtype_from_gguf(17), DTYPE_NONE);
    assert_int_equal(dtype_from_gguf(UINT32_MAX), DTYPE_NONE); // -1 marks types that GGUF lacks
    assert_int_equal(dtype_from_name("q4_k"), DTYPE_Q4_K);
    assert_int_equal(dtype_from_name("Q4"), DTYPE_NONE);
    for (int type = 1; type < DTYPE_COUNT; type++) {
        assert_int_equal(dtype_from_name(dtype_get((dtype)type)->name), type);
    }
}

static void test_bytes_checks(void **state) {
    (void)state;
    uint64_t bytes = 0;
    assert_true(dtype_bytes(DTYPE_Q6_K, 512, &bytes));
    assert_int_equal(bytes, 420);
    assert_true(dtype_bytes(DTYPE_Q6_K, 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(dtype_bytes(DTYPE_Q6_K, 255, &bytes));
    assert_false(dtype_bytes(DTYPE_F32, -1, &bytes));
    assert_false(dtype_bytes(DTYPE_NONE, 1, &bytes));
    assert_true(dtype_bytes(DTYPE_F16, INT64_MAX, &bytes));
    assert_false(dtype_bytes(DTYPE_F32, INT64_MAX, &bytes));
}

static void test_weight_rows(void **state) {
    (void)state;
    // [2, 3, 32] Q8_0: rows are counted through the leading dimensions.
    uint8_t data[6 * 34];
    for (int row = 0; row < 6; row++) {
        put_u16(data + 34 * row, 0x3C00); // 1.0
        for (int j = 0; j < 32; j++) {
            data[34 * row + 2 + j] = (uint8_t)(row * 16 + j);
        }
    }
    weight w = {.name = "w", .type = DTYPE_Q8_0, .n_dims = 3, .shape = {2, 3, 32, 1}, .n_planes = 1};
    w.planes[0] = (weight_plane){data, sizeof data};
    assert_int_equal(weight_rows(&w), 3);
    assert_int_equal(weight_columns(&w), 32);
    float row[32];
    for (int r = 0; r < 6; r++) {
        weight_decode_row(&w, r, row);
        for (int j = 0; j < 32; j++) {
            assert_true(row[j] == (float)(r * 16 + j));
        }
    }
    float scalar = 2.5f, got = 0;
    weight s = {.name = "s", .type = DTYPE_F32, .n_dims = 0, .shape = {1, 1, 1, 1}, .n_planes = 1};
    s.planes[0] = (weight_plane){&scalar, sizeof scalar};
    assert_int_equal(weight_columns(&s), 1);
    weight_decode_row(&s, 0, &got);
    assert_true(got == 2.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_to_f32_every_pattern),
        cmocka_unit_test(test_bf16_to_f32_every_pattern),
        cmocka_unit_test(test_f32_to_f16_rounding),
        cmocka_unit_test(test_f32_to_bf16_rounding),
        cmocka_unit_test(test_codecs_match_golden),
        cmocka_unit_test(test_published_block_vectors),
        cmocka_unit_test(test_table_lookups),
        cmocka_unit_test(test_bytes_checks),
        cmocka_unit_test(test_weight_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
