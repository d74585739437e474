# cython: language_level=3
"""The native log of one partition, opened: its control page, its directories, where it begins and
ends.
"""

import errno
import fcntl
import os
import threading
import time
import zlib
from contextlib import suppress

from eoslog import errors
from eoslog.bindings.file_descriptor import make_directories
from eoslog.bindings.segment_times import newest_timestamp
from eoslog.bindings.shared_page import COUNTER_LOGS_OPENED
from eoslog.bindings.snapshot_files import (
    SEGMENT_NAME, remove_stray_snapshots, snapshot_offsets, snapshot_path,
)

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from eoslog.bindings.status cimport raise_status
cimport cython
from posix.unistd cimport getpid

from eoslog.native.atomics cimport before_files, load_acquire_64, store_release_64
from eoslog.bindings.counter_page cimport CounterPage
from eoslog.bindings.shared_page cimport SharedPage
from eoslog.native.commit_journal cimport CommitJournal as NativeJournal, journal_leave
from eoslog.native.control_boot cimport (
    ControlBoot, control_boot_here, control_keep_synced_this_boot, control_note_boot,
    control_synced_this_boot,
)
from eoslog.native.control_page cimport (
    CONTROL_NO_HOLD, CONTROL_PAGE_BYTES, CONTROL_WANT_SHARED, ControlPage, control_flag,
    ControlView, control_now_ns, control_init, control_is_of, control_is_ready,
    control_keep_synced, control_load,
    control_set_flag, control_start_before, control_store, control_synced_before, control_want,
)
from eoslog.native.log_close cimport log_detach
from eoslog.native.log_follow cimport log_attach, log_attach_lock, log_attach_unlock
from eoslog.native.log_lock cimport log_refresh, log_view, log_view_end
from eoslog.native.log_recovery cimport log_open
from eoslog.native.mapped_io cimport (
    WatchedFile, close_fd, eos_file_bytes, eos_is_unchanged, eos_map, eos_map_anonymous,
    eos_maps_keep_locks, eos_open, eos_reserve, munmap,
)
from eoslog.native.open_files cimport open_files_make_room
from eoslog.native.partition_log cimport (
    SegmentFile, deleted_segments_free, log_end, log_enter_files, log_failure, log_free,
    log_init, log_look, log_stable_end, pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.segment cimport SEGMENT_REOPENED, Segment
from eoslog.native.shared_page cimport shared_counter_raise
from eoslog.native.status cimport (
    STATUS_FAILED, STATUS_FELL_BEHIND, STATUS_IO, STATUS_OK, STATUS_PRODUCER_NOT_CACHED,
    STATUS_REOPENED,
)

_DERIVED_SUFFIXES = (".index", ".timeindex", ".txnindex")
_LEFTOVER_SUFFIXES = (".deleted", ".cleaned", ".snapshot.tmp")
_OPENING_S_MAX = 600
_OPENING_LOOK_S = 0.002
# So long a file that is gone is waited to be explained: a process opens the log, or deletes it.
_GONE_S = 1.0
_NO_LIMIT = 0x7FFFFFFFFFFFFFFF
cdef int LOGS_OPENED = COUNTER_LOGS_OPENED
cdef enum:
    AWAITED_LOOK_NS = 10_000_000     # Whether a process has opened a log is looked at so often.
_SETTINGS = ("segment.bytes", "segment.index.bytes", "index.interval.bytes", "segment.ms",
             "max.message.bytes")


# The journal must be there until the log has left it.
@cython.no_gc_clear
cdef class OpenedLog:
    """Parts that reading, appending and keeping producers share.

    In the middle of a call the engine may need the row of a producer that is not in memory, or to
    be attached again because another process deleted segments that were not read here. The
    callbacks do that, with no lock of the engine held, and the call goes on from where it stopped.
    Without callbacks it raises StoreError or FellBehindError.

    With `followed`, the session of the processes that have the store open, they are only followed:
    no file is created, written or synced, and no lock taken that a process waits for. The page is
    one of this process's own then, which each call brings up to theirs. With `awaited`, the page's
    path, a log that was opened in an overlay is followed as soon as one of them has opened it:
    `opened_in` is the session of the page before that. `watched` is a file of the store, as path,
    device, inode and the time of its last change in seconds and nanoseconds: while it is as it was
    then, the files are the log's. With `topic_id_text` it may be touched, but has to hold that.
    """

    def __cinit__(self):
        memset(&self._log, 0, sizeof(NativeLog))
        self._page_map = NULL
        self._followed_map = NULL
        self._page_fd = -1

    def __init__(self, str path, *, str topic, Py_ssize_t partition, str control_path,
                 str spare_path, str cut_path, dict config not None, bint clean,
                 Py_ssize_t recovery_point=0, Py_ssize_t log_start_offset=0,
                 bytes session=None, SharedPage shared=None, bytes topic_id=bytes(16),
                 LogOpening opening=None, bytes boot_id=None, CommitJournal journal=None,
                 watched=None, str topic_id_text=None, str shown_path=None, bytes followed=None,
                 CounterPage counters=None, str awaited=None, bytes opened_in=None):
        if self._page_map != NULL:
            raise ValueError("the partition log is already open")
        self.path = path
        self.shown_path = path if shown_path is None else shown_path
        self.topic = topic
        if not 0 <= partition <= 0x7FFFFFFF:
            raise ValueError(f"partition {partition} is outside [0, 2**31)")
        self.partition = <int>partition
        self._close_lock = threading.Lock()
        self._load_producer = self._reattach = self._may_follow = None
        self._control_path = control_path if awaited is None else awaited
        self._looks = followed is not None or awaited is not None
        self._opened_in = opened_in
        self._checkpoint = recovery_point
        self._directory_bytes = os.fsencode(path)
        self._spare_bytes = os.fsencode(spare_path)
        self._cut_bytes = os.fsencode(cut_path)
        self._page_directory_bytes = os.fsencode(os.path.dirname(control_path))
        for directory in (cut_path, os.path.dirname(control_path)):
            if followed is None and not os.path.isdir(directory):
                make_directories(directory)
        self._log.directory = self._directory_bytes
        self._log.spare_directory = self._spare_bytes
        self._log.cut_directory = self._cut_bytes
        if config.get("eoslog.page.unsynced", 0):
            self._log.page_directory = self._page_directory_bytes
        self._set_options(config)
        self._watch(watched, topic_id_text)
        self._log.options.segment.overlay = watched is not None and followed is None
        self._log.process_id = os.getpid()
        self._shared = shared
        if counters is not None:
            self._counters = counters
            self._log.counts = counters.counts
        if shared is not None:
            self._log.wake_word = &shared._page.wakeup
            # Those of a topic get one after the other: 32 of them share none.
            self._log.wake_bit = <uint32_t>1 << (
                (zlib.crc32(topic_id) + <size_t>partition) % 32)
        log_init(&self._log)
        open_files_make_room()
        if opening is not None:
            opening._log = self
        if followed is None:
            self._open_page(control_path, session, topic_id, boot_id)
        else:
            self._make_own_page(followed, topic_id)
        self._log.producers_unknown = session is not None or followed is not None
        self._log.own_end = -1
        if self.attached:
            self._attach()
            self._let_others_in()
        else:
            self._open_log(clean, recovery_point, log_start_offset)
        log_enter_files(&self._log)
        if journal is not None:
            self._journal = journal
            journal.logs[<size_t>&self._log] = self
            self._log.journal = &journal.native

    cdef int _leave_journal(self) noexcept:
        """Have the journal know the log no more, which is being closed."""
        # In the child of a fork its lock may be held for ever.
        if self._log.journal != NULL and self._log.process_id == getpid():
            with nogil:
                journal_leave(<NativeJournal*>self._log.journal, &self._log)
        return 0

    def __dealloc__(self):
        self._leave_journal()
        if self._page_fd >= 0:
            close_fd(self._page_fd)
        log_free(&self._log)
        if self._page_map != NULL:
            munmap(self._page_map, CONTROL_PAGE_BYTES)
        if self._followed_map != NULL:
            munmap(self._followed_map, CONTROL_PAGE_BYTES)

    cdef int _set_topic_options(self, LogOptions* options, dict config) except -1:
        for name in _SETTINGS:
            if name not in config:
                raise ValueError(f"config has no {name!r}")
        options.segment.segment_bytes = config["segment.bytes"]
        options.segment.segment_index_bytes = config["segment.index.bytes"]
        options.segment.index_interval_bytes = config["index.interval.bytes"]
        options.roll_bytes = min(
            config["segment.bytes"], config.get("eoslog.roll.bytes", config["segment.bytes"]))
        options.segment_ms = config["segment.ms"]
        options.max_message_bytes = config["max.message.bytes"]
        options.timestamp_before_max_ms = config.get("message.timestamp.before.max.ms", _NO_LIMIT)
        options.timestamp_after_max_ms = config.get("message.timestamp.after.max.ms", _NO_LIMIT)
        if not 0 < options.segment.segment_bytes <= 0x7FFFFFFF:
            raise ValueError(f"segment.bytes {config['segment.bytes']} is outside [1, 2**31)")
        return 0

    def alter(self, dict config not None):
        """Go on with other settings of the topic: `config` as at the opening, of which those that
        are the store's have no effect.

        Appends that begin later follow them. The active segment ends before it grows beyond the
        smaller one of its own size and the new one.
        """
        cdef LogOptions options = self._log.options
        self._check_open()
        self._set_topic_options(&options, config)
        with nogil:
            pthread_mutex_lock(&self._log.view_lock)
            pthread_mutex_lock(&self._log.segments_lock)
            self._log.options = options
            pthread_mutex_unlock(&self._log.segments_lock)
            pthread_mutex_unlock(&self._log.view_lock)

    cdef int _set_options(self, dict config) except -1:
        self._set_topic_options(&self._log.options, config)
        self._log.options.segment.fill_bytes = config.get("eoslog.fill.bytes", 1 << 20)
        self._log.options.spare_segments = config.get("eoslog.spare.segments", 1)
        self._log.options.leader_epoch = 0
        self._log.options.written_bytes_min = config.get("eoslog.written.bytes", _NO_LIMIT)
        self._log.options.durable = config.get("eoslog.durable", 0) != 0
        if not self._log.options.durable and eos_maps_keep_locks(self._log.directory):
            self._log.options.mapped_max = config.get("eoslog.mapped.files", 0)
        self._log.options.holes_below = config.get("eoslog.holes.below", 0)
        if self._log.options.segment.fill_bytes < 4096:
            raise ValueError(f"eoslog.fill.bytes {config['eoslog.fill.bytes']} is below 4096")
        return 0

    cdef int _watch(self, watched, str topic_id_text) except -1:
        cdef WatchedFile* file = &self._log.options.segment.watched
        if watched is None:
            return 0
        self._watched_bytes = os.fsencode(watched[0])
        file.path = self._watched_bytes
        if topic_id_text is not None:
            self._topic_id_bytes = topic_id_text.encode()
            file.text = self._topic_id_bytes
        file.device, file.inode, file.changed_s, file.changed_ns = watched[1:]
        return 0

    cdef int _open_page(
        self, str control_path, bytes session, bytes topic_id, bytes boot_id
    ) except -1:
        """Map the page; it is initialized unless it is of this session and others may attach.

        With a session the file stays locked until _let_others_in. `synced_before` comes from
        earlier sessions of the same log, and stays in the page. With `boot_id` what the page of a
        process says that died in the same run of the kernel counts for the recovery.
        """
        cdef ControlBoot boot
        cdef bytes path = os.fsencode(control_path)
        cdef bytes own_session = os.urandom(16) if session is None else session
        cdef const uint8_t* raw = own_session
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef int64_t start_before
        cdef int fd = -1
        cdef int error
        if len(own_session) != 16:
            raise ValueError(f"session must have 16 bytes, got {len(own_session)}")
        if len(topic_id) != 16:
            raise ValueError(f"topic id must have 16 bytes, got {len(topic_id)}")
        if boot_id is not None and len(boot_id) != 16:
            raise ValueError(f"boot id must have 16 bytes, got {len(boot_id)}")
        memset(&boot, 0, sizeof(ControlBoot))
        error = eos_open(path, True, False, &fd)
        if error == 0:
            self._page_fd = fd
            if session is not None:
                self._wait_for_page(control_path)
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
            if error == 0 and file_bytes < CONTROL_PAGE_BYTES:
                error = eos_reserve(fd, 0, CONTROL_PAGE_BYTES, CONTROL_PAGE_BYTES)
            if error == 0:
                error = eos_map(fd, CONTROL_PAGE_BYTES, True, &self._page_map)
        if error == 0:
            self._log.page = <ControlPage*>self._page_map
            self.attached = session is not None and control_is_ready(self._log.page, raw)
            if not self.attached:
                if boot_id is not None and control_boot_here(&boot, boot_id, fd):
                    self._synced_this_boot = control_synced_this_boot(
                        self._log.page, topic_id, self.partition, &boot)
                # Before the page names the log and the run of the kernel.
                control_keep_synced_this_boot(self._log.page, self._synced_this_boot)
                # Stored after the sync that it records, so it is true after a power cut too.
                self.synced_before = control_synced_before(
                    self._log.page, topic_id, self.partition)
                control_keep_synced(
                    self._log.page, topic_id, self.partition, self.synced_before)
                start_before = control_start_before(self._log.page, topic_id, self.partition)
                error = control_init(self._log.page, raw)
                self._log.page.log_start_offset = start_before
                self._log.page.active_capacity_bytes = (
                    self._log.options.segment.segment_bytes)
                control_note_boot(self._log.page, &boot)
                memcpy(self._log.page.topic_id, <const uint8_t*>topic_id, 16)
                self._log.page.partition = self.partition
                # Before the first append: who looks for all open logs would miss this one else.
                if self._shared is not None:
                    shared_counter_raise((<SharedPage>self._shared)._page, LOGS_OPENED)
        if error != 0:
            raise OSError(error, os.strerror(error), control_path)
        if session is None:
            self._let_others_in()
        return 0

    cdef int _make_own_page(self, bytes session, bytes topic_id) except -1:
        """Make a page of this process's own, for a log that is only read here."""
        if len(session) != 16 or len(topic_id) != 16:
            raise ValueError("a session and a topic id must have 16 bytes each")
        self._page_map = eos_map_anonymous(CONTROL_PAGE_BYTES)
        if self._page_map == NULL:
            raise errors.OutOfMemoryError("no memory for a page")
        self._log.page = <ControlPage*>self._page_map
        control_init(self._log.page, <const uint8_t*>session)
        memcpy(self._log.page.topic_id, <const uint8_t*>topic_id, 16)
        self._log.page.partition = self.partition
        self.attached = True
        if not self._follow_page(lambda opened_in: opened_in == session):
            raise errors.FellBehindError(
                f"{self.topic}-{self.partition}: no process of the session has opened it")
        return 0

    cdef bint _follow_page(self, may_follow) except -1:
        """Go by the page of the processes that have the log open, or had it in another session than
        is known here, if `may_follow` says so of that session.
        """
        cdef bytes path = os.fsencode(self._control_path)
        cdef bytes session = None
        cdef uint8_t* former = NULL
        cdef uint8_t* found = NULL
        cdef const ControlPage* page
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef int fd = -1
        cdef int error = eos_open(path, False, True, &fd)
        if error == 0:
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
        if error == 0 and file_bytes >= CONTROL_PAGE_BYTES:
            error = eos_map(fd, CONTROL_PAGE_BYTES, False, &found)
        if fd >= 0:
            close_fd(fd)
        if error != 0 and error != errno.ENOENT:
            raise OSError(error, os.strerror(error), self._control_path)
        page = <const ControlPage*>found
        try:
            if found != NULL:
                session = page.session[:16]
            if session is None or session == self._opened_in or not (
                    control_is_ready(page, session)
                    and control_is_of(page, self._log.page.topic_id, self.partition)
                    and may_follow(session)):
                return False
            self._opened_in = session
        finally:
            if found != NULL and session is not self._opened_in:
                munmap(found, CONTROL_PAGE_BYTES)
        # Who is following just now has the pages as they were.
        with nogil:
            pthread_mutex_lock(&self._log.view_lock)
            pthread_mutex_lock(&self._log.follow_lock)
        former = self._followed_map
        if self._log.followed == NULL and self._log.opened:
            # In an overlay so far.
            self._followed_bytes = os.fsencode(self.shown_path)
            self._log.next_directory = self._followed_bytes
            self.path = self.shown_path
            self.attached = True
        self._followed_map = found
        self._log.followed = page
        memcpy(self._log.page.session, <const uint8_t*>session, 16)
        self._log.renewed = True
        pthread_mutex_unlock(&self._log.follow_lock)
        pthread_mutex_unlock(&self._log.view_lock)
        if former != NULL:
            munmap(former, CONTROL_PAGE_BYTES)
        return True

    cdef int _look(self) except -1:
        """Of a log that is only read here, know what its page says by now. If that is of another
        session, and the store was taken up in it, it is to be attached to again.
        """
        cdef int64_t now_ns
        if self._log.followed == NULL:
            now_ns = control_now_ns()
            if now_ns - self._looked_ns < AWAITED_LOOK_NS:
                return 0
            self._looked_ns = now_ns
        elif log_look(&self._log, NULL):
            return 0
        if self._may_follow is not None and self._follow_page(self._may_follow):
            log_look(&self._log, NULL)
        return 0

    cdef int _check_files(self) except -1:
        """Check that the files of a log that is only read are still the log's."""
        cdef const WatchedFile* watched = &self._log.options.segment.watched
        if watched.path == NULL or eos_is_unchanged(watched):
            return 0
        if watched.text != NULL:
            raise errors.LogClosedError(f"{self.topic}-{self.partition} was deleted")
        raise errors.StoreReopenedError(
            f"{self.topic}-{self.partition}: {SEGMENT_REOPENED.decode()}: open it again")

    cdef bint _is_renewed(self, Status status, const Fault* fault) except -1:
        """True if a file is gone because another session has the log, which is followed now. Raises
        LogClosedError if the topic is being deleted: its files go one after the other.
        """
        if not self._looks or status != STATUS_IO or fault.os_errno != errno.ENOENT:
            return False
        until_s = time.monotonic() + _GONE_S
        while not self._log.renewed and time.monotonic() < until_s:
            self._looked_ns = 0
            self._check_open()
            if not self._log.renewed:
                time.sleep(_OPENING_LOOK_S)
        return self._log.renewed

    def _wait_for_page(self, control_path):
        """Lock the page's file; another process may be opening, and recovering, the partition."""
        until_s = time.monotonic() + _OPENING_S_MAX
        while True:
            try:
                fcntl.flock(self._page_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise errors.StoreInUseError(
                        f"{self.topic}-{self.partition}: a process has been opening it, with "
                        f"{control_path} locked, for {_OPENING_S_MAX} s") from None
            time.sleep(_OPENING_LOOK_S)

    def forget_synced_before(self):
        """Set the page's synced end back to the log's end: a higher one is known to be wrong."""
        if self._page_map == NULL:
            return
        with self._close_lock:
            if self._page_map != NULL:
                control_keep_synced(
                    self._log.page, self._log.page.topic_id, self.partition, log_end(&self._log))

    cdef int _let_others_in(self) except -1:
        """Let others attach: what is written to the page is true."""
        if self._page_fd >= 0:
            # Explicitly: a child that was forked just now may have a copy open.
            fcntl.flock(self._page_fd, fcntl.LOCK_UN)
            close_fd(self._page_fd)
            self._page_fd = -1
        return 0

    cdef int _give_up_opening(self) except -1:
        """Close it as it is. Another process opens it again, if none was let in yet."""
        with self._close_lock:
            if self._page_map != NULL and self._log.opened and not self._log.closed:
                with nogil:
                    log_detach(&self._log)
                self._leave_journal()
            self._let_others_in()
        return 0

    cdef object _files_found(self):
        """(base offset, bytes) of each segment file, in order; and all names."""
        cdef list found = []
        names = set(os.listdir(self.path))
        for name in sorted(names):
            match = SEGMENT_NAME.fullmatch(name)
            # A file that is being deleted may be gone by now.
            with suppress(FileNotFoundError):
                if match:
                    path = os.path.join(self.path, name)
                    if int(match[1]) > INT64_MAX:
                        raise errors.CorruptRecordError(path, 0, "no offset is so high")
                    found.append((int(match[1]), os.path.getsize(path)))
        return found, names

    cdef int _open_log(self, bint clean, int64_t recovery_point, int64_t log_start) except -1:
        cdef SegmentFile* files
        cdef Fault fault
        cdef Status status
        cdef int32_t count = 0
        found, names = self._files_found()
        for name in names:
            if name.endswith(_LEFTOVER_SUFFIXES) or (
                    name.endswith(_DERIVED_SUFFIXES) and name[:20] + ".log" not in names):
                os.unlink(os.path.join(self.path, name))
        files = native_files(found, &count)
        self._fault_init(&fault)
        if not clean:
            recovery_point = max(recovery_point, self._synced_this_boot)
        with nogil:
            status = log_open(&self._log, files, count, clean, recovery_point,
                              self._checkpoint, log_start, &fault)
        free(files)
        if status != STATUS_OK:
            self._raise(status, &fault)
        self._was_clean = clean
        self._log.own_end = log_end(&self._log)
        remove_stray_snapshots(self.path, log_end(&self._log), clean=clean)
        return 0

    cdef int _attach(self) except -1:
        """Attach to a log that is open elsewhere; no process appends, rolls or deletes now."""
        cdef Fault fault
        cdef Status status = STATUS_FELL_BEHIND
        cdef ControlView view
        while status != STATUS_OK:
            self._fault_init(&fault)
            status = self._try_to_attach(&view, &fault)
            if status != STATUS_OK and not self._has_moved(&view):
                self._raise(status, &fault)
        return 0

    cdef Status _try_to_attach(self, ControlView* view, Fault* fault) except *:
        cdef SegmentFile* files = NULL
        cdef int32_t count = 0
        cdef bint is_attached = False
        cdef Status status
        with nogil:
            status = log_attach_lock(&self._log, view, fault)
            if status == STATUS_OK:
                pthread_mutex_lock(&self._log.view_lock)
        if status != STATUS_OK:
            return status
        try:
            files = native_files(self._files_found()[0], &count)
            with nogil:
                status = log_attach(&self._log, view, files, count, self._checkpoint, fault)
            is_attached = status == STATUS_OK
        finally:
            free(files)
            self._log.closed = not is_attached
            pthread_mutex_unlock(&self._log.view_lock)
            log_attach_unlock(&self._log)
            deleted_segments_free(&self._log)
        return status

    cdef bint _has_moved(self, const ControlView* view) noexcept:
        """True if segments of a log that is only read here were ended or deleted since a view."""
        cdef ControlView now
        if self._log.followed == NULL:
            return False
        log_look(&self._log, &now)
        return not control_flag(&self._log.page.deleted) and (
            now.first_base_offset != view.first_base_offset
            or now.active_base_offset != view.active_base_offset)

    def set_callbacks(self, load_producer, reattach, may_follow=None):
        """Have `load_producer(producer_id)` and `reattach()` called when the engine asks for that.

        A callback returns when the call can be repeated, or raises what the call raises then.
        `may_follow(session)`, for a log that is only read here, returns True if what processes of
        a session wrote to the log's page counts.
        """
        self._load_producer = load_producer
        self._reattach = reattach
        self._may_follow = may_follow

    cdef int _before_repeat(self, Status status, Fault* fault, str path=None) except -1:
        """Do what the engine asks for, so that the call can be repeated; raise any other error.

        `path` is what a CorruptRecordError names, if that is not the log.
        """
        if self._is_renewed(status, fault):
            return 0
        if status == STATUS_FELL_BEHIND and self._reattach is not None:
            self._reattach()
        elif status == STATUS_PRODUCER_NOT_CACHED and self._load_producer is not None:
            self._load_producer(fault.actual)
        else:
            self._raise(status, fault, path)
        return 0

    @property
    def fell_behind(self):
        """True if the log has to be reattached: something was deleted that was not read here."""
        cdef Fault fault
        cdef Status status
        cdef bint is_unknown
        self._check_open()
        self._fault_init(&fault)
        with nogil:
            status = log_view(&self._log, &fault)
        if status == STATUS_FELL_BEHIND:
            return True
        if status != STATUS_OK:
            self._raise(status, &fault)
        is_unknown = self._log.producers_unknown
        log_view_end(&self._log)
        return is_unknown

    def reattach(self):
        """Attach again to the log as it is; restore_producers follows.

        Until then readers of decided data see nothing of it.
        """
        self._check_open()
        self.attached = True
        self._attach()
        log_enter_files(&self._log)

    cdef void _fault_init(self, Fault* fault) noexcept:
        memset(fault, 0, sizeof(Fault))
        fault.base_offset = -1

    cdef int _raise(self, Status status, Fault* fault, str path=None) except -1:
        if status == STATUS_REOPENED:
            self._check_files()
        if status in (STATUS_IO, STATUS_FAILED) and self._page_map != NULL and (
                control_flag(&self._log.page.deleted)):
            # A file is gone: another process is deleting the topic.
            raise errors.LogClosedError(f"{self.topic}-{self.partition} was deleted")
        return raise_status(
            status, fault, f"{self.topic}-{self.partition}",
            self.shown_path if path is None else path)

    cdef int _check_open(self) except -1:
        self._check_files()
        if self._page_map == NULL or self._log.closed or not self._log.opened:
            raise errors.LogClosedError(f"{self.topic}-{self.partition} is closed")
        if self._looks:
            self._look()
        if control_flag(&self._log.page.deleted):
            raise errors.LogClosedError(f"{self.topic}-{self.partition} was deleted")
        return 0

    cdef int _check_writable(self) except -1:
        self._check_open()
        if self._log.followed != NULL:
            raise errors.StoreReadOnlyError(
                f"{self.topic}-{self.partition} is open for reading alone")
        return 0

    cdef int _view_log(self) except -1:
        """Know of the log what was published by now, and keep it so until log_view_end; its
        producers may be unknown.
        """
        cdef Fault fault
        cdef Status status
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_view(&self._log, &fault)
            if status == STATUS_OK:
                return 0
            self._before_repeat(status, &fault)

    cdef int _view(self) except -1:
        """Know what was published by now, and keep it so until log_view_end."""
        cdef Fault fault
        while True:
            self._view_log()
            if not self._log.producers_unknown:
                return 0
            log_view_end(&self._log)
            self._fault_init(&fault)
            fault.reason = "the log is being reattached; call again"
            self._before_repeat(STATUS_FELL_BEHIND, &fault)

    cdef int _refresh(self) except -1:
        """Know what was published by now."""
        cdef Fault fault
        cdef Status status
        if self._page_map == NULL:
            return 0
        if load_acquire_64(&self._log.known_end) == control_load(&self._log.page.log_end_offset):
            return 0
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_refresh(&self._log, &fault)
                if self._looks:
                    # No background thread does it, and their files take room on the disk.
                    deleted_segments_free(&self._log)
            if status == STATUS_OK:
                return 0
            self._before_repeat(status, &fault)

    def refresh(self):
        """Take in what others appended; the log end offset. Reads and appends do it too."""
        self._check_open()
        self._refresh()
        return log_end(&self._log)

    cdef int _before_read_again(self, Status status, Fault* fault, int64_t offset) except -1:
        """Have a read that failed be repeated if another session has the log by now; else raise."""
        if self._is_renewed(status, fault):
            self._view_log()
            log_view_end(&self._log)
            return 0
        return self._raise_read(status, fault, offset)

    cdef int _raise_read(self, Status status, Fault* fault, int64_t offset) except -1:
        if status == STATUS_REOPENED:
            self._check_files()
        return raise_status(
            status, fault, f"{self.topic}-{self.partition} at offset {offset}", self.shown_path)

    cdef int64_t _bound(self, int64_t upper_bound, bint committed) except -2:
        cdef int64_t end
        self._refresh()
        end = decided_end(self) if committed else log_end(&self._log)
        return end if upper_bound < 0 or upper_bound > end else upper_bound

    cdef int64_t _readable_end(self, bint committed) except -1:
        """Return up to where a reader may read now, with what others appended."""
        cdef int64_t end, held
        self._refresh()
        # In this order: what is adopted in between lies above the offset that is held then.
        end = decided_end(self) if committed else log_end(&self._log)
        held = control_load(&self._log.page.hold_offset)
        return held if 0 <= held < end else end

    @property
    def log_start_offset(self):
        self._check_open()
        return control_load(&self._log.page.log_start_offset)

    @property
    def log_end_offset(self):
        self._check_open()
        self._refresh()
        return log_end(&self._log)

    @property
    def high_watermark(self):
        self._check_open()
        self._refresh()
        return log_end(&self._log)

    @property
    def last_stable_offset(self):
        self._check_open()
        self._refresh()
        return decided_end(self)

    @property
    def recovery_point(self):
        """Everything below is synced, by whatever process."""
        if self._page_map == NULL:
            return 0
        return control_load(&self._log.page.recovery_point)

    @property
    def hold_offset(self):
        """Offset where readers of all processes stop; -1 if nowhere before the end."""
        self._check_open()
        return control_load(&self._log.page.hold_offset)

    @hold_offset.setter
    def hold_offset(self, Py_ssize_t offset):
        self._check_writable()
        control_store(&self._log.page.hold_offset, offset if offset >= 0 else CONTROL_NO_HOLD)

    @property
    def own_end(self):
        """End of the records that this process knows: it appended them in an unbroken row, or set
        this. An append moves it on only from the append's base offset.
        """
        self._check_open()
        return load_acquire_64(&self._log.own_end)

    @own_end.setter
    def own_end(self, Py_ssize_t offset):
        self._view()
        if offset > self._log.own_end:
            store_release_64(&self._log.own_end, offset)
        log_view_end(&self._log)

    def want_wakeup(self):
        """Have the next publish, in any process, wake the sleepers on the shared page; the bit for
        which they sleep.

        Call it before the check of what is waited for.
        """
        self._check_open()
        control_want(self._log.page, CONTROL_WANT_SHARED)
        return self._log.wake_bit

    @property
    def deleted(self):
        """True if its topic was deleted, by any process."""
        if self._looks:
            self._look()
            if not eos_is_unchanged(&self._log.options.segment.watched):
                return True
        return self._page_map != NULL and bool(control_flag(&self._log.page.deleted))

    def mark_deleted(self):
        """The topic is gone: every call, in every process, raises LogClosedError from now on."""
        self._check_writable()
        control_set_flag(&self._log.page.deleted, 1)
        before_files()

    @property
    def sync_count(self):
        """Count of the syncs of the log since it was opened."""
        return self._log.sync_count

    @property
    def cut_bytes(self):
        """Bytes that recovery cut off on opening and kept in the cut directory."""
        return self._log.cut_bytes

    @property
    def failed(self):
        """True if a sync failed: appends are refused until the store was reopened."""
        return self._page_map != NULL and log_failure(&self._log) != 0

    @property
    def segment_count(self):
        return self._log.segment_count

    @property
    def fills_segments(self):
        """True if appends filled the newest sealed segment, to a half at least.

        Not so if its age ended it, or if it is a staged file that was adopted whole.
        """
        cdef Segment* sealed
        cdef bint filled = False
        self._check_open()
        self._refresh()
        pthread_mutex_lock(&self._log.segments_lock)
        if self._log.segment_count > 1:
            sealed = self._log.segments[self._log.segment_count - 2]
            filled = not sealed.linked and (
                sealed.used_bytes >= self._log.options.segment.segment_bytes // 2)
        pthread_mutex_unlock(&self._log.segments_lock)
        return filled

    @property
    def active_base_offset(self):
        self._check_open()
        return control_load(&self._log.page.active_base_offset)

    @property
    def size_bytes(self):
        """Bytes of all batches."""
        cdef int64_t total = 0
        cdef int32_t index
        self._check_open()
        self._refresh()
        with nogil:
            pthread_mutex_lock(&self._log.segments_lock)
            for index in range(self._log.segment_count):
                total += load_acquire_64(&self._log.segments[index].used_bytes)
            pthread_mutex_unlock(&self._log.segments_lock)
        return total

    def segment_files(self, bint as_in_store=False):
        """One dict a segment, oldest first: base_offset, size_bytes, path. No file is read.

        `as_in_store`: of a log that is only read, as the store has them, without the empty one that
        a recovery would write to.
        """
        cdef Segment* segment
        cdef list found = []
        cdef int32_t index
        self._check_open()
        self._view()
        log_view_end(&self._log)
        pthread_mutex_lock(&self._log.segments_lock)
        for index in range(self._log.segment_count):
            segment = self._log.segments[index]
            if segment.used_bytes > 0 or not (as_in_store and self._log.options.segment.overlay):
                found.append((segment.base_offset, segment.used_bytes))
        pthread_mutex_unlock(&self._log.segments_lock)
        path = self.shown_path if as_in_store else self.path
        return [{"base_offset": base_offset, "size_bytes": size_bytes,
                 "path": os.path.join(path, f"{base_offset:020d}.log")}
                for base_offset, size_bytes in found]

    def segments(self):
        """Return `segment_files` with largest_timestamp_ms; one just deleted is left out."""
        described = [
            segment | {"largest_timestamp_ms": self.largest_timestamp_ms(segment["base_offset"])}
            for segment in self.segment_files(as_in_store=True)
        ]
        return [one for one in described if one["largest_timestamp_ms"] is not None]

    def largest_timestamp_ms(self, Py_ssize_t base_offset):
        """The greatest timestamp of a segment's records; where none has one, when its file was last
        written to. None if there is no segment at that offset, or no more.
        """
        cdef int64_t newest = -1
        cdef int32_t index
        cdef bint is_active = False
        cdef bint is_known = False
        self._check_open()
        self._refresh()
        pthread_mutex_lock(&self._log.segments_lock)
        for index in range(self._log.segment_count):
            if self._log.segments[index].base_offset == base_offset:
                is_known = True
                is_active = index == self._log.segment_count - 1
                newest = self._log.segments[index].max_timestamp
        pthread_mutex_unlock(&self._log.segments_lock)
        if not is_known:
            return None
        path = os.path.join(self.path, f"{base_offset:020d}.log")
        try:
            if not is_active:
                found = newest_timestamp(path)
                newest = -1 if found is None else found
            return newest if newest >= 0 else int(os.path.getmtime(path) * 1000)
        except FileNotFoundError:
            if not self._was_deleted(base_offset):
                raise
            return None

    cdef bint _was_deleted(self, int64_t base_offset) except -1:
        """True if a segment that was listed was deleted since; its files go after that."""
        self._check_open()
        return control_load(&self._log.page.first_base_offset) > base_offset

    def _snapshot_path(self, offset):
        return snapshot_path(self.path, offset)

    def snapshots(self):
        """Offsets of the .snapshot files, in order."""
        return snapshot_offsets(self.path)


cdef SegmentFile* native_files(list found, int32_t* count) except NULL:
    """What was found of each segment, as (base offset, bytes); the caller frees it."""
    cdef SegmentFile* files = <SegmentFile*>malloc(
        <size_t>(len(found) + 1) * sizeof(SegmentFile))
    if files == NULL:
        raise errors.OutOfMemoryError(f"{len(found)} segments")
    for base_offset, file_bytes in found:
        files[count[0]].base_offset = base_offset
        files[count[0]].file_bytes = file_bytes
        count[0] += 1
    return files


cdef class LogOpening:
    """A block in which one log is opened, which registers here.

    It is closed again if the block ends with an exception, also where that came before the caller
    had the log: what the exception keeps alive would keep other processes out of it.
    """

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        cdef OpenedLog log = self._log
        self._log = None
        if kind is not None and log is not None:
            log._give_up_opening()


cdef int64_t decided_end(OpenedLog log) except -1:
    """The last stable offset. While another thread stores it, or takes the log up again, it may be
    lower than what the caller saw of the log: that is waited for.
    """
    cdef int64_t stable = log_stable_end(&log._log)
    if stable < log_end(&log._log) and log._reattach is not None:
        log._view()
        stable = log_stable_end(&log._log)
        log_view_end(&log._log)
    return stable
