// The reference backend: float64 definitions of the primitive ops.
//
// Memory: a plan holds every value as double [rows, width] in one buffer, and a row of decoded weights per thread.
// State is f64. Threads share output columns or rows; every sum is made by one thread in one order, so results do not
// depend on the thread count. Composites are refused: their definition is the lowering.
#include "backend/ref/ref_backend.h"

#include "base/arena.h"
#include "base/team.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ref_backend {
    backend base;
    team *threads;
} ref_backend;

typedef struct ref_plan {
    plan base;
    arena *memory;
    uint64_t *offsets; // [n_values] bytes into values
    uint8_t *values;
    uint64_t bytes;
    double *row_buffers; // [n_threads][2 * row_elements]: a row in double, then space for it as decoded
    int64_t row_elements;
} ref_plan;

// What the body of an op gets.
typedef struct ref_job {
    const ref_plan *pl;
    const op *o;
    const batch *rows;
    const state_slab *slabs;
} ref_job;

static double *value_at(const ref_plan *pl, int value) {
    return (double *)(pl->values + pl->offsets[value]);
}
static int64_t value_rows(const ref_job *j, int value) {
    return j->pl->base.ops->values[value].rows == ROWS_TOKENS ? j->rows->n_tokens : j->rows->n_logit_rows;
}
static int64_t value_width(const ref_job *j, int value) {
    return j->pl->base.ops->values[value].width;
}
static const weight *weight_of(const ref_job *j, int slot) {
    return j->o->weights[slot] == OP_ABSENT ? NULL : &j->pl->base.ops->weights[j->o->weights[slot]];
}

// Row `row` of a weight as double, in the thread's buffer.
static const double *decode_row(const ref_job *j, const weight *w, int64_t row, int thread) {
    const ref_plan *pl = j->pl;
    double *wide = pl->row_buffers + (int64_t)thread * 2 * pl->row_elements;
    float *narrow = (float *)(wide + pl->row_elements);
    weight_decode_row(w, row, narrow);
    for (int64_t i = 0; i < weight_columns(w); i++) {
        wide[i] = (double)narrow[i];
    }
    return wide;
}

// ---- ops; n items are shared by the team in each ----

static void ref_embed(const ref_job *j, int64_t begin, int64_t end, int thread) {
    int64_t width = value_width(j, j->o->outputs[0]);
    double *out = value_at(j->pl, j->o->outputs[0]);
    for (int64_t row = begin; row < end; row++) {
        const double *table_row = decode_row(j, weight_of(j, 0), j->rows->tokens[row], thread);
        for (int64_t i = 0; i < width; i++) {
            out[row * width + i] = table_row[i] * (double)j->o->params.embed_scale;
        }
    }
}

static void ref_rms_norm(const ref_job *j, int64_t begin, int64_t end, int thread) {
    const norm_params *norm = &j->o->params.norm;
    int64_t width = value_width(j, j->o->inputs[0]);
    const double *w = decode_row(j, weight_of(j, 0), 0, thread);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t at = row * width; at < (row + 1) * width; at += norm->group) {
            const double *x = value_at(j->pl, j->o->inputs[0]) + at;
            double *out = value_at(j->pl, j->o->outputs[0]) + at, sum = 0;
            for (int64_t i = 0; i < norm->group; i++) {
                sum += x[i] * x[i];
            }
            double factor = 1.0 / sqrt(sum / (double)norm->group + (double)norm->eps);
            for (int64_t i = 0; i < norm->group; i++) {
                out[i] = x[i] * factor * ((double)norm->offset + w[i]);
            }
        }
    }
}

// Four neighbouring elements of a row; the compiler maps them to whatever registers there are.
typedef double lanes __attribute__((vector_size(4 * sizeof(double)), aligned(sizeof(double)), may_alias));

// w . x: four sums over i mod 4, then the tail.
static double dot(const double *w, const double *x, int64_t k) {
    lanes sum = {0};
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
        sum += *(const lanes *)(w + i) * *(const lanes *)(x + i);
    }
    double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (; i < k; i++) {
        total += w[i] * x[i];
    }
    return total;
}

