"""Checking all of a store against its own logs: `Store.verify`.

The order matters where the store is in use: what says something of a log is read first, the log
after it. The log only grows; so it holds whatever was said of it. Which topics there are is read
before all of that: a topic that is still the same at the end was it all the time, and whatever was
read of its name is of it. One that is not is left out, and so is one that came later. What looks
ahead of the state log is judged by what that says afterwards (`followed_transactions`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError
from eoslog.groups.group_offsets_index import GroupOffsetsIndex
from eoslog.inspect.checkpoint_verification import (
    Checkpoints,
    read_checkpoints,
    verify_checkpoints,
    verify_lost_partitions,
)
from eoslog.inspect.directory_verification import verify_directories
from eoslog.inspect.followed_transactions import BEHIND, TORN, FollowedTransactions, behind
from eoslog.inspect.group_verification import verify_groups
from eoslog.inspect.state_verification import StateVerification
from eoslog.session.store_paths import StorePaths
from eoslog.storage.damage import UNREADABLE, Problem, problem, problem_of
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.partition import Partition
from eoslog.storage.producer_state_store import ProducerStateStore
from eoslog.storage.topic_registry import TopicDescription, TopicRegistry

Progress = Callable[[int, int, TopicPartition], None]


@dataclass(frozen=True)
class StoreVerification:
    """Check of a store, with the parts of the store that it looks at."""

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
    # Called with the number of sound records of each partition, if it is given.
    counted: Callable[[TopicPartition, int], object] | None = None

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
        state = StateVerification(self.paths, self.partitions, self.rows)
        found += state.problems()
        check = _PartitionsCheck(self, checkpoints, state)
        targets = [
            (topic, where)
            for topic in topics
            for where in topic.topic_partitions()
            if not topic.internal or self.partitions.has_files(where)
        ]
        for done, (topic, where) in enumerate(targets):
            if progress is not None:
                progress(done, len(targets), where)
            found += check.problems_of(topic, where)
        return found + check.problems_of_all() + self.verify_staged()


class _PartitionsCheck:
    """Check of one partition after the other, given what the state log says of them."""

    def __init__(
        self, store: StoreVerification, checkpoints: Checkpoints, state: StateVerification
    ) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._state = state
        self._jobs_reached = state.jobs_reached()
        self._followed: dict[str, list[FollowedTransactions]] = {}
        self._topics: dict[str, TopicDescription] = {}

    def problems_of(self, topic: TopicDescription, where: TopicPartition) -> list[Problem]:
        """Return the problems of a partition; none if its topic was deleted meanwhile."""
        registry = self._store.registry
        try:
            found = self._of(topic, where)
        except EoslogError:
            if registry.get(topic.name) == topic:
                raise
            return []
        return found if registry.get(topic.name) == topic else []

    def problems_of_all(self) -> list[Problem]:
        """Return the problems that show only where the partitions of a topic are looked at
        together.
        """
        return [
            problem(self._store.paths.partition(where), reason)
            for name, of_topic in self._followed.items()
            for where, reason in behind(of_topic)
            if self._store.registry.get(name) == self._topics[name]
        ]

    def _of(self, topic: TopicDescription, where: TopicPartition) -> list[Problem]:
        store = self._store
        try:
            partition = self._opened(where)
        except UNREADABLE as error:
            return [problem_of(error)]
        if partition is None:
            return []
        # An internal topic is never created again.
        created_ms = 0 if topic.internal else topic.created_ms
        followed = FollowedTransactions(where, self._state.decided, created_ms)
        counted = None if store.counted is None else partial(store.counted, where)
        found = verify_partition(
            partition, followed, self._state.read_on, store.producer_expiration_ms, counted
        )
        if where.topic == CONSUMER_OFFSETS_TOPIC and not found:
            found += verify_groups(partition, GroupOffsetsIndex(store.rows))
        if where in store.made_anew:
            return found
        self._topics[topic.name] = topic
        self._followed.setdefault(topic.name, []).append(followed)
        end = partition.log_end_offset
        reached, job = self._jobs_reached.get(where, (0, ""))
        if reached > end:
            reason = f"{BEHIND}{job} is complete, and went up to offset {reached}; the log ends at "
            found.append(problem(partition.path, f"{reason}{end}{TORN}"))
        return found + verify_checkpoints(store.paths, self._checkpoints, where, end)

    def _opened(self, where: TopicPartition) -> Partition | None:
        topic = self._store.registry.get(where.topic)
        if topic is not None and topic.internal:
            return self._store.partitions.internal_partition(where.topic, where.partition)
        return self._store.partitions.find(where)


def verify_partition(
    partition: Partition,
    followed: FollowedTransactions,
    read_on: Callable[[], None],
    producer_expiration_ms: int,
    counted: Callable[[int], object] | None,
) -> list[Problem]:
    """Check a partition; `read_on` reads what coordinators wrote meanwhile."""
    found = partition.verify(
        followed, producer_expiration_ms=producer_expiration_ms, counted=counted
    )
    found += [problem(partition.path, one.text) for one in partition.all_damage()]
    reasons = followed.ahead(partition.open_transactions(), read_on)
    return found + [problem(partition.path, reason) for reason in reasons]
