// Monotonic and wall time.
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_monotonic_ns(void);
int64_t clock_unix_seconds(void);

#endif
