// The manifest: which container a path is, the tables that readers fill, access to tensors and side files.
#include "formats/manifest_int.h"

#include "base/checked.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// Largest side file that is read. The largest tokenizer.json seen is near 35 MB.
enum { MOST_SIDE_FILE_BYTES = 256 << 20 };

status_code manifest_new(manifest_format format, const char *path, manifest **out, error_ctx *err) {
    *out = NULL;
    arena *memory = arena_new(0);
    manifest *m = memory ? arena_alloc_zero(memory, sizeof *m) : NULL;
    const char *copy = m ? arena_strdup(memory, path) : NULL;
    if (!copy) {
        arena_free(memory);
        return error_no_memory(err, "a manifest");
    }
    m->memory = memory;
    m->format = format;
    m->path = copy;
    *out = m;
    return STATUS_OK;
}

void manifest_close(manifest *m) {
    if (!m) {
        return;
    }
    for (int i = 0; i < m->n_files; i++) {
        if (m->files[i].map.data) {
            file_map_close(&m->files[i].map);
        }
    }
    for (side_file *s = m->side_files; s; s = s->next) {
        free((char *)s->data.ptr);
    }
    free(m->files);
    free(m->tensors);
    free(m->entry_offsets);
    name_index_free(&m->index);
    meta_release(&m->keys);
    arena_free(m->memory); // m itself lives in it
}

static manifest_file *append_file(manifest *m, const char *path, error_ctx *err) {
    if (m->n_files == m->files_cap) {
        int cap = m->files_cap ? 2 * m->files_cap : 4;
        manifest_file *files = reallocarray(m->files, (size_t)cap, sizeof *files);
        if (!files) {
            error_no_memory(err, "the file list");
            return NULL;
        }
        m->files = files;
        m->files_cap = cap;
    }
    const char *copy = arena_strdup(m->memory, path);
    if (!copy) {
        error_no_memory(err, "a file name");
        return NULL;
    }
    manifest_file *f = &m->files[m->n_files++];
    *f = (manifest_file){.path = copy};
    return f;
}

status_code manifest_add_file(manifest *m, const char *path, int *file_index, error_ctx *err) {
    manifest_file *f = append_file(m, path, err);
    if (!f) {
        return STATUS_NO_MEMORY;
    }
    *file_index = m->n_files - 1;
    status_code code = file_map_open(path, &f->map, err);
    if (code != STATUS_OK) {
        f->map = (file_map){0};
        return code;
    }
    if (f->map.bytes == 0) {
        file_map_close(&f->map);
        error_object(err, "%s", path);
        return error_set(err, STATUS_CORRUPT, "the file is empty");
    }
    f->data = f->map.data;
    f->bytes = f->map.bytes;
    return STATUS_OK;
}

status_code manifest_add_memory(manifest *m, const char *name, const void *data, size_t bytes, int *file_index,
                                error_ctx *err) {
    manifest_file *f = append_file(m, name, err);
    if (!f) {
        return STATUS_NO_MEMORY;
    }
    *file_index = m->n_files - 1;
    f->data = data;
    f->bytes = bytes;
    return STATUS_OK;
}

status_code manifest_reserve_tensors(manifest *m, uint64_t extra, error_ctx *err) {
    uint64_t need;
    if (!checked_add_u64((uint64_t)m->n_tensors, extra, &need) || need > INT64_MAX / sizeof *m->tensors) {
        return error_no_memory(err, "the tensor table");
    }
    if ((int64_t)need <= m->tensors_cap) {
        return STATUS_OK;
    }
    manifest_tensor *tensors = reallocarray(m->tensors, need, sizeof *tensors);
    if (tensors) {
        m->tensors = tensors;
    }
    uint64_t *offsets = tensors ? reallocarray(m->entry_offsets, need, sizeof *offsets) : NULL;
    if (!offsets) {
        return error_no_memory(err, "the tensor table");
    }
    m->entry_offsets = offsets;
    m->tensors_cap = (int64_t)need;
    return STATUS_OK;
}

void manifest_add_tensor(manifest *m, const manifest_tensor *t, uint64_t entry_offset) {
    m->entry_offsets[m->n_tensors] = entry_offset;
    m->tensors[m->n_tensors++] = *t;
}

