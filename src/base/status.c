#include "base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_name(status_code code) {
    static const char *const names[STATUS_COUNT] = {
        [STATUS_OK] = "ok",
        [STATUS_INVALID] = "invalid",
        [STATUS_CORRUPT] = "corrupt",
        [STATUS_UNSUPPORTED] = "unsupported",
        [STATUS_NOT_FOUND] = "not_found",
        [STATUS_IO] = "io",
        [STATUS_NO_MEMORY] = "no_memory",
        [STATUS_LIMIT] = "limit",
        [STATUS_BUSY] = "busy",
        [STATUS_CANCELLED] = "cancelled",
        [STATUS_FAILED] = "failed",
        [STATUS_INTERNAL] = "internal",
    };
    return (unsigned)code < STATUS_COUNT ? names[code] : "unknown";
}

void error_clear(error_ctx *err) {
    if (err) {
        *err = (error_ctx){.offset = ERROR_NO_OFFSET};
    }
}

void error_set_at(error_ctx *err, const char *file, int line, status_code code, uint64_t offset, const char *format,
                  ...) {
    if (err && err->code == STATUS_OK) {
        err->code = code;
        err->source_file = file;
        err->source_line = line;
        err->offset = offset;
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
}

void error_object(error_ctx *err, const char *format, ...) {
    if (!err || err->object[0] != '\0') {
        return;
    }
    char full[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(full, sizeof full, format, args);
    va_end(args);
    // The end of a path says more than its beginning.
    size_t len = strlen(full);
    if (len < sizeof err->object) {
        memcpy(err->object, full, len + 1);
    } else {
        size_t keep = sizeof err->object - 4;
        memcpy(err->object, "...", 3);
        memcpy(err->object + 3, full + len - keep, keep + 1);
    }
}

const char *error_text(const error_ctx *err, char *buf, int buf_bytes) {
    char place[48] = "";
    if (err->offset != ERROR_NO_OFFSET) {
        snprintf(place, sizeof place, " (at byte %" PRIu64 ")", err->offset);
    }
    snprintf(buf, (size_t)buf_bytes, "%s%s%s%s", err->object, err->object[0] ? ": " : "", err->message, place);
    return buf;
}
