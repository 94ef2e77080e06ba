#include "backend/executor.h"

#include <stdlib.h>
#include <string.h>

// A value that one segment left behind and another needs.
typedef struct seam {
    int from_segment, from_value; // ids in the segments' own programs
    int to_value;
} seam;

typedef struct segment {
    backend *device;
    const program *ops; // lowered for the device
    plan *planned;
    seam *inbound; // copies made before this segment runs
    int n_inbound;
} segment;

struct executor {
    arena *memory;
    segment *segments;
    int n_segments;
    int logits_segment, logits_value; // OP_ABSENT when the program has no logits
    int64_t logits_width;
    float *logits_copy; // used when the backend cannot show its own memory
    float *seam_buffer; // large enough for any crossing value
    row_limits limits;
};

// ---- cutting ----

// Ids of one segment's program while it is built.
typedef struct cutter {
    const program *whole;
    int *value_of;     // [whole->n_values] id in the current segment, OP_ABSENT
    int *weight_of;    // [whole->n_weights] likewise
    int *writer;       // [whole->n_values] segment that wrote the value last, OP_ABSENT
    int *writer_value; // [whole->n_values] its id there
} cutter;

static int map_value(cutter *c, program *part, int v) {
    if (c->value_of[v] == OP_ABSENT) {
        const value_desc *desc = &c->whole->values[v];
        c->value_of[v] = program_value(part, desc->rows, desc->width, "%s", desc->name);
        if (!part->oom) {
            part->values[c->value_of[v]].is_export = desc->is_export;
        }
    }
    return c->value_of[v];
}

static int map_weight(cutter *c, program *part, int w) {
    if (c->weight_of[w] == OP_ABSENT) {
        c->weight_of[w] = program_weight(part, &c->whole->weights[w]);
    }
    return c->weight_of[w];
}

static void fill_absent(int *ids, int n) {
    for (int i = 0; i < n; i++) {
        ids[i] = OP_ABSENT;
    }
}

// Copy ops [begin, end) of the whole program into a program of their own and note what it needs from others.
static program *cut_segment(executor *e, cutter *c, program *const *parts, int index, int begin, int end,
                            error_ctx *err) {
    program *part;
    if (program_new(e->memory, &part, err) != STATUS_OK) {
        return NULL;
    }
    segment *s = &e->segments[index];
    s->inbound = arena_alloc_array(e->memory, (size_t)c->whole->n_values + 1, sizeof *s->inbound);
    if (!s->inbound) {
        error_no_memory(err, "the executor");
        return NULL;
    }
    fill_absent(c->value_of, c->whole->n_values);
    fill_absent(c->weight_of, c->whole->n_weights);
    for (int i = 0; i < c->whole->n_states; i++) {
        program_state(part, &c->whole->states[i]); // state ids stay the same: slabs are shared
    }
    for (int i = begin; i < end && !part->oom; i++) {
        const op *from = &c->whole->ops[i];
        const op_info *info = op_get_info(from->kind);
        op mapped = *from;
        for (int k = 0; k < info->n_inputs; k++) {
            int v = from->inputs[k];
            bool is_new = c->value_of[v] == OP_ABSENT;
            mapped.inputs[k] = map_value(c, part, v);
            if (is_new && !part->oom && c->writer[v] != OP_ABSENT) {
                part->values[mapped.inputs[k]].is_import = true;
                parts[c->writer[v]]->values[c->writer_value[v]].is_export = true;
                s->inbound[s->n_inbound++] = (seam){c->writer[v], c->writer_value[v], mapped.inputs[k]};
            }
        }
        for (int k = 0; k < info->n_weights; k++) {
            mapped.weights[k] = from->weights[k] == OP_ABSENT ? OP_ABSENT : map_weight(c, part, from->weights[k]);
        }
        for (int k = 0; k < info->n_outputs; k++) {
            int v = from->outputs[k];
            mapped.outputs[k] = map_value(c, part, v);
        }
        op *o = program_op(part, from->kind, "%s", from->name);
        mapped.name = o->name;
        *o = mapped;
    }
    for (int i = begin; i < end; i++) {
        const op_info *info = op_get_info(c->whole->ops[i].kind);
        for (int k = 0; k < info->n_outputs; k++) {
            int v = c->whole->ops[i].outputs[k];
            c->writer[v] = index;
            c->writer_value[v] = c->value_of[v];
        }
    }
    if (part->oom) {
        error_no_memory(err, "the executor");
        return NULL;
    }
    return part;
}

