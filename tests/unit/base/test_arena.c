#include "base/test_base.h"

#include "base/arena.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static void pieces_are_aligned_and_apart(void **state) {
    (void)state;
    arena *a = arena_new(0);
    assert_non_null(a);
    enum { N = 2000 };
    unsigned char *pieces[N];
    size_t sizes[N];
    for (int i = 0; i < N; i++) {
        sizes[i] = i % 97 == 0 ? 9000 : (size_t)(i * 37 % 301); // some larger than a first chunk, some empty
        pieces[i] = arena_alloc(a, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        memset(pieces[i], i & 0xFF, sizes[i]);
    }
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            assert_int_equal(pieces[i][k], i & 0xFF);
        }
        assert_true(i == 0 || pieces[i] != pieces[i - 1]); // unique even at size 0
    }
    arena_free(a);
    arena_free(NULL);
}

static void limit_holds_and_reset_gives_back(void **state) {
    (void)state;
    arena *a = arena_new(1024);
    assert_non_null(arena_alloc(a, 1000));
    assert_null(arena_alloc(a, 100));
    assert_null(arena_alloc(a, SIZE_MAX));
    assert_null(arena_alloc(a, SIZE_MAX - 8));
    assert_non_null(arena_alloc(a, 16));
    assert_null(arena_alloc(a, 1));
    assert_int_equal(arena_used_bytes(a), 1024);
    for (int round = 0; round < 3; round++) {
        arena_reset(a);
        assert_int_equal(arena_used_bytes(a), 0);
        assert_non_null(arena_alloc(a, 1024));
        assert_null(arena_alloc(a, 1));
    }
    arena_free(a);
}

static void arrays_are_zero_and_checked(void **state) {
    (void)state;
    arena *a = arena_new(0);
    memset(arena_alloc(a, 3000), 0xAA, 3000);
    arena_reset(a);
    unsigned char *bytes = arena_alloc_array(a, 300, 10); // over the dirty memory of before
    for (int i = 0; i < 3000; i++) {
        assert_int_equal(bytes[i], 0);
    }
    assert_null(arena_alloc_array(a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc_array(a, SIZE_MAX, SIZE_MAX));
    assert_non_null(arena_alloc_array(a, 0, SIZE_MAX));
    arena_free(a);
}

static void strings_are_terminated(void **state) {
    (void)state;
    arena *a = arena_new(0);
    char *cut = arena_strndup(a, "hello world", 5);
    assert_string_equal(cut, "hello");
    assert_string_equal(arena_strndup(a, NULL, 0), "");
    assert_string_equal(arena_strdup(a, "x"), "x");
    char *text = arena_printf(a, "%s-%05d", "n", 42);
    assert_string_equal(text, "n-00042");
    char *wide = arena_printf(a, "%9000d", 7); // larger than a first chunk
    assert_int_equal(strlen(wide), 9000);
    assert_string_equal(cut, "hello");
    arena_free(a);
    arena *small = arena_new(32);
    assert_null(arena_printf(small, "%100d", 1));
    assert_null(arena_strndup(small, "x", SIZE_MAX));
    arena_free(small);
}

static char hook_log[16];

static void log_hook(void *context) {
    strncat(hook_log, context, 1);
}

static void hooks_run_once_last_first(void **state) {
    (void)state;
    arena *a = arena_new(0);
    hook_log[0] = '\0';
    assert_int_equal(arena_defer(a, log_hook, "1"), 0);
    arena_alloc(a, 100000);
    assert_int_equal(arena_defer(a, log_hook, "2"), 0);
    assert_int_equal(arena_defer(a, log_hook, "3"), 0);
    arena_reset(a);
    assert_string_equal(hook_log, "321");
    arena_reset(a);
    assert_string_equal(hook_log, "321");
    arena_defer(a, log_hook, "4");
    arena_free(a);
    assert_string_equal(hook_log, "3214");
    arena *full = arena_new(16);
    assert_non_null(arena_alloc(full, 16));
    assert_int_equal(arena_defer(full, log_hook, "5"), -1);
    arena_free(full);
    assert_string_equal(hook_log, "3214");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_and_apart), cmocka_unit_test(limit_holds_and_reset_gives_back),
        cmocka_unit_test(arrays_are_zero_and_checked),  cmocka_unit_test(strings_are_terminated),
        cmocka_unit_test(hooks_run_once_last_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
