/* Preloaded into a process: makes a call to the operating system fail, by its kind and number.

   failing_arm(folder, pattern, kind, number, error, manner) begins to count the calls of a kind that have to do with
   files below a folder, and whose path there matches a pattern of the shell ("": all); processes that this one forked,
   and that armed too, count together. The manner says what becomes of that with the number, from 1. ONCE: it fails with
   this errno. AGAIN: so do all that follow. OVERLAP: it hangs until another one of the same file has failed, two or
   three seconds at most, and returns what it should; failing_overlapped() says how often that was, in this thread.
   failing_begin() sets the counts to 0. Of the kind EVERY no call fails, and failing_counted(kind) says how many there
   were of each other one.
   failing_count() says how many there were, failing_hits() how many of them failed. failing_resynced() is the name
   of a log whose sync was called again after it had failed; else NULL. failing_reopened() says that the logs are
   recovered from here on, and may be synced again. failing_disarm() ends it. Of the kind MEMORY are the allocations
   that the modules of eoslog make themselves, of the kind CHANGE all calls that change a file or make one: a disk that
   takes nothing more. Of the kind BEGIN are those that have the disk begin with a range before its sync, of the kind
   QUEUE those by which the kernel takes a sync that it makes meanwhile.
   failing_hold(kind, part) has the next write at a place (WRITE), or the next sync (SYNC), of a file with this in its
   path stand still once it is done, until failing_release(); failing_held() says that it does.
   failing_refuse_queued() has the kernel take no sync that it makes meanwhile, whatever else is armed.
   clock_move(ms) moves the wall clock, as this process sees it. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../real_call.h"

enum Kind { NONE, OPEN, MAP, TRUNCATE, RESERVE, WRITE, SYNC, RENAME, LINK, UNLINK, MAKE_FOLDER, MEMORY, CHANGE, BEGIN, QUEUE, EVERY };

enum Manner { ONCE, AGAIN, OVERLAP };

/* What the processes that this one forks share with it. */
static struct {
    atomic_long calls, hits, counted[EVERY];
    atomic_int hangs; /* A call waits for another one to fail, of this file. */
    char file[PATH_MAX];
} *shared;
static __thread long overlapped;

#define HANGS_MS_MAX 2500
#define SEEN_MS 20 /* From a call's failure until the caller knows of it, and more. */

static char folder[PATH_MAX], pattern[PATH_MAX];
static size_t folder_bytes;
static int armed_kind, armed_manner, armed_error;
static long armed_number;
static char failed_log[PATH_MAX], resynced[PATH_MAX];
static atomic_llong clock_moved_ms;
static char held_part[PATH_MAX];
static int held_kind;
static atomic_int holds; /* HOLD_NONE, ... */
enum { HOLD_NONE, HOLD_NEXT, HOLD_HELD };

void failing_hold(int kind, const char *part) {
    held_kind = kind;
    snprintf(held_part, sizeof held_part, "%s", part);
    atomic_store(&holds, HOLD_NEXT);
}

static atomic_int queued_refused;
void failing_refuse_queued(void) { atomic_store(&queued_refused, 1); }

void failing_release(void) { atomic_store(&holds, HOLD_NONE); }
int failing_held(void) { return atomic_load(&holds) == HOLD_HELD; }

__attribute__((constructor)) static void share(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
}

void failing_begin(void) {
    int kind;
    for (kind = 0; kind < EVERY; kind++)
        atomic_store(&shared->counted[kind], 0);
    atomic_store(&shared->calls, 0);
    atomic_store(&shared->hits, 0);
    atomic_store(&shared->hangs, 0);
}

void failing_arm(const char *below, const char *files, int kind, long number, int error, int manner) {
    snprintf(folder, sizeof folder, "%s", below);
    snprintf(pattern, sizeof pattern, "%s", files);
    folder_bytes = strlen(folder);
    armed_number = number;
    armed_error = error;
    armed_manner = manner;
    failed_log[0] = resynced[0] = 0;
    armed_kind = kind;
}

void failing_reopened(void) { failed_log[0] = 0; }
void failing_disarm(void) { armed_kind = NONE; }
long failing_count(void) { return atomic_load(&shared->calls); }
long failing_counted(int kind) { return atomic_load(&shared->counted[kind]); }
long failing_overlapped(void) { return overlapped; }
long failing_hits(void) { return atomic_load(&shared->hits); }
const char *failing_resynced(void) { return resynced[0] == 0 ? NULL : resynced; }

