/* Places where a process may die that a later opener can tell apart: one before each store into memory that other processes, or a
   later opener, look at. In the test build (EOSLOG_CRASH_POINTS) a preloaded library counts them, together with
   the calls that change files, and the process dies at the one of a given number; in any other build nothing is left of them.
   There is none at the taking of a lock, and none in front of words that only people read: who dies with a lock dies at the first
   store under it, or as it gives it back. Calls need none: the library stands in front of them. See tests/crash/numbered_calls.c
   and docs/crash-points.md. */
#ifndef EOSLOG_CRASH_POINT_H
#define EOSLOG_CRASH_POINT_H

#ifdef EOSLOG_CRASH_POINTS
#include <stddef.h>

/* Of the library, which the compiler cannot look into: what was stored before is stored. Without it, NULL. */
extern void numbered_store(const char *what) __attribute__((weak));
extern void numbered_torn(const char *what, unsigned char *at, size_t bytes) __attribute__((weak));

#define CRASH_POINT(what) (numbered_store != NULL ? numbered_store(what) : (void)0)
/* After a copy of a few bytes: two places, at which one half of it or the other was not stored yet. */
#define CRASH_POINTS_TORN(what, at, bytes) (numbered_torn != NULL ? numbered_torn((what), (at), (bytes)) : (void)0)
#else
#define CRASH_POINT(what) ((void)(what))
#define CRASH_POINTS_TORN(what, at, bytes) ((void)(what), (void)(at), (void)(bytes))
#endif

#endif
