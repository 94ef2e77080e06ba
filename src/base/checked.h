// Overflow-checked size arithmetic. Each returns false on overflow and leaves *out undefined.
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool checked_add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline bool checked_mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool checked_mul_i64(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

// Round up to a multiple of align (a power of two).
static inline bool checked_align_u64(uint64_t value, uint64_t align, uint64_t *out) {
    if (!checked_add_u64(value, align - 1, out)) {
        return false;
    }
    *out &= ~(align - 1);
    return true;
}

// True when [offset, offset + bytes) lies inside [0, total).
static inline bool checked_range_u64(uint64_t offset, uint64_t bytes, uint64_t total) {
    return offset <= total && bytes <= total - offset;
}

#endif
