// Programs, lowering, scratch and the executor's segments.
#include "unit.h"

#include "backend/executor.h"

#include <stdlib.h>
#include <string.h>

static const row_limits limits = {.max_tokens = 16, .max_seqs = 2, .max_logit_rows = 4};

static weight vector_weight(const float *data, int64_t n) {
    return (weight){.name = "w",
                    .type = DTYPE_F32,
                    .n_dims = 1,
                    .shape = {n, 1, 1, 1},
                    .n_planes = 1,
                    .planes = {{data, (uint64_t)n * 4}}};
}

// y = x + x, then chains of adds, so that liveness has something to do.
static program *add_chain(arena *memory, int n, int64_t width) {
    program *p;
    assert_int_equal(program_new(memory, &p, NULL), STATUS_OK);
    int x = program_value(p, ROWS_TOKENS, width, "x");
    p->values[x].is_import = true;
    int last = x;
    for (int i = 0; i < n; i++) {
        int y = program_value(p, ROWS_TOKENS, width, "y%d", i);
        op *o = program_op(p, OP_ADD, "add%d", i);
        o->inputs[0] = last;
        o->inputs[1] = x;
        o->outputs[0] = y;
        last = y;
    }
    p->values[last].is_export = true;
    return p;
}

static void test_scratch_reuses_dead_values(void **state) {
    (void)state;
    arena *memory = arena_new(0);
    program *p = add_chain(memory, 50, 32);
    assert_int_equal(program_check(p, NULL), STATUS_OK);
    uint64_t offsets[64], total, kept;
    assert_int_equal(program_scratch(p, &limits, 4, false, offsets, &total, NULL), STATUS_OK);
    assert_int_equal(total, 4 * 16 * 32 * 4); // import, export, and two that alternate
    assert_int_equal(program_scratch(p, &limits, 4, true, offsets, &kept, NULL), STATUS_OK);
    assert_int_equal(kept, 51 * 16 * 32 * 4);
    arena_free(memory);
}

// No two values that are alive at the same op may overlap, whatever the program looks like.
static void test_scratch_of_random_programs(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 60; round++) {
        arena *memory = arena_new(0);
        program *p;
        assert_int_equal(program_new(memory, &p, NULL), STATUS_OK);
        enum { N = 40 };
        int64_t width = 0;
        int first = 0;
        for (int i = 0; i < N; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            if (i == 0 || (seed >> 60) == 0) {
                width = (int64_t)(seed >> 40) % 100;
                first = program_value(p, ROWS_TOKENS, width, "in%d", i);
                p->values[first].is_import = true;
            }
            int y = program_value(p, ROWS_TOKENS, width, "v%d", i);
            op *o = program_op(p, OP_ADD, "op%d", i);
            o->inputs[0] = first + (int)((seed >> 33) % (uint64_t)(y - first));
            o->inputs[1] = y - 1;
            o->outputs[0] = y;
            p->values[y].is_export = (seed >> 50) % 5 == 0;
        }
        assert_int_equal(program_check(p, NULL), STATUS_OK);
        uint64_t offsets[2 * N + 2], total;
        assert_int_equal(program_scratch(p, &limits, 4, false, offsets, &total, NULL), STATUS_OK);
        for (int a = 0; a < p->n_values; a++) {
            for (int b = a + 1; b < p->n_values; b++) {
                int life[2][2] = {{N, -1}, {N, -1}};
                for (int side = 0; side < 2; side++) {
                    int v = side ? b : a;
                    for (int i = 0; i < p->n_ops; i++) {
                        const op *o = &p->ops[i];
                        if (o->inputs[0] == v || o->inputs[1] == v || o->outputs[0] == v) {
                            life[side][0] = i < life[side][0] ? i : life[side][0];
                            life[side][1] = i;
                        }
                    }
                    if (p->values[v].is_import || p->values[v].is_export) {
                        life[side][0] = 0;
                        life[side][1] = N;
                    }
                }
                uint64_t bytes_a = 16 * 4 * (uint64_t)p->values[a].width,
                         bytes_b = 16 * 4 * (uint64_t)p->values[b].width;
                bool meet_in_time = life[0][0] <= life[1][1] && life[1][0] <= life[0][1];
                bool meet_in_space = offsets[a] < offsets[b] + bytes_b && offsets[b] < offsets[a] + bytes_a;
                assert_false(meet_in_time && meet_in_space);
                assert_true(offsets[a] + bytes_a <= total && offsets[a] % 64 == 0);
            }
        }
        arena_free(memory);
    }
}

static void expect_refusal(program *p, const char *words) {
    error_ctx err;
    error_clear(&err);
    assert_int_equal(program_check(p, &err), STATUS_INTERNAL);
    assert_non_null(strstr(err.message, words));
}

static void test_check_refuses_broken_programs(void **state) {
    (void)state;
    arena *memory = arena_new(0);
    program *p = add_chain(memory, 3, 8);
    p->ops[1].inputs[0] = 99;
    expect_refusal(p, "input value id");
    p = add_chain(memory, 3, 8);
    p->ops[0].inputs[0] = p->ops[2].outputs[0];
    expect_refusal(p, "read before it is written");
    p = add_chain(memory, 3, 8);
    p->ops[2].outputs[0] = p->ops[0].outputs[0];
    expect_refusal(p, "written twice");
    p = add_chain(memory, 3, 8);
    p->values[p->ops[1].outputs[0]].width = 9;
    expect_refusal(p, "width");
    p = add_chain(memory, 3, 8);
    p->ops[1].kind = OP_MATMUL;
    expect_refusal(p, "weight id");
    arena_free(memory);
}

