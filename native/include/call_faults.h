/* Faults of calls to the kernel, for tests: a sync that fails or takes long, a disk without room, a clock that is ahead.

   The calls of chosen modules are taken over where the dynamic linker keeps the addresses of the functions that a module calls. Nothing of
   it exists before the first fault is armed, and all of it is put back after the last one. A fault acts on files below one directory, in
   the process that armed it; a forked child has none. Arming and disarming need a lock of the caller; calls take none. */
#ifndef EOSLOG_CALL_FAULTS_H
#define EOSLOG_CALL_FAULTS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define CALL_FAULTS_GLOB_DAT R_X86_64_GLOB_DAT
#define CALL_FAULTS_JUMP_SLOT R_X86_64_JUMP_SLOT
#elif defined(__aarch64__)
#define CALL_FAULTS_GLOB_DAT R_AARCH64_GLOB_DAT
#define CALL_FAULTS_JUMP_SLOT R_AARCH64_JUMP_SLOT
#endif

enum { CALL_FAULT_NONE, CALL_FAULT_SYNC, CALL_FAULT_DELAY, CALL_FAULT_FULL };

enum { CALL_FAULTS_MAX = 16, CALL_FAULT_PLACE_BYTES = 260, CALL_FAULT_LAST_BYTES = 400 };

typedef struct {
    int kind;      /* Atomic, as the counts; CALL_FAULT_NONE: free. */
    int inside;    /* Calls that look at this fault now. */
    int of_topic;  /* `place` is a topic's name; else that of a directory below the root. */
    int error;
    pid_t process;
    int64_t number; /* Of the call that fails, from 1. */
    int64_t delay_ns;
    int64_t seen, hits;
    size_t root_bytes;
    char root[PATH_MAX];
    char place[CALL_FAULT_PLACE_BYTES]; /* "": every file below the root. */
    char last[CALL_FAULT_LAST_BYTES];   /* Below the root: the file of the newest sync of another place. For people. */
} CallFault;

typedef struct {
    void **at;
    void *before;
    int read_only; /* So is its page otherwise. */
} CallSlot;

typedef struct {
    const char *name;
    void *function;
} CallHook;

static CallFault call_faults[CALL_FAULTS_MAX];
static int64_t call_clock_ns; /* Atomic. */
static CallSlot *call_slots;
static size_t call_slot_count, call_slot_capacity;

/* The faults. */

static inline const char *call_path_of(int fd, char *path) {
    char link[40];
    ssize_t bytes;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bytes = readlink(link, path, PATH_MAX - 1);
    path[bytes > 0 ? bytes : 0] = 0;
    return path;
}

/* The part of a path below a fault's root; NULL for a file of others. */
static inline const char *call_below(const CallFault *fault, const char *path) {
    if (strncmp(path, fault->root, fault->root_bytes) != 0)
        return NULL;
    path += fault->root_bytes;
    return *path == 0 ? path : *path == '/' ? path + 1 : NULL;
}

static inline int call_is_there(const CallFault *fault, const char *below) {
    const size_t bytes = strlen(fault->place), first = strcspn(below, "/");
    size_t digits;
    if (bytes == 0)
        return 1;
    if (first < bytes || strncmp(below, fault->place, bytes) != 0)
        return 0;
    if (!fault->of_topic)
        return first == bytes;
    digits = strspn(below + bytes + (below[bytes] == '-'), "0123456789");
    return below[bytes] == '-' && digits > 0 && bytes + 1 + digits == first;
}

