// GGUF v2 and v3: header, metadata, tensor table, split files.
//
// The reader walks the header once with a cursor that checks every length against the file's real size before it is
// used; no count is believed that could not fit into the bytes that are left, so memory stays within a small multiple
// of the file. Metadata values point into the map (string arrays get one table of views, so that element i is found
// in constant time); names are copied, because the file does not terminate them. Tensor data is not touched.
//
//   magic "GGUF" | version u32 | n_tensors i64 | n_kv i64
//   n_kv x { key string, type u32, value }                    string = length u64, bytes
//   n_tensors x { name string, n_dims u32, ne i64[n_dims] innermost first, type u32, offset u64 }
//   padding to general.alignment (default 32) | data; offsets count from here, tensors follow each other, padded
#include "formats/manifest_int.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they stand in the file");

enum {
    HEADER_BYTES = 24,
    DEFAULT_ALIGNMENT = 32,
    GGUF_MAX_DIMS = 4,
    MIN_KEY_VALUE_BYTES = 8 + 1 + 4 + 1,       // shortest key, type, one-byte value
    MIN_TENSOR_ENTRY_BYTES = 8 + 1 + 4 + 4 + 8 // shortest name, no dimensions
};

typedef struct cursor {
    const uint8_t *data;
    uint64_t bytes, at;
    const char *path;
    error_ctx *err;
} cursor;

// What one file of a (possibly split) checkpoint says.
typedef struct part {
    int file_index;
    uint32_t version;
    meta *keys; // where its metadata went
    int64_t n_tensors;
} part;

static uint64_t bytes_left(const cursor *c) {
    return c->bytes - c->at;
}

static status_code corrupt_at(cursor *c, uint64_t offset, const char *message) {
    return error_set_offset(c->err, STATUS_CORRUPT, offset, "%s", message);
}

// Take `bytes` bytes; *p points at them.
static status_code take(cursor *c, uint64_t bytes, const char *what, const uint8_t **p) {
    if (bytes > bytes_left(c)) {
        return error_set_offset(c->err, STATUS_CORRUPT, c->at,
                                "the file ends within %s: %" PRIu64 " bytes are needed, %" PRIu64 " are left", what,
                                bytes, bytes_left(c));
    }
    *p = c->data + c->at;
    c->at += bytes;
    return STATUS_OK;
}

static status_code take_u32(cursor *c, const char *what, uint32_t *out) {
    const uint8_t *p;
    RETURN_IF_ERROR(take(c, sizeof *out, what, &p));
    memcpy(out, p, sizeof *out);
    return STATUS_OK;
}

static status_code take_u64(cursor *c, const char *what, uint64_t *out) {
    const uint8_t *p;
    RETURN_IF_ERROR(take(c, sizeof *out, what, &p));
    memcpy(out, p, sizeof *out);
    return STATUS_OK;
}

static status_code take_string(cursor *c, const char *what, str *out) {
    uint64_t len;
    const uint8_t *p;
    RETURN_IF_ERROR(take_u64(c, what, &len));
    RETURN_IF_ERROR(take(c, len, what, &p));
    *out = str_make((const char *)p, len);
    return STATUS_OK;
}

// A key or tensor name: checked, copied and terminated.
static status_code take_name(cursor *c, arena *memory, const char *what, int64_t number, size_t most_bytes,
                             const char **out) {
    uint64_t start = c->at;
    str name;
    RETURN_IF_ERROR(take_string(c, what, &name));
    const char *fault = name_fault(name, most_bytes);
    if (fault) {
        return error_set_offset(c->err, STATUS_CORRUPT, start, "%s number %" PRId64 " %s (%zu bytes)", what, number,
                                fault, name.len);
    }
    *out = arena_strndup(memory, name.ptr, name.len);
    return *out ? STATUS_OK : error_no_memory(c->err, what);
}

