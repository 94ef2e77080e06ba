// The CPU backend's face: opening, memory, value access. Planning is in cpu_plan.c, running in cpu_run.c.
#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/cpu_plan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const cpu_backend *self_of(const backend *b) {
    return (const cpu_backend *)b;
}

static void cpu_close(backend *b) {
    if (b) {
        team_free(((cpu_backend *)b)->threads);
        free(b);
    }
}

static status_code cpu_open(const backend_options *options, backend **out, error_ctx *err) {
    *out = NULL;
    cpu_level best = cpu_detect_level(), level = best;
    if (options->cpu_level) {
        if (!cpu_level_from_name(options->cpu_level, &level)) {
            return error_set(err, STATUS_INVALID,
                             "CPU level \"%s\" is unknown; known: portable, avx2, avx512, avx512bf16",
                             options->cpu_level);
        }
        if (level > best) {
            return error_set(err, STATUS_UNSUPPORTED, "CPU level %s was asked for, this machine has %s",
                             options->cpu_level, cpu_level_name(best));
        }
    }
    cpu_backend *b = calloc(1, sizeof *b);
    if (!b) {
        return error_no_memory(err, "the CPU backend");
    }
    b->base.type = &cpu_backend_type;
    b->level = level;
    cpu_kernels_get(level, &b->kernels);
    int n_threads = options->n_threads > 0 ? options->n_threads : team_default_threads();
    status_code failed = team_new(n_threads, options->pin_threads, &b->threads, err);
    if (failed) {
        cpu_close(&b->base);
        return failed;
    }
    *out = &b->base;
    return STATUS_OK;
}

static const char *cpu_get_level(const backend *b) {
    return cpu_level_name(self_of(b)->level);
}

static int cpu_n_threads(const backend *b) {
    return team_size(self_of(b)->threads);
}

static dtype cpu_state_type(const backend *b, dtype wanted) {
    (void)b;
    return wanted == DTYPE_F32 || wanted == DTYPE_F16 || wanted == DTYPE_BF16 ? wanted : DTYPE_NONE;
}

static bool cpu_supports(const backend *b, const program *p, const op *o) {
    (void)b;
    return cpu_op_is_supported(p, o);
}

// A page at least, so that an empty buffer has an address too.
static size_t page_bytes(uint64_t bytes) {
    return bytes ? (size_t)bytes : 1;
}

void *cpu_pages_new(uint64_t bytes) {
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    void *pages = mmap(NULL, page_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return NULL;
    }
    // Weights and state are read in long runs: large pages save TLB misses. Only advice.
    madvise(pages, page_bytes(bytes), MADV_HUGEPAGE);
    return pages;
}

void cpu_pages_free(void *pages, uint64_t bytes) {
    if (pages) {
        munmap(pages, page_bytes(bytes));
    }
}

static status_code cpu_buffer_alloc(backend *b, uint64_t bytes, void **out, error_ctx *err) {
    (void)b;
    *out = cpu_pages_new(bytes);
    return *out ? STATUS_OK
                : error_set(err, STATUS_NO_MEMORY, "cannot map %llu bytes of memory", (unsigned long long)bytes);
}

static void cpu_buffer_free(backend *b, void *buffer, uint64_t bytes) {
    (void)b;
    cpu_pages_free(buffer, bytes);
}

static uint64_t cpu_scratch_bytes(const plan *pl) {
    return ((const cpu_plan *)pl)->scratch_bytes;
}

static uint64_t cpu_weight_bytes(const plan *pl) {
    return ((const cpu_plan *)pl)->packed_bytes;
}

static const char *cpu_kernel(const plan *pl, int op_index) {
    return ((const cpu_plan *)pl)->kernel_names[op_index];
}

static void cpu_write_value(plan *pl, int value, const float *src, int64_t rows) {
    size_t bytes = (size_t)rows * (size_t)pl->ops->values[value].width * sizeof(float);
    if (bytes) {
        memcpy(cpu_value((cpu_plan *)pl, value), src, bytes);
    }
}

static void cpu_read_value(plan *pl, int value, float *dst, int64_t rows) {
    size_t bytes = (size_t)rows * (size_t)pl->ops->values[value].width * sizeof(float);
    if (bytes) {
        memcpy(dst, cpu_value((cpu_plan *)pl, value), bytes);
    }
}

static void cpu_read_value_f64(plan *pl, int value, double *dst, int64_t rows) {
    const float *src = cpu_value((cpu_plan *)pl, value);
    for (int64_t i = 0; i < rows * pl->ops->values[value].width; i++) {
        dst[i] = (double)src[i];
    }
}

static const float *cpu_view_value(plan *pl, int value) {
    return cpu_value((cpu_plan *)pl, value);
}

const backend_type cpu_backend_type = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .level = cpu_get_level,
    .n_threads = cpu_n_threads,
    .state_type = cpu_state_type,
    .supports = cpu_supports,
    .buffer_alloc = cpu_buffer_alloc,
    .buffer_free = cpu_buffer_free,
    .plan = cpu_plan_new,
    .plan_free = cpu_plan_free,
    .plan_scratch_bytes = cpu_scratch_bytes,
    .plan_weight_bytes = cpu_weight_bytes,
    .plan_kernel = cpu_kernel,
    .run = cpu_plan_run,
    .write_value = cpu_write_value,
    .read_value = cpu_read_value,
    .read_value_f64 = cpu_read_value_f64,
    .view_value = cpu_view_value,
};
