// Attention over paged state.
//
// A query's visible positions are walked in splits of SPLIT_POSITIONS, at absolute positions. Each split is reduced on
// its own (running softmax over its blocks, ascending) and then merged into the query's total, splits ascending. That
// order depends on the query's position only, so a row has the same bits alone, in a prefill chunk, or next to other
// sequences; the start of a window only hides positions. Which thread reduces a split does not matter.
//
// Work is cut into tiles: some consecutive token rows of one sequence x one KV head, with all query heads of its group.
// With many tiles a thread takes whole tiles (run_whole). With few, as in decode at depth, the team takes splits of
// all tiles at once, in rounds as large as the shared room allows, and meets to merge (run_split).
//
// Memory, per thread: gathered queries, scores and sums of one tile. Shared: totals of MOST_SPLIT_TILES tiles and one
// part per split in flight.
#include "backend/cpu/cpu_plan.h"

#include <math.h>
#include <string.h>

enum {
    SPLIT_POSITIONS = 512,
    SPLIT_BLOCKS = SPLIT_POSITIONS / STATE_BLOCK_TOKENS,
    TILE_QUERIES = 32,    // wanted queries (rows x heads of a group) in a tile
    TILES_PER_THREAD = 2, // fewer tiles than this: work is shared by splits
    PARTS_PER_THREAD = 8
};

// Sizes that follow from the op alone.
typedef struct attention_shape {
    int64_t n_kv_heads, group; // query heads of one KV head
    int64_t k_dim, v_dim, window;
    int64_t tile_rows, tile_queries; // token rows of a full tile, and queries in it
    float scale;
} attention_shape;

static attention_shape shape_of(const program *p, const op *o) {
    const state_desc *d = &p->states[o->state];
    attention_shape s = {.n_kv_heads = d->n_kv_heads,
                         .group = o->params.n_heads / d->n_kv_heads,
                         .k_dim = d->k_dim,
                         .v_dim = d->v_dim,
                         .window = d->window,
                         .scale = o->params.attn_scale};
    s.tile_rows = s.group < TILE_QUERIES ? TILE_QUERIES / s.group : 1;
    s.tile_queries = s.tile_rows * s.group;
    return s;
}

// A tile's sums: [tile_queries][v_dim], then a softmax_state per query.
typedef struct tile_sums {
    float *sums;
    softmax_state *states;
} tile_sums;

static uint64_t padded(uint64_t bytes) {
    return (bytes + 63) & ~(uint64_t)63;
}
static uint64_t sums_bytes(const attention_shape *s) {
    return padded((uint64_t)(s->tile_queries * s->v_dim) * sizeof(float)) +
           padded((uint64_t)s->tile_queries * sizeof(softmax_state));
}
static tile_sums sums_at(const attention_shape *s, uint8_t *place) {
    uint8_t *states = place + padded((uint64_t)(s->tile_queries * s->v_dim) * sizeof(float));
    return (tile_sums){.sums = (float *)place, .states = (softmax_state *)states};
}

static uint64_t queries_bytes(const attention_shape *s) {
    return padded((uint64_t)(s->tile_queries * s->k_dim) * sizeof(float));
}
static uint64_t scores_bytes(const attention_shape *s) {
    return padded((uint64_t)(s->tile_queries * SCORE_COLUMNS) * sizeof(float));
}

uint64_t cpu_attention_thread_bytes(const program *p, const op *o) {
    attention_shape s = shape_of(p, o);
    // queries, scores, factors, and two sets of sums: the split's and the total
    return queries_bytes(&s) + scores_bytes(&s) + padded((uint64_t)s.tile_queries * sizeof(float)) + 2 * sums_bytes(&s);
}

uint64_t cpu_attention_shared_bytes(const program *p, const op *o, int n_threads) {
    attention_shape s = shape_of(p, o);
    return (uint64_t)n_threads * (TILES_PER_THREAD + PARTS_PER_THREAD) * sums_bytes(&s);
}

