// The contract between programs and the machines that run them.
//
// A backend is opened once per device. It says exactly which ops it supports, prepares weights, plans a program for
// given row limits (the only place where it may allocate or choose), and runs the plan on batches: no allocation, no
// lock, no log, no data-dependent branch into "unsupported". Backends do not know each other, formats or models.
//
// Threads: open, prepare, plan and run are called by one thread at a time (the loader, then the engine thread).
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include "backend/program.h"
#include "base/status.h"
#include "tensor/tensor.h"

// ---- batch: the rows of one step, as plain arrays owned by the caller ----

typedef struct batch_seq {
    int32_t first_row, n_rows; // its rows are contiguous and in position order
    // Block tables, one per state group: block of position p is table[p / STATE_BLOCK_TOKENS]. Entries that no row of
    // this step can see may be -1.
    const int32_t *const *tables;
} batch_seq;

typedef struct batch {
    int32_t n_tokens, n_seqs, n_logit_rows;
    const int32_t *tokens;     // [n_tokens] ids, inside the vocabulary
    const int32_t *positions;  // [n_tokens]
    const int32_t *seq_of_row; // [n_tokens] index into seqs
    const batch_seq *seqs;     // [n_seqs]
    const int32_t *logit_rows; // [n_logit_rows] row indices, ascending
} batch;

// Memory of one state (one layer): k [n_blocks, n_kv_heads, STATE_BLOCK_TOKENS, k_dim], v likewise with v_dim.
typedef struct state_slab {
    dtype type;
    int64_t n_blocks;
    void *k, *v; // device memory of the backend that runs the state's ops
} state_slab;

// ---- backend ----

typedef struct backend backend; // first member of each backend's own struct
typedef struct plan plan;       // first member of each backend's own plan

typedef struct backend_options {
    int n_threads; // 0: team_default_threads()
    bool pin_threads;
    const char *cpu_level; // cap on the ISA level by name, NULL: the best there is
} backend_options;

typedef struct backend_type {
    const char *name;
    status_code (*open)(const backend_options *options, backend **out, error_ctx *err);
    void (*close)(backend *b);
    const char *(*level)(const backend *b); // "avx512"; "float64" for ref
    int (*n_threads)(const backend *b);
    // Element type the backend stores state in when `wanted` is asked for; DTYPE_NONE: cannot.
    dtype (*state_type)(const backend *b, dtype wanted);
    // Exact: after a yes neither plan nor run may refuse this op. All primitives must be supported or the model
    // cannot run here; composites are lowered when refused.
    bool (*supports)(const backend *b, const program *p, const op *o);
    // Memory reachable by this backend's kernels, zeroed, 64-byte aligned.
    status_code (*buffer_alloc)(backend *b, uint64_t bytes, void **out, error_ctx *err);
    void (*buffer_free)(backend *b, void *buffer, uint64_t bytes);
    // p must be lowered for this backend and outlive the plan. Weights stay where they are (mapped) or are repacked
    // into memory of the plan. keep_all: no scratch reuse, so that every value can be read after a run (taps).
    status_code (*plan)(backend *b, const program *p, const row_limits *limits, bool keep_all, plan **out,
                        error_ctx *err);
    void (*plan_free)(plan *pl);
    uint64_t (*plan_scratch_bytes)(const plan *pl);
    uint64_t (*plan_weight_bytes)(const plan *pl);            // repacked copies only
    const char *(*plan_kernel)(const plan *pl, int op_index); // "matmul_q4_1_q8_avx512"
    // slabs: [p->n_states]. Counts in the batch may be anything from 0 to the limits.
    status_code (*run)(plan *pl, const batch *rows, const state_slab *slabs, error_ctx *err);
    // Values as f32 [rows, width]; write before a run (imports), read after it (exports, or all with keep_all).
    void (*write_value)(plan *pl, int value, const float *src, int64_t rows);
    void (*read_value)(plan *pl, int value, float *dst, int64_t rows);
    void (*read_value_f64)(plan *pl, int value, double *dst, int64_t rows);
    // Direct view of an export as f32, valid until the next run; NULL when the backend has none in host memory.
    const float *(*view_value)(plan *pl, int value);
} backend_type;

struct backend {
    const backend_type *type;
};

struct plan {
    backend *owner;
    const program *ops;
    row_limits limits;
};

// Registry: "ref", "cpu". NULL-terminated list, in order of preference for a user who names none.
const backend_type *const *backend_registry(void);
const backend_type *backend_find(const char *name); // NULL when unknown
// Best ISA level of this machine's CPU, by name.
const char *backend_cpu_level(void);

#endif
