/* Files and directories of a store. They belong to the owner of the directory they are in, also where root makes them: the
   user of a store could not open what root left in it otherwise. The group may read them if it may read that directory. */
#ifndef EOSLOG_NEW_FILE_H
#define EOSLOG_NEW_FILE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A store's own directory may be the user's, with any mode: its group reads it if it may read this one in it too. */
#define EOS_STATE_DIRECTORY "state"

enum { EOS_ACCESS_CHANGED = 1, EOS_ACCESS_DIRECTORY = 2 };

/* Look at the directory that the path is in; False if that cannot be done. */
static inline int eos_look_above(const char *path, struct stat *directory_out) {
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t bytes = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (bytes >= sizeof directory) {
        return 0;
    }
    memcpy(directory, bytes == 0 ? "." : path, bytes == 0 ? 1 : bytes);
    directory[bytes == 0 ? 1 : bytes] = '\0';
    return stat(directory, directory_out) == 0;
}

/* 1 if the group may read what is in the directory that the path is in, which was looked at. */
static inline int eos_group_reads(const char *path, const struct stat *directory) {
    char state[PATH_MAX + sizeof EOS_STATE_DIRECTORY];
    const char *slash = strrchr(path, '/');
    size_t bytes = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    struct stat found;
    if (!(directory->st_mode & S_IRGRP) || bytes > PATH_MAX) {
        return 0;
    }
    memcpy(state, path, bytes);
    memcpy(state + bytes, EOS_STATE_DIRECTORY, sizeof EOS_STATE_DIRECTORY);
    return lstat(state, &found) != 0 || !S_ISDIR(found.st_mode) || (found.st_mode & S_IRGRP) != 0;
}

/* The same, of how that directory is now. */
static inline int eos_group_reads_now(const char *path) {
    struct stat directory;
    return eos_look_above(path, &directory) && eos_group_reads(path, &directory);
}

/* Where the file system has no owners, or root may not name them, the file stays root's. */
static inline void eos_give(int fd, const struct stat *directory) {
    if (fchown(fd, directory->st_uid, directory->st_gid) != 0) {
        return;
    }
}

/* 1 if the process is root's and another user or group has the directory. */
static inline int eos_is_anothers(const struct stat *directory) {
    return geteuid() == 0 && (directory->st_uid != 0 || directory->st_gid != getegid());
}

/* Have the mode of an open file or directory be that of its directory's files: 0600 or 0640, 0700 or 0750, whatever the
   umask is. To be called once it has its name: `eos_set_access` changes the directory first, and then what is named in it. So
   either that call finds it, or this one the directory's new mode. 0 or an errno: it is private then. */
static inline int eos_keep_access(int fd, const char *path) {
    struct stat found;
    mode_t wanted;
    int chance;
    for (chance = 0; chance < 8; chance++) {
        if (fstat(fd, &found) != 0) {
            return errno;
        }
        wanted = S_ISDIR(found.st_mode) ? 0700 : 0600;
        if (eos_group_reads_now(path)) {
            wanted |= S_ISDIR(found.st_mode) ? 0050 : 0040;
        }
        if ((found.st_mode & 0777) == wanted) {
            return 0;
        }
        /* A directory keeps the bit with which its group passes to what is made in it. */
        if (fchmod(fd, (found.st_mode & 07000) | wanted) != 0) {
            return errno;
        }
    }
    return 0;
}

/* As open(2). Only a file that this call made changes its owner and mode: never one that a link led to. */
static inline int eos_open_owned(const char *path, int flags, mode_t mode) {
    struct stat directory;
    int chance, fd, is_found, is_read;
    for (chance = 0; (flags & O_CREAT) && chance < 8; chance++) {
        fd = flags & O_EXCL ? -1 : open(path, flags & ~O_CREAT);
        if (fd >= 0 || (!(flags & O_EXCL) && errno != ENOENT)) {
            return fd;
        }
        is_found = eos_look_above(path, &directory);
        is_read = is_found && eos_group_reads(path, &directory);
        fd = open(path, flags | O_EXCL, mode | (is_read ? 0040 : 0));
        if (fd >= 0) {
            if (is_found && eos_is_anothers(&directory)) {
                eos_give(fd, &directory);
            }
            if (is_read || eos_group_reads_now(path)) {
                (void)eos_keep_access(fd, path);
            }
            return fd;
        }
        if (errno != EEXIST || (flags & O_EXCL)) {
            return fd;
        }
        /* Just made, or a link to nothing. */
    }
    return open(path, flags, mode);
}

/* As mkdir(2), of a directory that its owner alone can use, or its group too. It is made with the right mode: a user who is
   not in the group cannot change the mode without losing the bit with which the group passes to what is made in it. */
static inline int eos_make_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    struct stat directory;
    int is_found = eos_look_above(path, &directory);
    int is_read = is_found && strcmp(slash == NULL ? path : slash + 1, EOS_STATE_DIRECTORY) != 0 &&
                  eos_group_reads(path, &directory);
    int fd;
    if (mkdir(path, is_read ? 0750 : 0700) != 0) {
        return errno;
    }
    is_found = is_found && eos_is_anothers(&directory);
    if (is_found || is_read || eos_group_reads_now(path)) {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            if (is_found) {
                eos_give(fd, &directory);
            }
            (void)eos_keep_access(fd, path);
            close(fd);
        }
    }
    return 0;
}

/* Let a group read a file, or a directory and all that will be made in it, or take that away: 0640 or 0600, 2750 or 0700. Not
   of what a link leads to; EPERM if it is another user's than `owner`. A file with several names keeps what the other one's
   readers need. `outcome` has EOS_ACCESS_*. Its descriptor is none whose end would free the process's locks of the file. */
static inline int eos_set_access(const char *path, int group_reads, uid_t owner, gid_t group, int *outcome) {
    char name[32];
    struct stat found;
    mode_t wanted;
    int error = 0;
    int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    *outcome = 0;
    if (fd < 0) {
        return errno;
    }
    if (fstat(fd, &found) != 0) {
        error = errno;
    } else if (S_ISDIR(found.st_mode) || (S_ISREG(found.st_mode) && (group_reads || found.st_nlink == 1))) {
        wanted = S_ISDIR(found.st_mode) ? (group_reads ? 02750 : 0700) : (group_reads ? 0640 : 0600);
        *outcome = S_ISDIR(found.st_mode) ? EOS_ACCESS_DIRECTORY : 0;
        if ((found.st_mode & 07777) != wanted || (group_reads && found.st_gid != group)) {
            snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
            if (found.st_uid != owner) {
                error = EPERM;
            } else if ((group_reads && found.st_gid != group && fchownat(fd, "", (uid_t)-1, group, AT_EMPTY_PATH) != 0) ||
                       chmod(name, wanted) != 0) {
                error = errno;
            }
            *outcome |= EOS_ACCESS_CHANGED;
        }
    }
    close(fd);
    return error;
}

#endif
