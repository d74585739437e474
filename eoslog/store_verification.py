"""Checking every byte of a store: `Store.verify`."""

from collections.abc import Callable

from eoslog.errors import CorruptRecordError, LogClosedError
from eoslog.opened_partitions import OpenedPartitions
from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition
from eoslog.topic_registry import TopicRegistry

Progress = Callable[[int, int, TopicPartition], None]


def verify_store(
    partitions: OpenedPartitions, registry: TopicRegistry, progress: Progress | None
) -> list[dict[str, object]]:
    """One dict of path, position_bytes and reason for each problem of any partition.

    A topic that another process or thread deletes meanwhile is left out.
    """
    targets = [
        where
        for topic in registry.all()
        for where in topic.topic_partitions()
        if not topic.internal or partitions.has_files(where)
    ]
    problems: list[dict[str, object]] = []
    for done, where in enumerate(targets):
        if progress is not None:
            progress(done, len(targets), where)
        topic = registry.get(where.topic)
        try:
            found = _problems_of(partitions, registry, where)
        except LogClosedError:
            if registry.get(where.topic) == topic:
                raise
            continue
        if registry.get(where.topic) == topic:
            problems += found
    return problems


def _problems_of(
    partitions: OpenedPartitions, registry: TopicRegistry, where: TopicPartition
) -> list[dict[str, object]]:
    try:
        partition = _opened(partitions, registry, where)
    except CorruptRecordError as error:
        return [problem_of(error)]
    return [] if partition is None else partition.verify()


def problem_of(error: CorruptRecordError) -> dict[str, object]:
    """What keeps a partition from being opened, in the form of a problem."""
    return {"path": error.path, "position_bytes": error.position_bytes, "reason": error.reason}


def _opened(
    partitions: OpenedPartitions, registry: TopicRegistry, where: TopicPartition
) -> Partition | None:
    topic = registry.get(where.topic)
    if topic is not None and topic.internal:
        return partitions.internal_partition(where.topic, where.partition)
    return partitions.find(where)