// A small program with composites, to be cut over two backends at every op.
static program *mixed_program(arena *memory, const float *norm_weight, const float *matrix, int64_t width) {
    program *p;
    assert_int_equal(program_new(memory, &p, NULL), STATUS_OK);
    weight w = vector_weight(norm_weight, width), m = {.name = "m",
                                                       .type = DTYPE_F32,
                                                       .n_dims = 2,
                                                       .shape = {width, width, 1, 1},
                                                       .n_planes = 1,
                                                       .planes = {{matrix, (uint64_t)(width * width) * 4}}};
    int norm_id = program_weight(p, &w), matrix_id = program_weight(p, &m);
    int x = program_value(p, ROWS_TOKENS, width, "embed");
    op *embed = program_op(p, OP_EMBED, "embed");
    embed->weights[0] = matrix_id;
    embed->outputs[0] = x;
    for (int i = 0; i < 3; i++) {
        int y = program_value(p, ROWS_TOKENS, width, "y%d", i), sum = program_value(p, ROWS_TOKENS, width, "sum%d", i),
            normed = program_value(p, ROWS_TOKENS, width, "normed%d", i);
        op *up = program_op(p, OP_GATE_UP, "gate_up%d", i);
        up->inputs[0] = x;
        up->weights[0] = up->weights[1] = matrix_id;
        up->outputs[0] = y;
        op *add = program_op(p, OP_ADD_RMS_NORM, "norm%d", i);
        add->inputs[0] = x;
        add->inputs[1] = y;
        add->weights[0] = norm_id;
        add->outputs[0] = sum;
        add->outputs[1] = normed;
        add->params.norm = (norm_params){.eps = 1e-5f, .group = width};
        x = normed;
    }
    int rows = program_value(p, ROWS_LOGITS, width, "rows"), logits = program_value(p, ROWS_LOGITS, width, "logits");
    op *gather = program_op(p, OP_GATHER_ROWS, "gather");
    gather->inputs[0] = x;
    gather->outputs[0] = rows;
    op *head = program_op(p, OP_MATMUL, "head");
    head->inputs[0] = rows;
    head->weights[0] = matrix_id;
    head->outputs[0] = logits;
    p->logits = logits;
    return p;
}

static void test_segments_agree_with_one_device(void **state) {
    (void)state;
    enum { W = 40 };
    float norm_weight[W], matrix[W * W], want[2 * W];
    for (int i = 0; i < W * W; i++) {
        matrix[i] = (float)((i * 37 + i / W * 11) % 101 - 50) / 60;
        norm_weight[i % W] = 0.5f + (float)(i % W) / W;
    }
    const int32_t tokens[3] = {5, 39, 0}, positions[3] = {0, 1, 2}, seqs_of[3] = {0, 0, 0}, logit_rows[2] = {0, 2};
    batch_seq seq = {.n_rows = 3};
    batch rows = {.n_tokens = 3,
                  .n_seqs = 1,
                  .n_logit_rows = 2,
                  .tokens = tokens,
                  .positions = positions,
                  .seq_of_row = seqs_of,
                  .seqs = &seq,
                  .logit_rows = logit_rows};
    arena *memory = arena_new(0);
    program *p = mixed_program(memory, norm_weight, matrix, W);
    backend *devices[2];
    backend_options options = {.n_threads = 2};
    assert_int_equal(backend_find("ref")->open(&options, &devices[0], NULL), STATUS_OK);
    assert_int_equal(backend_find("cpu")->open(&options, &devices[1], NULL), STATUS_OK);
    for (int mask = 0; mask < 1 << p->n_ops; mask++) {
        int n_segments = 1;
        for (int i = 0; i < p->n_ops; i++) {
            p->ops[i].device = mask >> i & 1;
            n_segments += i > 0 && p->ops[i].device != p->ops[i - 1].device;
        }
        executor *e;
        assert_int_equal(executor_new(p, devices, 2, &limits, false, &e, NULL), STATUS_OK);
        assert_int_equal(executor_segment_count(e), n_segments);
        assert_int_equal(executor_run(e, &rows, NULL, NULL), STATUS_OK);
        const float *logits = executor_logits(e);
        for (int i = 0; i < 2 * W; i++) {
            if (mask == 0) {
                want[i] = logits[i];
            }
            assert_true(logits[i] - want[i] < 1e-3f && want[i] - logits[i] < 1e-3f);
        }
        executor_free(e);
    }
    strbuf text = {0};
    executor *e;
    p->ops[2].device = 1 - p->ops[2].device;
    assert_int_equal(executor_new(p, devices, 2, &limits, true, &e, NULL), STATUS_OK);
    executor_describe(e, &text);
    assert_non_null(strstr(text.ptr, "copy"));
    assert_non_null(strstr(text.ptr, "gate_up"));
    assert_int_equal(executor_run(e, &rows, NULL, NULL), STATUS_OK);
    double tap[3 * W];
    int64_t width;
    assert_true(executor_tap(e, "sum1", 3, tap, &width));
    assert_int_equal(width, W);
    assert_false(executor_tap(e, "no such value", 3, tap, &width));
    executor_free(e);
    strbuf_free(&text);
    devices[0]->type->close(devices[0]);
    devices[1]->type->close(devices[1]);
    arena_free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scratch_reuses_dead_values),
        cmocka_unit_test(test_scratch_of_random_programs),
        cmocka_unit_test(test_check_refuses_broken_programs),
        cmocka_unit_test(test_segments_agree_with_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
