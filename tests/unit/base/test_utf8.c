// Oracle: every code point by its definition, every byte sequence of up to three bytes (and the four-byte ones around
// each edge) against membership in the set of encodings that the definition gives.
#include "base/test_base.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// RFC 3629 by arithmetic, without a table: the encoding of a code point.
static int define_encoding(uint32_t c, uint8_t out[4]) {
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 + c % 64);
        c /= 64;
    }
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    out[0] = (uint8_t)(lead[n] + c);
    return n;
}

static bool is_scalar(uint32_t c) {
    return c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
}

static void every_code_point(void **state) {
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        uint8_t want[4];
        int n = define_encoding(c, want);
        uint32_t back = 0xFFFFFFFF;
        int got = utf8_decode((const char *)want, (size_t)n, &back);
        if (!is_scalar(c)) {
            assert_int_equal(got, 0);
            continue;
        }
        char out[4];
        assert_int_equal(utf8_encode(c, out), n);
        assert_memory_equal(out, want, (size_t)n);
        assert_int_equal(got, n);
        assert_int_equal(back, c);
        for (int cut = 0; cut < n; cut++) { // no reading past the end, no decoding of a part
            assert_int_equal(utf8_decode(out, (size_t)cut, &back), 0);
            assert_int_equal(utf8_incomplete_tail(out, (size_t)cut), cut);
        }
        assert_int_equal(utf8_incomplete_tail(out, (size_t)n), 0);
        assert_int_equal(utf8_invalid_length(out, (size_t)n), 0);
    }
}

// Bits over all byte strings of length 1..3: is the string a proper prefix of some encoding (or one itself)?
static uint8_t *prefix_set[4];

static uint32_t index_of(const uint8_t *s, int n) {
    uint32_t index = 0;
    for (int i = 0; i < n; i++) {
        index = index * 256 + s[i];
    }
    return index;
}

static void mark(int n, const uint8_t *s) {
    uint32_t index = index_of(s, n);
    prefix_set[n][index / 8] |= (uint8_t)(1 << index % 8);
}

static bool is_prefix(const uint8_t *s, int n) {
    uint32_t index = index_of(s, n);
    return prefix_set[n][index / 8] >> index % 8 & 1;
}

static int build_prefixes(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++) {
        prefix_set[n] = calloc(((size_t)1 << (8 * n)) / 8, 1);
        if (!prefix_set[n]) {
            return -1;
        }
    }
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        uint8_t s[4];
        if (is_scalar(c)) {
            int n = define_encoding(c, s);
            for (int k = 1; k <= n && k <= 3; k++) {
                mark(k, s);
            }
        }
    }
    return 0;
}

static int free_prefixes(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++) {
        free(prefix_set[n]);
    }
    return 0;
}

// What Unicode 3.9 says of a bad start: the longest piece that begins some encoding, at least one byte.
static int expected_invalid_length(const uint8_t *s, int n) {
    int longest = 1;
    for (int k = 1; k <= n && k <= 3 && is_prefix(s, k); k++) {
        longest = k;
    }
    return longest;
}

static int expected_tail(const uint8_t *s, int n) {
    for (int k = n < 3 ? n : 3; k > 0; k--) {
        uint32_t c;
        bool is_whole = false;
        for (int m = 1; m <= k; m++) { // a tail holds no finished sequence at its front
            is_whole |= utf8_decode((const char *)s + n - k, (size_t)m, &c) > 0;
        }
        if (is_prefix(s + n - k, k) && !is_whole) {
            return k;
        }
    }
    return 0;
}

static void check_bytes(const uint8_t *s, int n) {
    uint32_t c = 0;
    int got = utf8_decode((const char *)s, (size_t)n, &c);
    uint8_t want[4];
    if (got > 0) { // decoded: its definition gives the same bytes back
        assert_true(is_scalar(c));
        assert_int_equal(define_encoding(c, want), got);
        assert_memory_equal(want, s, (size_t)got);
        assert_int_equal(utf8_invalid_length((const char *)s, (size_t)n), 0);
    } else {
        assert_int_equal(utf8_invalid_length((const char *)s, (size_t)n), expected_invalid_length(s, n));
    }
    assert_int_equal(utf8_incomplete_tail((const char *)s, (size_t)n), expected_tail(s, n));
}

static void every_short_sequence(void **state) {
    (void)state;
    for (int n = 1; n <= 3; n++) {
        for (uint32_t index = 0; index < (uint32_t)1 << (8 * n); index++) {
            uint8_t s[3];
            for (int i = 0; i < n; i++) {
                s[i] = (uint8_t)(index >> (8 * (n - 1 - i)));
            }
            check_bytes(s, n);
        }
    }
}

static void four_bytes_around_the_edges(void **state) {
    (void)state;
    static const uint8_t edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                    0xE0, 0xEC, 0xED, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFE, 0xFF};
    enum { N = sizeof edges };
    for (int i = 0; i < N * N * N * N; i++) {
        uint8_t s[4] = {edges[i % N], edges[i / N % N], edges[i / N / N % N], edges[i / N / N / N]};
        check_bytes(s, 4);
    }
}

static void whole_texts(void **state) {
    (void)state;
    static const char good[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\0z";
    assert_true(utf8_valid(good, sizeof good - 1));
    assert_true(utf8_valid(NULL, 0));
    assert_false(utf8_valid(good, 9)); // the emoji is cut
    assert_false(utf8_valid("ok\xFF", 3));
    assert_int_equal(utf8_incomplete_tail(good, 9), 3);
    assert_int_equal(utf8_invalid_length("", 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(every_short_sequence),
        cmocka_unit_test(four_bytes_around_the_edges),
        cmocka_unit_test(whole_texts),
    };
    return cmocka_run_group_tests(tests, build_prefixes, free_prefixes);
}
