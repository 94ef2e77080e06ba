// Number formats, shapes and weight descriptors. Written once here and never re-explained:
//
//   - Everything is row-major; shape[0] is the outermost dimension, the last one is contiguous.
//   - A linear layer is y = x . W^T with W of shape [out, in].
//   - A quantised row is a run of blocks; a row's element count is a multiple of the block.
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TENSOR_MAX_DIMS 4

// Values are generated from dtype.def (append only). Zero is never a valid dtype.
typedef enum dtype {
    DTYPE_NONE = 0,
#define DTYPE(id, name, gguf_type, block_elements, block_bytes, decode, encode) DTYPE_##id,
#include "tensor/dtype.def"
#undef DTYPE
    DTYPE_COUNT
} dtype;

// Decode n elements (a multiple of the block) from src to f32, bit for bit as the `gguf` Python package does: scales
// are multiplied in f32 first, then the code, then the minimum is subtracted. NaN comes out as some NaN. src needs no
// alignment; src and dst do not overlap.
typedef void (*dtype_decode_fn)(const void *src, float *dst, int64_t n);
// Encode n f32 elements (a multiple of the block) in the format's simple way, bit for bit as the `gguf` package does
// for finite values. Block formats turn a block that holds NaN or infinity into unspecified codes.
typedef void (*dtype_encode_fn)(const float *src, void *dst, int64_t n);

typedef struct dtype_info {
    const char *name;   // "Q4_K", as tools print it
    int gguf_type;      // number in GGUF files, -1 when GGUF has none
    int block_elements; // 1 for plain types
    int block_bytes;
    dtype_decode_fn decode; // NULL for types that hold no weights here (integers)
    dtype_encode_fn encode; // NULL when plumb cannot write the type yet
} dtype_info;

const dtype_info *dtype_get(dtype type);   // NULL for an invalid value
dtype dtype_from_gguf(uint32_t gguf_type); // DTYPE_NONE when unknown
dtype dtype_from_name(const char *name);   // case-insensitive; DTYPE_NONE when unknown

// Bytes of `elements` values; false on overflow, or when not a multiple of the block.
bool dtype_bytes(dtype type, int64_t elements, uint64_t *bytes);

// Scalar conversions used by several codecs.
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value); // round to nearest even
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value); // round to nearest even; NaN stays NaN

// How the elements of a weight are arranged in memory.
typedef enum layout {
    LAYOUT_ROWS = 0, // rows of blocks, as GGUF and safetensors store them
    // Backends add their repacked layouts here; the tag travels in the descriptor, nobody guesses.
} layout;

// One plane of a weight: codes, scales, zeros... Most formats have a single plane.
typedef struct weight_plane {
    const void *data;
    uint64_t bytes;
} weight_plane;

#define WEIGHT_MAX_PLANES 4

// A weight as the engine sees it: planes + layout. Borrows its memory from the manifest's map or
// from a backend buffer.
typedef struct weight {
    const char *name; // tensor name in the checkpoint
    dtype type;
    layout arrangement;
    int n_dims;
    int64_t shape[TENSOR_MAX_DIMS]; // unused dimensions are 1
    int n_planes;
    weight_plane planes[WEIGHT_MAX_PLANES];
} weight;

static inline int64_t weight_rows(const weight *w) {
    return w->n_dims >= 2 ? w->shape[w->n_dims - 2] : 1;
}
static inline int64_t weight_columns(const weight *w) {
    return w->n_dims >= 1 ? w->shape[w->n_dims - 1] : 1;
}

// Decode row `row` of a LAYOUT_ROWS weight seen as [rows, columns] (leading dims flattened) into weight_columns(w)
// floats. The dtype must have a decoder and the row must exist: both are asserted.
void weight_decode_row(const weight *w, int64_t row, float *dst);

#endif
