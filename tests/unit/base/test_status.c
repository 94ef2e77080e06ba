#include "base/test_base.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

static void names_are_distinct(void **state) {
    (void)state;
    for (int i = 0; i < STATUS_COUNT; i++) {
        assert_string_not_equal(status_name((status_code)i), "unknown");
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(status_name((status_code)i), status_name((status_code)k));
        }
    }
    assert_string_equal(status_name((status_code)STATUS_COUNT), "unknown");
    assert_string_equal(status_name((status_code)-1), "unknown");
}

static void first_error_wins(void **state) {
    (void)state;
    error_ctx err;
    char text[256];
    error_clear(&err);
    assert_int_equal(error_set_offset(&err, STATUS_CORRUPT, 24, "found %d, expected %d", 7, 3), STATUS_CORRUPT);
    assert_int_equal(error_set(&err, STATUS_IO, "later"), STATUS_IO); // its own code, the record stays
    error_object(&err, "%s", "model.gguf");
    error_object(&err, "%s", "outer");
    assert_int_equal(err.code, STATUS_CORRUPT);
    assert_string_equal(error_text(&err, text, sizeof text), "model.gguf: found 7, expected 3 (at byte 24)");
    assert_true(err.source_line > 0);
    assert_non_null(strstr(err.source_file, "test_status.c"));
    error_clear(&err);
    error_set(&err, STATUS_LIMIT, "fresh");
    assert_string_equal(error_text(&err, text, sizeof text), "fresh");
}

static void null_context_is_legal(void **state) {
    (void)state;
    error_clear(NULL);
    error_object(NULL, "x");
    assert_int_equal(error_set(NULL, STATUS_BUSY, "x"), STATUS_BUSY);
}

static void long_texts_are_cut(void **state) {
    (void)state;
    char longest[3000];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    memcpy(longest + sizeof longest - 6, "/file", 5);
    error_ctx err;
    error_clear(&err);
    error_object(&err, "%s", longest);
    assert_int_equal(strlen(err.object), sizeof err.object - 1);
    assert_memory_equal(err.object, "...", 3); // the end says more than the beginning
    assert_string_equal(err.object + strlen(err.object) - 5, "/file");
    error_set(&err, STATUS_INVALID, "%s", longest);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    char text[16];
    error_text(&err, text, sizeof text);
    assert_int_equal(strlen(text), sizeof text - 1);
}

static status_code fails_at(int step, error_ctx *err) {
    RETURN_IF_ERROR(step == 1 ? error_set(err, STATUS_IO, "one") : STATUS_OK);
    RETURN_IF_ERROR(step == 2 ? error_set(err, STATUS_LIMIT, "two") : STATUS_OK);
    return STATUS_OK;
}

static void return_if_error_forwards(void **state) {
    (void)state;
    error_ctx err;
    error_clear(&err);
    assert_int_equal(fails_at(0, &err), STATUS_OK);
    assert_int_equal(fails_at(1, &err), STATUS_IO);
    error_clear(&err);
    assert_int_equal(fails_at(2, &err), STATUS_LIMIT);
    assert_string_equal(err.message, "two");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_distinct),       cmocka_unit_test(first_error_wins),
        cmocka_unit_test(null_context_is_legal),    cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(return_if_error_forwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
