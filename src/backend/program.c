// Building, checking, costing and describing op programs.
#include "backend/program.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const op_info *op_get_info(op_kind kind) {
    static const op_info table[OP_KIND_COUNT] = {
#define OP(id, name, n_in, n_weights, n_out, uses_state, is_composite, accum, tolerance, meaning)                      \
    [OP_##id] = {name, n_in, n_weights, n_out, uses_state, is_composite, TOLERANCE_##tolerance, meaning},
#include "backend/ops.def"
#undef OP
    };
    return kind > OP_NONE && kind < OP_KIND_COUNT ? &table[kind] : NULL;
}

status_code program_new(arena *memory, program **out, error_ctx *err) {
    program *p = arena_alloc_zero(memory, sizeof *p);
    *out = p;
    if (!p) {
        return error_no_memory(err, "an op program");
    }
    p->memory = memory;
    p->logits = OP_ABSENT;
    return STATUS_OK;
}

// Room for one more item in an arena-backed array. Returns the (possibly moved) array, NULL when out of memory;
// old copies stay in the arena, which costs at most as much again as the final array.
static void *grow(program *p, void *items, int count, int *cap, size_t item_bytes) {
    if (count < *cap) {
        return items;
    }
    int new_cap = *cap ? *cap * 2 : 64;
    void *moved = arena_alloc_array(p->memory, (size_t)new_cap, item_bytes);
    if (!moved) {
        p->oom = true;
        return NULL;
    }
    if (count) {
        memcpy(moved, items, (size_t)count * item_bytes);
    }
    *cap = new_cap;
    return moved;
}

static const char *format_name(program *p, const char *format, va_list args) {
    char text[128];
    vsnprintf(text, sizeof text, format, args);
    const char *name = arena_strdup(p->memory, text);
    if (!name) {
        p->oom = true;
    }
    return name;
}

int program_value(program *p, row_kind rows, int64_t width, const char *name_format, ...) {
    value_desc *values = grow(p, p->values, p->n_values, &p->cap_values, sizeof *values);
    if (!values) {
        return 0;
    }
    p->values = values;
    va_list args;
    va_start(args, name_format);
    values[p->n_values] = (value_desc){.name = format_name(p, name_format, args), .rows = rows, .width = width};
    va_end(args);
    return p->n_values++;
}

int program_weight(program *p, const weight *w) {
    weight *weights = grow(p, p->weights, p->n_weights, &p->cap_weights, sizeof *weights);
    if (!weights) {
        return 0;
    }
    p->weights = weights;
    weights[p->n_weights] = *w;
    return p->n_weights++;
}

int program_state(program *p, const state_desc *desc) {
    state_desc *states = grow(p, p->states, p->n_states, &p->cap_states, sizeof *states);
    if (!states) {
        return 0;
    }
    p->states = states;
    states[p->n_states] = *desc;
    if (desc->group >= p->n_state_groups) {
        p->n_state_groups = desc->group + 1;
    }
    return p->n_states++;
}

op *program_op(program *p, op_kind kind, const char *name_format, ...) {
    static op discarded; // what a caller fills after memory ran out; program_check reports it
    op *ops = grow(p, p->ops, p->n_ops, &p->cap_ops, sizeof *ops);
    if (!ops) {
        return &discarded;
    }
    p->ops = ops;
    op *o = &ops[p->n_ops++];
    *o = (op){.kind = kind, .state = OP_ABSENT, .params = {.embed_scale = 1.0f, .rope.scale = 1.0f}};
    for (int i = 0; i < OP_MAX_INPUTS; i++) {
        o->inputs[i] = OP_ABSENT;
    }
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        o->outputs[i] = OP_ABSENT;
    }
    for (int i = 0; i < OP_MAX_WEIGHTS; i++) {
        o->weights[i] = OP_ABSENT;
    }
    va_list args;
    va_start(args, name_format);
    o->name = format_name(p, name_format, args);
    va_end(args);
    return o;
}

// ---- checking ----

typedef struct checker {
    const program *p;
    const op *o;
    error_ctx *err;
} checker;

static status_code op_error(const checker *c, const char *what, int64_t found, int64_t expected) {
    error_object(c->err, "op %s (%s)", c->o->name, op_get_info(c->o->kind)->name);
    return error_set(c->err, STATUS_INTERNAL, "%s is %lld, expected %lld", what, (long long)found, (long long)expected);
}

