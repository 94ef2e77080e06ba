// Planning: which ops are supported, how weights are repacked, where converted activations live, and where the team
// must meet.
//
// A matmul on a quantised weight reads its input as int8 (ACT_Q8). The first such reader of a value decides that a
// converted copy is made; later readers share it until the value is overwritten. Where the op that writes the value
// finishes whole groups of 32 within one thread, it makes the copy itself while the row is in cache; otherwise a step
// of its own stands before the first reader. Copies take turns in a few slots of scratch, by liveness.
#include "backend/cpu/cpu_plan.h"

#include "base/checked.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// ---- what is supported ----

static bool is_decodable(const weight *w) {
    const dtype_info *info = dtype_get(w->type);
    return info && info->decode && w->arrangement == LAYOUT_ROWS && w->n_planes == 1 && w->n_dims >= 1 &&
           weight_columns(w) % info->block_elements == 0;
}

static bool is_matrix(const program *p, int id) {
    return id != OP_ABSENT && p->weights[id].n_dims == 2 && is_decodable(&p->weights[id]);
}

// A vector of n elements in one row, or absent.
static bool is_vector(const program *p, int id, int64_t n) {
    return id == OP_ABSENT || (is_decodable(&p->weights[id]) && weight_columns(&p->weights[id]) == n);
}

// Whether two weights are multiplied with the same form of activations.
static bool share_activations(const weight *a, const weight *b) {
    pack_form form;
    return a->type == b->type || (pack_form_of(a->type, &form) && pack_form_of(b->type, &form));
}

bool cpu_op_is_supported(const program *p, const op *o) {
    const norm_params *norm = &o->params.norm;
    switch (o->kind) {
    case OP_EMBED:
        return is_decodable(&p->weights[o->weights[0]]);
    case OP_MATMUL:
        return o->inputs[0] != o->outputs[0] && is_matrix(p, o->weights[0]) &&
               is_vector(p, o->weights[1], p->weights[o->weights[0]].shape[0]);
    case OP_GATE_UP:
        return o->inputs[0] != o->outputs[0] && is_matrix(p, o->weights[0]) && is_matrix(p, o->weights[1]) &&
               share_activations(&p->weights[o->weights[0]], &p->weights[o->weights[1]]);
    case OP_RMS_NORM:
    case OP_ADD_RMS_NORM:
    case OP_NORM_ADD:
        return is_vector(p, o->weights[0], norm->group);
    case OP_ROPE_APPEND:
        // One head is normed and rotated at a time.
        return is_vector(p, o->weights[1], o->params.rope.head_dim) &&
               is_vector(p, o->weights[2], o->params.rope.head_dim) && is_decodable(&p->weights[o->weights[0]]) &&
               ((o->weights[1] == OP_ABSENT && o->weights[2] == OP_ABSENT) || norm->group == o->params.rope.head_dim);
    case OP_ROPE:
        return is_decodable(&p->weights[o->weights[0]]);
    case OP_ADD:
    case OP_ACT_GATE:
    case OP_KV_APPEND:
    case OP_ATTENTION:
    case OP_GATHER_ROWS:
        return true;
    case OP_NONE:
    case OP_KIND_COUNT:
        break;
    }
    return false;
}

// ---- building ----

typedef struct act_slot {
    uint64_t bytes;
    int busy_until; // op index of the last reader
    uint8_t *place;
} act_slot;

typedef struct builder {
    cpu_backend *backend;
    cpu_plan *pl;
    const program *p;
    const row_limits *limits;
    matmul_weight **matmuls; // [n_weights], NULL where no matmul uses the weight
    float **vectors;         // [n_weights], NULL where not used as a vector
    act_copy **copies;       // [n_values] current converted copy, NULL: none
    int *writers;            // [n_values] step that wrote the value last, -1: none
    act_slot *slots;
    int n_slots;
    act_copy **all_copies;
    int n_copies;
} builder;

static status_code no_memory(error_ctx *err) {
    return error_no_memory(err, "a CPU plan");
}

