/* A kernel with pages of 64 KiB: it says so, and refuses what is not at the start of a page. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../real_call.h"

#define PAGE_BYTES ((size_t)65536)
#define IS_UNALIGNED(number) (((uintptr_t)(number) & (PAGE_BYTES - 1)) != 0)

long sysconf(int name) {
    REAL(sysconf);
    return name == _SC_PAGESIZE ? (long)PAGE_BYTES : real(name);
}

typedef void *(*Mmap)(void *, size_t, int, int, int, off_t);

static void *mapped(Mmap real, void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    uint8_t *room, *start;
    if (IS_UNALIGNED(offset) || ((flags & MAP_FIXED) != 0 && IS_UNALIGNED(address))) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    if ((flags & MAP_FIXED) != 0 || fd < 0)
        return real(address, bytes, protection, flags, fd, offset);
    room = real(NULL, bytes + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return room;
    start = (uint8_t *)(((uintptr_t)room + PAGE_BYTES - 1) & ~(uintptr_t)(PAGE_BYTES - 1));
    return real(start, bytes, protection, flags | MAP_FIXED, fd, offset);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    return mapped(real, address, bytes, protection, flags, fd, offset);
}

/* Python's headers have it called so. */
void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    REAL(mmap64);
    return mapped(real, address, bytes, protection, flags, fd, offset);
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* What is refused is printed: such calls are hints, whose result is not looked at. Other libraries give hints too, of other kinds. */
int madvise(void *address, size_t bytes, int advice) {
    REAL(madvise);
    if (!IS_UNALIGNED(address))
        return real(address, bytes, advice);
    if (advice == MADV_WILLNEED || advice == MADV_POPULATE_WRITE)
        puts("a hint for a part of a page");
    errno = EINVAL;
    return -1;
}
