// Test data of one case: a program of one op, weights, inputs, batch and state.
//
// Data resembles life: normal numbers with a few large outliers, rows of very small and of large scale, rows of one
// repeated value, zero rows. Weight and state bytes nobody may read are NaN; weights start at odd addresses and end
// with their memory, so that a reader past the end meets the sanitizer.
#include "backend/opcheck_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t opcheck_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) {
    return (double)(opcheck_random(state) >> 11) * 0x1p-53;
}

// Close to normal: the sum of twelve uniform numbers.
static float normal(uint64_t *state) {
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        sum += uniform(state);
    }
    return (float)sum;
}

// One number in 64 is an outlier.
static float lifelike(uint64_t *state) {
    float x = normal(state);
    return opcheck_random(state) % 64 == 0 ? x * 30.0f : x;
}

static void fill_row(float *row, int64_t n, int profile, uint64_t *random) {
    static const float scales[] = {1.0f, 1.0f, 1e-5f, 300.0f, 1.0f, 0.0f};
    float repeated = normal(random);
    for (int64_t i = 0; i < n; i++) {
        row[i] = profile == 4 ? repeated : scales[profile] * lifelike(random);
    }
}

// ---- weights ----

// Where a block format keeps its f16 scales; count 0: the type is plain.
static int scale_fields(dtype type, int fields[2]) {
    static const struct {
        dtype type;
        int count, fields[2];
    } table[] = {
        {DTYPE_Q4_0, 1, {0, 0}}, {DTYPE_Q4_1, 2, {0, 2}},   {DTYPE_Q5_0, 1, {0, 0}},   {DTYPE_Q5_1, 2, {0, 2}},
        {DTYPE_Q8_0, 1, {0, 0}}, {DTYPE_Q2_K, 2, {80, 82}}, {DTYPE_Q3_K, 1, {108, 0}}, {DTYPE_Q4_K, 2, {0, 2}},
        {DTYPE_Q5_K, 2, {0, 2}}, {DTYPE_Q6_K, 1, {208, 0}}, {DTYPE_IQ4_NL, 1, {0, 0}}, {DTYPE_IQ4_XS, 1, {0, 0}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].type == type) {
            memcpy(fields, table[i].fields, sizeof table[i].fields);
            return table[i].count;
        }
    }
    return 0;
}

void opcheck_fill_weight(dtype type, uint8_t *data, int64_t elements, uint64_t *random) {
    const dtype_info *info = dtype_get(type);
    int fields[2], n_fields = scale_fields(type, fields);
    int64_t n_blocks = elements / info->block_elements;
    for (int64_t b = 0; b < n_blocks; b++) {
        uint8_t *block = data + b * info->block_bytes;
        if (n_fields == 0 && info->encode) {
            float value = lifelike(random) * 0.1f;
            info->encode(&value, block, 1);
            continue;
        }
        for (int i = 0; i < info->block_bytes; i++) {
            block[i] = (uint8_t)opcheck_random(random);
        }
        for (int f = 0; f < n_fields; f++) {
            uint16_t bits = f32_to_f16(normal(random) * 0.01f);
            memcpy(block + fields[f], &bits, 2);
        }
        if (info->block_bytes == 1) { // 8-bit floats: magnitudes of everyday size, no NaN
            block[0] = (uint8_t)((block[0] & 0x80) | (0x20 + (block[0] & 0x7f) % 0x30));
        } else if (type == DTYPE_F64) {
            double value = (double)lifelike(random) * 0.1;
            memcpy(block, &value, sizeof value);
        }
    }
}

// A weight of the given shape (rows 0: a vector) at an odd address.
static int new_weight(case_data *d, dtype type, int64_t rows, int64_t columns, const char *name) {
    int64_t elements = (rows ? rows : 1) * columns;
    uint64_t bytes = 0;
    dtype_bytes(type, elements, &bytes);
    uint8_t *data = malloc((size_t)bytes + 1);
    if (!data || arena_defer(d->memory, free, data) != 0) {
        d->p->oom = true;
        return 0;
    }
    opcheck_fill_weight(type, data + 1, elements, &d->random);
    weight w = {.name = name,
                .type = type,
                .n_dims = rows ? 2 : 1,
                .shape = {rows ? rows : columns, columns, 1, 1},
                .n_planes = 1,
                .planes = {{data + 1, bytes}}};
    if (!rows) {
        w.shape[1] = 1;
    }
    return program_weight(d->p, &w);
}