// A vector weight in f32.
static status_code use_vector(builder *b, int id, const float **out, error_ctx *err) {
    *out = NULL;
    if (id == OP_ABSENT) {
        return STATUS_OK;
    }
    if (!b->vectors[id]) {
        const weight *w = &b->p->weights[id];
        float *data = arena_alloc_array(b->pl->memory, (size_t)weight_columns(w) + 1, sizeof *data);
        if (!data) {
            return no_memory(err);
        }
        weight_decode_row(w, 0, data);
        b->vectors[id] = data;
    }
    *out = b->vectors[id];
    return STATUS_OK;
}

static pack_kind kind_for(const builder *b, const weight *w, pack_form *form) {
    *form = PACK_C4_F16;
    if (pack_form_of(w->type, form)) {
        return PACKED_Q8;
    }
    switch (w->type) {
    case DTYPE_F32:
        return PACKED_F32;
    case DTYPE_F16:
        return PACKED_F16;
    case DTYPE_BF16:
        return b->backend->kernels.matmul.bf16_pairs ? PACKED_BF16_PAIRS : PACKED_BF16;
    default:
        return PACKED_GENERIC;
    }
}

static status_code use_matmul_weight(builder *b, int id, const matmul_weight **out, error_ctx *err) {
    if (!b->matmuls[id]) {
        const weight *w = &b->p->weights[id];
        matmul_weight *m = arena_alloc_zero(b->pl->memory, sizeof *m);
        if (!m) {
            return no_memory(err);
        }
        m->source = w;
        m->n = w->shape[0];
        m->k = w->shape[1];
        m->kind = kind_for(b, w, &m->form);
        m->panel_bytes = pack_panel_bytes(m->kind, m->form, m->k);
        b->matmuls[id] = m;
    }
    *out = b->matmuls[id];
    return STATUS_OK;
}

static act_form act_form_of(const matmul_weight *m) {
    return m->kind == PACKED_Q8 ? ACT_Q8 : m->kind == PACKED_BF16_PAIRS ? ACT_BF16 : ACT_F32;
}

static bool op_reads(const op *o, int value) {
    for (int i = 0; i < OP_MAX_INPUTS; i++) {
        if (o->inputs[i] == value) {
            return true;
        }
    }
    return false;
}
static bool op_writes(const op *o, int value) {
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        if (o->outputs[i] == value) {
            return true;
        }
    }
    return false;
}

// Last op from `first` on that reads the value before it is overwritten. Other kinds of readers count too: a copy
// that lives too long only costs memory.
static int last_reader(const program *p, int first, int value) {
    int last = first;
    for (int i = first; i < p->n_ops; i++) {
        if (op_reads(&p->ops[i], value)) {
            last = i;
        }
        if (op_writes(&p->ops[i], value)) {
            break;
        }
    }
    return last;
}

// Whether the step can make a converted copy of `value` itself: one thread must finish whole groups of a row.
static bool can_convert_output(const cpu_step *s, const program *p, int value) {
    const op *o = s->o;
    int64_t width = p->values[value].width;
    if (s->is_convert || s->copy_out) {
        return false;
    }
    switch (o->kind) {
    case OP_RMS_NORM:
    case OP_NORM_ADD:
        return o->params.norm.group == width && o->outputs[0] == value;
    case OP_ADD_RMS_NORM:
        return o->params.norm.group == width && o->outputs[1] == value;
    case OP_GATE_UP:
        return width % GROUP == 0;
    case OP_ATTENTION:
        return p->states[o->state].v_dim % GROUP == 0;
    default:
        return false;
    }
}

static status_code take_slot(builder *b, uint64_t bytes, int from_op, int until_op, int *slot) {
    for (*slot = 0; *slot < b->n_slots; ++*slot) {
        if (b->slots[*slot].busy_until < from_op) {
            break;
        }
    }
    if (*slot == b->n_slots) {
        b->slots[b->n_slots++] = (act_slot){0};
    }
    act_slot *s = &b->slots[*slot];
    s->busy_until = until_op;
    s->bytes = s->bytes > bytes ? s->bytes : bytes;
    return STATUS_OK;
}

