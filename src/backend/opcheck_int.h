// Inside opcheck: cases, the data of a case, runners, bounds.
#ifndef BACKEND_OPCHECK_INT_H
#define BACKEND_OPCHECK_INT_H

#include "backend/backend.h"
#include "backend/opcheck.h"
#include "base/arena.h"

// ---- cases (opcheck_cases.c) ----

enum { CASE_MAX_SEQS = 4 };

// A sequence of a case: positions [start, start + n_rows) are this step's rows, all before them are in the state.
typedef struct case_seq {
    int32_t start, n_rows;
} case_seq;

typedef struct op_case {
    op_kind kind;
    dtype weight_type; // table, matmul weight, norm weight
    dtype second_type; // GATE_UP: of the up weight
    dtype state_type;
    int64_t rows; // token rows of ops without state
    int64_t k, n; // input and output width
    bool has_bias, in_place;
    int64_t group; // norm
    float offset, eps;
    activation act;
    rope_style style;
    int64_t n_freqs;
    float scale; // EMBED: of the rows; ropes: of cosine and sine
    bool has_q_norm, has_k_norm;
    int64_t n_heads, n_kv_heads, k_dim, v_dim, window;
    bool share_prefix; // all sequences share the blocks of the first one's full prefix blocks
    int n_seqs;        // state ops and rope: the batch
    case_seq seqs[CASE_MAX_SEQS];
} op_case;

typedef struct case_list {
    op_case *items;
    int n, cap;
    bool oom;
} case_list;

// All cases, or the quick subset. Free items with free().
void opcheck_cases(case_list *list, bool quick);
void case_describe(const op_case *c, strbuf *out);

// Whether the op uses the weights' dtype of the case (for filters and tables).
bool case_has_dtype(const op_case *c, dtype type);

// ---- data of a case (opcheck_data.c) ----

typedef struct case_data {
    const op_case *c;
    arena *memory;
    program *p;    // the one op; guards and operands are imports, results are exports
    int guards[2]; // values next to the operands that nothing may touch
    int64_t rows;  // token rows
    int n_inputs;
    float *inputs[OP_MAX_INPUTS]; // [rows, width]
    batch batch;                  // all rows
    int64_t n_blocks;             // state blocks, shuffled; some belong to nobody
    uint8_t *k_image, *v_image;   // state before the run in c->state_type; places nobody may read are NaN
    uint64_t k_bytes, v_bytes;
    uint64_t random;
} case_data;

// NULL when out of memory.
case_data *case_data_new(const op_case *c, uint64_t seed);
void case_data_free(case_data *d);

// The next pseudo-random number of a stream (splitmix64).
uint64_t opcheck_random(uint64_t *state);
// Fill a weight's rows with random blocks of its format, with scales of everyday size.
void opcheck_fill_weight(dtype type, uint8_t *data, int64_t elements, uint64_t *random);
// exact (f64) value of stored state
double state_element(dtype type, const void *image, int64_t index);

// ---- running (opcheck_runner.c) ----

// One case planned on one backend.
typedef struct runner {
    backend *device;
    const case_data *d;
    program *lowered;
    plan *planned;
    dtype state_type;
    state_slab slab;
    uint64_t k_bytes, v_bytes;
} runner;

// lower_composites: refuse composites although the backend may support them.
status_code runner_open(runner *r, backend *device, const case_data *d, bool lower_composites, error_ctx *err);
void runner_close(runner *r);
const char *runner_kernel(const runner *r); // of the first op

// What a run left behind.
typedef struct run_result {
    float *outputs[OP_MAX_OUTPUTS];       // [rows, width] as f32
    double *wide_outputs[OP_MAX_OUTPUTS]; // the same as f64 (what `ref` computed)
    const char *violation;                // a guard, input or padding row that was touched; NULL: none
} run_result;

// Run rows [first, first + n) of the case; `inputs` replaces d->inputs when not NULL. Fills rows from 0 of the result,
// whose memory comes from `memory`. The state is reset before and left in r->slab.
status_code runner_run(runner *r, arena *memory, int64_t first, int64_t n, float *const *inputs, run_result *out,
                       error_ctx *err);

// ---- oracle and bounds (opcheck_oracle.c) ----

typedef struct error_measure {
    double worst; // largest |error| / bound; at most 1
    double rms;   // root mean square of |error| / sigma; at most 1
    double nmse;  // sum of error^2 / sum of truth^2
} error_measure;

// Repeat the activation quantisation that a kernel's name announces ("matmul_q4_0_q8_avx512": q8) on inputs[0].
// False when the kernel takes plain f32.
bool oracle_quantize(const case_data *d, const char *kernel, float *dst);

// Compare output `index` of a run with the truth. inputs: what the oracle saw.
error_measure oracle_compare(const case_data *d, float *const *inputs, int index, const float *found,
                             const double *truth, arena *memory);
// Compare the state after KV_APPEND or ROPE_APPEND; truth: the f64 state. False, with a reason, on a mismatch.
bool oracle_compare_state(const case_data *d, float *const *inputs, const runner *tested, const runner *truth,
                          double *worst, const char **reason);

// ---- the other modes ----

int opcheck_bench(const opcheck_options *options, const backend_type *type, opcheck_print_fn print, void *context);
int opcheck_support(const opcheck_options *options, const backend_type *type, opcheck_print_fn print, void *context);

// Levels of a backend on this machine, worst first: names for backend_options.cpu_level, {NULL} where it has none.
int opcheck_levels(const backend_type *type, const char *only, const char **names, int most);

void opcheck_line(opcheck_print_fn print, void *context, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
