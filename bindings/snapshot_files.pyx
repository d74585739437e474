# cython: language_level=3
"""The `.snapshot` files of a log's directory, each named after the offset at which it is true.
"""

import errno
import os
import re

from libc.stdint cimport uint8_t
from libc.string cimport memset

from eoslog.bindings.file_descriptor import open_regular, sync_path
from eoslog.native.snapshot cimport (
    SNAPSHOT_COUNT, SNAPSHOT_ENTRIES, SNAPSHOT_ENTRY_BYTES, snapshot_check,
)
from eoslog.native.status cimport STATUS_OK, Fault

# To be matched whole: no line feed after it, no digits of another script.
SEGMENT_NAME = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT_NAME = re.compile(r"([0-9]{20})\.snapshot")


def snapshot_path(directory, offset):
    """Return the path of the snapshot at an offset."""
    return os.path.join(directory, f"{offset:020d}.snapshot")


def snapshot_offsets(directory):
    """The offsets of a directory's snapshots, in order."""
    return _offsets(_SNAPSHOT_NAME, os.listdir(directory))


def remove_stray_snapshots(directory, log_end_offset, *, bint clean):
    """Keep the snapshots at segments' base offsets, and the newest one that the log reaches.

    The newest may be all that remembers producers whose batches were deleted. Where the log was
    not closed cleanly that is the newest whole one: a power cut spoils those that were not synced.
    It is on the disk before an older one goes.
    """
    names = os.listdir(directory)
    bases = set(_offsets(SEGMENT_NAME, names))
    newest = -1
    for offset in reversed(_offsets(_SNAPSHOT_NAME, names)):
        path = snapshot_path(directory, offset)
        if newest < 0 and offset <= log_end_offset and (clean or _is_whole(read_snapshot(path))):
            newest = offset
        elif newest < 0 or offset not in bases:
            if newest >= 0 and not clean:
                sync_path(snapshot_path(directory, newest), os.O_RDONLY)
                sync_path(directory, os.O_RDONLY | os.O_DIRECTORY)
            os.unlink(path)


def read_snapshot(path):
    """Return the bytes of a snapshot, of a longer file one more than its count needs; none where
    something else is in its place. Raises OSError.
    """
    cdef bytes head
    try:
        with open(path, "rb", opener=open_regular) as file:
            head = file.read(SNAPSHOT_ENTRIES)
            count = int.from_bytes(head[SNAPSHOT_COUNT:], "big")
            # No more than there is: room is made for it before it is read.
            left = os.fstat(file.fileno()).st_size - len(head)
            return head + file.read(min(count * SNAPSHOT_ENTRY_BYTES + 1, left))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return b""


def _offsets(pattern, names):
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)


cdef bint _is_whole(bytes raw) except -1:
    cdef const uint8_t* data = raw
    cdef Fault fault
    memset(&fault, 0, sizeof(Fault))
    return snapshot_check(data, len(raw), &fault) == STATUS_OK
