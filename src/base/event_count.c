#include "base/event_count.h"

#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define cpu_relax() __builtin_ia32_pause()
#else
#define cpu_relax() atomic_signal_fence(memory_order_seq_cst)
#endif

void event_count_notify(event_count *e) {
    atomic_fetch_add(&e->value, 1);
    // A sleeper registers before it re-reads the count, so either it sees the new value or we see it.
    if (atomic_load(&e->n_sleepers) > 0) {
        syscall(SYS_futex, &e->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

bool event_count_wait(event_count *e, unsigned seen, int spin_turns, uint64_t timeout_ns) {
    for (int i = 0; i < spin_turns; i++) {
        if (atomic_load_explicit(&e->value, memory_order_acquire) != seen) {
            return true;
        }
        cpu_relax();
    }
    bool has_deadline = timeout_ns != UINT64_MAX;
    uint64_t start = has_deadline ? clock_monotonic_ns() : 0;
    bool is_changed = true;
    atomic_fetch_add(&e->n_sleepers, 1);
    while (atomic_load(&e->value) == seen) {
        struct timespec rest, *limit = NULL;
        if (has_deadline) {
            uint64_t passed = clock_monotonic_ns() - start;
            if (passed >= timeout_ns) {
                is_changed = false;
                break;
            }
            uint64_t left = timeout_ns - passed;
            rest = (struct timespec){.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
            limit = &rest;
        }
        syscall(SYS_futex, &e->value, FUTEX_WAIT_PRIVATE, seen, limit, NULL, 0);
    }
    atomic_fetch_sub(&e->n_sleepers, 1);
    return is_changed;
}
