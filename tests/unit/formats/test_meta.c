// The metadata table's promises: conversions refuse what cannot be represented, arrays check their index, string arrays
// of vocabulary size open fast and are indexed in constant time, every key of many is found.
#include "base/clock.h"
#include "formats/manifest.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

// ---- a GGUF writer of a few lines ----

static void put(strbuf *b, const void *data, size_t bytes) {
    strbuf_append(b, data, bytes);
}

static void put_u32(strbuf *b, uint32_t v) {
    put(b, &v, sizeof v);
}

static void put_u64(strbuf *b, uint64_t v) {
    put(b, &v, sizeof v);
}

static void put_text(strbuf *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void put_head(strbuf *b, uint64_t n_tensors, uint64_t n_kv) {
    put(b, "GGUF", 4);
    put_u32(b, 3);
    put_u64(b, n_tensors);
    put_u64(b, n_kv);
}

static void put_scalar(strbuf *b, const char *key, uint32_t type, const void *value, size_t bytes) {
    put_text(b, key);
    put_u32(b, type);
    put(b, value, bytes);
}

static manifest *open_bytes(const strbuf *b) {
    assert_false(b->oom);
    manifest *m;
    error_ctx err;
    error_clear(&err);
    if (manifest_open_gguf_memory("built", b->ptr, b->len, &m, &err) != STATUS_OK) {
        char text[1024];
        fail_msg("%s", error_text(&err, text, sizeof text));
    }
    return m;
}

enum { U8 = 0, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10, I64 = 11, F64 = 12 };

static void put_f64(strbuf *b, const char *key, double v) {
    put_scalar(b, key, F64, &v, sizeof v);
}

static void test_conversions(void **state) {
    (void)state;
    strbuf b = {0};
    uint64_t most_u64 = UINT64_MAX, odd = (1ull << 53) + 1, even = 1ull << 53;
    int64_t least_i64 = INT64_MIN, negative_odd = -(1ll << 53) - 1;
    float third = 1.0f / 3;
    put_head(&b, 0, 16);
    put_scalar(&b, "u64.most", U64, &most_u64, 8);
    put_scalar(&b, "u64.odd", U64, &odd, 8);
    put_scalar(&b, "u64.even", U64, &even, 8);
    put_scalar(&b, "i64.least", I64, &least_i64, 8);
    put_scalar(&b, "i64.odd", I64, &negative_odd, 8);
    put_scalar(&b, "f32.third", F32, &third, 4);
    put_f64(&b, "f64.seven", 7);
    put_f64(&b, "f64.half", 0.5);
    put_f64(&b, "f64.2_63", 0x1p63);
    put_f64(&b, "f64.-2_63", -0x1p63);
    put_f64(&b, "f64.nan", NAN);
    put_f64(&b, "f64.inf", INFINITY);
    put_scalar(&b, "bool.two", BOOL, "\2", 1);
    put_scalar(&b, "bool.no", BOOL, "\0", 1);
    put_text(&b, "text");
    put_u32(&b, STRING);
    put_text(&b, "12");
    put_scalar(&b, "u8", U8, "\xff", 1);
    manifest *m = open_bytes(&b);
    const meta *keys = manifest_meta(m);
    int64_t i = 0;
    double f = 0;
    bool flag = false;
    str s;
    assert_false(meta_int(keys, "u64.most", &i));
    assert_false(meta_float(keys, "u64.most", &f)); // 2^64 - 1 has no double
    assert_true(meta_int(keys, "u64.odd", &i) && i == (1ll << 53) + 1);
    assert_false(meta_float(keys, "u64.odd", &f));
    assert_true(meta_float(keys, "u64.even", &f) && f == 0x1p53);
    assert_true(meta_int(keys, "i64.least", &i) && i == INT64_MIN);
    assert_true(meta_float(keys, "i64.least", &f) && f == -0x1p63);
    assert_false(meta_float(keys, "i64.odd", &f));
    assert_true(meta_float(keys, "f32.third", &f) && f == (double)third);
    assert_false(meta_int(keys, "f32.third", &i));
    assert_true(meta_int(keys, "f64.seven", &i) && i == 7);
    assert_false(meta_int(keys, "f64.half", &i));
    assert_false(meta_int(keys, "f64.2_63", &i));
    assert_true(meta_int(keys, "f64.-2_63", &i) && i == INT64_MIN);
    assert_false(meta_int(keys, "f64.nan", &i));
    assert_false(meta_int(keys, "f64.inf", &i));
    assert_true(meta_bool(keys, "bool.two", &flag) && flag);
    assert_true(meta_bool(keys, "bool.no", &flag) && !flag);
    assert_false(meta_int(keys, "bool.two", &i));
    assert_false(meta_bool(keys, "u8", &flag));
    assert_false(meta_int(keys, "text", &i) || meta_float(keys, "text", &f));
    assert_true(meta_str(keys, "text", &s) && str_equal_c(s, "12"));
    assert_true(meta_int(keys, "u8", &i) && i == 255);
    assert_false(meta_str(keys, "u8", &s) || meta_int(keys, "absent", &i) || meta_int(keys, "", &i));
    assert_int_equal(meta_array_len(meta_find(keys, "u8")), 0);
    assert_int_equal(meta_array_type(meta_find(keys, "u8")), META_NONE);
    assert_string_equal(meta_type_name(META_ARRAY), "array");
    assert_string_equal(meta_type_name((meta_type)99), "unknown");
    manifest_close(m);
    strbuf_free(&b);
}

static void test_arrays(void **state) {
    (void)state;
    strbuf b = {0};
    put_head(&b, 0, 2);
    put_text(&b, "numbers");
    put_u32(&b, ARRAY);
    put_u32(&b, F32);
    put_u64(&b, 2);
    float numbers[2] = {1.5f, -2};
    put(&b, numbers, sizeof numbers);
    put_text(&b, "flags");
    put_u32(&b, ARRAY);
    put_u32(&b, BOOL);
    put_u64(&b, 3);
    put(&b, "\1\0\1", 3);
    manifest *m = open_bytes(&b);
    const meta_value *v = meta_find(manifest_meta(m), "numbers");
    int64_t i = 0;
    double f = 0;
    bool flag = false;
    str s;
    assert_int_equal(meta_array_type(v), META_FLOAT);
    assert_int_equal(meta_array_len(v), 2);
    assert_true(meta_array_float(v, 0, &f) && f == 1.5);
    assert_false(meta_array_int(v, 0, &i));
    assert_true(meta_array_int(v, 1, &i) && i == -2);
    assert_false(meta_array_float(v, 2, &f) || meta_array_float(v, -1, &f) || meta_array_float(v, INT64_MIN, &f));
    assert_false(meta_array_str(v, 0, &s) || meta_array_bool(v, 0, &flag));
    assert_false(meta_value_float(v, &f) || meta_value_int(v, &i));
    v = meta_find(manifest_meta(m), "flags");
    assert_true(meta_array_bool(v, 0, &flag) && flag && meta_array_bool(v, 1, &flag) && !flag);
    assert_false(meta_array_bool(v, 3, &flag));
    manifest_close(m);
    strbuf_free(&b);
}

static void test_vocabulary_sized_array(void **state) {
    (void)state;
    enum { WORDS = 262144 };
    strbuf b = {0};
    put_head(&b, 0, 1);
    put_text(&b, "tokenizer.ggml.tokens");
    put_u32(&b, ARRAY);
    put_u32(&b, STRING);
    put_u64(&b, WORDS);
    for (int i = 0; i < WORDS; i++) {
        char word[16];
        snprintf(word, sizeof word, "w%d", i);
        put_text(&b, word);
    }
    uint64_t start = clock_monotonic_ns();
    manifest *m = open_bytes(&b);
    const meta_value *v = meta_find(manifest_meta(m), "tokenizer.ggml.tokens");
    for (int step = 0; step < WORDS; step++) {
        int64_t i = (int64_t)step * 7919 % WORDS;
        char word[16];
        str s;
        int len = snprintf(word, sizeof word, "w%d", (int)i);
        assert_true(meta_array_str(v, i, &s) && s.len == (size_t)len && memcmp(s.ptr, word, s.len) == 0);
    }
    // Milliseconds in truth; a linear search for each of the words would take minutes.
    assert_true(clock_monotonic_ns() - start < 5000000000);
    manifest_close(m);
    strbuf_free(&b);
}

static void test_many_keys(void **state) {
    (void)state;
    enum { NAMES = 20000 };
    char prefix[201];
    memset(prefix, 'p', 200);
    prefix[200] = '\0';
    strbuf b = {0};
    put_head(&b, 0, NAMES);
    for (int i = 0; i < NAMES; i++) {
        char key[256];
        snprintf(key, sizeof key, "%s%d", prefix, i);
        put_scalar(&b, key, U8, "\1", 1);
    }
    manifest *m = open_bytes(&b);
    assert_int_equal(meta_count(manifest_meta(m)), NAMES);
    for (int i = 0; i < NAMES; i++) {
        char key[256];
        const char *found;
        snprintf(key, sizeof key, "%s%d", prefix, i);
        const meta_value *v = meta_find(manifest_meta(m), key);
        assert_non_null(v);
        assert_ptr_equal(meta_at(manifest_meta(m), i, &found), v);
        assert_string_equal(found, key);
    }
    manifest_close(m);
    strbuf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_vocabulary_sized_array),
        cmocka_unit_test(test_many_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
