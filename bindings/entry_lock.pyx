# cython: language_level=3
"""The lock of one transactional id, which all processes of a store share, and what taking it means.

Who has it is alone with the id, among all threads and processes, and knows its newest record: what
others wrote since is taken in before `acquire` returns. A holder that dies leaves it to the next
one who asks. Nothing has to be repaired then but what the log itself repairs: the id's state is
that of its newest record, at each instant.

A thread may take it more than once. Some ids share a lock, so no thread may take two in any order.
"""

import os

from eoslog import errors

from eoslog.bindings import shared_page
from eoslog.bindings.thread_lock import reentrant_call

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from libc.string cimport memset

from eoslog.native.atomics cimport load_acquire_64
from eoslog.native.control_page cimport control_load
from eoslog.native.partition_log cimport pthread_mutex_destroy, pthread_mutex_unlock
from eoslog.native.shared_page cimport (
    EOWNERDEAD, ETIMEDOUT, SHARED_LOCKS_OF_KEYS, shared_lock_holder,
)

cdef extern from "shared_page.h" nogil:
    enum:
        PTHREAD_MUTEX_RECURSIVE
    int shared_mutex_init(pthread_mutex_t* mutex, int type) noexcept
    int shared_mutex_take(pthread_mutex_t* mutex, int64_t timeout_ns) noexcept

cdef enum:
    LOCKS_OF_KEYS = SHARED_LOCKS_OF_KEYS
    TIME_IS_OVER = -2                # SharedPage.take_for's answer.

# A waiter comes up so often, to let Python handle signals.
cdef double SLICE_S = 0.1

UNKNOWN_OFFSET = 0x7FFFFFFFFFFFFFFF


@cython.final
cdef class EntryLock:
    """A lock of its own, or with a page the one that the processes share for the id.

    `keeper.catch_up_for(transactional_id)` is called by the thread that takes the lock if the state
    log has records that this process does not know, and `keeper.refresh(transactional_id, offset)`
    if `newer_offset` was set since: a record may stand there that the entry does not know. What
    they raise is raised, and the lock is free then.
    """

    def __cinit__(self, SharedPage page=None, str transactional_id="", PartitionLog state_log=None,
                  keeper=None):
        memset(&self._private, 0, sizeof(self._private))
        self._is_private = page is None
        self._page = page
        self._index = 0
        self._depth = 0
        self.transactional_id = transactional_id
        self._state_log = state_log
        self._keeper = keeper
        # The first that takes it looks.
        self.newer_offset = -1 if keeper is None else UNKNOWN_OFFSET
        if keeper is not None and state_log is None:
            raise ValueError("a lock that follows a log needs the log")
        if self._is_private:
            error = shared_mutex_init(&self._private, PTHREAD_MUTEX_RECURSIVE)
            if error != 0:
                raise OSError(error, os.strerror(error))
        else:
            page._check_index(0)
            self._index = page.lock_of(transactional_id.encode())

    def __dealloc__(self):
        if self._is_private:
            pthread_mutex_destroy(&self._private)

    def __repr__(self):
        return f"EntryLock({self.transactional_id!r})"

    def __reduce__(self):
        raise TypeError("a lock cannot be pickled or copied")

    @property
    def index(self):
        """Its number among the locks of the shared page."""
        return self._index

    def acquire(self, blocking=True):
        """Take the lock, and have the entry be that of the newest record; whether it was taken.

        Raises StoreInUseError, which names the holder, if a process holds it for too long; what
        cannot be read from the state log.
        """
        if blocking:
            self.take()
            return True
        if self._try() != 0:
            return False
        self._enter()
        return True

    def release(self):
        """Give it back."""
        self.give()

    def __enter__(self):
        self.take()
        return self

    def __exit__(self, error_type, error, traceback):
        self.give()

    def note_newer(self, int64_t offset):
        """Note that there is a record at this offset that the entry may not know. Takes no lock."""
        if offset > self.newer_offset:
            self.newer_offset = offset

    # In C.

    cdef int take(self) except -1:
        if self._try() != 0:
            self._wait()
        return self._enter()

    cdef int give(self) except -1:
        cdef int error
        self._depth -= 1
        if not self._is_private:
            try:
                return self._page.give(self._index)
            except RuntimeError:
                self._depth += 1
                raise
        error = pthread_mutex_unlock(&self._private)
        if error != 0:
            self._depth += 1
            raise RuntimeError(f"the lock of {self.transactional_id!r} is not held by this thread")
        return 0

    cdef int _try(self) except -1:
        """0, or ETIMEDOUT where it would have to be waited for."""
        cdef int result
        if not self._is_private:
            return ETIMEDOUT if self._page.take_for(self._index, 0.0) == TIME_IS_OVER else 0
        result = shared_mutex_take(&self._private, 0)
        if result == EOWNERDEAD:
            return 0
        if result != 0 and result != ETIMEDOUT:
            raise OSError(result, os.strerror(result))
        return result

    cdef int _wait(self) except -1:
        cdef double left_s = shared_page.LOCK_TIMEOUT_S
        cdef int64_t slice_ns = <int64_t>(SLICE_S * 1e9)
        cdef int result = ETIMEDOUT
        while result == ETIMEDOUT:
            if self._is_private:
                with nogil:
                    result = shared_mutex_take(&self._private, slice_ns)
            elif self._page.take_for(self._index, SLICE_S) != TIME_IS_OVER:
                result = 0
            if result == ETIMEDOUT:
                PyErr_CheckSignals()
                left_s -= SLICE_S
                if left_s <= 0 and not self._is_held_here():
                    raise errors.StoreInUseError(
                        f"transactional id {self.transactional_id!r}: process "
                        f"{shared_lock_holder(self._page._page, self._index)} is at work on it, or "
                        f"on another id with the same lock, for longer than "
                        f"{shared_page.LOCK_TIMEOUT_S:g} s: it hangs, or was stopped; nothing was "
                        f"done here")
        if result != 0 and result != EOWNERDEAD:
            raise OSError(result, os.strerror(result))
        return 0

    cdef bint _is_held_here(self):
        """True if a thread of this process has it: it goes on, sooner or later."""
        if self._is_private:
            return True
        return shared_lock_holder(self._page._page, self._index) == self._page._process_id

    cdef int _enter(self) except -1:
        """The lock was just taken by this thread, perhaps once more."""
        self._depth += 1
        if self._depth == 1 and self._keeper is not None:
            try:
                self._make_current()
            except BaseException:
                self.give()
                raise
        return 0

    cdef bint is_behind(self) noexcept:
        """True if others wrote what may concern the id. Takes no lock."""
        return self._keeper is not None and (self.newer_offset >= 0 or self._is_log_ahead())

    cdef bint _is_log_ahead(self) noexcept:
        cdef int64_t log_end
        # A closed log takes no records; work on it raises by itself.
        if self._state_log._log.closed:
            return False
        # In this order: an append by this process moves both.
        log_end = control_load(&self._state_log._log.page.log_end_offset)
        return load_acquire_64(&self._state_log._log.own_end) < log_end

    cdef int _make_current(self) except -1:
        cdef int64_t offset
        if self._is_log_ahead():
            self._keeper.catch_up_for(self.transactional_id)
        if self.newer_offset >= 0:
            offset = self.newer_offset
            self.newer_offset = -1
            try:
                self._keeper.refresh(self.transactional_id, offset)
            except BaseException:
                self.note_newer(offset)
                raise
        return 0


