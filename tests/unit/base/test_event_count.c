#include "base/test_base.h"

#include "base/clock.h"
#include "base/event_count.h"

#include <pthread.h>

static void waiting_ends_by_time(void **state) {
    (void)state;
    event_count e = {0};
    uint64_t start = clock_monotonic_ns();
    assert_false(event_count_wait(&e, event_count_read(&e), 10, 30000000));
    uint64_t waited = clock_monotonic_ns() - start;
    assert_true(waited >= 30000000);
    assert_false(event_count_wait(&e, event_count_read(&e), 10, 0)); // only a look
    unsigned seen = event_count_read(&e);
    event_count_notify(&e);
    assert_true(event_count_wait(&e, seen, 0, UINT64_MAX)); // it came before the wait
}

enum { N_ROUNDS = 20000 };

typedef struct ping_pong {
    event_count ping, pong;
    int64_t ball; // plain on purpose: the counters order it
} ping_pong;

static void *return_balls(void *context) {
    ping_pong *p = context;
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        event_count_wait(&p->ping, i, i % 3 ? 0 : 2000, UINT64_MAX);
        p->ball++;
        event_count_notify(&p->pong);
    }
    return NULL;
}

// A lost wake-up would hang here (the test's time limit ends it).
static void no_wake_up_is_lost(void **state) {
    (void)state;
    static ping_pong p;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, return_balls, &p), 0);
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        p.ball++;
        event_count_notify(&p.ping);
        assert_true(event_count_wait(&p.pong, i, i % 5 ? 0 : 2000, UINT64_MAX));
        assert_int_equal(p.ball, 2 * ((int64_t)i + 1));
    }
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_ends_by_time),
        cmocka_unit_test(no_wake_up_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
