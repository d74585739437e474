/* The calls to the operating system that a log needs, with EINTR handled and errno answered.
   Every function answers 0 or the errno; none of them allocates. */
#ifndef EOSLOG_MAPPED_IO_H
#define EOSLOG_MAPPED_IO_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "new_file.h"

/* A regular file or, to read, a directory; ENODEV else: a pipe would be waited for, a device read without an end. */
static inline int eos_open(const char *path, int create, int read_only, int *fd_out) {
    int flags = O_CLOEXEC | O_NONBLOCK | (read_only ? O_RDONLY : O_RDWR) | (create ? O_CREAT : 0);
    struct stat status;
    int error = 0;
    int fd;
    do {
        fd = eos_open_owned(path, flags, 0600);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0 || fstat(fd, &status) != 0) {
        error = errno;
    } else if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
        error = ENODEV;
    }
    if (error != 0 && fd >= 0) {
        close(fd);
        fd = -1;
    }
    *fd_out = fd;
    return error;
}

/* For writing, and only if the name is that of the file itself: what it names may be made a segment. */
static inline int eos_open_staged(const char *path, int *fd_out) {
    int fd;
    do {
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    } while (fd < 0 && errno == EINTR);
    *fd_out = fd;
    return fd < 0 ? errno : 0;
}

static inline int eos_file_bytes(int fd, int64_t *bytes_out, int64_t *modified_ms_out) {
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return errno;
    }
    *bytes_out = (int64_t)status.st_size;
    *modified_ms_out = (int64_t)status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1000000;
    return 0;
}

/* The length alone, for where it is asked again and again: costs a third of the above. Nothing goes by the place that the
   descriptor has in its file, which changes. */
static inline int eos_file_length(int fd, int64_t *bytes_out) {
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < 0) {
        return errno;
    }
    *bytes_out = (int64_t)end;
    return 0;
}