static int64_t in_width(const checker *c, int i) {
    return c->p->values[c->o->inputs[i]].width;
}
static int64_t out_width(const checker *c, int i) {
    return c->p->values[c->o->outputs[i]].width;
}

#define EXPECT(what, found, expected)                                                                                  \
    do {                                                                                                               \
        int64_t found_ = (found), expected_ = (expected);                                                              \
        if (found_ != expected_) {                                                                                     \
            return op_error(c, (what), found_, expected_);                                                             \
        }                                                                                                              \
    } while (0)

static status_code expect_vector(const checker *c, int slot, int64_t len, const char *what) {
    int id = c->o->weights[slot];
    if (id == OP_ABSENT) {
        return STATUS_OK;
    }
    const weight *w = &c->p->weights[id];
    int64_t elements = 1;
    for (int d = 0; d < w->n_dims; d++) {
        elements *= w->shape[d];
    }
    EXPECT(what, elements, len);
    return STATUS_OK;
}

static status_code expect_matrix(const checker *c, int slot, int64_t rows, int64_t columns) {
    const weight *w = &c->p->weights[c->o->weights[slot]];
    EXPECT("weight dimensions", w->n_dims, 2);
    EXPECT("weight rows", w->shape[0], rows);
    EXPECT("weight columns", w->shape[1], columns);
    return STATUS_OK;
}

static status_code check_norm(const checker *c, int weight_slot, int64_t width) {
    const norm_params *norm = &c->o->params.norm;
    if (norm->group <= 0 || width % norm->group != 0) {
        return op_error(c, "norm group", norm->group, width);
    }
    return expect_vector(c, weight_slot, norm->group, "norm weight length");
}

static status_code check_rope(const checker *c, int slot, int64_t width) {
    const rope_params *rope = &c->o->params.rope;
    const weight *w = &c->p->weights[c->o->weights[slot]];
    if (rope->head_dim <= 0 || width % rope->head_dim != 0) {
        return op_error(c, "rope head_dim", rope->head_dim, width);
    }
    if (w->type != DTYPE_F32 || w->n_dims != 1 || w->shape[0] * 2 > rope->head_dim) {
        return op_error(c, "rope rotated channels", w->shape[0] * 2, rope->head_dim);
    }
    return STATUS_OK;
}

// Shape rules of each kind; ids and arity were checked before.
static status_code check_shapes(const checker *c) {
    const program *p = c->p;
    const op *o = c->o;
    switch (o->kind) {
    case OP_EMBED:
        EXPECT("table columns", weight_columns(&p->weights[o->weights[0]]), out_width(c, 0));
        return STATUS_OK;
    case OP_RMS_NORM:
        EXPECT("output width", out_width(c, 0), in_width(c, 0));
        return check_norm(c, 0, in_width(c, 0));
    case OP_MATMUL:
        RETURN_IF_ERROR(expect_matrix(c, 0, out_width(c, 0), in_width(c, 0)));
        return expect_vector(c, 1, out_width(c, 0), "bias length");
    case OP_ADD:
    case OP_ACT_GATE:
        EXPECT("second input width", in_width(c, 1), in_width(c, 0));
        EXPECT("output width", out_width(c, 0), in_width(c, 0));
        return STATUS_OK;
    case OP_ROPE:
        EXPECT("output width", out_width(c, 0), in_width(c, 0));
        return check_rope(c, 0, in_width(c, 0));
    case OP_KV_APPEND:
        EXPECT("k width", in_width(c, 0), p->states[o->state].n_kv_heads * p->states[o->state].k_dim);
        EXPECT("v width", in_width(c, 1), p->states[o->state].n_kv_heads * p->states[o->state].v_dim);
        return STATUS_OK;
    case OP_ATTENTION: {
        const state_desc *s = &p->states[o->state];
        if (o->params.n_heads <= 0 || o->params.n_heads % s->n_kv_heads != 0) {
            return op_error(c, "query heads", o->params.n_heads, s->n_kv_heads);
        }
        EXPECT("q width", in_width(c, 0), o->params.n_heads * s->k_dim);
        EXPECT("output width", out_width(c, 0), o->params.n_heads * s->v_dim);
        return STATUS_OK;
    }
    case OP_GATHER_ROWS:
        EXPECT("output width", out_width(c, 0), in_width(c, 0));
        EXPECT("output rows kind", p->values[o->outputs[0]].rows, ROWS_LOGITS);
        return STATUS_OK;
    case OP_ADD_RMS_NORM:
        EXPECT("second input width", in_width(c, 1), in_width(c, 0));
        EXPECT("sum width", out_width(c, 0), in_width(c, 0));
        EXPECT("output width", out_width(c, 1), in_width(c, 0));
        return check_norm(c, 0, in_width(c, 0));
    case OP_NORM_ADD:
        EXPECT("second input width", in_width(c, 1), in_width(c, 0));
        EXPECT("output width", out_width(c, 0), in_width(c, 0));
        return check_norm(c, 0, in_width(c, 0));
    case OP_GATE_UP:
        RETURN_IF_ERROR(expect_matrix(c, 0, out_width(c, 0), in_width(c, 0)));
        return expect_matrix(c, 1, out_width(c, 0), in_width(c, 0));
    case OP_ROPE_APPEND: {
        const state_desc *s = &p->states[o->state];
        EXPECT("rope head_dim", o->params.rope.head_dim, s->k_dim);
        EXPECT("k width", in_width(c, 1), s->n_kv_heads * s->k_dim);
        EXPECT("v width", in_width(c, 2), s->n_kv_heads * s->v_dim);
        EXPECT("output width", out_width(c, 0), in_width(c, 0));
        if (o->weights[1] != OP_ABSENT) {
            RETURN_IF_ERROR(check_norm(c, 1, in_width(c, 0)));
        }
        if (o->weights[2] != OP_ABSENT) {
            RETURN_IF_ERROR(check_norm(c, 2, in_width(c, 1)));
        }
        return check_rope(c, 0, in_width(c, 0));
    }
    case OP_NONE:
    case OP_KIND_COUNT:
        break;
    }
    return error_set(c->err, STATUS_INTERNAL, "op kind %d is unknown", (int)o->kind);
}

