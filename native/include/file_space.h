/* Hints about a file that is written from its beginning to its end: space for what comes, and an
   early start of what a sync would have to wait for. */
#ifndef EOSLOG_FILE_SPACE_H
#define EOSLOG_FILE_SPACE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

/* Reserve disk space without changing the file's length. A file system that cannot do it, or has no
   room, is no error: the writes say so. 0 if it was reserved, else an errno. */
static inline int eos_reserve_behind(int fd, int64_t position_bytes, int64_t bytes) {
#ifdef FALLOC_FL_KEEP_SIZE
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)position_bytes, (off_t)bytes) != 0 ? errno : 0;
#else
    (void)fd, (void)position_bytes, (void)bytes;
    return ENOSYS;
#endif
}

/* Have the kernel begin to write a range to disk. Nothing is durable by it, and a failure shows in
   the sync that follows. */
static inline void eos_begin_writeback(int fd, int64_t position_bytes, int64_t bytes) {
#ifdef SYNC_FILE_RANGE_WRITE
    (void)sync_file_range(fd, (off_t)position_bytes, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
#else
    (void)fd, (void)position_bytes, (void)bytes;
#endif
}

#endif