static inline int eos_pwrite_all(int fd, const uint8_t *from, size_t bytes, int64_t position_bytes) {
    while (bytes > 0) {
        ssize_t done = pwrite(fd, from, bytes, (off_t)position_bytes);
        if (done < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        from += done;
        bytes -= (size_t)done;
        position_bytes += done;
    }
    return 0;
}

/* Write parts one after the other, as one call where the system takes all; `parts` is used up. */
static inline int eos_pwritev_all(int fd, struct iovec *parts, int count, int64_t position_bytes) {
    while (count > 0) {
        ssize_t done = pwritev(fd, parts, count, (off_t)position_bytes);
        if (done < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        position_bytes += done;
        while (count > 0 && (size_t)done >= parts->iov_len) {
            done -= (ssize_t)parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + done;
            parts->iov_len -= (size_t)done;
        }
    }
    return 0;
}

/* Read up to so many bytes; fewer only where the file ends before them. */
static inline int eos_pread_upto(int fd, uint8_t *to, size_t bytes, int64_t position_bytes, size_t *done_bytes) {
    *done_bytes = 0;
    while (*done_bytes < bytes) {
        ssize_t done = pread(fd, to + *done_bytes, bytes - *done_bytes, (off_t)(position_bytes + (int64_t)*done_bytes));
        if (done < 0) {
            if (errno == EINTR) {
                continue;
            }
            return errno;
        }
        if (done == 0) {
            break;
        }
        *done_bytes += (size_t)done;
    }
    return 0;
}

static inline int eos_pread_all(int fd, uint8_t *to, size_t bytes, int64_t position_bytes) {
    size_t done_bytes = 0;
    int result = eos_pread_upto(fd, to, bytes, position_bytes, &done_bytes);
    if (result == 0 && done_bytes < bytes) {
        return ENODATA;              /* The file ends before the bytes asked for. */
    }
    return result;
}

static inline int eos_truncate(int fd, int64_t bytes) {
    int result;
    do {
        result = ftruncate(fd, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

/* Reserve [from, upto) on disk and fill it with zeros, fill_bytes at a time (at most 1 MiB), so that a full
   disk shows here as ENOSPC and never as SIGBUS. The page cache gets folios of that size: large ones make
   bulk appends fast; small ones keep a sync small, as a store through the map makes its whole folio dirty.
   With 0 nothing is filled: what is to be written there whole need not go to the disk twice. */
static inline int eos_reserve(int fd, int64_t from, int64_t upto, int64_t fill_bytes) {
    static const uint8_t zeros[1 << 20];
    const int64_t step_max = fill_bytes > (int64_t)sizeof zeros ? (int64_t)sizeof zeros : fill_bytes;
    int result;
    do {
        result = posix_fallocate(fd, (off_t)from, (off_t)(upto - from));
    } while (result == EINTR);
    if (result != 0) {
        return result;
    }
    while (from < upto && fill_bytes > 0) {
        size_t step = (size_t)(upto - from < step_max ? upto - from : step_max);
        result = eos_pwrite_all(fd, zeros, step, from);
        if (result != 0) {
            return result;
        }
        from += (int64_t)step;
    }
    return 0;
}

/* 1 where an open file is in memory alone, and a sync of it makes nothing durable. Each sync asks, by its own descriptor: a store may
   lie on several file systems, and the call costs little beside a disk's sync. */
static inline int eos_is_in_memory(int fd) {
    struct statfs found;
    if (fstatfs(fd, &found) != 0) {
        return 0;
    }
    return (uint32_t)found.f_type == 0x01021994 /* tmpfs */ || (uint32_t)found.f_type == 0x858458F6 /* ramfs */;
}

static inline int eos_sync_data(int fd) { return !eos_is_in_memory(fd) && fdatasync(fd) != 0 ? errno : 0; }

static inline int eos_sync_file(int fd) { return !eos_is_in_memory(fd) && fsync(fd) != 0 ? errno : 0; }

static inline int eos_sync_directory(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result;
    if (fd < 0) {
        return errno;
    }
    result = eos_sync_file(fd);
    close(fd);
    return result;
}

static inline int eos_map(int fd, size_t bytes, int writable, uint8_t **map_out) {
    void *map = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    *map_out = map == MAP_FAILED ? NULL : (uint8_t *)map;
    return map == MAP_FAILED ? errno : 0;
}

/* A map whose stores stay in this process: the file keeps its bytes. Memory is taken for the pages that are stored to. */
static inline int eos_map_apart(int fd, size_t bytes, uint8_t **map_out) {
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    *map_out = map == MAP_FAILED ? NULL : (uint8_t *)map;
    return map == MAP_FAILED ? errno : 0;
}

/* Give pages of such a map memory of their own, and read the file into it: another process may cut the file, and a look at a page
   beyond its end would end this process. What the file lacks by now is zeros. */
static inline int eos_read_apart(int fd, uint8_t *map, int64_t from, int64_t upto) {
    size_t done_bytes;
    void *own = mmap(
        map + from, (size_t)(upto - from), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return own == MAP_FAILED ? errno : eos_pread_upto(fd, map + from, (size_t)(upto - from), from, &done_bytes);
}

/* Give that memory back: the pages are the file's again, which has what was read of it. */
static inline void eos_end_apart(int fd, uint8_t *map, int64_t from, int64_t upto) {
    (void)mmap(
        map + from, (size_t)(upto - from), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd, (off_t)from);
}

/* How many of the bytes from `from` on there are up to the last one that is not 0. */
static inline int eos_bytes_before_zeros(int fd, int64_t from, int64_t bytes, int64_t *found_bytes) {
    uint8_t piece[4096];
    while (bytes > 0) {
        size_t piece_bytes = bytes < (int64_t)sizeof piece ? (size_t)bytes : sizeof piece;
        size_t done_bytes;
        int error = eos_pread_upto(fd, piece, piece_bytes, from + bytes - (int64_t)piece_bytes, &done_bytes);
        if (error != 0) {
            return error;
        }
        bytes -= (int64_t)(piece_bytes - done_bytes);
        while (done_bytes > 0 && piece[done_bytes - 1] == 0) {
            done_bytes--;
            bytes--;
        }
        if (done_bytes > 0) {
            break;
        }
    }
    *found_bytes = bytes;
    return 0;
}

/* Copy bytes of a file to the beginning of another one; fewer if it ends before. */
static inline int eos_copy_bytes(int from_fd, int64_t from, int64_t bytes, int to_fd) {
    uint8_t piece[65536];
    int64_t copied = 0;
    while (copied < bytes) {
        size_t piece_bytes = bytes - copied < (int64_t)sizeof piece ? (size_t)(bytes - copied) : sizeof piece;
        size_t done_bytes;
        int error = eos_pread_upto(from_fd, piece, piece_bytes, from + copied, &done_bytes);
        if (error == 0 && done_bytes > 0) {
            error = eos_pwrite_all(to_fd, piece, done_bytes, copied);
        }
        if (error != 0 || done_bytes == 0) {
            return error;
        }
        copied += (int64_t)done_bytes;
    }
    return 0;
}

/* The bounds of the kernel's pages around a position of a file: of 4 KiB on x86-64; of 4, 16 or 64 KiB on ARM. */
static inline int64_t eos_page_start(int64_t position) { return position & -(int64_t)sysconf(_SC_PAGESIZE); }

static inline int64_t eos_page_end(int64_t position) { return eos_page_start(position + (int64_t)sysconf(_SC_PAGESIZE) - 1); }

/* A hint: have these pages of a shared map present and writable, by one call and not by a fault for each. Linux 5.14; older
   kernels refuse it, and nothing is lost. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
static inline void eos_populate(uint8_t *map, size_t bytes) { (void)madvise(map, bytes, MADV_POPULATE_WRITE); }

/* Where the first hole of [from, upto) begins, `upto` if there is none, `from` if the file system does not tell. A store to
   a page of a hole needs room on the disk, and has no way to say that there is none. */
static inline int64_t eos_first_hole(int fd, int64_t from, int64_t upto) {
    off_t hole = lseek(fd, (off_t)from, SEEK_HOLE);
    if (hole < (off_t)from)
        return from;
    return hole < (off_t)upto ? (int64_t)hole : upto;
}

/* Have the next sync write these bytes of a shared map. After a sync that failed the kernel takes the pages for written: they
   could be read, and would be gone with the power all the same. Each page's first touch is a store, here: after a look it would
   be mapped a second time to be written to. */
static inline void eos_dirty_again(uint8_t *map, size_t bytes) {
    const size_t last_byte_of_page = (size_t)sysconf(_SC_PAGESIZE) - 1;
    size_t at;
    for (at = 0; at < bytes; at = (at | last_byte_of_page) + 1)
        __atomic_fetch_or(map + at, 0, __ATOMIC_RELAXED);
}

/* Whether a page of a map that is not in memory is read alone: the kernel otherwise reads what stands around it too, which may be
   megabytes. */
static inline void eos_read_pages_alone(uint8_t *map, size_t bytes, int alone) {
    (void)madvise(map, bytes, alone ? MADV_RANDOM : MADV_NORMAL);
}

/* Have these pages of a map of a file read, from the start of a page on: in pieces which the kernel reads whole, however little it
   reads ahead by itself. */
static inline void eos_read_pages(uint8_t *map, size_t bytes) {
    const size_t piece_max = 128 << 10;
    size_t at;
    for (at = 0; at < bytes; at += piece_max)
        (void)madvise(map + at, bytes - at < piece_max ? bytes - at : piece_max, MADV_WILLNEED);
}

/* A file lock that says "mapped here", and one that only a file without such a lock gives. Both go with the descriptor. */
static inline int eos_share(int fd) {
    int result;
    do {
        result = flock(fd, LOCK_SH | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

static inline int eos_have_alone(int fd) {
    int result;
    do {
        result = flock(fd, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? errno : 0;
}

/* 1 where a map keeps the file that it was made of, with that file's lock, when the descriptor is closed. A map on an overlay keeps
   another file. File systems that are not named here count as such. */
static inline int eos_maps_keep_locks(const char *directory) {
    struct statfs found;
    if (statfs(directory, &found) != 0) {
        return 0;
    }
    switch ((uint32_t)found.f_type) {
    case 0xEF53:                     /* ext2, ext3, ext4 */
    case 0x58465342:                 /* XFS */
    case 0x9123683E:                 /* Btrfs */
    case 0xF2F52010:                 /* F2FS */
    case 0x01021994:                 /* tmpfs */

        return 1;
    default:
        return 0;
    }
}

/* 0 if the path still names the open file; ENOENT if it was removed or moved. */
static inline int eos_is_at(int fd, const char *path) {
    struct stat opened;
    struct stat found;
    if (fstat(fd, &opened) != 0 || stat(path, &found) != 0) {
        return errno;
    }
    return opened.st_ino == found.st_ino && opened.st_dev == found.st_dev ? 0 : ENOENT;
}

static inline int eos_is_link(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0 && S_ISLNK(found.st_mode);
}

/* If the path is a symbolic link, have a copy of the file that it leads to in its place: what is written next is not that file's. */
static inline int eos_own_link(const char *path) {
    uint8_t data[1 << 14];
    size_t done = sizeof data;
    int64_t position = 0;
    int from = -1, to = -1;
    int error;
    if (!eos_is_link(path)) {
        return 0;
    }
    error = eos_open(path, 0, 1, &from);
    if (error == 0 && unlink(path) != 0) {
        error = errno;
    }
    if (error == 0) {
        error = eos_open(path, 1, 0, &to);
    }
    while (error == 0 && done == sizeof data) {
        error = eos_pread_upto(from, data, sizeof data, position, &done);
        if (error == 0) {
            error = eos_pwrite_all(to, data, done, position);
        }
        position += (int64_t)done;
    }
    if (from >= 0) {
        close(from);
    }
    if (to >= 0) {
        close(to);
    }
    return error;
}

/* Which file a path names, and when that changed last, by its content or otherwise. Where there is a text that it holds, it counts
   as unchanged as long as it holds that. */
typedef struct WatchedFile {
    const char *path, *text;
    uint64_t device, inode;
    int64_t changed_s, changed_ns;
} WatchedFile;

/* Whether a path names the file that it did, as it was; with zeros, none. */
static inline int eos_is_unchanged(const WatchedFile *watched) {
    struct stat found;
    uint8_t data[256];
    size_t bytes = 0;
    int fd = -1;
    if (stat(watched->path, &found) != 0) {
        return errno == ENOENT && watched->inode == 0;
    }
    if ((uint64_t)found.st_dev == watched->device && (uint64_t)found.st_ino == watched->inode &&
        found.st_ctim.tv_sec == watched->changed_s && found.st_ctim.tv_nsec == watched->changed_ns) {
        return 1;
    }
    if (watched->text == NULL || eos_open(watched->path, 0, 1, &fd) != 0) {
        return 0;
    }
    if (eos_pread_upto(fd, data, sizeof data, 0, &bytes) != 0) {
        bytes = 0;
    }
    close(fd);
    return memmem(data, bytes, watched->text, strlen(watched->text)) != NULL;
}

/* How many names an open file has; 0 or an errno. */
static inline int eos_count_names(int fd, int64_t *names_out) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return errno;
    }
    *names_out = (int64_t)found.st_nlink;
    return 0;
}

#define EOS_FILE_LOST "a file of the log was deleted or truncated by another program"

/* ENOENT if no name leads to the open file any more, ENODATA if it ends before so many bytes; else 0 or an errno. */
static inline int eos_still_holds(int fd, int64_t bytes) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return errno;
    }
    return found.st_nlink == 0 ? ENOENT : found.st_size < (off_t)bytes ? ENODATA : 0;
}

static inline int eos_link(const char *from, const char *to) { return link(from, to) != 0 ? errno : 0; }

static inline int eos_rename(const char *from, const char *to) { return rename(from, to) != 0 ? errno : 0; }

/* Which file is open; 0 or an errno. */
static inline int eos_identity_of(int fd, uint64_t *device, uint64_t *inode) {
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return errno;
    }
    *device = (uint64_t)found.st_dev;
    *inode = (uint64_t)found.st_ino;
    return 0;
}

/* Which file or directory a path names now; 0 or an errno. */
static inline int eos_identity(const char *path, uint64_t *device, uint64_t *inode) {
    struct stat found;
    if (stat(path, &found) != 0) {
        return errno;
    }
    *device = (uint64_t)found.st_dev;
    *inode = (uint64_t)found.st_ino;
    return 0;
}

/* 0 if a path names this file, and it holds so many bytes; ENODATA if not; else an errno. */
static inline int eos_still_named(const char *path, uint64_t device, uint64_t inode, int64_t bytes) {
    struct stat found;
    if (stat(path, &found) != 0) {
        return errno;
    }
    return (uint64_t)found.st_dev == device && (uint64_t)found.st_ino == inode && found.st_size >= (off_t)bytes ? 0 : ENODATA;
}

/* Let go of a mapping's file, and keep its addresses: from now on they hold private zeros. */
static inline void eos_unmap_file(void *map, size_t bytes) {
    (void)mmap(map, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* Zeroed memory that costs nothing until it is touched. */
static inline uint8_t *eos_map_anonymous(size_t bytes) {
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return map == MAP_FAILED ? NULL : (uint8_t *)map;
}

static inline int64_t eos_clock_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The clock of the day, which may be set: for what is written down. */
static inline int64_t eos_now_ms(void) { return eos_clock_ms(CLOCK_REALTIME); }

/* The clock that only goes on, as Python's time.monotonic(): for what is waited for. */
static inline int64_t eos_elapsed_ms(void) { return eos_clock_ms(CLOCK_MONOTONIC); }

#endif
