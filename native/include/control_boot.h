/* In which run of the kernel a control page was laid out, and in which file. If it is this run and this file, what the page says is
   true to the last store, as of a process that was killed: no power cut came between, and the page is no copy of another one.
   It stands in a sector of its own. */
#ifndef EOSLOG_CONTROL_BOOT_H
#define EOSLOG_CONTROL_BOOT_H

#include "control_page.h"

#include <fcntl.h>
#include <sys/stat.h>

typedef struct ControlBoot {
    uint8_t boot_id[16];
    uint32_t device_major, device_minor;
    uint64_t inode;
    int64_t made_s, made_ns;         /* When the file was made: another one may get its inode. */
} ControlBoot;

/* Up to where the log was synced by the pages before, in the same run and file: kept by all of them, and true until the page is ready,
   so that a recovery which fails, or dies, leaves the next one what it knew itself. */
typedef struct ControlBootSynced {
    int64_t offset;
    int64_t inverted;                /* ~offset; else nothing is said. */
} ControlBootSynced;

#define CONTROL_BOOT_AT 3072
#define CONTROL_BOOT_SYNCED_AT 3120

_Static_assert(sizeof(ControlPage) <= CONTROL_BOOT_AT, "control page: its own fields end before its run of the kernel");
_Static_assert(CONTROL_BOOT_AT + sizeof(ControlBoot) <= CONTROL_BOOT_SYNCED_AT, "control page: its run of the kernel ends before its point");
_Static_assert(CONTROL_BOOT_SYNCED_AT + sizeof(ControlBootSynced) <= CONTROL_SYNCED_AT, "control page: its point ends before what is kept");
_Static_assert(sizeof(ControlBoot) == 48, "control page: no padding to compare");

/* Whether the run of the kernel and the page's file are known; else `here` is all zeros. */
static inline int control_boot_here(ControlBoot *here, const uint8_t *boot_id, int fd) {
    struct statx found;
    memset(here, 0, sizeof *here);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &found) != 0 || (found.stx_mask & STATX_BTIME) == 0)
        return 0;
    memcpy(here->boot_id, boot_id, sizeof here->boot_id);
    here->device_major = found.stx_dev_major;
    here->device_minor = found.stx_dev_minor;
    here->inode = found.stx_ino;
    here->made_s = found.stx_btime.tv_sec;
    here->made_ns = found.stx_btime.tv_nsec;
    return 1;
}

static inline ControlBootSynced *control_boot_synced(ControlPage *page) {
    return (ControlBootSynced *)((uint8_t *)page + CONTROL_BOOT_SYNCED_AT);
}

/* Up to where a log was synced by the page of a process of this run that died with the log open; 0 if that is not known. What was
   closed people copy and replace. To be asked before the page is laid out again. */
static inline int64_t control_synced_this_boot(ControlPage *page, const uint8_t *topic_id, int32_t partition, const ControlBoot *here) {
    const ControlBootSynced *kept = control_boot_synced(page);
    if (memcmp((const uint8_t *)page + CONTROL_BOOT_AT, here, sizeof *here) != 0)
        return 0;
    if (!control_is_ready(page, page->session))
        return control_synced_is_of(control_synced(page), topic_id, partition) && kept->inverted == ~kept->offset ? kept->offset : 0;
    if (!control_is_of(page, topic_id, partition) || page->sealed != 0 || page->failed_errno != 0 ||
        page->recovery_point > page->log_end_offset)
        return 0;
    return page->recovery_point;
}

/* Keep that, before the page is laid out again. */
static inline void control_keep_synced_this_boot(ControlPage *page, int64_t offset) {
    ControlBootSynced *kept = control_boot_synced(page);
    if (kept->inverted == ~offset && kept->offset == offset)
        return;
    CRASH_POINT("control page: synced in this run, inverted");
    kept->inverted = offset;
    CRASH_POINT("control page: synced in this run");
    __atomic_store_n(&kept->offset, offset, __ATOMIC_RELEASE);
    CRASH_POINT("control page: synced in this run, inverted");
    __atomic_store_n(&kept->inverted, ~offset, __ATOMIC_RELEASE);
}

/* After it was laid out again, and before it is ready. */
static inline void control_note_boot(ControlPage *page, const ControlBoot *here) {
    CRASH_POINT("control page: run of the kernel");
    memcpy((uint8_t *)page + CONTROL_BOOT_AT, here, sizeof *here);
}

#endif
