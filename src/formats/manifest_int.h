// The manifest's inside, shared by the container readers.
//
// Ownership: manifest_new gives an empty manifest; readers append files, metadata and tensors to it; manifest_close
// frees everything, also after a reader failed half-way. Names and side data live in `memory`, file bytes in the maps.
#ifndef FORMATS_MANIFEST_INT_H
#define FORMATS_MANIFEST_INT_H

#include "base/arena.h"
#include "base/file_map.h"
#include "formats/manifest.h"
#include "formats/meta_int.h"
#include "formats/name_index_int.h"

enum { MOST_TENSOR_NAME_BYTES = 1024, MOST_KEY_BYTES = 65535 };

typedef struct manifest_file {
    const char *path;
    file_map map;        // zero when the bytes are the caller's
    const uint8_t *data; // NULL only when bytes is 0
    uint64_t bytes;
} manifest_file;

typedef struct side_file {
    struct side_file *next;
    const char *name;
    str data;
} side_file;

struct manifest {
    arena *memory;
    manifest_format format;
    const char *path;
    const char *folder; // of an HF checkpoint, NULL otherwise
    int gguf_version;
    meta keys;
    manifest_file *files;
    int n_files, files_cap;
    manifest_tensor *tensors;
    uint64_t *entry_offsets; // where tensor i stands in its file's table, for messages; as long as `tensors`
    int64_t n_tensors, tensors_cap;
    name_index index;
    side_file *side_files;
};

status_code manifest_new(manifest_format format, const char *path, manifest **out, error_ctx *err);
// Map a file and append it; *file_index is its number.
status_code manifest_add_file(manifest *m, const char *path, int *file_index, error_ctx *err);
// Append bytes that the caller keeps alive.
status_code manifest_add_memory(manifest *m, const char *name, const void *data, size_t bytes, int *file_index,
                                error_ctx *err);
// Room for `extra` more tensors.
status_code manifest_reserve_tensors(manifest *m, uint64_t extra, error_ctx *err);
// Append a tensor; room must have been reserved. entry_offset: see struct manifest.
void manifest_add_tensor(manifest *m, const manifest_tensor *t, uint64_t entry_offset);
// Number of elements of a shape; false on overflow of int64.
bool shape_elements(const int64_t *shape, int n_dims, int64_t *elements);
// Build the tensor index; a name that occurs twice is an error.
status_code manifest_finish(manifest *m, error_ctx *err);

// gguf.c: read the table of file 0; when it is one part of a split file, open the others too.
status_code gguf_read(manifest *m, error_ctx *err);

// safetensors.c: append the tensors of one file.
status_code safetensors_read(manifest *m, int file_index, error_ctx *err);
// safetensors.c: open the shards of m->folder that the index file names, and check its map against them.
status_code safetensors_read_sharded(manifest *m, const char *index_path, error_ctx *err);

// hf_config.c: flatten the folder's JSON files into m->keys. is_required: config.json must exist.
status_code hf_config_read(manifest *m, bool is_required, error_ctx *err);

#endif