typedef struct tile {
    const batch_seq *seq;
    int64_t first_row, n_rows; // batch rows
    int64_t kv_head;
    int64_t first_split, end_split;
} tile;

typedef struct attention_job {
    const cpu_run_context *run;
    const cpu_step *step;
    attention_shape shape;
    const state_slab *slab;
    int state_group;
    const float *q; // [tokens, n_heads, k_dim]
    float *out;     // [tokens, n_heads, v_dim]
    int64_t n_tiles;
    // this thread's work space
    float *queries, *scores, *factors;
    tile_sums part, total;
} attention_job;

static attention_job job_of(const cpu_run_context *run, const cpu_step *step, int thread) {
    const program *p = run->pl->base.ops;
    attention_job j = {.run = run, .step = step, .shape = shape_of(p, step->o)};
    j.slab = &run->slabs[step->o->state];
    j.state_group = p->states[step->o->state].group;
    j.q = cpu_value(run->pl, step->o->inputs[0]);
    j.out = cpu_value(run->pl, step->o->outputs[0]);
    for (int32_t i = 0; i < run->rows->n_seqs; i++) {
        j.n_tiles += (run->rows->seqs[i].n_rows + j.shape.tile_rows - 1) / j.shape.tile_rows * j.shape.n_kv_heads;
    }
    uint8_t *at = run->pl->thread_scratch + (uint64_t)thread * run->pl->thread_scratch_bytes;
    j.queries = (float *)at;
    at += queries_bytes(&j.shape);
    j.scores = (float *)at;
    at += scores_bytes(&j.shape);
    j.factors = (float *)at;
    at += padded((uint64_t)j.shape.tile_queries * sizeof(float));
    j.part = sums_at(&j.shape, at);
    j.total = sums_at(&j.shape, at + sums_bytes(&j.shape));
    return j;
}

// First position that the row at `position` sees.
static int64_t first_visible(const attention_shape *s, int64_t position) {
    return s->window > 0 && position >= s->window ? position - s->window + 1 : 0;
}

static tile tile_at(const attention_job *j, int64_t index) {
    const attention_shape *s = &j->shape;
    tile t = {.kv_head = index % s->n_kv_heads};
    int64_t row_tile = index / s->n_kv_heads;
    for (t.seq = j->run->rows->seqs;; t.seq++) {
        int64_t tiles = (t.seq->n_rows + s->tile_rows - 1) / s->tile_rows;
        if (row_tile < tiles) {
            break;
        }
        row_tile -= tiles;
    }
    int64_t before = row_tile * s->tile_rows, left = t.seq->n_rows - before;
    t.first_row = t.seq->first_row + before;
    t.n_rows = left < s->tile_rows ? left : s->tile_rows;
    const int32_t *positions = j->run->rows->positions + t.first_row;
    t.first_split = first_visible(s, positions[0]) / SPLIT_POSITIONS;
    t.end_split = positions[t.n_rows - 1] / SPLIT_POSITIONS + 1;
    return t;
}

// Queries of the tile side by side: [row][head of the group][k_dim].
static void gather_queries(const attention_job *j, const tile *t) {
    const attention_shape *s = &j->shape;
    size_t bytes = (size_t)(s->group * s->k_dim) * sizeof(float);
    for (int64_t r = 0; r < t->n_rows; r++) {
        const float *row = j->q + ((t->first_row + r) * s->n_kv_heads + t->kv_head) * s->group * s->k_dim;
        memcpy(j->queries + r * s->group * s->k_dim, row, bytes);
    }
}

static void clear_sums(const attention_shape *s, tile_sums *sums, int64_t n_queries) {
    memset(sums->sums, 0, (size_t)(n_queries * s->v_dim) * sizeof(float));
    for (int64_t q = 0; q < n_queries; q++) {
        sums->states[q] = (softmax_state){.max = -INFINITY, .sum = 0.0f};
    }
}