// The same for four rows of x, k apart, so that each element of w is loaded once: out[r] has the bits of dot().
static void dot_four_rows(const double *w, const double *x, int64_t k, double *out) {
    lanes sums[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
        const lanes w_lanes = *(const lanes *)(w + i);
        for (int r = 0; r < 4; r++) {
            sums[r] += w_lanes * *(const lanes *)(x + r * k + i);
        }
    }
    for (int r = 0; r < 4; r++) {
        out[r] = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
        for (int64_t tail = i; tail < k; tail++) {
            out[r] += w[tail] * x[r * k + tail];
        }
    }
}

// Items are output columns: a weight row is decoded once for all rows of x.
static void ref_matmul(const ref_job *j, int64_t begin, int64_t end, int thread) {
    int64_t rows = value_rows(j, j->o->inputs[0]), k = value_width(j, j->o->inputs[0]);
    int64_t n = value_width(j, j->o->outputs[0]);
    const double *x = value_at(j->pl, j->o->inputs[0]);
    double *out = value_at(j->pl, j->o->outputs[0]);
    const weight *bias = weight_of(j, 1);
    for (int64_t column = begin; column < end; column++) {
        // The bias first: both rows share one buffer.
        double bias_value = bias ? decode_row(j, bias, 0, thread)[column] : 0.0;
        const double *w = decode_row(j, weight_of(j, 0), column, thread);
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4) {
            double sums[4];
            dot_four_rows(w, x + row * k, k, sums);
            for (int r = 0; r < 4; r++) {
                out[(row + r) * n + column] = sums[r] + bias_value;
            }
        }
        for (; row < rows; row++) {
            out[row * n + column] = dot(w, x + row * k, k) + bias_value;
        }
    }
}

static void ref_add(const ref_job *j, int64_t begin, int64_t end, int thread) {
    (void)thread;
    int64_t width = value_width(j, j->o->inputs[0]);
    const double *a = value_at(j->pl, j->o->inputs[0]), *b = value_at(j->pl, j->o->inputs[1]);
    double *out = value_at(j->pl, j->o->outputs[0]);
    for (int64_t i = begin * width; i < end * width; i++) {
        out[i] = a[i] + b[i];
    }
}

