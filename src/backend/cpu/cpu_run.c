// Running a plan: the whole program inside one team_run, every thread walking the same list of steps and taking its
// share of each. Nothing here allocates, locks or logs. How an op is shared never changes its bits: a result element
// is computed by one thread, in one order.
#include "backend/cpu/cpu_plan.h"

#include <math.h>
#include <string.h>

typedef struct share {
    int64_t begin, end;
} share;

static share share_of(int64_t n, int64_t grain, int thread, int n_threads) {
    share s;
    team_share(n, grain, thread, n_threads, &s.begin, &s.end);
    return s;
}

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// ---- tables of cosines and sines ----

// The angle is rounded to f32, as the models were trained with; its cosine is then taken in double, which stays exact
// to f32 at any position.
static void fill_rope_tables(const cpu_run_context *run, int thread, int n_threads) {
    for (int i = 0; i < run->pl->n_rope_tables; i++) {
        const rope_table *t = &run->pl->rope_tables[i];
        share s = share_of(run->rows->n_tokens * t->n_freqs, 8, thread, n_threads);
        for (int64_t at = s.begin; at < s.end; at++) {
            int64_t row = at / t->n_freqs, f = at % t->n_freqs;
            float angle = (float)run->rows->positions[row] * t->inv_freq[f];
            float *row_values = t->rows + row * 2 * t->n_freqs;
            row_values[f] = (float)cos((double)angle) * t->scale;
            row_values[t->n_freqs + f] = (float)sin((double)angle) * t->scale;
        }
    }
}

// ---- row-wise ops ----

static void run_convert(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    const act_copy *copy = s->copy_out;
    int64_t groups = (copy->k + GROUP - 1) / GROUP, rows = cpu_value_rows(run->pl, s->converted, run->rows);
    const float *values = cpu_value(run->pl, s->converted);
    share part = share_of(rows * groups, 1, thread, n_threads);
    for (int64_t at = part.begin; at < part.end;) {
        int64_t row = at / groups, first = at % groups, end = min_i64(groups, first + part.end - at);
        cpu_convert_groups(run->kernels, copy, values + row * copy->k, row, first, end);
        at += end - first;
    }
}

static void run_embed(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    const weight *table = &run->pl->base.ops->weights[s->o->weights[0]];
    int64_t width = weight_columns(table);
    float scale = s->o->params.embed_scale, *out = cpu_value(run->pl, s->o->outputs[0]);
    share part = share_of(run->rows->n_tokens, 1, thread, n_threads);
    for (int64_t row = part.begin; row < part.end; row++) {
        float *out_row = out + row * width;
        weight_decode_row(table, run->rows->tokens[row], out_row);
        for (int64_t i = 0; i < width; i++) {
            out_row[i] *= scale;
        }
    }
}

static void norm_groups(const cpu_run_context *run, const cpu_step *s, const float *x, float *out, int64_t n_groups) {
    const norm_params *norm = &s->o->params.norm;
    for (int64_t g = 0; g < n_groups; g++) {
        run->kernels->vector.rms_norm(x + g * norm->group, s->vectors[0], out + g * norm->group, norm->group, norm->eps,
                                      norm->offset);
    }
}

static void run_rms_norm(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    int64_t width = run->pl->base.ops->values[s->o->inputs[0]].width, group = s->o->params.norm.group;
    int64_t rows = cpu_value_rows(run->pl, s->o->inputs[0], run->rows);
    const float *x = cpu_value(run->pl, s->o->inputs[0]);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    share part = share_of(rows * (width / group), 1, thread, n_threads);
    norm_groups(run, s, x + part.begin * group, out + part.begin * group, part.end - part.begin);
    if (s->copy_out) { // planned only where a group is a whole row
        for (int64_t row = part.begin; row < part.end; row++) {
            cpu_convert_groups(run->kernels, s->copy_out, out + row * width, row, 0, (width + GROUP - 1) / GROUP);
        }
    }
}

