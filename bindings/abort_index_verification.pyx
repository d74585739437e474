# cython: language_level=3
"""Check that the abort index has a log's aborted transactions as the log itself has them.

The log is followed batch by batch, and not by way of the engine's own index: a mistake there would
show. The engine's index must be whole, or readers would get what was aborted. Its files are written
later, so an entry that is not stored yet may be missing; the entries of a file must be true.
"""

import os
import struct

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from eoslog.bindings.status cimport raise_status
from eoslog.native.abort_files cimport AbortFile, abort_file_describe
from eoslog.native.abort_index cimport (
    ABORT_ENTRY_BYTES, AbortedTransaction, abort_index_collect,
)
from eoslog.native.log_lock cimport log_lock, log_unlock, log_view, log_view_end
from eoslog.native.log_replay cimport MARKER_ABORT, marker_load
from eoslog.native.mapped_io cimport (
    ENOENT, ENOMEM, close_fd, eos_file_bytes, eos_open, eos_pread_all,
)
from eoslog.native.partition_log cimport PartitionLog as NativeLog
from eoslog.native.partition_log cimport log_end
from eoslog.native.record_batch cimport ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader
from eoslog.native.status cimport STATUS_FAILED, STATUS_OK, Fault, Status

_ENTRY = struct.Struct(">hqqqq")
_BEFORE_THE_LOG = -1                 # First offset of a transaction whose batches are not there.


@cython.final
cdef class AbortIndexCheck:
    """Follows a log from its oldest segment on; each segment's file is checked at its end.

    `log_first_offset` is where the oldest segment begins, or the log start if that is higher. Of a
    transaction that began before it, only the producer and the marker are checked; one that ended
    before it is not.
    """

    def __init__(self, Py_ssize_t log_first_offset):
        self._open = {}
        self._aborted = []
        self._log_first_offset = log_first_offset
        self._lost = False

    cdef int follow(self, const uint8_t* batch, const BatchHeader* header) except -1:
        """Take in the next batch, which is sound: a transaction begins, goes on, or ends."""
        cdef int16_t marker_type = 0
        cdef int32_t coordinator_epoch = 0
        cdef int64_t timestamp = 0
        if not header.attributes & ATTRIBUTE_TRANSACTIONAL or header.producer_id < 0:
            return 0
        if not header.attributes & ATTRIBUTE_CONTROL:
            # Transactions come in the order of their first offsets, and a dict keeps it.
            self._open.setdefault(header.producer_id, header.base_offset)
            return 0
        if not marker_load(batch, header, &marker_type, &coordinator_epoch, &timestamp):
            return 0
        first = self._open.pop(header.producer_id, _BEFORE_THE_LOG)
        # Without batches it was empty, and has no entry; or they were deleted, and it has one.
        if marker_type == MARKER_ABORT and (first >= 0 or self._log_first_offset > 0):
            last = header.base_offset
            if last < self._log_first_offset:
                first = _BEFORE_THE_LOG
            stable = next(iter(self._open.values()), last + 1)
            self._aborted.append((header.producer_id, first, last, stable))
        return 0

    cdef void lose_track(self) noexcept:
        """Note that a batch cannot be read: from here on aborts are unknown."""
        self._lost = True

    cdef int check_segment(
        self, OpenedLog log, dict described, int64_t upper_bound, list problems
    ) except -1:
        """Compare what was followed of a segment, up to an offset, with the index and its file.

        `described` is an entry of PartitionLog.segment_files().
        """
        cdef list expected = self._aborted
        cdef AbortIndexView view
        self._aborted = []
        if self._lost:
            return 0
        path = described["path"][:-4] + ".txnindex"
        view = view_of(log, path, described["base_offset"], upper_bound)
        if view is None:
            return 0                 # The segment has been deleted.
        found = self._wrong_in_memory(view, expected)
        if found is None:
            found = self._wrong_in_file(view, upper_bound, expected)
        if found is not None:
            at_bytes, reason = found
            problems.append({"path": path, "position_bytes": at_bytes, "reason": reason})
        return 0

    cdef object _wrong_in_memory(self, AbortIndexView view, list expected):
        """The place of the index's first wrong or missing entry, and why; None if all is well."""
        cdef Py_ssize_t position = 0
        left = iter(expected)
        for producer_id, first, last, stable in view.entries:
            reason = difference(left, self._log_first_offset, producer_id, first, last, stable)
            if reason is not None:
                return position, f"in memory: {reason}"
            position += ABORT_ENTRY_BYTES
        for producer_id, first, last, _ in left:
            if first != _BEFORE_THE_LOG:
                return position, (
                    f"no entry of producer {producer_id}, whose transaction was aborted at offset "
                    f"{last}")
        return None

    cdef object _wrong_in_file(
        self, AbortIndexView view, int64_t upper_bound, list expected
    ):
        """The place of the file's first wrong entry, and why; None if all is well."""
        cdef bytes data = view.data
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t whole_bytes = len(data) - len(data) % ABORT_ENTRY_BYTES
        left = iter(expected)
        while position < whole_bytes:
            version, producer_id, first, last, stable = _ENTRY.unpack_from(data, position)
            if version != 0:
                return position, f"the entry's version is {version}, not 0"
            if upper_bound <= last < view.log_end_offset:
                return None          # Its marker came in while the log was being followed.
            reason = difference(left, self._log_first_offset, producer_id, first, last, stable)
            if reason is not None:
                return position, reason
            position += ABORT_ENTRY_BYTES
        if position < view.stored_count * ABORT_ENTRY_BYTES:
            held = position // ABORT_ENTRY_BYTES
            return position, f"the file holds {held} of its {view.stored_count} entries"
        if whole_bytes < len(data):
            return position, "not whole entries"
        return None


