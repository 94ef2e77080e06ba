// Timing of ops at model-like sizes, and the support table.
//
// A decode step streams every weight once, from memory: a bench program therefore holds as many copies of the op, on
// weights (or states) of their own, as exceed the last-level cache. GB/s counts the bytes of the weights in their file
// format and of the state; the roofline is a plain streaming read with the same number of threads.
#include "backend/opcheck_int.h"

#include "base/clock.h"
#include "base/team.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_BYTES = 96 << 20, PROBE_BYTES = 256 << 20, LEAST_RUNS = 3, MOST_RUNS = 50, MOST_LEVELS = 8 };
static const uint64_t wanted_ns = 300000000; // time spent on a line

// ---- roofline ----

typedef struct probe {
    const uint64_t *words;
    int64_t n_words;
    uint64_t sums[256]; // one a thread; kept, so that reading is not optimised away
} probe;

static void probe_share(void *context, int thread, int n_threads) {
    probe *p = context;
    int64_t begin, end;
    team_share(p->n_words, 8, thread, n_threads, &begin, &end);
    uint64_t sums[8] = {0};
    for (int64_t i = begin; i + 8 <= end; i += 8) {
        for (int lane = 0; lane < 8; lane++) {
            sums[lane] += p->words[i + lane];
        }
    }
    p->sums[thread] = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

// Bytes per second of a streaming read; 0 when it cannot be measured.
static double measure_read_bandwidth(int n_threads) {
    probe *p = calloc(1, sizeof *p);
    uint64_t *words = malloc(PROBE_BYTES);
    team *threads = NULL;
    double best = 0;
    if (p && words && team_new(n_threads, false, &threads, NULL) == STATUS_OK) {
        memset(words, 1, PROBE_BYTES);
        *p = (probe){.words = words, .n_words = PROBE_BYTES / 8};
        for (int i = 0; i < 8; i++) {
            uint64_t start = clock_monotonic_ns();
            team_run(threads, probe_share, p);
            double seconds = (double)(clock_monotonic_ns() - start) * 1e-9;
            best = PROBE_BYTES / seconds > best ? PROBE_BYTES / seconds : best;
        }
    }
    team_free(threads);
    free(words);
    free(p);
    return best;
}

// ---- programs ----

typedef struct bench_case {
    op_kind kind;
    dtype type; // weight or state
    int64_t rows, k, n;
    int64_t n_heads, n_kv_heads, dim, depth; // ATTENTION
} bench_case;

typedef struct bench_run {
    const bench_case *c;
    arena *memory;
    program *p;
    plan *planned;
    backend *device;
    state_slab *slabs;
    uint64_t slab_bytes;
    batch rows;
} bench_run;

static void *take(bench_run *r, int64_t count, size_t bytes) {
    void *memory = arena_alloc_array(r->memory, (size_t)count + 1, bytes);
    r->p->oom |= !memory;
    return memory;
}

static int new_value(bench_run *r, int64_t width, bool is_import) {
    int id = program_value(r->p, ROWS_TOKENS, width, "v");
    if (!r->p->oom) {
        r->p->values[id].is_import = is_import;
        r->p->values[id].is_export = !is_import;
    }
    return id;
}

// Copies of the op that together exceed the cache; one when the rows make the op compute-bound.
static int64_t copies(const bench_case *c, uint64_t bytes) {
    return c->rows > 16 || bytes == 0 ? 1 : (int64_t)(CACHE_BYTES / bytes) + 1;
}

static void build_matmuls(bench_run *r) {
    const bench_case *c = r->c;
    uint64_t bytes = 0, random = 7;
    dtype_bytes(c->type, c->n * c->k, &bytes);
    uint8_t *data = take(r, (int64_t)bytes, 1);
    int in = new_value(r, c->k, true), out = OP_ABSENT;
    if (r->p->oom) {
        return;
    }
    opcheck_fill_weight(c->type, data, c->n * c->k, &random);
    for (int64_t i = 0; i < copies(c, bytes); i++) {
        out = new_value(r, c->n, false);
        // the same file bytes each time, but repacked to a place of their own
        int w = program_weight(r->p, &(weight){.name = "w",
                                               .type = c->type,
                                               .n_dims = 2,
                                               .shape = {c->n, c->k, 1, 1},
                                               .n_planes = 1,
                                               .planes = {{data, bytes}}});
        op *o = program_op(r->p, OP_MATMUL, "matmul");
        o->inputs[0] = in;
        o->weights[0] = w;
        o->outputs[0] = out;
    }
}

static void build_attentions(bench_run *r) {
    const bench_case *c = r->c;
    uint64_t bytes = (uint64_t)(2 * c->depth * c->n_kv_heads * c->dim * dtype_get(c->type)->block_bytes);
    int q = new_value(r, c->n_heads * c->dim, true);
    for (int64_t i = 0; i < copies(c, bytes); i++) {
        int out = new_value(r, c->n_heads * c->dim, false);
        int state = program_state(
            r->p, &(state_desc){.name = "kv", .n_kv_heads = c->n_kv_heads, .k_dim = c->dim, .v_dim = c->dim});
        op *o = program_op(r->p, OP_ATTENTION, "attention");
        o->inputs[0] = q;
        o->outputs[0] = out;
        o->state = state;
        o->params.n_heads = c->n_heads;
        o->params.attn_scale = 0.125f;
    }
}

static void build_row_op(bench_run *r) {
    const bench_case *c = r->c;
    int a = new_value(r, c->k, true), b = new_value(r, c->k, true), out = new_value(r, c->k, false);
    float *norm = take(r, c->k, sizeof *norm);
    int w = program_weight(r->p, &(weight){.name = "norm",
                                           .type = DTYPE_F32,
                                           .n_dims = 1,
                                           .shape = {c->k, 1, 1, 1},
                                           .n_planes = 1,
                                           .planes = {{norm, (uint64_t)c->k * 4}}});
    op *o = program_op(r->p, c->kind, "op");
    o->inputs[0] = a;
    o->inputs[1] = c->kind == OP_RMS_NORM ? OP_ABSENT : b;
    o->weights[0] = c->kind == OP_RMS_NORM ? w : OP_ABSENT;
    o->outputs[0] = out;
    o->params.norm = (norm_params){.eps = 1e-5f, .group = c->k};
}

static void build_batch(bench_run *r) {
    int64_t n = r->c->rows, blocks = r->c->depth / STATE_BLOCK_TOKENS + 1;
    int32_t *numbers = take(r, 4 * n, sizeof *numbers), *table = take(r, blocks, sizeof *table);
    batch_seq *seq = take(r, 1, sizeof *seq);
    const int32_t **tables = take(r, 1, sizeof *tables);
    if (r->p->oom) {
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        numbers[n + i] = (int32_t)(r->c->depth > n ? r->c->depth - n + i : i); // positions end at the depth
    }
    for (int32_t b = 0; b < blocks; b++) {
        table[b] = b;
    }
    tables[0] = table;
    *seq = (batch_seq){.n_rows = (int32_t)n, .tables = tables};
    r->rows = (batch){.n_tokens = (int32_t)n,
                      .n_seqs = 1,
                      .tokens = numbers,
                      .positions = numbers + n,
                      .seq_of_row = numbers + 2 * n,
                      .seqs = seq,
                      .logit_rows = numbers + 3 * n};
}

static status_code make_states(bench_run *r, error_ctx *err) {
    const bench_case *c = r->c;
    int64_t blocks = c->depth / STATE_BLOCK_TOKENS + 1;
    r->slabs = take(r, r->p->n_states, sizeof *r->slabs);
    r->slab_bytes = (uint64_t)(blocks * c->n_kv_heads * STATE_BLOCK_TOKENS * c->dim * dtype_get(c->type)->block_bytes);
    for (int i = 0; r->slabs && i < r->p->n_states; i++) {
        r->slabs[i] = (state_slab){.type = c->type, .n_blocks = blocks};
        RETURN_IF_ERROR(r->device->type->buffer_alloc(r->device, r->slab_bytes, &r->slabs[i].k, err));
        RETURN_IF_ERROR(r->device->type->buffer_alloc(r->device, r->slab_bytes, &r->slabs[i].v, err));
        // Touch the pages: reading untouched ones would measure the zero page.
        memset(r->slabs[i].k, 0x11, (size_t)r->slab_bytes);
        memset(r->slabs[i].v, 0x11, (size_t)r->slab_bytes);
    }
    return r->slabs ? STATUS_OK : error_no_memory(err, "a bench");
}

static void bench_close(bench_run *r) {
    if (r->planned) {
        r->device->type->plan_free(r->planned);
    }
    for (int i = 0; r->slabs && i < r->p->n_states; i++) {
        if (r->slabs[i].k) {
            r->device->type->buffer_free(r->device, r->slabs[i].k, r->slab_bytes);
        }
        if (r->slabs[i].v) {
            r->device->type->buffer_free(r->device, r->slabs[i].v, r->slab_bytes);
        }
    }
    arena_free(r->memory);
}

static status_code bench_open(bench_run *r, backend *device, const bench_case *c, error_ctx *err) {
    *r = (bench_run){.c = c, .device = device, .memory = arena_new(0)};
    if (!r->memory) {
        return error_no_memory(err, "a bench");
    }
    RETURN_IF_ERROR(program_new(r->memory, &r->p, err));
    if (c->kind == OP_MATMUL) {
        build_matmuls(r);
    } else if (c->kind == OP_ATTENTION) {
        build_attentions(r);
    } else {
        build_row_op(r);
    }
    build_batch(r);
    RETURN_IF_ERROR(program_check(r->p, err));
    RETURN_IF_ERROR(make_states(r, err));
    row_limits limits = {c->rows, 1, 1};
    RETURN_IF_ERROR(device->type->plan(device, r->p, &limits, false, &r->planned, err));
    uint64_t random = 3;
    for (int v = 0; v < r->p->n_values; v++) {
        if (r->p->values[v].is_import) {
            int64_t n = c->rows * r->p->values[v].width;
            float *values = arena_alloc_array(r->memory, (size_t)n, sizeof *values);
            for (int64_t i = 0; values && i < n; i++) {
                values[i] = (float)(opcheck_random(&random) >> 40) * 0x1p-23f - 1.0f;
            }
            if (values) {
                device->type->write_value(r->planned, v, values, c->rows);
            }
        }
    }
    return STATUS_OK;
}

// ---- a line ----

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static status_code time_runs(bench_run *r, double *least_s, double *median_s, error_ctx *err) {
    uint64_t times[MOST_RUNS], spent = 0;
    int n = 0;
    RETURN_IF_ERROR(r->device->type->run(r->planned, &r->rows, r->slabs, err)); // warm-up
    while (n < MOST_RUNS && (n < LEAST_RUNS || spent < wanted_ns)) {
        uint64_t start = clock_monotonic_ns();
        RETURN_IF_ERROR(r->device->type->run(r->planned, &r->rows, r->slabs, err));
        times[n] = clock_monotonic_ns() - start;
        spent += times[n++];
    }
    qsort(times, (size_t)n, sizeof *times, compare_u64);
    *least_s = (double)times[0] * 1e-9;
    *median_s = (double)times[n / 2] * 1e-9;
    return STATUS_OK;
}

static void bench_line(backend *device, const bench_case *c, double read_bandwidth, opcheck_print_fn print,
                       void *context) {
    bench_run r;
    error_ctx err = {0};
    double least, median;
    char text[400];
    if (bench_open(&r, device, c, &err) != STATUS_OK || time_runs(&r, &least, &median, &err) != STATUS_OK) {
        opcheck_line(print, context, "%s: %s", op_get_info(c->kind)->name, error_text(&err, text, (int)sizeof text));
        bench_close(&r);
        return;
    }
    double flops = 0, bytes = 0;
    for (int i = 0; i < r.p->n_ops; i++) {
        double op_flops, op_bytes;
        int state_bytes = c->kind == OP_ATTENTION ? dtype_get(c->type)->block_bytes : 0;
        op_cost(r.p, &r.p->ops[i], c->rows, c->depth, state_bytes, &op_flops, &op_bytes);
        flops += op_flops;
        bytes += op_bytes;
    }
    char shape[64];
    if (c->kind == OP_ATTENTION) {
        snprintf(shape, sizeof shape, "%lld/%lld heads x %lld, depth %lld", (long long)c->n_heads,
                 (long long)c->n_kv_heads, (long long)c->dim, (long long)c->depth);
    } else {
        snprintf(shape, sizeof shape, "%lld -> %lld", (long long)c->k, (long long)c->n);
    }
    opcheck_line(print, context,
                 "%-30s %5lld rows  %-32s %9.1f us (median %9.1f)  %7.2f GB/s  %5.1f %% of read  %8.1f GFLOP/s",
                 device->type->plan_kernel(r.planned, 0), (long long)c->rows, shape, least * 1e6 / r.p->n_ops,
                 median * 1e6 / r.p->n_ops, bytes / least * 1e-9,
                 read_bandwidth > 0 ? 100 * bytes / least / read_bandwidth : 0.0, flops / least * 1e-9);
    bench_close(&r);
}

static bool is_wanted(const opcheck_options *options, op_kind kind, dtype type) {
    return (!options->op || strcmp(options->op, op_get_info(kind)->name) == 0) &&
           (!options->dtype || dtype_from_name(options->dtype) == type);
}

static void bench_level(const opcheck_options *options, backend *device, double read_bandwidth, opcheck_print_fn print,
                        void *context) {
    static const dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0,   DTYPE_Q4_1,
                                  DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q2_K,   DTYPE_Q3_K,
                                  DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS};
    static const int64_t rows[] = {1, 4, 512};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            if (is_wanted(options, OP_MATMUL, types[t])) {
                bench_case c = {.kind = OP_MATMUL, .type = types[t], .rows = rows[r], .k = 2048, .n = 2048};
                bench_line(device, &c, read_bandwidth, print, context);
            }
        }
    }
    static const bench_case attentions[] = {
        {.kind = OP_ATTENTION, .type = DTYPE_F16, .rows = 1, .n_heads = 9, .n_kv_heads = 3, .dim = 64, .depth = 8192},
        {.kind = OP_ATTENTION, .type = DTYPE_F16, .rows = 512, .n_heads = 9, .n_kv_heads = 3, .dim = 64, .depth = 2048},
        {.kind = OP_ATTENTION, .type = DTYPE_F16, .rows = 1, .n_heads = 4, .n_kv_heads = 1, .dim = 256, .depth = 8192},
        {.kind = OP_ATTENTION,
         .type = DTYPE_F16,
         .rows = 512,
         .n_heads = 4,
         .n_kv_heads = 1,
         .dim = 256,
         .depth = 2048},
    };
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
        if (is_wanted(options, OP_ATTENTION, attentions[i].type)) {
            bench_line(device, &attentions[i], read_bandwidth, print, context);
        }
    }
    static const op_kind row_ops[] = {OP_RMS_NORM, OP_ADD, OP_ACT_GATE};
    for (size_t i = 0; i < sizeof row_ops / sizeof *row_ops; i++) {
        for (int64_t n = 1; n <= 512; n += 511) {
            if (is_wanted(options, row_ops[i], DTYPE_F32)) {
                bench_case c = {.kind = row_ops[i], .type = DTYPE_F32, .rows = n, .k = 2048, .n = 2048};
                bench_line(device, &c, read_bandwidth, print, context);
            }
        }
    }
}

