// Scratch planning: one offset per value by liveness.
//
// A value lives from the op that first writes it to the last op that reads it. Values are placed in order of their
// birth, each at the lowest offset where no value that is alive at the same time lies (first fit). Imports and exports
// live throughout. First fit is within a few percent of optimal for layer-shaped programs and easy to trust.
#include "backend/program.h"
#include "base/checked.h"

#include <string.h>

enum { SCRATCH_ALIGN = 64 };

typedef struct life {
    int first, last; // op indices, inclusive; first > last: never used
    uint64_t bytes;
} life;

static status_code value_lives(const program *p, const row_limits *limits, size_t element_bytes, bool keep_all,
                               life *lives, error_ctx *err) {
    for (int v = 0; v < p->n_values; v++) {
        const value_desc *desc = &p->values[v];
        uint64_t elements, bytes;
        if (desc->width < 0 ||
            !checked_mul_u64((uint64_t)value_max_rows(desc, limits), (uint64_t)desc->width, &elements) ||
            !checked_mul_u64(elements, element_bytes, &bytes) || !checked_align_u64(bytes, SCRATCH_ALIGN, &bytes)) {
            error_object(err, "value %s", desc->name);
            return error_set(err, STATUS_LIMIT, "scratch size overflows");
        }
        bool lives_throughout = keep_all || desc->is_import || desc->is_export;
        lives[v] =
            (life){.first = lives_throughout ? 0 : p->n_ops, .last = lives_throughout ? p->n_ops : -1, .bytes = bytes};
    }
    for (int i = 0; i < p->n_ops; i++) {
        const op *o = &p->ops[i];
        const op_info *info = op_get_info(o->kind);
        for (int k = 0; k < info->n_inputs + info->n_outputs; k++) {
            int v = k < info->n_inputs ? o->inputs[k] : o->outputs[k - info->n_inputs];
            if (lives[v].first > i) {
                lives[v].first = i;
            }
            if (lives[v].last < i) {
                lives[v].last = i;
            }
        }
    }
    return STATUS_OK;
}

status_code program_scratch(const program *p, const row_limits *limits, size_t element_bytes, bool keep_all,
                            uint64_t *offsets, uint64_t *total_bytes, error_ctx *err) {
    arena *work = arena_new(0);
    life *lives = work ? arena_alloc_array(work, (size_t)p->n_values + 1, sizeof *lives) : NULL;
    int *alive = work ? arena_alloc_array(work, (size_t)p->n_values + 1, sizeof *alive) : NULL; // by offset
    if (!lives || !alive) {
        arena_free(work);
        return error_no_memory(err, "the scratch plan");
    }
    status_code failed = value_lives(p, limits, element_bytes, keep_all, lives, err);
    *total_bytes = 0;
    int n_alive = 0;
    for (int i = 0; i <= p->n_ops && failed == STATUS_OK; i++) {
        int kept = 0;
        for (int k = 0; k < n_alive; k++) {
            if (lives[alive[k]].last >= i) {
                alive[kept++] = alive[k];
            }
        }
        n_alive = kept;
        for (int v = 0; v < p->n_values; v++) {
            if (lives[v].first != i || lives[v].last < lives[v].first) {
                continue;
            }
            uint64_t at = 0;
            int place = 0;
            while (place < n_alive && offsets[alive[place]] - at < lives[v].bytes) {
                at = offsets[alive[place]] + lives[alive[place]].bytes;
                place++;
            }
            memmove(&alive[place + 1], &alive[place], (size_t)(n_alive - place) * sizeof *alive);
            alive[place] = v;
            n_alive++;
            offsets[v] = at;
            if (at + lives[v].bytes > *total_bytes) {
                *total_bytes = at + lives[v].bytes;
            }
        }
    }
    for (int v = 0; v < p->n_values; v++) {
        if (lives[v].last < lives[v].first) {
            offsets[v] = 0; // never touched
        }
    }
    arena_free(work);
    return failed;
}
