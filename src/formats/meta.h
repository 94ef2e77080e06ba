// Metadata of a checkpoint as typed key/value pairs, whatever the container.
//
// GGUF: keys as in the file ("llama.block_count"). Hugging Face folder: config.json flattened with
// dots ("rope_parameters.full_attention.rope_theta"); generation_config.json under
// "generation_config.", tokenizer_config.json under "tokenizer_config.". JSON null is left out.
// Arrays of scalars are arrays; arrays that hold objects or arrays are flattened with numeric
// parts ("quantization_config.targets.0.name") and their length under "<key>.#"; so are arrays that mix
// scalars of different kinds or hold null. An array of integers and reals is an array of reals. `Infinity`,
// which Python writes into JSON, is read as such; an integer beyond 64 bits is read as a real of 15 digits.
// Keys are unique, terminated, valid UTF-8 without control characters. GGUF's unsigned integers are META_UINT, its
// signed ones and those of JSON META_INT.
// All memory belongs to the manifest. Read-only and thread-safe after opening.
#ifndef FORMATS_META_H
#define FORMATS_META_H

#include "base/status.h"
#include "base/str.h"

typedef enum meta_type { META_NONE = 0, META_INT, META_UINT, META_FLOAT, META_BOOL, META_STRING, META_ARRAY } meta_type;

typedef struct meta meta;
typedef struct meta_value meta_value; // borrowed from its meta

const meta_value *meta_find(const meta *m, const char *key); // NULL when absent
int64_t meta_count(const meta *m);
const meta_value *meta_at(const meta *m, int64_t index, const char **key); // file order; key may be NULL

meta_type meta_value_type(const meta_value *v);
const char *meta_type_name(meta_type type);
// Scalars. Each returns false when the value cannot be represented: an integer read accepts
// integer-valued floats, a float read accepts integers; strings are never converted.
bool meta_value_int(const meta_value *v, int64_t *out);
bool meta_value_float(const meta_value *v, double *out);
bool meta_value_bool(const meta_value *v, bool *out);
bool meta_value_str(const meta_value *v, str *out); // may hold invalid UTF-8 and zero bytes

// Arrays: element type (never META_ARRAY; META_NONE for JSON's empty array), length, and elements by index in constant
// time. An index outside the array gives false.
meta_type meta_array_type(const meta_value *v);
int64_t meta_array_len(const meta_value *v); // 0 when v is not an array
bool meta_array_int(const meta_value *v, int64_t i, int64_t *out);
bool meta_array_float(const meta_value *v, int64_t i, double *out);
bool meta_array_bool(const meta_value *v, int64_t i, bool *out);
bool meta_array_str(const meta_value *v, int64_t i, str *out);

// Convenience: value of key, or false when absent or of another type.
bool meta_int(const meta *m, const char *key, int64_t *out);
bool meta_float(const meta *m, const char *key, double *out);
bool meta_bool(const meta *m, const char *key, bool *out);
bool meta_str(const meta *m, const char *key, str *out);

#endif