// The converted copy of `value` for the matmul op_index; adds a step or an epilogue to the value's writer.
static status_code use_copy(builder *b, int op_index, int value, act_form form, const act_copy **out, error_ctx *err) {
    *out = b->copies[value];
    if (*out && (*out)->form == form) {
        return STATUS_OK;
    }
    const value_desc *desc = &b->p->values[value];
    act_copy *copy = arena_alloc_zero(b->pl->memory, sizeof *copy);
    if (!copy) {
        return no_memory(err);
    }
    int writer = b->writers[value];
    cpu_step *maker =
        writer >= 0 && can_convert_output(&b->pl->steps[writer], b->p, value) ? &b->pl->steps[writer] : NULL;
    int from_op = maker ? maker->op_index : op_index;
    *copy = (act_copy){.form = form, .k = desc->width};
    copy->row_bytes = form == ACT_Q8 ? q8_layout_of(desc->width).bytes : bf16_row_bytes(desc->width);
    uint64_t bytes = 0;
    if (!checked_mul_u64((uint64_t)value_max_rows(desc, b->limits), ACT_PIECES * copy->row_bytes, &bytes)) {
        return error_set(err, STATUS_LIMIT, "scratch size overflows");
    }
    RETURN_IF_ERROR(take_slot(b, bytes, from_op, last_reader(b->p, op_index, value), &copy->slot));
    if (maker) {
        maker->copy_out = copy;
    } else {
        b->pl->steps[b->pl->n_steps++] = (cpu_step){
            .o = &b->p->ops[op_index], .op_index = op_index, .is_convert = true, .converted = value, .copy_out = copy};
    }
    b->copies[value] = copy;
    b->all_copies[b->n_copies++] = copy;
    *out = copy;
    return STATUS_OK;
}

static status_code use_rope(builder *b, const op *o, const rope_table **out, error_ctx *err) {
    const float *inv_freq;
    RETURN_IF_ERROR(use_vector(b, o->weights[0], &inv_freq, err));
    int64_t n = weight_columns(&b->p->weights[o->weights[0]]);
    for (int i = 0; i < b->pl->n_rope_tables; i++) {
        rope_table *t = &b->pl->rope_tables[i];
        if (t->n_freqs == n && t->scale == o->params.rope.scale &&
            memcmp(t->inv_freq, inv_freq, (size_t)n * sizeof(float)) == 0) {
            *out = t;
            return STATUS_OK;
        }
    }
    rope_table *t = &b->pl->rope_tables[b->pl->n_rope_tables++];
    *t = (rope_table){.inv_freq = inv_freq, .n_freqs = n, .scale = o->params.rope.scale};
    *out = t;
    return STATUS_OK;
}

// The kernel's name: op, weight type, activation type, level.
static const char *matmul_name(builder *b, const op *o, const matmul_weight *m) {
    const matmul_kernels *k = &b->backend->kernels.matmul;
    static const char *const act_names[] = {[ACT_F32] = "f32", [ACT_Q8] = "q8x2", [ACT_BF16] = "bf16x2"};
    char type[32];
    const char *upper = dtype_get(m->source->type)->name;
    size_t i = 0;
    for (; upper[i] && i + 1 < sizeof type; i++) {
        type[i] = (char)tolower((unsigned char)upper[i]);
    }
    type[i] = 0;
    cpu_level level = k->f32_level;
    if (m->kind == PACKED_Q8) {
        level = k->q8_level[m->form];
    } else if (m->kind == PACKED_F16) {
        level = k->f16_level;
    } else if (m->kind == PACKED_BF16) {
        level = k->bf16_level;
    } else if (m->kind == PACKED_BF16_PAIRS) {
        level = CPU_AVX512BF16;
    }
    return arena_printf(b->pl->memory, "%s_%s_%s%s_%s", op_get_info(o->kind)->name, type, act_names[act_form_of(m)],
                        m->kind == PACKED_GENERIC ? "_decode" : "", cpu_level_name(level));
}

