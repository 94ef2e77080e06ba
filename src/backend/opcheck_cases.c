// The case table: shapes at and around tile edges, primes, nothing at all, and real model sizes.
#include "backend/opcheck_int.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void add_case(case_list *list, op_case c) {
    if (list->n == list->cap) {
        int cap = list->cap ? 2 * list->cap : 128;
        op_case *moved = realloc(list->items, (size_t)cap * sizeof *moved);
        if (!moved) {
            list->oom = true;
            return;
        }
        list->items = moved;
        list->cap = cap;
    }
    list->items[list->n++] = c;
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static bool can_hold_weights(dtype type) {
    const dtype_info *info = dtype_get(type);
    return info && info->decode && type != DTYPE_F8_E8M0; // E8M0 is a format of scales only
}

// Each weight format over row counts (below, at and above every tile height) and widths.
static void add_matmuls(case_list *list, bool quick) {
    static const int64_t row_counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 64, 65};
    static const int64_t quick_rows[] = {0, 1, 3, 8, 13};
    const int64_t *rows = quick ? quick_rows : row_counts;
    size_t n_rows = quick ? COUNT(quick_rows) : COUNT(row_counts);
    for (int type = DTYPE_NONE + 1; type < DTYPE_COUNT; type++) {
        if (!can_hold_weights((dtype)type)) {
            continue;
        }
        int64_t block = dtype_get((dtype)type)->block_elements;
        // one block, some blocks, and for plain types a width that is a multiple of nothing
        const int64_t widths[] = {block > 1 ? block : 1, block > 1 ? 3 * block : 37};
        static const int64_t outputs[] = {1, 15, 16, 17, 33};
        for (size_t r = 0; r < n_rows; r++) {
            for (size_t w = 0; w < COUNT(widths); w++) {
                int64_t n = outputs[(r + 2 * w) % COUNT(outputs)];
                add_case(list, (op_case){.kind = OP_MATMUL,
                                         .weight_type = (dtype)type,
                                         .rows = rows[r],
                                         .k = widths[w],
                                         .n = n,
                                         .has_bias = (r + w) % 3 == 0});
            }
        }
        if (!quick) { // SmolLM2 and Gemma 3 projections, where the block allows the width
            static const int64_t sizes[][2] = {{576, 192}, {1536, 576}, {640, 1024}, {2048, 640}};
            for (size_t s = 0; s < COUNT(sizes); s++) {
                if (sizes[s][0] % block == 0) {
                    add_case(list, (op_case){.kind = OP_MATMUL,
                                             .weight_type = (dtype)type,
                                             .rows = s % 2 ? 1 : 19,
                                             .k = sizes[s][0],
                                             .n = sizes[s][1]});
                }
            }
        }
    }
}

static void add_gate_ups(case_list *list, bool quick) {
    static const dtype types[][2] = {{DTYPE_Q4_1, DTYPE_Q4_1}, {DTYPE_Q5_0, DTYPE_Q5_0}, {DTYPE_Q4_K, DTYPE_Q6_K},
                                     {DTYPE_F32, DTYPE_F32},   {DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_F32},
                                     {DTYPE_Q8_0, DTYPE_F16}};
    for (size_t t = 0; t < COUNT(types); t++) {
        for (int64_t rows = 0; rows < (quick ? 4 : 10); rows += 3) {
            add_case(list, (op_case){.kind = OP_GATE_UP,
                                     .weight_type = types[t][0],
                                     .second_type = types[t][1],
                                     .rows = rows,
                                     .k = 256,
                                     .n = rows % 2 ? 96 : 41,
                                     .act = (activation)(rows % 3)});
        }
    }
    if (!quick) {
        add_case(list, (op_case){.kind = OP_GATE_UP,
                                 .weight_type = DTYPE_Q4_1,
                                 .second_type = DTYPE_Q4_1,
                                 .rows = 67,
                                 .k = 576,
                                 .n = 1536,
                                 .act = ACTIVATION_SILU});
    }
}

