"""Metrics of a store: what `Store.metrics` returns, and a look at all of it for `eoslog metrics`.

No partition is opened for it, but those of open transactions, and no log read. Of what this process
has not open the control pages tell, the checkpoints and the sizes of files. Of a store that is only
read, what was not closed cleanly is recovered in memory.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.control_state import ControlState
from eoslog.bindings.log_producers import LogFigures
from eoslog.bindings.snapshot_files import SEGMENT_NAME
from eoslog.common import clock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError
from eoslog.fs.identity_files import id_bytes
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.counters import StoreCounts
from eoslog.storage.engine import Engine
from eoslog.storage.partition_directory import page_of
from eoslog.storage.producer_rows import count_producer_rows
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.files import StoreFiles
from eoslog.transactions.entries import NewestRecord

_SUMS = {
    "segments": "segment_count",
    "size_bytes": "size_bytes",
    "producers_in_memory": "producer_count",
    "producers_evicted": "evicted_producer_count",
    "producer_memory_bytes": "producer_memory_bytes",
    "partitions_failed": "failed",
}


def store_metrics(files: StoreFiles, checkpointer: dict[str, Any]) -> dict[str, Any]:
    """Return counts and sizes; `partitions` and what follows it cover the open partitions alone."""
    engine, journal = files.engine, files.journal
    figures = _figures_of_opened(engine)
    totals = files.counts()
    return {
        "topics": len(engine.topics()),
        "partitions_unrecovered": len(engine.partitions.unrecovered),
        "cut_bytes": engine.partitions.cut_bytes,
        "partitions": len(figures),
        **{
            name: sum(getattr(one, field) for one in figures.values())
            for name, field in _SUMS.items()
        },
        "producer_rows": count_producer_rows(engine.lmdb),
        "damaged_files": list(engine.checkpoints.damaged),
        "journal": journal.metrics() if journal is not None else {},
        "checkpointer": checkpointer,
        "counted_since_ms": totals.since_ms,
        "counts": dict(totals.counts),
    }


def offset_bounds(files: StoreFiles, topic: TopicDescription) -> dict[TopicPartition, range]:
    """Return from which offset up to which the log of each partition of a topic goes.

    A partition that this process has not open is opened for it only where the files of the store do
    not agree on what an opening finds. One that another process deletes is left out.
    """
    session, unrecovered = files.session_looked_at, files.partitions.unrecovered
    found = {}
    for number in _numbers_of(files.engine, topic):
        where = TopicPartition(topic.name, number)
        # What a recovery in memory adds, only the open partition has.
        partition, bounds = files.partitions.if_open(where), None
        if partition is None:
            bounds = _bounds_at_rest(files, topic, where, session, to_recover=where in unrecovered)
        if bounds is None:
            with suppress(LogClosedError):
                partition = partition or files.partitions.find_of_any_topic(where)
                if partition is not None:
                    bounds = range(partition.log_start_offset, partition.log_end_offset)
        if bounds is not None:
            found[where] = bounds
    return found


def _bounds_at_rest(
    files: StoreFiles,
    topic: TopicDescription,
    where: TopicPartition,
    session: bytes | None,
    *,
    to_recover: bool,
) -> range | None:
    """Return the bounds of a log that is not open here; None if they take an opening.

    A page of the session that processes are in has them. After a clean close the page, which is not
    synced, must agree with the checkpoints and with the segments' files.
    """
    page = page_of(files.own_paths, where)
    if page is not None and (
        page.topic_id != id_bytes(topic.topic_id) or page.deleted or page.failed
    ):
        return None
    if page is not None and page.ready and not page.sealed and page.session == session:
        return range(page.log_start_offset, page.log_end_offset)
    if to_recover:
        return None
    directory, checkpoints = files.own_paths.partition(where), files.engine.checkpoints
    sizes = _segment_sizes(directory)
    if page is None:
        was_used = sizes or checkpoints.knows(where) or not directory.is_dir()
        return None if was_used else range(0)
    is_at_rest = (
        page.sealed
        and page.log_end_offset == checkpoints.recovery_point(where)
        and page.log_start_offset == checkpoints.log_start_offset(where)
        and bool(sizes)
        and min(sizes) <= page.log_start_offset
        and max(sizes) == page.active_base_offset
        and sizes[page.active_base_offset] == page.active_valid_bytes
    )
    return range(page.log_start_offset, page.log_end_offset) if is_at_rest else None


def _figures_of_opened(engine: Engine) -> dict[TopicPartition, LogFigures]:
    """Return the figures of the open partitions, without those of a topic that was just deleted."""
    found = {}
    for partition in engine.partitions.opened():
        with suppress(LogClosedError):
            found[partition.topic_partition] = partition.log.figures()
    return found


class PartitionFigures(NamedTuple):
    """One partition, and for how long its oldest open transaction has been open."""

    topic_partition: TopicPartition
    log: LogFigures
    open_transaction_s: float


class GroupFigures(NamedTuple):
    """One group: the count of its members, its committed offsets, and the ends of the logs."""

    group: str
    members: int
    offsets: Mapping[TopicPartition, tuple[int, int]]


class StoreFigures(NamedTuple):
    """Figures of one store, over all its processes."""

    durability: str
    partition_counts: Mapping[str, int]
    partitions: list[PartitionFigures]
    topic_bytes: Mapping[str, int]
    groups: list[GroupFigures]
    transaction_ages_s: list[float]
    prepared_transactions: int
    processes: int
    partitions_unrecovered: int
    partitions_failed: int
    damaged_files: int
    journal_file_bytes: int
    producers_in_memory: int
    producer_rows: int
    background_errors: int
    counts: StoreCounts


def gather(files: StoreFiles, background_errors: int) -> StoreFigures:
    """Return the figures of a store, over all its processes. Raises StoreError."""
    return _Gathering(files).gather(background_errors)


class _Gathering:
    """One look at a store."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._engine = files.engine
        self._session = files.session_looked_at
        self._unrecovered = files.engine.partitions.unrecovered
        self._failed = 0
        self._rows: list[PartitionFigures] = []
        self._ends: dict[TopicPartition, int] = {}
        self._topic_bytes: dict[str, int] = {}

    def gather(self, background_errors: int) -> StoreFigures:
        files, engine = self._files, self._engine
        now_ms = clock.now_ms()
        undecided = files.transactions.entries.undecided()
        ages = _oldest_ages(undecided, now_ms)
        for where in ages:
            engine.partitions.find_for_transaction(where)  # Its page does not say what is decided.
        opened = _figures_of_opened(engine)
        partition_counts = {}
        for topic in engine.registry.all():
            numbers = _numbers_of(engine, topic)
            if numbers:
                partition_counts[topic.name] = topic.partitions
                self._topic_bytes[topic.name] = 0
            for number in numbers:
                where = TopicPartition(topic.name, number)
                figures = opened.get(where) or self._figures_of_closed(topic, where)
                if figures is not None:
                    self._note(where, figures, ages.get(where, 0.0))
        return StoreFigures(
            durability=engine.durability,
            partition_counts=partition_counts,
            partitions=self._rows,
            topic_bytes=self._topic_bytes,
            groups=list(self._groups()),
            transaction_ages_s=[_age_s(one, now_ms) for one in undecided if not one.prepared],
            prepared_transactions=sum(one.prepared for one in undecided),
            processes=len(files.session.slots.others()) + (files.overlay is None),
            partitions_unrecovered=len(self._unrecovered),
            partitions_failed=self._failed,
            damaged_files=len(engine.checkpoints.damaged),
            journal_file_bytes=sum(_file_sizes(files.own_paths.journals).values()),
            producers_in_memory=sum(one.producer_count for one in opened.values()),
            producer_rows=count_producer_rows(engine.lmdb),
            background_errors=background_errors,
            counts=files.counts(),
        )

    def _note(self, where: TopicPartition, figures: LogFigures, age_s: float) -> None:
        self._ends[where] = figures.log_end_offset
        self._topic_bytes[where.topic] += figures.size_bytes
        self._failed += figures.failed
        self._rows.append(PartitionFigures(where, figures, age_s))

    def _figures_of_closed(
        self, topic: TopicDescription, where: TopicPartition
    ) -> LogFigures | None:
        """Return the figures of a partition that this process has not open; None if only
        its recovery will tell.
        """
        page = page_of(self._files.looked_at, where)
        if page is not None and (page.topic_id != id_bytes(topic.topic_id) or page.deleted):
            page = None
        sizes = _segment_sizes(self._files.looked_at.partition(where))
        if page is not None and (page.sealed or self._is_in_use(page)):
            ended = sum(size for base, size in sizes.items() if base < page.active_base_offset)
            end, held = page.log_end_offset, page.hold_offset
            stable, size_bytes = held if 0 <= held < end else end, ended + page.active_valid_bytes
            return _closed(page.log_start_offset, end, stable, size_bytes, failed=page.failed)
        if where in self._unrecovered:
            if self._files.overlay is None:
                return None
            # A recovery in memory holds up no process, and no other one will make it.
            partition = self._engine.partitions.find_of_any_topic(where)
            return None if partition is None else partition.log.figures()
        checkpoints = self._engine.checkpoints
        start, end = checkpoints.log_start_offset(where), checkpoints.recovery_point(where)
        return _closed(start, end, end, sum(sizes.values()))

    def _is_in_use(self, page: ControlState) -> bool:
        return page.ready and page.session == self._session

    def _groups(self) -> Iterator[GroupFigures]:
        committed = self._files.group_offsets.all()
        members = self._files.group_members.member_counts()
        for group in sorted(committed.keys() | members.keys()):
            offsets = {
                where: (one.offset, self._ends[where])
                for where, one in committed.get(group, {}).items()
                if where in self._ends
            }
            yield GroupFigures(group, members.get(group, 0), offsets)


