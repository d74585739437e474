/* Preloaded into a process: numbers the calls that change files below a folder, and dies before one.

   numbered_arm(folder, die_at) begins to count; with die_at > 0 the process kills itself just before the
   call of that number, from 1. numbered_count() says how many there were. A process that was forked goes
   on counting for itself. What is stored through a map is no call: it happens between two of them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_bytes;
static long die_at;
static atomic_long calls;

void numbered_arm(const char *below, long number) {
    snprintf(folder, sizeof folder, "%s", below);
    folder_bytes = strlen(folder);
    die_at = number;
    atomic_store(&calls, 0);
}

long numbered_count(void) { return atomic_load(&calls); }

static void count(const char *path) {
    if (folder_bytes == 0 || strncmp(path, folder, folder_bytes) != 0)
        return;
    if (atomic_fetch_add(&calls, 1) + 1 == die_at)
        kill(getpid(), SIGKILL);
}

static void count_file(int fd) {
    char link[64], path[PATH_MAX];
    ssize_t size;
    if (folder_bytes == 0)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0)
        return;
    path[size] = 0;
    count(path);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        REAL(name); \
        if (flags & O_CREAT) { \
            va_list arguments; \
            va_start(arguments, flags); \
            mode = va_arg(arguments, mode_t); \
            va_end(arguments); \
        } \
        if ((flags & O_ACCMODE) != O_RDONLY) \
            count(path); \
        return real(path, flags, mode); \
    }

#define OF_PATH(name) \
    int name(const char *path) { \
        REAL(name); \
        count(path); \
        return real(path); \
    }

#define OF_PATHS(name) \
    int name(const char *from, const char *to) { \
        REAL(name); \
        count(to); \
        return real(from, to); \
    }

#define OF_FILE(name) \
    int name(int fd) { \
        REAL(name); \
        count_file(fd); \
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

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    count(path);
    return real(path, mode);
}

int unlinkat(int fd, const char *path, int flags) {
    REAL(unlinkat);
    count_file(fd);
    return real(fd, path, flags);
}

int ftruncate(int fd, off_t bytes) {
    REAL(ftruncate);
    count_file(fd);
    return real(fd, bytes);
}

int ftruncate64(int fd, off64_t bytes) {
    REAL(ftruncate64);
    count_file(fd);
    return real(fd, bytes);
}

int posix_fallocate(int fd, off_t from, off_t bytes) {
    REAL(posix_fallocate);
    count_file(fd);
    return real(fd, from, bytes);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(write);
    count_file(fd);
    return real(fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    REAL(pwrite);
    count_file(fd);
    return real(fd, data, bytes, at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    REAL(pwrite64);
    count_file(fd);
    return real(fd, data, bytes, at);
}

int msync(void *map, size_t bytes, int flags) {
    REAL(msync);
    count(folder);
    return real(map, bytes, flags);
}
