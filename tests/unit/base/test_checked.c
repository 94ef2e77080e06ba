#include "base/test_base.h"

#include "base/checked.h"

// Oracle: 128-bit arithmetic over values around every edge.
static const uint64_t edges[] = {
    0,
    1,
    2,
    3,
    15,
    16,
    17,
    0x7FFFFFFFu,
    0x80000000u,
    0xFFFFFFFFu,
    0x100000000u,
    0x7FFFFFFFFFFFFFFFu,
    0x8000000000000000u,
    0xFFFFFFFFFFFFFFF0u,
    0xFFFFFFFFFFFFFFFEu,
    0xFFFFFFFFFFFFFFFFu,
};
enum { N_EDGES = sizeof edges / sizeof edges[0] };

static void sums_and_products(void **state) {
    (void)state;
    for (int i = 0; i < N_EDGES; i++) {
        for (int k = 0; k < N_EDGES; k++) {
            unsigned __int128 sum = (unsigned __int128)edges[i] + edges[k];
            unsigned __int128 product = (unsigned __int128)edges[i] * edges[k];
            uint64_t out;
            size_t size;
            assert_int_equal(checked_add_u64(edges[i], edges[k], &out), sum <= UINT64_MAX);
            assert_true(sum > UINT64_MAX || out == (uint64_t)sum);
            assert_int_equal(checked_mul_u64(edges[i], edges[k], &out), product <= UINT64_MAX);
            assert_true(product > UINT64_MAX || out == (uint64_t)product);
            assert_int_equal(checked_add_size(edges[i], edges[k], &size), sum <= SIZE_MAX);
            assert_int_equal(checked_mul_size(edges[i], edges[k], &size), product <= SIZE_MAX);
            __int128 signed_product = (__int128)(int64_t)edges[i] * (int64_t)edges[k];
            int64_t signed_out;
            bool fits = signed_product >= INT64_MIN && signed_product <= INT64_MAX;
            assert_int_equal(checked_mul_i64((int64_t)edges[i], (int64_t)edges[k], &signed_out), fits);
            assert_true(!fits || signed_out == (int64_t)signed_product);
        }
    }
}

static void alignment(void **state) {
    (void)state;
    for (int i = 0; i < N_EDGES; i++) {
        for (int shift = 0; shift < 64; shift++) {
            uint64_t align = UINT64_C(1) << shift, out;
            unsigned __int128 want = ((unsigned __int128)edges[i] + align - 1) / align * align;
            bool fits = (unsigned __int128)edges[i] + align - 1 <= UINT64_MAX;
            assert_int_equal(checked_align_u64(edges[i], align, &out), fits);
            assert_true(!fits || out == (uint64_t)want);
        }
    }
}

static void ranges(void **state) {
    (void)state;
    for (int i = 0; i < N_EDGES; i++) {
        for (int k = 0; k < N_EDGES; k++) {
            for (int t = 0; t < N_EDGES; t++) {
                bool want = (unsigned __int128)edges[i] + edges[k] <= edges[t];
                assert_int_equal(checked_range_u64(edges[i], edges[k], edges[t]), want);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_products),
        cmocka_unit_test(alignment),
        cmocka_unit_test(ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
