// Level detection and the assembly of the kernel tables.
#include "backend/cpu/cpu_kernels.h"

#include "backend/cpu/cpu_backend.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const level_names[CPU_LEVEL_COUNT] = {"portable", "avx2", "avx512", "avx512bf16"};

const char *cpu_level_name(cpu_level level) {
    return level_names[level];
}

bool cpu_level_from_name(const char *name, cpu_level *level) {
    for (int i = 0; i < CPU_LEVEL_COUNT; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *level = (cpu_level)i;
            return true;
        }
    }
    return false;
}

#if defined(__x86_64__)

// Registers that the operating system saves on a context switch (XCR0).
static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_bits(uint32_t value, uint32_t bits) {
    return (value & bits) == bits;
}

cpu_level cpu_detect_level(void) {
    enum { XCR0_YMM = 0x06, XCR0_ZMM = 0xe6 };
    const uint32_t leaf1_c = bit_FMA | bit_AVX | bit_F16C | bit_OSXSAVE;
    const uint32_t leaf7_b = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_bits(c, leaf1_c) || !has_bits((uint32_t)saved_registers(), XCR0_YMM) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_bits(b, bit_AVX2)) {
        return CPU_PORTABLE;
    }
    if (!has_bits((uint32_t)saved_registers(), XCR0_ZMM) || !has_bits(b, leaf7_b) || !has_bits(c, bit_AVX512VNNI)) {
        return CPU_AVX2;
    }
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !has_bits(a, bit_AVX512BF16)) {
        return CPU_AVX512;
    }
    return CPU_AVX512BF16;
}

#else

cpu_level cpu_detect_level(void) {
    return CPU_PORTABLE;
}

#endif

const char *cpu_best_level(void) {
    return level_names[cpu_detect_level()];
}

void cpu_kernels_get(cpu_level level, cpu_kernels *out) {
    *out = (cpu_kernels){0};
    cpu_matmul_portable(&out->matmul);
    cpu_vector_portable(&out->vector);
    cpu_attention_portable(&out->attention);
#if defined(__x86_64__)
    if (level >= CPU_AVX2) {
        cpu_matmul_avx2(&out->matmul);
        cpu_vector_avx2(&out->vector);
        cpu_attention_avx2(&out->attention);
    }
    if (level >= CPU_AVX512) {
        cpu_matmul_avx512(&out->matmul);
        cpu_vector_avx512(&out->vector);
        cpu_attention_avx512(&out->attention);
    }
    if (level >= CPU_AVX512BF16) {
        cpu_matmul_avx512bf16(&out->matmul);
    }
#else
    (void)level;
#endif
}
