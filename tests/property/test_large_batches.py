"""Large batches, which are stored past the caches or written by calls: the same bytes as those that
the encoder makes, wherever they begin, whatever they are cut into.
"""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from partition_files import PartitionFiles
from reference_model import batch_codec as codec

from eoslog.bindings.record_batch import BatchEncoder

# From this size on, as counted without looking at each record (native/log_append.pyx).
LARGE_BYTES = 256 << 10
LINE_BYTES = 64
WINDOW_BYTES = 8192
PIECE_BYTES = 256 << 10  # native/batch_write.pyx
RECYCLED_BYTES = 16 << 20
WRITTEN = {
    "eoslog.spare.segments": 1,
    "segment.bytes": 64 << 20,
    "max.message.bytes": 16 << 20,
    "eoslog.written.bytes": 1,
    "eoslog.durable": 1,
}
TERMINATOR_BYTES = 17
ZEROS_BYTES = 128  # Behind a batch that was written by calls: the terminator, and more.

around_the_window = st.integers(-80, 80).map(lambda more: WINDOW_BYTES + more)
sizes = st.none() | st.integers(0, 200) | around_the_window | st.integers(15_000, 60_000)
header_sizes = st.none() | st.integers(0, 30) | around_the_window
times_ms = st.integers(1_700_000_000_000, 1_700_000_100_000)
rows = st.tuples(sizes, sizes, header_sizes, times_ms)


def bytes_behind(path: Path) -> bytes:
    """What stands behind the last batch, or the begin of it."""
    with path.open("rb") as file:
        at = 0
        while True:
            file.seek(at)
            head = file.read(ZEROS_BYTES + 1)
            if head[8:12].strip(b"\0") == b"":
                return head
            at += 12 + int.from_bytes(head[8:12], "big")


def filled(source: random.Random, size: int | None) -> bytes | None:
    return None if size is None else source.randbytes(size)


@settings(max_examples=12 if settings.default.max_examples < 100 else 300)
@given(
    shapes=st.lists(rows, min_size=1, max_size=12),
    before_bytes=st.integers(0, 2 * LINE_BYTES),
    seed=st.integers(0, 2**32),
    with_columns=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_a_large_batch_has_the_encoders_bytes(make_log, shapes, before_bytes, seed, with_columns):
    source = random.Random(seed)
    # One value alone makes the batch a large one, at a place that varies.
    shapes.insert(source.randrange(len(shapes) + 1), (None, LARGE_BYTES, None, 1_700_000_000_000))
    with_keys, with_times, with_headers = with_columns
    values = [filled(source, value) for _, value, _, _ in shapes]
    keys = [filled(source, key) for key, _, _, _ in shapes] if with_keys else None
    times = [time_ms for _, _, _, time_ms in shapes] if with_times else None
    headers = None
    if with_headers:
        headers = [
            () if size is None else (("h" * (size % 7), filled(source, size)),)
            for _, _, size, _ in shapes
        ]
    columns = (values, keys, times, headers)
    expected = BatchEncoder(0).encode_columns(*columns, timestamp_ms=7)
    log = make_log(max_message_bytes=4 << 20, segment_bytes=8 << 20)
    # So that the batch begins anywhere in a cache line, with others' bytes before it.
    log.append_columns([bytes(before_bytes)], timestamp_ms=7)
    first = log.append_columns(*columns, timestamp_ms=7).base_offset
    last = log.append_columns([b"behind it"], timestamp_ms=7).base_offset
    assert len(expected) >= LARGE_BYTES
    assert codec.place_batch(log.read(first, len(expected))[: len(expected)], 0) == expected
    assert log.verify() == []
    assert log.log_end_offset == last + 1


around_a_piece = st.integers(-300, 300).map(lambda more: PIECE_BYTES + more)


@settings(max_examples=12 if settings.default.max_examples < 100 else 300)
@given(
    shapes=st.lists(st.tuples(sizes | around_a_piece, sizes | around_a_piece), max_size=12),
    before_bytes=st.integers(0, 5000),
    seed=st.integers(0, 2**32),
    recycled=st.booleans(),
)
def test_a_batch_that_is_written_by_calls_has_the_encoders_bytes(
    tmp_path_factory, shapes, before_bytes, seed, recycled
):
    """Of columns, and one that was encoded before; zeros end a scan after it."""
    source = random.Random(seed)
    keys = [filled(source, key) for key, _ in shapes] + [b"small"] * 300
    values = [filled(source, value) for _, value in shapes] + [b"v"] * 300
    expected = BatchEncoder(0).encode_columns(values, keys, timestamp_ms=7)
    files = PartitionFiles(tmp_path_factory.mktemp("log") / "p", WRITTEN)
    log = files.open()
    log.append_columns([b"rolled off"], timestamp_ms=7)
    if recycled:
        (files.spare / "0.spare").write_bytes(b"\xff" * RECYCLED_BYTES)
    log.roll()
    log.append_columns([bytes(before_bytes)], timestamp_ms=7)
    begins = []
    for append in (
        lambda: log.append_columns(values, keys, timestamp_ms=7),
        lambda: log.append_batch(expected),
        lambda: log.append_columns([b"behind"], timestamp_ms=7),
    ):
        begins.append(append().base_offset)
        behind = bytes_behind(files.path(log.active_base_offset))
        assert behind[:ZEROS_BYTES].strip(b"\0") == b""
        assert (b"\xff" in behind) is recycled
    for begin in begins[:2]:
        found = log.read(begin, len(expected))[: len(expected)]
        assert codec.place_batch(found, 0) == expected
    assert log.verify() == []
    files.close(clean=False)


def test_a_batch_that_is_written_by_calls_may_end_where_its_segment_does(tmp_path):
    batch = BatchEncoder(0).encode_columns([b"v" * 9000], timestamp_ms=7)
    for more in (0, 1, TERMINATOR_BYTES, TERMINATOR_BYTES + 1, ZEROS_BYTES, ZEROS_BYTES + 1):
        segment_bytes = len(batch) + more
        files = PartitionFiles(tmp_path / str(more), WRITTEN | {"segment.bytes": segment_bytes})
        log = files.open()
        log.append_batch(batch)
        assert files.path(0).stat().st_size == segment_bytes
        assert log.verify() == []
        files.close(clean=False)