static status_code take_array(cursor *c, arena *memory, meta_value *v) {
    uint64_t start = c->at;
    uint32_t type;
    uint64_t count;
    RETURN_IF_ERROR(take_u32(c, "an array's element type", &type));
    RETURN_IF_ERROR(take_u64(c, "an array's length", &count));
    if (type >= STORE_COUNT || type == STORE_ARRAY) {
        return error_set_offset(c->err, STATUS_CORRUPT, start, "array elements of type %" PRIu32 " (%s)", type,
                                type == STORE_ARRAY ? "arrays cannot nest" : "unknown");
    }
    // A string takes at least its length field.
    uint64_t element_bytes = type == STORE_STRING ? 8 : (uint64_t)meta_storage_bytes((meta_storage)type);
    if (count > bytes_left(c) / element_bytes) {
        return error_set_offset(c->err, STATUS_CORRUPT, start + 4,
                                "an array of %" PRIu64 " elements does not fit into the %" PRIu64 " bytes left", count,
                                bytes_left(c));
    }
    v->type = META_ARRAY;
    v->storage = (meta_storage)type;
    v->len = (int64_t)count;
    if (type != STORE_STRING) {
        const uint8_t *p;
        RETURN_IF_ERROR(take(c, count * element_bytes, "an array", &p));
        v->elements = p;
        return STATUS_OK;
    }
    str *views = arena_alloc(memory, count * sizeof *views);
    if (!views) {
        return error_no_memory(c->err, "an array of strings");
    }
    for (uint64_t i = 0; i < count; i++) {
        RETURN_IF_ERROR(take_string(c, "a string of an array", &views[i]));
    }
    v->elements = views;
    return STATUS_OK;
}

static status_code take_value(cursor *c, arena *memory, uint32_t type, meta_value *v) {
    if (type == STORE_STRING) {
        v->type = META_STRING;
        return take_string(c, "a string value", &v->text);
    }
    if (type == STORE_ARRAY) {
        return take_array(c, memory, v);
    }
    if (type >= STORE_COUNT) {
        return error_set_offset(c->err, STATUS_CORRUPT, c->at - 4, "value type %" PRIu32 " is unknown", type);
    }
    const uint8_t *p;
    RETURN_IF_ERROR(take(c, (uint64_t)meta_storage_bytes((meta_storage)type), "a value", &p));
    meta_value_load(v, (meta_storage)type, p);
    return STATUS_OK;
}

static status_code read_metadata(cursor *c, arena *memory, int64_t n_kv, meta *keys) {
    for (int64_t i = 0; i < n_kv; i++) {
        meta_value v = {.offset = c->at};
        RETURN_IF_ERROR(take_name(c, memory, "metadata key", i, MOST_KEY_BYTES, &v.key));
        uint32_t type;
        status_code code = take_u32(c, "a value's type", &type);
        if (code == STATUS_OK) {
            code = take_value(c, memory, type, &v);
        }
        if (code != STATUS_OK) {
            error_object(c->err, "%s: key %s", c->path, v.key);
            return code;
        }
        RETURN_IF_ERROR(meta_append(keys, &v, c->err));
    }
    return meta_finish(keys, c->err);
}