// Weights that may be absent: a bias, and the q/k norms of rope_append.
static bool weight_is_optional(op_kind kind, int slot) {
    return (kind == OP_MATMUL && slot == 1) || (kind == OP_ROPE_APPEND && slot > 0);
}

static status_code check_operands(const checker *c, const op_info *info) {
    const program *p = c->p;
    const op *o = c->o;
    for (int i = 0; i < info->n_inputs; i++) {
        if (o->inputs[i] < 0 || o->inputs[i] >= p->n_values) {
            return op_error(c, "input value id", o->inputs[i], p->n_values);
        }
    }
    for (int i = 0; i < info->n_outputs; i++) {
        if (o->outputs[i] < 0 || o->outputs[i] >= p->n_values) {
            return op_error(c, "output value id", o->outputs[i], p->n_values);
        }
    }
    for (int i = 0; i < info->n_weights; i++) {
        bool may_be_absent = weight_is_optional(o->kind, i) && o->weights[i] == OP_ABSENT;
        if (!may_be_absent && (o->weights[i] < 0 || o->weights[i] >= p->n_weights)) {
            return op_error(c, "weight id", o->weights[i], p->n_weights);
        }
    }
    if (info->uses_state && (o->state < 0 || o->state >= p->n_states)) {
        return op_error(c, "state id", o->state, p->n_states);
    }
    return STATUS_OK;
}

// An input must have been written before; an output that was written before must be one of the op's own inputs.
static status_code check_order(const checker *c, const op_info *info, bool *is_written) {
    const op *o = c->o;
    for (int i = 0; i < info->n_inputs; i++) {
        if (!is_written[o->inputs[i]]) {
            return op_error(c, "input read before it is written: value", o->inputs[i], OP_ABSENT);
        }
    }
    for (int i = 0; i < info->n_outputs; i++) {
        bool is_own_input = false;
        for (int k = 0; k < info->n_inputs; k++) {
            is_own_input |= o->inputs[k] == o->outputs[i];
        }
        if (is_written[o->outputs[i]] && !is_own_input) {
            return op_error(c, "value written twice", o->outputs[i], OP_ABSENT);
        }
        is_written[o->outputs[i]] = true;
    }
    return STATUS_OK;
}

