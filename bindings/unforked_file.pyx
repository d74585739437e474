# cython: language_level=3
"""Files that others are kept out of by locks: open in this process, and in no child of it.

A descriptor belongs to an object of C, which closes it with itself at the latest, whatever an
interrupt keeps Python from doing: one that leaked would keep the others out for as long as
the process lives. A child that outlived its parent would keep the parent's locks: so it closes its
copies at once, and no fork happens between the opening of such a file and the note that it is open.
"""

import os
import threading

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from posix.unistd cimport close as close_file

from eoslog.native.new_file cimport eos_open_owned

cdef extern from "<sys/file.h>" nogil:
    enum:
        LOCK_EX
        LOCK_SH
        LOCK_NB
        LOCK_UN
    int flock(int fd, int operation)

cdef extern from "<fcntl.h>" nogil:
    enum:
        O_CLOEXEC

# The descriptors of this process.
cdef set _open = set()
# How often this process's line was forked: what was opened before is the parent's.
cdef int _forks = 0
# Held while a file is opened, and during a fork.
_guard = threading.RLock()


cdef class UnforkedFile:
    """An open file; `flags` and `mode` as of os.open. Raises OSError."""

    cdef int _fd
    cdef bint _locked
    cdef int _opened_after       # So many forks.

    def __cinit__(self):
        self._fd = -1
        self._locked = False
        self._opened_after = _forks

    def __init__(self, path not None, int flags, int mode):
        cdef bytes name = os.fsencode(path)
        cdef const char* raw = name
        cdef int fd, error
        if self._fd >= 0:
            raise ValueError(f"{path}: opened once already")
        _guard.acquire()
        try:
            while self._fd < 0:
                with nogil:
                    fd = eos_open_owned(raw, flags | O_CLOEXEC, mode)
                    error = errno
                if fd >= 0:
                    _open.add(fd)
                    self._fd = fd
                elif error != EINTR:
                    raise OSError(error, os.strerror(error), str(path))
                else:
                    PyErr_CheckSignals()
        finally:
            _guard.release()

    def __dealloc__(self):
        self._close()

    @property
    def closed(self):
        """True if it is not open here: closed, or opened before a fork."""
        return self._fd < 0 or self._opened_after != _forks

    def fileno(self):
        """The descriptor. Raises ValueError if it is closed."""
        if self.closed:
            raise ValueError("the file is closed")
        return self._fd

    def lock(self, *, bint exclusive, bint wait):
        """Lock it, in the place of a lock that it has; whether it is locked.

        Not so, without `wait`, if another one is in the way; it has no lock then. Raises OSError.
        """
        cdef int fd = self.fileno()
        cdef int operation = (LOCK_EX if exclusive else LOCK_SH) | (0 if wait else LOCK_NB)
        cdef int error
        while True:
            with nogil:
                error = 0 if flock(fd, operation) == 0 else errno
            if error == 0:
                self._locked = True
                return True
            if error == EAGAIN and not wait:
                self._locked = False
                return False
            if error != EINTR:
                raise OSError(error, os.strerror(error))
            PyErr_CheckSignals()

    def close(self):
        """Free the lock, and close the file; a second call does nothing."""
        self._close()

    cdef int _close(self) except -1:
        cdef int fd = self._fd
        self._fd = -1
        # In the child of a fork the number is of no file any more, or of another one.
        if fd >= 0 and self._opened_after == _forks:
            if self._locked:
                # Said aloud: a child that was forked just now may still have a copy open.
                flock(fd, LOCK_UN)
            _open.discard(fd)
            close_file(fd)
        self._locked = False
        return 0


@cython.final
cdef class LockedFile(UnforkedFile):
    """A file that is locked, exclusively, within the block; closed at its end.

    The block gives whether it is: not so, without `wait`, if another has it. Raises OSError.
    """

    cdef bint _wait

    def __init__(self, path not None, int flags, int mode, bint wait):
        UnforkedFile.__init__(self, path, flags, mode)
        self._wait = wait

    def __enter__(self):
        if self._fd < 0 or self._locked:
            raise ValueError("a locked file is entered once")
        return self.lock(exclusive=True, wait=self._wait)

    def __exit__(self, *error):
        self._close()


def _after_fork_in_child():
    global _forks
    _forks += 1
    for fd in _open:
        close_file(fd)
    _open.clear()
    _guard.release()


os.register_at_fork(
    before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_after_fork_in_child)
