# cython: language_level=3
"""Where all logs end that the processes of a session have open, at one instant.

The writer's locks of all of them are held together for it, as the death of all processes would stop
them. No log is opened for that: their pages say it.

Invariants: no lock is held outside one call of C; nothing is waited for with a lock held for longer
than HELD_NS_MAX, and between two tries all who append have their turn. A log that is opened while
the pages are listed or locked is not missed: its opener raises a counter before the first append.
"""

import os
from typing import NamedTuple

from eoslog import errors

from eoslog.bindings.shared_page import COUNTER_LOGS_OPENED

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport ENOENT, ETIMEDOUT
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from eoslog.bindings.shared_page cimport SharedPage
from eoslog.native.control_page cimport (
    CONTROL_PAGE_BYTES, EOWNERDEAD, ControlPage, control_flag, control_is_ready, control_load_32,
    control_lock, control_now_ns, control_unlock, control_unlock_at_once, control_write_begin,
)
from eoslog.native.mapped_io cimport close_fd, eos_file_bytes, eos_map, eos_open, munmap
from eoslog.native.shared_page cimport shared_counter_load

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef enum:
    # So long at most the first log's writers wait for a lock of another log, at the first try. Each
    # try may take an eighth longer: where the machine is so busy that one append takes longer than
    # all that, there would be no instant else.
    HELD_NS_MIN = 3000000
    HELD_NS_MAX = 100000000
    # Between two tries no lock is held for so many times as long.
    PAUSE_FACTOR = 2
    # A waiter for one lock, which holds none, comes up so often to let Python handle signals.
    SLICE_NS = 100000000

cdef enum Outcome:
    TAKEN
    BUSY
    BROKEN
    OPENED
    REFUSED

cdef int LOGS_OPENED = COUNTER_LOGS_OPENED


class LogEnd(NamedTuple):
    """Bounds of one log: offsets, and the bytes that its active segment holds.

    The files hold all below `recovery_point` on disk. `failed`: a sync failed.
    """

    topic_id: bytes
    log_start_offset: int
    log_end_offset: int
    first_base_offset: int
    active_base_offset: int
    active_valid_bytes: int
    recovery_point: int
    failed: bool


cdef struct Taken:
    bint held
    int64_t log_start_offset
    int64_t log_end_offset
    int64_t first_base_offset
    int64_t active_base_offset
    int64_t active_valid_bytes
    int64_t recovery_point
    int32_t failed_errno


