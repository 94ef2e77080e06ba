// A checkpoint on disk as one table: metadata plus tensor names, dtypes, shapes and byte ranges.
//
// Opening maps the files and checks every number against the file's real size; tensor data is not
// touched. Both containers (GGUF v2/v3 with splits; safetensors single or sharded with config.json)
// give the same manifest. Hostile files end in an error that names the object and the offset.
#ifndef FORMATS_MANIFEST_H
#define FORMATS_MANIFEST_H

#include "base/status.h"
#include "formats/meta.h"
#include "tensor/tensor.h"

typedef enum manifest_format { MANIFEST_GGUF = 1, MANIFEST_HF } manifest_format;

// Convolutions over time and space in safetensors files have five dimensions; GGUF has at most four.
#define MANIFEST_MAX_DIMS 8

typedef struct manifest_tensor {
    const char *name;                 // terminated; valid UTF-8 without control characters
    dtype type;                       // DTYPE_NONE never occurs; an unknown type number is an opening error
    int n_dims;                       // 0 (a scalar) .. MANIFEST_MAX_DIMS
    int64_t shape[MANIFEST_MAX_DIMS]; // row-major, outermost first (GGUF's order is reversed on reading); unused: 1
    int file_index;
    uint64_t offset; // from the start of that file
    uint64_t bytes;
} manifest_tensor;

typedef struct manifest manifest;

// path: a .gguf file (any shard of a split one), a .safetensors file, a *.safetensors.index.json, or a folder
// with config.json and safetensors. A lone .safetensors file has empty metadata.
// Owned by the caller until manifest_close, which unmaps: every weight bound from it dies then. After opening,
// everything but manifest_side_file may be called by many threads at once.
status_code manifest_open(const char *path, manifest **out, error_ctx *err);
void manifest_close(manifest *m); // NULL is legal

manifest_format manifest_get_format(const manifest *m);
const char *manifest_path(const manifest *m); // as given to manifest_open
const meta *manifest_meta(const manifest *m);
int64_t manifest_tensor_count(const manifest *m);
// Tensors lie in one array, in the order of their data; NULL when the index is out of range.
const manifest_tensor *manifest_tensor_at(const manifest *m, int64_t index);
const manifest_tensor *manifest_tensor_find(const manifest *m, const char *name); // NULL when absent
int manifest_file_count(const manifest *m);
const char *manifest_file_path(const manifest *m, int file_index);
uint64_t manifest_file_bytes(const manifest *m, int file_index);
int manifest_gguf_version(const manifest *m); // 0 for HF

// First byte of a tensor inside the map. Never NULL for a tensor with elements.
const void *manifest_tensor_data(const manifest *m, const manifest_tensor *t);
// Fill *w as a LAYOUT_ROWS view of the mapped tensor. More than TENSOR_MAX_DIMS dimensions: the leading ones are
// merged.
void manifest_tensor_weight(const manifest *m, const manifest_tensor *t, weight *w);

// Side file of an HF folder ("tokenizer.json", "chat_template.jinja"), or next to a GGUF file or a lone .safetensors
// file: never. name must have no slash. STATUS_NOT_FOUND when absent. *data is borrowed until manifest_close and has
// a 0 behind its end. One thread at a time.
status_code manifest_side_file(manifest *m, const char *name, str *data, error_ctx *err);

// For fuzzing and tests: parse from memory that the caller keeps alive. The name is used in messages. A part of a split
// GGUF file is refused, its siblings being unknown.
status_code manifest_open_gguf_memory(const char *name, const void *data, size_t bytes, manifest **out, error_ctx *err);
status_code manifest_open_safetensors_memory(const char *name, const void *data, size_t bytes, manifest **out,
                                             error_ctx *err);

#endif
