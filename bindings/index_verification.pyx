# cython: language_level=3
"""Check that a segment's .index and .timeindex files agree with its batches.

The files may be older, as those of the active segment are, or missing: the engine has in memory
what they lack. The entries that they have must be true.
"""

import os
import struct

from libc.stdint cimport INT32_MAX

from eoslog.bindings.file_descriptor import open_regular

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


def verify_offset_index(dict described, dict batches, Py_ssize_t expected, log_end, list problems):
    """Each entry of the .index file names the batch that stands at its position, in order.

    `batches` has where each batch stands, and its last offset (None where it cannot be known);
    `expected` is the end of what was looked at, `log_end()` that of the log as it is now; None if
    the segment is complete.
    """
    cdef Py_ssize_t position
    cdef Py_ssize_t last = -1
    path, base_offset = described["path"][:-4] + ".index", described["base_offset"]
    raw = entries_of(path, _OFFSET_ENTRY.size, problems)
    upper_bound = expected if log_end is None else log_end()
    for position in range(0, len(raw), _OFFSET_ENTRY.size):
        relative, place = _OFFSET_ENTRY.unpack_from(raw, position)
        if relative == 0 and place == 0:
            return                   # The zero tail of a file that was made larger ahead of need.
        if expected <= base_offset + relative < upper_bound and place not in batches:
            return                   # Of a batch that came in while the others were looked at.
        reason = None
        if batches.get(place, -1) not in (None, base_offset + relative):
            reason = f"no batch at {place} ends at relative offset {relative}"
        elif relative <= last:
            reason = f"relative offset {relative} follows {last}"
        if reason is not None:
            problems.append({"path": path, "position_bytes": position, "reason": reason})
            return
        last = relative


def verify_time_index(dict described, dict peaks, Py_ssize_t expected, log_end, list problems):
    """Each entry of the .timeindex file is the greatest time so far and a batch that has it.

    `peaks` has the last offset of each batch with a time that no earlier one is above, and that
    time; None where a batch cannot be read.
    """
    cdef Py_ssize_t position
    path, base_offset = described["path"][:-4] + ".timeindex", described["base_offset"]
    raw = entries_of(path, _TIME_ENTRY.size, problems)
    upper_bound = expected if log_end is None else log_end()
    before = None
    for position in range(0, len(raw), _TIME_ENTRY.size):
        timestamp, relative = _TIME_ENTRY.unpack_from(raw, position)
        if timestamp == 0 and relative == 0 and not raw[position:].strip(b"\0"):
            return                   # The zero tail.
        if expected <= base_offset + relative < upper_bound:
            return                   # Of a batch that came in while the others were looked at.
        reason = None
        if before is not None and (timestamp <= before[0] or relative < before[1]):
            reason = f"time {timestamp} at relative offset {relative} does not rise"
        elif peaks is not None and peaks.get(base_offset + relative) != timestamp:
            reason = (f"time {timestamp} is not the greatest up to the batch that ends at relative "
                      f"offset {relative}")
        if reason is not None:
            problems.append({"path": path, "position_bytes": position, "reason": reason})
            return
        before = timestamp, relative


cdef bytes entries_of(str path, Py_ssize_t entry_bytes, list problems):
    """Return the whole entries of a file; none if it is missing: it is written later."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            file_bytes = os.fstat(file.fileno()).st_size
            raw = file.read() if file_bytes <= INT32_MAX else None
    except FileNotFoundError:
        return b""
    if raw is None:
        reason = f"no index is {file_bytes} bytes long"
        problems.append({"path": path, "position_bytes": INT32_MAX, "reason": reason})
        return b""
    cut = len(raw) % entry_bytes
    if cut:
        problems.append({"path": path, "position_bytes": len(raw), "reason": "not whole entries"})
    return raw[:len(raw) - cut]
