// JSON files of a Hugging Face folder, flattened into the metadata table as meta.h describes.
//
//   config.json                no prefix
//   generation_config.json     "generation_config."    (optional)
//   tokenizer_config.json      "tokenizer_config."     (optional)
//
// Strings and arrays are copied into the manifest's arena; the JSON trees are gone when this returns.
#include "formats/json_read_int.h"
#include "formats/manifest_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum {
    MOST_CONFIG_BYTES = 32 << 20, // the largest tokenizer_config.json seen is near 2 MB
    MOST_DEPTH = 64,
    MOST_FLAT_KEY_BYTES = 4096,
    MOST_ALL_KEY_BYTES = 256 << 20 // deep nesting repeats long prefixes: bounds what a small file can blow up to
};

static const json_limits config_limits = {.objects = 1000000, .arrays = 1000000, .values = 8000000};

typedef struct flattener {
    manifest *m;
    strbuf key; // of the value at hand
    uint64_t all_key_bytes;
    error_ctx *err;
} flattener;

static status_code flatten(flattener *f, const json_t *v, int depth);

// Append a value under the current key.
static status_code emit(flattener *f, meta_value v) {
    if (f->key.oom) {
        return error_no_memory(f->err, "a metadata key");
    }
    str key = str_make(f->key.ptr, f->key.len);
    const char *fault = name_fault(key, MOST_FLAT_KEY_BYTES);
    if (fault) {
        return error_set(f->err, STATUS_CORRUPT, "flattened key number %" PRId64 " (%zu bytes) %s", f->m->keys.n,
                         key.len, fault);
    }
    f->all_key_bytes += key.len;
    if (f->all_key_bytes > MOST_ALL_KEY_BYTES) {
        return error_set(f->err, STATUS_LIMIT, "flattened keys take more than %d bytes", MOST_ALL_KEY_BYTES);
    }
    v.key = arena_strndup(f->m->memory, key.ptr, key.len);
    v.offset = ERROR_NO_OFFSET;
    return v.key ? meta_append(&f->m->keys, &v, f->err) : error_no_memory(f->err, "a metadata key");
}

static double real_of(const json_t *v) {
    double x = json_number_value(v);
    return fabs(x) == JSON_INFINITY ? copysign(INFINITY, x) : x;
}

static bool copy_string(flattener *f, const json_t *v, str *out) {
    size_t len = json_string_length(v);
    const char *text = arena_strndup(f->m->memory, json_string_value(v), len);
    *out = str_make(text, len);
    return text != NULL;
}

// How the elements can be stored together; false when they are no array of scalars of one kind.
static bool common_storage(const json_t *array, meta_storage *storage) {
    size_t n = json_array_size(array), n_integers = 0, n_reals = 0, n_flags = 0, n_strings = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(array, i);
        n_integers += json_is_integer(e);
        n_reals += json_is_real(e);
        n_flags += json_is_boolean(e);
        n_strings += json_is_string(e);
    }
    *storage = n == 0            ? STORE_NONE
               : n_integers == n ? STORE_I64
               : n_flags == n    ? STORE_BOOL
               : n_strings == n  ? STORE_STRING
                                 : STORE_F64;
    return n == 0 || n_flags == n || n_strings == n || n_integers + n_reals == n;
}

static status_code emit_array(flattener *f, const json_t *array, meta_storage storage) {
    size_t n = json_array_size(array);
    size_t element_bytes = storage == STORE_STRING ? sizeof(str) : (size_t)meta_storage_bytes(storage);
    char *elements = arena_alloc_array(f->m->memory, n, element_bytes ? element_bytes : 1);
    if (!elements) {
        return error_no_memory(f->err, "a metadata array");
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(array, i);
        if (storage == STORE_I64) {
            ((int64_t *)elements)[i] = json_integer_value(e);
        } else if (storage == STORE_F64) {
            ((double *)elements)[i] = real_of(e);
        } else if (storage == STORE_BOOL) {
            elements[i] = json_is_true(e);
        } else if (!copy_string(f, e, &((str *)elements)[i])) {
            return error_no_memory(f->err, "a metadata string");
        }
    }
    return emit(f, (meta_value){.type = META_ARRAY, .storage = storage, .len = (int64_t)n, .elements = elements});
}

