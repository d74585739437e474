/* The process stops where it is about to open a file to read it, once it was told which: it writes a byte to a pipe and waits for
   one from another. */
#define _GNU_SOURCE
#include <string.h>

#include "../real_call.h"

static const char *stop_path;
static int tell_fd, wait_fd;

void stop_at_open(const char *path, int tell, int wait) {
    tell_fd = tell;
    wait_fd = wait;
    stop_path = path;
}

static void stop_at(const char *path) {
    char byte = 0;
    if (stop_path != NULL && strcmp(path, stop_path) == 0) {
        stop_path = NULL;
        if (write(tell_fd, &byte, 1) != 1 || read(wait_fd, &byte, 1) != 1)
            _exit(77);
    }
}

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    REAL(open);
    READ_MODE(mode, flags);
    stop_at(path);
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    mode_t mode = 0;
    REAL(open64);
    READ_MODE(mode, flags);
    stop_at(path);
    return real(path, flags, mode);
}
