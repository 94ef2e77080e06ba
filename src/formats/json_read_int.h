// JSON of checkpoint files: jansson with limits in front of it and errors in our form.
#ifndef FORMATS_JSON_READ_INT_H
#define FORMATS_JSON_READ_INT_H

#include "base/status.h"
#include "base/str.h"

#include <jansson.h>

// A parsed tree costs up to a hundred times its text. These bounds on what a text may hold keep that in proportion.
typedef struct json_limits {
    uint64_t objects, arrays, values;
} json_limits;

// Parse a text whose top is an object; duplicate keys are refused. base_offset is where the text stands in its file.
// *out is released with json_decref.
status_code json_read_text(str text, uint64_t base_offset, const json_limits *limits, json_t **out, error_ctx *err);

// Read and parse a file of at most limit_bytes. Also takes what Python writes although JSON has no place for it: the
// word Infinity, which becomes JSON_INFINITY, and integers beyond 64 bits, which become reals. Errors name the file.
status_code json_read_file(const char *path, size_t limit_bytes, const json_limits *limits, json_t **out,
                           error_ctx *err);

// Stands for infinity in a parsed tree; no sane file holds this number.
#define JSON_INFINITY 1.79e308

#endif