bool shape_elements(const int64_t *shape, int n_dims, int64_t *elements) {
    // A zero makes the product zero whatever the others are, but the others must still fit.
    int64_t product = 1;
    bool is_empty = false;
    for (int d = 0; d < n_dims; d++) {
        if (shape[d] < 0) {
            return false;
        }
        if (shape[d] == 0) {
            is_empty = true;
        } else if (!checked_mul_i64(product, shape[d], &product)) {
            return false;
        }
    }
    *elements = is_empty ? 0 : product;
    return true;
}

static const char *tensor_name_at(const void *context, int64_t item) {
    return ((const manifest *)context)->tensors[item].name;
}

status_code manifest_finish(manifest *m, error_ctx *err) {
    int64_t duplicate;
    if (!name_index_build(&m->index, tensor_name_at, m, m->n_tensors, &duplicate)) {
        return error_no_memory(err, "the tensor index");
    }
    if (duplicate >= 0) {
        const manifest_tensor *t = &m->tensors[duplicate];
        error_object(err, "%s: tensor %s", m->files[t->file_index].path, t->name);
        return error_set_offset(err, STATUS_CORRUPT, m->entry_offsets[duplicate], "tensor %s occurs twice", t->name);
    }
    return STATUS_OK;
}

static bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

// A folder in the way Hugging Face tools write it. A single weight file wins over an index, as it does there:
// repositories that ship both keep a stale index.
static status_code read_folder(manifest *m, error_ctx *err) {
    const char *single = arena_printf(m->memory, "%s/model.safetensors", m->folder);
    const char *sharded = arena_printf(m->memory, "%s/model.safetensors.index.json", m->folder);
    if (!single || !sharded) {
        return error_no_memory(err, "a path");
    }
    RETURN_IF_ERROR(hf_config_read(m, true, err));
    if (file_exists(single)) {
        int file_index;
        RETURN_IF_ERROR(manifest_add_file(m, single, &file_index, err));
        return safetensors_read(m, file_index, err);
    }
    if (file_exists(sharded)) {
        return safetensors_read_sharded(m, sharded, err);
    }
    error_object(err, "%s", m->folder);
    return error_set(err, STATUS_NOT_FOUND,
                     "the folder has neither model.safetensors nor model.safetensors.index.json");
}

static status_code read_index_file(manifest *m, const char *path, error_ctx *err) {
    const char *slash = strrchr(path, '/');
    m->folder = slash ? arena_strndup(m->memory, path, (size_t)(slash - path) + (slash == path)) : ".";
    if (!m->folder) {
        return error_no_memory(err, "a path");
    }
    RETURN_IF_ERROR(hf_config_read(m, false, err));
    return safetensors_read_sharded(m, path, err);
}

static status_code read_path(manifest *m, const char *path, bool is_folder, error_ctx *err) {
    str name = str_from(path);
    if (is_folder) {
        m->folder = m->path;
        return read_folder(m, err);
    }
    if (str_ends_with(name, STR(".safetensors.index.json"))) {
        return read_index_file(m, path, err);
    }
    int file_index;
    RETURN_IF_ERROR(manifest_add_file(m, path, &file_index, err));
    if (str_ends_with(name, STR(".safetensors"))) {
        return safetensors_read(m, file_index, err);
    }
    m->format = MANIFEST_GGUF; // whatever its name: the reader checks the magic
    return gguf_read(m, err);
}

// Common end of opening: index what was read, or drop it all.
static status_code complete(manifest *m, status_code code, manifest **out, error_ctx *err) {
    if (code == STATUS_OK) {
        code = manifest_finish(m, err);
    }
    if (code != STATUS_OK) {
        error_object(err, "%s", m->path);
        manifest_close(m);
        return code;
    }
    *out = m;
    return STATUS_OK;
}

status_code manifest_open(const char *path, manifest **out, error_ctx *err) {
    *out = NULL;
    struct stat info;
    if (stat(path, &info) != 0) {
        int cause = errno;
        error_object(err, "%s", path);
        return error_set(err, cause == ENOENT || cause == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO, "cannot open: %s",
                         strerror(cause));
    }
    manifest *m;
    RETURN_IF_ERROR(manifest_new(MANIFEST_HF, path, &m, err));
    return complete(m, read_path(m, path, S_ISDIR(info.st_mode), err), out, err);
}

typedef status_code (*read_fn)(manifest *m, error_ctx *err);

static status_code read_memory_safetensors(manifest *m, error_ctx *err) {
    return safetensors_read(m, 0, err);
}

