// Fork-join and barriers share one mechanism: event counts. Spinning pays because a decode step has hundreds of
// barriers a few microseconds apart; sleeping keeps an idle engine at 0 % CPU.
#include "base/team.h"

#include "base/event_count.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SPIN_TURNS = 4000, MOST_THREADS = 256 };

typedef struct worker {
    team *owner;
    int index;
    pthread_t thread;
} worker;

struct team {
    int n_threads;
    int n_started; // workers with a live thread, for team_free after a partial start
    int spin_turns;
    worker *workers; // [n_threads], entry 0 (the caller) has no thread

    team_fn fn; // of the current run
    void *context;
    atomic_bool is_stopping;
    event_count start;   // a run begins
    event_count barrier; // everybody has arrived
    atomic_int n_arrived;
};

// CPU quota of the cgroup in whole CPUs, rounded up; INT_MAX when there is none.
static int cgroup_cpu_limit(void) {
    int limit = INT_MAX;
    long quota = -1, period = -1;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        if (fscanf(f, "%ld %ld", &quota, &period) != 2) {
            quota = -1; // "max": no quota
        }
        fclose(f);
    }
    if (quota > 0 && period > 0) {
        limit = (int)((quota + period - 1) / period);
    }
    return limit;
}

int team_default_threads(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cgroup_cpu_limit();
    if (n > quota) {
        n = quota;
    }
    if (n > MOST_THREADS) {
        n = MOST_THREADS;
    }
    return n > 0 ? n : 1;
}

// Bind to the index-th CPU of the allowed set; a failure only costs speed.
static void pin_to_allowed_cpu(int index) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return;
    }
    int turn = index % CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && turn-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
    }
}

typedef struct worker_start {
    worker *self;
    bool pin;
} worker_start;

static void *worker_main(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    team *t = start.self->owner;
    if (start.pin) {
        pin_to_allowed_cpu(start.self->index);
    }
    for (unsigned seen = 0;; seen++) { // the n-th run makes start.value n
        event_count_wait(&t->start, seen, t->spin_turns, UINT64_MAX);
        if (atomic_load(&t->is_stopping)) {
            return NULL;
        }
        t->fn(t->context, start.self->index, t->n_threads);
        team_barrier(t);
    }
}

status_code team_new(int n_threads, bool pin, team **out, error_ctx *err) {
    *out = NULL;
    if (n_threads < 1 || n_threads > MOST_THREADS) {
        return error_set(err, STATUS_INVALID, "thread count %d is outside 1..%d", n_threads, MOST_THREADS);
    }
    team *t = aligned_alloc(64, (sizeof *t + 63) & ~(size_t)63);
    if (!t) {
        return error_no_memory(err, "the thread team");
    }
    memset(t, 0, sizeof *t);
    t->n_threads = n_threads;
    // With more threads than CPUs a spinning waiter only keeps the working thread off the CPU.
    t->spin_turns = n_threads <= team_default_threads() ? SPIN_TURNS : 0;
    t->workers = calloc((size_t)n_threads, sizeof *t->workers);
    if (!t->workers) {
        free(t);
        return error_no_memory(err, "the thread team");
    }
    for (int i = 1; i < n_threads; i++) {
        worker *w = &t->workers[i];
        *w = (worker){.owner = t, .index = i};
        worker_start *start = malloc(sizeof *start);
        int failed = ENOMEM;
        if (start) {
            *start = (worker_start){.self = w, .pin = pin};
            failed = pthread_create(&w->thread, NULL, worker_main, start);
        }
        if (failed) {
            free(start);
            team_free(t);
            return error_set(err, STATUS_NO_MEMORY, "cannot start worker thread %d of %d: %s", i, n_threads,
                             strerror(failed));
        }
        t->n_started = i;
    }
    *out = t;
    return STATUS_OK;
}

void team_free(team *t) {
    if (!t) {
        return;
    }
    atomic_store(&t->is_stopping, true);
    event_count_notify(&t->start);
    for (int i = 1; i <= t->n_started; i++) {
        pthread_join(t->workers[i].thread, NULL);
    }
    free(t->workers);
    free(t);
}

int team_size(const team *t) {
    return t->n_threads;
}

void team_run(team *t, team_fn fn, void *context) {
    if (t->n_threads == 1) {
        fn(context, 0, 1);
        return;
    }
    t->fn = fn;
    t->context = context;
    event_count_notify(&t->start);
    fn(context, 0, t->n_threads);
    team_barrier(t);
}

void team_barrier(team *t) {
    if (t->n_threads == 1) {
        return;
    }
    unsigned seen = event_count_read(&t->barrier);
    if (atomic_fetch_add(&t->n_arrived, 1) == t->n_threads - 1) {
        atomic_store(&t->n_arrived, 0);
        event_count_notify(&t->barrier);
    } else {
        event_count_wait(&t->barrier, seen, t->spin_turns, UINT64_MAX);
    }
}

void team_share(int64_t n, int64_t grain, int thread_index, int n_threads, int64_t *begin, int64_t *end) {
    int64_t n_grains = (n + grain - 1) / grain;
    int64_t first = n_grains * thread_index / n_threads;
    int64_t last = n_grains * (thread_index + 1) / n_threads;
    *begin = first * grain < n ? first * grain : n;
    *end = last * grain < n ? last * grain : n;
}
