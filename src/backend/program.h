// Op programs: what a model computes, as data.
//
// A family emits one program with symbolic row counts; it holds for prefill, decode and verify, which differ only in
// the counts a batch brings. Values are activation matrices [rows, width]; ops read and write values, read weights, and
// touch sequence state. Programs are built once at load, by one thread, and never change afterwards.
#ifndef BACKEND_PROGRAM_H
#define BACKEND_PROGRAM_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"
#include "tensor/tensor.h"

#include <stdbool.h>
#include <stdint.h>

#define STATE_BLOCK_TOKENS 64 // positions in one block, for every state kind

typedef enum op_kind {
    OP_NONE = 0,
#define OP(id, name, n_in, n_weights, n_out, uses_state, is_composite, accum, tolerance, meaning) OP_##id,
#include "backend/ops.def"
#undef OP
    OP_KIND_COUNT
} op_kind;

typedef enum op_tolerance { TOLERANCE_EXACT = 0, TOLERANCE_ROUND, TOLERANCE_REDUCE, TOLERANCE_QUANT } op_tolerance;

typedef struct op_info {
    const char *name;
    int n_inputs, n_weights, n_outputs;
    bool uses_state, is_composite;
    op_tolerance tolerance;
    const char *meaning;
} op_info;

const op_info *op_get_info(op_kind kind);

// Which count of a batch gives a value's rows.
typedef enum row_kind { ROWS_TOKENS = 0, ROWS_LOGITS } row_kind;

typedef struct value_desc {
    const char *name; // also the tap name: "layer.12.attn_out"
    row_kind rows;
    int64_t width;  // elements of one row
    bool is_import; // written from outside before a run (segment seams, opcheck)
    bool is_export; // kept until the next run, readable from outside (logits, seams, taps)
} value_desc;

typedef enum activation { ACTIVATION_SILU = 0, ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF } activation;
typedef enum rope_style {
    ROPE_HALF = 0,   // pair (i, i + r/2), "NeoX"
    ROPE_INTERLEAVED // pair (2i, 2i + 1)
} rope_style;

typedef struct norm_params {
    float eps;
    float offset;  // added to the weight: 1 for Gemma checkpoints that store w - 1, else 0
    int64_t group; // elements normed together; the row width is a multiple of it
} norm_params;

typedef struct rope_params {
    rope_style style;
    int64_t head_dim; // the row is a multiple of it
    float scale;      // multiplies cos and sin (YaRN attention factor), else 1
} rope_params;

typedef struct op_params {
    float embed_scale; // EMBED
    norm_params norm;  // RMS_NORM, ADD_RMS_NORM, NORM_ADD, ROPE_APPEND (q/k norm, group = head_dim)
    rope_params rope;  // ROPE, ROPE_APPEND
    activation act;    // ACT_GATE, GATE_UP
    int64_t n_heads;   // ATTENTION: query heads; KV heads and head sizes are the state's
    float attn_scale;  // ATTENTION
} op_params;

#define OP_MAX_INPUTS  3
#define OP_MAX_WEIGHTS 3
#define OP_MAX_OUTPUTS 2
#define OP_ABSENT      (-1)

typedef struct op {
    op_kind kind;
    const char *name;            // "layer.12.q_proj"
    int device;                  // index into the placement's devices
    int inputs[OP_MAX_INPUTS];   // value ids, OP_ABSENT where unused
    int outputs[OP_MAX_OUTPUTS]; // value ids
    int weights[OP_MAX_WEIGHTS]; // weight ids, OP_ABSENT for an optional one that is not there
    int state;                   // state id or OP_ABSENT
    op_params params;
} op;

// Sequence state of one layer, as the program sees it. Kinds and pools are the engine's business.
typedef struct state_desc {
    const char *name; // "layer.12.kv"
    int64_t n_kv_heads;
    int64_t k_dim, v_dim; // per head
    int64_t window;       // positions visible, itself included; 0: all
    int group;            // states of a group share one block table per sequence
} state_desc;

typedef struct program {
    arena *memory; // borrowed from the model
    value_desc *values;
    int n_values;
    op *ops;
    int n_ops;
    weight *weights;
    int n_weights;
    state_desc *states;
    int n_states;
    int n_state_groups;
    int logits; // value id of the logits [R, vocab], OP_ABSENT in parts of a program
    // growth room of the builder
    int cap_values, cap_ops, cap_weights, cap_states;
    bool oom;
} program;

// ---- building: ids are returned; when memory runs out the program's oom flag is set and ids are 0 ----

status_code program_new(arena *memory, program **out, error_ctx *err);
int program_value(program *p, row_kind rows, int64_t width, const char *name_format, ...)
    __attribute__((format(printf, 4, 5)));
int program_weight(program *p, const weight *w);
int program_state(program *p, const state_desc *desc);
// Adds an op with all operands absent; the caller fills it. Valid until the next program_op.
op *program_op(program *p, op_kind kind, const char *name_format, ...) __attribute__((format(printf, 3, 4)));
// Check ids, arity, shapes and single assignment (an op may overwrite a value only where ops.def allows in-place).
status_code program_check(const program *p, error_ctx *err);

// ---- lowering and scratch ----

typedef bool (*op_supports_fn)(const void *context, const program *p, const op *o);
// A program in which every composite that `supports` refuses is replaced by its primitives. Shares weights, states
// and the arena with p.
status_code program_lower(const program *p, op_supports_fn supports, const void *context, program **out,
                          error_ctx *err);

typedef struct row_limits {
    int64_t max_tokens, max_seqs, max_logit_rows;
} row_limits;

// Place all values in one scratch buffer by liveness (imports and exports live throughout).
// offsets: [n_values] bytes, multiples of 64. Row pitch is width * element_bytes, unpadded.
status_code program_scratch(const program *p, const row_limits *limits, size_t element_bytes, bool keep_all,
                            uint64_t *offsets, uint64_t *total_bytes, error_ctx *err);

int64_t value_max_rows(const value_desc *v, const row_limits *limits);

// Floating-point operations and bytes of weights and state an op moves for the given counts (rooflines, bench lines).
// kv_bytes: bytes of one stored state element; depth: positions each row attends to.
void op_cost(const program *p, const op *o, int64_t rows, int64_t depth, int kv_bytes, double *flops, double *bytes);

// Readable listing, one line an op; kernel_name may be NULL.
typedef const char *(*op_kernel_name_fn)(const void *context, int op_index);
void program_describe(const program *p, op_kernel_name_fn kernel_name, const void *context, strbuf *out);

#endif
