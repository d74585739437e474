"""Handing out the records of a poll one by one, the position behind each as it goes."""

from collections.abc import Iterator

from eoslog.bindings.record_batch import Record
from eoslog.consumer_positions import ConsumerPositions
from eoslog.topic_partition import TopicPartition


def handed_out(positions: ConsumerPositions, records: list[Record]) -> Iterator[Record]:
    """Records of a poll, each with the position behind it; none of a partition moved since.

    The positions are in front of the first ones when this returns.
    """
    ends = positions.begun()
    last: dict[TopicPartition, Record] = {}
    expected: dict[TopicPartition, int] = {}
    for record in reversed(records):
        where = TopicPartition(record.topic, record.partition)
        last.setdefault(where, record)
        expected[where] = record.offset
    for where, position in expected.items():
        positions.set(where, position)
    return _one_by_one(positions, records, ends, last, expected)


def _one_by_one(
    positions: ConsumerPositions,
    records: list[Record],
    ends: dict[TopicPartition, int],
    last: dict[TopicPartition, Record],
    expected: dict[TopicPartition, int],
) -> Iterator[Record]:
    """`expected` are the positions that the records were read at."""
    for record in records:
        where = TopicPartition(record.topic, record.partition)
        if where not in expected:
            continue
        if positions.get(where) != expected[where]:
            del expected[where]  # Sent elsewhere by the caller.
            continue
        behind = ends[where] if record is last[where] else record.offset + 1
        expected[where] = behind
        # No call of a method, behind which an interrupt could come and the record be lost.
        positions.current[where] = behind
        yield record
