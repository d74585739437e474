# cython: language_level=3
"""The commit journal of a process, for Python: its file, and the retiring of its halves.

What writes to it is native, and called by the logs. See docs/commit-journal.md.
"""

import os
from weakref import WeakValueDictionary

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from eoslog.bindings.counter_page cimport CounterPage
from eoslog.native.atomics cimport load_acquire_32
from eoslog.native.commit_journal cimport (
    journal_empty_half, journal_free, journal_free_buffers, journal_init, journal_start,
    journal_stop, journal_take_file, journal_wait, journal_wake, journal_write_headers,
)
from eoslog.native.crc32c cimport crc32c
from eoslog.native.journal_file cimport (
    JOURNAL_BLOCK_BYTES, JOURNAL_HALF_MAGIC, JOURNAL_RECORD_MAGIC, JOURNAL_SUMMED_AT,
    JournalHalfHeader, JournalRangeHeader, JournalRecordHeader,
)
from eoslog.native.partition_log cimport pthread_mutex_lock, pthread_mutex_unlock
from eoslog.native.shared_page cimport shared_word_load

cdef extern from "<errno.h>" nogil:
    int EBUSY

BLOCK_BYTES = JOURNAL_BLOCK_BYTES
HALVES = 2
# With those of the file before, whose numbers follow, until that one is retired.
ALL_HALVES = 2 * HALVES
JOURNAL_ID_BYTES = 16


# What it counts in must be there as long as it is.
@cython.no_gc_clear
cdef class CommitJournal:
    """The journal of this process for one store. Without a file it takes nothing: what is to be
    durable goes by the files of the logs.
    """

    def __cinit__(self, CounterPage counters=None):
        cdef int error = journal_init(&self.native)
        if error != 0:
            raise OSError(error, os.strerror(error))
        self.logs = WeakValueDictionary()
        if counters is not None:
            self._counters = counters
            self.native.counts = counters.counts

    def __dealloc__(self):
        journal_free(&self.native)

    def __reduce__(self):
        raise TypeError("a journal cannot be pickled or copied")

    @property
    def wanted(self):
        """True if threads have waited for the disk often enough for a journal to be worth it."""
        return bool(self.native.wanted)

    @property
    def usable(self):
        """True if it takes records."""
        return load_acquire_32(&self.native.usable) != 0

    @property
    def failed_errno(self):
        """The errno of the write after which its file took no more records; 0 if none failed."""
        return self.native.failed_errno

    @property
    def failed_count(self):
        """How many writes failed, to all its files."""
        return self.native.failed_count

    @property
    def fill_count(self):
        """How often a half was full."""
        return self.native.fill_count

    @property
    def half_bytes(self):
        """Size of a half of its file; 0 before it has one."""
        return self.native.half_bytes

    @property
    def counts(self):
        """What it wrote since it was made: records, bytes, and for how many waits."""
        return {"records": self.native.records_written, "bytes": self.native.bytes_written,
                "requests": self.native.requests_written}

    @staticmethod
    def write_headers(file, bint synced, bytes journal_id not None, int64_t half_bytes):
        """Have a file be two empty halves. `synced`: each write to it is on the disk when it
        returns. Raises OSError.
        """
        cdef int fd = file.fileno()
        cdef const uint8_t* raw = journal_id
        cdef int error
        check_sizes(journal_id, half_bytes)
        with nogil:
            error = journal_write_headers(fd, synced, raw, half_bytes)
        if error != 0:
            raise OSError(error, os.strerror(error))

    def take_file(self, file, bint synced, bytes journal_id not None, int64_t half_bytes):
        """Go over to a file that has its headers, is synced and has its name on the disk; `start`
        has it take records. The caller keeps the one before until it is retired.

        Raises OSError; then nothing has changed.
        """
        cdef int fd = file.fileno()
        cdef const uint8_t* raw = journal_id
        cdef int error
        check_sizes(journal_id, half_bytes)
        if load_acquire_32(&self.native.usable):
            raise ValueError("the journal is in use")
        if not self.is_retired(before=True):
            raise ValueError("the previous file is not retired")
        with nogil:
            error = journal_take_file(&self.native, fd, synced, raw, half_bytes)
        if error != 0:
            raise OSError(error, os.strerror(error))
        self._file = file

    def want(self):
        """Have a file made, and do not wait until the process waits for the disk often."""
        self.native.wanted = True
        journal_wake(&self.native)

    def start(self):
        """Take records from now on."""
        journal_start(&self.native)

    def stop(self):
        """Take no more records; both halves are full. May be called twice."""
        with nogil:
            journal_stop(&self.native)

    def free_buffers(self):
        """Give back memory; only after `stop`, and for good."""
        journal_free_buffers(&self.native)

    @property
    def work(self):
        """Word for `wait`, to be read before the look at what there is to do."""
        return shared_word_load(&self.native.work)

    def wait(self, uint32_t work, double timeout_s):
        """Sleep until a half is full or a wake-up comes, unless that happened since `work`."""
        cdef int64_t timeout_ns = <int64_t>(timeout_s * 1e9)
        with nogil:
            journal_wait(&self.native, work, timeout_ns)

    def wake(self):
        """Wake who waits."""
        journal_wake(&self.native)

    def full_halves(self):
        """The numbers of the halves that are to be retired."""
        cdef list found = []
        cdef int half
        pthread_mutex_lock(&self.native.lock)
        try:
            for half in range(ALL_HALVES):
                if self.native.halves[half].full and self.native.halves[half].record_count > 0:
                    found.append(half)
        finally:
            pthread_mutex_unlock(&self.native.lock)
        return found

    def logs_of(self, int half):
        """Return the open logs whose bytes a half holds."""
        cdef list addresses = []
        cdef int32_t index
        self._check_half(half)
        pthread_mutex_lock(&self.native.lock)
        try:
            for index in range(self.native.halves[half].covered_count):
                addresses.append(<size_t>self.native.halves[half].covered[index])
        finally:
            pthread_mutex_unlock(&self.native.lock)
        found = (self.logs.get(one) for one in addresses)
        return [one for one in found if one is not None]

    def empty(self, int half):
        """Empty a full half; False if the files of a log do not hold yet what it has. On the disk
        on return. Raises OSError.
        """
        cdef int error
        self._check_half(half)
        with nogil:
            error = journal_empty_half(&self.native, half)
        if error == EBUSY:
            return False
        if error != 0:
            raise OSError(error, os.strerror(error))
        return True

    def is_retired(self, *, bint before=False):
        """True if neither half of the file, or of the one before, holds anything that the logs'
        files do not.
        """
        cdef int first = HALVES if before else 0
        return not any(
            self.native.halves[half].covered_count or self.native.halves[half].kept
            for half in range(first, first + HALVES))

    cdef int _check_half(self, int half) except -1:
        if not 0 <= half < ALL_HALVES:
            raise ValueError(f"half {half} is outside [0, {ALL_HALVES})")
        return 0