/* The fault of a number if it is of this kind, for this process; let go of it afterwards. */
static inline CallFault *call_fault_taken(int number, int kind) {
    CallFault *fault = &call_faults[number];
    if (__atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE) != kind)
        return NULL;
    __atomic_add_fetch(&fault->inside, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&fault->kind, __ATOMIC_SEQ_CST) == kind && fault->process == getpid())
        return fault;
    __atomic_sub_fetch(&fault->inside, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static inline void call_fault_let_go(CallFault *fault) { __atomic_sub_fetch(&fault->inside, 1, __ATOMIC_SEQ_CST); }

/* 0, or the errno with which a sync of this file fails; waits first if it is to take long. */
static inline int call_sync_fault(const char *path) {
    int number, kind, error = 0;
    int64_t delay_ns = 0;
    for (number = 0; number < CALL_FAULTS_MAX; number++) {
        for (kind = CALL_FAULT_SYNC; kind <= CALL_FAULT_DELAY; kind++) {
            CallFault *fault = call_fault_taken(number, kind);
            const char *below = fault == NULL ? NULL : call_below(fault, path);
            if (below != NULL && !call_is_there(fault, below)) {
                strncpy(fault->last, below, sizeof fault->last - 1);
            } else if (below != NULL && __atomic_add_fetch(&fault->seen, 1, __ATOMIC_SEQ_CST) == fault->number) {
                __atomic_add_fetch(&fault->hits, 1, __ATOMIC_SEQ_CST);
                if (kind == CALL_FAULT_SYNC)
                    error = fault->error;
                else
                    delay_ns += fault->delay_ns;
            }
            if (fault != NULL)
                call_fault_let_go(fault);
        }
    }
    if (delay_ns > 0) {
        struct timespec left = {(time_t)(delay_ns / 1000000000), (long)(delay_ns % 1000000000)};
        while (nanosleep(&left, &left) != 0 && errno == EINTR) {
        }
    }
    return error;
}

static inline int call_sync_fault_at(int fd) {
    char path[PATH_MAX];
    const int before = errno;
    const int error = call_sync_fault(call_path_of(fd, path));
    errno = before;
    return error;
}

/* 1 if a sync of a file of this path may fail or take long: then the kernel makes none by itself, and none goes by the commit journal.
   NULL: of any file. */
static inline int call_syncs_alone(const char *path) {
    int number, kind, found = 0;
    for (number = 0; number < CALL_FAULTS_MAX; number++) {
        for (kind = CALL_FAULT_SYNC; kind <= CALL_FAULT_DELAY; kind++) {
            CallFault *fault = call_fault_taken(number, kind);
            if (fault != NULL) {
                found |= path == NULL || call_below(fault, path) != NULL;
                call_fault_let_go(fault);
            }
        }
    }
    return found;
}

/* 1 if there is no room for a file of this path. */
static inline int call_disk_is_full(const char *path) {
    int number, found = 0;
    for (number = 0; number < CALL_FAULTS_MAX; number++) {
        CallFault *fault = call_fault_taken(number, CALL_FAULT_FULL);
        if (fault != NULL) {
            if (call_below(fault, path) != NULL) {
                __atomic_add_fetch(&fault->hits, 1, __ATOMIC_SEQ_CST);
                found = 1;
            }
            call_fault_let_go(fault);
        }
    }
    return found;
}

static inline int call_is_any(int kind) {
    int number;
    for (number = 0; number < CALL_FAULTS_MAX; number++)
        if (__atomic_load_n(&call_faults[number].kind, __ATOMIC_ACQUIRE) == kind)
            return 1;
    return 0;
}

/* 0, or the errno with which a write of these bytes fails. at < 0: where the file is. */
static inline int call_write_fault(int fd, int64_t at, int64_t bytes) {
    char path[PATH_MAX];
    struct stat found;
    const int before = errno;
    int error = 0, flags;
    if (call_is_any(CALL_FAULT_FULL) && bytes > 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) {
        flags = fcntl(fd, F_GETFL);
        if (at < 0)
            at = flags & O_APPEND ? found.st_size : lseek(fd, 0, SEEK_CUR);
        if (at + bytes > found.st_size && call_disk_is_full(call_path_of(fd, path)))
            error = ENOSPC;
    }
    if (error == 0 && (call_is_any(CALL_FAULT_SYNC) || call_is_any(CALL_FAULT_DELAY))) {
        flags = fcntl(fd, F_GETFL);
        if (flags >= 0 && (flags & O_DSYNC) != 0 && call_syncs_alone(call_path_of(fd, path)))
            error = EIO;
    }
    errno = before;
    return error;
}

static inline int64_t call_bytes_of(const struct iovec *parts, int count) {
    int64_t bytes = 0;
    int number;
    for (number = 0; number < count; number++)
        bytes += (int64_t)parts[number].iov_len;
    return bytes;
}

/* 1 if a name that is not there yet cannot be made. */
static inline int call_create_fault(int directory_fd, const char *path) {
    char directory[PATH_MAX + 40], resolved[PATH_MAX];
    struct stat found;
    const int before = errno;
    int full = 0;
    if (call_is_any(CALL_FAULT_FULL) && fstatat(directory_fd, path, &found, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT) {
        const char *slash = strrchr(path, '/');
        const int bytes = slash == NULL ? 0 : (int)(slash - path);
        if (path[0] == '/' || directory_fd < 0)
            snprintf(directory, sizeof directory, "%.*s", slash == NULL ? 1 : bytes + (bytes == 0), slash == NULL ? "." : path);
        else
            snprintf(directory, sizeof directory, "/proc/self/fd/%d/%.*s", directory_fd, bytes, path);
        full = realpath(directory, resolved) != NULL && call_disk_is_full(resolved);
    }
    errno = before;
    return full;
}

#define CALL_FAILS(error_expression) \
    do { \
        const int call_error = (error_expression); \
        if (call_error != 0) { \
            errno = call_error; \
            return -1; \
        } \
    } while (0)

/* The calls. */

static int call_fsync(int fd) {
    CALL_FAILS(call_sync_fault_at(fd));
    return fsync(fd);
}

static int call_fdatasync(int fd) {
    CALL_FAILS(call_sync_fault_at(fd));
    return fdatasync(fd);
}

static int call_syncfs(int fd) {
    CALL_FAILS(call_sync_fault_at(fd));
    return syncfs(fd);
}

static ssize_t call_write(int fd, const void *data, size_t bytes) {
    CALL_FAILS(call_write_fault(fd, -1, (int64_t)bytes));
    return write(fd, data, bytes);
}

static ssize_t call_writev(int fd, const struct iovec *parts, int count) {
    CALL_FAILS(call_write_fault(fd, -1, call_bytes_of(parts, count)));
    return writev(fd, parts, count);
}

static ssize_t call_pwrite(int fd, const void *data, size_t bytes, off_t at) {
    CALL_FAILS(call_write_fault(fd, at, (int64_t)bytes));
    return pwrite(fd, data, bytes, at);
}

static ssize_t call_pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    CALL_FAILS(call_write_fault(fd, at, call_bytes_of(parts, count)));
    return pwritev(fd, parts, count, at);
}

static ssize_t call_pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    CALL_FAILS(call_write_fault(fd, at, call_bytes_of(parts, count)));
    return pwritev2(fd, parts, count, at, flags);
}

