// How far a kernel may be from the truth.
//
// Unit roundoff u = 2^-24 (f32). For every output element two sizes are derived from the op's arithmetic, the length
// of its sums, and the magnitudes that went in; nothing is tuned:
//   bound  no f32 evaluation in any order can be further off (first order in u)
//   sigma  the size at which roundings of random sign add up
// An element passes when |error| <= bound; an output passes when also the root mean square of |error| / sigma is <= 1.
// Sums of one repeated value round alike every time, so rows of one value count for the bound only.
#include "backend/opcheck_int.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double unit = 0x1p-24;
static const double smallest = 0x1p-126; // results below it may be flushed or lose bits

// ---- activation quantisation ----

// The activation type in a kernel's name: what follows "<op>_<weight type>_".
static const char *announced_activation(const case_data *d, const char *kernel) {
    char prefix[64];
    int n =
        snprintf(prefix, sizeof prefix, "%s_%s_", op_get_info(d->c->kind)->name, dtype_get(d->c->weight_type)->name);
    for (int i = 0; i < n; i++) {
        prefix[i] = (char)tolower((unsigned char)prefix[i]);
    }
    return strncmp(kernel, prefix, (size_t)n) == 0 ? kernel + n : "f32";
}

// int8 in groups of 32: scale = max / 127, code = round(x * (127 / max)), in f32 as documented in cpu_layout.h.
// rounded receives scale * code, rest what that leaves of x; rest may be x.
static void quantize_group(const float *x, double *rounded, float *rest) {
    float most = 0.0f;
    for (int i = 0; i < 32; i++) {
        most = fmaxf(most, fabsf(x[i]));
    }
    float inverse = 127.0f / most, scale = most / 127.0f;
    for (int i = 0; i < 32; i++) {
        float code = most > 0.0f && isfinite(inverse) ? rintf(x[i] * inverse) : 0.0f;
        rounded[i] = (double)scale * (double)code;
        rest[i] = x[i] - scale * code;
    }
}

// Rows travel in two pieces: rounded, and the rest rounded again (cpu_convert.c).
static void quantize_row_q8x2(const float *x, float *dst, int64_t k) {
    for (int64_t g = 0; g < k; g += 32) {
        double first[32], second[32];
        float rest[32];
        quantize_group(x + g, first, rest);
        quantize_group(rest, second, rest);
        for (int i = 0; i < 32; i++) {
            dst[g + i] = (float)(first[i] + second[i]);
        }
    }
}

bool oracle_quantize(const case_data *d, const char *kernel, float *dst) {
    if (d->c->kind != OP_MATMUL && d->c->kind != OP_GATE_UP) {
        return false;
    }
    const char *activation_type = announced_activation(d, kernel);
    int64_t k = d->c->k;
    if (strncmp(activation_type, "q8x2_", 5) == 0) {
        for (int64_t row = 0; row < d->rows; row++) {
            quantize_row_q8x2(d->inputs[0] + row * k, dst + row * k, k);
        }
        return true;
    }
    if (strncmp(activation_type, "bf16x2_", 7) == 0) {
        for (int64_t i = 0; i < d->rows * k; i++) {
            float x = d->inputs[0][i], first = bf16_to_f32(f32_to_bf16(x));
            dst[i] = first + bf16_to_f32(f32_to_bf16(x - first));
        }
        return true;
    }
    return false;
}

// ---- bounds ----

typedef struct error_size {
    double bound, sigma;
} error_size;

static error_size sized(double roundings, double magnitude) {
    return (error_size){unit * (roundings + 1) * magnitude + smallest,
                        unit * sqrt(roundings + 1) * magnitude + smallest};
}

typedef struct oracle {
    const case_data *d;
    float *const *inputs;
    arena *memory;
    float *weights[OP_MAX_WEIGHTS]; // decoded [rows, columns]
    double *keys, *values;          // ATTENTION: the state, decoded
} oracle;

static double *decode_image(oracle *c, const uint8_t *image, uint64_t bytes) {
    dtype type = c->d->c->state_type;
    int64_t n = (int64_t)bytes / dtype_get(type)->block_bytes;
    double *decoded = arena_alloc_array(c->memory, (size_t)n + 1, sizeof *decoded);
    for (int64_t i = 0; decoded && i < n; i++) {
        decoded[i] = state_element(type, image, i);
    }
    return decoded;
}

