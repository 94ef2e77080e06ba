// The opcheck driver. For each case and each level of the tested backend:
//
//   1. run it; compare with `ref` on exactly what the kernel saw (quantised activations repeated), within the bounds
//      of opcheck_oracle.c; report the distance to `ref` on the unquantised input as quality
//   2. guards next to the operands, inputs, spare rows and foreign state are untouched
//   3. run it again: equal bits
//   4. with 1, 3 and 4 threads: equal bits
//   5. rows alone, and parts of the rows: equal bits (row invariance)
//   6. a composite against its own lowering on the same backend: equal bits
#include "backend/opcheck_int.h"

#include "backend/cpu/cpu_backend.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LEVELS = 8, MOST_THREADS = 4, MAIN_THREADS = 2 };

void opcheck_line(opcheck_print_fn print, void *context, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    print(context, line);
}

int opcheck_levels(const backend_type *type, const char *only, const char **names, int most) {
    static const char *const all[] = {"portable", "avx2", "avx512", "avx512bf16"}; // worst first
    if (strcmp(type->name, "cpu") != 0) {
        names[0] = NULL;
        return 1;
    }
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && n < most; i++) {
        if (!only || strcmp(only, all[i]) == 0) {
            names[n++] = all[i];
        }
        if (strcmp(all[i], cpu_best_level()) == 0) {
            break;
        }
    }
    return n;
}

// ---- one case ----

typedef struct sums {
    int n_cases, n_failed, n_refused;
    double worst, rms, quality;
} sums;

typedef struct opcheck {
    const opcheck_options *options;
    opcheck_print_fn print;
    void *context;
    backend *ref;
    backend *tested[MOST_LEVELS][MOST_THREADS + 1]; // by thread count
    const char *levels[MOST_LEVELS];
    int n_levels;
    sums totals[OP_KIND_COUNT][MOST_LEVELS];
} opcheck;

// One case at one level.
typedef struct check {
    opcheck *oc;
    const case_data *d;
    int level;
    arena *memory;
    runner main, truth;
    run_result result; // of all rows, on MAIN_THREADS threads
    bool is_refused;
    char reason[256];
    double worst, rms, quality;
} check;

static bool fail(check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->reason, sizeof c->reason, format, args);
    va_end(args);
    return false;
}

static bool fail_with(check *c, const char *what, const error_ctx *err) {
    char text[400];
    return fail(c, "%s: %.200s", what, error_text(err, text, (int)sizeof text));
}

static int64_t output_rows(const check *c, int index, int64_t first, int64_t n) {
    const case_data *d = c->d;
    if (d->p->values[d->p->ops[0].outputs[index]].rows == ROWS_TOKENS) {
        return n;
    }
    int64_t rows = 0;
    for (int32_t i = 0; i < d->batch.n_logit_rows; i++) {
        rows += d->batch.logit_rows[i] >= first && d->batch.logit_rows[i] < first + n;
    }
    return rows;
}

// Whether rows [first, first + n) of the main run and all rows of `part` have equal bits, in outputs and state.
static bool same_rows(check *c, const run_result *part, const runner *r, int64_t first, int64_t n) {
    const case_data *d = c->d;
    for (int i = 0; i < op_get_info(d->c->kind)->n_outputs; i++) {
        int64_t width = d->p->values[d->p->ops[0].outputs[i]].width, before = output_rows(c, i, 0, first);
        size_t bytes = (size_t)(output_rows(c, i, first, n) * width) * sizeof(float);
        if (bytes && memcmp(c->result.outputs[i] + before * width, part->outputs[i], bytes) != 0) {
            return false;
        }
    }
    if (!d->k_image || n != d->rows) {
        return true; // of a part, the outputs tell; its state is checked against the truth
    }
    return memcmp(c->main.slab.k, r->slab.k, (size_t)d->k_bytes) == 0 &&
           memcmp(c->main.slab.v, r->slab.v, (size_t)d->v_bytes) == 0;
}

