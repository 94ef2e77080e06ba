// The float64 definitions against numpy (scripts/golden_ops.py), which states each op in another way: rotations as
// complex products, attention on whole matrices with a mask, GELU with tanh and erf.
#include "backend/backend.h"

#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, WIDTH = 24, POSITIONS = 150 };

typedef struct stream {
    uint32_t state;
} stream;

static float next(stream *s) {
    s->state = s->state * 1664525u + 1013904223u;
    return (float)(s->state >> 8) * 0x1p-23f - 1.0f;
}
static void take(stream *s, float *dst, int64_t n, float scale) {
    for (int64_t i = 0; i < n; i++) {
        dst[i] = scale * next(s);
    }
}

typedef struct fixture {
    FILE *golden;
    arena *memory;
    backend *ref;
    program *p;
    plan *planned;
    batch rows;
    state_slab slab;
} fixture;

static int open_group(void **state) {
    static fixture f;
    error_ctx err = {0};
    f.golden = fopen(TEST_DATA_DIR "/backend/ops.f64", "rb");
    *state = &f;
    return f.golden && backend_find("ref")->open(&(backend_options){.n_threads = 2}, &f.ref, &err) == STATUS_OK ? 0
                                                                                                                : -1;
}
static int close_group(void **state) {
    fixture *f = *state;
    f->ref->type->close(f->ref);
    return fclose(f->golden);
}

static int new_value(fixture *f, int64_t width, bool is_import) {
    int id = program_value(f->p, ROWS_TOKENS, width, "v");
    f->p->values[id].is_import = is_import;
    f->p->values[id].is_export = !is_import;
    return id;
}
static int new_weight(fixture *f, const float *data, int64_t rows, int64_t columns) {
    weight w = {.name = "w",
                .type = DTYPE_F32,
                .n_dims = rows ? 2 : 1,
                .n_planes = 1,
                .planes = {{data, (uint64_t)((rows ? rows : 1) * columns) * sizeof(float)}}};
    w.shape[0] = rows ? rows : columns;
    w.shape[1] = rows ? columns : 1;
    w.shape[2] = w.shape[3] = 1;
    return program_weight(f->p, &w);
}

static void begin(fixture *f) {
    error_ctx err = {0};
    f->memory = arena_new(0);
    assert_int_equal(program_new(f->memory, &f->p, &err), STATUS_OK);
}

static void plan_program(fixture *f, int64_t max_rows) {
    error_ctx err = {0};
    row_limits limits = {max_rows, 1, 1};
    assert_int_equal(program_check(f->p, &err), STATUS_OK);
    for (int i = 0; i < f->p->n_ops; i++) {
        assert_true(f->ref->type->supports(f->ref, f->p, &f->p->ops[i]));
    }
    assert_int_equal(f->ref->type->plan(f->ref, f->p, &limits, false, &f->planned, &err), STATUS_OK);
}

static void run_rows(fixture *f, int64_t n, const int32_t *positions, const int32_t *const *tables) {
    static const int32_t zeros[POSITIONS];
    batch_seq seq = {.n_rows = (int32_t)n, .tables = tables};
    batch b = {.n_tokens = (int32_t)n,
               .n_seqs = 1,
               .tokens = zeros,
               .positions = positions,
               .seq_of_row = zeros,
               .seqs = &seq};
    error_ctx err = {0};
    assert_int_equal(f->ref->type->run(f->planned, &b, &f->slab, &err), STATUS_OK);
}

// The next record of the golden file against rows [skip, skip + rows) of a value.
static void expect_next(fixture *f, int value, int64_t skip, int64_t rows) {
    int64_t n = rows * f->p->values[value].width, offset = skip * f->p->values[value].width;
    double *found = malloc((size_t)(n + offset) * sizeof *found), *expected = malloc((size_t)n * sizeof *expected);
    assert_true(found && expected);
    assert_int_equal(fread(expected, sizeof *expected, (size_t)n, f->golden), n);
    f->ref->type->read_value_f64(f->planned, value, found, skip + rows);
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(found[offset + i] - expected[i]) <= 1e-12 * (1 + fabs(expected[i])))) {
            fail_msg("element %lld is %.17g, expected %.17g", (long long)i, found[offset + i], expected[i]);
        }
    }
    free(found);
    free(expected);
}

