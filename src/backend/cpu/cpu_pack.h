// Repacking of matmul weights into panels (layouts: cpu_layout.h). Runs at plan time, one panel a call, so that the
// team can share a weight's panels.
#ifndef BACKEND_CPU_CPU_PACK_H
#define BACKEND_CPU_CPU_PACK_H

#include "backend/cpu/cpu_layout.h"
#include "tensor/tensor.h"

#include <stdbool.h>

// How a matmul holds its weight.
typedef enum pack_kind {
    PACKED_GENERIC = 0, // stays in its rows; decoded to an f32 panel whenever it is used
    PACKED_Q8,          // quantised panels, multiplied with int8 activations
    PACKED_F32,         // [k, PANEL_ROWS]
    PACKED_F16,
    PACKED_BF16,
    PACKED_BF16_PAIRS // [ceil(k / 2), PANEL_ROWS, 2]
} pack_kind;

// Form of a block-quantised dtype; false when it has none.
bool pack_form_of(dtype type, pack_form *form);
const char *pack_form_name(pack_form form);

static inline int64_t pack_panels(int64_t n) {
    return (n + PANEL_ROWS - 1) / PANEL_ROWS;
}
// Bytes of one panel of k elements per row; 0 for PACKED_GENERIC. form is read for PACKED_Q8 only.
uint64_t pack_panel_bytes(pack_kind kind, pack_form form, int64_t k);

// Rows [panel * PANEL_ROWS, ...) of w, a LAYOUT_ROWS matrix, into dst. Rows past the end become zero.
// row_buffer: weight_columns(w) floats of work space (PACKED_F32, or PACKED_GENERIC for decoding to f32 [k,
// PANEL_ROWS]).
void pack_panel(const weight *w, pack_kind kind, pack_form form, int64_t panel, float *row_buffer, void *dst);

#endif