// Flatten v under the current key plus ".part".
static status_code flatten_part(flattener *f, str part, const json_t *v, int depth) {
    size_t len = f->key.len;
    if (len > MOST_FLAT_KEY_BYTES) {
        return error_set(f->err, STATUS_LIMIT, "a flattened key is longer than %d bytes", MOST_FLAT_KEY_BYTES);
    }
    if (len > 0) {
        strbuf_append_char(&f->key, '.');
    }
    strbuf_append_str(&f->key, part);
    RETURN_IF_ERROR(flatten(f, v, depth + 1));
    f->key.len = len;
    return STATUS_OK;
}

static status_code flatten_array(flattener *f, const json_t *array, int depth) {
    meta_storage storage;
    if (common_storage(array, &storage)) {
        return emit_array(f, array, storage);
    }
    size_t n = json_array_size(array), len = f->key.len;
    strbuf_append_c(&f->key, ".#");
    RETURN_IF_ERROR(emit(f, (meta_value){.type = META_INT, .whole = (int64_t)n}));
    f->key.len = len;
    for (size_t i = 0; i < n; i++) {
        char part[24];
        int part_len = snprintf(part, sizeof part, "%zu", i);
        RETURN_IF_ERROR(flatten_part(f, str_make(part, (size_t)part_len), json_array_get(array, i), depth));
    }
    return STATUS_OK;
}

static status_code flatten_object(flattener *f, const json_t *object, int depth) {
    void *i = json_object_iter((json_t *)object); // insertion order
    for (; i; i = json_object_iter_next((json_t *)object, i)) {
        str part = str_make(json_object_iter_key(i), json_object_iter_key_len(i));
        RETURN_IF_ERROR(flatten_part(f, part, json_object_iter_value(i), depth));
    }
    return STATUS_OK;
}

static status_code flatten(flattener *f, const json_t *v, int depth) {
    if (depth > MOST_DEPTH) {
        return error_set(f->err, STATUS_LIMIT, "JSON is nested deeper than %d levels", MOST_DEPTH);
    }
    str text;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return flatten_object(f, v, depth);
    case JSON_ARRAY:
        return flatten_array(f, v, depth);
    case JSON_STRING:
        return copy_string(f, v, &text) ? emit(f, (meta_value){.type = META_STRING, .text = text})
                                        : error_no_memory(f->err, "a metadata string");
    case JSON_INTEGER:
        return emit(f, (meta_value){.type = META_INT, .whole = json_integer_value(v)});
    case JSON_REAL:
        return emit(f, (meta_value){.type = META_FLOAT, .real = real_of(v)});
    case JSON_TRUE:
    case JSON_FALSE:
        return emit(f, (meta_value){.type = META_BOOL, .flag = json_is_true(v)});
    case JSON_NULL:
        break;
    }
    return STATUS_OK;
}

static status_code read_config(manifest *m, const char *name, const char *prefix, bool is_required, error_ctx *err) {
    const char *path = arena_printf(m->memory, "%s/%s", m->folder, name);
    if (!path) {
        return error_no_memory(err, "a path");
    }
    if (!is_required && access(path, F_OK) != 0) {
        return STATUS_OK;
    }
    json_t *top;
    RETURN_IF_ERROR(json_read_file(path, MOST_CONFIG_BYTES, &config_limits, &top, err));
    flattener f = {.m = m, .err = err};
    strbuf_append_c(&f.key, prefix);
    status_code code = flatten(&f, top, 0);
    if (code != STATUS_OK) {
        error_object(err, "%s", path);
    }
    strbuf_free(&f.key);
    json_decref(top);
    return code;
}

status_code hf_config_read(manifest *m, bool is_required, error_ctx *err) {
    RETURN_IF_ERROR(read_config(m, "config.json", "", is_required, err));
    RETURN_IF_ERROR(read_config(m, "generation_config.json", "generation_config", false, err));
    RETURN_IF_ERROR(read_config(m, "tokenizer_config.json", "tokenizer_config", false, err));
    return meta_finish(&m->keys, err);
}
