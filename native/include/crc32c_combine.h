/* The CRC-32C of two pieces from the checksums of each: a multiplication of polynomials modulo that
   of CRC-32C, so that bytes which were summed up once need not be read again. */
#ifndef EOSLOG_CRC32C_COMBINE_H
#define EOSLOG_CRC32C_COMBINE_H

#include <stdint.h>

#include "crc32c_table.h"

/* a times b. Reflected: the highest bit is the coefficient of x to the 0. */
static inline uint32_t crc32c_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b >> 1) ^ ((b & 1u) ? CRC32C_POLYNOMIAL_REFLECTED : 0u);
    }
    return product;
}

/* The checksum of some bytes, whose own is `crc`, and of `next_bytes` after them, whose own is
   `next_crc`. */
static inline uint32_t crc32c_combine(uint32_t crc, uint32_t next_crc, uint64_t next_bytes) {
    uint32_t power = 0x00800000u; /* x to the 8: moves the first checksum by one byte. */
    for (; next_bytes != 0; next_bytes >>= 1) {
        if (next_bytes & 1u) crc = crc32c_multiply(power, crc);
        power = crc32c_multiply(power, power);
    }
    return crc ^ next_crc;
}

#endif
