/* Preloaded into a process: counts the calls that wait for the disk. These are fsync, fdatasync, syncfs, msync
   with MS_SYNC, and each write to a file that was opened with O_DSYNC or O_SYNC, or with RWF_DSYNC or RWF_SYNC;
   and the syncs that the kernel makes meanwhile. */

#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../tests/real_call.h"

static atomic_long syncs;

long sync_count(void) { return atomic_load(&syncs); }

/* O_SYNC contains O_DSYNC. */
static void count_write(int fd, int flags) {
    if ((flags & (RWF_DSYNC | RWF_SYNC)) != 0 || (fcntl(fd, F_GETFL) & O_DSYNC) != 0)
        atomic_fetch_add(&syncs, 1);
}

#define SYNC(name) \
    int name(int fd) { \
        REAL(name); \
        atomic_fetch_add(&syncs, 1); \
        return real(fd); \
    }

SYNC(fsync)
SYNC(fdatasync)
SYNC(syncfs)

long syscall(long number, ...) {
    READ_SYSCALL(number, arguments, fd);
    if (fd >= 0)
        atomic_fetch_add(&syncs, 1);
    return REAL_SYSCALL(number, arguments);
}

int msync(void *at, size_t bytes, int flags) {
    REAL(msync);
    if ((flags & MS_SYNC) != 0)
        atomic_fetch_add(&syncs, 1);
    return real(at, bytes, flags);
}

#define WRITE(name, flags, parameters, arguments) \
    ssize_t name parameters { \
        REAL(name); \
        count_write(fd, flags); \
        return real arguments; \
    }

WRITE(write, 0, (int fd, const void *data, size_t bytes), (fd, data, bytes))
WRITE(writev, 0, (int fd, const struct iovec *parts, int count), (fd, parts, count))
WRITE(pwrite, 0, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
WRITE(pwrite64, 0, (int fd, const void *data, size_t bytes, off64_t at), (fd, data, bytes, at))
WRITE(pwritev, 0, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
WRITE(pwritev64, 0, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
WRITE(pwritev2, flags, (int fd, const struct iovec *parts, int count, off_t at, int flags),
      (fd, parts, count, at, flags))
WRITE(pwritev64v2, flags, (int fd, const struct iovec *parts, int count, off64_t at, int flags),
      (fd, parts, count, at, flags))
