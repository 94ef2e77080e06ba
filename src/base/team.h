// A fixed team of threads with fork-join. One owner thread calls team_run; it takes
// part as thread 0. Inside a run, team_barrier separates phases. Workers spin briefly
// and then sleep, so an idle team uses no CPU.
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct team team;
typedef void (*team_fn)(void *context, int thread_index, int n_threads);

// Number of CPUs this process may use (affinity mask and cgroup quota), at least 1.
int team_default_threads(void);

// n_threads in 1..256. pin: bind each worker to one of the allowed CPUs.
status_code team_new(int n_threads, bool pin, team **out, error_ctx *err);
void team_free(team *t); // joins the workers; NULL is legal; never during a run
int team_size(const team *t);

// Run fn on every thread of the team; returns when all have returned. Not reentrant.
void team_run(team *t, team_fn fn, void *context);
// All threads of the current run wait for each other. Memory written before is visible after.
void team_barrier(team *t);

// Contiguous share of n items for one thread, [*begin, *end), in multiples of `grain`.
void team_share(int64_t n, int64_t grain, int thread_index, int n_threads, int64_t *begin, int64_t *end);

#endif