static ssize_t call_copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    CALL_FAILS(call_write_fault(to, to_at == NULL ? -1 : *to_at, (int64_t)bytes));
    return copy_file_range(from, from_at, to, to_at, bytes, flags);
}

static int call_reserve_fault(int fd) {
    char path[PATH_MAX];
    const int before = errno;
    const int full = call_is_any(CALL_FAULT_FULL) && call_disk_is_full(call_path_of(fd, path));
    errno = before;
    return full ? ENOSPC : 0;
}

static int call_fallocate(int fd, int mode, off_t at, off_t bytes) {
    if ((mode & FALLOC_FL_PUNCH_HOLE) == 0)
        CALL_FAILS(call_reserve_fault(fd));
    return fallocate(fd, mode, at, bytes);
}

/* This one answers the errno. */
static int call_posix_fallocate(int fd, off_t at, off_t bytes) {
    const int error = call_reserve_fault(fd);
    return error != 0 ? error : posix_fallocate(fd, at, bytes);
}

#define CALL_OPEN_MODE(mode, flags) \
    mode_t mode = 0; \
    if (((flags) & O_CREAT) != 0 || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list list; \
        va_start(list, flags); \
        mode = (mode_t)va_arg(list, unsigned); \
        va_end(list); \
    }

static int call_open(const char *path, int flags, ...) {
    CALL_OPEN_MODE(mode, flags)
    CALL_FAILS((flags & O_CREAT) != 0 && call_create_fault(AT_FDCWD, path) ? ENOSPC : 0);
    return open(path, flags, mode);
}

static int call_openat(int directory_fd, const char *path, int flags, ...) {
    CALL_OPEN_MODE(mode, flags)
    CALL_FAILS((flags & O_CREAT) != 0 && call_create_fault(directory_fd, path) ? ENOSPC : 0);
    return openat(directory_fd, path, flags, mode);
}

