/* Acquire loads and release stores of 32-bit counts that readers follow without a lock. */
#ifndef EOSLOG_ATOMICS_H
#define EOSLOG_ATOMICS_H

#include <stdint.h>

static inline int32_t load_acquire_32(const int32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static inline void store_release_32(int32_t *at, int32_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline int64_t load_acquire_64(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static inline void store_release_64(int64_t *at, int64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static inline void add_64(int64_t *at, int64_t change) { __atomic_add_fetch(at, change, __ATOMIC_RELAXED); }

#endif
