// safetensors: one file, or shards under an index.
//
//   header length H u64 | H bytes of JSON: name -> {dtype, shape, data_offsets [begin, end)} | data buffer
//
// The header is parsed with jansson under limits; ranges are checked as the reference reader does: sorted by begin they
// must tile the buffer from 0 to the end of the file without hole or overlap. Data is not touched. Names are copied
// into the manifest's arena, the JSON tree is gone when the reader returns.
#include "formats/json_read_int.h"
#include "formats/manifest_int.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    LENGTH_BYTES = 8,
    MOST_HEADER_BYTES = 100000000, // the reference reader's limit
    MOST_INDEX_BYTES = 100000000,
    MOST_SHARD_NAME_BYTES = 255
};

// A million tensors of one object, two arrays and up to eleven values each.
static const json_limits header_limits = {.objects = 1000002, .arrays = 2000000, .values = 12000000};

// What is being read, for messages.
typedef struct header {
    const manifest_file *file;
    int file_index;
    str text;            // the JSON
    uint64_t data_start; // LENGTH_BYTES + H
    uint64_t buffer_bytes;
    error_ctx *err;
} header;

// Where a key stands in the header: only needed for messages, so that a search will do.
static uint64_t key_offset(const header *h, const char *key) {
    size_t len = strlen(key);
    str rest = h->text;
    for (;;) {
        ptrdiff_t at = str_find(rest, str_make(key, len));
        if (at < 0) {
            return LENGTH_BYTES; // written with escapes
        }
        size_t start = (size_t)(rest.ptr - h->text.ptr) + (size_t)at, end = start + len;
        if (start > 0 && end < h->text.len && h->text.ptr[start - 1] == '"' && h->text.ptr[end] == '"') {
            return LENGTH_BYTES + start - 1;
        }
        rest = str_make(h->text.ptr + start + 1, h->text.len - start - 1);
    }
}

static status_code tensor_error(const header *h, const char *name, status_code code, const char *message) {
    error_object(h->err, "%s: tensor %s", h->file->path, name);
    return error_set_offset(h->err, code, key_offset(h, name), "%s", message);
}

static status_code read_dtype(const header *h, const char *key, const json_t *value, dtype *type) {
    if (!json_is_string(value)) {
        return tensor_error(h, key, STATUS_CORRUPT, "dtype is missing or not a string");
    }
    const char *name = json_string_value(value);
    *type = dtype_from_name(name);
    const dtype_info *info = dtype_get(*type);
    // GGUF's block formats have no place here, and the names are written in capitals.
    if (!info || info->block_elements != 1 || strcmp(info->name, name) != 0) {
        static const char *const foreign[] = {"F4", "F6_E2M3", "F6_E3M2", "C64"};
        for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
            if (strcmp(foreign[i], name) == 0) {
                error_object(h->err, "%s: tensor %s", h->file->path, key);
                return error_set_offset(h->err, STATUS_UNSUPPORTED, key_offset(h, key),
                                        "dtype %s is not supported by this build", name);
            }
        }
        bool is_printable = name_fault(str_from(name), 32) == NULL;
        error_object(h->err, "%s: tensor %s", h->file->path, key);
        return error_set_offset(h->err, STATUS_UNSUPPORTED, key_offset(h, key), "dtype \"%s\" is unknown",
                                is_printable ? name : "?");
    }
    return STATUS_OK;
}

static status_code read_shape(const header *h, const char *key, const json_t *value, manifest_tensor *t) {
    if (!json_is_array(value)) {
        return tensor_error(h, key, STATUS_CORRUPT, "shape is missing or not an array");
    }
    size_t n = json_array_size(value);
    if (n > MANIFEST_MAX_DIMS) {
        error_object(h->err, "%s: tensor %s", h->file->path, key);
        return error_set_offset(h->err, STATUS_LIMIT, key_offset(h, key), "%zu dimensions, at most %d are read", n,
                                MANIFEST_MAX_DIMS);
    }
    t->n_dims = (int)n;
    for (size_t d = 0; d < MANIFEST_MAX_DIMS; d++) {
        const json_t *size = d < n ? json_array_get(value, d) : NULL;
        if (d < n && (!json_is_integer(size) || json_integer_value(size) < 0)) {
            return tensor_error(h, key, STATUS_CORRUPT, "a dimension is negative or not an integer");
        }
        t->shape[d] = d < n ? json_integer_value(size) : 1;
    }
    return STATUS_OK;
}

