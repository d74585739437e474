"""Handing out the records of a poll one by one, the position behind each as it goes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eoslog.bindings.handing_out import OneByOne
from eoslog.bindings.record_batch import Record
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.consumer_positions import ConsumerPositions

if TYPE_CHECKING:
    import pyarrow


def handed_out(positions: ConsumerPositions, records: list[Record]) -> Iterator[Record]:
    """Records of the last poll, each with the position behind it; none of a partition that was
    moved, taken away or made anew since.

    The positions are in front of the first ones when this returns.
    """
    ends = positions.begun()
    expected = take_back(positions, records)
    return OneByOne(positions, positions.partitions, records, ends, expected)


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
