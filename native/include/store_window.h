/* Bytes on their way past the caches: gathered in a small window that stays in the first-level
   cache, looked at there once (their checksum), and stored as whole cache lines. An ordinary store
   first reads the line it changes from memory; this one does not, so that two writers on one memory
   bus hinder each other less. What was stored is not in a cache afterwards. */
#ifndef EOSLOG_STORE_WINDOW_H
#define EOSLOG_STORE_WINDOW_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crash_point.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { STORE_LINE_BYTES = 64, STORE_WINDOW_BYTES = 8192 };

/* `bytes` lies to the lines of the target as the target does: its first line is the one at `line`. */
typedef struct {
    uint8_t bytes[STORE_WINDOW_BYTES] __attribute__((aligned(STORE_LINE_BYTES)));
    uint8_t *line; /* Where the window's first line goes. */
    size_t begin;  /* Of the first line, the bytes before are others'. */
    size_t used;
} store_window_t;

static inline void store_window_open(store_window_t *window, uint8_t *to) {
    window->begin = (size_t)((uintptr_t)to & (STORE_LINE_BYTES - 1));
    window->used = window->begin;
    window->line = to - window->begin;
}

static inline void store_lines(uint8_t *to, const uint8_t *from, size_t bytes) {
#if defined(__x86_64__)
    for (size_t at = 0; at < bytes; at += STORE_LINE_BYTES) {
        const __m128i *line = (const __m128i *)(const void *)(from + at);
        __m128i first = _mm_load_si128(line), second = _mm_load_si128(line + 1);
        __m128i third = _mm_load_si128(line + 2), fourth = _mm_load_si128(line + 3);
        __m128i *target = (__m128i *)(void *)(to + at);
        _mm_stream_si128(target, first);
        _mm_stream_si128(target + 1, second);
        _mm_stream_si128(target + 2, third);
        _mm_stream_si128(target + 3, fourth);
    }
#else
    memcpy(to, from, bytes);
#endif
}

/* Store the whole lines, and keep the bytes after them. */
static inline void store_window_drain(store_window_t *window) {
    size_t whole = window->used & ~(size_t)(STORE_LINE_BYTES - 1);
    size_t from = 0;
    if (whole == 0) return;
    CRASH_POINT("batch: lines");
    if (window->begin > 0) {
        memcpy(window->line + window->begin, window->bytes + window->begin, STORE_LINE_BYTES - window->begin);
        from = STORE_LINE_BYTES;
    }
    store_lines(window->line + from, window->bytes + from, whole - from);
    window->used -= whole;
    memcpy(window->bytes, window->bytes + whole, window->used);
    window->line += whole;
    window->begin = 0;
}

/* Store all that is left; on return it stands before every later store. */
static inline void store_window_close(store_window_t *window) {
    store_window_drain(window);
    CRASH_POINT("batch: last line");
    memcpy(window->line + window->begin, window->bytes + window->begin, window->used - window->begin);
    window->begin = window->used;
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