static const char *path_of(int fd, char *path) {
    char link[64];
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, PATH_MAX - 1);
    path[size > 0 ? size : 0] = 0;
    return path;
}

/* Stand still, if this is the call that is to. */
static void hold(const char *path) {
    int next = HOLD_NEXT;
    if (strstr(path, held_part) != NULL && atomic_compare_exchange_strong(&holds, &next, HOLD_HELD))
        while (atomic_load(&holds) == HOLD_HELD)
            usleep(100);
}

static void hold_at(int kind, int fd) {
    char path[PATH_MAX];
    int error = errno;
    if (atomic_load(&holds) == HOLD_NEXT && kind == held_kind)
        hold(path_of(fd, path));
    errno = error;
}

static int is_change(int kind) { return kind >= TRUNCATE && kind <= MAKE_FOLDER; }

/* Whether calls of the kind are counted now. */
static int is_armed(int kind) {
    return armed_kind == kind || armed_kind == EVERY || (armed_kind == CHANGE && is_change(kind));
}

/* Whether the path is that of one of the files. */
static int is_chosen(const char *path) {
    if (strncmp(path, folder, folder_bytes) != 0)
        return 0;
    return pattern[0] == 0 || (path[folder_bytes] == '/' && fnmatch(pattern, path + folder_bytes + 1, 0) == 0);
}

static void wait_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

/* Wait until another call has failed, and whoever made it knows. */
static void hang(const char *path) {
    int waited_ms;
    snprintf(shared->file, sizeof shared->file, "%s", path);
    atomic_store(&shared->hangs, 1);
    for (waited_ms = 0; waited_ms < HANGS_MS_MAX && atomic_load(&shared->hangs); waited_ms++)
        wait_ms(1);
    if (atomic_exchange(&shared->hangs, 0))
        return;
    wait_ms(SEEN_MS);
    overlapped++;
}

/* Whether the call of this number fails, or hangs. */
static int is_chosen_number(long number, const char *path) {
    if (armed_manner != OVERLAP)
        return number == armed_number || (armed_manner == AGAIN && armed_number > 0 && number > armed_number);
    if (number == armed_number)
        hang(path);
    return number > armed_number && armed_number > 0 && atomic_load(&shared->hangs) != 0 &&
           strcmp(path, shared->file) == 0 && atomic_exchange(&shared->hangs, 0) != 0;
}

/* Whether this call is to fail; errno says why. */
static int fails(int kind, const char *path) {
    if (!is_armed(kind) || !is_chosen(path))
        return 0;
    if (armed_kind == EVERY) {
        atomic_fetch_add(&shared->counted[kind], 1);
        if (is_change(kind))
            atomic_fetch_add(&shared->counted[CHANGE], 1);
        return 0;
    }
    if (!is_chosen_number(atomic_fetch_add(&shared->calls, 1) + 1, path))
        return 0;
    atomic_fetch_add(&shared->hits, 1);
    errno = armed_error;
    return 1;
}

static int fails_at(int kind, int fd) {
    char path[PATH_MAX];
    return is_armed(kind) && fails(kind, path_of(fd, path));
}

/* The same for memory that a module of eoslog asks for; what Python and LMDB ask for is theirs. */
static int memory_fails(const void *caller) {
    Dl_info module;
    if ((armed_kind != MEMORY && armed_kind != EVERY) || dladdr(caller, &module) == 0 || module.dli_fname == NULL)
        return 0;
    if (strstr(module.dli_fname, "/native/") == NULL && strstr(module.dli_fname, "/bindings/") == NULL)
        return 0;
    return fails(MEMORY, folder);
}