static void end(fixture *f) {
    f->ref->type->plan_free(f->planned);
    arena_free(f->memory);
}

static void test_matmul(void **state) {
    fixture *f = *state;
    stream s = {1};
    float x[ROWS * WIDTH], w[7 * WIDTH], bias[7];
    take(&s, x, ROWS * WIDTH, 1);
    take(&s, w, 7 * WIDTH, 1);
    take(&s, bias, 7, 1);
    begin(f);
    int in = new_value(f, WIDTH, true), out = new_value(f, 7, false), w_id = new_weight(f, w, 7, WIDTH);
    int bias_id = new_weight(f, bias, 0, 7);
    op *o = program_op(f->p, OP_MATMUL, "matmul");
    o->inputs[0] = in;
    o->outputs[0] = out;
    o->weights[0] = w_id;
    o->weights[1] = bias_id;
    plan_program(f, ROWS);
    f->ref->type->write_value(f->planned, in, x, ROWS);
    run_rows(f, ROWS, NULL, NULL);
    expect_next(f, out, 0, ROWS);
    end(f);
}

static void test_rms_norm(void **state) {
    fixture *f = *state;
    for (int offset = 0; offset < 2; offset++) {
        stream s = {2};
        float x[ROWS * WIDTH], w[8];
        take(&s, x, ROWS * WIDTH, 1);
        take(&s, w, 8, 1);
        begin(f);
        int in = new_value(f, WIDTH, true), out = new_value(f, WIDTH, false), w_id = new_weight(f, w, 0, 8);
        op *o = program_op(f->p, OP_RMS_NORM, "norm");
        o->inputs[0] = in;
        o->outputs[0] = out;
        o->weights[0] = w_id;
        o->params.norm = (norm_params){.eps = 1e-3f, .offset = (float)offset, .group = 8};
        plan_program(f, ROWS);
        f->ref->type->write_value(f->planned, in, x, ROWS);
        run_rows(f, ROWS, NULL, NULL);
        expect_next(f, out, 0, ROWS);
        end(f);
    }
}

static void test_act_gate(void **state) {
    fixture *f = *state;
    for (int act = ACTIVATION_SILU; act <= ACTIVATION_GELU_ERF; act++) {
        stream s = {3};
        float gate[ROWS * WIDTH], up[ROWS * WIDTH];
        take(&s, gate, ROWS * WIDTH, 8);
        take(&s, up, ROWS * WIDTH, 1);
        begin(f);
        int a = new_value(f, WIDTH, true), b = new_value(f, WIDTH, true), out = new_value(f, WIDTH, false);
        op *o = program_op(f->p, OP_ACT_GATE, "act");
        o->inputs[0] = a;
        o->inputs[1] = b;
        o->outputs[0] = out;
        o->params.act = (activation)act;
        plan_program(f, ROWS);
        f->ref->type->write_value(f->planned, a, gate, ROWS);
        f->ref->type->write_value(f->planned, b, up, ROWS);
        run_rows(f, ROWS, NULL, NULL);
        expect_next(f, out, 0, ROWS);
        end(f);
    }
}

static void test_rope(void **state) {
    fixture *f = *state;
    static const int32_t positions[ROWS] = {0, 1, 2, 8190, 262143};
    for (int style = ROPE_HALF; style <= ROPE_INTERLEAVED; style++) {
        stream s = {4};
        float x[ROWS * WIDTH], inv_freq[5];
        take(&s, x, ROWS * WIDTH, 1);
        take(&s, inv_freq, 5, 1);
        for (int i = 0; i < 5; i++) {
            inv_freq[i] = fabsf(inv_freq[i]);
        }
        begin(f);
        int in = new_value(f, WIDTH, true), out = new_value(f, WIDTH, false), w_id = new_weight(f, inv_freq, 0, 5);
        op *o = program_op(f->p, OP_ROPE, "rope");
        o->inputs[0] = in;
        o->outputs[0] = out;
        o->weights[0] = w_id;
        o->params.rope = (rope_params){.style = (rope_style)style, .head_dim = 12, .scale = 1.25f};
        plan_program(f, ROWS);
        f->ref->type->write_value(f->planned, in, x, ROWS);
        run_rows(f, ROWS, positions, NULL);
        expect_next(f, out, 0, ROWS);
        end(f);
    }
}

