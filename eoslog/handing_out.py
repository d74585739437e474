"""Handing out the records of a poll one by one, the position behind each as it goes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from eoslog.bindings.record_batch import Record
from eoslog.consumer_positions import ConsumerPositions
from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow


def handed_out(positions: ConsumerPositions, records: Sequence[Record]) -> Iterator[Record]:
    """Records of the last poll, each with the position behind it; none of a partition that was
    moved, taken away or made anew since.

    The positions are in front of the first ones when this returns.
    """
    ends = positions.begun()
    last = {TopicPartition(record.topic, record.partition): record for record in records}
    expected = take_back(positions, records)
    return _one_by_one(positions, positions.partitions, records, ends, last, expected)


def take_back(
    positions: ConsumerPositions, polled: "Sequence[Record] | pyarrow.RecordBatch"
) -> dict[TopicPartition, int]:
    """What the last poll gave is not handed out: the positions go in front of it, to these."""
    firsts = _first_offsets(polled)
    positions.put_back({**positions.all(), **firsts})
    return firsts


def _first_offsets(
    polled: "Sequence[Record] | pyarrow.RecordBatch",
) -> dict[TopicPartition, int]:
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


def _one_by_one(
    positions: ConsumerPositions,
    partitions: Mapping[TopicPartition, Partition],
    records: Sequence[Record],
    ends: dict[TopicPartition, int],
    last: dict[TopicPartition, Record],
    expected: dict[TopicPartition, int],
) -> Iterator[Record]:
    """`partitions` and `expected` are where the records were read, and from which positions."""
    for record in records:
        where = TopicPartition(record.topic, record.partition)
        if where not in expected:
            continue
        now = positions.partitions.get(where)
        if positions.get(where) != expected[where] or now is not partitions[where]:
            del expected[where]  # Sent elsewhere by the caller, or of a topic that was made anew.
            continue
        behind = ends[where] if record is last[where] else record.offset + 1
        expected[where] = behind
        # No call of a method, behind which an interrupt could come and the record be lost.
        positions.current[where] = behind
        yield record