static int call_mkdir(const char *path, mode_t mode) {
    CALL_FAILS(call_create_fault(AT_FDCWD, path) ? ENOSPC : 0);
    return mkdir(path, mode);
}

/* On a RAM disk eoslog makes no sync; where one is to fail, the disk is another one. */
static int call_fstatfs(int fd, struct statfs *found) {
    const int result = fstatfs(fd, found);
    char path[PATH_MAX];
    const int before = errno;
    if (result == 0 && call_syncs_alone(call_path_of(fd, path)))
        found->f_type = 0xEF53; /* ext4 */
    errno = before;
    return result;
}

/* The one use of eoslog: Linux's asynchronous I/O, by which the kernel makes a sync. */
static long call_syscall(long number, ...) {
    long given[6];
    int place;
    va_list list;
    va_start(list, number);
    for (place = 0; place < 6; place++)
        given[place] = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit && call_syncs_alone(NULL)) {
        errno = EAGAIN;
        return -1;
    }
    return syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

static int call_clock_gettime(clockid_t clock, struct timespec *now) {
    const int result = clock_gettime(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        const int64_t ahead_ns = __atomic_load_n(&call_clock_ns, __ATOMIC_RELAXED);
        const int64_t nanoseconds = now->tv_nsec + ahead_ns % 1000000000;
        now->tv_sec += (time_t)(ahead_ns / 1000000000 + (nanoseconds >= 1000000000) - (nanoseconds < 0));
        now->tv_nsec = (long)((nanoseconds + 1000000000) % 1000000000);
    }
    return result;
}

#define CALL_HOOK(name) {#name, (void *)(uintptr_t)call_##name}
#define CALL_HOOK_64(name) CALL_HOOK(name), {#name "64", (void *)(uintptr_t)call_##name}

static const CallHook call_hooks[] = {
    CALL_HOOK(fsync),
    CALL_HOOK(fdatasync),
    CALL_HOOK(syncfs),
    CALL_HOOK(write),
    CALL_HOOK(writev),
    CALL_HOOK(copy_file_range),
    CALL_HOOK(mkdir),
    CALL_HOOK(syscall),
    CALL_HOOK_64(fstatfs),
    CALL_HOOK_64(pwrite),
    CALL_HOOK_64(pwritev),
    CALL_HOOK_64(fallocate),
    CALL_HOOK_64(posix_fallocate),
    CALL_HOOK_64(open),
    CALL_HOOK_64(openat),
    {"pwritev64v2", (void *)(uintptr_t)call_pwritev2},
    {"pwritev2", (void *)(uintptr_t)call_pwritev2},
};

/* The wall clock is moved for eoslog alone, not for all of Python. */
static const CallHook call_clock_hook = CALL_HOOK(clock_gettime);

/* The slots. */

typedef struct {
    const char *path;    /* Of the module, as it was loaded; NULL: the one at `address`. */
    const void *address; /* Somewhere in the module. */
    int with_clock;
    int syncs; /* How many slots of syncs were found. */
    int error;
    int found;
    void *from, *to; /* Instead of all that: replace this pointer in its data by the other. */
} CallModule;

static inline void *call_hook_of(const char *name, int with_clock) {
    size_t number;
    for (number = 0; number < sizeof call_hooks / sizeof call_hooks[0]; number++)
        if (strcmp(name, call_hooks[number].name) == 0)
            return call_hooks[number].function;
    return with_clock && strcmp(name, call_clock_hook.name) == 0 ? call_clock_hook.function : NULL;
}

static inline int call_protect(void **at, int protection) {
    const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    return mprotect((void *)((uintptr_t)at & ~(page_bytes - 1)), page_bytes, protection) != 0 ? errno : 0;
}

static inline int call_slot_write(void **at, void *function, int read_only) {
    const int error = read_only ? call_protect(at, PROT_READ | PROT_WRITE) : 0;
    if (error != 0)
        return error;
    __atomic_store_n(at, function, __ATOMIC_SEQ_CST);
    return read_only ? call_protect(at, PROT_READ) : 0;
}

