// The shared executor: cuts a program into per-device segments with visible copies and runs them in order.
//
// Placement belongs to the op: op.device is an index into `devices`. With one device there is one segment and no copy.
// Values cross a seam as f32.
#ifndef BACKEND_EXECUTOR_H
#define BACKEND_EXECUTOR_H

#include "backend/backend.h"

typedef struct executor executor;

// p, its arena and the devices are borrowed and must outlive the executor. Each segment is lowered for its device and
// planned for `limits`. keep_all: every value of the lowered segments can be read by name after a run (taps).
status_code executor_new(const program *p, backend *const *devices, int n_devices, const row_limits *limits,
                         bool keep_all, executor **out, error_ctx *err);
void executor_free(executor *e); // NULL is legal

// slabs: [p->n_states].
status_code executor_run(executor *e, const batch *rows, const state_slab *slabs, error_ctx *err);

// Logits of the last run, [n_logit_rows, vocab] f32, valid until the next run.
const float *executor_logits(executor *e);
// Read a value by its name ("layer.12.attn_out") as f64 [rows, width]; false when there is no such value to read.
// With keep_all any value, else exports only. dst may be NULL to ask for the width.
bool executor_tap(executor *e, const char *value_name, int64_t rows, double *dst, int64_t *width);

uint64_t executor_scratch_bytes(const executor *e);
uint64_t executor_weight_bytes(const executor *e); // repacked copies
int executor_segment_count(const executor *e);
void executor_describe(const executor *e, strbuf *out); // segments, copies, ops and chosen kernels

#endif