def _closed(
    start: int, end: int, stable: int, size_bytes: int, *, failed: bool = False
) -> LogFigures:
    return LogFigures(start, end, stable, size_bytes, 0, 0, 0, 0, failed)


def _numbers_of(engine: Engine, topic: TopicDescription) -> Iterable[int]:
    if topic.internal:
        return engine.partitions.existing_internal_partitions(topic.name)
    return range(topic.partitions)


def _oldest_ages(undecided: Iterable[NewestRecord], now_ms: int) -> dict[TopicPartition, float]:
    """Return the age of the oldest transaction of each partition that has any."""
    ages: dict[TopicPartition, float] = {}
    for one in undecided:
        for name, number in one.partitions:
            where = TopicPartition(name, number)
            ages[where] = max(ages.get(where, 0.0), _age_s(one, now_ms))
    return ages


def _age_s(one: NewestRecord, now_ms: int) -> float:
    return max(0, now_ms - one.start_ms) / 1000


def _segment_sizes(directory: Path) -> dict[int, int]:
    """Return the size of each segment's file by its base offset."""
    sizes = {}
    for name, size in _file_sizes(directory).items():
        match = SEGMENT_NAME.fullmatch(name)
        if match is not None:
            sizes[int(match[1])] = size
    return sizes


def _file_sizes(directory: Path) -> dict[str, int]:
    """Return the size of each file by its name; none of a directory that is not there."""
    sizes = {}
    with (
        named_os_errors(f"looking at {directory}"),
        suppress(FileNotFoundError),
        os.scandir(directory) as entries,
    ):
        for entry in entries:
            with suppress(FileNotFoundError):  # It is being deleted.
                sizes[entry.name] = entry.stat().st_size
    return sizes