@cython.final
cdef class LockedEntry:
    """A block with the lock of an id's entry held; gives the entry.

    `entries.look_up(transactional_id, create)` returns the entry, made if need be,
    `entries.is_current(entry)` is asked under the lock, and `entries.forget(entry)` drops one of
    which nothing was written. What they raise is raised, and the lock is free then. Raises
    ConcurrentAccessError for a thread that is in such a block of the id.
    """

    cdef object _entries
    cdef object _transactional_id
    cdef bint _create
    cdef object _entry
    cdef EntryLock _lock

    def __cinit__(self, entries not None, transactional_id, create):
        self._entries = entries
        self._transactional_id = transactional_id
        self._create = create

    def __enter__(self):
        while True:
            self._entry = self._entries.look_up(self._transactional_id, self._create)
            self._lock = <EntryLock?>self._entry.lock
            self._lock.take()
            try:
                if self._lock._depth > 1:
                    raise reentrant_call()
                is_current = self._entries.is_current(self._entry, self._create)
            except BaseException:
                self._leave()
                raise
            if is_current:
                return self._entry
            self._lock.give()  # The entry has been forgotten or has expired.

    def __exit__(self, error_type, error, traceback):
        self._leave()

    cdef int _leave(self) except -1:
        try:
            if self._lock._depth == 1 and self._entry.record_offset < 0:
                self._entries.forget(self._entry)  # Nothing was ever written of it.
        finally:
            self._lock.give()
        return 0


@cython.final
cdef class AllKeysHeld:
    """A block with the locks of all keys held; gives whether it has them.

    With `if_free` it takes them only if no wait is needed. Raises StoreInUseError, which
    names the holder, if a process holds one for too long. An interrupt leaves no lock held.
    """

    cdef SharedPage _page
    cdef bint _if_free
    cdef int _taken

    def __cinit__(self, SharedPage page not None, bint if_free=False):
        page._check_index(0)
        self._page = page
        self._if_free = if_free
        self._taken = 0

    def __enter__(self):
        if self._taken:
            raise RuntimeError("a block of its own for each use")
        try:
            while self._taken < LOCKS_OF_KEYS:
                if self._page.take_for(self._taken, 0.0) == TIME_IS_OVER:
                    if self._if_free:
                        return False
                    self._wait()
                self._taken += 1
        except BaseException:
            self._give_all()
            raise
        return True

    def __exit__(self, error_type, error, traceback):
        self._give_all()

    cdef int _wait(self) except -1:
        cdef double left_s = shared_page.LOCK_TIMEOUT_S
        while self._page.take_for(self._taken, SLICE_S) == TIME_IS_OVER:
            PyErr_CheckSignals()
            left_s -= SLICE_S
            holder = shared_lock_holder(self._page._page, self._taken)
            if left_s <= 0 and holder != self._page._process_id:
                raise errors.StoreInUseError(
                    f"process {holder} holds up a snapshot, or another look at all transactions at "
                    f"once, for longer than {shared_page.LOCK_TIMEOUT_S:g} s: it hangs, or was "
                    f"stopped")
        return 0

    cdef int _give_all(self) except -1:
        while self._taken > 0:
            self._taken -= 1
            self._page.give(self._taken)
        return 0