@cython.final
cdef class LogEnds:
    """The pages at these paths, of logs that are open in a session, or being opened.

    `opened` is the counter of opened logs from before the paths were listed. Files that are no
    pages of the session are left out.
    """

    cdef ControlPage** _pages
    cdef Taken* _taken
    cdef int _count
    cdef list _paths
    cdef uint8_t _session[16]
    cdef SharedPage _shared
    cdef uint64_t _opened
    cdef readonly list broken            # Paths of logs that a dead writer left to be repaired.
    cdef readonly int64_t held_ns        # How long the locks were held, at most.

    def __cinit__(self, list paths not None, SharedPage shared not None, uint64_t opened):
        cdef bytes session = shared.session
        self._count = 0
        self._shared = shared
        memcpy(self._session, <const char*>session, 16)
        self._opened = opened
        self._paths = []
        self.broken = []
        self._pages = <ControlPage**>calloc(<size_t>len(paths) + 1, sizeof(ControlPage*))
        self._taken = <Taken*>calloc(<size_t>len(paths) + 1, sizeof(Taken))
        if self._pages == NULL or self._taken == NULL:
            raise errors.OutOfMemoryError(f"{len(paths)} control pages")
        for path in paths:
            self._map(path)

    def __dealloc__(self):
        cdef int index
        for index in range(self._count):
            munmap(self._pages[index], CONTROL_PAGE_BYTES)
        free(self._pages)
        free(self._taken)

    def _map(self, path):
        cdef bytes name = os.fsencode(path)
        cdef uint8_t* mapped = NULL
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef int fd = -1
        cdef int error = eos_open(name, False, False, &fd)
        if error == 0:
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
            if error == 0 and file_bytes >= CONTROL_PAGE_BYTES:
                error = eos_map(fd, CONTROL_PAGE_BYTES, True, &mapped)
            close_fd(fd)
        if error != 0 and error != ENOENT:
            raise OSError(error, os.strerror(error), os.fspath(path))
        if mapped != NULL:
            self._pages[self._count] = <ControlPage*>mapped
            self._count += 1
            self._paths.append(path)

    def take(self, double timeout_s):
        """Return the LogEnd of each open log by its path, all of one instant.

        None if a log was opened in between, or some are `broken`: list the pages again. Raises
        StoreInUseError if a process, which is named, holds a lock for so long, or if the locks are
        not free together for so long.
        """
        cdef int64_t began_ns = control_now_ns()
        cdef int64_t held_max_ns = HELD_NS_MIN
        cdef Outcome outcome = BUSY
        cdef int busy = 0
        cdef int error = 0
        while True:
            with nogil:
                outcome = self._take_all(held_max_ns, &busy, &error)
            if outcome == REFUSED:
                raise OSError(error, os.strerror(error), os.fspath(self._paths[busy]))
            if outcome == BROKEN:
                self.broken.append(self._paths[busy])
                return None
            if outcome == OPENED:
                return None
            if outcome == TAKEN:
                return self._ends()
            self._wait_alone(busy, timeout_s)
            if (control_now_ns() - began_ns) / 1e9 > timeout_s:
                raise errors.StoreInUseError(
                    f"the locks of {self._count} logs were not free together for "
                    f"{timeout_s:.3g} s: the last one in the way was that of "
                    f"{os.path.basename(self._paths[busy])}; too much is appended at once")
            # Else a writer that sleeps for a lock could meet one try after another.
            with nogil:
                usleep(<unsigned int>(held_max_ns * PAUSE_FACTOR / 1000))
            held_max_ns = min(held_max_ns + held_max_ns // 8, <int64_t>HELD_NS_MAX)

    cdef int _wait_alone(self, int index, double timeout_s) except -1:
        """Wait for the lock of one log with no other held."""
        cdef ControlPage* page = self._pages[index]
        cdef int64_t began_ns = control_now_ns()
        cdef int taken = ETIMEDOUT
        while taken == ETIMEDOUT:
            with nogil:
                taken = control_lock(page, SLICE_NS, self._shared._process_id)
                if taken == EOWNERDEAD:
                    control_write_begin(page)
                if taken == 0 or taken == EOWNERDEAD:
                    control_unlock(page)
            PyErr_CheckSignals()
            if taken == ETIMEDOUT and (control_now_ns() - began_ns) / 1e9 > timeout_s:
                raise errors.StoreInUseError(
                    f"process {control_load_32(&page.holder)} has held the lock of the log "
                    f"{os.path.basename(self._paths[index])} for longer than {timeout_s:.3g} s: it "
                    f"hangs, or was stopped")
        return 0

    cdef Outcome _take_all(self, int64_t held_max_ns, int* busy, int* error) noexcept nogil:
        """Take all locks, note the ends, and give the locks back. `busy` is the log in the way."""
        cdef int64_t began_ns = control_now_ns()
        cdef int64_t left_ns
        cdef Outcome outcome = TAKEN
        cdef bint is_more = True
        # Those that are free come first: a writer that is done then begins with no other log.
        cdef bint waits = False
        cdef int index
        # A log that became ready since the last round may have been appended to.
        while is_more and outcome == TAKEN:
            is_more = False
            for index in range(self._count):
                if self._taken[index].held or not control_is_ready(
                        self._pages[index], self._session):
                    continue
                left_ns = held_max_ns - (control_now_ns() - began_ns) if waits else 0
                error[0] = control_lock(
                    self._pages[index], max(left_ns, <int64_t>0), self._shared._process_id)
                busy[0] = index
                if error[0] == ETIMEDOUT and not waits:
                    is_more = True
                    continue
                if error[0] == ETIMEDOUT:
                    outcome = BUSY
                    break
                if error[0] != 0 and error[0] != EOWNERDEAD:
                    outcome = REFUSED
                    break
                self._taken[index].held = is_more = True
                if error[0] == EOWNERDEAD:
                    # Any process that takes the lock next repairs the log then.
                    control_write_begin(self._pages[index])
                if control_flag(&self._pages[index].sequence) & 1:
                    outcome = BROKEN
                    break
            waits = True
        if outcome == TAKEN and shared_counter_load(
                self._shared._page, LOGS_OPENED) != self._opened:
            outcome = OPENED
        for index in range(self._count):
            if self._taken[index].held:
                self._note(index)
        for index in range(self._count):
            if self._taken[index].held:
                control_unlock_at_once(self._pages[index])
                self._taken[index].held = outcome == TAKEN
        self.held_ns = max(self.held_ns, control_now_ns() - began_ns)
        return outcome

    cdef void _note(self, int index) noexcept nogil:
        cdef ControlPage* page = self._pages[index]
        cdef Taken* taken = &self._taken[index]
        taken.log_start_offset = page.log_start_offset
        taken.log_end_offset = page.log_end_offset
        taken.first_base_offset = page.first_base_offset
        taken.active_base_offset = page.active_base_offset
        taken.active_valid_bytes = page.active_valid_bytes
        taken.recovery_point = page.recovery_point
        taken.failed_errno = page.failed_errno

    cdef dict _ends(self):
        cdef dict found = {}
        cdef Taken* one
        cdef int index
        for index in range(self._count):
            one = &self._taken[index]
            if one.held:
                found[self._paths[index]] = LogEnd(
                    (<const char*>self._pages[index].topic_id)[:16], one.log_start_offset,
                    one.log_end_offset, one.first_base_offset, one.active_base_offset,
                    one.active_valid_bytes, one.recovery_point, one.failed_errno != 0)
        return found
