// Running a case on one backend: plan once, run any contiguous part of its rows, look for touched guards.
#include "backend/opcheck_int.h"

#include <string.h>

enum { SPARE_ROWS = 3 }; // rows of every value past those a run uses; nobody may touch them

static bool device_supports(const void *context, const program *p, const op *o) {
    const backend *b = context;
    return b->type->supports(b, p, o);
}

static bool device_supports_primitive(const void *context, const program *p, const op *o) {
    return !op_get_info(o->kind)->is_composite && device_supports(context, p, o);
}

status_code runner_open(runner *r, backend *device, const case_data *d, bool lower_composites, error_ctx *err) {
    *r = (runner){.device = device, .d = d};
    const backend_type *type = device->type;
    row_limits limits = {d->rows + SPARE_ROWS, CASE_MAX_SEQS + 1, d->rows + SPARE_ROWS};
    RETURN_IF_ERROR(program_check(d->p, err));
    RETURN_IF_ERROR(
        program_lower(d->p, lower_composites ? device_supports_primitive : device_supports, device, &r->lowered, err));
    RETURN_IF_ERROR(type->plan(device, r->lowered, &limits, false, &r->planned, err));
    if (d->k_image) {
        const dtype wanted = d->c->state_type;
        r->state_type = type->state_type(device, wanted);
        uint64_t wider = r->state_type == DTYPE_F64 ? 8 / (uint64_t)dtype_get(wanted)->block_bytes : 1;
        if (r->state_type != wanted && r->state_type != DTYPE_F64) {
            return error_set(err, STATUS_UNSUPPORTED, "the backend stores no %s state", dtype_get(wanted)->name);
        }
        r->k_bytes = d->k_bytes * wider;
        r->v_bytes = d->v_bytes * wider;
        RETURN_IF_ERROR(type->buffer_alloc(device, r->k_bytes, &r->slab.k, err));
        RETURN_IF_ERROR(type->buffer_alloc(device, r->v_bytes, &r->slab.v, err));
        r->slab.type = r->state_type;
        r->slab.n_blocks = d->n_blocks;
    }
    return STATUS_OK;
}

void runner_close(runner *r) {
    if (r->planned) {
        r->device->type->plan_free(r->planned);
    }
    if (r->slab.k) {
        r->device->type->buffer_free(r->device, r->slab.k, r->k_bytes);
    }
    if (r->slab.v) {
        r->device->type->buffer_free(r->device, r->slab.v, r->v_bytes);
    }
    *r = (runner){0};
}

const char *runner_kernel(const runner *r) {
    return r->device->type->plan_kernel(r->planned, 0);
}

static void reset_state(runner *r, void *slab, const uint8_t *image, uint64_t image_bytes) {
    dtype type = r->d->c->state_type;
    if (r->state_type == type) {
        memcpy(slab, image, (size_t)image_bytes);
        return;
    }
    for (int64_t i = 0; i < (int64_t)image_bytes / dtype_get(type)->block_bytes; i++) {
        ((double *)slab)[i] = state_element(type, image, i);
    }
}

// The batch of rows [first, first + n): sequences are cut to what remains of them.
static bool slice_batch(const case_data *d, arena *memory, int64_t first, int64_t n, batch *out) {
    const batch *all = &d->batch;
    int32_t *seq_of_row = arena_alloc_array(memory, (size_t)n + 1, sizeof *seq_of_row);
    int32_t *logit_rows = arena_alloc_array(memory, (size_t)all->n_logit_rows + 1, sizeof *logit_rows);
    batch_seq *seqs = arena_alloc_array(memory, (size_t)all->n_seqs + 1, sizeof *seqs);
    if (!seq_of_row || !logit_rows || !seqs) {
        return false;
    }
    *out = (batch){.n_tokens = (int32_t)n,
                   .tokens = all->tokens + first,
                   .positions = all->positions + first,
                   .seq_of_row = seq_of_row,
                   .seqs = seqs,
                   .logit_rows = logit_rows};
    for (int32_t i = 0; i < all->n_seqs; i++) {
        int64_t begin = all->seqs[i].first_row, end = begin + all->seqs[i].n_rows;
        begin = begin < first ? first : begin;
        end = end > first + n ? first + n : end;
        if (begin >= end) {
            continue;
        }
        for (int64_t row = begin; row < end; row++) {
            seq_of_row[row - first] = out->n_seqs;
        }
        seqs[out->n_seqs++] = (batch_seq){
            .first_row = (int32_t)(begin - first), .n_rows = (int32_t)(end - begin), .tables = all->seqs[i].tables};
    }
    for (int32_t i = 0; i < all->n_logit_rows; i++) {
        if (all->logit_rows[i] >= first && all->logit_rows[i] < first + n) {
            logit_rows[out->n_logit_rows++] = all->logit_rows[i] - (int32_t)first;
        }
    }
    return true;
}