// Run a part on runner r and compare its bits with the main run.
static bool check_part(check *c, runner *r, int64_t first, int64_t n, const char *what) {
    error_ctx err = {0};
    run_result part;
    if (runner_run(r, c->memory, first, n, NULL, &part, &err) != STATUS_OK) {
        return fail_with(c, what, &err);
    }
    if (part.violation) {
        return fail(c, "%s: %s", what, part.violation);
    }
    return same_rows(c, &part, r, first, n) || fail(c, "%s: bits differ", what);
}

// Run on a backend with other threads or without composites, and compare bits.
static bool check_other(check *c, backend *device, bool lower_composites, const char *what) {
    runner other;
    error_ctx err = {0};
    bool passed = runner_open(&other, device, c->d, lower_composites, &err) == STATUS_OK
                      ? check_part(c, &other, 0, c->d->rows, what)
                      : fail_with(c, what, &err);
    runner_close(&other);
    return passed;
}

static bool check_rows(check *c) {
    int64_t rows = c->d->rows;
    const int64_t single[] = {0, rows / 2, rows - 1};
    for (size_t i = 0; i < 3 && rows > 1; i++) {
        if (!check_part(c, &c->main, single[i], 1, "a row alone")) {
            return false;
        }
    }
    return (rows <= 2 || check_part(c, &c->main, 1, rows - 2, "inner rows")) &&
           (rows <= 6 || check_part(c, &c->main, 0, 5, "first five rows")) &&
           (rows == 0 || check_part(c, &c->main, 0, 0, "no rows"));
}

// The oracle's part: fills c->worst, rms and quality.
static bool check_truth(check *c) {
    const case_data *d = c->d;
    error_ctx err = {0};
    run_result truth, unquantised;
    float *quantised = arena_alloc_array(c->memory, (size_t)(d->rows * d->c->k) + 1, sizeof *quantised);
    if (!quantised) {
        return fail(c, "out of memory");
    }
    float *seen[OP_MAX_INPUTS] = {d->inputs[0], d->inputs[1], d->inputs[2]};
    bool is_quantised = d->n_inputs > 0 && oracle_quantize(d, runner_kernel(&c->main), quantised);
    seen[0] = is_quantised ? quantised : seen[0];
    if (runner_run(&c->truth, c->memory, 0, d->rows, NULL, &unquantised, &err) != STATUS_OK ||
        runner_run(&c->truth, c->memory, 0, d->rows, seen, &truth, &err) != STATUS_OK) {
        return fail_with(c, "ref", &err);
    }
    for (int i = 0; i < op_get_info(d->c->kind)->n_outputs; i++) {
        error_measure m = oracle_compare(d, seen, i, c->result.outputs[i], truth.wide_outputs[i], c->memory);
        c->worst = fmax(c->worst, m.worst);
        c->rms = fmax(c->rms, m.rms);
        if (is_quantised) {
            m = oracle_compare(d, d->inputs, i, c->result.outputs[i], unquantised.wide_outputs[i], c->memory);
            c->quality = fmax(c->quality, m.nmse);
        }
    }
    if (!(c->worst <= 1) || !(c->rms <= 1)) {
        return fail(c, "error is %.3g of the bound, %.3g of sigma", c->worst, c->rms);
    }
    if (d->c->kind == OP_ATTENTION) {
        bool same = memcmp(c->main.slab.k, d->k_image, (size_t)d->k_bytes) == 0 &&
                    memcmp(c->main.slab.v, d->v_image, (size_t)d->v_bytes) == 0;
        return same || fail(c, "attention wrote to the state");
    }
    double worst;
    const char *reason;
    if (d->k_image && !oracle_compare_state(d, seen, &c->main, &c->truth, &worst, &reason)) {
        return fail(c, "%s (%.3g of the bound)", reason, worst);
    }
    return true;
}

