// The CPU backend's plan: a flat list of steps with every choice made and every address known.
//
// Memory: structs live in the plan's arena; scratch (values, quantised activations, per-thread work space) is one
// mapping, repacked weights another. Nothing is allocated after planning.
#ifndef BACKEND_CPU_CPU_PLAN_H
#define BACKEND_CPU_CPU_PLAN_H

#include "backend/backend.h"
#include "backend/cpu/cpu_kernels.h"
#include "backend/cpu/cpu_pack.h"
#include "base/arena.h"
#include "base/team.h"

typedef struct cpu_backend {
    backend base;
    cpu_level level;
    cpu_kernels kernels;
    team *threads;
} cpu_backend;

// Activation rows that a matmul takes against one panel before it turns to the next panel: as many as stay in a core's
// cache. Every row is computed alike, so the number changes speed, not bits.
enum { MATMUL_BLOCK_ROWS = 64, MATMUL_TILE_BYTES = 2 * MATMUL_BLOCK_ROWS * PANEL_ROWS * 4 };

// A weight that some matmul multiplies with.
typedef struct matmul_weight {
    const weight *source;
    pack_kind kind;
    pack_form form;       // PACKED_Q8
    int64_t n, k;         // [n, k], out features x in features
    uint64_t panel_bytes; // 0 for PACKED_GENERIC
    uint8_t *panels;      // [pack_panels(n)][panel_bytes]
} matmul_weight;

// How a matmul wants its activations.
typedef enum act_form { ACT_F32 = 0, ACT_Q8, ACT_BF16 } act_form;

// Rounded rows that carry one activation row together (cpu_convert.c says why).
enum { ACT_PIECES = 2 };

// Converted copy of a value's rows, shared by all matmuls that read the value; a place in scratch.
typedef struct act_copy {
    act_form form;
    int64_t k;
    size_t row_bytes;
    int slot;      // which slot holds it
    uint8_t *rows; // [max rows][ACT_PIECES][row_bytes]
} act_copy;

// Cosines and sines for the rows of a batch, shared by all ops with the same frequencies.
typedef struct rope_table {
    const float *inv_freq; // [n_freqs]
    int64_t n_freqs;
    float scale;
    float *rows; // [max tokens][2][n_freqs]: cosines, then sines
} rope_table;

typedef struct cpu_step {
    const op *o; // for STEP_CONVERT the first reader
    int op_index;
    bool is_convert;    // makes `copy` from value `converted` and does nothing else
    bool needs_barrier; // the team must meet before this step
    int converted;
    const act_copy *copy; // matmuls: converted input, NULL for f32
    act_copy *copy_out;   // converted copy that the step makes of its last output, or NULL
    const matmul_weight *matmul[2];
    const float *vectors[3]; // decoded norm weights and bias, by weight slot
    const rope_table *rope;
} cpu_step;

typedef struct cpu_plan {
    plan base;
    arena *memory;
    cpu_step *steps;
    int n_steps;
    const char **kernel_names; // [n_ops]
    rope_table *rope_tables;
    int n_rope_tables;
    uint64_t *value_offsets; // [n_values]
    uint8_t *scratch;
    uint64_t scratch_bytes;
    uint8_t *packed;
    uint64_t packed_bytes;
    uint8_t *thread_scratch; // [n_threads][thread_scratch_bytes], part of scratch
    uint64_t thread_scratch_bytes;
    uint8_t *attention_scratch; // shared by the team: parts of splits
} cpu_plan;

static inline float *cpu_value(const cpu_plan *pl, int value) {
    return (float *)(pl->scratch + pl->value_offsets[value]);
}
static inline int64_t cpu_value_rows(const cpu_plan *pl, int value, const batch *rows) {
    return pl->base.ops->values[value].rows == ROWS_TOKENS ? rows->n_tokens : rows->n_logit_rows;
}

// Zeroed pages; NULL when out of memory. bytes may be 0.
void *cpu_pages_new(uint64_t bytes);
void cpu_pages_free(void *pages, uint64_t bytes);

bool cpu_op_is_supported(const program *p, const op *o);
status_code cpu_plan_new(backend *b, const program *p, const row_limits *limits, bool keep_all, plan **out,
                         error_ctx *err);
void cpu_plan_free(plan *pl);

// ---- running ----

// What a step gets: the same for all threads but `thread`.
typedef struct cpu_run_context {
    const cpu_plan *pl;
    const cpu_kernels *kernels;
    team *threads;
    const batch *rows;
    const state_slab *slabs;
} cpu_run_context;

status_code cpu_plan_run(plan *pl, const batch *rows, const state_slab *slabs, error_ctx *err);

// cpu_attention.c
void cpu_attention_run(const cpu_run_context *run, const cpu_step *step, int thread, int n_threads);
// Work space: per thread, and shared by a team of n_threads.
uint64_t cpu_attention_thread_bytes(const program *p, const op *o);
uint64_t cpu_attention_shared_bytes(const program *p, const op *o, int n_threads);

// Makes groups [first, end) of all pieces of one row's converted copy. values: the whole row, [copy->k].
void cpu_convert_groups(const cpu_kernels *kernels, const act_copy *copy, const float *values, int64_t row,
                        int64_t first, int64_t end);

// Bytes of one element of a state slab.
static inline size_t cpu_state_bytes(dtype type) {
    return type == DTYPE_F32 ? 4 : 2;
}

#endif
