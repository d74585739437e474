"""Place of a record that was sent."""

from typing import NamedTuple

from eoslog.common.topic_partition import TopicPartition


class RecordMetadata(NamedTuple):
    """Position of a record in the log; the offset is -1 for a record that is not in it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition of the record."""
        return TopicPartition(self.topic, self.partition)
