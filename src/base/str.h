// String views and a growable byte buffer.
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// A borrowed piece of bytes, not terminated. Lives as long as what it points into.
typedef struct str {
    const char *ptr;
    size_t len;
} str;

static inline str str_make(const char *ptr, size_t len) {
    return (str){ptr, len};
}
static inline str str_from(const char *text) {
    return (str){text, text ? strlen(text) : 0};
}
#define STR(literal) ((str){(literal), sizeof(literal) - 1})
#define STR_ARG(s)   (int)((s).len), (s).ptr // for "%.*s"

bool str_equal(str a, str b);
bool str_equal_c(str a, const char *b);
bool str_starts_with(str s, str prefix);
bool str_ends_with(str s, str suffix);
ptrdiff_t str_find(str s, str needle); // first place, or -1
uint64_t str_hash(str s);              // FNV-1a 64; stable across runs and machines

// Growable bytes, always terminated by a 0 that is not counted in len. Zero-initialise before use.
// A failed growth sets `oom` and drops the write; later writes are no-ops, so one check at the
// end is enough.
typedef struct strbuf {
    char *ptr;
    size_t len;
    size_t cap;
    bool oom;
} strbuf;

void strbuf_free(strbuf *b);
void strbuf_clear(strbuf *b); // keeps the memory
bool strbuf_reserve(strbuf *b, size_t extra);
void strbuf_append(strbuf *b, const char *ptr, size_t len);
void strbuf_append_str(strbuf *b, str s);
void strbuf_append_c(strbuf *b, const char *text);
void strbuf_append_char(strbuf *b, char c);
void strbuf_printf(strbuf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Hands the terminated memory to the caller (free with free()) and empties b. NULL if oom.
char *strbuf_take(strbuf *b, size_t *len);

#endif
