// Lookup of unique names (keys, tensors) over an array that somebody else owns.
//
// Rows are sorted by (hash, name) and searched by bisection. A hash table would do as well on honest files, but names
// that were made to collide would turn it into a linear search; this stays at O(n log n) and O(log n).
#ifndef FORMATS_NAME_INDEX_INT_H
#define FORMATS_NAME_INDEX_INT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct name_row {
    uint64_t hash;
    const char *name; // borrowed
    int64_t item;
} name_row;

typedef struct name_index {
    name_row *rows; // owned
    int64_t n;
} name_index;

// Name `item` of the array behind context.
typedef const char *(*name_at_fn)(const void *context, int64_t item);

// False when out of memory. *duplicate is the later item of the first pair of equal names, -1 when all are unique.
bool name_index_build(name_index *index, name_at_fn name_at, const void *context, int64_t n, int64_t *duplicate);
int64_t name_index_find(const name_index *index, const char *name); // item, or -1
void name_index_free(name_index *index);

#endif
