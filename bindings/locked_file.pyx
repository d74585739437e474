# cython: language_level=3
"""A file that others are kept out of, by processes and by threads, for the length of a block.

Its descriptor belongs to an object of C, which closes it whatever becomes of the block: one that an
interrupt left behind would keep the others out for as long as the process lives.
"""

import os

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from posix.fcntl cimport open as open_file
from posix.unistd cimport close as close_file, getpid

cdef extern from "<sys/file.h>" nogil:
    enum:
        LOCK_EX
        LOCK_NB
        LOCK_UN
    int flock(int fd, int operation)

cdef extern from "<fcntl.h>" nogil:
    enum:
        O_CLOEXEC

# The descriptors of this process.
cdef set _open = set()


@cython.final
cdef class LockedFile:
    """A file that is open, and locked within the block; with `flags` as of os.open.

    The block gives whether it is: not so, without `wait`, if another has it. Raises OSError.
    """

    cdef int _fd
    cdef bint _wait
    cdef bint _held
    cdef int _process_id

    def __cinit__(self):
        self._fd = -1
        self._held = False

    def __init__(self, path not None, int flags, int mode, bint wait):
        cdef bytes name = os.fsencode(path)
        cdef const char* raw = name
        cdef int fd, error
        if self._fd >= 0:
            raise ValueError("a locked file is opened once")
        self._wait = wait
        self._process_id = getpid()
        while True:
            with nogil:
                fd = open_file(raw, flags | O_CLOEXEC, mode)
                error = errno
            if fd >= 0:
                self._fd = fd
                _open.add(fd)
                return
            if error != EINTR:
                raise OSError(error, os.strerror(error), str(path))
            PyErr_CheckSignals()

    def __dealloc__(self):
        self._close()

    def __enter__(self):
        cdef int operation = LOCK_EX if self._wait else LOCK_EX | LOCK_NB
        cdef int error
        if self._fd < 0 or self._held:
            raise ValueError("a locked file is entered once")
        while True:
            with nogil:
                error = 0 if flock(self._fd, operation) == 0 else errno
            if error == 0:
                self._held = True
                return True
            if error == EAGAIN and not self._wait:
                return False
            if error != EINTR:
                raise OSError(error, os.strerror(error))
            PyErr_CheckSignals()

    def __exit__(self, *error):
        self._close()

    cdef int _close(self) except -1:
        cdef int fd = self._fd
        self._fd = -1
        # In the child of a fork the number is of no file any more, or of another one.
        if fd >= 0 and self._process_id == getpid():
            if self._held:
                # Said aloud: a child that was forked just now may still have a copy open.
                flock(fd, LOCK_UN)
            _open.discard(fd)
            close_file(fd)
        self._held = False
        return 0


def _after_fork_in_child():
    for fd in _open:
        close_file(fd)
    _open.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