// Appends 150 positions in two runs and attends in the same program; blocks lie in another order.
static void test_attention(void **state) {
    fixture *f = *state;
    enum { HEADS = 6, KV_HEADS = 2, K_DIM = 8, V_DIM = 5, BLOCKS = 3 };
    static float q[POSITIONS * HEADS * K_DIM], k[POSITIONS * KV_HEADS * K_DIM], v[POSITIONS * KV_HEADS * V_DIM];
    static const int32_t table[BLOCKS] = {2, 0, 1};
    const int32_t *tables[1] = {table};
    const backend_type *type = f->ref->type;
    error_ctx err = {0};
    for (int window = 0; window <= 70; window += 70) {
        stream s = {5};
        take(&s, q, POSITIONS * HEADS * K_DIM, 4);
        take(&s, k, POSITIONS * KV_HEADS * K_DIM, 1);
        take(&s, v, POSITIONS * KV_HEADS * V_DIM, 1);
        begin(f);
        int q_id = new_value(f, HEADS * K_DIM, true), k_id = new_value(f, KV_HEADS * K_DIM, true);
        int v_id = new_value(f, KV_HEADS * V_DIM, true), out = new_value(f, HEADS * V_DIM, false);
        int kv = program_state(
            f->p,
            &(state_desc){.name = "kv", .n_kv_heads = KV_HEADS, .k_dim = K_DIM, .v_dim = V_DIM, .window = window});
        op *o = program_op(f->p, OP_KV_APPEND, "append");
        o->inputs[0] = k_id;
        o->inputs[1] = v_id;
        o->state = kv;
        o = program_op(f->p, OP_ATTENTION, "attention");
        o->inputs[0] = q_id;
        o->outputs[0] = out;
        o->state = kv;
        o->params.n_heads = HEADS;
        o->params.attn_scale = 0.5f;
        plan_program(f, POSITIONS);
        uint64_t rows = BLOCKS * KV_HEADS * STATE_BLOCK_TOKENS, k_bytes = rows * K_DIM * 8, v_bytes = rows * V_DIM * 8;
        f->slab = (state_slab){.type = type->state_type(f->ref, DTYPE_F16), .n_blocks = BLOCKS};
        assert_int_equal(f->slab.type, DTYPE_F64);
        assert_int_equal(type->buffer_alloc(f->ref, k_bytes, &f->slab.k, &err), STATUS_OK);
        assert_int_equal(type->buffer_alloc(f->ref, v_bytes, &f->slab.v, &err), STATUS_OK);
        int32_t positions[POSITIONS];
        for (int i = 0; i < POSITIONS; i++) {
            positions[i] = i;
        }
        const int first = 100; // rows of the first run
        for (int run = 0; run < 2; run++) {
            int from = run ? first : 0, n = run ? POSITIONS - first : first;
            type->write_value(f->planned, q_id, q + from * HEADS * K_DIM, n);
            type->write_value(f->planned, k_id, k + from * KV_HEADS * K_DIM, n);
            type->write_value(f->planned, v_id, v + from * KV_HEADS * V_DIM, n);
            run_rows(f, n, positions + from, tables);
        }
        expect_next(f, out, POSITIONS - first - 4, 4);
        type->buffer_free(f->ref, f->slab.k, k_bytes);
        type->buffer_free(f->ref, f->slab.v, v_bytes);
        end(f);
    }
}

static void test_composites_are_refused(void **state) {
    fixture *f = *state;
    begin(f);
    op *o = program_op(f->p, OP_NORM_ADD, "norm_add");
    assert_false(f->ref->type->supports(f->ref, f->p, o));
    arena_free(f->memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        // in the order of the golden file
        cmocka_unit_test(test_matmul), cmocka_unit_test(test_rms_norm),  cmocka_unit_test(test_act_gate),
        cmocka_unit_test(test_rope),   cmocka_unit_test(test_attention), cmocka_unit_test(test_composites_are_refused),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
