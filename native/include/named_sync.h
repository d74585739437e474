/* Syncs of what has to be opened for it, by its name. Every function answers 0 or the errno. */
#ifndef EOSLOG_NAMED_SYNC_H
#define EOSLOG_NAMED_SYNC_H

#include "mapped_io.h"
#include <sys/utsname.h>

/* Since Linux 5.8 syncfs answers what of the file system could not be written; before that it says
   nothing of it, and cannot be relied on. */
static inline int eos_syncfs_tells_errors(void) {
    struct utsname system;
    int major = 0, minor = 0;
    if (uname(&system) != 0 || sscanf(system.release, "%d.%d", &major, &minor) != 2) {
        return 0;
    }
    return major > 5 || (major == 5 && minor >= 8);
}

/* Sync a directory, or a file's content. Where nothing more can be opened (no descriptor, no memory), that is
   no failure of the disk: then all of the file system is synced, by a file of it that is open. It
   may take seconds. `beside_fd` -1: there is none. */
static inline int eos_sync_named(const char *path, int directory, int beside_fd) {
    struct stat status;
    int fd = -1;
    int result = eos_open(path, 0, 1, &fd);
    if (result == 0) {
        result = directory ? eos_sync_file(fd) : eos_sync_data(fd);
        close(fd);
        return result;
    }
    if ((result != EMFILE && result != ENFILE && result != ENOMEM) || beside_fd < 0 || !eos_syncfs_tells_errors()) {
        return result;
    }
    if (lstat(path, &status) != 0) {
        return errno;                /* Also a sync of nothing would succeed. */
    }
    return !eos_is_in_memory(beside_fd) && syncfs(beside_fd) != 0 ? errno : 0;
}

/* Sync all of the file system that an open file is on; its writes that failed since the file was
   opened are errors. ENOSYS, and nothing is synced, where syncfs would not tell. */
static inline int eos_sync_file_system(int fd) {
    if (eos_is_in_memory(fd)) {
        return 0;
    }
    if (!eos_syncfs_tells_errors()) {
        return ENOSYS;
    }
    return syncfs(fd) != 0 ? errno : 0;
}

#endif