// Frequencies as models have them, from 1 down to about 1e-4.
static int new_inv_freq(case_data *d) {
    int id = new_weight(d, DTYPE_F32, 0, d->c->n_freqs, "inv_freq");
    if (!d->p->oom) {
        uint8_t *data = (uint8_t *)(uintptr_t)d->p->weights[id].planes[0].data;
        for (int64_t i = 0; i < d->c->n_freqs; i++) {
            float f = (float)pow(1e4, -(double)i / (double)d->c->n_freqs);
            memcpy(data + 4 * i, &f, 4);
        }
    }
    return id;
}

// ---- the program ----

static int new_value(case_data *d, row_kind rows, int64_t width, bool is_import, const char *name) {
    int id = program_value(d->p, rows, width, "%s", name);
    if (!d->p->oom) {
        d->p->values[id].is_import = is_import;
        d->p->values[id].is_export = !is_import;
    }
    return id;
}

static int64_t input_width(const op_case *c, int index) {
    switch (c->kind) {
    case OP_ROPE:
        return c->n_heads * c->k_dim;
    case OP_KV_APPEND:
        return c->n_kv_heads * (index == 0 ? c->k_dim : c->v_dim);
    case OP_ATTENTION:
        return c->n_heads * c->k_dim;
    case OP_ROPE_APPEND:
        return index == 0 ? c->n_heads * c->k_dim : c->n_kv_heads * (index == 1 ? c->k_dim : c->v_dim);
    default:
        return c->k;
    }
}

static int64_t output_width(const op_case *c) {
    switch (c->kind) {
    case OP_ROPE:
    case OP_ROPE_APPEND:
        return c->n_heads * c->k_dim;
    case OP_ATTENTION:
        return c->n_heads * c->v_dim;
    default:
        return c->n;
    }
}

static void add_weights(case_data *d, op *o) {
    const op_case *c = d->c;
    switch (c->kind) {
    case OP_EMBED:
        o->weights[0] = new_weight(d, c->weight_type, 50, c->n, "table");
        break;
    case OP_MATMUL:
        o->weights[0] = new_weight(d, c->weight_type, c->n, c->k, "w");
        o->weights[1] = c->has_bias ? new_weight(d, DTYPE_F32, 0, c->n, "bias") : OP_ABSENT;
        break;
    case OP_GATE_UP:
        o->weights[0] = new_weight(d, c->weight_type, c->n, c->k, "gate");
        o->weights[1] = new_weight(d, c->second_type, c->n, c->k, "up");
        break;
    case OP_RMS_NORM:
    case OP_ADD_RMS_NORM:
    case OP_NORM_ADD:
        o->weights[0] = new_weight(d, c->weight_type, 0, c->group, "norm");
        break;
    case OP_ROPE:
        o->weights[0] = new_inv_freq(d);
        break;
    case OP_ROPE_APPEND:
        o->weights[0] = new_inv_freq(d);
        o->weights[1] = c->has_q_norm ? new_weight(d, DTYPE_F32, 0, c->k_dim, "q_norm") : OP_ABSENT;
        o->weights[2] = c->has_k_norm ? new_weight(d, DTYPE_F32, 0, c->k_dim, "k_norm") : OP_ABSENT;
        break;
    default:
        break;
    }
}

enum { GUARD_WIDTH = 16 };

static void build_program(case_data *d) {
    const op_case *c = d->c;
    const op_info *info = op_get_info(c->kind);
    error_ctx err = {0};
    if (program_new(d->memory, &d->p, &err) != STATUS_OK) {
        return;
    }
    d->guards[0] = new_value(d, ROWS_TOKENS, GUARD_WIDTH, true, "guard_before");
    op filled = {0}; // the op's place may move while weights are added
    op *o = program_op(d->p, c->kind, "op");
    filled = *o;
    d->n_inputs = info->n_inputs;
    for (int i = 0; i < info->n_inputs; i++) {
        filled.inputs[i] = new_value(d, ROWS_TOKENS, input_width(c, i), true, "in");
    }
    for (int i = 0; i < info->n_outputs; i++) {
        row_kind rows = c->kind == OP_GATHER_ROWS ? ROWS_LOGITS : ROWS_TOKENS;
        if (i == 0 && c->in_place) {
            filled.outputs[0] = filled.inputs[0];
            d->p->values[filled.inputs[0]].is_export = true;
        } else {
            filled.outputs[i] = new_value(d, rows, output_width(c), false, "out");
        }
    }
    d->guards[1] = new_value(d, ROWS_TOKENS, GUARD_WIDTH, true, "guard_after");
    add_weights(d, &filled);
    filled.params = (op_params){.embed_scale = c->scale,
                                .norm = {.eps = c->eps, .offset = c->offset, .group = c->group},
                                .rope = {.style = c->style, .head_dim = c->k_dim, .scale = c->scale},
                                .act = c->act,
                                .n_heads = c->n_heads,
                                .attn_scale = c->k_dim ? (float)(1.0 / sqrt((double)c->k_dim)) : 0.0f};
    if (info->uses_state) {
        // The second group: a backend that takes the first table by mistake finds -1.
        filled.state = program_state(d->p, &(state_desc){.name = "kv",
                                                         .n_kv_heads = c->n_kv_heads,
                                                         .k_dim = c->k_dim,
                                                         .v_dim = c->v_dim,
                                                         .window = c->window,
                                                         .group = 1});
    }
    d->p->ops[0] = filled;
}