int opcheck_bench(const opcheck_options *options, const backend_type *type, opcheck_print_fn print, void *context) {
    const char *levels[MOST_LEVELS];
    int n_levels = opcheck_levels(type, options->level, levels, MOST_LEVELS);
    int n_threads = options->n_threads > 0 ? options->n_threads : team_default_threads();
    backend *device;
    error_ctx err = {0};
    char text[400];
    backend_options open_options = {.n_threads = n_threads, .cpu_level = levels[n_levels - 1]};
    if (type->open(&open_options, &device, &err) != STATUS_OK) {
        opcheck_line(print, context, "cannot open the backend: %s", error_text(&err, text, (int)sizeof text));
        return 2;
    }
    double read_bandwidth = measure_read_bandwidth(n_threads);
    opcheck_line(print, context, "%s, level %s, %d threads; streaming read %.2f GB/s", type->name, type->level(device),
                 n_threads, read_bandwidth * 1e-9);
    bench_level(options, device, read_bandwidth, print, context);
    type->close(device);
    return 0;
}

// ---- support table ----

// The kernel that a level would use for the op with one weight (or state) type, NULL when the op is refused.
static bool kernel_for(backend *device, op_kind kind, dtype type, char *out, size_t out_bytes) {
    op_case c = {.kind = kind,
                 .weight_type = type,
                 .second_type = type,
                 .rows = 1,
                 .k = 256,
                 .n = 256,
                 .group = 256,
                 .k_dim = 64,
                 .v_dim = 64,
                 .n_heads = 2,
                 .n_kv_heads = 1,
                 .n_freqs = 32,
                 .state_type = DTYPE_F16,
                 .n_seqs = 1,
                 .seqs = {{0, 1}}};
    if (op_get_info(kind)->uses_state) {
        c.state_type = type;
    }
    case_data *d = case_data_new(&c, 1);
    runner r = {0};
    error_ctx err = {0};
    bool is_supported = d && device->type->supports(device, d->p, &d->p->ops[0]) &&
                        runner_open(&r, device, d, false, &err) == STATUS_OK;
    if (is_supported) {
        snprintf(out, out_bytes, "%s", runner_kernel(&r));
    }
    if (d) {
        runner_close(&r);
    }
    case_data_free(d);
    return is_supported;
}