static const char *kernel_name(builder *b, const cpu_step *s) {
    if (s->matmul[0]) {
        return matmul_name(b, s->o, s->matmul[0]);
    }
    cpu_level level = b->backend->kernels.vector.level;
    if (s->o->kind == OP_ATTENTION) {
        level = b->backend->kernels.attention.level;
    } else if (s->o->kind == OP_EMBED || s->o->kind == OP_GATHER_ROWS) {
        level = CPU_PORTABLE; // the codec's decoder, or a copy
    }
    return arena_printf(b->pl->memory, "%s_%s", op_get_info(s->o->kind)->name, cpu_level_name(level));
}

static status_code build_op(builder *b, int op_index, error_ctx *err) {
    const op *o = &b->p->ops[op_index];
    const op_info *info = op_get_info(o->kind);
    cpu_step step = {.o = o, .op_index = op_index};
    switch (o->kind) {
    case OP_MATMUL:
    case OP_GATE_UP:
        for (int i = 0; i < (o->kind == OP_GATE_UP ? 2 : 1); i++) {
            RETURN_IF_ERROR(use_matmul_weight(b, o->weights[i], &step.matmul[i], err));
        }
        if (o->kind == OP_MATMUL) {
            RETURN_IF_ERROR(use_vector(b, o->weights[1], &step.vectors[1], err));
        }
        if (act_form_of(step.matmul[0]) != ACT_F32) {
            RETURN_IF_ERROR(use_copy(b, op_index, o->inputs[0], act_form_of(step.matmul[0]), &step.copy, err));
        }
        break;
    case OP_RMS_NORM:
    case OP_ADD_RMS_NORM:
    case OP_NORM_ADD:
        RETURN_IF_ERROR(use_vector(b, o->weights[0], &step.vectors[0], err));
        break;
    case OP_ROPE_APPEND:
        RETURN_IF_ERROR(use_vector(b, o->weights[1], &step.vectors[1], err));
        RETURN_IF_ERROR(use_vector(b, o->weights[2], &step.vectors[2], err));
        RETURN_IF_ERROR(use_rope(b, o, &step.rope, err));
        break;
    case OP_ROPE:
        RETURN_IF_ERROR(use_rope(b, o, &step.rope, err));
        break;
    default:
        break;
    }
    for (int i = 0; i < info->n_outputs; i++) {
        b->copies[o->outputs[i]] = NULL; // overwritten
        b->writers[o->outputs[i]] = b->pl->n_steps;
    }
    b->pl->kernel_names[op_index] = kernel_name(b, &step);
    b->pl->steps[b->pl->n_steps++] = step;
    return b->pl->kernel_names[op_index] ? STATUS_OK : no_memory(err);
}

// ---- barriers ----

typedef struct range {
    uintptr_t begin, end;
} range;

enum { MOST_RANGES = 96, MOST_STEP_RANGES = OP_MAX_INPUTS + OP_MAX_OUTPUTS + 4 };

typedef struct range_set {
    range items[MOST_RANGES];
    int n;
} range_set;

static bool overlaps(const range_set *a, const range_set *b) {
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < b->n; k++) {
            if (a->items[i].begin < b->items[k].end && b->items[k].begin < a->items[i].end) {
                return true;
            }
        }
    }
    return false;
}

static void add_range(range_set *set, const void *begin, uint64_t bytes) {
    set->items[set->n++] = (range){(uintptr_t)begin, (uintptr_t)begin + (uintptr_t)bytes};
}

static void add_value(range_set *set, const builder *b, int value) {
    const value_desc *v = &b->p->values[value];
    add_range(set, cpu_value(b->pl, value),
              (uint64_t)value_max_rows(v, b->limits) * (uint64_t)v->width * sizeof(float));
}

static void add_copy(range_set *set, const builder *b, const act_copy *copy) {
    add_range(set, copy->rows, b->slots[copy->slot].bytes);
}

