/* In which run of the kernel a control page was laid out, and in which file. If it is this run and this file, what the page says is
   true to the last store, as of a process that was killed: no power cut came between, and the page is no copy that somebody made of
   another one. It stands in a sector of its own. */
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

#define CONTROL_BOOT_AT 3072

_Static_assert(sizeof(ControlPage) <= CONTROL_BOOT_AT, "control page: its own fields end before its run of the kernel");
_Static_assert(CONTROL_BOOT_AT + sizeof(ControlBoot) <= CONTROL_SYNCED_AT, "control page: its run of the kernel ends before what is kept");
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

/* Up to where a log was synced by the page of a process of this run that died with the log open; 0 if that is not known. What was
   closed people copy and replace. To be asked before the page is laid out anew. */
static inline int64_t control_synced_this_boot(ControlPage *page, const uint8_t *topic_id, int32_t partition, const ControlBoot *here) {
    if (memcmp((const uint8_t *)page + CONTROL_BOOT_AT, here, sizeof *here) != 0 || !control_is_ready(page, page->session) ||
        !control_is_of(page, topic_id, partition) || page->sealed != 0 || page->failed_errno != 0 ||
        page->recovery_point > page->log_end_offset)
        return 0;
    return page->recovery_point;
}

/* After it was laid out anew, and before it is ready. */
static inline void control_note_boot(ControlPage *page, const ControlBoot *here) {
    CRASH_POINT("control page: run of the kernel");
    memcpy((uint8_t *)page + CONTROL_BOOT_AT, here, sizeof *here);
}

#endif
