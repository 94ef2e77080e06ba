// Opening with the n-th allocation failing, for every n: each attempt must end in STATUS_NO_MEMORY with everything
// given back, until n is beyond the last allocation. The allocator below is hidden, as all symbols of the build are, so
// that it serves the code under test and leaves shared libraries alone: jansson 2.14 asserts when it runs out of memory
// within a string. Sanitizers bring allocators of their own, under which this program has nothing to do.
#include "formats/manifest.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_OWN_ALLOCATOR 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HAS_OWN_ALLOCATOR 0
#endif
#endif
#ifndef HAS_OWN_ALLOCATOR
#define HAS_OWN_ALLOCATOR 1
#endif

#if HAS_OWN_ALLOCATOR

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void __libc_free(void *p);

static bool is_counting;
static int64_t until_failure; // allocations that still succeed
static bool has_failed;
static int64_t n_live; // blocks allocated minus blocks freed while counting

static bool may_allocate(void) {
    if (!is_counting) {
        return true;
    }
    if (until_failure-- > 0) {
        return true;
    }
    has_failed = true;
    errno = ENOMEM;
    return false;
}

static void *counted(void *p) {
    n_live += is_counting && p;
    return p;
}

void *malloc(size_t bytes) {
    return may_allocate() ? counted(__libc_malloc(bytes)) : NULL;
}

void *calloc(size_t count, size_t bytes) {
    return may_allocate() ? counted(__libc_calloc(count, bytes)) : NULL;
}

void *realloc(void *p, size_t bytes) {
    if (!may_allocate()) {
        return NULL;
    }
    return p ? __libc_realloc(p, bytes) : counted(__libc_malloc(bytes));
}

void *reallocarray(void *p, size_t count, size_t bytes) {
    size_t total;
    return __builtin_mul_overflow(count, bytes, &total) ? NULL : realloc(p, total);
}

void free(void *p) {
    n_live -= is_counting && p;
    __libc_free(p);
}

// Returns how many allocations opening and reading take.
static int64_t open_failing(const char *path, const char *side_file) {
    for (int64_t n = 0;; n++) {
        manifest *m;
        error_ctx err;
        error_clear(&err);
        until_failure = n;
        has_failed = false;
        n_live = 0;
        is_counting = true;
        status_code code = manifest_open(path, &m, &err);
        if (code == STATUS_OK && side_file) {
            str data;
            code = manifest_side_file(m, side_file, &data, &err);
        }
        manifest_close(m);
        is_counting = false;
        if (n_live != 0) {
            fail_msg("%s: allocation %lld failing leaves %lld blocks", path, (long long)n, (long long)n_live);
        }
        if (!has_failed) {
            assert_int_equal(code, STATUS_OK);
            return n;
        }
        if (code != STATUS_NO_MEMORY) {
            fail_msg("%s: allocation %lld failing ends in %s: %s", path, (long long)n, status_name(code), err.message);
        }
    }
}

static void test_every_allocation_may_fail(void **state) {
    (void)state;
    assert_true(open_failing(TEST_DATA_DIR "/formats/gguf/everything.gguf", NULL) > 5);
    assert_true(open_failing(TEST_DATA_DIR "/formats/gguf/parts-00002-of-00003.gguf", NULL) > 10);
    assert_true(open_failing(TEST_DATA_DIR "/formats/hf/single", "chat_template.jinja") > 10);
    assert_true(open_failing(TEST_DATA_DIR "/formats/hf/sharded", NULL) > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    print_message("the sanitizer owns the allocator: skipped\n");
    return 77;
}

#endif