static void step_ranges(const builder *b, const cpu_step *s, range_set *reads, range_set *writes) {
    const op_info *info = op_get_info(s->o->kind);
    reads->n = writes->n = 0;
    if (s->copy_out) {
        add_copy(writes, b, s->copy_out);
    }
    if (s->is_convert) {
        add_value(reads, b, s->converted);
        return;
    }
    if (s->copy) {
        add_copy(reads, b, s->copy);
    }
    for (int i = 0; i < info->n_inputs; i++) {
        if (!s->copy) {
            add_value(reads, b, s->o->inputs[i]);
        }
    }
    for (int i = 0; i < info->n_outputs; i++) {
        add_value(writes, b, s->o->outputs[i]);
    }
    if (info->uses_state) { // the descriptor's address stands for the state's memory
        add_range(s->o->kind == OP_ATTENTION ? reads : writes, &b->p->states[s->o->state], 1);
    }
    if (s->o->kind == OP_ATTENTION) {
        add_range(writes, b->pl->attention_scratch, 1);
    }
}

static void append_ranges(range_set *to, const range_set *from) {
    memcpy(&to->items[to->n], from->items, (size_t)from->n * sizeof *from->items);
    to->n += from->n;
}

// A step must wait for the team when it touches what earlier steps since the last barrier write, or writes what they
// read: q, k and v projections, for example, run without a barrier between them.
static void place_barriers(builder *b) {
    range_set reads = {.n = 0}, writes = {.n = 0};
    for (int i = 0; i < b->pl->n_steps; i++) {
        range_set step_reads, step_writes;
        step_ranges(b, &b->pl->steps[i], &step_reads, &step_writes);
        bool is_full = reads.n + MOST_STEP_RANGES > MOST_RANGES || writes.n + MOST_STEP_RANGES > MOST_RANGES;
        if (is_full || overlaps(&step_reads, &writes) || overlaps(&step_writes, &writes) ||
            overlaps(&step_writes, &reads)) {
            b->pl->steps[i].needs_barrier = true;
            reads.n = writes.n = 0;
        }
        append_ranges(&reads, &step_reads);
        append_ranges(&writes, &step_writes);
    }
}

// ---- memory ----

// Bytes of per-thread work space of an op; the users in cpu_run.c carve it in the same order.
static uint64_t thread_bytes(const builder *b, const cpu_step *s) {
    uint64_t bytes = 0;
    if (s->o->kind == OP_ATTENTION) {
        bytes = cpu_attention_thread_bytes(b->p, s->o);
    } else if (s->o->kind == OP_ROPE_APPEND) {
        bytes = (uint64_t)s->o->params.rope.head_dim * sizeof(float);
    }
    if (s->o->kind == OP_NORM_ADD) {
        bytes = (uint64_t)b->p->values[s->o->inputs[1]].width * sizeof(float);
    }
    if (s->matmul[0]) {
        bytes = MATMUL_TILE_BYTES;
    }
    for (int i = 0; i < 2; i++) {
        if (s->matmul[i] && s->matmul[i]->kind == PACKED_GENERIC) {
            uint64_t decoded = (uint64_t)s->matmul[i]->k * sizeof(float) * (PANEL_ROWS + 1);
            bytes = bytes > MATMUL_TILE_BYTES + decoded ? bytes : MATMUL_TILE_BYTES + decoded;
        }
    }
    return (bytes + 63) & ~(uint64_t)63;
}

// Reserve `bytes` at the end of a growing total; false on overflow.
static bool reserve(uint64_t *total, uint64_t bytes, uint64_t *at) {
    *at = *total;
    return checked_add_u64(*total, bytes, total) && checked_align_u64(*total, 64, total);
}

