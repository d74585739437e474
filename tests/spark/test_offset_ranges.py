"""Offsets of reads, without Spark: what options mean in a log, and how ranges are shared out."""

import tracemalloc

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from eoslog.spark.source.offset_bounds import (
    ending_bound,
    ending_offsets,
    starting_bound,
    starting_offsets,
)
from eoslog.spark.source.offset_json import EARLIEST, LATEST, as_nested, from_nested
from eoslog.spark.source.offset_ranges import (
    OffsetRange,
    SplitRule,
    bytes_in,
    ranges_between,
    within_limit,
)
from eoslog.spark.source.topic_choice import TopicChoice
from eoslog.store.store import engine_of

pytest.importorskip("pyarrow")

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def one_byte_each(wanted: OffsetRange) -> int:
    return wanted.size


def covered(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int]]:
    return [(one.where, offset) for one in ranges for offset in range(one.first, one.upper_bound)]


# The shape of offsets.


def test_offsets_are_nested_in_order_and_come_back():
    offsets = {B0: 5, A1: 7, TopicPartition("a", 10): 1, A0: 0}
    nested = as_nested(offsets)
    assert nested == {"a": {"0": 0, "1": 7, "10": 1}, "b": {"0": 5}}
    assert list(nested["a"]) == ["0", "1", "10"]
    assert from_nested(nested) == offsets


# Sharing out.


def test_ranges_are_sorted_and_those_without_offsets_left_out():
    starts, ends = {A0: 0, A1: 5, B0: 3}, {B0: 4, A1: 5, A0: 2}
    assert ranges_between(starts, ends) == [OffsetRange(A0, 0, 2), OffsetRange(B0, 3, 4)]


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000])
@pytest.mark.parametrize("rule", [SplitRule(7), SplitRule(0, 4), SplitRule(5, 30), SplitRule(1)])
def test_a_split_range_has_each_offset_once_and_in_order(size, rule):
    ranges = [OffsetRange(A0, 100, 100 + size), OffsetRange(B0, 0, 3)]
    assert covered(rule.split(ranges, one_byte_each)) == covered(ranges)