// sum = a + b, out = norm(sum).
static void run_add_rms_norm(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    int64_t width = run->pl->base.ops->values[s->o->inputs[0]].width;
    const float *a = cpu_value(run->pl, s->o->inputs[0]), *b = cpu_value(run->pl, s->o->inputs[1]);
    float *sum = cpu_value(run->pl, s->o->outputs[0]), *out = cpu_value(run->pl, s->o->outputs[1]);
    share part = share_of(cpu_value_rows(run->pl, s->o->inputs[0], run->rows), 1, thread, n_threads);
    for (int64_t row = part.begin; row < part.end; row++) {
        int64_t at = row * width;
        run->kernels->vector.add(a + at, b + at, sum + at, width);
        norm_groups(run, s, sum + at, out + at, width / s->o->params.norm.group);
        if (s->copy_out) {
            cpu_convert_groups(run->kernels, s->copy_out, out + at, row, 0, (width + GROUP - 1) / GROUP);
        }
    }
}

// out = a + norm(b), the norm in the thread's own row: out may be a.
static void run_norm_add(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    int64_t width = run->pl->base.ops->values[s->o->inputs[0]].width;
    const float *a = cpu_value(run->pl, s->o->inputs[0]), *b = cpu_value(run->pl, s->o->inputs[1]);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    float *normed = (float *)(run->pl->thread_scratch + (uint64_t)thread * run->pl->thread_scratch_bytes);
    share part = share_of(cpu_value_rows(run->pl, s->o->inputs[0], run->rows), 1, thread, n_threads);
    for (int64_t row = part.begin; row < part.end; row++) {
        int64_t at = row * width;
        norm_groups(run, s, b + at, normed, width / s->o->params.norm.group);
        run->kernels->vector.add(a + at, normed, out + at, width);
        if (s->copy_out) {
            cpu_convert_groups(run->kernels, s->copy_out, out + at, row, 0, (width + GROUP - 1) / GROUP);
        }
    }
}

// ADD and ACT_GATE: all elements in one run, shared in multiples of a cache line.
static void run_elementwise(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    int64_t width = run->pl->base.ops->values[s->o->inputs[0]].width;
    const float *a = cpu_value(run->pl, s->o->inputs[0]), *b = cpu_value(run->pl, s->o->inputs[1]);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    share part = share_of(cpu_value_rows(run->pl, s->o->inputs[0], run->rows) * width, 64, thread, n_threads);
    int64_t n = part.end - part.begin;
    if (s->o->kind == OP_ADD) {
        run->kernels->vector.add(a + part.begin, b + part.begin, out + part.begin, n);
    } else {
        run->kernels->vector.act_gate(s->o->params.act, a + part.begin, b + part.begin, out + part.begin, n);
    }
}

static void run_gather(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    int64_t width = run->pl->base.ops->values[s->o->inputs[0]].width;
    const float *in = cpu_value(run->pl, s->o->inputs[0]);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    share part = share_of(run->rows->n_logit_rows, 1, thread, n_threads);
    for (int64_t row = part.begin; row < part.end; row++) {
        memcpy(out + row * width, in + run->rows->logit_rows[row] * width, (size_t)width * sizeof(float));
    }
}

// ---- rope and state ----

static void rotate(const cpu_run_context *run, const cpu_step *s, int64_t row, const float *x, float *out) {
    const rope_table *t = s->rope;
    const float *cosines = t->rows + row * 2 * t->n_freqs;
    run->kernels->vector.rope(s->o->params.rope.style, x, cosines, cosines + t->n_freqs, t->n_freqs,
                              s->o->params.rope.head_dim, out);
}

static void run_rope(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    int64_t width = run->pl->base.ops->values[s->o->inputs[0]].width, head_dim = s->o->params.rope.head_dim;
    int64_t heads = width / head_dim;
    const float *x = cpu_value(run->pl, s->o->inputs[0]);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    share part = share_of(run->rows->n_tokens * heads, 1, thread, n_threads);
    for (int64_t at = part.begin; at < part.end; at++) {
        rotate(run, s, at / heads, x + at * head_dim, out + at * head_dim);
    }
}

