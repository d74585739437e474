"""The snapshot of a store's topics, while topics may come and go."""

from collections.abc import Iterable

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.staging.staged_commit import StagedCommits
from eoslog.storage.engine import Engine
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.consistent_snapshot import consistent_offsets
from eoslog.transactions.transaction_entries import TransactionEntries


def snapshot_of_topics(
    engine: Engine,
    staged: StagedCommits,
    entries: TransactionEntries,
    topics: Iterable[str] | None,
) -> dict[TopicPartition, int]:
    """See `Store.snapshot`."""
    if isinstance(topics, str):
        raise TypeError("topics: a list of names, not one name")
    names = None if topics is None else list(topics)
    while True:
        known = engine.topics()
        wanted = list(known.values()) if names is None else [*map(engine.topic, names)]
        try:
            partitions = [engine.partition(*where) for where in _partitions_of(wanted)]
            # No transaction and no staged job moves meanwhile, in any process.
            with staged.standing_still():
                jobs = staged.spans()
                with entries.standing_still():
                    return consistent_offsets(partitions, jobs)
        except (LogClosedError, UnknownTopicOrPartitionError):
            engine.check_open()
            now = engine.topics()
            gone = [one.name for one in wanted if now.get(one.name) != one]
            if not gone:
                raise
            if names is not None:
                raise UnknownTopicOrPartitionError(
                    f"topic {gone[0]!r} was deleted meanwhile"
                ) from None


def _partitions_of(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    return [where for one in topics for where in one.topic_partitions()]
