# cython: language_level=3
"""Shared page of all processes of a store: the session, counters, locks, the words that waiting
readers sleep on.

The locks are robust: one whose holder dies goes to the next that asks, which learns of the death.
They are taken in this order: those of keys by their numbers, then the named ones by theirs; after
them the locks of one process, last a partition's. Within those of LMDB and of the counters no other
is taken.
"""

import errno
import os
import struct

from eoslog import errors

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp
from posix.unistd cimport usleep

from eoslog.bindings.file_descriptor import open_regular
from eoslog.native.crc32c cimport crc32c
from eoslog.native.mapped_io cimport (
    close_fd, eos_file_bytes, eos_map, eos_open, eos_reserve, eos_unmap_file, munmap,
)
from eoslog.native.shared_page cimport (
    EOWNERDEAD, ETIMEDOUT, SHARED_ALL_BITS, SHARED_COUNTERS, SHARED_LOCKS, SHARED_LOCKS_OF_KEYS,
    SHARED_HOLD_NS, SHARED_PAGE_MAGIC, SHARED_PAGE_VERSION, shared_call, shared_counter_lift,
    shared_counter_load, shared_counter_raise, shared_hold_begin, shared_hold_end, shared_is_held,
    shared_lock_give, shared_lock_holder, shared_lock_take, shared_page_init, shared_page_is_made,
    shared_word_load, shared_word_wait,
)

SESSION_BYTES = 16
LOCKS_OF_KEYS = SHARED_LOCKS_OF_KEYS
(LOCK_TOPICS, LOCK_CHECKPOINTS, LOCK_PRODUCER_IDS, LOCK_STAGED, LOCK_COMPACTION, LOCK_STATE_INDEX,
 LOCK_GROUP_INDEX, LOCK_SPARES, LOCK_RETENTION, LOCK_LMDB, LOCK_COUNTERS) = range(
    LOCKS_OF_KEYS, LOCKS_OF_KEYS + 11)
(COUNTER_TOPICS, COUNTER_GROUPS, COUNTER_STATE_PARTITIONS, COUNTER_STAGED_BEGUN,
 COUNTER_STAGED_SETTLED, COUNTER_ARRIVALS, COUNTER_PRODUCER_IDS,
 COUNTER_PRODUCER_IDS_FOUND, COUNTER_NOTED, COUNTER_LOGS_OPENED) = range(10)
# So long at most beginnings of transactions are held.
HOLD_S = SHARED_HOLD_NS / 1e9
# For a wait that each wake-up ends.
ALL_BITS = SHARED_ALL_BITS
# After a longer wait the error names the holder: that process hangs, or was stopped.
LOCK_TIMEOUT_S = 30.0
# A waiter comes up so often to let Python handle signals.
_WAIT_S_MAX = 1.0
cdef double WAIT_S = _WAIT_S_MAX
cdef enum:
    HOLD_LOOK_US = 500               # Whether a hold is over is looked at so often.
# More than a counter of one session reaches.
_FOLLOWED_STEP = 1 << 48
_BEGIN = struct.pack("<QI", SHARED_PAGE_MAGIC, SHARED_PAGE_VERSION)


cdef class HeldLocks:
    """The block within which locks are held.

    In C, so that no interrupt comes between a lock and the block.
    """

    cdef SharedPage _page
    cdef int _first
    cdef int _end
    cdef double _timeout_s

    def __enter__(self):
        cdef int index = self._first
        cdef int died = 0
        try:
            while index < self._end:
                died |= self._page.take(index, self._timeout_s)
                index += 1
        except BaseException:
            while index > self._first:
                index -= 1
                self._page.give(index)
            raise
        return bool(died)

    def __exit__(self, *error):
        cdef int index = self._end
        while index > self._first:
            index -= 1
            self._page.give(index)


cdef HeldLocks held_locks(SharedPage page, int first, int end, double timeout_s):
    cdef HeldLocks held = HeldLocks.__new__(HeldLocks)
    held._page = page
    held._first = first
    held._end = end
    held._timeout_s = timeout_s
    return held


cdef class FollowedPage:
    """The page of the processes that have a store open, as one sees it that only reads.

    Raises StoreError where the file is not of that session.
    """

    def __cinit__(self):
        self._page = NULL

    def __init__(self, str path not None, bytes session not None):
        cdef const uint8_t* wanted = session
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef uint8_t* mapped = NULL
        cdef int fd = -1
        cdef int error
        if self._page != NULL:
            raise ValueError("the page is already open")
        if len(session) != SESSION_BYTES:
            raise ValueError(f"session must have {SESSION_BYTES} bytes, got {len(session)}")
        error = eos_open(os.fsencode(path), False, True, &fd)
        if error == 0:
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
        if error == 0 and file_bytes >= <int64_t>sizeof(SharedPageHead):
            error = eos_map(fd, sizeof(SharedPageHead), False, &mapped)
        if fd >= 0:
            close_fd(fd)
        if error != 0:
            raise OSError(error, os.strerror(error), path)
        self._page = <const SharedPageHead*>mapped
        if mapped == NULL or not shared_page_is_made(self._page) or (
                memcmp(self._page.session, wanted, 16) != 0):
            raise errors.StoreError(f"{path} is of another session")

    def __dealloc__(self):
        if self._page != NULL:
            munmap(<uint8_t*>self._page, sizeof(SharedPageHead))

    def is_of(self, bytes session not None):
        """True if the page is of a session; a full disk has the next one use the same file."""
        return self._page.session[:16] == session


