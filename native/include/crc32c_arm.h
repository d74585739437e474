/* CRC-32C on 64-bit ARM: by the CRC instructions, which ARMv8.0 leaves optional. */
#ifndef EOSLOG_CRC32C_ARM_H
#define EOSLOG_CRC32C_ARM_H

#if defined(__aarch64__) && defined(__linux__)
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1ul << 7)
#endif

#if defined(__clang__)
#define CRC32C_TARGET_ARMV8 __attribute__((target("crc")))
#else
#define CRC32C_TARGET_ARMV8 __attribute__((target("+crc")))
#endif

/* In assembler text: not every compiler declares the intrinsics outside of -march=...+crc. */
CRC32C_TARGET_ARMV8
static inline uint32_t crc32c_armv8_word(uint32_t crc, uint64_t word) {
    __asm__("crc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}

CRC32C_TARGET_ARMV8
static inline uint32_t crc32c_armv8_byte(uint32_t crc, uint8_t byte) {
    __asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}

CRC32C_TARGET_ARMV8
static uint32_t crc32c_by_armv8(uint32_t crc, const uint8_t *data, size_t bytes) {
    crc = ~crc;
    for (; bytes >= 8; data += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
#endif
        crc = crc32c_armv8_word(crc, word);
    }
    for (; bytes > 0; data++, bytes--) crc = crc32c_armv8_byte(crc, *data);
    return ~crc;
}

static int crc32c_cpu_has_armv8(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#endif
#endif
