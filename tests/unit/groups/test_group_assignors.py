"""How partitions are shared out: Kafka's ranges, and the way that moves little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog import TopicPartition
from eoslog.errors import InvalidConfigError
from eoslog.groups.assignors import (
    RANGE,
    STICKY,
    assign_ranges,
    assign_sticky,
    parse_strategies,
)

NAMES = st.sampled_from(["a", "b", "c"])
COUNTS = st.dictionaries(NAMES, st.integers(0, 9), max_size=3)
SUBSCRIBED = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3", "m4"]), st.sets(NAMES, max_size=3), max_size=4
)


def numbers(assignment, topic="t"):
    return {
        member: sorted(where.partition for where in partitions if where.topic == topic)
        for member, partitions in assignment.items()
    }


def test_ranges_are_kafkas():
    topics = {"m2": ["t"], "m1": ["t"], "m3": ["t"]}
    given = assign_ranges(topics, {"t": 7}, {})
    assert numbers(given) == {"m1": [0, 1, 2], "m2": [3, 4], "m3": [5, 6]}
    given = assign_ranges(topics, {"t": 2}, {})
    assert numbers(given) == {"m1": [0], "m2": [1], "m3": []}


def test_ranges_go_topic_by_topic_to_those_who_read_it():
    given = assign_ranges({"m1": ["t", "u"], "m2": ["u"]}, {"t": 2, "u": 3}, {})
    assert numbers(given) == {"m1": [0, 1], "m2": []}
    assert numbers(given, "u") == {"m1": [0, 1], "m2": [2]}


def test_sticky_moves_no_more_than_it_takes():
    before = assign_sticky({"m1": ["t"], "m2": ["t"]}, {"t": 8}, {})
    held = {member: frozenset(partitions) for member, partitions in before.items()}
    after = assign_sticky({"m1": ["t"], "m2": ["t"], "m3": ["t"]}, {"t": 8}, held)
    assert sorted(map(len, after.values())) == [2, 3, 3]
    for member in held:
        assert after[member] <= before[member]
    held = {member: frozenset(partitions) for member, partitions in after.items()}
    gone = assign_sticky({"m1": ["t"], "m3": ["t"]}, {"t": 8}, held)
    assert sorted(map(len, gone.values())) == [4, 4]
    for member in gone:
        assert gone[member] >= after[member]


def test_sticky_evens_out_over_all_topics():
    topics = dict.fromkeys(("m1", "m2", "m3", "m4"), "abcd")
    counts = dict.fromkeys("abcd", 1)
    assert sorted(map(len, assign_sticky(topics, counts, {}).values())) == [1, 1, 1, 1]
    assert sorted(map(len, assign_ranges(topics, counts, {}).values())) == [0, 0, 0, 4]


def test_many_partitions_are_quickly_evened_out():
    held = {"m1": frozenset(TopicPartition("t", number) for number in range(5000))}
    given = assign_sticky({"m1": ["t"], "m2": ["t"]}, {"t": 5000}, held)
    assert sorted(map(len, given.values())) == [2500, 2500]


@given(SUBSCRIBED, COUNTS, st.data())
def test_everything_that_is_read_goes_to_one_who_reads_it(topics, counts, data):
    everything = [TopicPartition(one, number) for one in counts for number in range(counts[one])]
    owners = data.draw(
        st.lists(
            st.sampled_from(["m1", "m2", "m3", "m4", "gone"]),
            min_size=len(everything),
            max_size=len(everything),
        )
    )
    held = {
        member: frozenset(
            where for where, owner in zip(everything, owners, strict=True) if owner == member
        )
        for member in ("m1", "m2", "m3", "m4", "gone")
    }
    for assign in (assign_ranges, assign_sticky):
        given_out = assign(topics, counts, held)
        assert given_out.keys() == topics.keys()
        all_given = [where for partitions in given_out.values() for where in partitions]
        read = {one for topic in topics.values() for one in topic}
        assert sorted(all_given) == sorted(where for where in everything if where.topic in read)
        for member, partitions in given_out.items():
            assert {where.topic for where in partitions} <= set(topics[member])
        assert given_out == assign(dict(reversed(topics.items())), counts, held)
    for giver in topics:
        for taker in topics:
            movable = [one for one in given_out[giver] if one.topic in topics[taker]]
            assert not movable or len(given_out[giver]) - len(given_out[taker]) <= 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("range", (RANGE,)),
        ("sticky", (STICKY,)),
        ("range, cooperative-sticky", (RANGE, STICKY)),
        (["cooperative-sticky", "range", "sticky"], (STICKY, RANGE)),
        ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", (STICKY,)),
        (("org.apache.kafka.clients.consumer.RangeAssignor",), (RANGE,)),
    ],
)
def test_strategies_by_their_names(given, expected):
    assert parse_strategies(given) == expected


@pytest.mark.parametrize("wrong", ["", "roundrobin", "range,", [], [3], 3, None, b"range"])
def test_other_strategies_are_refused(wrong):
    with pytest.raises(InvalidConfigError, match=r"partition\.assignment\.strategy"):
        parse_strategies(wrong)
