/* Preloaded into a process: writes down all that happens to the files below a folder, in its order.

   trace_begin(folder, file) begins; what is there then is on the disk. Each call that changes a file, a name or
   what is synced becomes an event of the file; what was stored through a map becomes writes of the sectors that
   differ, found before each event. trace_mark(text) puts a text among the events. trace_end() ends it.
   The events are those of one process; all its threads take turns. No sync reaches the disk.

   An event: its kind (1 byte), then four numbers of 8 bytes (inode, position or size, bytes of the first text,
   bytes of the second), then the two texts: names relative to the folder, or data. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../real_call.h"

#define SECTOR_BYTES 512
#define FILES_MAX 4096

typedef struct File {
    uint64_t inode;
    int fd;         /* Of its own: the file can be read when it has no name any more. */
    int is_mapped;  /* For writing, once: it may change at any time. */
    off_t size;
    char *known;    /* What the events say that it holds. */
    size_t room;
} File;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_bytes;
static FILE *out;
static File files[FILES_MAX];
static int file_count;

static int real_open(const char *path, int flags) {
    static int (*real)(const char *, int, ...);
    if (real == NULL)
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return real(path, flags | O_CLOEXEC, 0);
}

/* The name below the folder; NULL if it is not there, or nothing is traced. */
static const char *below(const char *path) {
    if (out == NULL || strncmp(path, folder, folder_bytes) != 0)
        return NULL;
    if (path[folder_bytes] == 0)
        return "";
    return path[folder_bytes] == '/' ? path + folder_bytes + 1 : NULL;
}

static const char *name_of(int fd, char *path) {
    char link[64];
    ssize_t size;
    if (out == NULL)
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, PATH_MAX - 1);
    if (size <= 0)
        return NULL;
    path[size] = 0;
    return below(path);
}

static void event(char kind, uint64_t inode, uint64_t number, const void *first, size_t first_bytes,
                  const void *second, size_t second_bytes) {
    uint64_t numbers[4] = {inode, number, first_bytes, second_bytes};
    if (out == NULL)
        return; /* It ended while another thread was on its way here. */
    if (fputc(kind, out) == EOF || fwrite(numbers, sizeof numbers, 1, out) != 1 ||
        fwrite(first, 1, first_bytes, out) != first_bytes || fwrite(second, 1, second_bytes, out) != second_bytes)
        abort();
}

static void names_event(char kind, uint64_t inode, const char *first, const char *second) {
    event(kind, inode, 0, first, strlen(first), second, strlen(second));
}

static File *file_with(uint64_t inode) {
    int index;
    for (index = 0; index < file_count; index++)
        if (files[index].inode == inode)
            return &files[index];
    return NULL;
}

/* Write down what changed since the last look. */
static void look_at(File *file) {
    static char now[1 << 20];
    struct stat status;
    off_t at, size;
    if (fstat(file->fd, &status) != 0)
        abort();
    size = status.st_size;
    if (size != file->size) {
        event('s', file->inode, (uint64_t)size, "", 0, "", 0);
        if ((size_t)size > file->room) {
            file->room = (size_t)size * 2;
            file->known = realloc(file->known, file->room);
            if (file->known == NULL)
                abort();
        }
        if (size > file->size)
            memset(file->known + file->size, 0, (size_t)(size - file->size));
        file->size = size;
    }
    for (at = 0; at < size; at += (off_t)sizeof now) {
        ssize_t got = pread(file->fd, now, sizeof now, at);
        ssize_t from = 0;
        if (got <= 0)
            break;
        while (from < got) {
            ssize_t begin = from, bytes = got - from < SECTOR_BYTES ? got - from : SECTOR_BYTES;
            char *known = file->known + at;
            while (bytes > 0 && memcmp(now + from, known + from, (size_t)bytes) != 0) {
                from += bytes;
                bytes = got - from < SECTOR_BYTES ? got - from : SECTOR_BYTES;
            }
            if (from > begin) {
                event('w', file->inode, (uint64_t)(at + begin), now + begin, (size_t)(from - begin), "", 0);
                memcpy(known + begin, now + begin, (size_t)(from - begin));
            }
            from += bytes;
        }
    }
}

static void look_at_maps(void) {
    int index;
    for (index = 0; index < file_count; index++)
        if (files[index].is_mapped)
            look_at(&files[index]);
}

/* The open file, made known if it was not. The caller holds the lock. */
static File *file_of(int fd, const char *name) {
    char path[PATH_MAX + 64];
    struct stat status;
    File *file;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
        return NULL;
    file = file_with(status.st_ino);
    if (file != NULL)
        return file;
    if (file_count == FILES_MAX)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file = &files[file_count];
    memset(file, 0, sizeof *file);
    file->inode = status.st_ino;
    file->fd = real_open(path, O_RDONLY);
    if (file->fd < 0)
        abort();
    file_count++;
    names_event('c', file->inode, name, "");
    look_at(file);
    return file;
}

