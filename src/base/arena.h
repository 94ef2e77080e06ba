// Memory by lifetime: an arena hands out pieces that all die together.
//
// Owner: whoever called arena_new. Not thread-safe. Pieces are 16-byte aligned
// and stay put until arena_reset or arena_free. Every allocation may return
// NULL (out of memory, or the byte limit given at creation is reached).
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

typedef struct arena arena;

// limit_bytes: most bytes the arena may hold in sum, 0 for no limit. NULL when out of memory.
arena *arena_new(size_t limit_bytes);
void arena_free(arena *a);  // runs cleanup hooks, last added first; NULL is legal
void arena_reset(arena *a); // as free, but keeps the largest chunk for reuse

void *arena_alloc(arena *a, size_t bytes); // uninitialised; 0 bytes gives a valid unique pointer
void *arena_alloc_zero(arena *a, size_t bytes);
void *arena_alloc_array(arena *a, size_t count, size_t item_bytes); // zeroed; NULL on overflow too
char *arena_strndup(arena *a, const char *text, size_t len);        // adds a terminator
char *arena_strdup(arena *a, const char *text);
char *arena_printf(arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Run hook(context) at reset or free: releases files, pins and other non-memory things.
// Returns 0, or -1 when out of memory (the hook is then not registered).
int arena_defer(arena *a, void (*hook)(void *context), void *context);

size_t arena_used_bytes(const arena *a);

#endif
