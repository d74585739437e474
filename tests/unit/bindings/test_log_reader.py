"""Records of an opened log as a follower of keys wants them."""

import pytest
from partition_files import PartitionFiles

from eoslog.errors import OffsetOutOfRangeError


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
