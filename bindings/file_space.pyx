# cython: language_level=3
"""Hints to the operating system about a file that is written from its beginning to its end."""

from eoslog.native.file_space cimport eos_begin_writeback, eos_reserve_behind


def reserve_behind(int descriptor, Py_ssize_t position_bytes, Py_ssize_t byte_count):
    """Reserve disk space for [position, position + count) without changing the file's length.

    Writes there are cheaper then. Answers whether it was done: not every file system can, and a
    disk may be too full. Truncating the file to its length gives back what is left over.
    """
    cdef int failed
    if descriptor < 0 or position_bytes < 0 or byte_count <= 0:
        raise ValueError(f"no {byte_count} bytes at {position_bytes} of descriptor {descriptor}")
    with nogil:
        failed = eos_reserve_behind(descriptor, position_bytes, byte_count)
    return failed == 0


def begin_writeback(int descriptor, Py_ssize_t position_bytes, Py_ssize_t byte_count):
    """Let the kernel begin to write a part of the file to disk, for a sync to find it done.

    Nothing is durable by it, and a failure shows in the sync.
    """
    if descriptor < 0 or position_bytes < 0 or byte_count <= 0:
        raise ValueError(f"no {byte_count} bytes at {position_bytes} of descriptor {descriptor}")
    with nogil:
        eos_begin_writeback(descriptor, position_bytes, byte_count)
