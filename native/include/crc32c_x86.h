/* CRC-32C on x86-64: by the `crc32` instruction, and by folding with VPCLMULQDQ on AVX-512.
   Each function is compiled for its own instruction set, and called only where the CPU has it. */
#ifndef EOSLOG_CRC32C_X86_H
#define EOSLOG_CRC32C_X86_H

#include "crc32c_constants.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_TARGET_SSE42 __attribute__((target("sse4.2,pclmul")))
#define CRC32C_TARGET_AVX512 __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))

enum {
    CRC32C_THREE_WAY_BYTES_MIN = 96,  /* Below, joining costs more than it saves. */
    CRC32C_LANE_WORDS_MAX = CRC32C_JOIN_WORDS_MAX / 2,
    CRC32C_FOLD_BYTES_MIN = 256       /* Below, the vectors' start and end cost more. */
};

static inline uint64_t crc32c_load_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

CRC32C_TARGET_SSE42
static inline uint64_t crc32c_moved(uint64_t crc, uint32_t multiplier) {
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(
        _mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)multiplier), 0x00));
}

/* Takes and gives the inverted checksum, like the instruction. */
CRC32C_TARGET_SSE42
static inline uint64_t crc32c_serial(uint64_t crc, const uint8_t *data, size_t bytes) {
    for (; bytes >= 8; data += 8, bytes -= 8) crc = _mm_crc32_u64(crc, crc32c_load_word(data));
    if (bytes & 4) {
        uint32_t half;
        memcpy(&half, data, sizeof half);
        crc = _mm_crc32_u32((uint32_t)crc, half);
        data += 4;
    }
    if (bytes & 2) {
        uint16_t quarter;
        memcpy(&quarter, data, sizeof quarter);
        crc = _mm_crc32_u16((uint32_t)crc, quarter);
        data += 2;
    }
    if (bytes & 1) crc = _mm_crc32_u8((uint32_t)crc, *data);
    return crc;
}

/* The instruction takes 3 cycles, but one can start in each: three lanes side by side. */
CRC32C_TARGET_SSE42
static uint32_t crc32c_by_sse42(uint32_t crc, const uint8_t *data, size_t bytes) {
    uint64_t first = (uint32_t)~crc;
    while (bytes >= CRC32C_THREE_WAY_BYTES_MIN) {
        size_t words = bytes / 24;
        if (words > CRC32C_LANE_WORDS_MAX) words = CRC32C_LANE_WORDS_MAX;
        const size_t lane_bytes = words * 8;
        const uint8_t *const last_word = data + lane_bytes - 8;
        uint64_t second = 0, third = 0;
        for (; data < last_word; data += 8) {
            first = _mm_crc32_u64(first, crc32c_load_word(data));
            second = _mm_crc32_u64(second, crc32c_load_word(data + lane_bytes));
            third = _mm_crc32_u64(third, crc32c_load_word(data + 2 * lane_bytes));
        }
        first = _mm_crc32_u64(first, crc32c_load_word(data));
        second = _mm_crc32_u64(second, crc32c_load_word(data + lane_bytes));
        first = crc32c_moved(first, CRC32C_JOIN[2 * words]);
        second = crc32c_moved(second, CRC32C_JOIN[words]);
        /* The last word of the third lane takes the two others in. */
        first = _mm_crc32_u64(third, crc32c_load_word(data + 2 * lane_bytes) ^ first ^ second);
        data += 2 * lane_bytes + 8;
        bytes -= 3 * lane_bytes;
    }
    return ~(uint32_t)crc32c_serial(first, data, bytes);
}

#define CRC32C_FOLD_BY(bits) \
    _mm512_broadcast_i32x4(_mm_set_epi64x(CRC32C_FOLD_##bits##_SECOND, CRC32C_FOLD_##bits##_FIRST))

CRC32C_TARGET_AVX512
static inline __m512i crc32c_load_vector(const uint8_t *at) { return _mm512_loadu_si512(at); }

/* Move each 128 bits of `vector` by the constants' distance, and add what stands there. */
CRC32C_TARGET_AVX512
static inline __m512i crc32c_fold(__m512i vector, __m512i constants, __m512i there) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(vector, constants, 0x00),
                                     _mm512_clmulepi64_epi128(vector, constants, 0x11), there, 0x96);
}

