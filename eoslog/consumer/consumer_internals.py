"""The internal face of a consumer, for clients that wait by other means or record it."""

from contextlib import AbstractContextManager

from eoslog.common.durability import IsolationLevel
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.consumer import Consumer
from eoslog.storage.partition import Partition


class ConsumerInternals:
    """The parts and checks of a consumer that its asyncio client and its recorder use."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.positions = consumer._positions
        self.group: str | None = consumer._group
        self.isolation_level: IsolationLevel = consumer._isolation_level

    def check_open(self) -> None:
        """Raise LogClosedError if the consumer or the store is closed."""
        self._consumer._check_open()

    def partition(self, where: TopicPartition) -> Partition:
        """Return a partition, which need not be assigned."""
        return self._consumer._opened(where)

    def deletions_named(self) -> AbstractContextManager[None]:
        """Return a block in which a deleted topic raises UnknownTopicOrPartitionError."""
        return self._consumer._deletions_named()

    def is_plain(self) -> bool:
        """Return True if only the ends of partitions show that there is something to read."""
        is_begun = len(self.positions.begun()) == len(self.positions.partitions)
        return is_begun and self._consumer._subscription is None

    def group_partition(self) -> Partition | None:
        """Return the partition whose appends decide the group's offsets, if these are awaited."""
        if self._consumer._subscription is not None:
            return None
        own = self.positions.partitions.values()
        return next((one for one in self._consumer._watched() if one not in own), None)

    def lag(self) -> int:
        """Return the number of offsets between the positions and the ends."""
        positions = self.positions
        return sum(
            max(0, positions.end_of(positions.partitions[where]) - position)
            for where, position in positions.begun().items()
        )
