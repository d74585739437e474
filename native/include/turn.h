/* A turn: one thread works at a time, and those who wait for the result of the turn under way are woken together when
   it has ended. Whoever then finds his own wish fulfilled takes no lock at all: that is what makes a group commit cheap. */
#ifndef EOSLOG_TURN_H
#define EOSLOG_TURN_H

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    pthread_mutex_t lock;
    uint32_t round;   /* Rises after each turn. */
    uint32_t waiting; /* Threads that sleep on it, or are about to. */
} Turn;

static inline void turn_init(Turn *turn) {
    pthread_mutex_init(&turn->lock, NULL);
    turn->round = 0;
    turn->waiting = 0;
}

static inline void turn_destroy(Turn *turn) { pthread_mutex_destroy(&turn->lock); }

static inline void turn_take(Turn *turn) { pthread_mutex_lock(&turn->lock); }

static inline int turn_try(Turn *turn) { return pthread_mutex_trylock(&turn->lock) == 0; }

static inline uint32_t turn_round(const Turn *turn) { return __atomic_load_n(&turn->round, __ATOMIC_SEQ_CST); }

/* The round rises after the lock is free: who looked at the round, and then found the lock taken, will see it rise. */
static inline void turn_end(Turn *turn) {
    pthread_mutex_unlock(&turn->lock);
    __atomic_add_fetch(&turn->round, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&turn->waiting, __ATOMIC_SEQ_CST) != 0)
        syscall(SYS_futex, &turn->round, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Sleep until the round is another one than the given. May return early. */
static inline void turn_wait(Turn *turn, uint32_t round) {
    __atomic_add_fetch(&turn->waiting, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &turn->round, FUTEX_WAIT_PRIVATE, round, NULL, NULL, 0);
    __atomic_sub_fetch(&turn->waiting, 1, __ATOMIC_SEQ_CST);
}

#endif
