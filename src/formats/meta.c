// The metadata table: typed values, conversions that refuse to lie, lookup by key.
#include "formats/meta_int.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    meta_type type;
    int bytes;
} storages[STORE_COUNT + 1] = {
    [STORE_U8] = {META_UINT, 1},     [STORE_I8] = {META_INT, 1},    [STORE_U16] = {META_UINT, 2},
    [STORE_I16] = {META_INT, 2},     [STORE_U32] = {META_UINT, 4},  [STORE_I32] = {META_INT, 4},
    [STORE_F32] = {META_FLOAT, 4},   [STORE_BOOL] = {META_BOOL, 1}, [STORE_STRING] = {META_STRING, 0},
    [STORE_ARRAY] = {META_ARRAY, 0}, [STORE_U64] = {META_UINT, 8},  [STORE_I64] = {META_INT, 8},
    [STORE_F64] = {META_FLOAT, 8},   [STORE_NONE] = {META_NONE, 0},
};

int meta_storage_bytes(meta_storage storage) {
    return storages[storage].bytes;
}

// One case a width: memcpy keeps unaligned reads defined.
#define LOAD(kind, p)                                                                                                  \
    (__extension__({                                                                                                   \
        kind value_;                                                                                                   \
        memcpy(&value_, (p), sizeof value_);                                                                           \
        value_;                                                                                                        \
    }))

void meta_value_load(meta_value *v, meta_storage storage, const void *p) {
    v->type = storages[storage].type;
    switch (storage) {
    case STORE_U8:
        v->natural = LOAD(uint8_t, p);
        break;
    case STORE_U16:
        v->natural = LOAD(uint16_t, p);
        break;
    case STORE_U32:
        v->natural = LOAD(uint32_t, p);
        break;
    case STORE_U64:
        v->natural = LOAD(uint64_t, p);
        break;
    case STORE_I8:
        v->whole = LOAD(int8_t, p);
        break;
    case STORE_I16:
        v->whole = LOAD(int16_t, p);
        break;
    case STORE_I32:
        v->whole = LOAD(int32_t, p);
        break;
    case STORE_I64:
        v->whole = LOAD(int64_t, p);
        break;
    case STORE_F32:
        v->real = (double)LOAD(float, p);
        break;
    case STORE_F64:
        v->real = LOAD(double, p);
        break;
    case STORE_BOOL:
        v->flag = LOAD(uint8_t, p) != 0;
        break;
    default:
        v->type = META_NONE;
        break;
    }
}

#undef LOAD

static const char *key_at(const void *context, int64_t item) {
    return ((const meta *)context)->values[item].key;
}

status_code meta_append(meta *m, const meta_value *v, error_ctx *err) {
    if (m->n == m->cap) {
        int64_t cap = m->cap ? 2 * m->cap : 64;
        meta_value *values = reallocarray(m->values, (size_t)cap, sizeof *values);
        if (!values) {
            return error_no_memory(err, "metadata");
        }
        m->values = values;
        m->cap = cap;
    }
    m->values[m->n++] = *v;
    return STATUS_OK;
}

status_code meta_finish(meta *m, error_ctx *err) {
    int64_t duplicate;
    if (!name_index_build(&m->index, key_at, m, m->n, &duplicate)) {
        return error_no_memory(err, "the metadata index");
    }
    if (duplicate >= 0) {
        const meta_value *v = &m->values[duplicate];
        return error_set_offset(err, STATUS_CORRUPT, v->offset, "metadata key %s occurs twice", v->key);
    }
    return STATUS_OK;
}

void meta_release(meta *m) {
    name_index_free(&m->index);
    free(m->values);
    *m = (meta){0};
}

const char *name_fault(str name, size_t most_bytes) {
    if (name.len == 0) {
        return "is empty";
    }
    if (name.len > most_bytes) {
        return "is too long";
    }
    for (size_t i = 0; i < name.len; i++) {
        unsigned char c = (unsigned char)name.ptr[i];
        if (c == 0) {
            return "holds a zero byte";
        }
        if (c < 0x20 || c == 0x7f) {
            return "holds a control character"; // names reach terminals and logs
        }
    }
    return utf8_valid(name.ptr, name.len) ? NULL : "is not valid UTF-8";
}

