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
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno as last_error

from eoslog.native.mapped_io cimport eos_is_in_memory
from eoslog.native.new_file cimport (
    EOS_ACCESS_CHANGED, EOS_ACCESS_DIRECTORY, eos_make_directory, eos_open_owned, eos_set_access,
)
from eoslog.native.named_sync cimport eos_sync_file_system


@cython.final
cdef class FileDescriptor:
    """An open file; `flags` and `mode` as of os.open. A block closes it. Raises OSError."""

    cdef int _fd
    # False where __cinit__ failed, or an argument of it is refused: 0 is a descriptor of others.
    cdef bint _is_open

    def __cinit__(self, path not None, int flags, int mode=0o600):
        cdef bytes name = _name_of(path)
        cdef const char* raw = name
        cdef int fd = -1, error = EINTR
        flags |= os.O_CLOEXEC
        while fd < 0:
            with nogil:
                fd = eos_open_owned(raw, flags, mode)
                error = last_error
            if fd >= 0:
                self._fd = fd
                self._is_open = True
            elif error != EINTR:
                raise OSError(error, os.strerror(error), os.fspath(path))
            else:
                PyErr_CheckSignals()

    def __dealloc__(self):
        self._close()

    def fileno(self):
        """The descriptor. Raises ValueError if it is closed."""
        if not self._is_open:
            raise ValueError("the file is closed")
        return self._fd

    def close(self):
        """Close the file; a second call does nothing."""
        self._close()

    cdef int _close(self) except -1:
        if self._is_open:
            self._is_open = False
            os.close(self._fd)
        return 0

    def __enter__(self):
        return self.fileno()

    def __exit__(self, *error):
        self._close()


cdef bytes _name_of(path):
    cdef bytes name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return name


def make_directory(path not None):
    """Make a directory that its owner alone can use, and its group if it may use the one above;
    root makes it for the owner of that one. One named `state` is its owner's alone.

    Raises OSError.
    """
    cdef bytes name = _name_of(path)
    cdef const char* raw = name
    cdef int error
    with nogil:
        error = eos_make_directory(raw)
    if error != 0:
        raise OSError(error, os.strerror(error), os.fspath(path))


def make_directories(path not None):
    """Make a directory, and those above it that are missing; one that is there stays as it is."""
    try:
        make_directory(path)
    except FileNotFoundError:
        above = os.path.dirname(os.fspath(path))
        if not above:
            raise
        make_directories(above)
        make_directories(path)
    except OSError:
        if not os.path.isdir(path):
            raise


def set_access(
    path not None, bint group_reads, unsigned int owner, unsigned int group
):
    """Let a group read a file, or a directory and what is made in it, or take that from it; whether
    anything was changed, and whether it is a directory.

    Nothing is changed of what is neither, nor of a file with several names when its access is taken
    away. Raises OSError: EPERM if it is another user's than `owner`.
    """
    cdef bytes name = _name_of(path)
    cdef const char* raw = name
    cdef int error, outcome = 0
    with nogil:
        error = eos_set_access(raw, group_reads, owner, group, &outcome)
    if error != 0:
        raise OSError(error, os.strerror(error), os.fspath(path))
    return bool(outcome & EOS_ACCESS_CHANGED), bool(outcome & EOS_ACCESS_DIRECTORY)


def is_in_memory(int fd):
    """True if an open file is on tmpfs or ramfs, where a sync makes nothing durable."""
    return bool(eos_is_in_memory(fd))


def sync_descriptor(int fd):
    """Sync an open file or directory, unless it is in memory. Raises OSError."""
    if not is_in_memory(fd):
        os.fsync(fd)


def sync_path(path not None, int flags):
    """Sync the file, or the directory, at a path; `flags` as of os.open. Raises OSError."""
    cdef FileDescriptor file = FileDescriptor(path, flags)
    try:
        sync_descriptor(file._fd)
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


def open_private(path not None, int flags):
    """Open a file for `open`; one that is made is its owner's alone. Raises OSError."""
    cdef FileDescriptor file = FileDescriptor(path, flags)
    file._is_open = False
    return file._fd


def open_regular(path not None, int flags):
    """Open a file for `open` without waiting for what is in a regular file's place, as a pipe, or
    reading it without an end. OSError ENODEV.
    """
    cdef FileDescriptor file = FileDescriptor(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file._fd).st_mode):
        file._close()
        raise OSError(errno.ENODEV, "it is not a regular file", path)
    file._is_open = False
    return file._fd
