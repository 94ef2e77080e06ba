#include "base/test_base.h"

#include "base/log.h"

#include <pthread.h>
#include <string.h>

typedef struct record {
    int n;
    log_level last_level;
    char last[2048];
} record;

static void keep(void *context, log_level level, const char *line) {
    record *r = context;
    r->n++;
    r->last_level = level;
    strncpy(r->last, line, sizeof r->last - 1);
}

static void levels_filter(void **state) {
    (void)state;
    record r = {0};
    log_error("nobody listens"); // no sink: dropped
    log_set_sink(keep, &r);
    log_set_level(LOG_WARN);
    log_info("hidden %d", 1);
    assert_int_equal(r.n, 0);
    log_warn("shown %d", 2);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.last_level, LOG_WARN);
    assert_string_equal(r.last, "shown 2");
    log_set_level(LOG_DEBUG);
    assert_int_equal(log_get_level(), LOG_DEBUG);
    log_debug("%5000d", 1); // cut, not overrun
    assert_int_equal(r.n, 2);
    assert_int_equal(strlen(r.last), 2047);
    log_set_sink(NULL, NULL);
    log_error("dropped again");
    assert_int_equal(r.n, 2);
    log_set_level(LOG_INFO);
}

static void *write_many(void *unused) {
    (void)unused;
    for (int i = 0; i < 1000; i++) {
        log_info("line %d", i);
    }
    return NULL;
}

static void threads_take_turns(void **state) {
    (void)state;
    record r = {0};
    pthread_t threads[4];
    log_set_sink(keep, &r); // keep() has no lock of its own
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    log_set_sink(NULL, NULL);
    assert_int_equal(r.n, 4000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_filter), cmocka_unit_test(threads_take_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