static status_code place_scratch(builder *b, bool keep_all, error_ctx *err) {
    cpu_plan *pl = b->pl;
    const program *p = b->p;
    int n_threads = team_size(b->backend->threads);
    uint64_t total = 0, at_threads = 0, at_attention = 0, attention_bytes = 0;
    RETURN_IF_ERROR(program_scratch(p, b->limits, sizeof(float), keep_all, pl->value_offsets, &total, err));
    for (int i = 0; i < pl->n_steps; i++) {
        const cpu_step *s = &pl->steps[i];
        uint64_t own = thread_bytes(b, s);
        pl->thread_scratch_bytes = own > pl->thread_scratch_bytes ? own : pl->thread_scratch_bytes;
        if (!s->is_convert && s->o->kind == OP_ATTENTION) {
            uint64_t shared = cpu_attention_shared_bytes(p, s->o, n_threads);
            attention_bytes = shared > attention_bytes ? shared : attention_bytes;
        }
    }
    uint64_t *at_slots = arena_alloc_array(pl->memory, (size_t)b->n_slots + 1, sizeof *at_slots);
    uint64_t *at_tables = arena_alloc_array(pl->memory, (size_t)pl->n_rope_tables + 1, sizeof *at_tables);
    if (!at_slots || !at_tables) {
        return no_memory(err);
    }
    bool fits = reserve(&total, (uint64_t)n_threads * pl->thread_scratch_bytes, &at_threads) &&
                reserve(&total, attention_bytes, &at_attention);
    for (int i = 0; i < b->n_slots; i++) {
        fits = fits && reserve(&total, b->slots[i].bytes, &at_slots[i]);
    }
    for (int i = 0; i < pl->n_rope_tables; i++) {
        uint64_t bytes = (uint64_t)b->limits->max_tokens * 2 * (uint64_t)pl->rope_tables[i].n_freqs * sizeof(float);
        fits = fits && reserve(&total, bytes, &at_tables[i]);
    }
    if (!fits) {
        return error_set(err, STATUS_LIMIT, "scratch size overflows");
    }
    pl->scratch = cpu_pages_new(total);
    if (!pl->scratch) {
        return error_set(err, STATUS_NO_MEMORY, "cannot map %llu bytes of scratch for %lld tokens a step",
                         (unsigned long long)total, (long long)b->limits->max_tokens);
    }
    pl->scratch_bytes = total;
    pl->thread_scratch = pl->scratch + at_threads;
    pl->attention_scratch = pl->scratch + at_attention;
    for (int i = 0; i < b->n_copies; i++) {
        b->all_copies[i]->rows = pl->scratch + at_slots[b->all_copies[i]->slot];
    }
    for (int i = 0; i < pl->n_rope_tables; i++) {
        pl->rope_tables[i].rows = (float *)(pl->scratch + at_tables[i]);
    }
    return STATUS_OK;
}

// ---- repacking ----

typedef struct pack_job {
    const builder *b;
    float *row_buffers; // [n_threads][most columns]
    int64_t row_floats;
} pack_job;

static void pack_share(void *context, int thread, int n_threads) {
    const pack_job *job = context;
    float *row_buffer = job->row_buffers + thread * job->row_floats;
    for (int i = 0; i < job->b->p->n_weights; i++) {
        const matmul_weight *m = job->b->matmuls[i];
        if (!m || m->kind == PACKED_GENERIC) {
            continue;
        }
        int64_t begin, end;
        team_share(pack_panels(m->n), 1, thread, n_threads, &begin, &end);
        for (int64_t panel = begin; panel < end; panel++) {
            pack_panel(m->source, m->kind, m->form, panel, row_buffer, m->panels + (uint64_t)panel * m->panel_bytes);
        }
    }
}

static status_code pack_weights(builder *b, error_ctx *err) {
    cpu_plan *pl = b->pl;
    int64_t row_floats = 1;
    uint64_t total = 0;
    uint64_t *places = arena_alloc_array(pl->memory, (size_t)b->p->n_weights + 1, sizeof *places);
    if (!places) {
        return no_memory(err);
    }
    for (int i = 0; i < b->p->n_weights; i++) {
        const matmul_weight *m = b->matmuls[i];
        uint64_t bytes;
        if (!m) {
            continue;
        }
        row_floats = m->k > row_floats ? m->k : row_floats;
        if (!checked_mul_u64((uint64_t)pack_panels(m->n), m->panel_bytes, &bytes) ||
            !reserve(&total, bytes, &places[i])) {
            return error_set(err, STATUS_LIMIT, "repacked weight size overflows");
        }
    }
    int n_threads = team_size(b->backend->threads);
    pack_job job = {.b = b, .row_floats = row_floats};
    job.row_buffers = calloc((size_t)n_threads * (size_t)row_floats, sizeof(float));
    pl->packed = cpu_pages_new(total);
    if (!pl->packed || !job.row_buffers) {
        free(job.row_buffers);
        return error_set(err, STATUS_NO_MEMORY, "cannot map %llu bytes for repacked weights",
                         (unsigned long long)total);
    }
    pl->packed_bytes = total;
    for (int i = 0; i < b->p->n_weights; i++) {
        if (b->matmuls[i]) {
            b->matmuls[i]->panels = pl->packed + places[i];
        }
    }
    team_run(b->backend->threads, pack_share, &job);
    free(job.row_buffers);
    return STATUS_OK;
}

