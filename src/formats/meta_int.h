// How readers fill the metadata table that meta.h shows. Strings and arrays are borrowed from the file's map or the
// manifest's arena; keys live in the arena; the table itself is malloc'd and freed by meta_release.
#ifndef FORMATS_META_INT_H
#define FORMATS_META_INT_H

#include "base/arena.h"
#include "formats/meta.h"
#include "formats/name_index_int.h"

// Storage of array elements; 0..12 are GGUF's own value types. Numbers are little-endian and unaligned, a bool is one
// byte, strings are `str` views.
typedef enum meta_storage {
    STORE_U8 = 0,
    STORE_I8,
    STORE_U16,
    STORE_I16,
    STORE_U32,
    STORE_I32,
    STORE_F32,
    STORE_BOOL,
    STORE_STRING,
    STORE_ARRAY, // as a GGUF value type only: arrays do not nest
    STORE_U64,
    STORE_I64,
    STORE_F64,
    STORE_COUNT,
    STORE_NONE = STORE_COUNT // element type of an empty JSON array
} meta_storage;

struct meta_value {
    const char *key;
    uint64_t offset; // of the entry in its file, ERROR_NO_OFFSET when unknown
    meta_type type;
    meta_storage storage; // of the elements of an array
    int64_t len;          // elements of an array
    union {
        int64_t whole;
        uint64_t natural;
        double real;
        bool flag;
        str text;
        const void *elements;
    };
};

struct meta {
    meta_value *values;
    int64_t n, cap;
    name_index index;
};

int meta_storage_bytes(meta_storage storage); // of a number or bool; 0 for strings and arrays
// Read a number or bool at p (unaligned) into v's type and value.
void meta_value_load(meta_value *v, meta_storage storage, const void *p);

// Append *v. The key must be terminated and live as long as the table.
status_code meta_append(meta *m, const meta_value *v, error_ctx *err);
// Sort the index. A key that occurs twice is an error.
status_code meta_finish(meta *m, error_ctx *err);
void meta_release(meta *m);

// Why bytes cannot be a key or a tensor name (empty, too long, bad UTF-8, control characters), or NULL when they can.
const char *name_fault(str name, size_t most_bytes);

#endif