// A NaN that no computation makes: what it still is afterwards was not written.
static float untouched(void) {
    const uint32_t bits = 0x7fc0beefu;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static bool is_untouched(float value) {
    float expected = untouched();
    return memcmp(&value, &expected, sizeof value) == 0;
}

static int64_t value_capacity(const runner *r) {
    return r->d->rows + SPARE_ROWS; // token and logit rows alike
}

// Fill a value with the mark, then its first rows from src (NULL: no row).
static void set_value(runner *r, int value, const float *src, int64_t rows, float *buffer) {
    int64_t width = r->d->p->values[value].width;
    for (int64_t i = 0; i < value_capacity(r) * width; i++) {
        buffer[i] = i < rows * width && src ? src[i] : untouched();
    }
    r->device->type->write_value(r->planned, value, buffer, value_capacity(r));
}

static bool same_bits(const float *a, const float *b, int64_t n) {
    return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

// Compare a value with what set_value wrote; marks are only checked where the backend keeps f32 as it got it.
static bool is_value_unchanged(runner *r, int value, const float *src, int64_t rows, float *buffer) {
    int64_t width = r->d->p->values[value].width;
    r->device->type->read_value(r->planned, value, buffer, value_capacity(r));
    if (src && !same_bits(buffer, src, rows * width)) {
        return false;
    }
    for (int64_t i = (src ? rows : 0) * width; i < value_capacity(r) * width; i++) {
        if (!is_untouched(buffer[i])) {
            return false;
        }
    }
    return true;
}

static const char *check_untouched(runner *r, int64_t first, int64_t n, int64_t n_logits, float *const *inputs,
                                   float *buffer) {
    const op *o = &r->d->p->ops[0];
    if (!is_value_unchanged(r, r->d->guards[0], NULL, 0, buffer) ||
        !is_value_unchanged(r, r->d->guards[1], NULL, 0, buffer)) {
        return "memory next to the operands was written";
    }
    for (int i = 0; i < r->d->n_inputs; i++) {
        int64_t width = r->d->p->values[o->inputs[i]].width;
        if (o->inputs[i] != o->outputs[0] &&
            !is_value_unchanged(r, o->inputs[i], inputs[i] + first * width, n, buffer)) {
            return "an input was changed";
        }
    }
    for (int i = 0; i < op_get_info(o->kind)->n_outputs; i++) {
        const value_desc *v = &r->d->p->values[o->outputs[i]];
        int64_t rows = v->rows == ROWS_TOKENS ? n : n_logits;
        r->device->type->read_value(r->planned, o->outputs[i], buffer, value_capacity(r));
        for (int64_t at = rows * v->width; at < value_capacity(r) * v->width; at++) {
            if (!is_untouched(buffer[at])) {
                return "an output row past the batch was written";
            }
        }
    }
    return NULL;
}

status_code runner_run(runner *r, arena *memory, int64_t first, int64_t n, float *const *inputs, run_result *out,
                       error_ctx *err) {
    const case_data *d = r->d;
    const op *o = &d->p->ops[0];
    const backend_type *type = r->device->type;
    *out = (run_result){0};
    inputs = inputs ? inputs : d->inputs;
    int64_t widest = 1;
    for (int v = 0; v < d->p->n_values; v++) {
        widest = d->p->values[v].width > widest ? d->p->values[v].width : widest;
    }
    batch part;
    float *buffer = arena_alloc_array(memory, (size_t)(value_capacity(r) * widest), sizeof *buffer);
    if (!buffer || !slice_batch(d, memory, first, n, &part)) {
        return error_no_memory(err, "an opcheck run");
    }
    if (d->k_image) {
        reset_state(r, r->slab.k, d->k_image, d->k_bytes);
        reset_state(r, r->slab.v, d->v_image, d->v_bytes);
    }
    for (int i = 0; i < op_get_info(o->kind)->n_outputs; i++) {
        set_value(r, o->outputs[i], NULL, 0, buffer);
    }
    set_value(r, d->guards[0], NULL, 0, buffer);
    set_value(r, d->guards[1], NULL, 0, buffer);
    for (int i = 0; i < d->n_inputs; i++) {
        set_value(r, o->inputs[i], inputs[i] + first * d->p->values[o->inputs[i]].width, n, buffer);
    }
    RETURN_IF_ERROR(type->run(r->planned, &part, &r->slab, err));
    if (r->state_type != DTYPE_F64 && strcmp(type->name, "ref") != 0) {
        out->violation = check_untouched(r, first, n, part.n_logit_rows, inputs, buffer);
    }
    for (int i = 0; i < op_get_info(o->kind)->n_outputs; i++) {
        const value_desc *v = &d->p->values[o->outputs[i]];
        int64_t rows = v->rows == ROWS_TOKENS ? n : part.n_logit_rows;
        out->outputs[i] = arena_alloc_array(memory, (size_t)(rows * v->width) + 1, sizeof(float));
        out->wide_outputs[i] = arena_alloc_array(memory, (size_t)(rows * v->width) + 1, sizeof(double));
        if (!out->outputs[i] || !out->wide_outputs[i]) {
            return error_no_memory(err, "an opcheck run");
        }
        type->read_value(r->planned, o->outputs[i], out->outputs[i], rows);
        type->read_value_f64(r->planned, o->outputs[i], out->wide_outputs[i], rows);
    }
    return STATUS_OK;
}
