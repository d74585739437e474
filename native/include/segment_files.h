/* The files of a partition's segments, as their directory lists them. */
#ifndef EOSLOG_SEGMENT_FILES_H
#define EOSLOG_SEGMENT_FILES_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define SEGMENT_NAME_DIGITS 20
/* Of a file that becomes a segment by its renaming; swept by whoever opens the partition. */
#define SEGMENT_UNNAMED_SUFFIX ".log.cleaned"

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

/* Remove the files of all segments below a base offset, the log files last; how many went. */
static inline int64_t eos_remove_below(const char *directory, int64_t base_offset) {
    int64_t removed = 0;
    int round;
    for (round = 0; round < 2; round++) {
        DIR *listing = opendir(directory);
        struct dirent *entry;
        if (listing == NULL)
            return removed;
        while ((entry = readdir(listing)) != NULL) {
            const int64_t offset = segment_name_offset(entry->d_name);
            if (offset < 0 || offset >= base_offset)
                continue;
            if ((strcmp(entry->d_name + SEGMENT_NAME_DIGITS, ".log") == 0) == (round == 1) &&
                unlinkat(dirfd(listing), entry->d_name, 0) == 0)
                removed++;
        }
        closedir(listing);
    }
    return removed;
}

#endif
