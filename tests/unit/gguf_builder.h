// Builds GGUF metadata in memory, for unit tests and fuzz targets: header, key/value pairs, no tensors.
#ifndef GGUF_BUILDER_H
#define GGUF_BUILDER_H

#include "base/str.h"

typedef struct gguf_builder {
    strbuf kv;
    uint64_t n_kv;
} gguf_builder;

static inline void gguf_put(strbuf *b, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        strbuf_append_char(b, (char)(value >> (8 * i)));
    }
}

static inline void gguf_put_str(strbuf *b, str s) {
    gguf_put(b, s.len, 8);
    strbuf_append_str(b, s);
}

static inline void gguf_key(gguf_builder *g, const char *key, int type) {
    gguf_put_str(&g->kv, str_from(key));
    gguf_put(&g->kv, (uint64_t)type, 4);
    g->n_kv++;
}

static inline void gguf_add_str(gguf_builder *g, const char *key, const char *value) {
    gguf_key(g, key, 8);
    gguf_put_str(&g->kv, str_from(value));
}

static inline void gguf_add_u32(gguf_builder *g, const char *key, uint32_t value) {
    gguf_key(g, key, 4);
    gguf_put(&g->kv, value, 4);
}

static inline void gguf_add_bool(gguf_builder *g, const char *key, bool value) {
    gguf_key(g, key, 7);
    gguf_put(&g->kv, value, 1);
}

static inline void gguf_add_strs(gguf_builder *g, const char *key, const char *const *values, size_t n) {
    gguf_key(g, key, 9);
    gguf_put(&g->kv, 8, 4);
    gguf_put(&g->kv, n, 8);
    for (size_t i = 0; i < n; i++) {
        gguf_put_str(&g->kv, str_from(values[i]));
    }
}

static inline void gguf_add_i32s(gguf_builder *g, const char *key, const int32_t *values, size_t n) {
    gguf_key(g, key, 9);
    gguf_put(&g->kv, 5, 4);
    gguf_put(&g->kv, n, 8);
    for (size_t i = 0; i < n; i++) {
        gguf_put(&g->kv, (uint32_t)values[i], 4);
    }
}

static inline void gguf_add_f32s(gguf_builder *g, const char *key, const float *values, size_t n) {
    gguf_key(g, key, 9);
    gguf_put(&g->kv, 6, 4);
    gguf_put(&g->kv, n, 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        gguf_put(&g->kv, bits, 4);
    }
}

// The finished file in *file, which the caller frees; g is emptied.
static inline void gguf_finish(gguf_builder *g, strbuf *file) {
    *file = (strbuf){0};
    strbuf_append(file, "GGUF", 4);
    gguf_put(file, 3, 4);
    gguf_put(file, 0, 8);
    gguf_put(file, g->n_kv, 8);
    strbuf_append(file, g->kv.ptr, g->kv.len);
    strbuf_free(&g->kv);
    g->n_kv = 0;
    while (file->len % 32 != 0) {
        strbuf_append_char(file, 0);
    }
}

#endif