status_code program_check(const program *p, error_ctx *err) {
    if (p->oom) {
        return error_no_memory(err, "an op program");
    }
    bool *is_written = arena_alloc_array(p->memory, (size_t)p->n_values + 1, sizeof *is_written);
    if (!is_written) {
        return error_no_memory(err, "checking an op program");
    }
    for (int v = 0; v < p->n_values; v++) {
        is_written[v] = p->values[v].is_import;
    }
    for (int i = 0; i < p->n_ops; i++) {
        checker c = {p, &p->ops[i], err};
        const op_info *info = op_get_info(p->ops[i].kind);
        if (!info) {
            return error_set(err, STATUS_INTERNAL, "op %d has unknown kind %d", i, (int)p->ops[i].kind);
        }
        RETURN_IF_ERROR(check_operands(&c, info));
        RETURN_IF_ERROR(check_shapes(&c));
        RETURN_IF_ERROR(check_order(&c, info, is_written));
    }
    return STATUS_OK;
}

int64_t value_max_rows(const value_desc *v, const row_limits *limits) {
    return v->rows == ROWS_TOKENS ? limits->max_tokens : limits->max_logit_rows;
}

// ---- cost ----

static double weight_total_bytes(const weight *w) {
    double bytes = 0;
    for (int i = 0; i < w->n_planes; i++) {
        bytes += (double)w->planes[i].bytes;
    }
    return bytes;
}

void op_cost(const program *p, const op *o, int64_t rows, int64_t depth, int kv_bytes, double *flops, double *bytes) {
    const op_info *info = op_get_info(o->kind);
    double n = (double)rows;
    *flops = 0;
    *bytes = 0;
    for (int i = 0; i < info->n_inputs; i++) {
        *bytes += n * (double)p->values[o->inputs[i]].width * 4;
    }
    for (int i = 0; i < info->n_outputs; i++) {
        *bytes += n * (double)p->values[o->outputs[i]].width * 4;
        *flops += n * (double)p->values[o->outputs[i]].width;
    }
    if (o->kind == OP_EMBED) {
        const weight *table = &p->weights[o->weights[0]];
        *bytes += n * weight_total_bytes(table) / (double)weight_rows(table);
        return;
    }
    for (int i = 0; i < info->n_weights; i++) {
        if (o->weights[i] == OP_ABSENT) {
            continue;
        }
        const weight *w = &p->weights[o->weights[i]];
        *bytes += weight_total_bytes(w);
        if (w->n_dims == 2) {
            *flops += 2 * n * (double)w->shape[0] * (double)w->shape[1];
        }
    }
    if (info->uses_state) {
        const state_desc *s = &p->states[o->state];
        double row_elements = (double)s->n_kv_heads * (double)(s->k_dim + s->v_dim);
        if (o->kind == OP_ATTENTION) {
            double visible = (double)(s->window > 0 && s->window < depth ? s->window : depth);
            *bytes += visible * row_elements * kv_bytes;
            *flops += 2 * n * visible * (double)o->params.n_heads * (double)(s->k_dim + s->v_dim);
        } else {
            *bytes += n * row_elements * kv_bytes;
        }
    }
}

// ---- description ----

void program_describe(const program *p, op_kernel_name_fn kernel_name, const void *context, strbuf *out) {
    strbuf_printf(out, "%d ops, %d values, %d weights, %d states in %d groups\n", p->n_ops, p->n_values, p->n_weights,
                  p->n_states, p->n_state_groups);
    for (int i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        const op_info *info = op_get_info(o->kind);
        strbuf_printf(out, "%4d dev%d %-13s %-26s", i, o->device, info->name, o->name);
        for (int k = 0; k < info->n_inputs; k++) {
            const value_desc *v = &p->values[o->inputs[k]];
            strbuf_printf(out, "%s%s[%lld]", k ? ", " : " ", v->name, (long long)v->width);
        }
        for (int k = 0; k < info->n_weights; k++) {
            if (o->weights[k] != OP_ABSENT) {
                const weight *w = &p->weights[o->weights[k]];
                strbuf_printf(out, " | %s %s", w->name, dtype_get(w->type)->name);
            }
        }
        if (o->state != OP_ABSENT) {
            strbuf_printf(out, " | %s", p->states[o->state].name);
        }
        for (int k = 0; k < info->n_outputs; k++) {
            const value_desc *v = &p->values[o->outputs[k]];
            strbuf_printf(out, "%s%s[%lld]", k ? ", " : " -> ", v->name, (long long)v->width);
        }
        if (kernel_name) {
            strbuf_printf(out, "  {%s}", kernel_name(context, i));
        }
        strbuf_append_char(out, '\n');
    }
}