static inline int call_slot_take(void **at, void *function, int read_only) {
    if (call_slot_count == call_slot_capacity) {
        const size_t capacity = call_slot_capacity == 0 ? 1024 : 2 * call_slot_capacity;
        CallSlot *larger = realloc(call_slots, capacity * sizeof *larger);
        if (larger == NULL)
            return ENOMEM;
        call_slots = larger;
        call_slot_capacity = capacity;
    }
    call_slots[call_slot_count].at = at;
    call_slots[call_slot_count].before = *at;
    call_slots[call_slot_count].read_only = read_only;
    call_slot_count++;
    return call_slot_write(at, function, read_only);
}

/* Put all back; 0 or an errno. A module is never unloaded: its slots are still there. */
static inline int call_slots_give_back(void) {
    int error = 0;
    while (call_slot_count > 0) {
        const CallSlot *slot = &call_slots[--call_slot_count];
        const int failed = call_slot_write(slot->at, slot->before, slot->read_only);
        error = error != 0 ? error : failed;
    }
    return error;
}

static inline int call_is_module(const struct dl_phdr_info *object, const CallModule *module) {
    ElfW(Half) number;
    if (module->path != NULL)
        return object->dlpi_name != NULL && strcmp(object->dlpi_name, module->path) == 0;
    for (number = 0; number < object->dlpi_phnum; number++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[number];
        const uintptr_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (uintptr_t)module->address >= start && (uintptr_t)module->address < start + part->p_memsz)
            return 1;
    }
    return 0;
}

/* Some dynamic linkers leave addresses as they are in the file. */
static inline uintptr_t call_table(const struct dl_phdr_info *object, ElfW(Addr) value) {
    return value < object->dlpi_addr ? object->dlpi_addr + value : value;
}

static inline void call_take_table(
    const struct dl_phdr_info *object, CallModule *module, const ElfW(Rela) *table, size_t bytes, const ElfW(Sym) *symbols,
    const char *names, uintptr_t relro, uintptr_t relro_end) {
#ifdef CALL_FAULTS_JUMP_SLOT
    size_t number;
    for (number = 0; number < bytes / sizeof *table && module->error == 0; number++) {
        const ElfW(Rela) *entry = &table[number];
        const unsigned long type = ELF64_R_TYPE(entry->r_info);
        const char *name;
        void *function, **at;
        if (type != CALL_FAULTS_JUMP_SLOT && type != CALL_FAULTS_GLOB_DAT)
            continue;
        name = names + symbols[ELF64_R_SYM(entry->r_info)].st_name;
        function = call_hook_of(name, module->with_clock);
        if (function == NULL)
            continue;
        at = (void **)(object->dlpi_addr + entry->r_offset);
        module->error = call_slot_take(at, function, (uintptr_t)at >= relro && (uintptr_t)at < relro_end);
        module->syncs += function == (void *)(uintptr_t)call_fdatasync || function == (void *)(uintptr_t)call_fsync;
    }
#else
    (void)object, (void)table, (void)bytes, (void)symbols, (void)names, (void)relro, (void)relro_end;
    module->error = ENOSYS;
#endif
}

static inline void call_take_pointers(const struct dl_phdr_info *object, CallModule *module, uintptr_t relro, uintptr_t relro_end) {
    ElfW(Half) number;
    for (number = 0; number < object->dlpi_phnum; number++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[number];
        uintptr_t at = (object->dlpi_addr + part->p_vaddr + 7) & ~(uintptr_t)7;
        const uintptr_t end = object->dlpi_addr + part->p_vaddr + part->p_memsz;
        if (part->p_type != PT_LOAD || (part->p_flags & PF_W) == 0)
            continue;
        for (; at + sizeof(void *) <= end && module->error == 0; at += sizeof(void *)) {
            if ((at < relro || at >= relro_end) && *(void **)at == module->from) {
                module->error = call_slot_take((void **)at, module->to, 0);
                module->syncs++;
            }
        }
    }
}

