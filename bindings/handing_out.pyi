from collections.abc import Mapping
from typing import Self, final

from eoslog.bindings.record_batch import Record
from eoslog.consumer_positions import ConsumerPositions
from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition

@final
class OneByOne:
    def __new__(
        cls,
        positions: ConsumerPositions,
        partitions: Mapping[TopicPartition, Partition],
        records: list[Record],
        ends: dict[TopicPartition, int],
        expected: dict[TopicPartition, int],
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