/* Not by REAL: looking a name up allocates. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

void *malloc(size_t bytes) {
    return memory_fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return memory_fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes) {
    return memory_fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        REAL(name); \
        READ_MODE(mode, flags) \
        if (armed_kind >= CHANGE && is_armed(CHANGE) && (flags & O_ACCMODE) != O_RDONLY && fails(CHANGE, path)) \
            return -1; \
        return fails(OPEN, path) ? -1 : real(path, flags, mode); \
    }

OPENING(open)
OPENING(open64)

DIR *opendir(const char *path) {
    REAL(opendir);
    return fails(OPEN, path) ? NULL : real(path);
}

#define MAPPING(name, offset_t) \
    void *name(void *at, size_t bytes, int protection, int flags, int fd, offset_t offset) { \
        REAL(name); \
        if (fd >= 0 ? fails_at(MAP, fd) : (flags & MAP_FIXED) == 0 && memory_fails(__builtin_return_address(0))) \
            return MAP_FAILED; \
        return real(at, bytes, protection, flags, fd, offset); \
    }

MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)

#define OF_FILE(kind, result_t, name, parameters, arguments) \
    result_t name parameters { \
        REAL(name); \
        return fails_at(kind, fd) ? -1 : real arguments; \
    }

OF_FILE(TRUNCATE, int, ftruncate, (int fd, off_t bytes), (fd, bytes))
OF_FILE(TRUNCATE, int, ftruncate64, (int fd, off64_t bytes), (fd, bytes))
OF_FILE(WRITE, ssize_t, write, (int fd, const void *data, size_t bytes), (fd, data, bytes))
OF_FILE(WRITE, ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))

#define WRITING_AT(name, offset_t) \
    ssize_t name(int fd, const void *data, size_t bytes, offset_t at) { \
        ssize_t written; \
        REAL(name); \
        written = fails_at(WRITE, fd) ? -1 : real(fd, data, bytes, at); \
        hold_at(WRITE, fd); \
        return written; \
    }

WRITING_AT(pwrite, off_t)
WRITING_AT(pwrite64, off64_t)

OF_FILE(WRITE, ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
OF_FILE(WRITE, ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))

/* This one answers the errno. */
int posix_fallocate(int fd, off_t from, off_t bytes) {
    REAL(posix_fallocate);
    return fails_at(RESERVE, fd) ? armed_error : real(fd, from, bytes);
}

int posix_fallocate64(int fd, off64_t from, off64_t bytes) {
    REAL(posix_fallocate64);
    return fails_at(RESERVE, fd) ? armed_error : real(fd, from, bytes);
}

static int sync_fails(int fd) {
    char path[PATH_MAX];
    size_t bytes;
    if (!is_armed(SYNC))
        return 0;
    path_of(fd, path);
    if (failed_log[0] != 0 && strcmp(path, failed_log) == 0)
        snprintf(resynced, sizeof resynced, "%s", path);
    if (!fails(SYNC, path))
        return 0;
    bytes = strlen(path);
    if (bytes > 4 && strcmp(path + bytes - 4, ".log") == 0)
        snprintf(failed_log, sizeof failed_log, "%s", path);
    errno = armed_error;
    return 1;
}

int fsync(int fd) {
    REAL(fsync);
    return sync_fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    int result;
    REAL(fdatasync);
    result = sync_fails(fd) ? -1 : real(fd);
    hold_at(SYNC, fd);
    return result;
}

/* A sync that the kernel makes meanwhile: what it came to is said where it is waited for. */
long syscall(long number, ...) {
    static __thread int begun_error = -1; /* -1: no sync was begun. */
    static __thread int begun_fd;
    long result;
    READ_SYSCALL(number, arguments, fd);
    if ((number == SYS_io_setup || fd >= 0) && fails(QUEUE, folder))
        return -1;
    if (fd >= 0 && atomic_load(&queued_refused)) {
        errno = EAGAIN;
        return -1;
    }
    if (fd >= 0) {
        begun_error = sync_fails(fd) ? armed_error : 0;
        begun_fd = fd;
    }
    result = REAL_SYSCALL(number, arguments);
    if (number == SYS_io_getevents && result == 1 && begun_error > 0)
        ((struct io_event *)arguments[3])->res = -begun_error;
    if (number == SYS_io_getevents) {
        hold_at(SYNC, begun_fd);
        begun_error = -1;
    }
    return result;
}

int sync_file_range(int fd, off64_t at, off64_t bytes, unsigned int flags) {
    REAL(sync_file_range);
    return fails_at(BEGIN, fd) ? -1 : real(fd, at, bytes, flags);
}

int syncfs(int fd) {
    REAL(syncfs);
    return sync_fails(fd) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(RENAME, to) ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    return fails(LINK, to) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails(UNLINK, path) ? -1 : real(path);
}

int rmdir(const char *path) {
    REAL(rmdir);
    return fails(UNLINK, path) ? -1 : real(path);
}

int unlinkat(int fd, const char *path, int flags) {
    REAL(unlinkat);
    return (path[0] == '/' ? fails(UNLINK, path) : fails_at(UNLINK, fd)) ? -1 : real(fd, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(MAKE_FOLDER, path) ? -1 : real(path, mode);
}

void clock_move(long long ms) { atomic_store(&clock_moved_ms, ms); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    long long moved_ms = atomic_load(&clock_moved_ms);
    int result;
    REAL(clock_gettime);
    result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME)
        now->tv_sec += (time_t)(moved_ms / 1000);
    return result;
}
