"""Large batches, which are stored past the caches: the same bytes as those that the encoder makes,
wherever they begin, whatever they are cut into.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from reference_model import batch_codec as codec

from eoslog.bindings.record_batch import BatchEncoder

# From this size on, as counted without looking at each record (native/log_append.pyx).
LARGE_BYTES = 256 << 10
LINE_BYTES = 64
WINDOW_BYTES = 8192

around_the_window = st.integers(-80, 80).map(lambda more: WINDOW_BYTES + more)
sizes = st.none() | st.integers(0, 200) | around_the_window | st.integers(15_000, 60_000)
header_sizes = st.none() | st.integers(0, 30) | around_the_window
times_ms = st.integers(1_700_000_000_000, 1_700_000_100_000)
rows = st.tuples(sizes, sizes, header_sizes, times_ms)


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
