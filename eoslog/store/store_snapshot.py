"""The snapshot of a store's topics, while topics may come and go."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.consistent_snapshot import consistent_offsets

if TYPE_CHECKING:
    from eoslog.store.store import Store


def snapshot_of_topics(store: "Store", topics: Iterable[str] | None) -> dict[TopicPartition, int]:
    """See `Store.snapshot`."""
    if isinstance(topics, str):
        raise TypeError("topics: a list of names, not one name")
    names = None if topics is None else list(topics)
    while True:
        known = store.topics()
        wanted = list(known.values()) if names is None else [*map(store._topic, names)]
        try:
            return _offsets_of(store, wanted)
        except (LogClosedError, UnknownTopicOrPartitionError):
            store._check_open()
            now = store.topics()
            gone = [one.name for one in wanted if now.get(one.name) != one]
            if not gone:
                raise
            if names is not None:
                raise UnknownTopicOrPartitionError(
                    f"topic {gone[0]!r} was deleted meanwhile"
                ) from None


def _offsets_of(store: "Store", topics: Iterable[TopicDescription]) -> dict[TopicPartition, int]:
    """Taken while no transaction and no staged job moves, in any process."""
    partitions = [store.partition(*where) for one in topics for where in one.topic_partitions()]
    with store._staged.standing_still():
        jobs = store._staged.spans()
        with store._files.transactions.entries.standing_still():
            return consistent_offsets(partitions, jobs)
