"""Copies of files, which share their blocks where the file system can do that."""

import errno
import os
from collections.abc import Callable

_COPY_BYTES = 1 << 24


def _not_counted(position_bytes: int, byte_count: int) -> None:
    pass


def copy_bytes(
    source: int,
    target: int,
    size_bytes: int,
    copied: Callable[[int, int], object] = _not_counted,
) -> None:
    """Copy the first bytes of one descriptor's file to another's, which is new; holes stay holes.

    `copied` is called with the place and the size of each piece. Raises OSError. Nothing is synced.
    """
    position = 0
    while position < size_bytes:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # The rest is a hole.
            raise
        end = min(os.lseek(source, position, os.SEEK_HOLE), size_bytes)
        while position < end:
            byte_count = _copy_some(source, target, position, min(end - position, _COPY_BYTES))
            copied(position, byte_count)
            position += byte_count
    os.truncate(target, size_bytes)


def _copy_some(source: int, target: int, position: int, byte_count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            copied = os.copy_file_range(source, target, byte_count, position, position)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        else:
            if copied:
                return copied
    return os.pwrite(target, os.pread(source, byte_count, position), position) or byte_count
