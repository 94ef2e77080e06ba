// The quick part of opcheck on the CPU backend at every level of this machine, and that its checks can fail: results
// that are a little wrong must be found out.
#include "backend/opcheck.h"
#include "backend/opcheck_int.h"

#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_line(void *context, const char *line) {
    (void)context;
    printf("%s\n", line);
}

static void test_cpu_passes(void **state) {
    (void)state;
    opcheck_summary summary;
    opcheck_options options = {.quick = true};
    assert_int_equal(opcheck_run(&options, print_line, NULL, &summary), 0);
    assert_int_equal(summary.n_failed, 0);
    assert_true(summary.n_cases > 500);
}

static void drop_line(void *context, const char *line) {
    (void)line;
    ++*(int *)context;
}

static void test_options_are_checked(void **state) {
    (void)state;
    int n_lines = 0;
    const opcheck_options wrong[] = {{.backend = "abacus"}, {.level = "avx1024"}, {.op = "divide"}, {.dtype = "Q99"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(opcheck_run(&wrong[i], drop_line, &n_lines, NULL), 2);
        assert_int_equal(n_lines, (int)i + 1);
    }
    n_lines = 0;
    assert_int_equal(opcheck_run(&(opcheck_options){.mode = OPCHECK_LIST, .op = "rope"}, drop_line, &n_lines, NULL), 0);
    assert_true(n_lines > 10);
    n_lines = 0;
    assert_int_equal(opcheck_run(&(opcheck_options){.mode = OPCHECK_SUPPORT}, drop_line, &n_lines, NULL), 0);
    assert_true(n_lines > 2 + 10);
}

typedef struct fixture {
    case_data *d;
    backend *cpu, *ref;
    runner tested, truth;
    arena *memory;
    run_result found, expected;
} fixture;

static void open_fixture(fixture *f, const op_case *c) {
    error_ctx err = {0};
    memset(f, 0, sizeof *f);
    f->d = case_data_new(c, 42);
    f->memory = arena_new(0);
    assert_non_null(f->d);
    assert_int_equal(backend_find("cpu")->open(&(backend_options){.n_threads = 1}, &f->cpu, &err), STATUS_OK);
    assert_int_equal(backend_find("ref")->open(&(backend_options){.n_threads = 1}, &f->ref, &err), STATUS_OK);
    assert_int_equal(runner_open(&f->tested, f->cpu, f->d, false, &err), STATUS_OK);
    assert_int_equal(runner_open(&f->truth, f->ref, f->d, true, &err), STATUS_OK);
    assert_int_equal(runner_run(&f->tested, f->memory, 0, f->d->rows, NULL, &f->found, &err), STATUS_OK);
    assert_int_equal(runner_run(&f->truth, f->memory, 0, f->d->rows, NULL, &f->expected, &err), STATUS_OK);
    assert_null(f->found.violation);
}

static void close_fixture(fixture *f) {
    runner_close(&f->tested);
    runner_close(&f->truth);
    f->cpu->type->close(f->cpu);
    f->ref->type->close(f->ref);
    case_data_free(f->d);
    arena_free(f->memory);
}

static error_measure measure(fixture *f) {
    return oracle_compare(f->d, f->d->inputs, 0, f->found.outputs[0], f->expected.wide_outputs[0], f->memory);
}

// One element of a row that is off by a ten-thousandth of the row's largest is out of bounds; untouched it is inside.
static void test_small_errors_are_found(void **state) {
    (void)state;
    static const op_case cases[] = {
        {.kind = OP_MATMUL, .weight_type = DTYPE_F32, .rows = 5, .k = 64, .n = 33},
        {.kind = OP_RMS_NORM, .weight_type = DTYPE_F32, .rows = 5, .k = 64, .n = 64, .group = 64, .eps = 1e-6f},
        {.kind = OP_ADD, .rows = 5, .k = 64, .n = 64},
        {.kind = OP_ACT_GATE, .rows = 5, .k = 64, .n = 64, .act = ACTIVATION_GELU_TANH},
        {.kind = OP_ROPE, .k_dim = 32, .n_freqs = 16, .n_heads = 2, .scale = 1, .n_seqs = 1, .seqs = {{9, 5}}},
        {.kind = OP_ATTENTION,
         .state_type = DTYPE_F16,
         .k_dim = 16,
         .v_dim = 16,
         .n_heads = 2,
         .n_kv_heads = 1,
         .n_seqs = 1,
         .seqs = {{9, 5}}},
        {.kind = OP_GATHER_ROWS, .rows = 5, .k = 64, .n = 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        open_fixture(&f, &cases[i]);
        error_measure m = measure(&f);
        assert_true(m.worst <= 1 && m.rms <= 1);
        int64_t n = f.d->p->values[f.d->p->ops[0].outputs[0]].width;
        float *row = f.found.outputs[0], largest = 0; // the first row that is not zero
        for (int64_t r = 0; r < 3 && largest == 0; r++) {
            row = f.found.outputs[0] + r * n;
            for (int64_t k = 0; k < n; k++) {
                largest = row[k] > largest ? row[k] : -row[k] > largest ? -row[k] : largest;
            }
        }
        assert_true(largest > 0);
        row[n / 2] += 1e-4f * largest;
        if (!(measure(&f).worst > 1)) {
            fail_msg("%s: an error of 1e-4 passes", op_get_info(cases[i].kind)->name);
        }
        close_fixture(&f);
    }
}

// A stored element that is one step off, and a write to a place that belongs to nobody.
static void test_state_errors_are_found(void **state) {
    (void)state;
    const op_case c = {.kind = OP_KV_APPEND,
                       .state_type = DTYPE_F16,
                       .k_dim = 16,
                       .v_dim = 8,
                       .n_kv_heads = 2,
                       .n_heads = 2,
                       .n_seqs = 1,
                       .seqs = {{62, 4}}};
    fixture f;
    open_fixture(&f, &c);
    double worst;
    const char *reason;
    assert_true(oracle_compare_state(f.d, f.d->inputs, &f.tested, &f.truth, &worst, &reason));
    uint8_t *v = f.tested.slab.v;
    for (uint64_t at = 0; at < f.tested.v_bytes; at += 97) {
        v[at] ^= 1;
        assert_false(oracle_compare_state(f.d, f.d->inputs, &f.tested, &f.truth, &worst, &reason));
        v[at] ^= 1;
    }
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_small_errors_are_found),
        cmocka_unit_test(test_state_errors_are_found),
        cmocka_unit_test(test_cpu_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
