"""The entries of a segment's `.index`, `.timeindex` and `.txnindex`, as Kafka's dump shows them.

The zeros behind the last entry of a file that is still being written are no damage.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eoslog.common.segment_name import base_offset_of
from eoslog.errors import CorruptRecordError

Fields = dict[str, Any]

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
_ABORTED_TXN = struct.Struct(">hqqqq")


def _entries(path: Path, data: bytes, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Entries of one size. A file that is still being written ends in zeros, which are none."""
    whole_bytes = len(data) - len(data) % entry.size
    for number, fields in enumerate(entry.iter_unpack(data[:whole_bytes])):
        if number > 0 and not any(fields) and not any(data[number * entry.size :]):
            return
        yield fields
    if any(data[whole_bytes:]):
        reason = f"{len(data) - whole_bytes} bytes after the last entry of {entry.size}"
        raise CorruptRecordError(str(path), whole_bytes, reason)


def dump_offset_index(path: Path, data: bytes) -> Iterator[Fields]:
    """Positions of batches in the log file, by offset."""
    base_offset = base_offset_of(path)
    for relative_offset, position_bytes in _entries(path, data, _INDEX_ENTRY):
        yield {"offset": base_offset + relative_offset, "position": position_bytes}


def dump_time_index(path: Path, data: bytes) -> Iterator[Fields]:
    """Offsets by time."""
    base_offset = base_offset_of(path)
    for timestamp_ms, relative_offset in _entries(path, data, _TIME_INDEX_ENTRY):
        yield {"timestamp": timestamp_ms, "offset": base_offset + relative_offset}


def dump_abort_index(path: Path, data: bytes) -> Iterator[Fields]:
    """The aborted transactions whose markers are in the segment."""
    for version, producer_id, first, last, stable in _entries(path, data, _ABORTED_TXN):
        yield {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }
