/* A file is cut once this process has mapped a segment that it is about to recover, once it was told which. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "../real_call.h"

static const char *cut_path;
static long cut_bytes;

void cut_after_map(const char *path, long bytes) {
    cut_path = path;
    cut_bytes = bytes;
}

int madvise(void *map, size_t bytes, int advice) {
    const char *path = cut_path;
    REAL(madvise);
    if (path != NULL && advice == MADV_RANDOM) {
        cut_path = NULL;
        if (truncate(path, cut_bytes) != 0)
            _exit(77);
    }
    return real(map, bytes, advice);
}
