// The CPU backend: f32 activations, kernels chosen at plan time by dtype, row count and ISA level.
#ifndef BACKEND_CPU_CPU_BACKEND_H
#define BACKEND_CPU_CPU_BACKEND_H

#include "backend/backend.h"

extern const backend_type cpu_backend_type;

// Best ISA level of this machine by name: "portable", "avx2", "avx512", "avx512bf16". Checks that the OS saves the
// registers, not only CPUID.
const char *cpu_best_level(void);

#endif