static bool decode_operands(oracle *c) {
    const op *o = &c->d->p->ops[0];
    if (o->kind == OP_ATTENTION) {
        c->keys = decode_image(c, c->d->k_image, c->d->k_bytes);
        c->values = decode_image(c, c->d->v_image, c->d->v_bytes);
        return c->keys && c->values;
    }
    for (int i = 0; i < OP_MAX_WEIGHTS; i++) {
        if (o->weights[i] == OP_ABSENT) {
            continue;
        }
        const weight *w = &c->d->p->weights[o->weights[i]];
        int64_t rows = w->n_dims == 2 ? w->shape[0] : 1, columns = weight_columns(w);
        c->weights[i] = arena_alloc_array(c->memory, (size_t)(rows * columns) + 1, sizeof(float));
        if (!c->weights[i]) {
            return false;
        }
        for (int64_t row = 0; row < rows; row++) {
            weight_decode_row(w, row, c->weights[i] + row * columns);
        }
    }
    return true;
}

static double abs_dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += fabs((double)a[i] * (double)b[i]);
    }
    return sum;
}

// One product sum of k terms: k products and k sums round, and so do the scales of a quantised block (4).
static double matmul_roundings(int64_t k) {
    return 2.0 * (double)k + 4;
}

static double activate(activation act, double x) {
    switch (act) {
    case ACTIVATION_SILU:
        return x / (1 + exp(-x));
    case ACTIVATION_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    }
}

// Relative growth of an argument's rounding in the activation: |x f'(x) / f(x)| is at most this.
static double act_condition(activation act, double x) {
    double a = fabs(x);
    return act == ACTIVATION_SILU ? 1 + a : act == ACTIVATION_GELU_TANH ? 1 + 2 * a + a * a * a : 1 + a * a + a;
}

// act(g) * u where g and u carry errors of their own.
static error_size gated(activation act, double g, double u, error_size g_error, error_size u_error) {
    double value = activate(act, g);
    error_size own = sized(6, fabs(value * u) * act_condition(act, g)); // exp, divide, cube, multiply
    // Where exp(-g) overflows in f32 the result is 0; the true one is below 2^-120 there, before u multiplies it.
    own.bound += 0x1p-120 * fabs(u);
    own.sigma += 0x1p-120 * fabs(u);
    const double slope = 1.13; // largest |act'|
    return (error_size){own.bound + slope * fabs(u) * g_error.bound + fabs(value) * u_error.bound,
                        own.sigma + slope * fabs(u) * g_error.sigma + fabs(value) * u_error.sigma};
}

static error_size matmul_error(const oracle *c, int slot, int64_t row, int64_t column, double *value) {
    int64_t k = c->d->c->k;
    const float *x = c->inputs[0] + row * k, *w = c->weights[slot] + column * k;
    double magnitude = abs_dot(x, w, k), sum = 0;
    for (int64_t i = 0; i < k; i++) {
        sum += (double)x[i] * (double)w[i];
    }
    *value = sum;
    if (slot == 0 && c->weights[1] && c->d->c->kind == OP_MATMUL) {
        magnitude += fabs((double)c->weights[1][column]);
    }
    return sized(matmul_roundings(k), magnitude);
}

// x * r * (offset + w) of one element; the x carry an absolute error of x_unit units of their magnitude.
static error_size norm_error(const oracle *c, const double *x, const double *magnitudes, int64_t at, float w) {
    int64_t group = c->d->c->group, first = at / group * group;
    double squares = 0, spread = 0;
    for (int64_t i = first; i < first + group; i++) {
        squares += x[i] * x[i];
        spread += fabs(x[i]) * magnitudes[i];
    }
    double mean = squares / (double)group + (double)c->d->c->eps, r = 1 / sqrt(mean);
    double scale = fabs((double)c->d->c->offset) + fabs((double)w);
    // The sum of squares has group roundings, halved by the root; errors of x enter through the mean as well.
    error_size own = sized((double)group + 8, fabs(x[at]) * r * scale);
    double inherited = unit * r * scale * (magnitudes[at] + fabs(x[at]) * spread / (double)group / mean);
    return (error_size){own.bound + inherited, own.sigma + inherited};
}

// Row `row` of a + b, and how large the terms were; b may be NULL.
static void sum_row(const oracle *c, int64_t row, const float *a, const float *b, double *sum, double *magnitudes) {
    int64_t k = c->d->c->k;
    for (int64_t i = 0; i < k; i++) {
        double second = b ? (double)b[row * k + i] : 0;
        sum[i] = (double)a[row * k + i] + second;
        magnitudes[i] = b ? fabs((double)a[row * k + i]) + fabs(second) : 0;
    }
}

