/* The files of a partition's segments, as their directory lists them. */
#ifndef EOSLOG_SEGMENT_FILES_H
#define EOSLOG_SEGMENT_FILES_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define SEGMENT_NAME_DIGITS 20
/* Of a file that becomes a segment by its renaming; swept when the partition is opened. */
#define SEGMENT_UNNAMED_SUFFIX ".log.cleaned"
#define SEGMENT_REOPENED "another process has opened the store since it was opened to be read"

/* The base offset in the name of a segment's file (20 digits and a suffix of a segment), or -1. */
static inline int64_t segment_name_offset(const char *name) {
    static const char *const suffixes[] = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"};
    int64_t offset = 0;
    size_t index;
    for (index = 0; index < SEGMENT_NAME_DIGITS; index++) {
        if (name[index] < '0' || name[index] > '9' || offset > (INT64_MAX - 9) / 10)
            return -1;
        offset = offset * 10 + (name[index] - '0');
    }
    for (index = 0; index < sizeof suffixes / sizeof suffixes[0]; index++) {
        if (strcmp(name + SEGMENT_NAME_DIGITS, suffixes[index]) == 0)
            return offset;
    }
    return -1;
}

/* Unlink the files of segments below a base offset, either those of batches or those made from
   them; how many went. 0 or an errno of one that did not go, or of the listing, in `error`. */
static inline int64_t segment_files_unlink(const char *directory, int64_t base_offset,
                                           int of_batches, int *error) {
    int64_t removed = 0;
    struct dirent *entry;
    DIR *listing = opendir(directory);
    *error = 0;
    if (listing == NULL) {
        *error = errno;
        return 0;
    }
    while ((entry = readdir(listing)) != NULL) {
        const int64_t offset = segment_name_offset(entry->d_name);
        if (offset < 0 || offset >= base_offset ||
            (strcmp(entry->d_name + SEGMENT_NAME_DIGITS, ".log") == 0) != (of_batches != 0))
            continue;
        if (unlinkat(dirfd(listing), entry->d_name, 0) == 0)
            removed++;
        else if (errno != ENOENT)
            *error = errno;
    }
    closedir(listing);
    return removed;
}

/* Remove the files of all segments below a base offset, the log files last; how many went. */
static inline int64_t eos_remove_below(const char *directory, int64_t base_offset) {
    int error;
    const int64_t derived = segment_files_unlink(directory, base_offset, 0, &error);
    return derived + segment_files_unlink(directory, base_offset, 1, &error);
}

/* Remove the log files below a base offset: 0, or an errno if one may still be there. */
static inline int eos_remove_logs_below(const char *directory, int64_t base_offset) {
    int error;
    segment_files_unlink(directory, base_offset, 1, &error);
    return error;
}

/* Whether nothing has this name. */
static inline int eos_is_missing(const char *path) { return access(path, F_OK) != 0 && errno == ENOENT; }

#endif