static int call_take_object(struct dl_phdr_info *object, size_t size, void *given) {
    CallModule *module = given;
    const ElfW(Dyn) *entry = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    uintptr_t tables[2] = {0, 0}, relro = 0, relro_end = 0;
    size_t bytes[2] = {0, 0};
    ElfW(Half) number;
    int table;
    (void)size;
    if (!call_is_module(object, module))
        return 0;
    module->found = 1;
    for (number = 0; number < object->dlpi_phnum; number++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[number];
        if (part->p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(object->dlpi_addr + part->p_vaddr);
        if (part->p_type == PT_GNU_RELRO) {
            const uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
            relro = (object->dlpi_addr + part->p_vaddr) & ~(page_bytes - 1);
            relro_end = (object->dlpi_addr + part->p_vaddr + part->p_memsz) & ~(page_bytes - 1);
        }
    }
    if (module->from != NULL) {
        call_take_pointers(object, module, relro, relro_end);
        return 1;
    }
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB:
            symbols = (const ElfW(Sym) *)call_table(object, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            names = (const char *)call_table(object, entry->d_un.d_ptr);
            break;
        case DT_RELA:
            tables[0] = call_table(object, entry->d_un.d_ptr);
            break;
        case DT_RELASZ:
            bytes[0] = entry->d_un.d_val;
            break;
        case DT_JMPREL:
            tables[1] = call_table(object, entry->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            bytes[1] = entry->d_un.d_val;
            break;
        default:
            break;
        }
    }
    if (symbols == NULL || names == NULL) {
        module->error = ENOEXEC;
        return 1;
    }
    for (table = 0; table < 2; table++)
        if (tables[table] != 0)
            call_take_table(object, module, (const ElfW(Rela) *)tables[table], bytes[table], symbols, names, relro, relro_end);
    return 1;
}

/* Take the calls of a module over. The count of its syncs, or of the pointers; -1: it is not loaded; below: -errno - 1. */
static inline int call_module_take(const char *path, const void *address, int with_clock, void *from, void *to) {
    CallModule module = {path, address, with_clock, 0, 0, 0, from, to};
    dl_iterate_phdr(call_take_object, &module);
    return module.error != 0 ? -module.error - 1 : module.found ? module.syncs : -1;
}

/* For a child process that is to die: in place of a function that begins what it must not live to see. */
static int call_die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
    return 0;
}

static inline void *call_die_function(void) { return (void *)(uintptr_t)call_die; }

/* Arming. */

static inline int call_fault_arm(
    int kind, const char *root, const char *place, int of_topic, int64_t number, int error, int64_t delay_ns) {
    int at;
    for (at = 0; at < CALL_FAULTS_MAX; at++) {
        CallFault *fault = &call_faults[at];
        if (__atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE) != CALL_FAULT_NONE)
            continue;
        snprintf(fault->root, sizeof fault->root, "%s", root);
        snprintf(fault->place, sizeof fault->place, "%s", place);
        fault->root_bytes = strlen(fault->root);
        fault->of_topic = of_topic;
        fault->number = number;
        fault->error = error;
        fault->delay_ns = delay_ns;
        if (fault->process != getpid())
            fault->inside = 0; /* It was that of threads before a fork. */
        fault->process = getpid();
        fault->seen = fault->hits = 0;
        fault->last[0] = 0;
        __atomic_store_n(&fault->kind, kind, __ATOMIC_SEQ_CST);
        return at;
    }
    return -1;
}

/* On return no call looks at it any more; one that it delays may still sleep. */
static inline void call_fault_disarm(int number) {
    CallFault *fault = &call_faults[number];
    const struct timespec soon = {0, 100000};
    __atomic_store_n(&fault->kind, CALL_FAULT_NONE, __ATOMIC_SEQ_CST);
    while (fault->process == getpid() && __atomic_load_n(&fault->inside, __ATOMIC_SEQ_CST) > 0)
        nanosleep(&soon, NULL);
}

static inline int64_t call_fault_seen(int number) { return __atomic_load_n(&call_faults[number].seen, __ATOMIC_SEQ_CST); }

static inline int64_t call_fault_hits(int number) { return __atomic_load_n(&call_faults[number].hits, __ATOMIC_SEQ_CST); }

static inline const char *call_fault_last(int number) { return call_faults[number].last; }

static inline void call_clock_move(int64_t ahead_ns) { __atomic_store_n(&call_clock_ns, ahead_ns, __ATOMIC_SEQ_CST); }

#endif