static double activate(activation act, double x) {
    switch (act) {
    case ACTIVATION_SILU:
        return x / (1.0 + exp(-x));
    case ACTIVATION_GELU_TANH: // the logistic form: the one with tanh cancels for negative x
        return x / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_GELU_ERF:
        break;
    }
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

static void ref_act_gate(const ref_job *j, int64_t begin, int64_t end, int thread) {
    (void)thread;
    int64_t width = value_width(j, j->o->inputs[0]);
    const double *gate = value_at(j->pl, j->o->inputs[0]), *up = value_at(j->pl, j->o->inputs[1]);
    double *out = value_at(j->pl, j->o->outputs[0]);
    for (int64_t i = begin * width; i < end * width; i++) {
        out[i] = activate(j->o->params.act, gate[i]) * up[i];
    }
}

// The angle is f32(position) * f32(inv_freq) rounded to f32: checkpoints are trained with it, so it is part of the
// op's definition. Everything after is double.
static void ref_rope(const ref_job *j, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const rope_params *rope = &j->o->params.rope;
    int64_t width = value_width(j, j->o->inputs[0]), n_freqs = weight_columns(weight_of(j, 0));
    const float *inv_freq = weight_of(j, 0)->planes[0].data;
    for (int64_t row = begin; row < end; row++) {
        for (int64_t at = row * width; at < (row + 1) * width; at += rope->head_dim) {
            const double *x = value_at(j->pl, j->o->inputs[0]) + at;
            double *out = value_at(j->pl, j->o->outputs[0]) + at;
            for (int64_t i = 0; i < n_freqs; i++) {
                float frequency;
                memcpy(&frequency, inv_freq + i, sizeof frequency);
                float angle = (float)j->rows->positions[row] * frequency;
                double c = cos((double)angle) * (double)rope->scale, s = sin((double)angle) * (double)rope->scale;
                int64_t first = rope->style == ROPE_HALF ? i : 2 * i;
                int64_t second = rope->style == ROPE_HALF ? i + n_freqs : 2 * i + 1;
                double a = x[first], b = x[second];
                out[first] = a * c - b * s;
                out[second] = b * c + a * s;
            }
            for (int64_t i = 2 * n_freqs; i < rope->head_dim; i++) {
                out[i] = x[i];
            }
        }
    }
}

// Where position `position` of the sequence and head keep their `dim` elements.
static double *state_at(const ref_job *j, void *base, int64_t dim, const batch_seq *seq, int64_t position,
                        int64_t head) {
    const state_desc *s = &j->pl->base.ops->states[j->o->state];
    int64_t block = seq->tables[s->group][position / STATE_BLOCK_TOKENS];
    int64_t place = (block * s->n_kv_heads + head) * STATE_BLOCK_TOKENS + position % STATE_BLOCK_TOKENS;
    return (double *)base + place * dim;
}

static void ref_kv_append(const ref_job *j, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const state_desc *s = &j->pl->base.ops->states[j->o->state];
    const state_slab *slab = &j->slabs[j->o->state];
    for (int64_t row = begin; row < end; row++) {
        const batch_seq *seq = &j->rows->seqs[j->rows->seq_of_row[row]];
        for (int64_t head = 0; head < s->n_kv_heads; head++) {
            const double *k = value_at(j->pl, j->o->inputs[0]) + (row * s->n_kv_heads + head) * s->k_dim;
            const double *v = value_at(j->pl, j->o->inputs[1]) + (row * s->n_kv_heads + head) * s->v_dim;
            int64_t position = j->rows->positions[row];
            memcpy(state_at(j, slab->k, s->k_dim, seq, position, head), k, (size_t)s->k_dim * sizeof(double));
            memcpy(state_at(j, slab->v, s->v_dim, seq, position, head), v, (size_t)s->v_dim * sizeof(double));
        }
    }
}

// Items are (row, query head), in one pass with a running maximum.
static void ref_attention(const ref_job *j, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const state_desc *s = &j->pl->base.ops->states[j->o->state];
    const state_slab *slab = &j->slabs[j->o->state];
    int64_t n_heads = j->o->params.n_heads;
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / n_heads, head = item % n_heads, kv_head = head / (n_heads / s->n_kv_heads);
        const batch_seq *seq = &j->rows->seqs[j->rows->seq_of_row[row]];
        const double *q = value_at(j->pl, j->o->inputs[0]) + item * s->k_dim;
        double *out = value_at(j->pl, j->o->outputs[0]) + item * s->v_dim;
        double max = -INFINITY, sum = 0;
        memset(out, 0, (size_t)s->v_dim * sizeof(double));
        int64_t last = j->rows->positions[row], first = s->window > 0 && last >= s->window ? last - s->window + 1 : 0;
        for (int64_t position = first; position <= last; position++) {
            double score = dot(q, state_at(j, slab->k, s->k_dim, seq, position, kv_head), s->k_dim) *
                           (double)j->o->params.attn_scale;
            if (score > max) {
                double factor = exp(max - score);
                max = score;
                sum *= factor;
                for (int64_t i = 0; i < s->v_dim; i++) {
                    out[i] *= factor;
                }
            }
            double p = exp(score - max);
            const double *v = state_at(j, slab->v, s->v_dim, seq, position, kv_head);
            sum += p;
            for (int64_t i = 0; i < s->v_dim; i++) {
                out[i] += p * v[i];
            }
        }
        for (int64_t i = 0; i < s->v_dim; i++) {
            out[i] /= sum;
        }
    }
}

static void ref_gather_rows(const ref_job *j, int64_t begin, int64_t end, int thread) {
    (void)thread;
    int64_t width = value_width(j, j->o->inputs[0]);
    for (int64_t row = begin; row < end; row++) {
        memcpy(value_at(j->pl, j->o->outputs[0]) + row * width,
               value_at(j->pl, j->o->inputs[0]) + j->rows->logit_rows[row] * width, (size_t)width * sizeof(double));
    }
}

typedef void (*ref_body)(const ref_job *j, int64_t begin, int64_t end, int thread);

static const ref_body bodies[OP_KIND_COUNT] = {
    [OP_EMBED] = ref_embed,
    [OP_RMS_NORM] = ref_rms_norm,
    [OP_MATMUL] = ref_matmul,
    [OP_ADD] = ref_add,
    [OP_ACT_GATE] = ref_act_gate,
    [OP_ROPE] = ref_rope,
    [OP_KV_APPEND] = ref_kv_append,
    [OP_ATTENTION] = ref_attention,
    [OP_GATHER_ROWS] = ref_gather_rows,
};

