/* Acquire loads and release stores of counts that readers follow without a lock, and of marks that say what is to be done. Why each
   order is enough: docs/decisions/0017-memory-order.md. */
#ifndef EOSLOG_ATOMICS_H
#define EOSLOG_ATOMICS_H

#include <stdint.h>

static inline int32_t load_acquire_32(const int32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static inline void store_release_32(int32_t *at, int32_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* Between what shared memory says and the change of files that it announces; and between a look at files and one at what
   announces their change. So who finds a file changed finds it announced, whatever the kernel's own locks order. */
static inline void before_files(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

static inline void after_files(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

/* Clear a mark; whether it was set. What its setter stored before is seen from here on. */
static inline int take_mark(int *mark) { return __atomic_exchange_n(mark, 0, __ATOMIC_ACQ_REL); }

/* Set a mark after all that was stored before: who takes it sees that. */
static inline void set_mark(int *mark) { __atomic_store_n(mark, 1, __ATOMIC_RELEASE); }

static inline int64_t load_acquire_64(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static inline void store_release_64(int64_t *at, int64_t value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* Of a map that is found without the lock which it was made under. */
static inline uint8_t *load_acquire_map(uint8_t *const *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

static inline void store_release_map(uint8_t **at, uint8_t *map) { __atomic_store_n(at, map, __ATOMIC_RELEASE); }

static inline void add_64(int64_t *at, int64_t change) { __atomic_add_fetch(at, change, __ATOMIC_RELAXED); }

#endif