static void norm_row_errors(const oracle *c, int64_t row, int index, error_size *out) {
    const op_case *k = c->d->c;
    double *x = arena_alloc_array(c->memory, (size_t)(2 * k->k) + 1, sizeof *x), *magnitudes = x + k->k;
    const float *first = c->inputs[0], *second = k->kind == OP_ADD_RMS_NORM ? c->inputs[1] : NULL;
    if (!x) {
        return; // the zero sizes left behind fail the check
    }
    if (k->kind == OP_NORM_ADD) {
        first = c->inputs[1];
    }
    sum_row(c, row, first, second, x, magnitudes);
    for (int64_t i = 0; i < k->k; i++) {
        if (k->kind == OP_ADD_RMS_NORM && index == 0) {
            out[i] = sized(0, magnitudes[i]);
            continue;
        }
        out[i] = norm_error(c, x, magnitudes, i, c->weights[0][i % k->group]);
        if (k->kind == OP_NORM_ADD) {
            error_size add = sized(0, fabs((double)c->inputs[0][row * k->k + i]));
            out[i].bound += add.bound;
            out[i].sigma += add.sigma;
        }
    }
}

// Rotation of one head's channel: two products and a sum, on cosines rounded to f32 and scaled.
static error_size rope_error(const op_case *c, const double *head, int64_t channel, double inherited) {
    if (channel >= 2 * c->n_freqs) {
        return sized(0, inherited);
    }
    int64_t other =
        c->style == ROPE_HALF ? (channel < c->n_freqs ? channel + c->n_freqs : channel - c->n_freqs) : channel ^ 1;
    return sized(4 + inherited, (fabs(head[channel]) + fabs(head[other])) * fabs((double)c->scale));
}

// A head of q or k after its norm where it has one, as rope sees it; returns the roundings it brings along.
static double normed_head(const oracle *c, int norm_slot, const float *x, double *head) {
    const op_case *k = c->d->c;
    double squares = 0;
    for (int64_t i = 0; i < k->k_dim; i++) {
        head[i] = (double)x[i];
        squares += head[i] * head[i];
    }
    if (k->kind != OP_ROPE_APPEND || !c->weights[norm_slot]) {
        return 0;
    }
    double r = 1 / sqrt(squares / (double)k->k_dim + (double)k->eps);
    for (int64_t i = 0; i < k->k_dim; i++) {
        head[i] *= r * ((double)k->offset + (double)c->weights[norm_slot][i]);
    }
    return (double)k->k_dim + 8;
}

static void rope_row_errors(const oracle *c, int64_t row, error_size *out) {
    const op_case *k = c->d->c;
    double *head = arena_alloc_array(c->memory, (size_t)k->k_dim, sizeof *head);
    for (int64_t h = 0; head && h < k->n_heads; h++) {
        double inherited = normed_head(c, 1, c->inputs[0] + (row * k->n_heads + h) * k->k_dim, head);
        for (int64_t i = 0; i < k->k_dim; i++) {
            out[h * k->k_dim + i] = rope_error(k, head, i, inherited);
        }
    }
}

static int64_t state_index(const case_data *d, int64_t seq, int64_t position, int64_t head, int64_t dim) {
    int64_t block = d->batch.seqs[seq].tables[1][position / STATE_BLOCK_TOKENS];
    return ((block * d->c->n_kv_heads + head) * STATE_BLOCK_TOKENS + position % STATE_BLOCK_TOKENS) * dim;
}