// How many items the team shares: output columns, (row, head) pairs, or rows.
static int64_t count_items(const ref_job *j) {
    switch (j->o->kind) {
    case OP_MATMUL:
        return value_width(j, j->o->outputs[0]);
    case OP_ATTENTION:
        return j->rows->n_tokens * j->o->params.n_heads;
    case OP_EMBED:
    case OP_KV_APPEND:
        return j->rows->n_tokens;
    default:
        return value_rows(j, j->o->outputs[0]);
    }
}

// ---- backend ----

static void run_share(void *context, int thread, int n_threads) {
    ref_job j = *(const ref_job *)context;
    const program *p = j.pl->base.ops;
    team *threads = ((const ref_backend *)j.pl->base.owner)->threads;
    for (int i = 0; i < p->n_ops; i++) {
        int64_t begin, end;
        j.o = &p->ops[i];
        team_share(count_items(&j), 1, thread, n_threads, &begin, &end);
        if (begin < end) {
            bodies[j.o->kind](&j, begin, end, thread);
        }
        team_barrier(threads);
    }
}

static void ref_close(backend *b) {
    if (b) {
        team_free(((ref_backend *)b)->threads);
        free(b);
    }
}

static status_code ref_open(const backend_options *options, backend **out, error_ctx *err) {
    *out = NULL;
    ref_backend *b = calloc(1, sizeof *b);
    if (!b) {
        return error_no_memory(err, "the reference backend");
    }
    b->base.type = &ref_backend_type;
    int n_threads = options->n_threads > 0 ? options->n_threads : team_default_threads();
    status_code failed = team_new(n_threads, options->pin_threads, &b->threads, err);
    if (failed) {
        ref_close(&b->base);
        return failed;
    }
    *out = &b->base;
    return STATUS_OK;
}

static const char *ref_level(const backend *b) {
    (void)b;
    return "float64";
}

static int ref_n_threads(const backend *b) {
    return team_size(((const ref_backend *)b)->threads);
}

static dtype ref_state_type(const backend *b, dtype wanted) {
    (void)b;
    (void)wanted;
    return DTYPE_F64;
}

static bool ref_supports(const backend *b, const program *p, const op *o) {
    (void)b;
    const op_info *info = op_get_info(o->kind);
    if (!info || info->is_composite) {
        return false;
    }
    for (int i = 0; i < info->n_weights; i++) {
        const weight *w = o->weights[i] == OP_ABSENT ? NULL : &p->weights[o->weights[i]];
        const dtype_info *type = w ? dtype_get(w->type) : NULL;
        if (w && (!type || !type->decode || w->arrangement != LAYOUT_ROWS || w->n_planes != 1)) {
            return false;
        }
    }
    return true;
}

static status_code ref_buffer_alloc(backend *b, uint64_t bytes, void **out, error_ctx *err) {
    (void)b;
    size_t padded = ((size_t)bytes + 64) & ~(size_t)63;
    *out = bytes < SIZE_MAX / 2 ? aligned_alloc(64, padded) : NULL;
    if (!*out) {
        return error_no_memory(err, "a reference buffer");
    }
    memset(*out, 0, padded);
    return STATUS_OK;
}

static void ref_buffer_free(backend *b, void *buffer, uint64_t bytes) {
    (void)b;
    (void)bytes;
    free(buffer);
}

static void ref_plan_free(plan *base) {
    ref_plan *pl = (ref_plan *)base;
    if (pl) {
        free(pl->values);
        free(pl->row_buffers);
        arena_free(pl->memory);
        free(pl);
    }
}