static int count_segments(const program *p) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        n += i == 0 || p->ops[i].device != p->ops[i - 1].device;
    }
    return n;
}

static bool device_supports(const void *context, const program *p, const op *o) {
    const backend *device = context;
    return device->type->supports(device, p, o);
}

static status_code plan_segments(executor *e, program *const *parts, bool keep_all, error_ctx *err) {
    size_t seam_floats = 0;
    for (int i = 0; i < e->n_segments; i++) {
        segment *s = &e->segments[i];
        program *lowered;
        RETURN_IF_ERROR(program_lower(parts[i], device_supports, s->device, &lowered, err));
        s->ops = lowered;
        RETURN_IF_ERROR(s->device->type->plan(s->device, lowered, &e->limits, keep_all, &s->planned, err));
        for (int k = 0; k < s->n_inbound; k++) {
            const value_desc *v = &lowered->values[s->inbound[k].to_value];
            size_t floats = (size_t)value_max_rows(v, &e->limits) * (size_t)v->width;
            seam_floats = floats > seam_floats ? floats : seam_floats;
        }
    }
    if (seam_floats) {
        e->seam_buffer = malloc(seam_floats * sizeof *e->seam_buffer);
        if (!e->seam_buffer) {
            return error_no_memory(err, "copies between devices");
        }
    }
    return STATUS_OK;
}

static status_code cut(executor *e, const program *p, backend *const *devices, int n_devices, program **parts,
                       error_ctx *err) {
    cutter c = {
        .whole = p,
        .value_of = arena_alloc_array(e->memory, (size_t)p->n_values + 1, sizeof(int)),
        .weight_of = arena_alloc_array(e->memory, (size_t)p->n_weights + 1, sizeof(int)),
        .writer = arena_alloc_array(e->memory, (size_t)p->n_values + 1, sizeof(int)),
        .writer_value = arena_alloc_array(e->memory, (size_t)p->n_values + 1, sizeof(int)),
    };
    if (!c.value_of || !c.weight_of || !c.writer || !c.writer_value) {
        return error_no_memory(err, "the executor");
    }
    fill_absent(c.writer, p->n_values);
    int begin = 0;
    for (int index = 0; index < e->n_segments; index++) {
        int device = p->ops[begin].device;
        if (device < 0 || device >= n_devices) {
            return error_set(err, STATUS_INTERNAL, "op %s is placed on device %d of %d", p->ops[begin].name, device,
                             n_devices);
        }
        int end = begin;
        while (end < p->n_ops && p->ops[end].device == device) {
            end++;
        }
        e->segments[index].device = devices[device];
        parts[index] = cut_segment(e, &c, parts, index, begin, end, err);
        if (!parts[index]) {
            return err ? err->code : STATUS_NO_MEMORY;
        }
        begin = end;
    }
    e->logits_value = OP_ABSENT;
    if (p->logits != OP_ABSENT) {
        e->logits_segment = c.writer[p->logits];
        e->logits_value = c.writer_value[p->logits];
        e->logits_width = p->values[p->logits].width;
        parts[e->logits_segment]->values[e->logits_value].is_export = true;
    }
    return STATUS_OK;
}

status_code executor_new(const program *p, backend *const *devices, int n_devices, const row_limits *limits,
                         bool keep_all, executor **out, error_ctx *err) {
    *out = NULL;
    RETURN_IF_ERROR(program_check(p, err));
    executor *e = calloc(1, sizeof *e);
    if (!e) {
        return error_no_memory(err, "the executor");
    }
    e->limits = *limits;
    e->memory = arena_new(0);
    e->n_segments = count_segments(p);
    size_t n = (size_t)e->n_segments + 1;
    e->segments = e->memory ? arena_alloc_array(e->memory, n, sizeof *e->segments) : NULL;
    program **parts = e->memory ? arena_alloc_array(e->memory, n, sizeof(program *)) : NULL;
    status_code failed = STATUS_OK;
    if (!e->segments || !parts) {
        e->n_segments = 0;
        failed = error_no_memory(err, "the executor");
    } else {
        failed = cut(e, p, devices, n_devices, parts, err);
        if (failed == STATUS_OK) {
            failed = plan_segments(e, parts, keep_all, err);
        }
    }
    if (failed == STATUS_OK && e->logits_value != OP_ABSENT) {
        size_t floats = (size_t)limits->max_logit_rows * (size_t)e->logits_width;
        segment *s = &e->segments[e->logits_segment];
        if (!s->device->type->view_value(s->planned, e->logits_value)) {
            e->logits_copy = malloc(floats * sizeof *e->logits_copy + 1);
            failed = e->logits_copy ? STATUS_OK : error_no_memory(err, "logits");
        }
    }
    if (failed != STATUS_OK) {
        executor_free(e);
        return failed;
    }
    *out = e;
    return STATUS_OK;
}

