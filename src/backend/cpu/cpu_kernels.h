// The kernel tables of the CPU backend: what the drivers (cpu_run.c, cpu_attention.c) may call.
//
// One table per op family. cpu_kernels_get fills it with portable C and overwrites entries upward, level by level, so
// a level only lists what it does better. Kernels take raw pointers and counts, know no program, allocate nothing and
// touch only the rows they are given.
//
// Row invariance (docs/design.md, invariant 6): a kernel that takes several rows gives each row the bits it would get
// alone. That holds because a result element has one accumulation order, written at each kernel, and no kernel lets a
// row's neighbours choose it. Different levels may round differently.
#ifndef BACKEND_CPU_CPU_KERNELS_H
#define BACKEND_CPU_CPU_KERNELS_H

#include "backend/cpu/cpu_layout.h"
#include "backend/program.h"

// Each level includes the ones before it.
typedef enum cpu_level {
    CPU_PORTABLE = 0,
    CPU_AVX2,       // AVX2, FMA, F16C
    CPU_AVX512,     // F, BW, DQ, VL, VNNI
    CPU_AVX512BF16, // BF16 dot products
    CPU_LEVEL_COUNT
} cpu_level;

const char *cpu_level_name(cpu_level level);
bool cpu_level_from_name(const char *name, cpu_level *level);
cpu_level cpu_detect_level(void); // CPUID and the register state that the OS saves

// ---- matmul ----

// Products of one weight panel (PANEL_ROWS output rows) with n_rows activation rows: out [n_rows, PANEL_ROWS].
// Per output: integer sums of one group of 32 are exact; groups are added to one f32 in ascending order of k.
// acts: n_rows rows of q8_layout(k), q8_row_bytes(k) apart.
typedef void (*panel_q8_fn)(const void *panel, int64_t k, const void *acts, int n_rows, float *out);
// As above for float panels [k, PANEL_ROWS] and f32 rows [n_rows, k]. Per output: four f32 sums over k mod 4, each
// ascending, added as (s0 + s1) + (s2 + s3).
typedef void (*panel_f32_fn)(const void *panel, int64_t k, const float *acts, int n_rows, float *out);
// Panels of BF16 pairs [ceil(k / 2), PANEL_ROWS, 2] and bf16 rows of bf16_row_bytes(k).
typedef void (*panel_bf16_fn)(const void *panel, int64_t k, const void *acts, int n_rows, float *out);

typedef struct matmul_kernels {
    panel_q8_fn q8[PACK_FORM_COUNT];
    cpu_level q8_level[PACK_FORM_COUNT]; // level that supplied the entry, for its name
    panel_f32_fn f32, f16, bf16;         // by element type of the panel
    cpu_level f32_level, f16_level, bf16_level;
    panel_bf16_fn bf16_pairs; // NULL below avx512bf16
    void (*quantize_q8)(const float *x, int64_t k, void *row, int64_t first_group, int64_t end_group);
    void (*round_bf16)(const float *x, int64_t k, void *row, int64_t first_group, int64_t end_group);
} matmul_kernels;

// ---- elementwise and row-wise ----

typedef struct vector_kernels {
    // out = x * rsqrt(mean(x^2) + eps) * (offset + w); out may be x. The sum of squares is kept in 16 lanes.
    void (*rms_norm)(const float *x, const float *w, float *out, int64_t n, float eps, float offset);
    void (*add)(const float *a, const float *b, float *out, int64_t n);
    void (*act_gate)(activation act, const float *gate, const float *up, float *out, int64_t n);
    // Rotates n_freqs pairs of one head; cos and sin hold n_freqs values. out may be x; other channels are copied.
    void (*rope)(rope_style style, const float *x, const float *cos, const float *sin, int64_t n_freqs,
                 int64_t head_dim, float *out);
    void (*to_f16)(const float *x, void *out, int64_t n);  // round to nearest even
    void (*to_bf16)(const float *x, void *out, int64_t n); // round to nearest even
    cpu_level level;
} vector_kernels;

// ---- attention ----

// Running softmax of one query over positions seen so far.
typedef struct softmax_state {
    float max; // of scaled scores, -INFINITY before the first
    float sum; // of exp(score - max)
} softmax_state;

enum { SCORE_COLUMNS = STATE_BLOCK_TOKENS };

typedef struct attention_kernels {
    // scores[q][j] = q . k_j for keys [lo, hi) of one block: queries [n_queries, dim], keys [STATE_BLOCK_TOKENS, dim]
    // of the given state type, scores [n_queries, SCORE_COLUMNS].
    void (*scores)(dtype type, const float *queries, int n_queries, const void *keys, int64_t dim, int lo, int hi,
                   float *scores);
    // Scores of one query -> probabilities relative to the new maximum, in place. Columns outside [lo, hi) become 0.
    // Returns the factor by which sums made so far must be multiplied.
    float (*softmax)(float *scores, int lo, int hi, float scale, softmax_state *state);
    // sums[q] = sums[q] * factor[q] + sum over j of p[q][j] * v_j, j ascending in [lo, hi); sums [n_queries, dim].
    void (*weigh)(dtype type, const float *p, const float *factor, int n_queries, const void *values, int64_t dim,
                  int lo, int hi, float *sums);
    // Adds a finished split to the total: both relative to their own maximum, afterwards to the common one.
    void (*merge)(float *total, softmax_state *total_state, const float *part, const softmax_state *part_state,
                  int64_t dim);
    cpu_level level;
} attention_kernels;

typedef struct cpu_kernels {
    matmul_kernels matmul;
    vector_kernels vector;
    attention_kernels attention;
} cpu_kernels;

// Tables for `level`, which must not exceed cpu_detect_level().
void cpu_kernels_get(cpu_level level, cpu_kernels *out);

// Per-level fillers; each overwrites the entries it has.
void cpu_matmul_portable(matmul_kernels *k);
void cpu_vector_portable(vector_kernels *k);
void cpu_attention_portable(attention_kernels *k);
#if defined(__x86_64__)
void cpu_matmul_avx2(matmul_kernels *k);
void cpu_vector_avx2(vector_kernels *k);
void cpu_attention_avx2(attention_kernels *k);
void cpu_matmul_avx512(matmul_kernels *k);
void cpu_vector_avx512(vector_kernels *k);
void cpu_attention_avx512(attention_kernels *k);
void cpu_matmul_avx512bf16(matmul_kernels *k);
#endif

#endif
