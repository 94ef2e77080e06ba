// Barriers and shares for 1..8 threads. Meant to run under ThreadSanitizer too: the plain (non-atomic) arrays below are
// only correct when team_run and team_barrier order memory as they promise.
#include "base/test_base.h"

#include "base/team.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8, N_RUNS = 300, N_PHASES = 40 };

typedef struct phase_work {
    team *t;
    int64_t values[2][MOST]; // written in one phase, read by all in the next
    int64_t sums[MOST];
    int errors[MOST];
} phase_work;

static void run_phases(void *context, int index, int n) {
    phase_work *w = context;
    for (int phase = 0; phase < N_PHASES; phase++) {
        w->values[phase % 2][index] = phase * 100 + index;
        team_barrier(w->t);
        for (int i = 0; i < n; i++) {
            w->errors[index] += w->values[phase % 2][i] != phase * 100 + i;
            w->sums[index] += w->values[phase % 2][i];
        }
        // No second barrier: the next phase writes the other half, and its own barrier keeps the one after it away.
    }
}

static void barriers_order_memory(void **state) {
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        phase_work w = {0};
        assert_int_equal(team_new(n, false, &w.t, NULL), STATUS_OK);
        assert_int_equal(team_size(w.t), n);
        int n_runs = n <= team_default_threads() ? N_RUNS : N_RUNS / 10; // sleeping waiters are slow
        for (int run = 0; run < n_runs; run++) {
            team_run(w.t, run_phases, &w);
        }
        int64_t want = 0;
        for (int phase = 0; phase < N_PHASES; phase++) {
            want += (int64_t)n * phase * 100 + (int64_t)n * (n - 1) / 2;
        }
        for (int i = 0; i < n; i++) {
            assert_int_equal(w.errors[i], 0);
            assert_int_equal(w.sums[i], want * n_runs);
        }
        team_free(w.t);
    }
    team_free(NULL);
}

typedef struct presence {
    int calls[MOST];
    int n_seen[MOST];
    pthread_t threads[MOST];
} presence;

static void note_presence(void *context, int index, int n) {
    presence *p = context;
    p->calls[index]++;
    p->n_seen[index] = n;
    p->threads[index] = pthread_self();
}

static void every_thread_takes_part_once(void **state) {
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        team *t;
        presence p = {0};
        assert_int_equal(team_new(n, n % 2 == 0, &t, NULL), STATUS_OK);
        for (int run = 1; run <= 20; run++) {
            team_run(t, note_presence, &p);
            for (int i = 0; i < n; i++) {
                assert_int_equal(p.calls[i], run);
                assert_int_equal(p.n_seen[i], n);
            }
        }
        assert_true(pthread_equal(p.threads[0], pthread_self())); // the caller is thread 0
        for (int i = 1; i < n; i++) {
            assert_false(pthread_equal(p.threads[i], p.threads[i - 1]));
        }
        team_free(t);
    }
}

static void an_idle_team_uses_no_cpu(void **state) {
    (void)state;
    team *t;
    presence p = {0};
    assert_int_equal(team_new(2, false, &t, NULL), STATUS_OK);
    team_run(t, note_presence, &p);
    usleep(20000); // past the spinning
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_us = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
    assert_true(used_us < 50000);
    team_run(t, note_presence, &p); // and wakes again
    assert_int_equal(p.calls[1], 2);
    team_free(t);
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    error_ctx err;
    team *t = (team *)&err;
    error_clear(&err);
    assert_int_equal(team_new(0, false, &t, &err), STATUS_INVALID);
    assert_null(t);
    assert_non_null(strstr(err.message, "1..256"));
    assert_int_equal(team_new(257, false, &t, NULL), STATUS_INVALID);
    assert_int_equal(team_new(-1, false, &t, NULL), STATUS_INVALID);
    assert_true(team_default_threads() >= 1);
}

static void shares_cover_everything_once(void **state) {
    (void)state;
    for (int64_t n = 0; n <= 70; n++) {
        for (int64_t grain = 1; grain <= 33; grain += 4) {
            for (int threads = 1; threads <= MOST; threads++) {
                int64_t next = 0, most = 0, least = INT64_MAX;
                for (int i = 0; i < threads; i++) {
                    int64_t begin, end;
                    team_share(n, grain, i, threads, &begin, &end);
                    assert_int_equal(begin, next); // contiguous, in order
                    assert_true(end >= begin);
                    assert_true(begin % grain == 0 || begin == n);
                    int64_t grains = (end - begin + grain - 1) / grain;
                    most = grains > most ? grains : most;
                    least = grains < least ? grains : least;
                    next = end;
                }
                assert_int_equal(next, n);
                assert_true(most - least <= 1); // even, to a grain
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_order_memory),        cmocka_unit_test(every_thread_takes_part_once),
        cmocka_unit_test(an_idle_team_uses_no_cpu),     cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(shares_cover_everything_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
