#include "base/str.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>

bool str_equal(str a, str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool str_equal_c(str a, const char *b) {
    return str_equal(a, str_from(b));
}

bool str_starts_with(str s, str prefix) {
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}

bool str_ends_with(str s, str suffix) {
    return s.len >= suffix.len && (suffix.len == 0 || memcmp(s.ptr + s.len - suffix.len, suffix.ptr, suffix.len) == 0);
}

ptrdiff_t str_find(str s, str needle) {
    if (needle.len == 0) {
        return 0;
    }
    const char *at = s.len ? memmem(s.ptr, s.len, needle.ptr, needle.len) : NULL;
    return at ? at - s.ptr : -1;
}

uint64_t str_hash(str s) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.len; i++) {
        hash = (hash ^ (uint8_t)s.ptr[i]) * 0x100000001b3u;
    }
    return hash;
}

void strbuf_free(strbuf *b) {
    free(b->ptr);
    *b = (strbuf){0};
}

void strbuf_clear(strbuf *b) {
    b->len = 0;
    b->oom = false;
    if (b->ptr) {
        b->ptr[0] = '\0';
    }
}

bool strbuf_reserve(strbuf *b, size_t extra) {
    size_t need;
    if (b->oom || !checked_add_size(b->len, extra, &need) || !checked_add_size(need, 1, &need)) {
        b->oom = true;
        return false;
    }
    if (need <= b->cap) {
        return true;
    }
    size_t cap = b->cap < 32 ? 64 : b->cap + b->cap / 2;
    if (cap < need) {
        cap = need;
    }
    char *grown = realloc(b->ptr, cap);
    if (!grown) {
        b->oom = true;
        return false;
    }
    b->ptr = grown;
    b->cap = cap;
    b->ptr[b->len] = '\0';
    return true;
}

void strbuf_append(strbuf *b, const char *ptr, size_t len) {
    if (!strbuf_reserve(b, len)) {
        return;
    }
    if (len) {
        memcpy(b->ptr + b->len, ptr, len);
    }
    b->len += len;
    b->ptr[b->len] = '\0';
}

void strbuf_append_str(strbuf *b, str s) {
    strbuf_append(b, s.ptr, s.len);
}

void strbuf_append_c(strbuf *b, const char *text) {
    strbuf_append(b, text, strlen(text));
}

void strbuf_append_char(strbuf *b, char c) {
    strbuf_append(b, &c, 1);
}

void strbuf_printf(strbuf *b, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0) {
        b->oom = true;
    } else if (strbuf_reserve(b, (size_t)len)) {
        vsnprintf(b->ptr + b->len, (size_t)len + 1, format, again);
        b->len += (size_t)len;
    }
    va_end(again);
}

char *strbuf_take(strbuf *b, size_t *len) {
    if (!strbuf_reserve(b, 0)) {
        strbuf_free(b);
        return NULL;
    }
    char *text = b->ptr;
    if (len) {
        *len = b->len;
    }
    *b = (strbuf){0};
    return text;
}