// Columns [lo, hi) of the block at `start` that the row sees; empty when lo >= hi.
static void visible_columns(const attention_job *j, int64_t row, int64_t start, int *lo, int *hi) {
    int64_t position = j->run->rows->positions[row], first = first_visible(&j->shape, position) - start;
    int64_t end = position + 1 - start;
    *lo = first > 0 ? (first < STATE_BLOCK_TOKENS ? (int)first : STATE_BLOCK_TOKENS) : 0;
    *hi = end < STATE_BLOCK_TOKENS ? (int)(end > 0 ? end : 0) : STATE_BLOCK_TOKENS;
}

// One block for rows [r, r + n) of the tile, which all see columns [lo, hi) of it.
static void reduce_block(const attention_job *j, const tile *t, tile_sums *part, int64_t block_index, int64_t r,
                         int64_t n, int lo, int hi) {
    const attention_shape *s = &j->shape;
    const attention_kernels *kernels = &j->run->kernels->attention;
    int64_t head = (t->seq->tables[j->state_group][block_index] * s->n_kv_heads + t->kv_head) * STATE_BLOCK_TOKENS;
    size_t element_bytes = cpu_state_bytes(j->slab->type);
    const uint8_t *keys = (const uint8_t *)j->slab->k + (size_t)(head * s->k_dim) * element_bytes;
    const uint8_t *values = (const uint8_t *)j->slab->v + (size_t)(head * s->v_dim) * element_bytes;
    int64_t first = r * s->group;
    int n_queries = (int)(n * s->group);
    kernels->scores(j->slab->type, j->queries + first * s->k_dim, n_queries, keys, s->k_dim, lo, hi, j->scores);
    for (int q = 0; q < n_queries; q++) {
        j->factors[q] = kernels->softmax(j->scores + q * SCORE_COLUMNS, lo, hi, s->scale, &part->states[first + q]);
    }
    kernels->weigh(j->slab->type, j->scores, j->factors, n_queries, values, s->v_dim, lo, hi,
                   part->sums + first * s->v_dim);
}

// Reduce one split of a tile whose queries are gathered. Rows that see nothing of it keep max = -INFINITY.
static void reduce_split(const attention_job *j, const tile *t, int64_t split, tile_sums *part) {
    clear_sums(&j->shape, part, t->n_rows * j->shape.group);
    int64_t last_position = j->run->rows->positions[t->first_row + t->n_rows - 1];
    for (int64_t b = split * SPLIT_BLOCKS; b < (split + 1) * SPLIT_BLOCKS; b++) {
        int64_t start = b * STATE_BLOCK_TOKENS;
        if (start > last_position) {
            break;
        }
        for (int64_t r = 0, n; r < t->n_rows; r += n) {
            int lo, hi, next_lo, next_hi;
            visible_columns(j, t->first_row + r, start, &lo, &hi);
            for (n = 1; r + n < t->n_rows; n++) {
                visible_columns(j, t->first_row + r + n, start, &next_lo, &next_hi);
                if (next_lo != lo || next_hi != hi) {
                    break;
                }
            }
            if (lo < hi) {
                reduce_block(j, t, part, b, r, n, lo, hi);
            }
        }
    }
}

static void merge_split(const attention_job *j, const tile *t, tile_sums *total, const tile_sums *part) {
    int64_t dim = j->shape.v_dim;
    for (int64_t q = 0; q < t->n_rows * j->shape.group; q++) {
        if (part->states[q].sum > 0.0f || part->states[q].max != -INFINITY) {
            j->run->kernels->attention.merge(total->sums + q * dim, &total->states[q], part->sums + q * dim,
                                             &part->states[q], dim);
        }
    }
}