// Store one head's k or v (n elements) of a token row.
static void store_state(const cpu_run_context *run, const cpu_step *s, int64_t row, int64_t head, bool is_v,
                        const float *x) {
    const state_desc *desc = &run->pl->base.ops->states[s->o->state];
    const state_slab *slab = &run->slabs[s->o->state];
    int32_t position = run->rows->positions[row];
    const batch_seq *seq = &run->rows->seqs[run->rows->seq_of_row[row]];
    int64_t block = seq->tables[desc->group][position / STATE_BLOCK_TOKENS];
    int64_t n = is_v ? desc->v_dim : desc->k_dim;
    int64_t element = ((block * desc->n_kv_heads + head) * STATE_BLOCK_TOKENS + position % STATE_BLOCK_TOKENS) * n;
    void *dst = (uint8_t *)(is_v ? slab->v : slab->k) + (size_t)element * cpu_state_bytes(slab->type);
    switch (slab->type) {
    case DTYPE_F16:
        run->kernels->vector.to_f16(x, dst, n);
        break;
    case DTYPE_BF16:
        run->kernels->vector.to_bf16(x, dst, n);
        break;
    default:
        memcpy(dst, x, (size_t)n * sizeof(float));
        break;
    }
}

static void run_kv_append(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    const state_desc *desc = &run->pl->base.ops->states[s->o->state];
    const float *k = cpu_value(run->pl, s->o->inputs[0]), *v = cpu_value(run->pl, s->o->inputs[1]);
    share part = share_of(run->rows->n_tokens * desc->n_kv_heads, 1, thread, n_threads);
    for (int64_t at = part.begin; at < part.end; at++) {
        store_state(run, s, at / desc->n_kv_heads, at % desc->n_kv_heads, false, k + at * desc->k_dim);
        store_state(run, s, at / desc->n_kv_heads, at % desc->n_kv_heads, true, v + at * desc->v_dim);
    }
}

// Norm where there is one, then rotate, one head of one row.
static void norm_rotate(const cpu_run_context *run, const cpu_step *s, int norm_slot, int64_t row, const float *x,
                        float *out) {
    const norm_params *norm = &s->o->params.norm;
    if (s->vectors[norm_slot]) {
        run->kernels->vector.rms_norm(x, s->vectors[norm_slot], out, norm->group, norm->eps, norm->offset);
        x = out;
    }
    rotate(run, s, row, x, out);
}

static void run_rope_append(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    const state_desc *desc = &run->pl->base.ops->states[s->o->state];
    int64_t head_dim = s->o->params.rope.head_dim, kv_heads = desc->n_kv_heads;
    int64_t q_heads = run->pl->base.ops->values[s->o->inputs[0]].width / head_dim, per_row = q_heads + kv_heads;
    const float *q = cpu_value(run->pl, s->o->inputs[0]), *k = cpu_value(run->pl, s->o->inputs[1]);
    const float *v = cpu_value(run->pl, s->o->inputs[2]);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    float *k_head = (float *)(run->pl->thread_scratch + (uint64_t)thread * run->pl->thread_scratch_bytes);
    share part = share_of(run->rows->n_tokens * per_row, 1, thread, n_threads);
    for (int64_t at = part.begin; at < part.end; at++) {
        int64_t row = at / per_row, head = at % per_row;
        if (head < q_heads) {
            int64_t place = (row * q_heads + head) * head_dim;
            norm_rotate(run, s, 1, row, q + place, out + place);
        } else {
            head -= q_heads;
            norm_rotate(run, s, 2, row, k + (row * kv_heads + head) * head_dim, k_head);
            store_state(run, s, row, head, false, k_head);
            store_state(run, s, row, head, true, v + (row * kv_heads + head) * desc->v_dim);
        }
    }
}

// ---- matmul ----

// A thread's work space in a matmul: two tiles [MATMUL_BLOCK_ROWS, PANEL_ROWS], then a row and a panel for decoding.
typedef struct matmul_space {
    float *tiles[2];
    float *row, *panel;
} matmul_space;