static bool check_all(check *c) {
    backend **devices = c->oc->tested[c->level];
    error_ctx err = {0};
    const op *o = &c->d->p->ops[0];
    c->is_refused = !devices[MAIN_THREADS]->type->supports(devices[MAIN_THREADS], c->d->p, o);
    if (c->is_refused && op_get_info(o->kind)->is_composite) {
        return true; // it will be lowered, and its primitives have cases of their own
    }
    if (runner_open(&c->main, devices[MAIN_THREADS], c->d, false, &err) != STATUS_OK ||
        runner_open(&c->truth, c->oc->ref, c->d, true, &err) != STATUS_OK ||
        runner_run(&c->main, c->memory, 0, c->d->rows, NULL, &c->result, &err) != STATUS_OK) {
        return fail_with(c, "run", &err);
    }
    if (c->result.violation) {
        return fail(c, "%s", c->result.violation);
    }
    if (!check_truth(c) || !check_part(c, &c->main, 0, c->d->rows, "a second run")) {
        return false;
    }
    for (int n = 1; n <= MOST_THREADS; n++) {
        char what[32];
        snprintf(what, sizeof what, "%d threads", n);
        if (devices[n] && n != MAIN_THREADS && !check_other(c, devices[n], false, what)) {
            return false;
        }
    }
    if (op_get_info(c->d->c->kind)->is_composite && !check_other(c, devices[MAIN_THREADS], true, "lowered")) {
        return false;
    }
    return check_rows(c);
}

static void run_case(opcheck *oc, const op_case *k, const case_data *d, int level) {
    check c = {.oc = oc, .d = d, .level = level, .memory = arena_new(0)};
    bool passed = d && c.memory ? check_all(&c) : fail(&c, "out of memory");
    runner_close(&c.main);
    runner_close(&c.truth);
    arena_free(c.memory);
    sums *s = &oc->totals[k->kind][level];
    s->n_cases++;
    s->n_failed += !passed;
    s->n_refused += c.is_refused;
    s->worst = fmax(s->worst, c.worst);
    s->rms = fmax(s->rms, c.rms);
    s->quality = fmax(s->quality, c.quality);
    if (!passed || oc->options->verbose) {
        strbuf text = {0};
        case_describe(k, &text);
        const char *level_name = oc->levels[level] ? oc->levels[level] : "";
        opcheck_line(oc->print, oc->context, "%s %s: %s%s%s", passed ? "ok  " : "FAIL", level_name,
                     text.ptr ? text.ptr : "", passed ? "" : ": ", c.reason);
        strbuf_free(&text);
    }
}

// ---- all cases ----

static bool is_wanted(const opcheck_options *options, const op_case *c) {
    if (options->op && strcmp(options->op, op_get_info(c->kind)->name) != 0) {
        return false;
    }
    return !options->dtype || case_has_dtype(c, dtype_from_name(options->dtype));
}

static uint64_t case_seed(const opcheck_options *options, int index) {
    uint64_t state = (options->seed ? options->seed : 1) * 1000003u + (uint64_t)index;
    return opcheck_random(&state);
}

static void run_cases(opcheck *oc, const case_list *list, opcheck_summary *summary) {
    for (int i = 0; i < list->n; i++) {
        const op_case *k = &list->items[i];
        if (!is_wanted(oc->options, k)) {
            continue;
        }
        case_data *d = case_data_new(k, case_seed(oc->options, i));
        for (int level = 0; level < oc->n_levels; level++) {
            run_case(oc, k, d, level);
        }
        case_data_free(d);
    }
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
        for (int level = 0; level < oc->n_levels; level++) {
            const sums *s = &oc->totals[kind][level];
            summary->n_cases += s->n_cases;
            summary->n_failed += s->n_failed;
            if (!s->n_cases) {
                continue;
            }
            char quality[96] = "";
            if (s->quality > 0) {
                snprintf(quality, sizeof quality, ", activation quantisation nmse %.2g", s->quality);
            }
            if (s->n_refused) {
                size_t at = strlen(quality);
                snprintf(quality + at, sizeof quality - at, ", %d lowered", s->n_refused);
            }
            opcheck_line(oc->print, oc->context,
                         "%-13s %-10s %4d cases, %d failed; worst %.3f of bound, %.3f of sigma%s",
                         op_get_info((op_kind)kind)->name, oc->levels[level] ? oc->levels[level] : "", s->n_cases,
                         s->n_failed, s->worst, s->rms, quality);
        }
    }
}

