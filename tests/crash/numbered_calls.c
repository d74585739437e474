/* Preloaded into a process: numbers what changes files below a folder, and dies before one of these changes.

   numbered_arm(folder, die_at) begins to count; with die_at > 0 the process kills itself just before the
   change of that number, from 1. numbered_count() says how many there were; numbered_trace(fd) has a line
   written for each: what it is, and of which file. A process that was forked goes on counting for itself.

   Changes are calls and, in the build with EOSLOG_CRASH_POINTS, stores through a map, of which native/ tells
   by numbered_store (include/crash_point.h). In any other build stores happen between two calls. */

#define _GNU_SOURCE
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../real_call.h"

static char folder[PATH_MAX];
static size_t folder_bytes;
static long die_at;
static atomic_long calls;
static int trace = -1;

void numbered_arm(const char *below, long number) {
    snprintf(folder, sizeof folder, "%s", below);
    folder_bytes = strlen(folder);
    die_at = number;
    atomic_store(&calls, 0);
}

long numbered_count(void) { return atomic_load(&calls); }

void numbered_trace(int fd) { trace = fd; }

/* Whether this one is the change to die before. */
static int is_last(const char *what, const char *path) {
    char line[PATH_MAX + 64];
    if (trace >= 0) {
        int bytes = snprintf(line, sizeof line, "%s\t%s\n", what, path);
        syscall(SYS_write, trace, line, (size_t)bytes);
    }
    return atomic_fetch_add(&calls, 1) + 1 == die_at;
}

static void die(void) { kill(getpid(), SIGKILL); }

static void count(const char *what, const char *path) {
    if (folder_bytes != 0 && strncmp(path, folder, folder_bytes) == 0 && is_last(what, path + folder_bytes))
        die();
}

void numbered_store(const char *what) {
    if (folder_bytes != 0 && is_last(what, ""))
        die();
}

/* What was just stored was not stored to its end, or not from its beginning; there were zeros. */
void numbered_torn(const char *what, unsigned char *at, size_t bytes) {
    if (folder_bytes == 0)
        return;
    if (is_last(what, "")) {
        memset(at + bytes / 2, 0, bytes - bytes / 2);
        die();
    }
    if (is_last(what, "")) {
        memset(at, 0, bytes / 2);
        die();
    }
}

static void count_file(const char *what, int fd) {
    char link[64], path[PATH_MAX];
    ssize_t size;
    if (folder_bytes == 0)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0)
        return;
    path[size] = 0;
    count(what, path);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        REAL(name); \
        READ_MODE(mode, flags) \
        if (flags & (O_CREAT | O_TRUNC)) \
            count("create", path); \
        return real(path, flags, mode); \
    }

#define OF_PATH(name) \
    int name(const char *path) { \
        REAL(name); \
        count("unlink", path); \
        return real(path); \
    }

#define OF_PATHS(name) \
    int name(const char *from, const char *to) { \
        REAL(name); \
        count(#name, to); \
        return real(from, to); \
    }

#define OF_FILE(name) \
    int name(int fd) { \
        REAL(name); \
        count_file("sync", fd); \
        return real(fd); \
    }

OPEN(open)
OPEN(open64)
OF_PATH(unlink)
OF_PATH(rmdir)
OF_PATHS(rename)
OF_PATHS(link)
OF_FILE(fsync)
OF_FILE(fdatasync)

/* A sync that the kernel makes meanwhile: before it is begun, and before it is waited for. */
long syscall(long number, ...) {
    static __thread int begun = -1;
    READ_SYSCALL(number, arguments, fd);
    if (number == SYS_io_getevents)
        fd = begun;
    if (fd >= 0)
        count_file("sync", fd);
    if (number == SYS_io_submit || number == SYS_io_getevents)
        begun = number == SYS_io_submit ? fd : -1;
    return REAL_SYSCALL(number, arguments);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    count("create", path);
    return real(path, mode);
}

int unlinkat(int fd, const char *path, int flags) {
    REAL(unlinkat);
    if (fd == AT_FDCWD)
        count("unlink", path);
    else
        count_file("unlink", fd);
    return real(fd, path, flags);
}

int ftruncate(int fd, off_t bytes) {
    REAL(ftruncate);
    count_file("truncate", fd);
    return real(fd, bytes);
}

int ftruncate64(int fd, off64_t bytes) {
    REAL(ftruncate64);
    count_file("truncate", fd);
    return real(fd, bytes);
}

int posix_fallocate(int fd, off_t from, off_t bytes) {
    REAL(posix_fallocate);
    count_file("reserve", fd);
    return real(fd, from, bytes);
}

int posix_fallocate64(int fd, off64_t from, off64_t bytes) {
    REAL(posix_fallocate64);
    count_file("reserve", fd);
    return real(fd, from, bytes);
}

int fallocate(int fd, int mode, off_t from, off_t bytes) {
    REAL(fallocate);
    count_file("reserve", fd);
    return real(fd, mode, from, bytes);
}

int utimensat(int fd, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat);
    count("time", path);
    return real(fd, path, times, flags);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(write);
    count_file("write", fd);
    return real(fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    REAL(pwrite);
    count_file("write", fd);
    return real(fd, data, bytes, at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    REAL(pwrite64);
    count_file("write", fd);
    return real(fd, data, bytes, at);
}

ssize_t writev(int fd, const struct iovec *pieces, int piece_count) {
    REAL(writev);
    count_file("write", fd);
    return real(fd, pieces, piece_count);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int piece_count, off_t at) {
    REAL(pwritev);
    count_file("write", fd);
    return real(fd, pieces, piece_count, at);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int piece_count, off64_t at) {
    REAL(pwritev64);
    count_file("write", fd);
    return real(fd, pieces, piece_count, at);
}

ssize_t sendfile(int to, int from, off_t *at, size_t bytes) {
    REAL(sendfile);
    count_file("write", to);
    return real(to, from, at, bytes);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t bytes) {
    REAL(sendfile64);
    count_file("write", to);
    return real(to, from, at, bytes);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    REAL(copy_file_range);
    count_file("write", to);
    return real(from, from_at, to, to_at, bytes, flags);
}

int msync(void *map, size_t bytes, int flags) {
    REAL(msync);
    count("sync", folder);
    return real(map, bytes, flags);
}