static void finish_tile(const attention_job *j, const tile *t, const tile_sums *total) {
    const attention_shape *s = &j->shape;
    int64_t width = s->n_kv_heads * s->group * s->v_dim;
    for (int64_t q = 0; q < t->n_rows * s->group; q++) {
        int64_t row = t->first_row + q / s->group, head = t->kv_head * s->group + q % s->group;
        float *dst = j->out + row * width + head * s->v_dim, inverse = 1.0f / total->states[q].sum;
        for (int64_t i = 0; i < s->v_dim; i++) {
            dst[i] = total->sums[q * s->v_dim + i] * inverse;
        }
        if (j->step->copy_out) {
            int64_t first = head * s->v_dim / GROUP;
            cpu_convert_groups(j->run->kernels, j->step->copy_out, j->out + row * width, row, first,
                               first + s->v_dim / GROUP);
        }
    }
}

static void run_whole(attention_job *j, int thread, int n_threads) {
    // Tiles further back in a chunk see more positions; taking turns evens that out.
    for (int64_t index = thread; index < j->n_tiles; index += n_threads) {
        tile t = tile_at(j, index);
        gather_queries(j, &t);
        clear_sums(&j->shape, &j->total, t.n_rows * j->shape.group);
        for (int64_t split = t.first_split; split < t.end_split; split++) {
            reduce_split(j, &t, split, &j->part);
            merge_split(j, &t, &j->total, &j->part);
        }
        finish_tile(j, &t, &j->total);
    }
}

static void run_split(attention_job *j, int thread, int n_threads) {
    const uint64_t room = sums_bytes(&j->shape);
    uint8_t *totals = j->run->pl->attention_scratch;
    uint8_t *parts = totals + (uint64_t)n_threads * TILES_PER_THREAD * room;
    int64_t per_round = (int64_t)n_threads * PARTS_PER_THREAD / j->n_tiles, most_splits = 0; // of one tile
    for (int64_t index = 0; index < j->n_tiles; index++) {
        tile t = tile_at(j, index);
        most_splits = t.end_split - t.first_split > most_splits ? t.end_split - t.first_split : most_splits;
    }
    for (int64_t done = 0; done < most_splits; done += per_round) {
        int64_t gathered = -1;
        for (int64_t item = thread; item < j->n_tiles * per_round; item += n_threads) {
            int64_t index = item / per_round;
            tile t = tile_at(j, index);
            int64_t split = t.first_split + done + item % per_round;
            if (split >= t.end_split) {
                continue;
            }
            if (gathered != index) {
                gather_queries(j, &t);
                gathered = index;
            }
            tile_sums part = sums_at(&j->shape, parts + (uint64_t)item * room);
            reduce_split(j, &t, split, &part);
        }
        team_barrier(j->run->threads);
        for (int64_t index = thread; index < j->n_tiles; index += n_threads) {
            tile t = tile_at(j, index);
            tile_sums total = sums_at(&j->shape, totals + (uint64_t)index * room);
            if (done == 0) {
                clear_sums(&j->shape, &total, t.n_rows * j->shape.group);
            }
            for (int64_t i = 0; i < per_round && t.first_split + done + i < t.end_split; i++) {
                tile_sums part = sums_at(&j->shape, parts + (uint64_t)(index * per_round + i) * room);
                merge_split(j, &t, &total, &part);
            }
            if (t.first_split + done < t.end_split && t.first_split + done + per_round >= t.end_split) {
                finish_tile(j, &t, &total);
            }
        }
        team_barrier(j->run->threads);
    }
}

// Whether any tile has more than one split to share.
static bool has_deep_tile(const attention_job *j) {
    for (int64_t index = 0; index < j->n_tiles; index++) {
        tile t = tile_at(j, index);
        if (t.end_split - t.first_split > 1) {
            return true;
        }
    }
    return false;
}

void cpu_attention_run(const cpu_run_context *run, const cpu_step *step, int thread, int n_threads) {
    attention_job j = job_of(run, step, thread);
    if (j.n_tiles > 0 && j.n_tiles < (int64_t)n_threads * TILES_PER_THREAD && n_threads > 1 && has_deep_tile(&j)) {
        run_split(&j, thread, n_threads);
    } else {
        run_whole(&j, thread, n_threads);
    }
}
