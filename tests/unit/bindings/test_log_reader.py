"""Records of an opened log as columns, and as a follower of keys wants them."""

import struct

import numpy as np
import pytest
from partition_files import PartitionFiles, segment_name

from eoslog.bindings.record_batch import crc32c
from eoslog.errors import OffsetOutOfRangeError

LOG_APPEND_TIME = 0x08


def set_log_append_time(path, base_offsets):
    """Mark batches of a segment as a broker's whose topic has this type of time."""
    data = bytearray(path.read_bytes())
    at = 0
    while at + 61 <= len(data) and data[at + 16] == 2:
        base_offset, length = struct.unpack_from(">qi", data, at)
        end = at + 12 + length
        if base_offset in base_offsets:
            data[at + 22] |= LOG_APPEND_TIME
            struct.pack_into(">I", data, at + 17, crc32c(bytes(data[at + 21 : end])))
        at = end
    path.write_bytes(data)


def test_the_types_of_times(tmp_path):
    files = PartitionFiles(tmp_path / "log")
    log = files.open()
    for first in range(0, 9, 3):
        times = np.arange(first, first + 3)
        log.append_columns([b"v"] * 3, None, times, timestamp_ms=0)
    assert log.fetch_columns(0).timestamp_types is None
    log.close()
    set_log_append_time(files.directory / segment_name(0), (3,))
    log = files.open()
    found = log.fetch_columns(0)
    assert found.timestamp_types.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert found.timestamps.tolist() == [0, 1, 2, 5, 5, 5, 6, 7, 8]
    assert log.fetch_columns(4, max_records=3).timestamp_types.tolist() == [1, 1, 0]
    assert log.fetch_columns(6).timestamp_types is None


def test_the_newest_records_of_keys(tmp_path):
    log = PartitionFiles(tmp_path / "log").open()
    rows = [(b"a1", b"0"), (b"b", b"1"), (None, b"2"), (b"a1", b"3"), (b"a2", b"4"), (b"b", None)]
    for key, value in rows:
        log.append_columns([value], [key], timestamp_ms=1)
    log.append_columns([b"6", None], [b"a", b"a2"], timestamp_ms=1)
    found, following = log.fetch_newest(b"a", 0, 1 << 20, -1)
    assert found.newest == {b"a1": (b"3", 3), b"a2": (None, 7), b"a": (b"6", 6)}
    assert found.others == [(b"b", b"1", 1), (b"b", None, 5)]
    assert following == log.log_end_offset == 8
    # From within a batch, and up to a bound.
    assert log.fetch_newest(b"a", 7, 1 << 20, -1) == (({b"a2": (None, 7)}, []), 8)
    assert log.fetch_newest(b"a", 1, 1 << 20, 4) == (({b"a1": (b"3", 3)}, [(b"b", b"1", 1)]), 4)
    # In pieces, of a batch at least.
    first, following = log.fetch_newest(b"", 0, 1, -1)
    assert (first, following) == (({b"a1": (b"0", 0)}, []), 1)
    assert log.fetch_newest(b"a", 8, 1 << 20, -1) == (({}, []), 8)
    with pytest.raises(OffsetOutOfRangeError):
        log.fetch_newest(b"a", 9, 1 << 20, -1)
