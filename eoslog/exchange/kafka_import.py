"""`eoslog.import_kafka`: a stopped broker's log directories become a store.

The source is only read. Its batches stay as they are, byte for byte, compressed ones too; all that
is derived from them is made again, by the recovery that every log from elsewhere goes through:
each batch is verified once. Indexes, LMDB, producers, groups and transactions are then as those of
any store, and the next opening looks at nothing again.

The store is built in a directory beside its destination, see `fs/new_directory`, in steps:

1. Everything that can be refused is looked for in the source; nothing is written yet.
2. Files are copied or linked, with the topics and the log starts. Nothing is synced yet: recovery
   writes each page of a copied log, and syncs it.
3. The store is opened, each partition is recovered, open transactions are ended as after the death
   of their producers, and the result is compared with what the broker noted.
4. The store is closed cleanly. What neither recovery nor the close has synced is: files of
   metadata, snapshots, names.
5. The directory takes the destination's name, and the directory above it is synced.

A sealed segment of a user's topic may be a hard link. The broker has synced it, by its checkpoint:
recovery skips it, so it is not written to, and it is verified afterwards, by reading.
"""

import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from eoslog.bindings.file_descriptor import FileDescriptor, open_regular
from eoslog.common.arguments import path_of
from eoslog.common.config import INT64_MAX, parse_topic_config
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    StoreError,
    UnsupportedForMessageFormatError,
)
from eoslog.exchange.broker_logs import BrokerLogs, BrokerPartition, LeftOut
from eoslog.exchange.import_plan import ImportPlan, PlannedTopic, TopicSetting
from eoslog.exchange.internal_logs import OpenTransactionalId, OtherGroup
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, RECOVERY_POINT, write_checkpoints
from eoslog.fs.file_copy import copy_bytes
from eoslog.fs.identity_files import (
    MetaProperties,
    new_id,
    write_meta_properties,
    write_partition_metadata,
)
from eoslog.fs.new_directory import check_free, new_directory
from eoslog.fs.offline_log import OfflineLog
from eoslog.fs.os_errors import as_if_in, named_os_errors
from eoslog.fs.private_files import FILE_MODE, make_directories
from eoslog.session.paths import StorePaths
from eoslog.storage.damage import CutTail, is_damage
from eoslog.storage.legal_holes import NOT_LOOKED_AT
from eoslog.storage.topic_registry import is_compacted
from eoslog.storage.topics_file import Entry, write_entries
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import AS_USUAL
from eoslog.store.parts import StoreParts, opened_parts
from eoslog.store.store import Store
from eoslog.transactions.admin import TransactionListing