static File *file_at(const char *path) {
    const char *name = below(path);
    int fd = name == NULL ? -1 : real_open(path, O_RDONLY);
    File *file = fd < 0 ? NULL : file_of(fd, name);
    if (fd >= 0)
        close(fd);
    return file;
}

static void begin_folder(const char *path);

void trace_begin(const char *traced, const char *file) {
    pthread_mutex_lock(&lock); /* Other threads may be at work. */
    snprintf(folder, sizeof folder, "%s", traced);
    folder_bytes = strlen(folder);
    out = fopen(file, "wbe");
    if (out == NULL)
        abort();
    begin_folder(folder);
    event('b', 0, 0, "", 0, "", 0);
    pthread_mutex_unlock(&lock);
}

void trace_mark(const char *text) {
    pthread_mutex_lock(&lock);
    if (out != NULL) {
        look_at_maps();
        event('m', 0, 0, text, strlen(text), "", 0);
    }
    pthread_mutex_unlock(&lock);
}

void trace_end(void) {
    pthread_mutex_lock(&lock);
    look_at_maps();
    if (out == NULL || fclose(out) != 0)
        abort();
    out = NULL;
    pthread_mutex_unlock(&lock);
}

#include <dirent.h>

static void begin_folder(const char *path) {
    DIR *listing = opendir(path);
    struct dirent *entry;
    if (listing == NULL)
        return;
    while ((entry = readdir(listing)) != NULL) {
        char child[PATH_MAX + 300];
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
        if (lstat(child, &status) != 0)
            continue;
        if (S_ISDIR(status.st_mode)) {
            names_event('d', status.st_ino, below(child), "");
            begin_folder(child);
        } else if (S_ISREG(status.st_mode)) {
            File *known = file_with(status.st_ino);
            if (known != NULL)
                names_event('c', known->inode, below(child), "");
            else
                file_at(child);
        }
    }
    closedir(listing);
}

/* The calls. Each looks at the maps first: what was stored before it came before it. */

#define BEGIN \
    pthread_mutex_lock(&lock); \
    look_at_maps()
#define END pthread_mutex_unlock(&lock)

#define OPEN(call) \
    int call(const char *path, int flags, ...) { \
        mode_t mode = 0; \
        const char *name = below(path); \
        int fd; \
        REAL(call); \
        READ_MODE(mode, flags) \
        if (name == NULL || (flags & (O_CREAT | O_TRUNC)) == 0) \
            return real(path, flags, mode); \
        BEGIN; \
        fd = real(path, flags, mode); \
        if (fd >= 0) { \
            File *file = file_of(fd, name); \
            if (file != NULL) { \
                names_event('c', file->inode, name, ""); \
                look_at(file); \
            } \
        } \
        END; \
        return fd; \
    }

OPEN(open)
OPEN(open64)

#define MAP(call, offset_t) \
    void *call(void *at, size_t bytes, int protection, int flags, int fd, offset_t offset) { \
        char path[PATH_MAX]; \
        const char *name; \
        void *map; \
        REAL(call); \
        map = real(at, bytes, protection, flags, fd, offset); \
        if (map == MAP_FAILED || fd < 0 || (flags & MAP_TYPE) != MAP_SHARED || (protection & PROT_WRITE) == 0) \
            return map; \
        name = name_of(fd, path); \
        if (name != NULL && strstr(name, "lock.mdb") == NULL) { \
            File *file; \
            pthread_mutex_lock(&lock); \
            file = file_of(fd, name); \
            if (file != NULL) \
                file->is_mapped = 1; \
            END; \
        } \
        return map; \
    }

MAP(mmap, off_t)
MAP(mmap64, off64_t)

/* A write: of what the call left in the file. With O_DSYNC it is on the disk when the call returns. */
#define WRITTEN(result_t, call_text) \
    char path[PATH_MAX]; \
    const char *name = name_of(fd, path); \
    result_t result; \
    if (name == NULL) \
        return call_text; \
    BEGIN; \
    result = call_text; \
    { \
        int error = errno, flags = fcntl(fd, F_GETFL); \
        File *file = file_of(fd, name); \
        if (file != NULL) { \
            look_at(file); \
            if (flags >= 0 && (flags & O_DSYNC) == O_DSYNC) \
                event('y', file->inode, 0, "", 0, "", 0); \
        } \
        errno = error; \
    } \
    END; \
    return result

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(write);
    WRITTEN(ssize_t, real(fd, data, bytes));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    WRITTEN(ssize_t, real(fd, parts, count));
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    REAL(pwrite);
    WRITTEN(ssize_t, real(fd, data, bytes, at));
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    REAL(pwrite64);
    WRITTEN(ssize_t, real(fd, data, bytes, at));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev);
    WRITTEN(ssize_t, real(fd, parts, count, at));
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64);
    WRITTEN(ssize_t, real(fd, parts, count, at));
}

int ftruncate(int fd, off_t bytes) {
    REAL(ftruncate);
    WRITTEN(int, real(fd, bytes));
}

