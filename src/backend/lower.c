// Lowering: each composite op written out in primitives. This is also the composite's definition; a backend that
// claims it must agree with what stands here.
#include "backend/program.h"

// Start of a primitive that takes over the composite's name, device and parameters.
static op *primitive(program *out, const op *from, op_kind kind, const char *part) {
    op *o = program_op(out, kind, "%s%s%s", from->name, part[0] ? "." : "", part);
    o->device = from->device;
    o->params = from->params;
    return o;
}

static int temporary(program *out, const op *from, int like_value, const char *part) {
    const value_desc *like = &out->values[like_value];
    return program_value(out, like->rows, like->width, "%s.%s", from->name, part);
}

static void lower_add_rms_norm(program *out, const op *c) {
    op *add = primitive(out, c, OP_ADD, "add");
    add->inputs[0] = c->inputs[0];
    add->inputs[1] = c->inputs[1];
    add->outputs[0] = c->outputs[0];
    op *norm = primitive(out, c, OP_RMS_NORM, "norm");
    norm->inputs[0] = c->outputs[0];
    norm->weights[0] = c->weights[0];
    norm->outputs[0] = c->outputs[1];
}

static void lower_norm_add(program *out, const op *c) {
    int normed = temporary(out, c, c->inputs[1], "normed");
    op *norm = primitive(out, c, OP_RMS_NORM, "norm");
    norm->inputs[0] = c->inputs[1];
    norm->weights[0] = c->weights[0];
    norm->outputs[0] = normed;
    op *add = primitive(out, c, OP_ADD, "add");
    add->inputs[0] = c->inputs[0];
    add->inputs[1] = normed;
    add->outputs[0] = c->outputs[0];
}

static void lower_gate_up(program *out, const op *c) {
    int gate = temporary(out, c, c->outputs[0], "gate");
    int up = temporary(out, c, c->outputs[0], "up");
    const int targets[2] = {gate, up};
    for (int i = 0; i < 2; i++) {
        op *matmul = primitive(out, c, OP_MATMUL, i == 0 ? "gate" : "up");
        matmul->inputs[0] = c->inputs[0];
        matmul->weights[0] = c->weights[i];
        matmul->outputs[0] = targets[i];
    }
    op *act = primitive(out, c, OP_ACT_GATE, "act");
    act->inputs[0] = gate;
    act->inputs[1] = up;
    act->outputs[0] = c->outputs[0];
}

// Norm (where there is one) and rotate one of q and k; returns the value that holds the result.
static int lower_norm_rope(program *out, const op *c, int input, int norm_slot, int rotated, const char *part) {
    int current = input;
    if (c->weights[norm_slot] != OP_ABSENT) {
        int normed = temporary(out, c, input, part[0] == 'q' ? "q_normed" : "k_normed");
        op *norm = primitive(out, c, OP_RMS_NORM, part[0] == 'q' ? "q_norm" : "k_norm");
        norm->inputs[0] = input;
        norm->weights[0] = c->weights[norm_slot];
        norm->outputs[0] = normed;
        current = normed;
    }
    op *rope = primitive(out, c, OP_ROPE, part);
    rope->inputs[0] = current;
    rope->weights[0] = c->weights[0];
    rope->outputs[0] = rotated;
    return rotated;
}

static void lower_rope_append(program *out, const op *c) {
    lower_norm_rope(out, c, c->inputs[0], 1, c->outputs[0], "q");
    int k_rotated = temporary(out, c, c->inputs[1], "k_rotated");
    lower_norm_rope(out, c, c->inputs[1], 2, k_rotated, "k");
    op *append = primitive(out, c, OP_KV_APPEND, "append");
    append->inputs[0] = k_rotated;
    append->inputs[1] = c->inputs[2];
    append->state = c->state;
}

static void copy_op(program *out, const op *from) {
    op *copy = program_op(out, from->kind, "%s", from->name);
    const char *name = copy->name;
    *copy = *from;
    copy->name = name;
}

static void lower_op(program *out, const op *c) {
    switch (c->kind) {
    case OP_ADD_RMS_NORM:
        lower_add_rms_norm(out, c);
        break;
    case OP_NORM_ADD:
        lower_norm_add(out, c);
        break;
    case OP_GATE_UP:
        lower_gate_up(out, c);
        break;
    case OP_ROPE_APPEND:
        lower_rope_append(out, c);
        break;
    default: // primitives stay as they are
        copy_op(out, c);
        break;
    }
}

status_code program_lower(const program *p, op_supports_fn supports, const void *context, program **out,
                          error_ctx *err) {
    program *lowered;
    RETURN_IF_ERROR(program_new(p->memory, &lowered, err));
    for (int i = 0; i < p->n_values; i++) {
        int id = program_value(lowered, p->values[i].rows, p->values[i].width, "%s", p->values[i].name);
        if (!lowered->oom) {
            lowered->values[id].is_import = p->values[i].is_import;
            lowered->values[id].is_export = p->values[i].is_export;
        }
    }
    for (int i = 0; i < p->n_weights; i++) {
        program_weight(lowered, &p->weights[i]);
    }
    for (int i = 0; i < p->n_states; i++) {
        program_state(lowered, &p->states[i]);
    }
    for (int i = 0; i < p->n_ops && !lowered->oom; i++) {
        const op *o = &p->ops[i];
        if (supports(context, p, o)) {
            copy_op(lowered, o);
        } else if (op_get_info(o->kind)->is_composite) {
            lower_op(lowered, o);
        } else {
            error_object(err, "op %s", o->name);
            const weight *w = o->weights[0] != OP_ABSENT ? &p->weights[o->weights[0]] : NULL;
            return error_set(err, STATUS_UNSUPPORTED, "the backend has no kernel for %s%s%s",
                             op_get_info(o->kind)->name, w ? " with weight type " : "",
                             w ? dtype_get(w->type)->name : "");
        }
    }
    lowered->logits = p->logits;
    *out = lowered;
    return program_check(lowered, err);
}