_KAFKAS_INTERNAL_PREFIX = "__"
# While the store is checked nothing of it is deleted.
_NOT_NOW = {"log.initial.task.delay.ms": INT64_MAX // 1_000_000_000}
_END_OF = {"Ongoing": "aborted", "PrepareAbort": "aborted", "PrepareCommit": "committed"}
# The front of a message of an older format: offset, size of what follows, checksum, format.
_OLD_FRONT = struct.Struct(">qiIb")
_OLD_BEFORE_REST = 5
_OLD_FORMATS = (0, 1)

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class EndedTransaction:
    """Transaction that was open when the broker stopped.

    `end` is "aborted", "committed", or "open" if it is unknown; `transactional_id` is None if no
    coordinator knew of the transaction.
    """

    transactional_id: str | None
    producer_id: int
    end: str


@dataclass(frozen=True)
class KafkaImport:
    """Result of an import: what is in the store, and all that differs from the broker.

    Attributes
    ----------
    topics, partitions, groups, transactional_ids : int
        Counts, of users' topics only.
    copied_bytes, linked_bytes : int
        Sizes of segments.
    unclean
        Log directories that the broker did not close.
    cut
        Partitions of unclean directories that ended with a torn batch, and its size in bytes, which
        was left out.
    holes
        Partitions of topics that are not compacted, each with an offset below which some are
        missing: they were compacted once, or lost records.
    left_out
        Other files of the directories and topics that are elsewhere, with the reason.
    missing
        Partitions without a directory, which are empty now.
    ended_transactions
        Transactions that were open.
    other_groups
        Groups that kept their committed offsets only.
    kafkas_topics
        Internal topics of Kafka that are ordinary topics here.
    retention
        Settings by which the store deletes old records from now on.
    not_applied
        Topics' settings that are kept for a later export, and have no effect here.
    not_taken_over
        Settings that are kept nowhere, with the reason.
    """

    path: Path
    cluster_id: str
    node_id: int
    topics: int = 0
    partitions: int = 0
    groups: int = 0
    transactional_ids: int = 0
    copied_bytes: int = 0
    linked_bytes: int = 0
    unclean: tuple[Path, ...] = ()
    cut: tuple[tuple[TopicPartition, int], ...] = ()
    holes: tuple[tuple[TopicPartition, int], ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    missing: tuple[TopicPartition, ...] = ()
    ended_transactions: tuple[EndedTransaction, ...] = ()
    other_groups: tuple[OtherGroup, ...] = ()
    kafkas_topics: tuple[str, ...] = ()
    retention: tuple[TopicSetting, ...] = ()
    not_applied: tuple[TopicSetting, ...] = ()
    not_taken_over: tuple[TopicSetting, ...] = ()


def import_kafka(
    sources: "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]",
    path: "str | os.PathLike[str]",
    *,
    config: Mapping[str, object] | None = None,
    topic_config: Mapping[str, Mapping[str, object]] | None = None,
    allow_missing: bool = False,
    link: bool = False,
    progress: Progress | None = None,
) -> KafkaImport:
    """Make a store of the log directories of one stopped Kafka broker; durable on return.

    Topics keep their ids, offsets and timestamps; groups, transactional ids, transactions and
    producers go on where they were. The sources are only read. After an error there is no store.

    Parameters
    ----------
    sources : str, PathLike or iterable of these
        All directories of the broker (`log.dirs`).
    path : str or PathLike
        The store's directory, which does not exist, or is empty.
    config : mapping, optional
        Settings of all topics. They precede those of the cluster's metadata.
    topic_config : mapping of str to mapping, optional
        Settings by topic. They precede `config`.
    allow_missing : bool
        Create a partition without a directory as an empty one, instead of refusing.
    link : bool
        Make sealed segments of users' topics hard links, which take no space. The broker must have
        stopped cleanly, and its directories must be on the file system of `path`.
    progress : callable, optional
        Called now and then with what is done and the total.

    Returns
    -------
    KafkaImport
        What is in the store, and what differs from the broker.

    Raises
    ------
    StoreInUseError
        The broker runs.
    CorruptRecordError
        A log is damaged.
    UnsupportedCompressionTypeError
        An internal log is compressed.
    UnsupportedForMessageFormatError
        A log has messages of format 0 or 1.
    UnknownTopicOrPartitionError
        `topic_config` names a topic that does not exist.
    StoreError, StoreFullError
        Something else cannot be imported, `path` is in use, or the disk is full.
    InvalidConfigError, ValueError, TypeError
        An argument is wrong.
    """
    target = Path(os.path.abspath(path_of(path, "path")))  # noqa: PTH100 -- links stay links.
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    paths = [Path(os.path.abspath(path_of(one, "a source"))) for one in given]  # noqa: PTH100
    if not paths:
        raise ValueError("no source: name the broker's log directories")
    parse_topic_config(config, may_compact=True)
    if topic_config is not None and not isinstance(topic_config, Mapping):
        raise TypeError(f"topic_config must be a mapping, got {type(topic_config).__name__}")
    for name, settings in (topic_config or {}).items():
        if not isinstance(settings, Mapping):
            raise TypeError(
                f"topic_config of {name!r} must be a mapping, got {type(settings).__name__}"
            )
        parse_topic_config({**(config or {}), **settings}, may_compact=True)
    _check_target(target, paths)
    with BrokerLogs(paths) as logs:
        plan = ImportPlan(
            logs, config or {}, topic_config or {}, allow_missing=allow_missing, link=link
        )
        with new_directory(target, StoreError) as new:
            result = _Building(plan, new.workspace, target, progress).run()
            new.publish(new.workspace)
            return result


def _check_target(target: Path, sources: Iterable[Path]) -> None:
    with named_os_errors(f"looking at {target}"):
        resolved = target.resolve()
        for source in sources:
            if resolved.is_relative_to(source.resolve()):
                raise StoreError(f"{target} is in {source}, which an import only reads")
    check_free(target, StoreError)


class _Building:
    """The making of a store in a directory that no process knows yet."""

    def __init__(
        self, plan: ImportPlan, temporary: Path, target: Path, progress: Progress | None
    ) -> None:
        self._plan = plan
        self._paths = StorePaths(temporary)
        self._target = target
        self._progress = progress
        self._steps_done = 0
        self._linked: dict[TopicPartition, set[str]] = {}
        self._bytes: Counter[str] = Counter()

    def run(self) -> KafkaImport:
        """Make the store, and close it; not all of it is synced."""
        # An error removes what is made: it names the broker's files.
        shown = {self._paths.root: self._target}
        for where, found in self._plan.partitions.items():
            shown[self._paths.partition(where)] = found.path
        with as_if_in(shown), named_os_errors(f"creating {self._target}"):
            self._place_files()
            return self._take_up()

    def _step(self) -> None:
        self._steps_done += 1
        if self._progress is not None:
            self._progress(self._steps_done, 2 * len(self._plan.partitions))

    # Files.

    def _place_files(self) -> None:
        paths, plan = self._paths, self._plan
        starts: dict[TopicPartition, int] = {}
        points: dict[TopicPartition, int] = {}
        with named_os_errors(f"creating {paths.root}"):
            make_directories(paths.state)
            for topic in plan.topics.values():
                for where in topic.topic_partitions():
                    found = plan.partitions.get(where)
                    if found is None and topic.internal:
                        continue  # It is made when it is first used.
                    make_directories(paths.partition(where))
                    write_partition_metadata(paths.partition(where), topic.topic_id, sync=False)
                    if found is None:
                        continue
                    point = self._place(where, found, link=plan.link and not topic.internal)
                    if point:
                        points[where] = point
                    if found.log_start_offset:
                        starts[where] = found.log_start_offset
                    self._step()
        checkpoints = {paths.root / LOG_START_OFFSET: starts, paths.root / RECOVERY_POINT: points}
        write_checkpoints(checkpoints, sync=False)
        known = starts.keys() | points.keys()
        entries = {topic.name: _entry(topic, known) for topic in plan.topics.values()}
        write_entries(paths.state, entries)
        identity = MetaProperties(plan.logs.cluster_id, new_id(), imported=True)
        write_meta_properties(paths.root, identity)

    def _place(self, where: TopicPartition, found: BrokerPartition, *, link: bool) -> int:
        """Copy or link a partition's files; return the recovery point if some are links, else 0."""
        directory = self._paths.partition(where)
        segments = found.segments()
        linked: set[str] = set()
        for index, (_, source) in enumerate(segments):
            target = directory / source.name
            is_synced = index + 1 < len(segments) and segments[index + 1][0] < found.recovery_point
            if link and is_synced:
                with named_os_errors(f"linking {source}; import without links"):
                    os.link(source, target)
                linked.add(target.name)
                self._bytes["linked"] += source.stat().st_size
            else:
                self._bytes["copied"] += _copy(source, target)
        for source in found.snapshots():
            _copy(source, directory / source.name)
        if not linked:
            return 0
        self._linked[where] = linked
        return found.recovery_point

    # The store.

    def _take_up(self) -> KafkaImport:
        plan = self._plan
        with opened_parts(self._paths.root, _NOT_NOW, mode=AS_USUAL) as parts:
            store, partitions = Store(parts), parts.files.partitions
            open_one = {True: partitions.internal_partition, False: parts.files.engine.partition}
            still_open: set[int] = set()
            for where in sorted(plan.partitions):
                partition = open_one[where.topic in INTERNAL_TOPICS](*where)
                self._check(partitions.cuts, where, partition)
                still_open.update(one.producer_id for one in partition.open_transactions())
                self._step()
            transactions = store.transactions()
            ended = self._ended_transactions(parts, transactions, still_open)
            holes = self._holes(store)
            groups = len(store.groups())
            cuts = partitions.cuts
        users = [topic for topic in plan.topics.values() if not topic.internal]
        return KafkaImport(
            path=self._target,
            cluster_id=plan.logs.cluster_id,
            node_id=plan.logs.node_id,
            topics=len(users),
            partitions=sum(topic.partitions for topic in users),
            groups=groups,
            transactional_ids=len(transactions),
            copied_bytes=self._bytes["copied"],
            linked_bytes=self._bytes["linked"],
            unclean=tuple(plan.logs.unclean),
            holes=tuple(holes),
            cut=tuple((one.topic_partition, one.bytes) for one in cuts),
            left_out=tuple(plan.left_out),
            missing=tuple(plan.missing),
            ended_transactions=tuple(ended),
            other_groups=tuple(plan.other_groups),
            kafkas_topics=tuple(
                topic.name for topic in users if topic.name.startswith(_KAFKAS_INTERNAL_PREFIX)
            ),
            retention=tuple(plan.retention),
            not_applied=tuple(plan.not_applied),
            not_taken_over=tuple(plan.not_taken_over),
        )

    def _check(
        self, cuts: Collection[CutTail], where: TopicPartition, partition: UnifiedLog
    ) -> None:
        """Compare a recovered partition with what the broker had synced of it."""
        found = self._plan.partitions[where]
        is_cut = any(one.topic_partition == where for one in cuts)
        end = partition.log_end_offset
        if is_cut:
            _check_format(found)
        # Of a log that the broker closed, all was synced.
        if end < found.recovery_point or (is_cut and found.was_closed):
            raise _damage_of(found, end)
        for one in partition.all_damage():
            if one.kind != "producers":
                raise CorruptRecordError(str(found.path), 0, str(one))
            self._plan.left_out.append(LeftOut(str(where), str(one)))
        for problem in partition.verify() if where in self._linked else ():
            if is_damage(problem):
                path = found.path / Path(str(problem["path"])).name
                position = int(str(problem["position_bytes"]))
                raise CorruptRecordError(str(path), position, str(problem["reason"]))

    def _holes(self, store: Store) -> list[tuple[TopicPartition, int]]:
        """Return what recovery noted of missing offsets in topics that are not compacted."""
        return [
            (TopicPartition(name, number), below)
            for name, topic in sorted(store.topics().items())
            if not is_compacted(topic)
            for number, below in sorted(topic.holes_below.items())
        ]

    def _ended_transactions(
        self, parts: StoreParts, listed: list[TransactionListing], still_open: set[int]
    ) -> list[EndedTransaction]:
        states = {one.transactional_id: one.transaction_state for one in listed}
        ended = [_ended(one, states) for one in self._plan.open_ids]
        never_decided = parts.files.transaction_recovery.never_decided
        aborted = {one.producer_id for one in never_decided} - still_open
        for ids, end in ((aborted, "aborted"), (still_open, "open")):
            # A producer whose transaction was ended may have left another one open elsewhere.
            known = {one.producer_id for one in ended if end in ("aborted", one.end)}
            ended += [EndedTransaction(None, one, end) for one in sorted(ids - known)]
        return ended


def _entry(topic: PlannedTopic, known: Collection[TopicPartition]) -> Entry:
    """A topic in the store's list. Every log is to be looked at for what compaction took: also one
    that the checkpoints know, which would pass for the store's own.
    """
    entry: Entry = {
        "partitions": topic.partitions,
        "topic_id": topic.topic_id,
        "config": topic.config,
    }
    noted = [where.partition for where in topic.topic_partitions() if where in known]
    if noted:
        entry["holes_below"] = {str(number): NOT_LOOKED_AT for number in noted}
    return entry


def _ended(one: OpenTransactionalId, states: Mapping[str, str]) -> EndedTransaction:
    state = states.get(one.transactional_id, "")
    end = _END_OF[one.state] if state.startswith("Complete") else "open"
    return EndedTransaction(one.transactional_id, one.producer_id, end)


def _copy(source: Path, target: Path) -> int:
    """Copy a file; return its size."""
    with (
        named_os_errors(f"copying {source}"),
        open(source, "rb", buffering=0, opener=open_regular) as file,
        FileDescriptor(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE) as made,
    ):
        size_bytes = os.fstat(file.fileno()).st_size
        copy_bytes(file.fileno(), made, size_bytes)
    return size_bytes


def _check_format(found: BrokerPartition) -> None:
    """Raise UnsupportedForMessageFormatError if a log was cut where a whole message of an older
    format is.
    """
    torn = OfflineLog(found.path).broken_tail(0, INT64_MAX)
    if torn is None:
        return
    with open(torn.path, "rb") as file:
        file.seek(torn.position_bytes)
        front = file.read(_OLD_FRONT.size)
        if len(front) < _OLD_FRONT.size:
            return
        _, message_bytes, crc, magic = _OLD_FRONT.unpack(front)
        room = os.fstat(file.fileno()).st_size - file.tell()
        # The checksum covers the rest of the message, and its magic.
        rest_bytes = message_bytes - _OLD_BEFORE_REST
        if magic in _OLD_FORMATS and 0 < rest_bytes <= room:
            rest = file.read(rest_bytes)
            if zlib.crc32(front[-1:] + rest) == crc:
                raise UnsupportedForMessageFormatError(
                    f"{torn.path} has messages of format {magic} at byte {torn.position_bytes}, as "
                    "brokers before version 0.11 wrote them: a store has format 2 alone"
                )


def _damage_of(found: BrokerPartition, end: int) -> EoslogError:
    """The damage by which a log ended before what the broker had synced."""
    torn = OfflineLog(found.path).broken_tail(0, INT64_MAX)
    if torn is not None:
        return CorruptRecordError(str(torn.path), torn.position_bytes, torn.reason)
    reason = f"all below offset {found.recovery_point} had been synced, and the log ends at {end}"
    return CorruptRecordError(str(found.path), 0, reason)