// data_offsets must be a range of the buffer, as long as dtype and shape say.
static status_code read_range(const header *h, const char *key, const json_t *value, manifest_tensor *t) {
    const json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(second)) {
        return tensor_error(h, key, STATUS_CORRUPT, "data_offsets is missing or not a pair of integers");
    }
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    int64_t elements;
    uint64_t bytes;
    if (!shape_elements(t->shape, t->n_dims, &elements) || !dtype_bytes(t->type, elements, &bytes)) {
        return tensor_error(h, key, STATUS_CORRUPT, "the product of the dimensions overflows");
    }
    if (begin < 0 || end < begin || (uint64_t)end > h->buffer_bytes || (uint64_t)(end - begin) != bytes) {
        error_object(h->err, "%s: tensor %s", h->file->path, key);
        return error_set_offset(h->err, STATUS_CORRUPT, key_offset(h, key),
                                "data_offsets [%" PRId64 ", %" PRId64 ") in a buffer of %" PRIu64
                                " bytes, dtype and shape need %" PRIu64 " bytes",
                                begin, end, h->buffer_bytes, bytes);
    }
    t->offset = (uint64_t)begin;
    t->bytes = bytes;
    return STATUS_OK;
}

static status_code read_entry(const header *h, manifest *m, str key, const json_t *value, manifest_tensor *t) {
    const char *fault = name_fault(key, MOST_TENSOR_NAME_BYTES);
    if (fault) {
        return error_set_offset(h->err, STATUS_CORRUPT, LENGTH_BYTES, "a tensor name of %zu bytes %s", key.len, fault);
    }
    const char *name = arena_strndup(m->memory, key.ptr, key.len);
    if (!name) {
        return error_no_memory(h->err, "a tensor name");
    }
    if (!json_is_object(value)) {
        return tensor_error(h, name, STATUS_CORRUPT, "the entry is not an object");
    }
    *t = (manifest_tensor){.name = name, .file_index = h->file_index};
    RETURN_IF_ERROR(read_dtype(h, name, json_object_get(value, "dtype"), &t->type));
    RETURN_IF_ERROR(read_shape(h, name, json_object_get(value, "shape"), t));
    return read_range(h, name, json_object_get(value, "data_offsets"), t);
}

static status_code check_metadata(const header *h, const json_t *value) {
    void *i = json_is_object(value) ? json_object_iter((json_t *)value) : NULL;
    bool is_valid = json_is_object(value);
    for (; i; i = json_object_iter_next((json_t *)value, i)) {
        is_valid = is_valid && json_is_string(json_object_iter_value(i));
    }
    return is_valid ? STATUS_OK
                    : error_set_offset(h->err, STATUS_CORRUPT, key_offset(h, "__metadata__"),
                                       "__metadata__ does not map strings to strings");
}

