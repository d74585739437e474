# cython: language_level=3
"""How long a handler of a signal waits for a lock.

Its thread may be in the middle of another call, and hold what the lock's holder waits for: a thread
of the user's, or the engine's own timer. Both would wait for ever. So such a wait ends after a
while, and what the handler called did nothing. Everybody else waits as long as it takes.
"""

import threading
from time import monotonic

cimport cython
from cpython.object cimport PyObject_CallObject

from eoslog.common.signal_handlers import is_within_a_call


class ReentrantCallError(RuntimeError):
    """A handler of a signal called what its own thread is in the middle of, and did nothing.

    The engine's own locks raise it. It is no EoslogError: no part of the engine takes it for what
    became of its work.
    """


# Longer than an append or a sync takes as a rule.
HANDLER_WAIT_S = 1.0

# Nobody is asked who he is before that.
cdef double SHORT_WAIT_S = 0.01
cdef double FOR_EVER_S = 1e300

cdef tuple WITHOUT_WAITING = (False,)        # Made once: this is on the way of each append.

cdef double gave_up_at_s = -FOR_EVER_S


def gave_up():
    """The error for a handler that waited for long enough."""
    global gave_up_at_s
    gave_up_at_s = monotonic()
    return ReentrantCallError(
        "the store was called from a handler of a signal, in the middle of a call of the same "
        "thread, and another thread holds a lock, perhaps until that call has gone on: do it once "
        "the call has returned")


cdef double patience_s() except -1:
    if not is_within_a_call():
        return FOR_EVER_S
    # Of signals that come quickly one is waited with: between two the call has to go on.
    return 0 if monotonic() - gave_up_at_s < 2 * HANDLER_WAIT_S else HANDLER_WAIT_S


cdef int acquired_by(object acquire) except -1:
    """Call the `acquire` of a lock of Python's, however long it takes. Raises ReentrantCallError in
    a handler.
    """
    cdef double most_s
    if PyObject_CallObject(acquire, WITHOUT_WAITING) is True or acquire(True, SHORT_WAIT_S):
        return 0
    most_s = patience_s()
    if most_s == FOR_EVER_S:
        acquire()
    elif not acquire(True, most_s):
        raise gave_up()
    return 0


@cython.final
cdef class ReentrantLock:
    """A lock between threads, which a thread may take more than once. As a block. Raises
    ReentrantCallError in a handler that would wait for it for ever.
    """

    cdef object _lock

    def __cinit__(self):
        self._lock = threading.RLock()

    def __enter__(self):
        acquired_by(self._lock.acquire)

    def __exit__(self, *ignored):
        self._lock.release()


@cython.final
cdef class Patience:
    """Of one wait for a lock, from which the waiter comes up now and then."""

    def __cinit__(self):
        self.slice_s = SHORT_WAIT_S
        self._left_s = FOR_EVER_S
        self._asked = False

    cdef int waited(self, double most_s) except -1:
        """It waited for `slice_s`, in vain; the next time it is to be `most_s`. Raises
        ReentrantCallError when a handler has waited for long enough.
        """
        if not self._asked:
            self._asked = True
            self._left_s = patience_s()
        else:
            self._left_s -= self.slice_s
        if self._left_s <= 0:
            raise gave_up()
        self.slice_s = min(most_s, self._left_s)
        return 0
