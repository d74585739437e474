# cython: language_level=3
"""Sleeping until a log has more to read: the wake-up of a reader, without Python in between.

In this order: the words are read, a wake-up is wanted at each log, each is looked at; then the
sleep ends with whatever raised a word since. A reader of a few logs sleeps on a word of each of
them, and on that of the calls, which wake everybody: no other append disturbs it. A reader of many,
or under a kernel without such a sleep, sleeps for their bits of one word that all logs share; an
append to another log with the same bit raises that by a multiple of SHARED_APPEND: the sleep goes
on.

A reader of logs that are only read here asks no writer to wake it, and so stores to no page: it
looks again and again, after a millisecond first, then after longer and longer sleeps.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport usleep

from eoslog.bindings.log_reader cimport LogReader
from eoslog.bindings.opened_log cimport OpenedLog
from eoslog.bindings.shared_page cimport SharedPage
from eoslog.native.control_page cimport CONTROL_WANT_OWN, CONTROL_WANT_SHARED, control_want
from eoslog.native.shared_page cimport (
    SHARED_ALL_BITS, SHARED_APPEND, SharedSleep, shared_sleep_on, shared_word_load,
    shared_word_wait, shared_words_wait,
)

cdef enum:
    NO_LOG = -1
    # The kernel looks at each of the words with each sleep.
    LOGS_WITH_OWN_WORD = 32
    # Python handles signals between two sleeps, and a writer may die before its wake-up.
    SLEEP_NS_MAX = 1_000_000_000
    # Between two looks at logs that are only read here.
    LOOK_AGAIN_US = 1_000
    LOOK_AGAIN_US_MAX = 20_000

cdef bint has_own_words = True  # Until the kernel says that it cannot sleep on several.


def wait_for_more(SharedPage page not None, list logs not None, list positions not None,
                  bint committed, double timeout_s):
    """Sleep until one of the logs can be read beyond its position; its index, or -1.

    Comes back early, with -1: woken for anything else, on a signal, after a second. `committed`:
    only what is decided counts. Raises LogClosedError, FellBehindError.
    """
    if len(logs) != len(positions):
        raise ValueError(f"{len(positions)} positions for {len(logs)} logs")
    page._check_counter(0)
    for log in logs:
        if not isinstance(log, OpenedLog):
            raise TypeError(f"expected a log, got {type(log).__name__}")
    return sleep_for_more(page, logs, positions, committed, timeout_s)


def next_records(SharedPage page not None, LogReader log not None, int64_t position,
                 bint committed, double timeout_s, int64_t max_records, int64_t max_bytes):
    """Sleep until a log can be read beyond a position: (list of Record, offset to go on from).

    None if it cannot: as wait_for_more comes back with -1. Raises as that and fetch_next do.
    """
    cdef list logs = [log]
    cdef list positions = [position]
    page._check_counter(0)
    if sleep_for_more(page, logs, positions, committed, timeout_s) == NO_LOG:
        return None
    return log._fetch(position, max_records, max_bytes, log._readable_end(committed), committed,
                      None, None)


cdef Py_ssize_t sleep_for_more(SharedPage page, list logs, list positions, bint committed,
                               double timeout_s) except -2:
    cdef int64_t left_ns = SLEEP_NS_MAX if timeout_s >= 1 else <int64_t>(timeout_s * 1e9)
    cdef int64_t until_ns = monotonic_ns() + left_ns
    if are_followed(logs):
        return sleep_and_look(logs, positions, committed, until_ns)
    if has_own_words and len(logs) <= LOGS_WITH_OWN_WORD:
        return sleep_on_own_words(page, logs, positions, committed, until_ns)
    return sleep_on_shared_word(page, logs, positions, committed, until_ns)


cdef bint are_followed(list logs) except -1:
    """True if these logs are only read here; all of a store are, or none."""
    return len(logs) > 0 and (<OpenedLog>logs[0])._looks


cdef Py_ssize_t sleep_and_look(
    list logs, list positions, bint committed, int64_t until_ns
) except -2:
    cdef Py_ssize_t index = first_with_more(logs, positions, committed)
    cdef int64_t sleep_us = LOOK_AGAIN_US
    cdef int64_t left_ns = until_ns - monotonic_ns()
    while index == NO_LOG and left_ns > 0:
        sleep_us = min(sleep_us, left_ns // 1000 + 1)
        with nogil:
            usleep(<unsigned int>sleep_us)
        PyErr_CheckSignals()
        index = first_with_more(logs, positions, committed)
        sleep_us = min(2 * sleep_us, <int64_t>LOOK_AGAIN_US_MAX)
        left_ns = until_ns - monotonic_ns()
    return index


cdef Py_ssize_t sleep_on_own_words(SharedPage page, list logs, list positions, bint committed,
                                   int64_t until_ns) except -2:
    global has_own_words
    cdef SharedSleep sleeps[LOGS_WITH_OWN_WORD + 1]
    cdef uint32_t count = <uint32_t>len(logs)
    cdef uint32_t called = shared_word_load(&page._page.called)
    cdef Py_ssize_t index
    cdef int64_t left_ns
    cdef bint has_slept
    cdef OpenedLog log
    shared_sleep_on(&sleeps[count], &page._page.called, called)
    while True:
        for index in range(count):
            log = <OpenedLog>logs[index]
            log._check_open()
            shared_sleep_on(
                &sleeps[index], &log._log.page.wakeup, shared_word_load(&log._log.page.wakeup))
            control_want(log._log.page, CONTROL_WANT_OWN)
        index = first_with_more(logs, positions, committed)
        left_ns = until_ns - monotonic_ns()
        if index != NO_LOG or left_ns <= 0:
            return index
        with nogil:
            has_slept = shared_words_wait(sleeps, count + 1, left_ns)
        if not has_slept:
            has_own_words = False
            return sleep_on_shared_word(page, logs, positions, committed, until_ns)
        PyErr_CheckSignals()
        if until_ns <= monotonic_ns() or shared_word_load(&page._page.called) != called:
            return first_with_more(logs, positions, committed)


cdef Py_ssize_t sleep_on_shared_word(SharedPage page, list logs, list positions, bint committed,
                                     int64_t until_ns) except -2:
    cdef Py_ssize_t index
    cdef uint32_t word = shared_word_load(&page._page.wakeup)
    cdef uint32_t now, bits
    cdef int64_t left_ns
    cdef OpenedLog log
    while True:
        bits = 0
        for index in range(len(logs)):
            log = <OpenedLog>logs[index]
            log._check_open()
            control_want(log._log.page, CONTROL_WANT_SHARED)
            bits |= log._log.wake_bit
        index = first_with_more(logs, positions, committed)
        left_ns = until_ns - monotonic_ns()
        if index != NO_LOG or left_ns <= 0:
            return index
        with nogil:
            shared_word_wait(
                &page._page.wakeup, word, bits if bits != 0 else SHARED_ALL_BITS, left_ns)
        left_ns = until_ns - monotonic_ns()
        now = shared_word_load(&page._page.wakeup)
        if left_ns <= 0 or (now - word) % SHARED_APPEND != 0:
            index = first_with_more(logs, positions, committed)
            if index == NO_LOG:
                PyErr_CheckSignals()
            return index
        PyErr_CheckSignals()
        word = now


cdef int64_t monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1_000_000_000 + now.tv_nsec


cdef Py_ssize_t first_with_more(list logs, list positions, bint committed) except -2:
    cdef Py_ssize_t index
    cdef int64_t position
    cdef OpenedLog log
    for index in range(len(logs)):
        log = <OpenedLog>logs[index]
        position = positions[index]
        log._check_open()
        if log._readable_end(committed) > position:
            return index
    return NO_LOG