// ---- the batch ----

static void *take(case_data *d, int64_t count, size_t bytes) {
    void *memory = arena_alloc_array(d->memory, (size_t)count + 1, bytes);
    if (!memory) {
        d->p->oom = true;
    }
    return memory;
}

static int32_t seq_blocks(const case_seq *s) {
    return (s->start + s->n_rows + STATE_BLOCK_TOKENS - 1) / STATE_BLOCK_TOKENS;
}

// First block that some row of the sequence sees.
static int32_t first_seen_block(const op_case *c, const case_seq *s) {
    int64_t first = c->window > 0 && s->start >= c->window ? s->start - c->window + 1 : 0;
    return (int32_t)(first / STATE_BLOCK_TOKENS);
}

static void shuffle(int32_t *items, int64_t n, uint64_t *random) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t other = (int64_t)(opcheck_random(random) % (uint64_t)(i + 1));
        int32_t swapped = items[i];
        items[i] = items[other];
        items[other] = swapped;
    }
}

static void build_tables(case_data *d, batch_seq *seqs) {
    const op_case *c = d->c;
    int64_t most = 3, longest = 0; // some blocks belong to nobody
    for (int i = 0; i < c->n_seqs; i++) {
        most += seq_blocks(&c->seqs[i]);
        longest = seq_blocks(&c->seqs[i]) > longest ? seq_blocks(&c->seqs[i]) : longest;
    }
    d->n_blocks = most;
    int32_t *ids = take(d, most, sizeof *ids), *shared = take(d, longest, sizeof *shared);
    int64_t n_taken = 0;
    if (d->p->oom) {
        return;
    }
    for (int32_t i = 0; i < most; i++) {
        ids[i] = i;
    }
    shuffle(ids, most, &d->random);
    for (int64_t b = 0; b < longest; b++) {
        shared[b] = -1;
    }
    for (int i = 0; i < c->n_seqs; i++) {
        const case_seq *s = &c->seqs[i];
        int32_t *table = take(d, longest, sizeof *table), *wrong = take(d, longest, sizeof *wrong);
        const int32_t **tables = take(d, 2, sizeof *tables);
        if (d->p->oom) {
            return;
        }
        for (int64_t b = 0; b < longest; b++) {
            table[b] = wrong[b] = -1;
        }
        for (int32_t b = first_seen_block(c, s); b < seq_blocks(s); b++) {
            bool is_shared = c->share_prefix && (b + 1) * STATE_BLOCK_TOKENS <= s->start;
            if (is_shared && shared[b] < 0) {
                shared[b] = ids[n_taken++];
            }
            table[b] = is_shared ? shared[b] : ids[n_taken++];
        }
        tables[0] = wrong;
        tables[1] = table;
        seqs[i].tables = tables;
    }
}