// A probability carries the error of its score, 2 (dim + 2) roundings of the products' magnitude, of the difference to
// the maximum, and of exp; the weighted sum has one product and sum a position.
static void attention_row_errors(const oracle *c, int64_t row, error_size *out) {
    const op_case *k = c->d->c;
    int64_t seq = c->d->batch.seq_of_row[row], last = c->d->batch.positions[row];
    int64_t first = k->window > 0 && last >= k->window ? last - k->window + 1 : 0, n = last - first + 1;
    double *scores = arena_alloc_array(c->memory, (size_t)(2 * n + 2 * k->v_dim), sizeof *scores);
    if (!scores) {
        return; // the zero sizes left behind fail the check
    }
    double *sizes = scores + n, *magnitude = sizes + n, *value = magnitude + k->v_dim;
    double scale = (double)c->d->p->ops[0].params.attn_scale;
    for (int64_t h = 0; h < k->n_heads; h++) {
        const float *q = c->inputs[0] + (row * k->n_heads + h) * k->k_dim;
        int64_t kv_head = h / (k->n_heads / k->n_kv_heads);
        double max = -INFINITY, total = 0, relative_total = 0;
        for (int64_t j = 0; j < n; j++) {
            int64_t at = state_index(c->d, seq, first + j, kv_head, k->k_dim);
            scores[j] = sizes[j] = 0;
            for (int64_t i = 0; i < k->k_dim; i++) {
                double product = (double)q[i] * c->keys[at + i] * scale;
                scores[j] += product;
                sizes[j] += fabs(product);
            }
            max = fmax(max, scores[j]);
        }
        memset(magnitude, 0, (size_t)(2 * k->v_dim) * sizeof *magnitude);
        for (int64_t j = 0; j < n; j++) {
            // what one unit does to this probability, in units
            double relative = 2 * ((double)k->k_dim + 2) * sizes[j] + fabs(scores[j] - max) + 4;
            double p = exp(scores[j] - max);
            int64_t at = state_index(c->d, seq, first + j, kv_head, k->v_dim);
            total += p;
            relative_total += p * relative;
            for (int64_t i = 0; i < k->v_dim; i++) {
                value[i] += p * c->values[at + i];
                magnitude[i] += p * (relative + (double)n) * fabs(c->values[at + i]);
            }
        }
        for (int64_t i = 0; i < k->v_dim; i++) {
            double divisor = fabs(value[i]) / total * (relative_total / total + (double)n + 8); // error of the sum of p
            double bound = unit * (magnitude[i] / total + divisor) + smallest;
            out[h * k->v_dim + i] = (error_size){bound, bound};
        }
    }
}

// Sizes for one output row.
static void row_errors(const oracle *c, int64_t row, int index, error_size *out) {
    const op_case *k = c->d->c;
    switch (k->kind) {
    case OP_EMBED:
        for (int64_t i = 0; i < k->n; i++) {
            out[i] = sized(0, fabs((double)c->weights[0][c->d->batch.tokens[row] * k->n + i] * (double)k->scale));
        }
        break;
    case OP_MATMUL:
        for (int64_t i = 0; i < k->n; i++) {
            double value;
            out[i] = matmul_error(c, 0, row, i, &value);
        }
        break;
    case OP_GATE_UP:
        for (int64_t i = 0; i < k->n; i++) {
            double g, u;
            error_size g_error = matmul_error(c, 0, row, i, &g), u_error = matmul_error(c, 1, row, i, &u);
            out[i] = gated(k->act, g, u, g_error, u_error);
        }
        break;
    case OP_ADD:
        for (int64_t i = 0; i < k->k; i++) {
            out[i] = sized(0, fabs((double)c->inputs[0][row * k->k + i]) + fabs((double)c->inputs[1][row * k->k + i]));
        }
        break;
    case OP_ACT_GATE:
        for (int64_t i = 0; i < k->k; i++) {
            out[i] = gated(k->act, (double)c->inputs[0][row * k->k + i], (double)c->inputs[1][row * k->k + i],
                           (error_size){0, 0}, (error_size){0, 0});
        }
        break;
    case OP_RMS_NORM:
    case OP_ADD_RMS_NORM:
    case OP_NORM_ADD:
        norm_row_errors(c, row, index, out);
        break;
    case OP_ROPE:
    case OP_ROPE_APPEND:
        rope_row_errors(c, row, out);
        break;
    case OP_ATTENTION:
        attention_row_errors(c, row, out);
        break;
    default: // GATHER_ROWS: exact, sizes stay zero
        break;
    }
}

// ---- comparing ----

static bool is_constant_row(const float *x, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        if (x[i] != x[0]) {
            return false;
        }
    }
    return true;
}