cdef object difference(
    object left, int64_t log_first_offset, object producer_id, object first, object last,
    object stable,
):
    """Return the difference of an entry from the next aborted transaction of those left; None if
    there is none.
    """
    for known in left:
        if known[0] == producer_id and known[2] == last:
            break
        if known[1] != _BEFORE_THE_LOG:
            return (f"the entry is of producer {producer_id} and the marker at offset {last}, the "
                    f"log's next is of producer {known[0]} and the marker at offset {known[2]}")
    else:
        return f"no transaction of producer {producer_id} was aborted at offset {last}"
    if first != known[1] and not 0 <= first < log_first_offset:
        begin = log_first_offset if known[1] == _BEFORE_THE_LOG else known[1]
        place = "below offset" if known[1] == _BEFORE_THE_LOG else "at offset"
        return f"the transaction begins {place} {begin}, not {first}"
    if stable != known[3] and not 0 <= stable < log_first_offset:
        return f"the last stable offset was {known[3]}, not {stable}"
    return None


@cython.final
cdef class AbortIndexView:
    """A segment's part of the index at one moment: in memory and in its file."""

    def __cinit__(self):
        self.entries = []
        self.data = b""


cdef AbortIndexView view_of(
    OpenedLog opened, str path, int64_t base_offset, int64_t upper_bound
):
    """The part with markers in [base_offset, upper_bound); None if the segment is gone."""
    cdef bytes encoded = os.fsencode(path)
    cdef const char* name = encoded
    cdef NativeLog* log = &opened._log
    cdef AbortIndexView view = AbortIndexView.__new__(AbortIndexView)
    cdef AbortedTransaction* entries = NULL
    cdef AbortFile stored
    cdef Fault fault
    cdef Status status
    cdef uint8_t* copied = NULL
    cdef int64_t copied_bytes = 0
    cdef int64_t count = 0
    cdef int64_t index
    cdef bint failed
    cdef bint followed = log.followed != NULL
    cdef bint is_gone
    cdef int error = 0
    memset(&fault, 0, sizeof(Fault))
    memset(&stored, 0, sizeof(AbortFile))
    with nogil:
        if followed:
            # By other processes, which are not held up: the log is looked at after the file.
            error = copy_file(name, &copied, &copied_bytes)
            copied_bytes -= copied_bytes % ABORT_ENTRY_BYTES
        while True:
            failed = followed
            if not followed:
                # The index and its files change with the lock held: they are read together.
                status = log_lock(log, &fault)
                failed = status == STATUS_FAILED
            if failed:
                status = log_view(log, &fault)
            if status == STATUS_OK:
                break
            with gil:
                opened._before_repeat(status, &fault)
        is_gone = log.segments[0].base_offset > base_offset
        view.log_end_offset = log_end(log)
        status = abort_file_describe(log, base_offset, upper_bound, &stored, &fault)
        if status == STATUS_OK:
            status = abort_index_collect(&log.aborts, base_offset, upper_bound, &entries, &count)
        if not followed:
            error = copy_file(name, &copied, &copied_bytes)
        if failed:
            log_view_end(log)
        else:
            log_unlock(log)
    try:
        if is_gone:
            return None
        if status != STATUS_OK:
            raise_status(status, &fault, path, path)
        if error != 0 and error != ENOENT:
            raise OSError(error, os.strerror(error), path)
        view.stored_count = 0 if followed else stored.entry_count
        view.data = PyBytes_FromStringAndSize(<const char*>copied, copied_bytes)
        for index in range(count):
            if entries[index].last_offset < upper_bound:
                view.entries.append((
                    entries[index].producer_id, entries[index].first_offset,
                    entries[index].last_offset, entries[index].last_stable_offset))
        return view
    finally:
        free(entries)
        free(copied)


cdef int copy_file(const char* path, uint8_t** copied, int64_t* copied_bytes) noexcept nogil:
    """Read a whole file into memory that is the caller's to free; 0 or an errno."""
    cdef int64_t modified_ms = 0
    cdef int64_t file_bytes = 0
    cdef int fd = -1
    cdef int error = eos_open(path, False, True, &fd)
    if error != 0:
        return error
    error = eos_file_bytes(fd, &file_bytes, &modified_ms)
    if error == 0:
        copied[0] = <uint8_t*>malloc(<size_t>file_bytes + 1)
        error = ENOMEM if copied[0] == NULL else eos_pread_all(
            fd, copied[0], <size_t>file_bytes, 0)
    if error == 0:
        copied_bytes[0] = file_bytes
    close_fd(fd)
    return error