// ---- the plan ----

static status_code build(builder *b, bool keep_all, error_ctx *err) {
    cpu_plan *pl = b->pl;
    arena *a = pl->memory;
    const program *p = b->p;
    size_t n_ops = (size_t)p->n_ops + 1, n_values = (size_t)p->n_values + 1, n_weights = (size_t)p->n_weights + 1;
    pl->steps = arena_alloc_array(a, 2 * n_ops, sizeof *pl->steps); // each op may need a conversion before it
    pl->kernel_names = arena_alloc_array(a, n_ops, sizeof *pl->kernel_names);
    pl->rope_tables = arena_alloc_array(a, n_ops, sizeof *pl->rope_tables);
    pl->value_offsets = arena_alloc_array(a, n_values, sizeof *pl->value_offsets);
    b->matmuls = arena_alloc_array(a, n_weights, sizeof *b->matmuls);
    b->vectors = arena_alloc_array(a, n_weights, sizeof *b->vectors);
    b->copies = arena_alloc_array(a, n_values, sizeof *b->copies);
    b->writers = arena_alloc_array(a, n_values, sizeof *b->writers);
    b->slots = arena_alloc_array(a, n_ops, sizeof *b->slots);
    b->all_copies = arena_alloc_array(a, n_ops, sizeof *b->all_copies);
    if (!pl->steps || !pl->kernel_names || !pl->rope_tables || !pl->value_offsets || !b->matmuls || !b->vectors ||
        !b->copies || !b->writers || !b->slots || !b->all_copies) {
        return no_memory(err);
    }
    for (int v = 0; v < p->n_values; v++) {
        b->writers[v] = -1;
    }
    for (int i = 0; i < p->n_ops; i++) {
        if (!cpu_op_is_supported(p, &p->ops[i])) {
            error_object(err, "op %s", p->ops[i].name);
            return error_set(err, STATUS_INTERNAL, "%s was planned without asking supports",
                             op_get_info(p->ops[i].kind)->name);
        }
        RETURN_IF_ERROR(build_op(b, i, err));
    }
    RETURN_IF_ERROR(place_scratch(b, keep_all, err));
    place_barriers(b);
    return pack_weights(b, err);
}

status_code cpu_plan_new(backend *owner, const program *p, const row_limits *limits, bool keep_all, plan **out,
                         error_ctx *err) {
    *out = NULL;
    cpu_plan *pl = calloc(1, sizeof *pl);
    if (!pl) {
        return no_memory(err);
    }
    pl->base = (plan){.owner = owner, .ops = p, .limits = *limits};
    pl->memory = arena_new(0);
    if (!pl->memory) {
        cpu_plan_free(&pl->base);
        return no_memory(err);
    }
    builder b = {.backend = (cpu_backend *)owner, .pl = pl, .p = p, .limits = limits};
    status_code failed = build(&b, keep_all, err);
    if (failed) {
        cpu_plan_free(&pl->base);
        return failed;
    }
    *out = &pl->base;
    return STATUS_OK;
}

void cpu_plan_free(plan *base) {
    cpu_plan *pl = (cpu_plan *)base;
    if (pl) {
        cpu_pages_free(pl->scratch, pl->scratch_bytes);
        cpu_pages_free(pl->packed, pl->packed_bytes);
        arena_free(pl->memory);
        free(pl);
    }
}
