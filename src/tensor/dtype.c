// The dtype table, generated from dtype.def, and what follows from it alone. No memory is owned here.
#include "tensor/dtype_int.h"

#include "base/checked.h"

#include <assert.h>
#include <strings.h>

static const dtype_info infos[DTYPE_COUNT] = {
#define DTYPE(id, text, number, elements, bytes, decoder, encoder)                                                     \
    [DTYPE_##id] = {.name = (text),                                                                                    \
                    .gguf_type = (number),                                                                             \
                    .block_elements = (elements),                                                                      \
                    .block_bytes = (bytes),                                                                            \
                    .decode = (decoder),                                                                               \
                    .encode = (encoder)},
#include "tensor/dtype.def"
#undef DTYPE
};

const dtype_info *dtype_get(dtype type) {
    return (unsigned)type > DTYPE_NONE && (unsigned)type < DTYPE_COUNT ? &infos[type] : NULL;
}

dtype dtype_from_gguf(uint32_t gguf_type) {
    for (int type = DTYPE_NONE + 1; type < DTYPE_COUNT; type++) {
        if (infos[type].gguf_type >= 0 && (uint32_t)infos[type].gguf_type == gguf_type) {
            return (dtype)type;
        }
    }
    return DTYPE_NONE;
}

dtype dtype_from_name(const char *name) {
    for (int type = DTYPE_NONE + 1; type < DTYPE_COUNT; type++) {
        if (strcasecmp(infos[type].name, name) == 0) {
            return (dtype)type;
        }
    }
    return DTYPE_NONE;
}

bool dtype_bytes(dtype type, int64_t elements, uint64_t *bytes) {
    const dtype_info *info = dtype_get(type);
    if (!info || elements < 0 || elements % info->block_elements != 0) {
        return false;
    }
    return checked_mul_u64((uint64_t)(elements / info->block_elements), (uint64_t)info->block_bytes, bytes);
}

void weight_decode_row(const weight *w, int64_t row, float *dst) {
    const dtype_info *info = dtype_get(w->type);
    assert(info && info->decode && w->arrangement == LAYOUT_ROWS && w->n_planes == 1);
    int64_t columns = weight_columns(w);
    uint64_t row_bytes = 0;
    bool is_whole = dtype_bytes(w->type, columns, &row_bytes);
    assert(is_whole && row >= 0 && (row_bytes == 0 || (uint64_t)row < w->planes[0].bytes / row_bytes));
    (void)is_whole;
    info->decode((const uint8_t *)w->planes[0].data + (uint64_t)row * row_bytes, dst, columns);
}
