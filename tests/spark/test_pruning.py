"""Filters of a query bound what is read, and never keep a row from it that passes them."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from eoslog import TopicPartition
from eoslog.spark.source.offset_ranges import OffsetRange
from eoslog.spark.source.pruning import Pruning

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLACES = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(3)]
COUNT = 6
# Times of the records of each partition; they do not rise.
TIMES_MS = (5, 9, 2, 7, 9, 4)
COMPARISONS = {
    EqualTo: lambda cell, value: cell == value,
    EqualNullSafe: lambda cell, value: cell == value,
    GreaterThan: lambda cell, value: cell > value,
    GreaterThanOrEqual: lambda cell, value: cell >= value,
    LessThan: lambda cell, value: cell < value,
    LessThanOrEqual: lambda cell, value: cell <= value,
    In: lambda cell, value: cell in value,
}
NUMBERS = st.integers(-1, COUNT)
MOMENTS = st.integers(0, 10_000).map(lambda us: EPOCH + timedelta(microseconds=us))
OF_NUMBERS = [kind for kind in COMPARISONS if kind is not In]


def filters():
    def of(name, kinds, values):
        return st.builds(lambda kind, value: kind((name,), value), st.sampled_from(kinds), values)

    several = st.lists(NUMBERS, max_size=3).map(tuple)
    return st.one_of(
        of("topic", (EqualTo, EqualNullSafe), st.sampled_from("abc")),
        of("topic", (In,), st.lists(st.sampled_from("abc"), max_size=2).map(tuple)),
        of("partition", OF_NUMBERS, NUMBERS),
        of("partition", (In,), several),
        of("offset", OF_NUMBERS, NUMBERS),
        of("offset", (In,), several),
        of("timestamp", OF_NUMBERS, MOMENTS),
    )


def log():
    """A partition's log, as far as filters look at it."""

    def offset_for_timestamp(time_ms, _):
        return next(((at, ms) for at, ms in enumerate(TIMES_MS) if ms >= time_ms), None)

    return SimpleNamespace(offset_for_timestamp=offset_for_timestamp)


def rows():
    for where in PLACES:
        for offset, time_ms in enumerate(TIMES_MS):
            timestamp = EPOCH + timedelta(milliseconds=time_ms)
            yield (
                where,
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "offset": offset,
                    "timestamp": timestamp,
                },
            )


def left(*given):
    pruning = Pruning()
    for one in given:
        pruning.add(one)
    whole = [OffsetRange(where, 0, COUNT) for where in PLACES]
    return pruning.ranges(whole, {where: log() for where in PLACES}, "read_committed")


@given(st.lists(filters(), max_size=4))
def test_every_row_that_passes_is_in_a_range(given):
    ranges = {one.where: range(one.first, one.upper_bound) for one in left(*given)}
    for where, row in rows():
        if all(COMPARISONS[type(one)](row[one.attribute[0]], one.value) for one in given):
            assert row["offset"] in ranges.get(where, ())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], [(where, 0, COUNT) for where in PLACES]),
        (
            [EqualTo(("topic",), "a"), In(("partition",), (2, 7)), GreaterThan(("offset",), 3)],
            [(TopicPartition("a", 2), 4, COUNT)],
        ),
        (
            [EqualTo(("topic",), "b"), LessThan(("partition",), 1), In(("offset",), (2, 4))],
            [(TopicPartition("b", 0), 2, 5)],
        ),
        ([EqualTo(("partition",), 3)], []),
        ([In(("offset",), ())], []),
        (
            [
                EqualTo(("topic",), "a"),
                EqualTo(("partition",), 0),
                GreaterThan(("timestamp",), EPOCH + timedelta(milliseconds=8)),
                LessThan(("timestamp",), EPOCH + timedelta(milliseconds=9)),
            ],
            [(TopicPartition("a", 0), 1, COUNT)],
        ),
        ([GreaterThan(("timestamp",), EPOCH + timedelta(seconds=1))], []),
    ],
)
def test_what_is_left_to_read(given, expected):
    assert [(one.where, one.first, one.upper_bound) for one in left(*given)] == expected


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("partition",), 1)),
        IsNotNull(("offset",)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        StringStartsWith(("topic",), "a"),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # Of no known time zone.
        LessThan(("timestamp",), EPOCH),
        GreaterThan(("offset",), 2.5),
        In(("offset",), (1, 2.5)),
    ],
)
def test_what_says_nothing_for_sure_bounds_nothing(one):
    assert left(one) == left()