static void add_row_ops(case_list *list) {
    static const int64_t rows[] = {0, 1, 2, 7, 16};
    static const int64_t widths[] = {1, 7, 8, 15, 16, 17, 31, 64, 576, 1009};
    for (size_t r = 0; r < COUNT(rows); r++) {
        for (size_t w = 0; w < COUNT(widths); w++) {
            op_case c = {.rows = rows[r],
                         .k = widths[w],
                         .n = widths[w],
                         .group = widths[w],
                         .weight_type = DTYPE_F32,
                         .eps = w % 2 ? 1e-6f : 1e-5f,
                         .offset = (float)(w % 2),
                         .in_place = (r + w) % 2 == 1};
            for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
                c.kind = (op_kind)kind;
                c.act = (activation)((r + w) % 3);
                if (kind == OP_RMS_NORM || kind == OP_ADD || kind == OP_ACT_GATE || kind == OP_ADD_RMS_NORM ||
                    kind == OP_NORM_ADD || kind == OP_GATHER_ROWS) {
                    c.in_place = kind != OP_GATHER_ROWS && kind != OP_RMS_NORM && (r + w) % 2 == 1;
                    add_case(list, c);
                }
            }
        }
        // one norm per head (q and k norms), and the other weight types that files hold norms in
        static const dtype norm_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
        for (size_t t = 0; t < COUNT(norm_types); t++) {
            add_case(list, (op_case){.kind = OP_RMS_NORM,
                                     .weight_type = norm_types[t],
                                     .rows = rows[r],
                                     .k = 4 * 24,
                                     .n = 4 * 24,
                                     .group = 24,
                                     .eps = 1e-6f});
        }
    }
}

static void add_embeds(case_list *list) {
    static const float scales[] = {1.0f, 25.25f};
    for (int type = DTYPE_NONE + 1; type < DTYPE_COUNT; type++) {
        if (can_hold_weights((dtype)type)) {
            int64_t block = dtype_get((dtype)type)->block_elements;
            for (int64_t rows = 0; rows < 6; rows += 5) {
                add_case(list, (op_case){.kind = OP_EMBED,
                                         .weight_type = (dtype)type,
                                         .rows = rows,
                                         .k = block > 1 ? 2 * block : 37,
                                         .n = block > 1 ? 2 * block : 37,
                                         .scale = scales[type % 2]});
            }
        }
    }
}

// Positions from the first to beyond the longest context the project serves.
static void add_ropes(case_list *list) {
    static const int64_t shapes[][2] = {{16, 8}, {24, 5}, {64, 32}, {64, 16}, {256, 128}, {96, 33}}; // head, freqs
    static const int32_t starts[] = {0, 1, 8191, 262143};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        for (int style = ROPE_HALF; style <= ROPE_INTERLEAVED; style++) {
            for (size_t p = 0; p < COUNT(starts); p++) {
                add_case(list, (op_case){.kind = OP_ROPE,
                                         .k_dim = shapes[s][0],
                                         .n_freqs = shapes[s][1],
                                         .n_heads = 3,
                                         .style = (rope_style)style,
                                         .scale = p % 2 ? 1.0f : 1.2079f,
                                         .in_place = (s + p) % 2 == 1,
                                         .n_seqs = 2,
                                         .seqs = {{starts[p], 3}, {starts[p] / 3, (int32_t)p}}});
            }
        }
    }
}

static const dtype state_types[] = {DTYPE_F16, DTYPE_F32, DTYPE_BF16};

static void add_appends(case_list *list) {
    static const int64_t dims[][2] = {{64, 64}, {24, 40}, {256, 256}, {13, 7}};
    for (size_t t = 0; t < COUNT(state_types); t++) {
        for (size_t d = 0; d < COUNT(dims); d++) {
            op_case c = {.kind = OP_KV_APPEND,
                         .state_type = state_types[t],
                         .n_kv_heads = 1 + (int64_t)d,
                         .n_heads = 3 * (1 + (int64_t)d),
                         .k_dim = dims[d][0],
                         .v_dim = dims[d][1],
                         .n_freqs = dims[d][0] / 2,
                         .scale = 1.0f,
                         .group = dims[d][0],
                         .eps = 1e-6f,
                         .n_seqs = 3,
                         .seqs = {{60, 9}, {0, 1}, {127, 1 + (int32_t)d}}}; // over a block's edge, at an edge
            add_case(list, c);
            c.kind = OP_ROPE_APPEND;
            for (int norms = 0; norms < 4; norms++) {
                c.has_q_norm = norms & 1;
                c.has_k_norm = norms & 2;
                c.style = norms % 2 ? ROPE_HALF : ROPE_INTERLEAVED;
                add_case(list, c);
            }
            c.n_seqs = 0;
            add_case(list, c);
        }
    }
}