cdef class SharedPage:
    """The mapped page of one store. With `create` it is created for a session: no other
    process may use it.

    Raises StoreError where the file is not of that session.
    """

    def __cinit__(self):
        self._page = NULL
        self._map = NULL
        self._follow_count = 0

    def __init__(self, str path not None, bytes session not None, bint create):
        cdef bytes name = os.fsencode(path)
        cdef const uint8_t* wanted = session
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef uint8_t* mapped = NULL
        cdef int fd = -1
        cdef int error = 0
        if self._map != NULL:
            raise ValueError("the shared page is already open")
        if len(session) != SESSION_BYTES:
            raise ValueError(f"session must have {SESSION_BYTES} bytes, got {len(session)}")
        if create:
            # Another file, so that a process which has the old one mapped keeps that.
            fd = self._new_file(path)
        if fd < 0:
            error = eos_open(name, False, False, &fd)
        if error == 0:
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
        if error == 0 and file_bytes < <int64_t>sizeof(SharedPageHead):
            close_fd(fd)
            raise errors.StoreError(f"{path} is too short for what a store's processes share")
        if error == 0:
            error = eos_map(fd, sizeof(SharedPageHead), True, &mapped)
        if fd >= 0:
            close_fd(fd)
        if error != 0:
            raise OSError(error, os.strerror(error), path)
        self._process_id = os.getpid()
        self._map = mapped
        self._page = <SharedPageHead*>mapped
        self.path = path
        self.session = session
        if create:
            error = shared_page_init(self._page, wanted)
            if error != 0:
                raise OSError(error, os.strerror(error), path)
        elif not shared_page_is_made(self._page) or memcmp(self._page.session, wanted, 16) != 0:
            raise errors.StoreError(f"{path} is of another session")

    def __dealloc__(self):
        # A lock that is held is in the list of its thread's robust locks, which goes through it:
        # the page must stay mapped then.
        if self._map != NULL and self._held_count == 0:
            munmap(<uint8_t*>self._map, sizeof(SharedPageHead))

    def _new_file(self, str path):
        """A descriptor of a new file under the name; -1 if the disk is full, and the old one has to
        do.
        """
        cdef bytes name
        cdef int fd = -1
        cdef int error
        building = path + ".new"
        name = os.fsencode(building)
        error = eos_open(name, True, False, &fd)
        if error == 0:
            error = eos_reserve(fd, 0, sizeof(SharedPageHead), sizeof(SharedPageHead))
        if error == 0:
            try:
                os.rename(building, path)
            except BaseException:
                close_fd(fd)
                os.unlink(building)
                raise
            return fd
        if fd >= 0:
            close_fd(fd)
            os.unlink(building)
        if error in (errno.ENOSPC, errno.EDQUOT) and os.path.exists(path):
            return -1
        raise OSError(error, os.strerror(error), path)

    def close(self):
        """Let go of the file; who still has a lock of it keeps it mapped. May be called twice.

        It must not be used to wait for others any more.
        """
        if self._map != NULL and self._held_count == 0:
            shared_call(self._page)
            eos_unmap_file(self._map, sizeof(SharedPageHead))

    def __reduce__(self):
        raise TypeError("a shared page cannot be pickled or copied")

    @staticmethod
    def read_session(str path not None):
        """The session that the file is of; None if it is not there or was not made whole."""
        try:
            with open(path, "rb", opener=open_regular) as file:
                head = file.read(32)
        except FileNotFoundError:
            return None
        if head[:12] != _BEGIN or len(head) < 32:
            return None
        return head[16:32]

    # Locks.

    cdef int take_for(self, int index, double timeout_s) except -1:
        cdef int result
        cdef int64_t timeout_ns = <int64_t>(timeout_s * 1e9)
        self._check_index(index)
        result = shared_lock_take(self._page, index, 0, self._process_id)
        self._held_count += 1  # Before it is held: the page must stay mapped.
        if result == ETIMEDOUT and timeout_ns > 0:
            with nogil:
                result = shared_lock_take(self._page, index, timeout_ns, self._process_id)
        if result == 0 or result == EOWNERDEAD:
            return result == EOWNERDEAD
        self._held_count -= 1
        if result == ETIMEDOUT:
            return -2
        raise OSError(result, os.strerror(result), self.path)

    cdef int take(self, int index, double timeout_s) except -1:
        cdef int outcome = self.take_for(index, 0)
        cdef double left_s = timeout_s
        while outcome == -2 and left_s > 0:
            outcome = self.take_for(index, min(left_s, WAIT_S))
            left_s -= WAIT_S
            if outcome == -2:
                PyErr_CheckSignals()
        if outcome == -2:
            raise self.held_too_long(index, timeout_s)
        return outcome

    cdef object held_too_long(self, int index, double timeout_s):
        """Return the error after so long a wait: it names the holder."""
        return errors.StoreInUseError(
            f"process {shared_lock_holder(self._page, index)} has held lock {index} of "
            f"{self.path} for longer than {timeout_s:g} s: it hangs, or was stopped")

    cdef int give(self, int index) except -1:
        cdef int result
        self._check_index(index)
        result = shared_lock_give(self._page, index)
        if result != 0:
            raise RuntimeError(f"lock {index} of {self.path} is not held by this thread")
        self._held_count -= 1
        return 0

    cdef int _check_index(self, int index) except -1:
        if self._page == NULL:
            raise ValueError("the shared page is not open")
        if not 0 <= index < SHARED_LOCKS:
            raise ValueError(f"lock {index} is outside [0, {SHARED_LOCKS})")
        return 0

    def lock(self, int index, double timeout_s=LOCK_TIMEOUT_S):
        """Take a lock; whether its last holder died with it. A thread may take it more than once.

        Raises StoreInUseError, which names the holder, when the time is over.
        """
        return bool(self.take(index, timeout_s))

    def try_lock(self, int index):
        """Take a lock if that needs no waiting; whether it is held now."""
        return self.take_for(index, 0) != -2

    def unlock(self, int index):
        """Give back a lock that this thread took."""
        self.give(index)

    def holder(self, int index):
        """Return the process that took a lock last, for people to read; 0 if none did."""
        self._check_index(index)
        return shared_lock_holder(self._page, index)

    def held(self, int index, double timeout_s=LOCK_TIMEOUT_S):
        """A block with a lock held; gives whether its last holder died with it."""
        self._check_index(index)
        return held_locks(self, index, index + 1, timeout_s)

    def all_keys_held(self, double timeout_s=LOCK_TIMEOUT_S):
        """A block with the locks of all keys held."""
        self._check_index(0)
        return held_locks(self, 0, SHARED_LOCKS_OF_KEYS, timeout_s)

    @staticmethod
    def lock_of(bytes key not None):
        """The number of a key's lock, in [0, LOCKS_OF_KEYS); some keys share one."""
        return crc32c(0, <const uint8_t*><const char*>key, len(key)) % SHARED_LOCKS_OF_KEYS

    # Beginnings of transactions.

    def begin_hold(self):
        """Have the transactions of all processes wait before they begin, for HOLD_S at most; what
        `end_hold` is to be given, or 0 if that was done within the last second.
        """
        self._check_index(0)
        return shared_hold_begin(self._page)

    def end_hold(self, uint64_t begun):
        """Let them begin."""
        self._check_index(0)
        shared_hold_end(self._page, begun)

    cdef int wait_to_begin(self) except -1:
        """Wait until transactions may begin. The caller holds no lock of the page."""
        while shared_is_held(self._page):
            with nogil:
                usleep(HOLD_LOOK_US)
            PyErr_CheckSignals()
        return 0

    # Counters.

    def counter(self, int number):
        """A counter of the session, from 0 on. With a page that is followed it is another one too
        after it was raised there, and after the page became another one.
        """
        self._check_counter(number)
        if self._followed is not None:
            return (shared_counter_load(self._page, number) + self._follow_count * _FOLLOWED_STEP
                    + shared_counter_load(self._followed._page, number))
        return shared_counter_load(self._page, number)

    def follow(self, FollowedPage page not None):
        """Have the counters rise with those of another page, which is only looked at; this page is
        the reader's own then.
        """
        self._follow_count += 1
        self._followed = page

    def raise_counter(self, int number):
        """Raise a counter by one, for all processes; its new value."""
        cdef uint64_t raised
        self._check_counter(number)
        raised = shared_counter_raise(self._page, number)
        return raised if self._followed is None else self.counter(number)

    def lift_counter(self, int number, uint64_t value):
        """Raise a counter to a value, for all processes, if it is lower."""
        self._check_counter(number)
        shared_counter_lift(self._page, number, value)

    cdef int _check_counter(self, int number) except -1:
        if self._page == NULL:
            raise ValueError("the shared page is not open")
        if not 0 <= number < SHARED_COUNTERS:
            raise ValueError(f"counter {number} is outside [0, {SHARED_COUNTERS})")
        return 0

    # Waiting.

    def wake_word(self):
        """Word for `wait`; to be read before the look at what is waited for."""
        self._check_counter(0)
        return shared_word_load(&self._page.wakeup)

    def wait(self, uint32_t word, double timeout_s, uint32_t bits=ALL_BITS):
        """Sleep until one of the bits is woken, unless that happened since the word was read.

        Returns early too: after a second, and on a signal.
        """
        cdef int64_t timeout_ns
        self._check_counter(0)
        if timeout_s <= 0:
            return
        timeout_ns = <int64_t>(min(timeout_s, _WAIT_S_MAX) * 1e9)
        with nogil:
            shared_word_wait(&self._page.wakeup, word, bits, timeout_ns)

    def wake(self):
        """Wake the sleeping readers of all processes."""
        self._check_counter(0)
        shared_call(self._page)