def test_more_pieces_than_offsets_cost_no_more():
    tracemalloc.start()
    try:
        pieces = OffsetRange(A0, 7, 10).divided(1_000_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pieces == [OffsetRange(A0, first, first + 1) for first in range(7, 10)]
    assert peak_bytes < 100_000
    assert OffsetRange(A0, 7, 7).divided(5) == []


@pytest.mark.parametrize(
    ("sizes", "wanted", "counts"),
    [
        ((10, 10), 2, (1, 1)),
        ((10, 10), 1, (1, 1)),
        ((10, 10), 4, (2, 2)),
        ((10, 30), 4, (1, 3)),
        # Spark's own tests: one large range beside small ones takes what they leave.
        ((1, 1, 1, 1000), 6, (1, 1, 1, 3)),
        ((100, 1), 3, (2, 1)),
        ((5,), 20, (5,)),
    ],
)
def test_min_partitions_share_in_proportion(sizes, wanted, counts):
    ranges = [OffsetRange(TopicPartition("a", n), 0, size) for n, size in enumerate(sizes)]
    pieces = SplitRule(wanted).split(ranges, one_byte_each)
    found = [sum(one.where.partition == n for one in pieces) for n in range(len(sizes))]
    assert tuple(found) == counts


def test_no_piece_is_larger_than_it_may_be():
    ranges = [OffsetRange(A0, 0, 1001), OffsetRange(A1, 0, 9)]
    records = SplitRule(max_records=100).split(ranges, one_byte_each)
    assert max(one.size for one in records) <= 100
    assert len(records) == 12
    by_bytes = SplitRule(max_bytes=500).split(ranges, lambda one: one.size * 10)
    assert len(by_bytes) == 22
    assert max(one.size for one in by_bytes) <= 50


@pytest.mark.parametrize(
    ("processors", "sizes_mb", "counts"),
    [
        (2, (260, 259, 258, 261), (1, 1, 1, 1)),
        (64, (260, 259, 258, 261), (2, 2, 2, 2)),
        (64, (60, 130, 190, 200), (1, 1, 1, 2)),
        (2, (1000,), (4,)),
        (2, (8000, 100), (4, 1)),
        (1, (500, 500, 500), (1, 1, 1)),
    ],
)
def test_pieces_are_large_where_there_are_enough_for_all_processors(
    monkeypatch, processors, sizes_mb, counts
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    ranges = [OffsetRange(TopicPartition("a", n), 0, size) for n, size in enumerate(sizes_mb)]
    pieces = SplitRule().split(ranges, lambda one: one.size << 20)
    found = [sum(one.where.partition == n for one in pieces) for n in range(len(sizes_mb))]
    assert tuple(found) == counts


def test_a_limit_is_shared_in_proportion():
    starts, ends = {A0: 0, A1: 100, B0: 7}, {A0: 900, A1: 200, B0: 7}
    assert within_limit(starts, ends, 100) == {A0: 90, A1: 110, B0: 7}
    assert within_limit(starts, ends, 1000) == ends
    assert within_limit(starts, ends, 5000) == ends


def test_a_limit_lets_no_partition_starve_and_passes_no_end():
    starts, ends = {A0: 0, A1: 0, B0: 0}, {A0: 1_000_000, A1: 1, B0: 3}
    limited = within_limit(starts, ends, 10)
    assert limited[A1] == 1
    assert limited[B0] == 1
    assert 9 <= limited[A0] <= 10


def test_repeated_limits_reach_every_offset_once():
    starts, ends = {A0: 3, A1: 0}, {A0: 50, A1: 7}
    steps = 0
    while starts != ends:
        after = within_limit(starts, ends, 10)
        assert all(starts[where] <= after[where] <= ends[where] for where in ends)
        assert after != starts
        starts, steps = after, steps + 1
    assert steps < 12


# In a log.


@pytest.fixture
def store(tmp_path):
    """Topic `a` with 10 records in partition 0, at 1000, 1010, ... ms, and none in partition 1."""
    config = {"message.timestamp.before.max.ms": 2**63 - 1}
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("a", partitions=2, config=config)
        store.create_topic("b", config=config)
        times = [1000 + 10 * number for number in range(10)]
        store.producer().append("a", 0, [b"x"] * 10, timestamps=times)
        yield store


def start(store, options, *wheres, stream=True, fail=True, default=LATEST):
    partitions = [engine_of(store).partition(*where) for where in wheres]
    latest = {where: store.snapshot([where.topic])[where] for where in wheres}
    bound = starting_bound(options, default, stream=stream)
    found = starting_offsets(bound, partitions, latest, "read_committed", fail_on_data_loss=fail)
    return tuple(found[where] for where in wheres)


def end(store, options, *wheres, fail=True):
    partitions = [engine_of(store).partition(*where) for where in wheres]
    latest = {where: store.snapshot([where.topic])[where] for where in wheres}
    found = ending_offsets(
        ending_bound(options), partitions, latest, "read_committed", fail_on_data_loss=fail
    )
    return tuple(found[where] for where in wheres)


def test_words_and_numbers_are_offsets(store):
    assert start(store, {}, A0, A1) == (10, 0)
    assert start(store, {"startingoffsets": "earliest"}, A0, A1) == (0, 0)
    assert start(store, {"startingoffsets": "Latest"}, A0, A1) == (10, 0)
    assert start(store, {}, A0, default=EARLIEST) == (0,)
    assert start(store, {"startingoffsets": '{"a": {"0": -2, "1": -1}}'}, A0, A1) == (0, 0)
    assert start(store, {"startingoffsets": '{"a": {"0": 4, "1": 0}}'}, A0, A1) == (4, 0)
    assert end(store, {"endingoffsets": '{"a": {"0": 4, "1": -1}}'}, A0, A1) == (4, 0)
    assert end(store, {}, A0, A1) == (10, 0)


def test_times_are_the_first_record_at_or_after_them(store):
    assert start(store, {"startingtimestamp": "1041"}, A0) == (5,)
    assert start(store, {"startingoffsetsbytimestamp": '{"a": {"0": 1040}}'}, A0) == (4,)
    assert end(store, {"endingtimestamp": "1040"}, A0, A1) == (4, 0)
    assert end(store, {"endingtimestamp": "9999"}, A0, A1) == (10, 0)
    assert end(store, {"endingoffsetsbytimestamp": '{"a": {"0": 1000}}'}, A0) == (0,)


def test_a_time_beats_offsets_and_one_for_all_beats_one_for_each(store):
    options = {
        "startingtimestamp": "1020",
        "startingoffsetsbytimestamp": '{"a": {"0": 1030}}',
        "startingoffsets": "earliest",
    }
    assert start(store, options, A0) == (2,)
    del options["startingtimestamp"]
    assert start(store, options, A0) == (3,)


def test_a_time_without_records_is_an_error_or_the_end(store):
    options = {"startingtimestamp": "5000"}
    with pytest.raises(OffsetOutOfRangeError, match=r"5000 ms.*ByTimestampStrategy=latest"):
        start(store, options, A0)
    options["startingoffsetsbytimestampstrategy"] = "latest"
    assert start(store, options, A0, A1) == (10, 0)


def test_partitions_that_are_not_named_or_not_read_are_refused(store):
    with pytest.raises(ValueError, match=r"startingOffsets .*it has a-0; read are a-0, a-1"):
        start(store, {"startingoffsets": '{"a": {"0": 1}}'}, A0, A1)
    with pytest.raises(
        ValueError, match=r"endingOffsetsByTimestamp .*it has a-0, b-0; read are a-0"
    ):
        end(store, {"endingoffsetsbytimestamp": '{"a": {"0": 1}, "b": {"0": 1}}'}, A0)


def test_offsets_that_are_not_there_are_an_error_or_the_nearest(store):
    with pytest.raises(
        OffsetOutOfRangeError, match=r"a-0 is 11, and the log has 0 to 10.*DataLoss"
    ):
        start(store, {"startingoffsets": '{"a": {"0": 11}}'}, A0)
    assert start(store, {"startingoffsets": '{"a": {"0": 11}}'}, A0, fail=False) == (10,)
    with pytest.raises(OffsetOutOfRangeError, match="a-0 is 12, and read_committed ends at 10"):
        end(store, {"endingoffsets": '{"a": {"0": 12}}'}, A0)
    assert end(store, {"endingoffsets": '{"a": {"0": 12}}'}, A0, fail=False) == (10,)


def test_an_open_transaction_is_not_read_to_its_end(store):
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("a", 0, [b"open"] * 5)
        producer.flush()
        assert end(store, {}, A0) == (10,)
        with pytest.raises(OffsetOutOfRangeError, match="read_committed ends at 10"):
            end(store, {"endingoffsets": '{"a": {"0": 13}}'}, A0)
        # A stream may begin there, and waits.
        assert start(store, {"startingoffsets": '{"a": {"0": 13}}'}, A0) == (13,)
        producer.abort_transaction()


# Which partitions.


def test_topics_are_chosen_by_name_pattern_or_partition(store):
    store.create_topic("ab")
    assert TopicChoice.of({"subscribe": " b , a"}).partitions(store) == [A0, A1, B0]
    ab = TopicPartition("ab", 0)
    assert TopicChoice.of({"subscribePattern": "a.*"}).partitions(store) == [A0, A1, ab]
    assert TopicChoice.of({"subscribePattern": "a"}).partitions(store) == [A0, A1]
    assert TopicChoice.of({"subscribePattern": "none"}).partitions(store) == []
    assert TopicChoice.of({"assign": '{"b": [0], "a": [1]}'}).partitions(store) == [A1, B0]


def test_what_is_named_and_not_there_is_an_error_unless_it_was_there_before(store):
    for options, gone in (
        ({"subscribe": "a,c"}, TopicPartition("c", 0)),
        ({"assign": '{"a": [0, 1, 2]}'}, TopicPartition("a", 2)),
    ):
        choice = TopicChoice.of(options)
        with pytest.raises(UnknownTopicOrPartitionError, match=r"has no (c|a-2)"):
            choice.partitions(store)
        assert choice.partitions(store, [gone]) == [A0, A1]


# Reading a range.


def offsets_of(store, first, upper_bound, *, where=A0, level="read_committed", fail=True):
    from eoslog.spark.source.record_columns import record_batches

    partition, wanted = engine_of(store).partition(*where), OffsetRange(where, first, upper_bound)
    batches = record_batches(partition, wanted, ["offset"], level, fail_on_data_loss=fail)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_range_gives_its_offsets_wherever_batches_begin(store):
    for first in range(10):
        for upper_bound in range(first, 11):
            assert offsets_of(store, first, upper_bound) == list(range(first, upper_bound))


def test_markers_and_aborted_records_are_left_out(store):
    with store.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for commit in (True, False, True):
            producer.begin_transaction()
            producer.append("a", 0, [b"x", b"y"])
            producer.commit_transaction() if commit else producer.abort_transaction()
    # 10 11 M, 13 14 A, 16 17 M.
    everything = [*range(10), 10, 11, 16, 17]
    for first in range(20):
        for upper_bound in range(first, 20):
            expected = [offset for offset in everything if first <= offset < upper_bound]
            assert offsets_of(store, first, upper_bound) == expected
    assert offsets_of(store, 9, 19, level="read_uncommitted") == [9, 10, 11, 13, 14, 16, 17]


def test_a_range_that_is_not_there_is_an_error_or_what_there_is(store):
    with pytest.raises(
        OffsetOutOfRangeError, match=r"offsets 10 to 12 .* read_committed ends at 10"
    ):
        offsets_of(store, 8, 12)
    assert offsets_of(store, 8, 12, fail=False) == [8, 9]
    with pytest.raises(OffsetOutOfRangeError):
        offsets_of(store, 20, 30)


def test_what_retention_took_is_an_error_or_left_out(store):
    partition = engine_of(store).partition("a", 0)
    partition.roll()
    store.producer().append("a", 0, [b"y"] * 5)
    partition.delete_segments(10)
    assert partition.log_start_offset == 10
    with pytest.raises(OffsetOutOfRangeError, match=r"offsets 3 to 10 .* the log begins at 10"):
        offsets_of(store, 3, 15)
    assert offsets_of(store, 3, 15, fail=False) == [10, 11, 12, 13, 14]
    assert offsets_of(store, 3, 7, fail=False) == []
    with pytest.raises(
        OffsetOutOfRangeError, match=r"startingOffsets of a-0 is 3, .* has 10 to 15"
    ):
        start(store, {"startingoffsets": '{"a": {"0": 3}}'}, A0)


def test_bytes_of_a_range_are_counted_over_segments(store):
    partition = engine_of(store).partition("a", 0)
    partition.roll()
    store.producer().append("a", 0, [bytes(1000)] * 10)
    large = bytes_in(partition, 10, 20)
    assert large > 10_000
    assert bytes_in(partition, 0, 20) == partition.size_bytes
    assert abs(bytes_in(partition, 15, 20) - large / 2) <= 1
    assert bytes_in(partition, 0, 10) < 1000
    assert bytes_in(partition, 7, 7) == 0