error_measure oracle_compare(const case_data *d, float *const *inputs, int index, const float *found,
                             const double *truth, arena *memory) {
    const value_desc *v = &d->p->values[d->p->ops[0].outputs[index]];
    int64_t rows = v->rows == ROWS_TOKENS ? d->rows : d->batch.n_logit_rows;
    oracle c = {.d = d, .inputs = inputs, .memory = memory};
    error_measure m = {0};
    error_size *sizes = arena_alloc_array(memory, (size_t)v->width, sizeof *sizes);
    if (!sizes || !decode_operands(&c)) {
        m.worst = INFINITY;
        return m;
    }
    double squares = 0, error_squares = 0, truth_squares = 0;
    int64_t n_squares = 0;
    for (int64_t row = 0; row < rows; row++) {
        memset(sizes, 0, (size_t)v->width * sizeof *sizes);
        row_errors(&c, row, index, sizes);
        bool counts_for_rms = d->n_inputs == 0 || v->rows != ROWS_TOKENS ||
                              !is_constant_row(inputs[0] + row * d->p->values[d->p->ops[0].inputs[0]].width,
                                               d->p->values[d->p->ops[0].inputs[0]].width);
        for (int64_t i = 0; i < v->width; i++) {
            int64_t at = row * v->width + i;
            double error = fabs((double)found[at] - truth[at]);
            double ratio = error == 0 ? 0 : error / sizes[i].bound; // infinite where only equality passes
            m.worst = ratio > m.worst || isnan(ratio) ? (isnan(ratio) ? INFINITY : ratio) : m.worst;
            error_squares += error * error;
            truth_squares += truth[at] * truth[at];
            if (counts_for_rms && error > 0) {
                squares += error / sizes[i].sigma * (error / sizes[i].sigma);
            }
            n_squares += counts_for_rms;
        }
    }
    m.rms = n_squares ? sqrt(squares / (double)n_squares) : 0;
    m.nmse = truth_squares > 0 ? error_squares / truth_squares : 0;
    return m;
}

// Half a step of the state type relative to the value, and its smallest step.
static double state_rounding(dtype type, double value) {
    switch (type) {
    case DTYPE_F16:
        return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    case DTYPE_BF16:
        return fabs(value) * 0x1p-8 + 0x1p-134;
    default:
        return 0;
    }
}

// Every element of a state: appended ones against the truth, all others against what was there before.
static bool compare_elements(const case_data *d, float *const *inputs, bool is_v, const void *tested,
                             const double *truth, arena *memory, double *worst, const char **reason) {
    const op_case *c = d->c;
    int64_t dim = is_v ? c->v_dim : c->k_dim, size = dtype_get(c->state_type)->block_bytes;
    const uint8_t *image = is_v ? d->v_image : d->k_image;
    uint64_t bytes = is_v ? d->v_bytes : d->k_bytes;
    uint8_t *expected = arena_alloc_array(memory, (size_t)bytes + 1, 1);
    double *head_values = arena_alloc_array(memory, (size_t)c->k_dim + 1, sizeof *head_values);
    oracle o = {.d = d, .inputs = inputs, .memory = memory};
    if (!expected || !head_values || !decode_operands(&o)) {
        *reason = "out of memory";
        return false;
    }
    memcpy(expected, image, (size_t)bytes);
    bool is_rotated = c->kind == OP_ROPE_APPEND && !is_v;
    const float *source = c->kind == OP_ROPE_APPEND ? inputs[is_v ? 2 : 1] : inputs[is_v ? 1 : 0];
    for (int64_t row = 0; row < d->rows; row++) {
        for (int64_t head = 0; head < c->n_kv_heads; head++) {
            const float *x = source + (row * c->n_kv_heads + head) * dim;
            int64_t at = state_index(d, d->batch.seq_of_row[row], d->batch.positions[row], head, dim);
            if (!is_rotated) { // stored as it is: one rounding, to the even neighbour
                dtype_get(c->state_type)->encode(x, expected + at * size, dim);
                continue;
            }
            double inherited = normed_head(&o, 2, x, head_values);
            for (int64_t i = 0; i < dim; i++) {
                double bound =
                    rope_error(c, head_values, i, inherited).bound + state_rounding(c->state_type, truth[at + i]);
                double error = fabs(state_element(c->state_type, tested, at + i) - truth[at + i]);
                *worst = fmax(*worst, error / bound);
            }
            memcpy(expected + at * size, (const uint8_t *)tested + at * size, (size_t)(dim * size));
        }
    }
    if (memcmp(expected, tested, (size_t)bytes) != 0) {
        *reason =
            is_v ? "stored v, or state it must not touch, differs" : "stored k, or state it must not touch, differs";
        return false;
    }
    return true;
}

bool oracle_compare_state(const case_data *d, float *const *inputs, const runner *tested, const runner *truth,
                          double *worst, const char **reason) {
    arena *memory = arena_new(0);
    *reason = "out of memory";
    *worst = 0;
    bool passed = memory && compare_elements(d, inputs, false, tested->slab.k, truth->slab.k, memory, worst, reason) &&
                  compare_elements(d, inputs, true, tested->slab.v, truth->slab.v, memory, worst, reason);
    arena_free(memory);
    if (passed && !(*worst <= 1)) {
        *reason = "an appended element is out of bounds";
        return false;
    }
    return passed;
}