static matmul_space matmul_space_of(const cpu_plan *pl, int64_t k, int thread) {
    float *at = (float *)(pl->thread_scratch + (uint64_t)thread * pl->thread_scratch_bytes);
    const int64_t tile = MATMUL_BLOCK_ROWS * PANEL_ROWS;
    return (matmul_space){.tiles = {at, at + tile}, .panel = at + 2 * tile, .row = at + 2 * tile + k * PANEL_ROWS};
}

// Sums the pieces of each row: tile [n, ACT_PIECES, PANEL_ROWS] becomes [n, PANEL_ROWS] in place.
static void add_pieces(float *tile, int n) {
    for (int r = 0; r < n; r++) {
        const float *pieces = tile + r * ACT_PIECES * PANEL_ROWS;
        for (int lane = 0; lane < PANEL_ROWS; lane++) {
            tile[r * PANEL_ROWS + lane] = pieces[lane] + pieces[PANEL_ROWS + lane];
        }
    }
}

// Panel `panel` times rows [first, first + n) of the step's activations, into tile [n, PANEL_ROWS]. The tile has room
// for MATMUL_BLOCK_ROWS rows, pieces counted.
static void multiply_panel(const cpu_run_context *run, const cpu_step *s, const matmul_weight *m, int64_t panel,
                           int64_t first, int n, const matmul_space *space, float *tile) {
    const matmul_kernels *kernels = &run->kernels->matmul;
    const uint8_t *data = m->panels + (uint64_t)panel * m->panel_bytes;
    const void *acts = cpu_value(run->pl, s->o->inputs[0]) + first * m->k;
    const int n_rows = n;
    if (s->copy) {
        acts = s->copy->rows + (size_t)(first * ACT_PIECES) * s->copy->row_bytes;
        n *= ACT_PIECES;
    }
    switch (m->kind) {
    case PACKED_Q8:
        kernels->q8[m->form](data, m->k, acts, n, tile);
        break;
    case PACKED_F32:
        kernels->f32(data, m->k, acts, n, tile);
        break;
    case PACKED_F16:
        kernels->f16(data, m->k, acts, n, tile);
        break;
    case PACKED_BF16:
        kernels->bf16(data, m->k, acts, n, tile);
        break;
    case PACKED_BF16_PAIRS:
        kernels->bf16_pairs(data, m->k, acts, n, tile);
        break;
    case PACKED_GENERIC:
        pack_panel(m->source, PACKED_GENERIC, m->form, panel, space->row, space->panel);
        kernels->f32(space->panel, m->k, acts, n, tile);
        break;
    }
    if (s->copy) {
        add_pieces(tile, n_rows);
    }
}

static void store_lanes(float *dst, const float *src, const float *bias, int lanes) {
    if (bias) {
        for (int lane = 0; lane < lanes; lane++) {
            dst[lane] = src[lane] + bias[lane];
        }
    } else if (lanes == PANEL_ROWS) { // a constant size is a few moves instead of a call
        memcpy(dst, src, PANEL_ROWS * sizeof(float));
    } else {
        memcpy(dst, src, (size_t)lanes * sizeof(float));
    }
}

// Items are (row block, panel), panels running fastest; a gate_up whose output is converted takes panels in pairs, so
// that whole groups of 32 outputs are at hand.
static void run_matmul(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    const matmul_weight *m = s->matmul[0], *up = s->matmul[1];
    int64_t rows = cpu_value_rows(run->pl, s->o->inputs[0], run->rows), panels = pack_panels(m->n);
    int64_t block_rows = s->copy ? MATMUL_BLOCK_ROWS / ACT_PIECES : MATMUL_BLOCK_ROWS;
    int64_t row_blocks = (rows + block_rows - 1) / block_rows;
    matmul_space space = matmul_space_of(run->pl, m->k, thread);
    float *out = cpu_value(run->pl, s->o->outputs[0]);
    const float *bias = s->vectors[1];
    share part = share_of(row_blocks * panels, s->copy_out ? 2 : 1, thread, n_threads);
    for (int64_t item = part.begin; item < part.end; item++) {
        int64_t first = item / panels * block_rows, panel = item % panels, column = panel * PANEL_ROWS;
        int n = (int)min_i64(block_rows, rows - first), lanes = (int)min_i64(PANEL_ROWS, m->n - column);
        multiply_panel(run, s, m, panel, first, n, &space, space.tiles[0]);
        if (up) {
            multiply_panel(run, s, up, panel, first, n, &space, space.tiles[1]);
            run->kernels->vector.act_gate(s->o->params.act, space.tiles[0], space.tiles[1], space.tiles[0],
                                          (int64_t)n * PANEL_ROWS);
        }
        for (int r = 0; r < n; r++) {
            float *dst = out + (first + r) * m->n + column;
            const float *src = space.tiles[0] + r * PANEL_ROWS;
            store_lanes(dst, src, bias ? bias + column : NULL, lanes);
            if (s->copy_out && panel % 2 == 1) {
                cpu_convert_groups(run->kernels, s->copy_out, out + (first + r) * m->n, first + r, panel / 2,
                                   panel / 2 + 1);
            }
        }
    }
}

