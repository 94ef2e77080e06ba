// CRC-32 as zlib computes it, to compare with checksums made by Python.
#ifndef TESTS_CRC32_H
#define TESTS_CRC32_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t crc32_update(uint32_t crc, const void *data, size_t bytes) {
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

#endif