/* The four quarters of a vector in one, and that as an inverted checksum. */
CRC32C_TARGET_AVX512
static inline uint64_t crc32c_reduced(__m512i vector) {
    const __m512i constants = _mm512_set_epi64(
        0, 0, CRC32C_FOLD_128_SECOND, CRC32C_FOLD_128_FIRST, CRC32C_FOLD_256_SECOND,
        CRC32C_FOLD_256_FIRST, CRC32C_FOLD_384_SECOND, CRC32C_FOLD_384_FIRST);
    const __m512i quarters =
        crc32c_fold(vector, constants, _mm512_maskz_mov_epi64((__mmask8)0xc0, vector));
    const __m256i halves =
        _mm256_xor_si256(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
    const __m128i one =
        _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    return _mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(one)),
                         (uint64_t)_mm_extract_epi64(one, 1));
}

/* Eight vectors while 512 bytes are left, then four, two, one: each half folds into the other,
   and what is left over is taken in at the width that fits. */
CRC32C_TARGET_AVX512
static uint32_t crc32c_by_vpclmulqdq(uint32_t crc, const uint8_t *data, size_t bytes) {
    if (bytes < CRC32C_FOLD_BYTES_MIN) return crc32c_by_sse42(crc, data, bytes);
    const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc));
    __m512i v4, v5, v6, v7;
    if (bytes >= 512) {
        const __m512i by_4096 = CRC32C_FOLD_BY(4096), by_2048 = CRC32C_FOLD_BY(2048);
        __m512i v0 = _mm512_xor_si512(start, crc32c_load_vector(data));
        __m512i v1 = crc32c_load_vector(data + 64), v2 = crc32c_load_vector(data + 128);
        __m512i v3 = crc32c_load_vector(data + 192);
        v4 = crc32c_load_vector(data + 256), v5 = crc32c_load_vector(data + 320);
        v6 = crc32c_load_vector(data + 384), v7 = crc32c_load_vector(data + 448);
        for (data += 512, bytes -= 512; bytes >= 512; data += 512, bytes -= 512) {
            v0 = crc32c_fold(v0, by_4096, crc32c_load_vector(data));
            v1 = crc32c_fold(v1, by_4096, crc32c_load_vector(data + 64));
            v2 = crc32c_fold(v2, by_4096, crc32c_load_vector(data + 128));
            v3 = crc32c_fold(v3, by_4096, crc32c_load_vector(data + 192));
            v4 = crc32c_fold(v4, by_4096, crc32c_load_vector(data + 256));
            v5 = crc32c_fold(v5, by_4096, crc32c_load_vector(data + 320));
            v6 = crc32c_fold(v6, by_4096, crc32c_load_vector(data + 384));
            v7 = crc32c_fold(v7, by_4096, crc32c_load_vector(data + 448));
        }
        v4 = crc32c_fold(v0, by_2048, v4), v5 = crc32c_fold(v1, by_2048, v5);
        v6 = crc32c_fold(v2, by_2048, v6), v7 = crc32c_fold(v3, by_2048, v7);
        if (bytes >= 256) {
            v4 = crc32c_fold(v4, by_2048, crc32c_load_vector(data));
            v5 = crc32c_fold(v5, by_2048, crc32c_load_vector(data + 64));
            v6 = crc32c_fold(v6, by_2048, crc32c_load_vector(data + 128));
            v7 = crc32c_fold(v7, by_2048, crc32c_load_vector(data + 192));
            data += 256, bytes -= 256;
        }
    } else {
        v4 = _mm512_xor_si512(start, crc32c_load_vector(data));
        v5 = crc32c_load_vector(data + 64), v6 = crc32c_load_vector(data + 128);
        v7 = crc32c_load_vector(data + 192);
        data += 256, bytes -= 256;
    }
    const __m512i by_1024 = CRC32C_FOLD_BY(1024), by_512 = CRC32C_FOLD_BY(512);
    v6 = crc32c_fold(v4, by_1024, v6), v7 = crc32c_fold(v5, by_1024, v7);
    if (bytes >= 128) {
        v6 = crc32c_fold(v6, by_1024, crc32c_load_vector(data));
        v7 = crc32c_fold(v7, by_1024, crc32c_load_vector(data + 64));
        data += 128, bytes -= 128;
    }
    v7 = crc32c_fold(v6, by_512, v7);
    if (bytes >= 64) {
        v7 = crc32c_fold(v7, by_512, crc32c_load_vector(data));
        data += 64, bytes -= 64;
    }
    return ~(uint32_t)crc32c_serial(crc32c_reduced(v7), data, bytes);
}

static int crc32c_cpu_has_sse42(void) {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

/* The compiler's run-time library also asks whether the system saves the wide registers. */
static int crc32c_cpu_has_vpclmulqdq(void) {
    return crc32c_cpu_has_sse42() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq");
}

#endif
#endif
