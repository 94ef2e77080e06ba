#include "formats/name_index_int.h"

#include "base/str.h"

#include <stdlib.h>

static int compare_rows(const void *a, const void *b) {
    const name_row *x = a, *y = b;
    if (x->hash != y->hash) {
        return x->hash < y->hash ? -1 : 1;
    }
    int order = strcmp(x->name, y->name);
    return order ? order : (x->item > y->item) - (x->item < y->item);
}

bool name_index_build(name_index *index, name_at_fn name_at, const void *context, int64_t n, int64_t *duplicate) {
    *duplicate = -1;
    *index = (name_index){0};
    if (n == 0) {
        return true;
    }
    index->rows = calloc((size_t)n, sizeof *index->rows);
    if (!index->rows) {
        return false;
    }
    index->n = n;
    for (int64_t i = 0; i < n; i++) {
        const char *name = name_at(context, i);
        index->rows[i] = (name_row){.hash = str_hash(str_from(name)), .name = name, .item = i};
    }
    qsort(index->rows, (size_t)n, sizeof *index->rows, compare_rows);
    for (int64_t i = 1; i < n; i++) {
        const name_row *row = &index->rows[i];
        if (row->hash == row[-1].hash && strcmp(row->name, row[-1].name) == 0 &&
            (*duplicate < 0 || row->item < *duplicate)) {
            *duplicate = row->item;
        }
    }
    return true;
}

int64_t name_index_find(const name_index *index, const char *name) {
    name_row wanted = {.hash = str_hash(str_from(name)), .name = name, .item = -1};
    int64_t low = 0, high = index->n;
    while (low < high) { // first row not before (hash, name)
        int64_t middle = low + (high - low) / 2;
        if (compare_rows(&index->rows[middle], &wanted) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const name_row *row = low < index->n ? &index->rows[low] : NULL;
    return row && row->hash == wanted.hash && strcmp(row->name, name) == 0 ? row->item : -1;
}

void name_index_free(name_index *index) {
    free(index->rows);
    *index = (name_index){0};
}