static status_code open_memory(manifest_format format, const char *name, const void *data, size_t bytes, read_fn read,
                               manifest **out, error_ctx *err) {
    *out = NULL;
    manifest *m;
    RETURN_IF_ERROR(manifest_new(format, name, &m, err));
    int file_index;
    status_code code = manifest_add_memory(m, name, data, bytes, &file_index, err);
    if (code == STATUS_OK) {
        code = read(m, err);
    }
    return complete(m, code, out, err);
}

status_code manifest_open_gguf_memory(const char *name, const void *data, size_t bytes, manifest **out,
                                      error_ctx *err) {
    return open_memory(MANIFEST_GGUF, name, data, bytes, gguf_read, out, err);
}

status_code manifest_open_safetensors_memory(const char *name, const void *data, size_t bytes, manifest **out,
                                             error_ctx *err) {
    return open_memory(MANIFEST_HF, name, data, bytes, read_memory_safetensors, out, err);
}

manifest_format manifest_get_format(const manifest *m) {
    return m->format;
}

const char *manifest_path(const manifest *m) {
    return m->path;
}

const meta *manifest_meta(const manifest *m) {
    return &m->keys;
}

int64_t manifest_tensor_count(const manifest *m) {
    return m->n_tensors;
}

const manifest_tensor *manifest_tensor_at(const manifest *m, int64_t index) {
    return index >= 0 && index < m->n_tensors ? &m->tensors[index] : NULL;
}

const manifest_tensor *manifest_tensor_find(const manifest *m, const char *name) {
    return manifest_tensor_at(m, name_index_find(&m->index, name));
}

int manifest_file_count(const manifest *m) {
    return m->n_files;
}

const char *manifest_file_path(const manifest *m, int file_index) {
    return file_index >= 0 && file_index < m->n_files ? m->files[file_index].path : NULL;
}

uint64_t manifest_file_bytes(const manifest *m, int file_index) {
    return file_index >= 0 && file_index < m->n_files ? m->files[file_index].bytes : 0;
}

int manifest_gguf_version(const manifest *m) {
    return m->gguf_version;
}

const void *manifest_tensor_data(const manifest *m, const manifest_tensor *t) {
    return m->files[t->file_index].data + t->offset;
}

void manifest_tensor_weight(const manifest *m, const manifest_tensor *t, weight *w) {
    *w = (weight){.name = t->name, .type = t->type, .arrangement = LAYOUT_ROWS, .n_planes = 1};
    int merged = t->n_dims > TENSOR_MAX_DIMS ? t->n_dims - TENSOR_MAX_DIMS : 0;
    w->n_dims = t->n_dims - merged;
    for (int d = 0; d < TENSOR_MAX_DIMS; d++) {
        w->shape[d] = t->shape[d + merged];
    }
    for (int d = 0; d < merged; d++) {
        w->shape[0] *= t->shape[d]; // cannot overflow: the product of all dimensions was checked, or one of them is 0
    }
    w->planes[0] = (weight_plane){.data = manifest_tensor_data(m, t), .bytes = t->bytes};
}

status_code manifest_side_file(manifest *m, const char *name, str *data, error_ctx *err) {
    *data = (str){0};
    if (name[0] == '\0' || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return error_set(err, STATUS_INVALID, "\"%s\" is not a plain file name", name);
    }
    for (const side_file *s = m->side_files; s; s = s->next) {
        if (strcmp(s->name, name) == 0) {
            *data = s->data;
            return STATUS_OK;
        }
    }
    if (!m->folder) {
        error_object(err, "%s", m->path);
        return error_set(err, STATUS_NOT_FOUND, "there is no %s: the checkpoint is not a folder", name);
    }
    side_file *s = arena_alloc_zero(m->memory, sizeof *s);
    const char *copy = arena_strdup(m->memory, name);
    const char *path = arena_printf(m->memory, "%s/%s", m->folder, name);
    if (!s || !copy || !path) {
        return error_no_memory(err, name);
    }
    char *text;
    size_t len;
    RETURN_IF_ERROR(file_read_all(path, MOST_SIDE_FILE_BYTES, &text, &len, err));
    *s = (side_file){.next = m->side_files, .name = copy, .data = str_make(text, len)};
    m->side_files = s;
    *data = s->data;
    return STATUS_OK;
}