static void build_batch(case_data *d) {
    const op_case *c = d->c;
    bool uses_seqs = op_get_info(c->kind)->uses_state || c->kind == OP_ROPE;
    int n_seqs = uses_seqs ? c->n_seqs : c->rows ? 1 : 0;
    d->rows = uses_seqs ? 0 : c->rows;
    for (int i = 0; uses_seqs && i < n_seqs; i++) {
        d->rows += c->seqs[i].n_rows;
    }
    int32_t *tokens = take(d, d->rows, sizeof *tokens), *positions = take(d, d->rows, sizeof *positions);
    int32_t *seq_of_row = take(d, d->rows, sizeof *seq_of_row), *logit_rows = take(d, d->rows, sizeof *logit_rows);
    batch_seq *seqs = take(d, n_seqs, sizeof *seqs);
    if (d->p->oom) {
        return;
    }
    int32_t row = 0, n_logits = 0;
    for (int i = 0; i < n_seqs; i++) {
        int32_t n = uses_seqs ? c->seqs[i].n_rows : (int32_t)c->rows, start = uses_seqs ? c->seqs[i].start : 0;
        seqs[i] = (batch_seq){.first_row = row, .n_rows = n};
        for (int32_t r = 0; r < n; r++, row++) {
            tokens[row] = (int32_t)(opcheck_random(&d->random) % 50);
            positions[row] = start + r;
            seq_of_row[row] = i;
            if (c->kind == OP_GATHER_ROWS && row % 3 != 1) {
                logit_rows[n_logits++] = row;
            }
        }
    }
    if (op_get_info(c->kind)->uses_state) {
        build_tables(d, seqs);
    }
    d->batch = (batch){.n_tokens = (int32_t)d->rows,
                       .n_seqs = n_seqs,
                       .n_logit_rows = n_logits,
                       .tokens = tokens,
                       .positions = positions,
                       .seq_of_row = seq_of_row,
                       .seqs = seqs,
                       .logit_rows = logit_rows};
}

// ---- state ----

// NaN everywhere but at the positions that rows of the batch may see.
static uint8_t *build_image(case_data *d, int64_t dim, uint64_t *bytes) {
    const op_case *c = d->c;
    const dtype_info *info = dtype_get(c->state_type);
    int64_t elements = d->n_blocks * c->n_kv_heads * STATE_BLOCK_TOKENS * dim;
    *bytes = (uint64_t)elements * (uint64_t)info->block_bytes;
    uint8_t *image = take(d, (int64_t)*bytes, 1);
    if (d->p->oom) {
        return NULL;
    }
    memset(image, 0xff, (size_t)*bytes); // NaN in f16, bf16 and f32
    for (int i = 0; c->kind == OP_ATTENTION && i < c->n_seqs; i++) {
        const case_seq *s = &c->seqs[i];
        int64_t first = c->window > 0 && s->start >= c->window ? s->start - c->window + 1 : 0;
        for (int64_t position = first; position < s->start + s->n_rows; position++) {
            int64_t block = d->batch.seqs[i].tables[1][position / STATE_BLOCK_TOKENS];
            for (int64_t head = 0; head < c->n_kv_heads; head++) {
                int64_t at =
                    ((block * c->n_kv_heads + head) * STATE_BLOCK_TOKENS + position % STATE_BLOCK_TOKENS) * dim;
                for (int64_t e = 0; e < dim; e++) {
                    float value = lifelike(&d->random);
                    info->encode(&value, image + (at + e) * info->block_bytes, 1);
                }
            }
        }
    }
    return image;
}

double state_element(dtype type, const void *image, int64_t index) {
    if (type == DTYPE_F64) {
        return ((const double *)image)[index];
    }
    float value;
    const dtype_info *info = dtype_get(type);
    info->decode((const uint8_t *)image + index * info->block_bytes, &value, 1);
    return (double)value;
}

// ---- all together ----

static void build_inputs(case_data *d) {
    const op_case *c = d->c;
    bool is_state_op = op_get_info(c->kind)->uses_state;
    for (int i = 0; i < d->n_inputs; i++) {
        int64_t width = input_width(c, i);
        d->inputs[i] = take(d, d->rows * width, sizeof(float));
        for (int64_t row = 0; !d->p->oom && row < d->rows; row++) {
            // State ops: no scale that f16 cannot hold.
            int profile = is_state_op ? (int)(row % 2) * 4 : (int)((opcheck_random(&d->random) + (uint64_t)row) % 6);
            fill_row(d->inputs[i] + row * width, width, profile, &d->random);
        }
    }
}

case_data *case_data_new(const op_case *c, uint64_t seed) {
    arena *memory = arena_new(0);
    case_data *d = memory ? arena_alloc_zero(memory, sizeof *d) : NULL;
    if (!d) {
        arena_free(memory);
        return NULL;
    }
    *d = (case_data){.c = c, .memory = memory, .random = seed};
    build_program(d);
    if (d->p && !d->p->oom) {
        build_batch(d);
    }
    if (d->p && !d->p->oom) {
        build_inputs(d);
        if (op_get_info(c->kind)->uses_state) {
            d->k_image = build_image(d, c->k_dim, &d->k_bytes);
            d->v_image = build_image(d, c->v_dim, &d->v_bytes);
        }
    }
    if (!d->p || d->p->oom) {
        case_data_free(d);
        return NULL;
    }
    return d;
}

void case_data_free(case_data *d) {
    if (d) {
        arena_free(d->memory); // d itself lies in it
    }
}
