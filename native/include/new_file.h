/* Files and directories that belong to the owner of the directory they are in, also where root makes them: the user of a
   store could not open what root left in it otherwise. */
#ifndef EOSLOG_NEW_FILE_H
#define EOSLOG_NEW_FILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* 1 if the process is root's and another user or group has the directory that the path is in. */
static inline int eos_is_anothers(const char *path, struct stat *directory_out) {
    char directory[PATH_MAX];
    const char *slash;
    size_t bytes;
    if (geteuid() != 0) {
        return 0;
    }
    slash = strrchr(path, '/');
    bytes = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (bytes >= sizeof directory) {
        return 0;
    }
    memcpy(directory, bytes == 0 ? "." : path, bytes == 0 ? 1 : bytes);
    directory[bytes == 0 ? 1 : bytes] = '\0';
    return stat(directory, directory_out) == 0 && (directory_out->st_uid != 0 || directory_out->st_gid != getegid());
}

/* Where the file system has no owners, or root may not name them, the file stays root's. */
static inline void eos_give(int fd, const struct stat *directory) {
    int error = errno;
    if (fchown(fd, directory->st_uid, directory->st_gid) != 0) {
        errno = error;
    }
}

/* As open(2). Only a file that this call made changes its owner: never one that a link led to. */
static inline int eos_open_owned(const char *path, int flags, mode_t mode) {
    struct stat directory;
    int chance, fd;
    if ((flags & O_CREAT) && eos_is_anothers(path, &directory)) {
        for (chance = 0; chance < 8; chance++) {
            fd = open(path, flags | O_EXCL, mode);
            if (fd >= 0) {
                eos_give(fd, &directory);
                return fd;
            }
            if (errno != EEXIST || (flags & O_EXCL)) {
                return fd;
            }
            fd = open(path, flags & ~O_CREAT);
            if (fd >= 0 || errno != ENOENT) {
                return fd;
            }
            /* Just removed, or a link to nothing. */
        }
    }
    return open(path, flags, mode);
}

/* As mkdir(2), of a directory that its owner alone can use. */
static inline int eos_make_directory(const char *path) {
    struct stat directory;
    int fd;
    if (mkdir(path, 0700) != 0) {
        return errno;
    }
    if (eos_is_anothers(path, &directory)) {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            eos_give(fd, &directory);
            close(fd);
        }
    }
    return 0;
}

#endif