cdef int check_sizes(bytes journal_id, int64_t half_bytes) except -1:
    if len(journal_id) != JOURNAL_ID_BYTES:
        raise ValueError(f"journal id must have {JOURNAL_ID_BYTES} bytes, got {len(journal_id)}")
    if half_bytes < 2 * JOURNAL_BLOCK_BYTES or half_bytes % JOURNAL_BLOCK_BYTES:
        raise ValueError(f"a half must be two or more whole blocks, got {half_bytes} bytes")
    return 0


# What a recovery reads.

def half_header(const unsigned char[::1] block not None, int half):
    """(journal id, size of a half, epoch) by the first block of a half.

    None if the half was never used: all is zeros. Raises ValueError if it is neither.
    """
    cdef JournalHalfHeader header
    if len(block) < <Py_ssize_t>sizeof(header):
        raise ValueError("the file is too short")
    memcpy(&header, &block[0], sizeof(header))
    if header.magic == 0 and not any(block):
        return None
    if header.magic != JOURNAL_HALF_MAGIC or header.half != <uint32_t>half or header.crc != crc32c(
            0, &block[JOURNAL_SUMMED_AT], sizeof(header) - JOURNAL_SUMMED_AT):
        raise ValueError("its header is damaged")
    return (<const char*>header.journal_id)[:16], header.half_bytes, header.epoch


def record_at(const unsigned char[::1] half not None, Py_ssize_t position):
    """(journal id, epoch, number, bytes, ranges, (epoch of the other half, count of its records))
    of the record at a position of a half.

    A range is (topic id, partition, base offset, position in the file, end offset, where its bytes
    begin in the half, count of its bytes). None if no whole record is there.
    """
    cdef JournalRecordHeader header
    cdef JournalRangeHeader one
    cdef Py_ssize_t at, data, end
    cdef list ranges = []
    if position < 0 or position > len(half) - <Py_ssize_t>sizeof(header):
        return None
    memcpy(&header, &half[position], sizeof(header))
    if header.magic != JOURNAL_RECORD_MAGIC or header.bytes < sizeof(header) or (
            header.bytes > <size_t>(len(half) - position)):
        return None
    if header.crc != crc32c(
            0, &half[position + JOURNAL_SUMMED_AT], <size_t>header.bytes - JOURNAL_SUMMED_AT):
        return None
    end = position + <Py_ssize_t>header.bytes
    at = position + <Py_ssize_t>sizeof(header)
    data = at + <Py_ssize_t>header.range_count * <Py_ssize_t>sizeof(one)
    if data > end:
        return None
    for _ in range(header.range_count):
        memcpy(&one, &half[at], sizeof(one))
        if one.bytes < 0 or one.bytes > end - data or one.position_bytes < 0:
            return None
        ranges.append((
            (<const char*>one.topic_id)[:16], one.partition, one.base_offset, one.position_bytes,
            one.end_offset, data, one.bytes))
        at += <Py_ssize_t>sizeof(one)
        data += one.bytes
    return (<const char*>header.journal_id)[:16], header.epoch, header.number, header.bytes, (
        ranges), (header.other_epoch, header.other_count)