static int compare_ranges(const void *a, const void *b) {
    const manifest_tensor *x = a, *y = b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    if (x->bytes != y->bytes) { // empty tensors stand before the one that begins at the same place
        return x->bytes < y->bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

// Ranges must tile the buffer; then tensors go to the manifest with offsets from the start of the file.
static status_code place_tensors(const header *h, manifest *m, manifest_tensor *tensors, size_t n) {
    if (n > 0) {
        qsort(tensors, n, sizeof *tensors, compare_ranges);
    }
    uint64_t expected = 0;
    for (size_t i = 0; i < n; i++) {
        manifest_tensor *t = &tensors[i];
        if (t->offset != expected) {
            error_object(h->err, "%s: tensor %s", h->file->path, t->name);
            return error_set_offset(h->err, STATUS_CORRUPT, key_offset(h, t->name),
                                    "data begins at %" PRIu64 " of the buffer, which %s; %" PRIu64 " was expected",
                                    t->offset, t->offset < expected ? "overlaps another tensor" : "leaves a hole",
                                    expected);
        }
        expected += t->bytes; // within the buffer, as each range is
        t->offset += h->data_start;
        manifest_add_tensor(m, t, LENGTH_BYTES);
    }
    if (expected != h->buffer_bytes) {
        return error_set_offset(h->err, STATUS_CORRUPT, h->data_start + expected,
                                "%" PRIu64 " bytes follow the last tensor", h->buffer_bytes - expected);
    }
    return STATUS_OK;
}

static status_code read_entries(const header *h, manifest *m, const json_t *top) {
    size_t room = json_object_size(top), n = 0;
    RETURN_IF_ERROR(manifest_reserve_tensors(m, room, h->err));
    manifest_tensor *tensors = calloc(room ? room : 1, sizeof *tensors);
    if (!tensors) {
        return error_no_memory(h->err, "the tensor table");
    }
    status_code code = STATUS_OK;
    void *i = json_object_iter((json_t *)top);
    for (; i && code == STATUS_OK; i = json_object_iter_next((json_t *)top, i)) {
        str key = str_make(json_object_iter_key(i), json_object_iter_key_len(i));
        if (str_equal(key, STR("__metadata__"))) {
            code = check_metadata(h, json_object_iter_value(i));
        } else {
            code = read_entry(h, m, key, json_object_iter_value(i), &tensors[n]);
            n++;
        }
    }
    if (code == STATUS_OK) {
        code = place_tensors(h, m, tensors, n);
    }
    free(tensors);
    return code;
}

static status_code read_header(manifest *m, header *h) {
    const manifest_file *f = h->file;
    uint64_t length;
    if (f->bytes < LENGTH_BYTES) {
        return error_set_offset(h->err, STATUS_CORRUPT, 0, "the file has %" PRIu64 " bytes, a header length needs %d",
                                f->bytes, LENGTH_BYTES);
    }
    memcpy(&length, f->data, sizeof length);
    if (length > f->bytes - LENGTH_BYTES) {
        return error_set_offset(h->err, STATUS_CORRUPT, 0,
                                "a header of %" PRIu64 " bytes does not fit into a file of %" PRIu64, length, f->bytes);
    }
    if (length > MOST_HEADER_BYTES) {
        return error_set_offset(h->err, STATUS_LIMIT, 0, "a header of %" PRIu64 " bytes, at most %d are read", length,
                                MOST_HEADER_BYTES);
    }
    h->text = str_make((const char *)f->data + LENGTH_BYTES, length);
    h->data_start = LENGTH_BYTES + length;
    h->buffer_bytes = f->bytes - h->data_start;
    if (length == 0 || h->text.ptr[0] != '{') {
        return error_set_offset(h->err, STATUS_CORRUPT, LENGTH_BYTES,
                                "not a safetensors file: the header does not begin with '{'");
    }
    json_t *top;
    RETURN_IF_ERROR(json_read_text(h->text, LENGTH_BYTES, &header_limits, &top, h->err));
    status_code code = read_entries(h, m, top);
    json_decref(top);
    return code;
}

status_code safetensors_read(manifest *m, int file_index, error_ctx *err) {
    header h = {.file = &m->files[file_index], .file_index = file_index, .err = err};
    status_code code = read_header(m, &h);
    if (code != STATUS_OK) {
        error_object(err, "%s", h.file->path);
    }
    return code;
}

// ---- shards ----

typedef struct shard_list {
    const char **names; // borrowed from the index
    size_t n;
} shard_list;

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The distinct file names of weight_map in order. Names are checked: an index must not reach out of its folder.
static status_code list_shards(const json_t *map, shard_list *list, error_ctx *err) {
    size_t n = 0;
    list->names = calloc(json_object_size(map) ? json_object_size(map) : 1, sizeof *list->names);
    if (!list->names) {
        return error_no_memory(err, "the shard list");
    }
    void *i = json_object_iter((json_t *)map);
    for (; i; i = json_object_iter_next((json_t *)map, i)) {
        const char *name = json_string_value(json_object_iter_value(i));
        size_t len = json_string_length(json_object_iter_value(i));
        if (!name || name_fault(str_make(name, len), MOST_SHARD_NAME_BYTES) || strchr(name, '/') ||
            !str_ends_with(str_from(name), STR(".safetensors"))) {
            const char *key = json_object_iter_key(i);
            bool is_printable = name_fault(str_from(key), MOST_TENSOR_NAME_BYTES) == NULL;
            return error_set(err, STATUS_CORRUPT, "weight_map names no plain .safetensors file for tensor %.600s",
                             is_printable ? key : "?");
        }
        list->names[n++] = name;
    }
    qsort(list->names, n, sizeof *list->names, compare_names);
    for (size_t k = 0; k < n; k++) {
        if (list->n == 0 || strcmp(list->names[list->n - 1], list->names[k]) != 0) {
            list->names[list->n++] = list->names[k];
        }
    }
    return STATUS_OK;
}

static status_code open_shards(manifest *m, const shard_list *list, error_ctx *err) {
    for (size_t i = 0; i < list->n; i++) {
        const char *path = arena_printf(m->memory, "%s/%s", m->folder, list->names[i]);
        if (!path) {
            return error_no_memory(err, "a path");
        }
        int file_index;
        RETURN_IF_ERROR(manifest_add_file(m, path, &file_index, err));
        RETURN_IF_ERROR(safetensors_read(m, file_index, err));
    }
    return STATUS_OK;
}

// A tensor must stand in the shard that the map names for it, and every mapped tensor must be there. Tensors that the
// map does not know are kept: that is how extra heads arrive.
static status_code check_map(const manifest *m, const json_t *map, size_t *n_mapped, error_ctx *err) {
    *n_mapped = 0;
    for (int64_t i = 0; i < m->n_tensors; i++) {
        const manifest_tensor *t = &m->tensors[i];
        const char *path = m->files[t->file_index].path;
        const char *shard = json_string_value(json_object_get(map, t->name));
        if (shard && strcmp(strrchr(path, '/') + 1, shard) != 0) {
            error_object(err, "%s: tensor %s", path, t->name);
            return error_set(err, STATUS_CORRUPT, "the index says that this tensor is in %s", shard);
        }
        *n_mapped += shard != NULL;
    }
    return STATUS_OK;
}

// Name the first tensor of the map that no shard holds.
static status_code report_missing(manifest *m, const json_t *map, error_ctx *err) {
    RETURN_IF_ERROR(manifest_finish(m, err));
    void *i = json_object_iter((json_t *)map);
    while (i && manifest_tensor_find(m, json_object_iter_key(i))) {
        i = json_object_iter_next((json_t *)map, i);
    }
    const char *name = i ? json_object_iter_key(i) : "";
    bool is_printable = name_fault(str_from(name), MOST_TENSOR_NAME_BYTES) == NULL;
    return error_set(err, STATUS_CORRUPT, "tensor %s is not in %s", is_printable ? name : "?",
                     i ? json_string_value(json_object_iter_value(i)) : "any shard");
}

static status_code read_shards(manifest *m, const json_t *map, error_ctx *err) {
    shard_list list = {0};
    status_code code = list_shards(map, &list, err);
    if (code == STATUS_OK) {
        code = open_shards(m, &list, err);
    }
    free(list.names);
    if (code != STATUS_OK) {
        return code;
    }
    size_t n_mapped;
    RETURN_IF_ERROR(check_map(m, map, &n_mapped, err));
    return n_mapped == json_object_size(map) ? STATUS_OK : report_missing(m, map, err);
}

status_code safetensors_read_sharded(manifest *m, const char *index_path, error_ctx *err) {
    json_t *top;
    RETURN_IF_ERROR(json_read_file(index_path, MOST_INDEX_BYTES, &header_limits, &top, err));
    const json_t *map = json_object_get(top, "weight_map");
    status_code code = json_is_object(map) ? read_shards(m, map, err)
                                           : error_set(err, STATUS_CORRUPT, "weight_map is missing or not an object");
    json_decref(top);
    if (code != STATUS_OK) {
        error_object(err, "%s", index_path);
    }
    return code;
}
