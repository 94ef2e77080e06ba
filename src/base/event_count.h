// An event counter that threads can wait on: spin for a short while, then sleep on a futex.
//
// Waiter: read the count, check the condition, wait for the count to leave what was read. Notifier: make the condition
// true, then notify. A notification costs one atomic add, and a system call only when somebody sleeps.
#ifndef BASE_EVENT_COUNT_H
#define BASE_EVENT_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct event_count {
    _Alignas(64) atomic_uint value;
    atomic_int n_sleepers;
} event_count;

static inline unsigned event_count_read(event_count *e) {
    return atomic_load(&e->value);
}

void event_count_notify(event_count *e); // wakes all waiters
// Returns when the count differs from `seen`, or false after timeout_ns (UINT64_MAX: never).
bool event_count_wait(event_count *e, unsigned seen, int spin_turns, uint64_t timeout_ns);

#endif
