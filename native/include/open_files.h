/* How many files a process may have open now, and that a child of a fork has locks of its own. */
#ifndef EOSLOG_OPEN_FILES_H
#define EOSLOG_OPEN_FILES_H

#include <pthread.h>
#include <stdint.h>
#include <sys/resource.h>

/* The soft limit, which a program may change at any time. */
static inline int64_t open_files_allowed(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return INT64_MAX;
    return (int64_t)limit.rlim_cur;
}

#endif