static void support_row(backend *const *devices, int n, op_kind kind, dtype type, opcheck_print_fn print,
                        void *context) {
    char line[512], kernel[128];
    int at = snprintf(line, sizeof line, "| %s | %s |", op_get_info(kind)->name, type ? dtype_get(type)->name : "");
    for (int i = 0; i < n && at > 0 && (size_t)at < sizeof line; i++) {
        bool is_supported = kernel_for(devices[i], kind, type ? type : DTYPE_F32, kernel, sizeof kernel);
        at += snprintf(line + at, sizeof line - (size_t)at, " %s |", is_supported ? kernel : "lowered");
    }
    print(context, line);
}

int opcheck_support(const opcheck_options *options, const backend_type *type, opcheck_print_fn print, void *context) {
    const char *levels[MOST_LEVELS];
    backend *devices[MOST_LEVELS] = {NULL};
    int n = opcheck_levels(type, options->level, levels, MOST_LEVELS), result = 0;
    char header[512] = "| op | dtype |", rule[512] = "|---|---|";
    for (int i = 0; i < n; i++) {
        error_ctx err = {0};
        char text[400];
        if (type->open(&(backend_options){.n_threads = 1, .cpu_level = levels[i]}, &devices[i], &err) != STATUS_OK) {
            opcheck_line(print, context, "cannot open the backend: %s", error_text(&err, text, (int)sizeof text));
            result = 2;
            break;
        }
        size_t at = strlen(header);
        snprintf(header + at, sizeof header - at, " %s |", type->level(devices[i]));
        snprintf(rule + strlen(rule), sizeof rule - strlen(rule), "---|");
    }
    if (result == 0) {
        opcheck_line(print, context, "# Ops and kernels of the %s backend", type->name);
        print(context, "");
        print(context,
              "Generated by `plumb opcheck --support`. A column is a level of the backend, a cell the kernel that");
        print(context,
              "runs there; \"lowered\" means that the composite runs as its primitives. A matmul's name gives the");
        print(context, "weight type and the form of its activations.");
        print(context, "");
        print(context, header);
        print(context, rule);
    }
    for (int kind = OP_NONE + 1; result == 0 && kind < OP_KIND_COUNT; kind++) {
        const op_info *info = op_get_info((op_kind)kind);
        bool by_weight = kind == OP_EMBED || kind == OP_MATMUL || kind == OP_GATE_UP;
        static const dtype states[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
        for (int t = DTYPE_NONE + 1; by_weight && t < DTYPE_COUNT; t++) {
            if (dtype_get((dtype)t)->decode) {
                support_row(devices, n, (op_kind)kind, (dtype)t, print, context);
            }
        }
        for (size_t s = 0; info->uses_state && s < sizeof states / sizeof *states; s++) {
            support_row(devices, n, (op_kind)kind, states[s], print, context);
        }
        if (!by_weight && !info->uses_state) {
            support_row(devices, n, (op_kind)kind, DTYPE_NONE, print, context);
        }
    }
    for (int i = 0; i < n; i++) {
        if (devices[i]) {
            type->close(devices[i]);
        }
    }
    return result;
}
