// Result codes and the error context that travels with them.
//
// Every fallible function returns a status_code and, on failure, fills the
// caller's error_ctx (which may be NULL). A context holds the first error set
// since error_clear: the place nearest the cause wins, callers may add the
// object's name with error_object. Nothing here allocates.
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdbool.h>
#include <stdint.h>

// Values are mirrored by plumb_status in include/plumb.h; append only.
typedef enum status_code {
    STATUS_OK = 0,
    STATUS_INVALID,     // the caller's argument, flag or request is wrong
    STATUS_CORRUPT,     // bytes from outside are malformed
    STATUS_UNSUPPORTED, // well-formed, but this build cannot do it
    STATUS_NOT_FOUND,   // file, tensor, token or key is absent
    STATUS_IO,          // the operating system refused a read, write or socket call
    STATUS_NO_MEMORY,
    STATUS_LIMIT,     // a stated limit was exceeded
    STATUS_BUSY,      // a bounded queue is full; try again later
    STATUS_CANCELLED, // the caller asked to stop
    STATUS_FAILED,    // engine or device is in its sticky failed state
    STATUS_INTERNAL,  // a broken invariant of plumb itself
    STATUS_COUNT
} status_code;

#define ERROR_NO_OFFSET UINT64_MAX

typedef struct error_ctx {
    status_code code;
    const char *source_file; // static string
    int source_line;
    uint64_t offset;   // byte offset in the object, or ERROR_NO_OFFSET
    char object[192];  // file, tensor, field or request the error is about
    char message[768]; // found value, expected value, next action
} error_ctx;

// Short lower-case name, for logs and JSON ("corrupt", "not_found", ...).
const char *status_name(status_code code);

void error_clear(error_ctx *err);

// Record an error. Use through the macros below, whose value is the code.
void error_set_at(error_ctx *err, const char *file, int line, status_code code, uint64_t offset, const char *format,
                  ...) __attribute__((format(printf, 6, 7)));

// Name the object an already recorded error is about, unless one is named. Long names keep their end.
void error_object(error_ctx *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

// One line "object: message (at byte N)" into buf; returns buf. Never fails; truncates.
const char *error_text(const error_ctx *err, char *buf, int buf_bytes);

static inline status_code error_same(status_code code) {
    return code;
}

// The value is the code itself (by way of error_same, so that it may go unused): the compiler sees that a failure path
// fails.
#define error_set(err, code, ...)                                                                                      \
    (error_set_at((err), __FILE__, __LINE__, (code), ERROR_NO_OFFSET, __VA_ARGS__), error_same(code))
#define error_set_offset(err, code, offset, ...)                                                                       \
    (error_set_at((err), __FILE__, __LINE__, (code), (offset), __VA_ARGS__), error_same(code))
#define error_no_memory(err, what) error_set((err), STATUS_NO_MEMORY, "out of memory for %s", (what))

// Forward a failure to the caller.
#define RETURN_IF_ERROR(expression)                                                                                    \
    do {                                                                                                               \
        status_code return_code_ = (expression);                                                                       \
        if (return_code_ != STATUS_OK) {                                                                               \
            return return_code_;                                                                                       \
        }                                                                                                              \
    } while (0)

#endif
