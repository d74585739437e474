# cython: language_level=3
"""Descriptors that an interrupt cannot lose.

A signal's handler may run between two steps of Python: after `os.open` and before its number has a
name, for example; the descriptor then leaks. Here an object owns the number and closes it at the
latest when it is freed, or the number does not leave the one call at all.
"""

import errno
import os
import stat

cimport cython

from eoslog.native.named_sync cimport eos_sync_file_system


@cython.final
cdef class FileDescriptor:
    """An open file; `flags` and `mode` as of os.open. A block closes it. Raises OSError."""

    cdef int _fd

    def __cinit__(self, path not None, int flags, int mode=0o600):
        self._fd = -1
        self._fd = os.open(path, flags, mode)

    def __dealloc__(self):
        self._close()

    def fileno(self):
        """The descriptor. Raises ValueError if it is closed."""
        if self._fd < 0:
            raise ValueError("the file is closed")
        return self._fd

    def close(self):
        """Close the file; a second call does nothing."""
        self._close()

    cdef int _close(self) except -1:
        cdef int fd = self._fd
        self._fd = -1
        if fd >= 0:
            os.close(fd)
        return 0

    def __enter__(self):
        return self.fileno()

    def __exit__(self, *error):
        self._close()


def sync_path(path not None, int flags):
    """Sync the file, or the directory, at a path; `flags` as of os.open. Raises OSError."""
    cdef FileDescriptor file = FileDescriptor(path, flags)
    try:
        os.fsync(file._fd)
    finally:
        file._close()


def sync_file_system(int fd):
    """Sync all of the file system that an open file is on; also what others wrote there.

    Writes that failed since the file was opened raise OSError. Returns False, and syncs nothing, if
    the operating system would not tell of them.
    """
    cdef int error
    with nogil:
        error = eos_sync_file_system(fd)
    if error == errno.ENOSYS:
        return False
    if error != 0:
        raise OSError(error, os.strerror(error))
    return True


def open_regular(path not None, int flags):
    """Open a file for `open` without waiting for what is in a regular file's place, as a pipe, or
    reading it without an end. OSError ENODEV.
    """
    cdef FileDescriptor file = FileDescriptor(path, flags | os.O_NONBLOCK)
    cdef int fd = file._fd
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file._close()
        raise OSError(errno.ENODEV, "it is not a regular file", path)
    file._fd = -1
    return fd