static void add_attentions(case_list *list, bool quick) {
    // query heads, KV heads, k size, v size
    static const int64_t shapes[][4] = {{9, 3, 64, 64},    {4, 1, 256, 256}, {1, 1, 16, 16}, {8, 8, 32, 32},
                                        {16, 1, 128, 128}, {6, 3, 72, 40},   {5, 5, 13, 7},  {40, 1, 24, 24}};
    static const int64_t windows[] = {0, 1, 63, 64, 65, 200};
    for (size_t t = 0; t < COUNT(state_types); t++) {
        for (size_t s = 0; s < COUNT(shapes); s++) {
            for (size_t w = 0; w < COUNT(windows); w++) {
                if (quick && (t + s + w) % 3 != 0) {
                    continue;
                }
                op_case c = {.kind = OP_ATTENTION,
                             .state_type = state_types[t],
                             .n_heads = shapes[s][0],
                             .n_kv_heads = shapes[s][1],
                             .k_dim = shapes[s][2],
                             .v_dim = shapes[s][3],
                             .window = windows[w],
                             .share_prefix = w % 2 == 0,
                             .n_seqs = 4,
                             // a first token, a decode row, a chunk over block edges, a decode row at a block's end
                             .seqs = {{0, 1}, {130, 1}, {100, 70}, {191, 1}}};
                add_case(list, c);
            }
        }
    }
    for (size_t t = 0; t < COUNT(state_types); t++) {
        for (size_t w = 0; w < 2; w++) { // several splits: decode alone at depth, and a chunk over a split's edge
            op_case c = {.kind = OP_ATTENTION,
                         .state_type = state_types[t],
                         .n_heads = 3,
                         .n_kv_heads = 1,
                         .k_dim = 64,
                         .v_dim = 64,
                         .window = w ? 600 : 0,
                         .n_seqs = 1,
                         .seqs = {{5000, 1}}};
            add_case(list, c);
            c.n_seqs = 2;
            c.seqs[0] = (case_seq){1000, 40};
            c.seqs[1] = (case_seq){3, 2};
            add_case(list, c);
        }
    }
    add_case(list, (op_case){.kind = OP_ATTENTION,
                             .state_type = DTYPE_F16,
                             .n_heads = 2,
                             .n_kv_heads = 1,
                             .k_dim = 64,
                             .v_dim = 64,
                             .n_seqs = 0});
}

void opcheck_cases(case_list *list, bool quick) {
    *list = (case_list){0};
    add_embeds(list);
    add_row_ops(list);
    add_matmuls(list, quick);
    add_gate_ups(list, quick);
    add_ropes(list);
    add_appends(list);
    add_attentions(list, quick);
}

bool case_has_dtype(const op_case *c, dtype type) {
    return c->weight_type == type || c->second_type == type || c->state_type == type;
}

static void append_type(strbuf *out, const char *prefix, dtype type) {
    if (type != DTYPE_NONE) {
        strbuf_append_c(out, prefix);
        for (const char *name = dtype_get(type)->name; *name; name++) {
            strbuf_append_char(out, (char)tolower((unsigned char)*name));
        }
    }
}

void case_describe(const op_case *c, strbuf *out) {
    strbuf_append_c(out, op_get_info(c->kind)->name);
    append_type(out, " ", c->weight_type);
    append_type(out, "+", c->second_type);
    append_type(out, " state ", c->state_type);
    if (c->n) {
        strbuf_printf(out, " [%lld x %lld -> %lld]", (long long)c->rows, (long long)c->k, (long long)c->n);
    }
    if (c->n_heads) {
        strbuf_printf(out, " heads %lld/%lld dims %lld/%lld", (long long)c->n_heads, (long long)c->n_kv_heads,
                      (long long)c->k_dim, (long long)c->v_dim);
    }
    if (c->kind == OP_ATTENTION) {
        strbuf_printf(out, " window %lld%s", (long long)c->window, c->share_prefix ? " shared" : "");
    }
    if (c->group && c->group != c->k) {
        strbuf_printf(out, " group %lld", (long long)c->group);
    }
    if (c->n_freqs) {
        strbuf_printf(out, " freqs %lld %s", (long long)c->n_freqs, c->style == ROPE_HALF ? "half" : "interleaved");
    }
    for (int i = 0; i < c->n_seqs; i++) {
        strbuf_printf(out, "%s%d+%d", i ? "," : " seqs ", c->seqs[i].start, c->seqs[i].n_rows);
    }
    static const char *const acts[] = {"silu", "gelu_tanh", "gelu_erf"};
    if (c->kind == OP_ACT_GATE || c->kind == OP_GATE_UP) {
        strbuf_printf(out, " %s", acts[c->act]);
    }
    strbuf_append_c(out, c->has_bias ? " bias" : "");
    strbuf_append_c(out, c->in_place ? " in-place" : "");
    strbuf_append_c(out, c->has_q_norm ? " q_norm" : "");
    strbuf_append_c(out, c->has_k_norm ? " k_norm" : "");
}