// ---- the walk ----

static void run_step(const cpu_run_context *run, const cpu_step *s, int thread, int n_threads) {
    if (s->is_convert) {
        run_convert(run, s, thread, n_threads);
        return;
    }
    switch (s->o->kind) {
    case OP_EMBED:
        run_embed(run, s, thread, n_threads);
        break;
    case OP_RMS_NORM:
        run_rms_norm(run, s, thread, n_threads);
        break;
    case OP_ADD_RMS_NORM:
        run_add_rms_norm(run, s, thread, n_threads);
        break;
    case OP_NORM_ADD:
        run_norm_add(run, s, thread, n_threads);
        break;
    case OP_MATMUL:
    case OP_GATE_UP:
        run_matmul(run, s, thread, n_threads);
        break;
    case OP_ADD:
    case OP_ACT_GATE:
        run_elementwise(run, s, thread, n_threads);
        break;
    case OP_ROPE:
        run_rope(run, s, thread, n_threads);
        break;
    case OP_KV_APPEND:
        run_kv_append(run, s, thread, n_threads);
        break;
    case OP_ROPE_APPEND:
        run_rope_append(run, s, thread, n_threads);
        break;
    case OP_ATTENTION:
        cpu_attention_run(run, s, thread, n_threads);
        break;
    case OP_GATHER_ROWS:
        run_gather(run, s, thread, n_threads);
        break;
    case OP_NONE:
    case OP_KIND_COUNT:
        break;
    }
}

static void walk(void *context, int thread, int n_threads) {
    const cpu_run_context *run = context;
    fill_rope_tables(run, thread, n_threads);
    if (run->pl->n_rope_tables) {
        team_barrier(run->threads);
    }
    for (int i = 0; i < run->pl->n_steps; i++) {
        const cpu_step *s = &run->pl->steps[i];
        if (s->needs_barrier) {
            team_barrier(run->threads);
        }
        run_step(run, s, thread, n_threads);
    }
}

status_code cpu_plan_run(plan *base, const batch *rows, const state_slab *slabs, error_ctx *err) {
    cpu_plan *pl = (cpu_plan *)base;
    cpu_backend *b = (cpu_backend *)base->owner;
    const row_limits *limits = &base->limits;
    if (rows->n_tokens < 0 || rows->n_tokens > limits->max_tokens || rows->n_seqs < 0 ||
        rows->n_seqs > limits->max_seqs || rows->n_logit_rows < 0 || rows->n_logit_rows > limits->max_logit_rows) {
        return error_set(err, STATUS_INTERNAL,
                         "batch of %d tokens, %d sequences, %d logit rows exceeds the plan's %lld, %lld, %lld",
                         rows->n_tokens, rows->n_seqs, rows->n_logit_rows, (long long)limits->max_tokens,
                         (long long)limits->max_seqs, (long long)limits->max_logit_rows);
    }
    cpu_run_context run = {.pl = pl, .kernels = &b->kernels, .threads = b->threads, .rows = rows, .slabs = slabs};
    team_run(b->threads, walk, &run);
    return STATUS_OK;
}
