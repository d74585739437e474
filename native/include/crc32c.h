/* CRC-32C (Castagnoli): the fastest implementation that this CPU has, chosen when the process
   runs, so that one build serves every machine. Include it in one module only: it holds the
   choice and the tables. crc32c_prepare() comes first, from one thread. */
#ifndef EOSLOG_CRC32C_H
#define EOSLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#include "crc32c_arm.h"
#include "crc32c_table.h"
#include "crc32c_x86.h"

typedef uint32_t (*crc32c_function_t)(uint32_t crc, const uint8_t *data, size_t bytes);

/* In the order of speed; one that the CPU or the build does not have has no function. */
enum { CRC32C_TABLE, CRC32C_ARMV8, CRC32C_SSE42, CRC32C_VPCLMULQDQ, CRC32C_IMPLEMENTATION_COUNT };

static const char *const CRC32C_NAMES[CRC32C_IMPLEMENTATION_COUNT] = {"table", "armv8", "sse4.2",
                                                                      "vpclmulqdq"};

static crc32c_function_t crc32c_functions[CRC32C_IMPLEMENTATION_COUNT];
static crc32c_function_t crc32c_fastest;
static int crc32c_fastest_index;

static void crc32c_prepare(void) {
    crc32c_table_prepare();
    crc32c_functions[CRC32C_TABLE] = crc32c_by_table;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (crc32c_cpu_has_sse42()) crc32c_functions[CRC32C_SSE42] = crc32c_by_sse42;
    if (crc32c_cpu_has_vpclmulqdq()) crc32c_functions[CRC32C_VPCLMULQDQ] = crc32c_by_vpclmulqdq;
#elif defined(__aarch64__) && defined(__linux__)
    if (crc32c_cpu_has_armv8()) crc32c_functions[CRC32C_ARMV8] = crc32c_by_armv8;
#endif
    for (int index = 0; index < CRC32C_IMPLEMENTATION_COUNT; index++)
        if (crc32c_functions[index] != NULL) crc32c_fastest_index = index;
    crc32c_fastest = crc32c_functions[crc32c_fastest_index];
}

static inline uint32_t crc32c_update(uint32_t crc, const uint8_t *data, size_t bytes) {
    return crc32c_fastest(crc, data, bytes);
}

static inline int crc32c_chosen(void) { return crc32c_fastest_index; }

static inline int crc32c_is_available(int index) {
    return index >= 0 && index < CRC32C_IMPLEMENTATION_COUNT && crc32c_functions[index] != NULL;
}

static inline uint32_t crc32c_run(int index, uint32_t crc, const uint8_t *data, size_t bytes) {
    return crc32c_functions[index](crc, data, bytes);
}

static inline const char *crc32c_name(int index) {
    return index >= 0 && index < CRC32C_IMPLEMENTATION_COUNT ? CRC32C_NAMES[index] : NULL;
}

#endif
