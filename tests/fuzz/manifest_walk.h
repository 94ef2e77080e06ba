// Reads everything that a manifest offers: all metadata with every array element, all tensors by index and by name,
// the bytes of small tensors and their decoded rows. Shared by the two fuzz targets and the unit tests. Aborts when a
// promise of the public API does not hold.
#ifndef FUZZ_MANIFEST_WALK_H
#define FUZZ_MANIFEST_WALK_H

#include "formats/manifest.h"

#include <stdlib.h>

#define WALK_REQUIRE(condition)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { WALK_ROW_ELEMENTS = 4096, WALK_TENSOR_BYTES = 1 << 16 };

static uint64_t walk_bytes(const void *data, uint64_t bytes) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        sum += ((const uint8_t *)data)[i];
    }
    return sum;
}

static uint64_t walk_value(const meta_value *v) {
    int64_t whole;
    double real;
    bool flag;
    str text;
    uint64_t sum = meta_value_int(v, &whole) + meta_value_float(v, &real) + meta_value_bool(v, &flag);
    if (meta_value_str(v, &text)) {
        sum += walk_bytes(text.ptr, text.len);
    }
    int64_t n = meta_array_len(v);
    WALK_REQUIRE(meta_array_type(v) != META_ARRAY && n >= 0);
    for (int64_t i = 0; i < n; i++) {
        sum += meta_array_int(v, i, &whole) + meta_array_float(v, i, &real) + meta_array_bool(v, i, &flag);
        if (meta_array_str(v, i, &text)) {
            sum += walk_bytes(text.ptr, text.len);
        }
    }
    WALK_REQUIRE(!meta_array_int(v, n, &whole) && !meta_array_str(v, -1, &text));
    return sum;
}

static uint64_t walk_tensor(const manifest *m, const manifest_tensor *t) {
    WALK_REQUIRE(manifest_tensor_find(m, t->name) == t);
    WALK_REQUIRE(t->n_dims >= 0 && t->n_dims <= MANIFEST_MAX_DIMS);
    uint64_t file_bytes = manifest_file_bytes(m, t->file_index);
    WALK_REQUIRE(t->offset <= file_bytes && t->bytes <= file_bytes - t->offset);
    uint64_t sum = 0;
    if (t->bytes <= WALK_TENSOR_BYTES) {
        sum += walk_bytes(manifest_tensor_data(m, t), t->bytes);
    }
    weight w;
    manifest_tensor_weight(m, t, &w);
    const dtype_info *info = dtype_get(w.type);
    WALK_REQUIRE(info != NULL);
    if (info->decode && t->bytes > 0 && t->bytes <= WALK_TENSOR_BYTES && weight_columns(&w) <= WALK_ROW_ELEMENTS) {
        // Heap memory of the exact size lets AddressSanitizer see a write one element too far.
        float *row = malloc((size_t)weight_columns(&w) * sizeof *row);
        if (row) {
            weight_decode_row(&w, 0, row);
            sum += walk_bytes(row, (uint64_t)weight_columns(&w) * sizeof *row);
            free(row);
        }
    }
    return sum;
}

static uint64_t walk_manifest(const manifest *m) {
    uint64_t sum = 0;
    const meta *keys = manifest_meta(m);
    for (int64_t i = 0; i < meta_count(keys); i++) {
        const char *key;
        const meta_value *v = meta_at(keys, i, &key);
        WALK_REQUIRE(v && meta_find(keys, key) == v);
        sum += walk_value(v);
    }
    WALK_REQUIRE(!meta_at(keys, meta_count(keys), NULL) && !manifest_tensor_at(m, manifest_tensor_count(m)));
    for (int64_t i = 0; i < manifest_tensor_count(m); i++) {
        sum += walk_tensor(m, manifest_tensor_at(m, i));
    }
    return sum;
}

// What every refusal must come with.
static void walk_error(status_code code, const manifest *m, const error_ctx *err) {
    WALK_REQUIRE(code != STATUS_OK && !m && err->code == code && err->message[0] && err->object[0]);
}

#endif
