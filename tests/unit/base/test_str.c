#include "base/test_base.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

static void comparisons(void **state) {
    (void)state;
    str empty = {NULL, 0};
    assert_true(str_equal(empty, STR("")));
    assert_true(str_equal(STR("a\0b"), str_make("a\0b", 3)));
    assert_false(str_equal(STR("a\0b"), STR("a\0c"))); // bytes behind a zero count
    assert_false(str_equal(STR("a"), STR("ab")));
    assert_true(str_equal_c(STR("key"), "key"));
    assert_int_equal(str_from(NULL).len, 0);
    assert_true(str_starts_with(STR("general.name"), STR("general.")));
    assert_false(str_starts_with(STR("gen"), STR("general.")));
    assert_true(str_starts_with(empty, empty));
    assert_true(str_ends_with(STR("x.gguf"), STR(".gguf")));
    assert_false(str_ends_with(STR("gguf"), STR(".gguf")));
}

static void finding(void **state) {
    (void)state;
    assert_int_equal(str_find(STR("abcabc"), STR("ca")), 2);
    assert_int_equal(str_find(STR("abc"), STR("abcd")), -1);
    assert_int_equal(str_find(STR("abc"), STR("")), 0);
    assert_int_equal(str_find((str){NULL, 0}, STR("a")), -1);
    assert_int_equal(str_find(STR("a\0b\0c"), STR("\0c")), 3);
}

// FNV-1a 64: values published with the algorithm.
static void hashes_are_fnv1a(void **state) {
    (void)state;
    assert_true(str_hash(STR("")) == 0xcbf29ce484222325u);
    assert_true(str_hash(STR("a")) == 0xaf63dc4c8601ec8cu);
    assert_true(str_hash(STR("foobar")) == 0x85944171f73967e8u);
}

static void buffers_grow(void **state) {
    (void)state;
    strbuf b = {0};
    for (int i = 0; i < 5000; i++) {
        strbuf_append_char(&b, (char)('a' + i % 26));
        assert_int_equal(b.ptr[b.len], '\0');
    }
    assert_int_equal(b.len, 5000);
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(b.ptr[i], 'a' + i % 26);
    }
    strbuf_clear(&b);
    assert_string_equal(b.ptr, "");
    strbuf_append_c(&b, "one ");
    strbuf_append_str(&b, STR("two "));
    strbuf_printf(&b, "%d%300s", 3, "x");
    assert_int_equal(b.len, 4 + 4 + 1 + 300);
    assert_memory_equal(b.ptr, "one two 3", 9);
    size_t len;
    char *text = strbuf_take(&b, &len);
    assert_int_equal(len, 309);
    assert_null(b.ptr);
    free(text);
}

static void taking_an_empty_buffer(void **state) {
    (void)state;
    strbuf b = {0};
    size_t len = 7;
    char *text = strbuf_take(&b, &len);
    assert_string_equal(text, "");
    assert_int_equal(len, 0);
    free(text);
    strbuf_clear(&b); // a zeroed one is legal everywhere
    strbuf_free(&b);
}

static void out_of_memory_sticks(void **state) {
    (void)state;
    strbuf b = {0};
    strbuf_append_c(&b, "kept");
    assert_false(strbuf_reserve(&b, SIZE_MAX));
    assert_true(b.oom);
    strbuf_append_c(&b, "lost");
    strbuf_printf(&b, "%d", 1);
    assert_string_equal(b.ptr, "kept");
    assert_null(strbuf_take(&b, NULL));
    assert_null(b.ptr);
    assert_false(b.oom);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons),
        cmocka_unit_test(finding),
        cmocka_unit_test(buffers_grow),
        cmocka_unit_test(hashes_are_fnv1a),
        cmocka_unit_test(taking_an_empty_buffer),
        cmocka_unit_test(out_of_memory_sticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