static status_code open_backends(opcheck *oc, const backend_type *type, error_ctx *err) {
    RETURN_IF_ERROR(backend_find("ref")->open(&(backend_options){.n_threads = MAIN_THREADS}, &oc->ref, err));
    for (int level = 0; level < oc->n_levels; level++) {
        for (int n = 1; n <= MOST_THREADS; n++) {
            if (oc->options->quick && n == 4) {
                continue; // more threads than most test machines have cores: slow, and 3 tells as much
            }
            backend_options options = {.n_threads = n, .cpu_level = oc->levels[level]};
            RETURN_IF_ERROR(type->open(&options, &oc->tested[level][n], err));
        }
    }
    return STATUS_OK;
}

static void close_backends(opcheck *oc, const backend_type *type) {
    if (oc->ref) {
        oc->ref->type->close(oc->ref);
    }
    for (int level = 0; level < oc->n_levels; level++) {
        for (int n = 1; n <= MOST_THREADS; n++) {
            if (oc->tested[level][n]) {
                type->close(oc->tested[level][n]);
            }
        }
    }
}

static int list_cases(const opcheck_options *options, const case_list *list, opcheck_print_fn print, void *context) {
    for (int i = 0; i < list->n; i++) {
        if (is_wanted(options, &list->items[i])) {
            strbuf text = {0};
            case_describe(&list->items[i], &text);
            print(context, text.ptr ? text.ptr : "");
            strbuf_free(&text);
        }
    }
    return 0;
}

static bool is_op_name(const char *name) {
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
        if (strcmp(name, op_get_info((op_kind)kind)->name) == 0) {
            return true;
        }
    }
    return false;
}

static int run_tests(const opcheck_options *options, const backend_type *type, const case_list *list,
                     opcheck_print_fn print, void *context, opcheck_summary *summary) {
    opcheck *oc = calloc(1, sizeof *oc);
    if (!oc) {
        print(context, "out of memory");
        return 2;
    }
    error_ctx err = {0};
    char text[400];
    *oc = (opcheck){.options = options, .print = print, .context = context};
    oc->n_levels = opcheck_levels(type, options->level, oc->levels, MOST_LEVELS);
    int result = 2;
    if (open_backends(oc, type, &err) != STATUS_OK) {
        opcheck_line(print, context, "cannot open the backend: %s", error_text(&err, text, (int)sizeof text));
    } else {
        run_cases(oc, list, summary);
        opcheck_line(print, context, "%d cases, %d failed", summary->n_cases, summary->n_failed);
        result = summary->n_failed ? 1 : 0;
    }
    close_backends(oc, type);
    free(oc);
    return result;
}

int opcheck_run(const opcheck_options *options, opcheck_print_fn print, void *context, opcheck_summary *summary) {
    opcheck_summary unused;
    summary = summary ? summary : &unused;
    *summary = (opcheck_summary){0};
    const char *name = options->backend ? options->backend : "cpu", *levels[MOST_LEVELS];
    const backend_type *type = backend_find(name);
    if (!type) {
        opcheck_line(print, context, "backend \"%s\" is unknown", name);
        return 2;
    }
    if (options->level && opcheck_levels(type, options->level, levels, MOST_LEVELS) == 0) {
        opcheck_line(print, context, "level \"%s\" is unknown or not in this machine", options->level);
        return 2;
    }
    if (options->op && !is_op_name(options->op)) {
        opcheck_line(print, context, "op \"%s\" is unknown", options->op);
        return 2;
    }
    if (options->dtype && dtype_from_name(options->dtype) == DTYPE_NONE) {
        opcheck_line(print, context, "dtype \"%s\" is unknown", options->dtype);
        return 2;
    }
    if (options->mode == OPCHECK_BENCH) {
        return opcheck_bench(options, type, print, context);
    }
    if (options->mode == OPCHECK_SUPPORT) {
        return opcheck_support(options, type, print, context);
    }
    case_list list;
    opcheck_cases(&list, options->quick);
    int result = 2;
    if (list.oom) {
        print(context, "out of memory");
    } else if (options->mode == OPCHECK_LIST) {
        result = list_cases(options, &list, print, context);
    } else {
        result = run_tests(options, type, &list, print, context, summary);
    }
    free(list.items);
    return result;
}
