"""The storage of one open store, as the rooms above use it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.partition_log import ProducerState
from eoslog.common.durability import Durability
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ForkedProcessError,
    LogClosedError,
    StoreFailedError,
    UnknownTopicOrPartitionError,
)
from eoslog.session.append_signal import AppendSignal
from eoslog.session.paths import StorePaths
from eoslog.session.store_session import StoreSession
from eoslog.storage.lmdb_environment import LmdbEnvironment
from eoslog.storage.offset_checkpoints import OffsetCheckpoints
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.topic_registry import TopicDescription, TopicRegistry, partition_of
from eoslog.storage.unified_log import UnifiedLog


class Engine(NamedTuple):
    """The parts of an open store up to its partitions.

    `is_closed()` is True once the store was closed or its process forked. `check_open()` raises
    LogClosedError, ForkedProcessError or StoreFailedError if the store is not usable any more.
    `check_files()` looks whether its files are still those that were opened; if they are not, it
    raises StoreFailedError, and every call does from then on. `check_writable()` raises
    StoreReadOnlyError if the store is only read. `follows` is True if that is beside processes that
    have it open.
    """

    paths: StorePaths
    session: StoreSession
    config: Mapping[str, int]
    durability: Durability
    registry: TopicRegistry
    lmdb: LmdbEnvironment
    partitions: OpenedPartitions
    checkpoints: OffsetCheckpoints
    signal: AppendSignal
    is_closed: Callable[[], bool]
    check_open: Callable[[], None]
    check_files: Callable[[], None]
    check_writable: Callable[[], None]
    follows: bool = False

    @property
    def path(self) -> Path:
        """The store's directory, absolute."""
        return self.paths.shown

    @property
    def syncs(self) -> bool:
        """True if the durability asks for syncs."""
        return self.durability != "process"

    @property
    def failure(self) -> StoreFailedError | None:
        """The error of every call since the files were replaced; None if they were not."""
        try:
            self.check_open()
        except StoreFailedError as error:
            return error
        except (ForkedProcessError, LogClosedError):
            return None
        return None

    def topics(self) -> dict[str, TopicDescription]:
        """Return the topics of users by name."""
        self.check_open()
        return {topic.name: topic for topic in self.registry.all() if not topic.internal}

    def topic(self, name: str) -> TopicDescription:
        """Return a topic of users. Raises UnknownTopicOrPartitionError, TypeError."""
        if not isinstance(name, str):
            raise TypeError(f"topic must be a str, got {type(name).__name__}")
        topic = self.registry.get(name)
        if topic is None or topic.internal:
            raise UnknownTopicOrPartitionError(f"no topic {name!r} in {self.path}")
        return topic

    def find_partition(self, where: TopicPartition) -> UnifiedLog | None:
        """Return the partition, opened; None if there is no such topic or partition."""
        return self.partitions.find(where)

    def partition(self, topic: str, number: int) -> UnifiedLog:
        """Return a partition, opened. See `Store.partition`."""
        self.check_open()
        where = partition_of(self.topic(topic), number)
        partition = self.partitions.find(where)
        if partition is None:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} was deleted just now")
        return partition

    def producers(self) -> dict[TopicPartition, list[ProducerState]]:
        """Return the producers of each partition. See `Store.producers`."""
        found: dict[TopicPartition, list[ProducerState]] = {}
        for topic in self.topics().values():
            try:
                found |= {
                    where: self.partition(*where).producers() for where in topic.topic_partitions()
                }
            except (LogClosedError, UnknownTopicOrPartitionError):
                self.check_open()
                if self.topics().get(topic.name) == topic:
                    raise
                # It was deleted since, by some process.
        return found

    def topic_config(self, topic: str) -> dict[str, int]:
        """Return the settings of a topic of users, with defaults."""
        return self.partitions.config_of(self.topic(topic))

    def batch_bytes_max(self, topic: str) -> int:
        """Return the size of the largest batch that the topic takes."""
        return self.topic_config(topic)["max.message.bytes"]

    def segment_bytes(self, topic: str) -> int:
        """Return the size of the topic's largest segment."""
        return self.topic_config(topic)["segment.bytes"]
