/* What a preloaded library that stands in front of the C library's calls needs; define _GNU_SOURCE first. */
#ifndef EOSLOG_REAL_CALL_H
#define EOSLOG_REAL_CALL_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>

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

#endif
