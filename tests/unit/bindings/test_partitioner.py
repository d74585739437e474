"""The partition of a key: the same as Kafka's clients choose."""

import random

import numpy
import pyarrow
import pytest
from kafka.partitioner.default import murmur2 as peer_murmur2

from eoslog.bindings.column_set import open_columns
from eoslog.bindings.partitioner import murmur2, partition_for_key
from eoslog.bindings.record_batch import BatchEncoder, decode_records

# Kafka's own test of its hash (org.apache.kafka.common.utils.UtilsTest), as signed numbers.
KAFKA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]
PARTITION_COUNT_MAX = 2**31 - 1


def random_keys(count: int, seed: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(source.randrange(40)) for _ in range(count)]


def signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(("key", "expected"), KAFKA_VECTORS)
def test_hash_of_kafkas_own_test_keys(key, expected):
    assert murmur2(key) == expected


def test_hash_agrees_with_another_client():
    for key in [b"", *random_keys(5_000, seed=1)]:
        assert murmur2(key) == signed(peer_murmur2(key) & 0xFFFFFFFF), key


def test_partition_clears_the_sign_bit_as_kafka_does():
    keys = random_keys(2_000, seed=2)
    assert any(murmur2(key) < 0 for key in keys)
    for key in keys:
        for partitions in (1, 2, 3, 50, 1_000, PARTITION_COUNT_MAX):
            expected = (murmur2(key) & 0x7FFFFFFF) % partitions
            assert partition_for_key(key, partitions) == expected


def columns_of(keys: list[bytes | None]) -> list[object]:
    """The same keys as every kind of column that can hold them."""
    arrow = pyarrow.array([b"before", *keys], pyarrow.binary())
    return [
        keys,
        tuple(keys),
        pyarrow.array(keys, pyarrow.binary()),
        pyarrow.array(keys, pyarrow.large_binary()),
        arrow.slice(1),
        pyarrow.chunked_array([arrow.slice(1, 100), arrow.slice(101)]),
        numpy.array(keys, dtype=object),
    ]


def places(keys: object, partitions: int) -> list[int]:
    """The partition of each key of a column; -1 of a null one, which may be in any."""
    values = [b"%d" % index for index in range(len(keys))]
    placed = {}
    columns = open_columns(values, keys, None, None, 1)
    for partition, part in columns.by_partition(partitions, 0, 1 << 20):
        found = decode_records(BatchEncoder().encode_columns(part, timestamp_ms=1))
        numbers = [int(one.value) for one in found]
        assert numbers == sorted(numbers)
        for one in found:
            placed[int(one.value)] = -1 if one.key is None else partition
    return [placed[index] for index in range(len(keys))]


@pytest.mark.parametrize("kind", range(7))
def test_a_column_is_placed_like_its_keys_one_by_one(kind):
    keys: list[bytes | None] = [*random_keys(500, seed=3)]
    keys[::7] = [None] * len(keys[::7])
    expected = [-1 if key is None else partition_for_key(key, 12) for key in keys]
    assert places(columns_of(keys)[kind], 12) == expected


def test_columns_of_one_width_and_of_text():
    keys = [key[:8].ljust(8, b"x") for key in random_keys(200, seed=4)]
    expected = [partition_for_key(key, 5) for key in keys]
    rows = numpy.frombuffer(b"".join(keys), dtype=numpy.uint8).reshape(-1, 8)
    assert places(rows, 5) == expected
    assert places(pyarrow.array(keys, pyarrow.binary(8)), 5) == expected
    names = ["orders", "éclair", ""]
    expected = [partition_for_key(name.encode(), 5) for name in names]
    assert places(pyarrow.array(names), 5) == expected


def test_empty_columns_and_columns_of_nulls():
    assert places([], 3) == []
    assert places(pyarrow.array([], pyarrow.binary()), 3) == []
    assert places(pyarrow.nulls(4), 3) == [-1] * 4
    assert places([b"", None], 3) == [partition_for_key(b"", 3), -1]


@pytest.mark.parametrize("partitions", [0, -1, PARTITION_COUNT_MAX + 1])
def test_a_count_of_partitions_out_of_range_is_refused(partitions):
    message = f"partitions must be from 1 to {PARTITION_COUNT_MAX}, got {partitions}"
    with pytest.raises(ValueError, match=message):
        partition_for_key(b"key", partitions)
    with pytest.raises(ValueError, match=message):
        open_columns([b"v"], None, None, None, 1).by_partition(partitions, 0, 1 << 20)


@pytest.mark.parametrize("key", [None, "text", 3])
def test_a_key_that_is_not_bytes_is_refused(key):
    with pytest.raises(TypeError):
        murmur2(key)
    with pytest.raises(TypeError):
        partition_for_key(key, 3)


@pytest.mark.parametrize("first", [-1, 3])
def test_a_first_partition_out_of_range_is_refused(first):
    with pytest.raises(ValueError, match=f"first_partition must be from 0 to 2, got {first}"):
        open_columns([b"v"], None, None, None, 1).by_partition(3, first, 1 << 20)


def test_keyless_records_fill_one_batch_after_the_other():
    columns = open_columns([bytes(100)] * 10, None, list(range(10)), None, 1)
    parts = dict(columns.by_partition(3, 2, 3 * 136))
    assert {partition: len(part) for partition, part in parts.items()} == {0: 3, 1: 3, 2: 4}
    assert parts[2].timestamps.tolist() == [0, 1, 2, 9]


def test_headers_and_timestamps_go_with_their_records():
    keys = [b"%d" % number for number in range(50)]
    headers = [[("h", key)] for key in keys]
    columns = open_columns(None, keys, list(range(50)), headers, 1)
    for partition, part in columns.by_partition(4, 0, 1 << 20):
        for one in decode_records(BatchEncoder().encode_columns(part, timestamp_ms=1)):
            assert one.headers == (("h", one.key),)
            assert one.timestamp_ms == int(one.key)
            assert partition == partition_for_key(one.key, 4)


def test_more_records_than_a_call_takes_are_refused():
    rows = numpy.empty((2**30 + 1, 0), numpy.uint8)
    with pytest.raises(ValueError, match="at most 1073741824"):
        open_columns(rows, None, None, None, 1)
