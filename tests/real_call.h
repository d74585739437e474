/* What a preloaded library that stands in front of the C library's calls needs; define _GNU_SOURCE first. */
#ifndef EOSLOG_REAL_CALL_H
#define EOSLOG_REAL_CALL_H

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* In a function of that name: `real` is the one behind it. */
#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* In a function whose last named argument is `flags`: the mode behind it, which is there if a file may be made. */
#define READ_MODE(mode, flags) \
    if ((flags) & O_CREAT) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments); \
    }

/* In a function `long syscall(long number, ...)`: the six longs behind the number, however many were given, and the
   file whose sync the call has the kernel begin, or -1. */
#define READ_SYSCALL(number, arguments, begun_fd) \
    long arguments[6]; \
    int begun_fd; \
    REAL(syscall); \
    { \
        va_list list; \
        int index; \
        va_start(list, number); \
        for (index = 0; index < 6; index++) \
            arguments[index] = va_arg(list, long); \
        va_end(list); \
    } \
    begun_fd = file_of_begun_sync(number, arguments)

#define REAL_SYSCALL(number, arguments) \
    real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5])

/* The preloaded process takes a file system in memory for a disk: it syncs there as anywhere, for tests that count
   syncs or have them fail. */
#define FSTATFS_OF_A_DISK(name, type) \
    int name(int fd, struct type *found) { \
        int result; \
        REAL(name); \
        result = real(fd, found); \
        if (result == 0 && ((unsigned)found->f_type == 0x01021994 || (unsigned)found->f_type == 0x858458F6)) \
            found->f_type = 0xEF53; \
        return result; \
    }

FSTATFS_OF_A_DISK(fstatfs, statfs)
FSTATFS_OF_A_DISK(fstatfs64, statfs64)

/* The file whose sync this call has the kernel begin, for io_getevents to wait for; -1: it is another call. */
static inline int file_of_begun_sync(long number, const long *arguments) {
    const struct iocb *request;
    if (number != SYS_io_submit)
        return -1;
    request = ((struct iocb **)arguments[2])[0];
    return request->aio_lio_opcode == IOCB_CMD_FDSYNC ? (int)request->aio_fildes : -1;
}

#endif