const meta_value *meta_find(const meta *m, const char *key) {
    int64_t item = name_index_find(&m->index, key);
    return item < 0 ? NULL : &m->values[item];
}

int64_t meta_count(const meta *m) {
    return m->n;
}

const meta_value *meta_at(const meta *m, int64_t index, const char **key) {
    if (index < 0 || index >= m->n) {
        return NULL;
    }
    if (key) {
        *key = m->values[index].key;
    }
    return &m->values[index];
}

meta_type meta_value_type(const meta_value *v) {
    return v->type;
}

const char *meta_type_name(meta_type type) {
    static const char *const names[] = {
        [META_NONE] = "none", [META_INT] = "int",       [META_UINT] = "uint",   [META_FLOAT] = "float",
        [META_BOOL] = "bool", [META_STRING] = "string", [META_ARRAY] = "array",
    };
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

bool meta_value_int(const meta_value *v, int64_t *out) {
    switch (v->type) {
    case META_INT:
        *out = v->whole;
        return true;
    case META_UINT:
        *out = (int64_t)v->natural;
        return v->natural <= INT64_MAX;
    case META_FLOAT:
        if (v->real >= -0x1p63 && v->real < 0x1p63 && v->real == trunc(v->real)) {
            *out = (int64_t)v->real;
            return true;
        }
        return false;
    default:
        return false;
    }
}

bool meta_value_float(const meta_value *v, double *out) {
    // Integers beyond 2^53 may have no double of their own.
    switch (v->type) {
    case META_FLOAT:
        *out = v->real;
        return true;
    case META_INT:
        *out = (double)v->whole;
        return *out < 0x1p63 && (int64_t)*out == v->whole;
    case META_UINT:
        *out = (double)v->natural;
        return *out < 0x1p64 && (uint64_t)*out == v->natural;
    default:
        return false;
    }
}

bool meta_value_bool(const meta_value *v, bool *out) {
    if (v->type != META_BOOL) {
        return false;
    }
    *out = v->flag;
    return true;
}

bool meta_value_str(const meta_value *v, str *out) {
    if (v->type != META_STRING) {
        return false;
    }
    *out = v->text;
    return true;
}

meta_type meta_array_type(const meta_value *v) {
    return v->type == META_ARRAY ? storages[v->storage].type : META_NONE;
}

int64_t meta_array_len(const meta_value *v) {
    return v->type == META_ARRAY ? v->len : 0;
}

// Element i as a scalar value.
static bool element(const meta_value *v, int64_t i, meta_value *out) {
    if (i < 0 || i >= meta_array_len(v)) {
        return false;
    }
    if (v->storage == STORE_STRING) {
        *out = (meta_value){.type = META_STRING, .text = ((const str *)v->elements)[i]};
    } else {
        meta_value_load(out, v->storage, (const char *)v->elements + i * meta_storage_bytes(v->storage));
    }
    return true;
}

bool meta_array_int(const meta_value *v, int64_t i, int64_t *out) {
    meta_value e;
    return element(v, i, &e) && meta_value_int(&e, out);
}

bool meta_array_float(const meta_value *v, int64_t i, double *out) {
    meta_value e;
    return element(v, i, &e) && meta_value_float(&e, out);
}

bool meta_array_bool(const meta_value *v, int64_t i, bool *out) {
    meta_value e;
    return element(v, i, &e) && meta_value_bool(&e, out);
}

bool meta_array_str(const meta_value *v, int64_t i, str *out) {
    meta_value e;
    return element(v, i, &e) && meta_value_str(&e, out);
}

bool meta_int(const meta *m, const char *key, int64_t *out) {
    const meta_value *v = meta_find(m, key);
    return v && meta_value_int(v, out);
}

bool meta_float(const meta *m, const char *key, double *out) {
    const meta_value *v = meta_find(m, key);
    return v && meta_value_float(v, out);
}

bool meta_bool(const meta *m, const char *key, bool *out) {
    const meta_value *v = meta_find(m, key);
    return v && meta_value_bool(v, out);
}

bool meta_str(const meta *m, const char *key, str *out) {
    const meta_value *v = meta_find(m, key);
    return v && meta_value_str(v, out);
}
