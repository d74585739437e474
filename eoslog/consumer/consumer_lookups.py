"""Lookups of what a consumer may read of partitions: where they begin and end, and what is when."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from eoslog.common.config import INT64_MAX
from eoslog.common.durability import IsolationLevel
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.common.whole_number import whole_number
from eoslog.consumer.consumer_positions import ConsumerPositions
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.storage.partition import Partition


class OffsetAndTimestamp(NamedTuple):
    """Offset of a record, and its timestamp in milliseconds."""

    offset: int
    timestamp_ms: int


class PartitionLookups:
    """A consumer's questions about partitions; these need not be assigned."""

    _positions: ConsumerPositions
    _isolation_level: IsolationLevel

    def _check_open(self) -> None:
        """Raise if the consumer or its store is closed."""
        raise NotImplementedError

    def _opened(self, where: TopicPartition) -> Partition:
        """A partition of the store, opened."""
        raise NotImplementedError

    @contextmanager
    def _deletions_named(self) -> Iterator[None]:
        """A partition that is closed while the store is open belongs to a deleted topic."""
        try:
            yield
        except LogClosedError as error:
            self._check_open()
            raise UnknownTopicOrPartitionError(f"the topic was deleted: {error}") from error

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The oldest offset of each partition."""
        self._check_open()
        with self._deletions_named():
            return {
                where: self._opened(where).log_start_offset
                for where in map(as_topic_partition, partitions)
            }

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the newest record of each partition that this consumer may read."""
        self._check_open()
        with self._deletions_named():
            return {
                where: self._positions.end_of(self._opened(where))
                for where in map(as_topic_partition, partitions)
            }

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms, 0 or more); None if none.

        The answer is a record, of an aborted transaction too; Kafka's may be the offset of a
        transaction's marker (rule R4).
        """
        self._check_open()
        if not isinstance(timestamps_ms, Mapping):
            raise TypeError(f"a mapping of partitions to times, not {type(timestamps_ms).__name__}")
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for where, timestamp_ms in timestamps_ms.items():
            moment_ms = whole_number(timestamp_ms, "a timestamp")
            if not 0 <= moment_ms <= INT64_MAX:
                raise ValueError(f"{where}: timestamp_ms {moment_ms}: not from 0 to {INT64_MAX}")
            with self._deletions_named():
                partition = self._opened(as_topic_partition(where))
                at = partition.offset_for_timestamp(moment_ms, self._isolation_level)
            found[where] = None if at is None else OffsetAndTimestamp(*at)
        return found
