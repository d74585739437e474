"""Iteration over the records of a poll; the position moves record by record."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eoslog.bindings.record_batch import Record
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.positions import ConsumerPositions, Positions

if TYPE_CHECKING:
    import pyarrow


def record_iterator(positions: ConsumerPositions, records: list[Record]) -> Iterator[Record]:
    """Return an iterator over the records of the last poll, each with the position after it.

    A partition that was moved by a seek, paused, revoked or re-created since yields no more
    records.
    The positions are at the first records when this returns.
    """
    ends = positions.current
    return records_one_by_one(positions, records, ends, take_back(positions, records))


def records_one_by_one(
    positions: ConsumerPositions,
    records: list[Record],
    ends: Positions,
    expected: Positions,
) -> Iterator[Record]:
    """Yield records of a poll up to these ends, each with the position after it.

    The positions are as expected, at the first records; `expected` is the iterator's own.
    """
    partitions = positions.partitions
    last = {(record.topic, record.partition): record for record in records}
    for record in records:
        where = TopicPartition(record.topic, record.partition)
        if where not in expected:
            continue
        partition = positions.partitions.get(where)
        if (
            partition is None
            or partition is not partitions.get(where)
            or where in positions.paused
            or positions.get(where) != expected[where]
        ):
            del expected[where]
            continue
        # The end of the last batch may lie past markers.
        next_offset = ends[where] if record is last[where] else record.offset + 1
        positions.current[where] = expected[where] = next_offset
        # Python handles no signal between the assignment and the yield.
        yield record


def take_back(
    positions: ConsumerPositions, polled: "Sequence[Record] | pyarrow.RecordBatch"
) -> Positions:
    """Set the positions back to the first records of the last poll; return them."""
    firsts = first_offsets(polled)
    positions.current = positions.current | firsts
    return firsts


def first_offsets(polled: "Sequence[Record] | pyarrow.RecordBatch") -> Positions:
    """Return the offset of each partition's first record of a poll."""
    if isinstance(polled, Sequence):
        return {
            TopicPartition(record.topic, record.partition): record.offset
            for record in reversed(polled)
        }
    if not polled.num_rows:
        return {}
    # A record batch is of one partition.
    first = polled.slice(0, 1).select(["topic", "partition", "offset"]).to_pylist()[0]
    return {TopicPartition(first["topic"], first["partition"]): first["offset"]}