// Types that exist, but that this build cannot decode: an error should say more than a number.
static const char *foreign_type_name(uint32_t type) {
    static const char *const names[] = {
        [4] = "Q4_2",    [5] = "Q4_3",        [9] = "Q8_1",        [15] = "Q8_K",       [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS",    [19] = "IQ1_S",      [21] = "IQ3_S",      [22] = "IQ2_S",
        [29] = "IQ1_M",  [31] = "Q4_0_4_4",   [32] = "Q4_0_4_8",   [33] = "Q4_0_8_8",   [34] = "TQ1_0",
        [35] = "TQ2_0",  [36] = "IQ4_NL_4_4", [37] = "IQ4_NL_4_8", [38] = "IQ4_NL_8_8", [39] = "MXFP4",
        [40] = "NVFP4",  [41] = "Q1_0",       [42] = "Q2_0",
    };
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

// Type, shape and byte count of a tensor entry whose name is read. Dimensions are reversed here.
static status_code take_tensor_shape(cursor *c, manifest_tensor *t) {
    uint64_t dims_at = c->at;
    uint32_t n_dims;
    RETURN_IF_ERROR(take_u32(c, "the number of dimensions", &n_dims));
    if (n_dims > GGUF_MAX_DIMS) {
        return error_set_offset(c->err, STATUS_CORRUPT, dims_at, "%" PRIu32 " dimensions, at most %d are allowed",
                                n_dims, GGUF_MAX_DIMS);
    }
    t->n_dims = (int)n_dims;
    for (int d = 0; d < MANIFEST_MAX_DIMS; d++) {
        t->shape[d] = 1;
    }
    for (int d = t->n_dims - 1; d >= 0; d--) {
        uint64_t size;
        RETURN_IF_ERROR(take_u64(c, "a dimension", &size));
        if (size > INT64_MAX) {
            return error_set_offset(c->err, STATUS_CORRUPT, c->at - 8, "dimension %d is negative (%" PRId64 ")",
                                    t->n_dims - 1 - d, (int64_t)size);
        }
        t->shape[d] = (int64_t)size;
    }
    uint64_t type_at = c->at;
    uint32_t number;
    RETURN_IF_ERROR(take_u32(c, "the type", &number));
    t->type = dtype_from_gguf(number);
    const dtype_info *info = dtype_get(t->type);
    if (!info) {
        const char *name = foreign_type_name(number);
        return name ? error_set_offset(c->err, STATUS_UNSUPPORTED, type_at,
                                       "type %s (%" PRIu32 ") is not supported by this build", name, number)
                    : error_set_offset(c->err, STATUS_UNSUPPORTED, type_at, "type number %" PRIu32 " is unknown",
                                       number);
    }
    int64_t columns = t->n_dims ? t->shape[t->n_dims - 1] : 1;
    if (columns % info->block_elements != 0) {
        return error_set_offset(c->err, STATUS_CORRUPT, dims_at,
                                "rows of %" PRId64 " elements are not a multiple of the %d of a %s block", columns,
                                info->block_elements, info->name);
    }
    int64_t elements;
    if (!shape_elements(t->shape, t->n_dims, &elements) || !dtype_bytes(t->type, elements, &t->bytes)) {
        return corrupt_at(c, dims_at, "the product of the dimensions overflows");
    }
    return STATUS_OK;
}

static status_code read_tensor_entry(cursor *c, manifest *m, const part *p, int64_t number) {
    uint64_t start = c->at;
    manifest_tensor t = {.file_index = p->file_index};
    RETURN_IF_ERROR(take_name(c, m->memory, "tensor name", number, MOST_TENSOR_NAME_BYTES, &t.name));
    status_code code = take_tensor_shape(c, &t);
    if (code == STATUS_OK) {
        code = take_u64(c, "the data offset", &t.offset);
    }
    if (code != STATUS_OK) {
        error_object(c->err, "%s: tensor %s", c->path, t.name);
        return code;
    }
    manifest_add_tensor(m, &t, start);
    return STATUS_OK;
}

static status_code find_alignment(cursor *c, const meta *keys, uint64_t *alignment) {
    const meta_value *v = meta_find(keys, "general.alignment");
    *alignment = DEFAULT_ALIGNMENT;
    if (!v) {
        return STATUS_OK;
    }
    int64_t value;
    if (!meta_value_int(v, &value) || value <= 0 || value > UINT32_MAX || (value & (value - 1)) != 0) {
        error_object(c->err, "%s: key general.alignment", c->path);
        return corrupt_at(c, v->offset, "the alignment must be a power of two");
    }
    *alignment = (uint64_t)value;
    return STATUS_OK;
}

// Turn offsets in the data section into file offsets. The format defines each as the padded sum of what stands before:
// demanding exactly that leaves no room for overlaps.
static status_code place_tensors(cursor *c, manifest *m, int64_t first, uint64_t alignment) {
    uint64_t data_start, expected = 0;
    if (!checked_align_u64(c->at, alignment, &data_start)) {
        return corrupt_at(c, c->at, "the data section starts beyond 64 bits");
    }
    for (int64_t i = first; i < m->n_tensors; i++) {
        manifest_tensor *t = &m->tensors[i];
        uint64_t entry = m->entry_offsets[i], start;
        if (t->offset != expected) {
            error_object(c->err, "%s: tensor %s", c->path, t->name);
            const char *fault = t->offset % alignment  ? "is not aligned"
                                : t->offset < expected ? "overlaps the tensor before"
                                                       : "leaves a hole";
            return error_set_offset(c->err, STATUS_CORRUPT, entry,
                                    "data offset %" PRIu64 " %s, %" PRIu64 " was expected (alignment %" PRIu64 ")",
                                    t->offset, fault, expected, alignment);
        }
        if (t->bytes == 0) {
            t->offset = data_start <= c->bytes && expected <= c->bytes - data_start ? data_start + expected : c->bytes;
            continue;
        }
        if (!checked_add_u64(data_start, expected, &start) || !checked_range_u64(start, t->bytes, c->bytes)) {
            error_object(c->err, "%s: tensor %s", c->path, t->name);
            return error_set_offset(c->err, STATUS_CORRUPT, entry,
                                    "%" PRIu64 " bytes at data offset %" PRIu64 " (section starts at %" PRIu64
                                    ") end beyond the file's %" PRIu64 " bytes",
                                    t->bytes, t->offset, data_start, c->bytes);
        }
        t->offset = start;
        // Cannot overflow: the range lies within the file, and the alignment has at most 32 bits.
        checked_align_u64(expected + t->bytes, alignment, &expected);
    }
    return STATUS_OK;
}

static status_code read_counts(cursor *c, part *p, int64_t *n_tensors, int64_t *n_kv) {
    const uint8_t *magic;
    RETURN_IF_ERROR(take(c, 4, "the magic", &magic));
    if (memcmp(magic, "GGUF", 4) != 0) {
        return corrupt_at(c, 0,
                          "not a GGUF file (its first four bytes are not \"GGUF\"); a model is a .gguf or "
                          ".safetensors file or a folder with config.json");
    }
    RETURN_IF_ERROR(take_u32(c, "the version", &p->version));
    if ((p->version & 0xffff) == 0) {
        return error_set_offset(c->err, STATUS_UNSUPPORTED, 4, "the file is in big-endian byte order");
    }
    if (p->version < 2 || p->version > 3) {
        return error_set_offset(c->err, STATUS_UNSUPPORTED, 4, "GGUF version %" PRIu32 ", versions 2 and 3 are read",
                                p->version);
    }
    uint64_t tensors, pairs;
    RETURN_IF_ERROR(take_u64(c, "the tensor count", &tensors));
    RETURN_IF_ERROR(take_u64(c, "the metadata count", &pairs));
    if (tensors > bytes_left(c) / MIN_TENSOR_ENTRY_BYTES) {
        return error_set_offset(c->err, STATUS_CORRUPT, 8,
                                "%" PRIu64 " tensors do not fit into a file of %" PRIu64 " bytes", tensors, c->bytes);
    }
    if (pairs > bytes_left(c) / MIN_KEY_VALUE_BYTES) {
        return error_set_offset(c->err, STATUS_CORRUPT, 16,
                                "%" PRIu64 " metadata pairs do not fit into a file of "
                                "%" PRIu64 " bytes",
                                pairs, c->bytes);
    }
    *n_tensors = (int64_t)tensors;
    *n_kv = (int64_t)pairs;
    return STATUS_OK;
}

// Read the header of file p->file_index; metadata goes to p->keys, tensors to the manifest.
static status_code read_part(manifest *m, part *p, error_ctx *err) {
    const manifest_file *f = &m->files[p->file_index];
    cursor c = {.data = f->data, .bytes = f->bytes, .path = f->path, .err = err};
    int64_t n_kv, first = m->n_tensors;
    status_code code = read_counts(&c, p, &p->n_tensors, &n_kv);
    if (code == STATUS_OK) {
        code = manifest_reserve_tensors(m, (uint64_t)p->n_tensors, err);
    }
    if (code == STATUS_OK) {
        code = read_metadata(&c, m->memory, n_kv, p->keys);
    }
    for (int64_t i = 0; code == STATUS_OK && i < p->n_tensors; i++) {
        code = read_tensor_entry(&c, m, p, i);
    }
    uint64_t alignment;
    if (code == STATUS_OK) {
        code = find_alignment(&c, p->keys, &alignment);
    }
    if (code == STATUS_OK) {
        code = place_tensors(&c, m, first, alignment);
    }
    if (code != STATUS_OK) {
        error_object(err, "%s", f->path);
    }
    return code;
}

// Path of part `number` (from 0) of a split file, from the path of any of its parts:
// <prefix>-00001-of-00003.gguf. NULL when the path has no such form.
static const char *sibling_path(manifest *m, const char *path, int64_t number, int64_t count) {
    enum { SUFFIX_CHARS = 5 + 4 + 5 + 5 }; // 00001 -of- 00003 .gguf
    size_t len = strlen(path);
    if (len < SUFFIX_CHARS + 1 || count > 99999) {
        return NULL;
    }
    const char *suffix = path + len - SUFFIX_CHARS;
    char expected[32];
    snprintf(expected, sizeof expected, "-of-%05d.gguf", (int)count);
    if (suffix[-1] != '-' || strspn(suffix, "0123456789") != 5 || strcmp(suffix + 5, expected) != 0) {
        return NULL;
    }
    return arena_printf(m->memory, "%.*s%05d%s", (int)(len - SUFFIX_CHARS), path, (int)number + 1, expected);
}

// split.no and split.count of a part must be what its file name says.
static status_code check_part(const meta *keys, int64_t number, int64_t count, error_ctx *err) {
    int64_t found_number = -1, found_count = -1;
    meta_int(keys, "split.no", &found_number);
    meta_int(keys, "split.count", &found_count);
    if (found_number != number || found_count != count) {
        return error_set(err, STATUS_CORRUPT,
                         "split.no %" PRId64 " of split.count %" PRId64 " where %" PRId64 " of %" PRId64
                         " was expected (-1: absent)",
                         found_number, found_count, number, count);
    }
    return STATUS_OK;
}

// Forget the tensors, metadata and files read so far.
static void rewind_manifest(manifest *m) {
    for (int i = 0; i < m->n_files; i++) {
        file_map_close(&m->files[i].map);
    }
    m->n_files = 0;
    m->n_tensors = 0;
    meta_release(&m->keys);
}

// One part by its number; only the first part's metadata is kept, the others repeat at most the split keys.
static status_code open_part(manifest *m, const char *path, int64_t number, int64_t count, error_ctx *err) {
    meta local = {0};
    part p = {.keys = number == 0 ? &m->keys : &local};
    RETURN_IF_ERROR(manifest_add_file(m, path, &p.file_index, err));
    status_code code = read_part(m, &p, err);
    if (code == STATUS_OK) {
        code = check_part(p.keys, number, count, err);
    }
    if (code == STATUS_OK && number > 0 && (int)p.version != m->gguf_version) {
        code = error_set(err, STATUS_CORRUPT, "GGUF version %" PRIu32 ", but the first part has version %d", p.version,
                         m->gguf_version);
    }
    if (code != STATUS_OK) {
        error_object(err, "%s", path);
    } else if (number == 0) {
        m->gguf_version = (int)p.version;
    }
    meta_release(&local);
    return code;
}

static status_code read_split(manifest *m, int64_t count, error_ctx *err) {
    const char *opened = m->files[0].path;
    if (!m->files[0].map.data || !sibling_path(m, opened, 0, count)) {
        error_object(err, "%s", opened);
        return error_set(err, STATUS_INVALID,
                         "one of %" PRId64 " parts of a split file, but the name does not end in -00001-of-%05" PRId64
                         ".gguf: the other parts cannot be found",
                         count, count);
    }
    rewind_manifest(m);
    for (int64_t number = 0; number < count; number++) {
        const char *path = sibling_path(m, opened, number, count);
        if (!path) {
            return error_no_memory(err, "a path");
        }
        RETURN_IF_ERROR(open_part(m, path, number, count, err));
    }
    int64_t total;
    if (meta_int(&m->keys, "split.tensors.count", &total) && total != m->n_tensors) {
        error_object(err, "%s: key split.tensors.count", m->files[0].path);
        return error_set(err, STATUS_CORRUPT, "%" PRId64 " tensors are announced, the parts hold %" PRId64, total,
                         m->n_tensors);
    }
    return STATUS_OK;
}

status_code gguf_read(manifest *m, error_ctx *err) {
    part p = {.file_index = 0, .keys = &m->keys};
    RETURN_IF_ERROR(read_part(m, &p, err));
    m->gguf_version = (int)p.version;
    int64_t count;
    if (meta_int(&m->keys, "split.count", &count) && count > 1) {
        return read_split(m, count, err);
    }
    return STATUS_OK;
}