int ftruncate64(int fd, off64_t bytes) {
    REAL(ftruncate64);
    WRITTEN(int, real(fd, bytes));
}

int posix_fallocate(int fd, off_t from, off_t bytes) {
    REAL(posix_fallocate);
    WRITTEN(int, real(fd, from, bytes));
}

int posix_fallocate64(int fd, off64_t from, off64_t bytes) {
    REAL(posix_fallocate64);
    WRITTEN(int, real(fd, from, bytes));
}

static int synced(int fd) {
    char path[PATH_MAX];
    const char *name = name_of(fd, path);
    struct stat status;
    if (name == NULL || fstat(fd, &status) != 0)
        return 0;
    BEGIN;
    if (S_ISDIR(status.st_mode)) {
        event('y', status.st_ino, 1, name, strlen(name), "", 0);
    } else {
        File *file = file_of(fd, name);
        if (file != NULL) {
            look_at(file);
            event('y', file->inode, 0, "", 0, "", 0);
        }
    }
    END;
    return 0;
}

int fsync(int fd) { return synced(fd); }

int fdatasync(int fd) { return synced(fd); }

/* A sync that the kernel makes meanwhile: what comes between the two events is not in it. */
long syscall(long number, ...) {
    static __thread uint64_t begun; /* The inode of this thread's; 0: none. */
    char path[PATH_MAX];
    const char *name;
    READ_SYSCALL(number, arguments, fd);
    name = fd < 0 ? NULL : name_of(fd, path);
    if (name != NULL) {
        File *file;
        BEGIN;
        file = file_of(fd, name);
        if (file == NULL)
            abort();
        look_at(file);
        begun = file->inode;
        event('g', begun, 0, "", 0, "", 0);
        END;
        return 1;
    }
    if (number == SYS_io_getevents && begun != 0) {
        BEGIN;
        event('e', begun, 0, "", 0, "", 0);
        END;
        begun = 0;
        memset((void *)arguments[3], 0, sizeof(struct io_event));
        return 1;
    }
    return REAL_SYSCALL(number, arguments);
}

/* All of the file system: every file, and every name. */
int syncfs(int fd) {
    int index;
    (void)fd;
    BEGIN;
    for (index = 0; index < file_count; index++)
        look_at(&files[index]);
    event('a', 0, 0, "", 0, "", 0);
    END;
    return 0;
}

int rename(const char *from, const char *to) {
    const char *name_from = below(from), *name_to = below(to);
    File *file;
    int result;
    REAL(rename);
    if (name_from == NULL || name_to == NULL)
        return real(from, to);
    BEGIN;
    file = file_at(from);
    result = real(from, to);
    if (result == 0) {
        if (file == NULL)
            names_event('v', 0, name_from, name_to); /* A folder, with all that is in it. */
        else
            names_event('r', file->inode, name_from, name_to);
    }
    END;
    return result;
}

int link(const char *from, const char *to) {
    const char *name_from = below(from), *name_to = below(to);
    File *file;
    int result;
    REAL(link);
    if (name_from == NULL || name_to == NULL)
        return real(from, to);
    BEGIN;
    file = file_at(from);
    result = real(from, to);
    if (result == 0 && file != NULL)
        names_event('c', file->inode, name_to, "");
    END;
    return result;
}

int unlink(const char *path) {
    const char *name = below(path);
    int result;
    REAL(unlink);
    if (name == NULL)
        return real(path);
    BEGIN;
    file_at(path);
    result = real(path);
    if (result == 0)
        names_event('u', 0, name, "");
    END;
    return result;
}

int rmdir(const char *path) {
    const char *name = below(path);
    int result;
    REAL(rmdir);
    if (name == NULL)
        return real(path);
    BEGIN;
    result = real(path);
    if (result == 0)
        names_event('u', 0, name, "");
    END;
    return result;
}

int unlinkat(int fd, const char *path, int flags) {
    char directory[PATH_MAX], whole[2 * PATH_MAX];
    const char *name;
    int result;
    REAL(unlinkat);
    if (path[0] == '/')
        return (flags & AT_REMOVEDIR) != 0 ? rmdir(path) : unlink(path);
    if (fd < 0 || name_of(fd, directory) == NULL)
        return real(fd, path, flags);
    snprintf(whole, sizeof whole, "%s/%s", directory, path);
    name = below(whole);
    BEGIN;
    if ((flags & AT_REMOVEDIR) == 0)
        file_at(whole);
    result = real(fd, path, flags);
    if (result == 0)
        names_event('u', 0, name, "");
    END;
    return result;
}

int mkdir(const char *path, mode_t mode) {
    const char *name = below(path);
    struct stat status;
    int result;
    REAL(mkdir);
    if (name == NULL)
        return real(path, mode);
    BEGIN;
    result = real(path, mode);
    if (result == 0 && stat(path, &status) == 0)
        names_event('d', status.st_ino, name, "");
    END;
    return result;
}
