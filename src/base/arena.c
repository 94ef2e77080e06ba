// Chunks are linked newest first; only the newest has room. A piece larger than the usual chunk
// gets a chunk of its own size.
#include "base/arena.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, FIRST_CHUNK_BYTES = 4096, MOST_CHUNK_BYTES = 1 << 20 };

typedef struct chunk {
    struct chunk *older;
    size_t used, cap; // bytes behind this header
} chunk;

_Static_assert(sizeof(chunk) % 8 == 0, "chunk header keeps pieces aligned");
#define CHUNK_HEADER_BYTES ((sizeof(chunk) + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1))

typedef struct hook {
    struct hook *older;
    void (*run)(void *context);
    void *context;
} hook;

struct arena {
    chunk *newest;
    hook *hooks; // live in the chunks
    size_t used_bytes;
    size_t limit_bytes; // 0: none
    size_t next_chunk_bytes;
};

arena *arena_new(size_t limit_bytes) {
    arena *a = calloc(1, sizeof *a);
    if (a) {
        a->limit_bytes = limit_bytes;
        a->next_chunk_bytes = FIRST_CHUNK_BYTES;
    }
    return a;
}

static void run_hooks(arena *a) {
    for (hook *h = a->hooks; h; h = h->older) {
        h->run(h->context);
    }
    a->hooks = NULL;
}

static void free_chunks(chunk *c) {
    while (c) {
        chunk *older = c->older;
        free(c);
        c = older;
    }
}

void arena_free(arena *a) {
    if (a) {
        run_hooks(a);
        free_chunks(a->newest);
        free(a);
    }
}

void arena_reset(arena *a) {
    run_hooks(a);
    // Keeping the largest chunk makes the next round of the same size a single chunk.
    chunk *largest = a->newest;
    for (chunk *c = a->newest; c; c = c->older) {
        largest = c->cap > largest->cap ? c : largest;
    }
    for (chunk *c = a->newest; c;) {
        chunk *older = c->older;
        if (c != largest) {
            free(c);
        }
        c = older;
    }
    if (largest) {
        largest->older = NULL;
        largest->used = 0;
    }
    a->newest = largest;
    a->used_bytes = 0;
}

static chunk *add_chunk(arena *a, size_t need) {
    size_t cap = a->next_chunk_bytes;
    if (a->next_chunk_bytes < MOST_CHUNK_BYTES) {
        a->next_chunk_bytes *= 2;
    }
    if (cap < need) {
        cap = need;
    }
    size_t total;
    if (!checked_add_size(cap, CHUNK_HEADER_BYTES, &total)) {
        return NULL;
    }
    chunk *c = malloc(total);
    if (c) {
        *c = (chunk){.older = a->newest, .cap = cap};
        a->newest = c;
    }
    return c;
}

void *arena_alloc(arena *a, size_t bytes) {
    size_t need;
    if (!checked_add_size(bytes ? bytes : 1, ARENA_ALIGN - 1, &need)) {
        return NULL;
    }
    need &= ~(size_t)(ARENA_ALIGN - 1);
    if (a->limit_bytes && need > a->limit_bytes - a->used_bytes) {
        return NULL;
    }
    chunk *c = a->newest;
    if (!c || need > c->cap - c->used) {
        c = add_chunk(a, need);
        if (!c) {
            return NULL;
        }
    }
    void *piece = (char *)c + CHUNK_HEADER_BYTES + c->used;
    c->used += need;
    a->used_bytes += need;
    return piece;
}

void *arena_alloc_zero(arena *a, size_t bytes) {
    void *piece = arena_alloc(a, bytes);
    if (piece) {
        memset(piece, 0, bytes);
    }
    return piece;
}

void *arena_alloc_array(arena *a, size_t count, size_t item_bytes) {
    size_t bytes;
    return checked_mul_size(count, item_bytes, &bytes) ? arena_alloc_zero(a, bytes) : NULL;
}

char *arena_strndup(arena *a, const char *text, size_t len) {
    char *copy = len < SIZE_MAX ? arena_alloc(a, len + 1) : NULL;
    if (copy) {
        if (len) {
            memcpy(copy, text, len);
        }
        copy[len] = '\0';
    }
    return copy;
}

char *arena_strdup(arena *a, const char *text) {
    return arena_strndup(a, text, strlen(text));
}

char *arena_printf(arena *a, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = len < 0 ? NULL : arena_alloc(a, (size_t)len + 1);
    if (text) {
        vsnprintf(text, (size_t)len + 1, format, again);
    }
    va_end(again);
    return text;
}

int arena_defer(arena *a, void (*run)(void *context), void *context) {
    hook *h = arena_alloc(a, sizeof *h);
    if (!h) {
        return -1;
    }
    *h = (hook){.older = a->hooks, .run = run, .context = context};
    a->hooks = h;
    return 0;
}

size_t arena_used_bytes(const arena *a) {
    return a->used_bytes;
}
