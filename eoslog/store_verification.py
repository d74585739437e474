"""Checking all of a store against its own logs: `Store.verify`.

The order matters where the store is in use: what says something of a log is read first, the log
after it. The log only grows; so it holds whatever was said of it. Which topics there are is read
before all of that: a topic that is still the same at the end was it all the time, and whatever was
read of its name is of it. One that is not is left out, and so is one that came later.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eoslog.checkpoint_verification import (
    Checkpoints,
    read_checkpoints,
    verify_checkpoints,
    verify_lost_partitions,
)
from eoslog.damage import UNREADABLE, Problem, problem, problem_of
from eoslog.directory_verification import verify_directories
from eoslog.errors import EoslogError
from eoslog.group_offsets_index import GroupOffsetsIndex
from eoslog.group_verification import verify_groups
from eoslog.opened_partitions import OpenedPartitions
from eoslog.partition import Partition
from eoslog.producer_state_store import ProducerStateStore
from eoslog.state_verification import Decided, verify_state_log
from eoslog.store_paths import StorePaths
from eoslog.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.topic_partition import TopicPartition
from eoslog.topic_registry import TopicDescription, TopicRegistry

Progress = Callable[[int, int, TopicPartition], None]


@dataclass(frozen=True)
class StoreVerification:
    """What a check of a store looks at."""

    paths: StorePaths
    partitions: OpenedPartitions
    registry: TopicRegistry
    rows: ProducerStateStore
    producer_expiration_ms: int
    # Partitions of internal topics that were gone, and are made anew.
    made_anew: Mapping[TopicPartition, int]
    # Deleted topics whose files are not all gone, and why.
    unremoved: Mapping[str, EoslogError]
    verify_staged: Callable[[], list[Problem]]

    def problems(self, progress: Progress | None) -> list[Problem]:
        """One dict of path, position_bytes and reason for each problem of the store.

        A topic that another process or thread deletes meanwhile is left out, also if it makes a new
        one of that name.
        """
        topics = self.registry.all()
        checkpoints, found = read_checkpoints(self.paths)
        found += verify_directories(self.paths, self.registry)
        found += verify_lost_partitions(self.paths, checkpoints, dict(self.made_anew))
        found += [
            problem(
                self.paths.root, f"topic {name} was deleted, and not all of it removed: {error}"
            )
            for name, error in self.unremoved.items()
        ]
        of_state, decided = verify_state_log(self.partitions, self.rows)
        found += of_state
        targets = [
            (topic, where)
            for topic in topics
            for where in topic.topic_partitions()
            if not topic.internal or self.partitions.has_files(where)
        ]
        for done, (topic, where) in enumerate(targets):
            if progress is not None:
                progress(done, len(targets), where)
            found += self._unless_deleted(topic, where, checkpoints, decided)
        return found + self.verify_staged()

    def _unless_deleted(
        self,
        topic: TopicDescription,
        where: TopicPartition,
        checkpoints: Checkpoints,
        decided: Decided,
    ) -> list[Problem]:
        try:
            found = self._of(where, checkpoints, decided)
        except EoslogError:
            if self.registry.get(topic.name) == topic:
                raise
            return []
        return found if self.registry.get(topic.name) == topic else []

    def _of(
        self, where: TopicPartition, checkpoints: Checkpoints, decided: Decided
    ) -> list[Problem]:
        try:
            partition = self._opened(where)
        except UNREADABLE as error:
            return [problem_of(error)]
        if partition is None:
            return []
        found = verify_partition(partition, decided, self.producer_expiration_ms)
        if where.topic == CONSUMER_OFFSETS_TOPIC and not found:
            found += verify_groups(partition, GroupOffsetsIndex(self.rows))
        if where in self.made_anew:
            return found
        return found + verify_checkpoints(self.paths, checkpoints, where, partition.log_end_offset)

    def _opened(self, where: TopicPartition) -> Partition | None:
        topic = self.registry.get(where.topic)
        if topic is not None and topic.internal:
            return self.partitions.internal_partition(where.topic, where.partition)
        return self.partitions.find(where)


def verify_partition(
    partition: Partition, decided: Decided, producer_expiration_ms: int
) -> list[Problem]:
    """What is wrong with a partition, given what was decided before."""
    found = partition.verify(decided.markers, producer_expiration_ms=producer_expiration_ms)
    noted = (
        partition.lost_beginning,
        partition.lost_end,
        partition.misnamed,
        partition.lost_producers,
    )
    found += [problem(partition.path, str(one)) for one in noted if one is not None]
    for one in partition.open_transactions():
        complete = decided.complete.get(one.producer_id, -1)
        if one.producer_epoch < complete:
            reason = (
                f"the transaction of producer {one.producer_id}, epoch {one.producer_epoch}, is "
                f"complete at its coordinator, and open here since offset {one.first_offset}"
            )
            found.append(problem(partition.path, reason))
    return found
