#include "formats/json_read_int.h"

#include "base/file_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static status_code check_limits(str text, uint64_t base_offset, const json_limits *limits, error_ctx *err) {
    uint64_t objects = 0, arrays = 0, values = 1;
    for (size_t i = 0; i < text.len; i++) { // characters inside strings count too: the bounds are generous
        objects += text.ptr[i] == '{';
        arrays += text.ptr[i] == '[';
        values += text.ptr[i] == ',';
    }
    if (objects > limits->objects || arrays > limits->arrays || values > limits->values) {
        return error_set_offset(err, STATUS_LIMIT, base_offset,
                                "JSON with %" PRIu64 " objects, %" PRIu64 " arrays and %" PRIu64
                                " values, at most %" PRIu64 ", %" PRIu64 " and %" PRIu64 " are read",
                                objects, arrays, values, limits->objects, limits->arrays, limits->values);
    }
    return STATUS_OK;
}

status_code json_read_text(str text, uint64_t base_offset, const json_limits *limits, json_t **out, error_ctx *err) {
    *out = NULL;
    RETURN_IF_ERROR(check_limits(text, base_offset, limits, err));
    json_error_t cause;
    json_t *top = json_loadb(text.ptr, text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &cause);
    if (!top) {
        if (cause.text[0] == '\0' || json_error_code(&cause) == json_error_out_of_memory) {
            // jansson fills in nothing when it cannot allocate a value
            return error_no_memory(err, "a JSON tree");
        }
        uint64_t position = cause.position > 0 ? (uint64_t)cause.position : 0;
        return error_set_offset(err, STATUS_CORRUPT, base_offset + position, "JSON line %d, column %d: %s", cause.line,
                                cause.column, cause.text);
    }
    if (!json_is_object(top)) {
        json_decref(top);
        return error_set_offset(err, STATUS_CORRUPT, base_offset, "the JSON text is not an object");
    }
    *out = top;
    return STATUS_OK;
}

// Rewrite the integer digits[0..n) that exceeds 64 bits as a real of the same length: the point takes the second
// place, the exponent the last ones; 15 or more digits survive.
static void integer_to_real(char *digits, size_t n) {
    char exponent[16];
    int exponent_chars = snprintf(exponent, sizeof exponent, "e%zu", n - 1);
    memmove(digits + 2, digits + 1, n - 2 - (size_t)exponent_chars);
    digits[1] = '.';
    memcpy(digits + n - exponent_chars, exponent, (size_t)exponent_chars);
}

static size_t digit_run(const char *text, size_t len) {
    size_t n = 0;
    while (n < len && text[n] >= '0' && text[n] <= '9') {
        n++;
    }
    return n;
}

// Python's json module writes Infinity and integers of any size. Numbers of the same length take their place, so that
// positions in messages stay right. Whatever else is wrong is left for the parser to refuse.
static void replace_python_numbers(char *text, size_t len) {
    static const char word[] = "Infinity", number[] = "1.79e308"; // JSON_INFINITY
    static const char most[] = "9223372036854775807", least[] = "9223372036854775808";
    enum { WORD_CHARS = sizeof word - 1, MOST_CHARS = sizeof most - 1, MOST_DIGITS = 309 };
    _Static_assert(sizeof word == sizeof number, "positions must not move");
    bool is_string = false;
    for (size_t i = 0; i < len; i++) {
        if (is_string && text[i] == '\\') {
            i++; // what is escaped cannot end the string
        } else if (text[i] == '"') {
            is_string = !is_string;
        } else if (is_string) {
            continue;
        } else if (text[i] == 'I' && len - i >= WORD_CHARS && memcmp(text + i, word, WORD_CHARS) == 0) {
            memcpy(text + i, number, WORD_CHARS);
            i += WORD_CHARS - 1;
        } else if (text[i] >= '0' && text[i] <= '9') {
            size_t n = digit_run(text + i, len - i);
            bool is_fraction = i > 0 && (text[i - 1] == '.' || text[i - 1] == '+');
            bool is_integer = i + n == len || !strchr(".eE", text[i + n]);
            bool is_large = n > MOST_CHARS ||
                            (n == MOST_CHARS && memcmp(text + i, i > 0 && text[i - 1] == '-' ? least : most, n) > 0);
            if (is_integer && !is_fraction && is_large && n <= MOST_DIGITS && text[i] != '0') {
                integer_to_real(text + i, n);
            }
            i += n - 1;
        }
    }
}

status_code json_read_file(const char *path, size_t limit_bytes, const json_limits *limits, json_t **out,
                           error_ctx *err) {
    char *text;
    size_t len;
    *out = NULL;
    RETURN_IF_ERROR(file_read_all(path, limit_bytes, &text, &len, err));
    replace_python_numbers(text, len);
    status_code code = json_read_text(str_make(text, len), 0, limits, out, err);
    free(text);
    if (code != STATUS_OK) {
        error_object(err, "%s", path);
    }
    return code;
}
