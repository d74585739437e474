/* Preloaded into a process: keeps a copy of every file below a folder as its last sync left it.

   The copies are what a power cut leaves for certain. SHADOWED is the folder, SHADOW where the copies
   go, under the same names. The names that were in a folder when it was synced are kept beside them,
   and the copies of files that were removed since, or that another one took the name of: until the next
   sync these may come back.
   With DIE_AT the process kills itself just before the call of that number, and with SIGUSR1 at any
   moment. Neither death falls between a call and what is noted of it: a rename, say, is there on both
   sides or on none. No sync reaches the disk: the copies are all that is asked for. */

#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../real_call.h"

static const char *shadowed, *shadow;
static size_t shadowed_bytes;
static long die_at;
static atomic_long calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *die_when_told(void *signals) {
    int got;
    sigwait(signals, &got);
    pthread_mutex_lock(&lock);
    kill(getpid(), SIGKILL);
    return NULL;
}

static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);
static int (*real_link)(const char *, const char *);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);

__attribute__((constructor)) static void begin(void) {
    static sigset_t signals;
    pthread_t thread;
    const char *number = getenv("DIE_AT");
    shadowed = getenv("SHADOWED");
    shadow = getenv("SHADOW");
    shadowed_bytes = shadowed == NULL ? 0 : strlen(shadowed);
    die_at = number == NULL ? 0 : atol(number);
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_link = dlsym(RTLD_NEXT, "link");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    /* All threads come after this one, and have it blocked too. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    if (pthread_create(&thread, NULL, die_when_told, &signals) != 0)
        abort();
}

/* The copy's path; 0 if the file is not below the folder. */
static int shadow_path(const char *path, char *copy) {
    if (shadowed == NULL || strncmp(path, shadowed, shadowed_bytes) != 0
        || (path[shadowed_bytes] != '/' && path[shadowed_bytes] != 0))
        return 0;
    return snprintf(copy, PATH_MAX, "%s%s", shadow, path + shadowed_bytes) < PATH_MAX;
}

static int path_of(int fd, char *path) {
    char link[64];
    ssize_t size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, PATH_MAX - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return 1;
}

/* The caller holds the lock: nobody else is in the midst of a call. */
static void count_call(void) {
    if (die_at != 0 && atomic_fetch_add(&calls, 1) + 1 == die_at)
        kill(getpid(), SIGKILL);
}

static void make_folders(char *path) {
    char *slash;
    for (slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
}

static void copy_file(const char *path, char *copy) {
    static char bytes[1 << 16];
    char building[PATH_MAX + 8];
    struct stat status;
    off_t at = 0;
    int from = open(path, O_RDONLY), to;
    if (from < 0)
        return;
    make_folders(copy);
    snprintf(building, sizeof building, "%s.copying", copy);
    to = open(building, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (;;) {
        ssize_t size = pread(from, bytes, sizeof bytes, at);
        if (size <= 0)
            break;
        if (real_pwrite(to, bytes, (size_t)size, at) != size)
            abort();
        at += size;
    }
    if (fstat(from, &status) == 0 && ftruncate(to, status.st_size) != 0)
        abort();
    close(from);
    close(to);
    if (real_rename(building, copy) != 0)
        abort();
}

/* The folder's names are on the disk: what they stood for before does not come back. */
static void forget_former(const char *copy) {
    char former[PATH_MAX + 264];
    struct dirent *entry;
    DIR *folder = opendir(copy);
    if (folder == NULL)
        return;
    while ((entry = readdir(folder)) != NULL) {
        size_t bytes = strlen(entry->d_name);
        if (bytes > 7 && strcmp(entry->d_name + bytes - 7, ".before") == 0) {
            snprintf(former, sizeof former, "%s/%s", copy, entry->d_name);
            real_unlink(former);
        }
    }
    closedir(folder);
}

static void list_folder(const char *path, char *copy) {
    char building[PATH_MAX + 32], listed[PATH_MAX + 8];
    struct dirent *entry;
    DIR *folder = opendir(path);
    FILE *out;
    if (folder == NULL)
        return;
    snprintf(listed, sizeof listed, "%s/.names", copy);
    snprintf(building, sizeof building, "%s.copying", listed);
    make_folders(building);
    out = fopen(building, "w");
    if (out == NULL)
        abort();
    while ((entry = readdir(folder)) != NULL)
        fprintf(out, "%s\n", entry->d_name);
    fclose(out);
    closedir(folder);
    forget_former(copy);
    if (real_rename(building, listed) != 0)
        abort();
}

static int sync_shadow(int fd) {
    char path[PATH_MAX], copy[PATH_MAX];
    struct stat status;
    if (!path_of(fd, path) || !shadow_path(path, copy) || fstat(fd, &status) != 0)
        return 0;
    pthread_mutex_lock(&lock);
    count_call();
    if (S_ISDIR(status.st_mode))
        list_folder(path, copy);
    else
        copy_file(path, copy);
    pthread_mutex_unlock(&lock);
    return 0;
}

int fsync(int fd) { return sync_shadow(fd); }

int fdatasync(int fd) { return sync_shadow(fd); }

/* A sync that the kernel makes meanwhile: it is done when it was waited for. */
long syscall(long number, ...) {
    static __thread int begun = -1;
    char path[PATH_MAX], copy[PATH_MAX];
    READ_SYSCALL(number, arguments, fd);
    if (fd >= 0 && path_of(fd, path) && shadow_path(path, copy)) {
        begun = fd;
        return 1;
    }
    if (number == SYS_io_getevents && begun >= 0) {
        sync_shadow(begun);
        begun = -1;
        memset((void *)arguments[3], 0, sizeof(struct io_event));
        return 1;
    }
    return REAL_SYSCALL(number, arguments);
}

/* A file opened with O_DSYNC: each write is on the disk when it returns. */
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    char path[PATH_MAX], copy[PATH_MAX];
    ssize_t written;
    int flags = fcntl(fd, F_GETFL), to;
    int is_synced = flags >= 0 && (flags & O_DSYNC) == O_DSYNC;
    if (!is_synced || !path_of(fd, path) || !shadow_path(path, copy))
        return real_pwrite(fd, data, size, at);
    pthread_mutex_lock(&lock);
    count_call();
    written = real_pwrite(fd, data, size, at);
    if (written > 0) {
        make_folders(copy);
        to = open(copy, O_WRONLY | O_CREAT, 0666);
        if (to < 0 || real_pwrite(to, data, (size_t)written, at) != written)
            abort();
        close(to);
    }
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}

int rename(const char *from, const char *to) {
    char copy_from[PATH_MAX], copy_to[PATH_MAX], former[PATH_MAX + 8];
    int result, is_shadowed = shadow_path(from, copy_from) && shadow_path(to, copy_to);
    if (!is_shadowed)
        return real_rename(from, to);
    pthread_mutex_lock(&lock);
    count_call();
    result = real_rename(from, to);
    if (result == 0) {
        make_folders(copy_to);
        snprintf(former, sizeof former, "%s.before", copy_to);
        real_link(copy_to, former); /* The one of before, if there is any; the first since a sync stays. */
        if (real_rename(copy_from, copy_to) != 0)
            real_unlink(copy_to);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path) {
    char copy[PATH_MAX], gone[PATH_MAX + 8];
    int result;
    if (!shadow_path(path, copy))
        return real_unlink(path);
    pthread_mutex_lock(&lock);
    count_call();
    snprintf(gone, sizeof gone, "%s.gone", copy);
    real_rename(copy, gone);
    result = real_unlink(path);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Both names have what was synced under one of them. */
int link(const char *from, const char *to) {
    char copy_from[PATH_MAX], copy_to[PATH_MAX];
    int result;
    if (!shadow_path(from, copy_from) || !shadow_path(to, copy_to))
        return real_link(from, to);
    pthread_mutex_lock(&lock);
    count_call();
    result = real_link(from, to);
    if (result == 0) {
        make_folders(copy_to);
        real_unlink(copy_to);
        real_link(copy_from, copy_to);
    }
    pthread_mutex_unlock(&lock);
    return result;
}