static status_code ref_plan_fill(ref_plan *pl, bool keep_all, error_ctx *err) {
    const program *p = pl->base.ops;
    pl->memory = arena_new(0);
    pl->offsets = pl->memory ? arena_alloc_array(pl->memory, (size_t)p->n_values + 1, sizeof *pl->offsets) : NULL;
    if (!pl->offsets) {
        return error_no_memory(err, "a reference plan");
    }
    RETURN_IF_ERROR(program_scratch(p, &pl->base.limits, sizeof(double), keep_all, pl->offsets, &pl->bytes, err));
    void *values;
    RETURN_IF_ERROR(ref_buffer_alloc(pl->base.owner, pl->bytes, &values, err));
    pl->values = values;
    for (int i = 0; i < p->n_weights; i++) {
        int64_t columns = weight_columns(&p->weights[i]);
        pl->row_elements = columns > pl->row_elements ? columns : pl->row_elements;
    }
    void *row_buffers;
    uint64_t row_bytes = (uint64_t)ref_n_threads(pl->base.owner) * 2 * (uint64_t)pl->row_elements * sizeof(double);
    RETURN_IF_ERROR(ref_buffer_alloc(pl->base.owner, row_bytes, &row_buffers, err));
    pl->row_buffers = row_buffers;
    return STATUS_OK;
}

static status_code ref_plan_new(backend *b, const program *p, const row_limits *limits, bool keep_all, plan **out,
                                error_ctx *err) {
    *out = NULL;
    ref_plan *pl = calloc(1, sizeof *pl);
    if (!pl) {
        return error_no_memory(err, "a reference plan");
    }
    pl->base = (plan){.owner = b, .ops = p, .limits = *limits};
    status_code failed = ref_plan_fill(pl, keep_all, err);
    if (failed) {
        ref_plan_free(&pl->base);
        return failed;
    }
    *out = &pl->base;
    return STATUS_OK;
}

static uint64_t ref_scratch_bytes(const plan *pl) {
    return ((const ref_plan *)pl)->bytes;
}

static uint64_t ref_weight_bytes(const plan *pl) {
    (void)pl;
    return 0;
}

static const char *ref_kernel(const plan *pl, int op_index) {
    (void)pl;
    (void)op_index;
    return "float64";
}

static status_code ref_run(plan *base, const batch *rows, const state_slab *slabs, error_ctx *err) {
    const row_limits *limits = &base->limits;
    if (rows->n_tokens > limits->max_tokens || rows->n_seqs > limits->max_seqs ||
        rows->n_logit_rows > limits->max_logit_rows) {
        return error_set(err, STATUS_INTERNAL, "batch of %d tokens exceeds the plan's %lld", rows->n_tokens,
                         (long long)limits->max_tokens);
    }
    ref_job j = {.pl = (const ref_plan *)base, .rows = rows, .slabs = slabs};
    team_run(((ref_backend *)base->owner)->threads, run_share, &j);
    return STATUS_OK;
}

static void ref_write_value(plan *base, int value, const float *src, int64_t rows) {
    double *dst = value_at((ref_plan *)base, value);
    for (int64_t i = 0; i < rows * base->ops->values[value].width; i++) {
        dst[i] = (double)src[i];
    }
}

static void ref_read_value(plan *base, int value, float *dst, int64_t rows) {
    const double *src = value_at((ref_plan *)base, value);
    for (int64_t i = 0; i < rows * base->ops->values[value].width; i++) {
        dst[i] = (float)src[i];
    }
}

static void ref_read_value_f64(plan *base, int value, double *dst, int64_t rows) {
    size_t bytes = (size_t)(rows * base->ops->values[value].width) * sizeof(double);
    if (bytes) {
        memcpy(dst, value_at((ref_plan *)base, value), bytes);
    }
}

static const float *ref_view_value(plan *pl, int value) {
    (void)pl;
    (void)value;
    return NULL; // values are double
}

const backend_type ref_backend_type = {
    .name = "ref",
    .open = ref_open,
    .close = ref_close,
    .level = ref_level,
    .n_threads = ref_n_threads,
    .state_type = ref_state_type,
    .supports = ref_supports,
    .buffer_alloc = ref_buffer_alloc,
    .buffer_free = ref_buffer_free,
    .plan = ref_plan_new,
    .plan_free = ref_plan_free,
    .plan_scratch_bytes = ref_scratch_bytes,
    .plan_weight_bytes = ref_weight_bytes,
    .plan_kernel = ref_kernel,
    .run = ref_run,
    .write_value = ref_write_value,
    .read_value = ref_read_value,
    .read_value_f64 = ref_read_value_f64,
    .view_value = ref_view_value,
};