void executor_free(executor *e) {
    if (!e) {
        return;
    }
    for (int i = 0; i < e->n_segments; i++) {
        if (e->segments[i].planned) {
            e->segments[i].device->type->plan_free(e->segments[i].planned);
        }
    }
    free(e->logits_copy);
    free(e->seam_buffer);
    arena_free(e->memory);
    free(e);
}

// ---- running ----

static int64_t batch_rows(const batch *rows, row_kind kind) {
    return kind == ROWS_TOKENS ? rows->n_tokens : rows->n_logit_rows;
}

status_code executor_run(executor *e, const batch *rows, const state_slab *slabs, error_ctx *err) {
    for (int i = 0; i < e->n_segments; i++) {
        segment *s = &e->segments[i];
        for (int k = 0; k < s->n_inbound; k++) {
            const seam *copy = &s->inbound[k];
            segment *from = &e->segments[copy->from_segment];
            int64_t n = batch_rows(rows, s->ops->values[copy->to_value].rows);
            from->device->type->read_value(from->planned, copy->from_value, e->seam_buffer, n);
            s->device->type->write_value(s->planned, copy->to_value, e->seam_buffer, n);
        }
        RETURN_IF_ERROR(s->device->type->run(s->planned, rows, slabs, err));
    }
    if (e->logits_copy && rows->n_logit_rows) {
        segment *s = &e->segments[e->logits_segment];
        s->device->type->read_value(s->planned, e->logits_value, e->logits_copy, rows->n_logit_rows);
    }
    return STATUS_OK;
}

const float *executor_logits(executor *e) {
    if (e->logits_copy) {
        return e->logits_copy;
    }
    segment *s = &e->segments[e->logits_segment];
    return s->device->type->view_value(s->planned, e->logits_value);
}

bool executor_tap(executor *e, const char *value_name, int64_t rows, double *dst, int64_t *width) {
    for (int i = e->n_segments - 1; i >= 0; i--) {
        segment *s = &e->segments[i];
        for (int v = 0; v < s->ops->n_values; v++) {
            if (strcmp(s->ops->values[v].name, value_name) == 0) {
                *width = s->ops->values[v].width;
                if (dst) {
                    s->device->type->read_value_f64(s->planned, v, dst, rows);
                }
                return true;
            }
        }
    }
    return false;
}

uint64_t executor_scratch_bytes(const executor *e) {
    uint64_t bytes = 0;
    for (int i = 0; i < e->n_segments; i++) {
        bytes += e->segments[i].device->type->plan_scratch_bytes(e->segments[i].planned);
    }
    return bytes;
}

uint64_t executor_weight_bytes(const executor *e) {
    uint64_t bytes = 0;
    for (int i = 0; i < e->n_segments; i++) {
        bytes += e->segments[i].device->type->plan_weight_bytes(e->segments[i].planned);
    }
    return bytes;
}

int executor_segment_count(const executor *e) {
    return e->n_segments;
}

static const char *planned_kernel(const void *context, int op_index) {
    const segment *s = context;
    return s->device->type->plan_kernel(s->planned, op_index);
}

void executor_describe(const executor *e, strbuf *out) {
    for (int i = 0; i < e->n_segments; i++) {
        const segment *s = &e->segments[i];
        strbuf_printf(out, "segment %d on %s (%s): ", i, s->device->type->name, s->device->type->level(s->device));
        program_describe(s->ops, planned_kernel, s, out);
        for (int k = 0; k < s->n_inbound; k++) {
            strbuf_printf(out, "     copy %s from segment %d\n", s->ops->values[s->inbound[k].to_value].name,
                          s->inbound[k].from_segment);
        }
    }
}
