"""A store as the log directory of one Kafka broker: KRaft, each partition on that broker alone.

The store is locked, so that no process has it open, and copied beside the destination. All else is
done in the copy. It is opened, which recovers it, completes what was decided, and adopts staged
jobs; it is closed cleanly, which leaves each partition as Kafka does; then the partitions move into
the new directory, the internal topics are written from scratch, and the files are added by which a
broker knows its cluster (`bootstrap_checkpoint`). Everything is synced. The last step gives the
directory its name.

Invariants: nothing of the store is changed. The destination is not there, or is empty, or is whole:
see `fs/new_directory`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from eoslog.common import clock
from eoslog.common.arguments import check_synchronous, whole_number
from eoslog.common.config import (
    CLEANUP_POLICY,
    INT32_MAX,
    MESSAGE_BYTES,
    kept_for_kafka,
    parse_store_config,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, ExportRefusedError, InvalidRequestError
from eoslog.exchange.bootstrap_checkpoint import FILE_NAME as BOOTSTRAP_NAME
from eoslog.exchange.bootstrap_checkpoint import ExportedTopic, encode_bootstrap
from eoslog.exchange.broker_logs import METADATA_PARTITION
from eoslog.exchange.closed_store import (
    Progress,
    check_apart,
    copy_closed_store,
    resolved,
)
from eoslog.exchange.exported_internal_topics import (
    bounds_of,
    read_internal_records,
    write_internal_topics,
)
from eoslog.exchange.log_directory import (
    BrokerIdentity,
    LogBounds,
    write_leader_epochs,
    write_top_files,
)
from eoslog.exchange.topic_config import MIN_REPLICAS, SEGMENT_BYTES_MIN, kafka_topic_config
from eoslog.fs.atomic_file import write_atomically
from eoslog.fs.identity_files import new_id, read_meta_properties
from eoslog.fs.new_directory import new_directory
from eoslog.fs.os_errors import as_if_in, named_os_errors
from eoslog.fs.private_files import DIRECTORY_MODE
from eoslog.inspect.store_verification import lost_partitions, read_checkpoints
from eoslog.session.paths import StorePaths
from eoslog.staging.names import TRASH_DIRECTORY
from eoslog.storage.partition_directory import is_directory, is_unused
from eoslog.storage.topic_registry import (
    TopicDescription,
    cleanup_policy_of,
)
from eoslog.store.files import AS_LEFT, StoreFiles
from eoslog.store.parts import StoreParts, opened_parts
from eoslog.transactions.entries import ONGOING
from eoslog.transactions.state_key import APPLICATION, NAMED_PRODUCER

OpenTransactions = Literal["refuse", "abort", "keep"]
DEFAULT_NODE_ID = 1
_SHOWN_MAX = 20


@dataclass(frozen=True)
class UndecidedTransaction:
    """A transaction that was open in the store, and where its records begin."""

    transactional_id: str
    producer_id: int
    prepared: bool
    first_offsets: Mapping[TopicPartition, int]

    def __str__(self) -> str:
        places = [f"{where} from offset {at}" for where, at in sorted(self.first_offsets.items())]
        what = "prepared" if self.prepared else "open"
        return f"{self.transactional_id!r} ({what}): {', '.join(places) or 'no records'}"


@dataclass(frozen=True)
class KafkaExport:
    """Result of `export_kafka`.

    `aborted` and `kept` are the transactions that were open; `notes` say what works otherwise in
    Kafka than in the store.
    """

    path: Path
    cluster_id: str
    node_id: int
    topics: int
    partitions: int
    size_bytes: int
    transactional_ids: int
    groups: int
    aborted: tuple[UndecidedTransaction, ...] = ()
    kept: tuple[UndecidedTransaction, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def server_properties(self) -> str:
        """The lines that the broker's `server.properties` needs; the ports are examples."""
        voter = f"{self.node_id}@localhost:9093"
        return f"""\
process.roles=broker,controller
node.id={self.node_id}
controller.quorum.voters={voter}
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
log.dirs={self.path}
offsets.topic.replication.factor=1
offsets.retention.minutes={INT32_MAX}
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def export_kafka(
    store: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    open_transactions: OpenTransactions = "refuse",
    link: bool = False,
    node_id: int = DEFAULT_NODE_ID,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> KafkaExport:
    """Write a closed store as the log directory of a Kafka broker; all of it is synced on return.

    A broker of Kafka 4.x starts on the directory, with all topics, transactional ids and groups.
    The store is not changed. Its batches are copied unchecked: `verify` finds damaged ones.

    Parameters
    ----------
    store : str or PathLike
        The store's directory; no process may have it open.
    destination : str or PathLike
        A directory that does not exist, or is empty.
    open_transactions : {"refuse", "abort", "keep"}
        "refuse": open transactions raise an error that names them. "abort": abort them, as the next
        opening of the store would; prepared ones are refused, since another system decides them.
        "keep": Kafka aborts both kinds after their timeout.
    link : bool
        Link the sealed segments of a cleanly closed store, where the file system can, instead of
        copying them.
    node_id : int
        The broker's `node.id`, from 0 to 2**31 - 1.
    config : mapping, optional
        Defaults of the topics' settings, as `eoslog.open` takes them.
    progress : callable, optional
        Called with the bytes copied and the total.

    Returns
    -------
    KafkaExport
        Counts, transactions that were open, and notes.

    Raises
    ------
    ExportRefusedError
        An open transaction, an incomplete staged job, a topic with the name of the broker's own
        log, or a destination that holds something. Nothing was written.
    StoreInUseError, NotAStoreError, StoreVersionError, StoreFullError, CorruptRecordError
        The store or the disk refuses.
    InvalidConfigError, InvalidRequestError, ValueError, TypeError
        An argument is wrong.
    """
    choices = get_args(OpenTransactions)
    if open_transactions not in choices:
        raise InvalidRequestError(
            f"open_transactions must be one of {', '.join(choices)}, got {open_transactions!r}"
        )
    if progress is not None:
        check_synchronous(progress, "progress")
    if not 0 <= whole_number(node_id, "a node id") <= INT32_MAX:
        raise InvalidRequestError(f"node_id must be from 0 to {INT32_MAX}, got {node_id}")
    parse_store_config(config)  # Before the copy is made that is opened with it.
    source, target = resolved(store, "store"), resolved(destination, "destination")
    check_apart(source, target)
    cluster_id = read_meta_properties(source).cluster_id
    with (
        new_directory(target, ExportRefusedError) as new,
        named_os_errors(f"exporting {source} to {target}"),
    ):
        copy = new.workspace / "store"
        copy_closed_store(source, copy, link=link, progress=progress)
        identity = BrokerIdentity(cluster_id or new_id(), new_id(), node_id)
        export = _Export(new.workspace, identity, open_transactions, config)
        with as_if_in({copy: source}):
            export.read()
        export.write()
        new.publish(export.logs)
    return export.result(target)


class _Export:
    """The copy of a store in `place`, and what is made of it: `logs`."""

    def __init__(
        self,
        place: Path,
        identity: BrokerIdentity,
        open_transactions: OpenTransactions,
        config: Mapping[str, object] | None,
    ) -> None:
        self._place = place
        self._identity = identity
        self._open_transactions = open_transactions
        self._config = config
        self._paths = StorePaths(place / "store")
        self.logs = place / "logs"
        self._topics: list[ExportedTopic] = []
        self._bounds: dict[TopicPartition, LogBounds] = {}
        self._leader_epoch = 0
        self._size_bytes = 0
        self._aborted: tuple[UndecidedTransaction, ...] = ()
        self._kept: tuple[UndecidedTransaction, ...] = ()
        self._notes: list[str] = []

    def read(self) -> None:
        """Open the copy, end what is to be ended, note what it holds, and close it cleanly.

        Raises CorruptRecordError where records are known to be lost.
        """
        for one in lost_partitions(self._paths, read_checkpoints(self._paths)[0], {}):
            raise CorruptRecordError(str(one["path"]), 0, str(one["reason"]))
        with opened_parts(self._paths.root, self._config, mode=AS_LEFT) as parts:
            files = parts.files
            self._open_all(files)
            self._end_transactions(files)
            self._check_staged_jobs(parts)
            self._note_topics(files)
            self._records = read_internal_records(files)
            self._leader_epoch = max(self._leader_epoch, self._records.leader_epoch)
            self._next_producer_id = files.producer_ids.take()
            self._note_own_records(files)

    def _open_all(self, files: StoreFiles) -> None:
        """Open each partition that was ever used, which recovers it."""
        for topic in files.registry.all():
            for where in topic.topic_partitions():
                path = self._paths.partition(where)
                if topic.internal:
                    if files.partitions.has_files(where):
                        files.partitions.internal_partition(*where)
                elif not (is_directory(str(path)) and is_unused(path)):
                    files.partitions.find(where)
        for partition in files.partitions.opened():
            for one in partition.all_damage():
                if one.kind != "producers":
                    raise CorruptRecordError(one.path, 0, one.text)
                self._notes.append(f"{partition.topic_partition}: {one}")
        for cut in files.partitions.cuts:
            self._notes.append(
                f"{cut.topic_partition}: the store was not closed cleanly; its recovery cut "
                f"{cut.bytes} bytes off after offset {cut.offset}"
            )

    # Transactions.

    def _end_transactions(self, files: StoreFiles) -> None:
        found = _undecided(files)
        for hanging in files.transaction_admin.hanging(
            files.partitions.opened(), -1, clock.now_ms()
        ):
            self._notes.append(
                f"{hanging.topic}-{hanging.partition}: a transaction of producer id "
                f"{hanging.producer_id} is open from offset {hanging.start_offset}, and no "
                "transactional id will end it; `eoslog transactions abort` or "
                "`kafka-transactions.sh abort` does"
            )
        refused = found if self._open_transactions == "refuse" else []
        if self._open_transactions == "abort":
            refused = [one for one in found if one.prepared]
        if refused:
            shown = "; ".join(map(str, refused[:_SHOWN_MAX]))
            more = f"; and {len(refused) - _SHOWN_MAX} more" if len(refused) > _SHOWN_MAX else ""
            advice = (
                'Abort them (open_transactions="abort"), or leave them to Kafka, which aborts them '
                'after their timeout ("keep")'
                if self._open_transactions == "refuse"
                else "Each waits for a decision: open the store and make it"
            )
            raise ExportRefusedError(
                f"transactions without a decision, {len(refused)} in all: {shown}{more}. {advice}"
            )
        if self._open_transactions == "abort":
            for one in found:
                files.transaction_admin.abort(one.transactional_id)
            self._aborted = tuple(found)
            if left := _undecided(files):
                raise ExportRefusedError(f"it cannot be aborted: {left[0]}")
        else:
            self._kept = tuple(found)

    def _check_staged_jobs(self, parts: StoreParts) -> None:
        pending = parts.staged.pending.by_name.values()
        if pending:
            raise ExportRefusedError(
                "staged jobs are decided and cannot be completed, see `eoslog verify`: "
                f"{', '.join(sorted(one.record.app_id for one in pending))}"
            )
        staging = self._paths.staging
        names = [one.name for one in staging.iterdir()] if staging.is_dir() else []
        if undecided := sorted(name for name in names if name != TRASH_DIRECTORY):
            self._notes.append(
                f"staged files of jobs that are not decided are left out: {_shown(undecided)}. "
                "What they hold is in no log; such a job has to run again"
            )

    # What goes on, and what does not.

    def _note_topics(self, files: StoreFiles) -> None:
        for topic in files.registry.all():
            if topic.internal:
                continue
            if topic.name == METADATA_PARTITION.topic:
                raise ExportRefusedError(
                    f"topic {topic.name}: a broker has its cluster's metadata under this name"
                )
            self._topics.append(self._exported(topic, files.partitions.config_of(topic)))
            for where in topic.topic_partitions():
                partition = files.partitions.if_open(where)
                if partition is None:
                    self._bounds[where] = LogBounds(0, 0)  # It was never used.
                    continue
                self._bounds[where] = bounds_of(partition)
                # The newest one may be older, or gone: without it Kafka would know no producer.
                partition.producer_state.take_complete_snapshot(sync=False)
                self._size_bytes += partition.size_bytes
                epochs = [one.coordinator_epoch for one in partition.producers()]
                # Of a log that came from a broker: it says how often its leader changed.
                epochs.append(partition.log.highest_leader_epoch())
                self._leader_epoch = max(self._leader_epoch, *epochs)

    def _exported(self, topic: TopicDescription, settings: Mapping[str, int]) -> ExportedTopic:
        if settings["segment.bytes"] < SEGMENT_BYTES_MIN:
            self._notes.append(
                f"topic {topic.name}: segment.bytes={settings['segment.bytes']} becomes "
                f"{SEGMENT_BYTES_MIN}: Kafka has no smaller segments"
            )
        kept = kept_for_kafka(topic.config)
        if kept.pop(MIN_REPLICAS, "1") != "1":
            self._notes.append(
                f"topic {topic.name}: {MIN_REPLICAS}={topic.config[MIN_REPLICAS]} is left out: the "
                "new cluster has one broker, which would take no records"
            )
        # In Kafka too the smaller one of it and `segment.bytes` counts.
        message_bytes = topic.config.get(MESSAGE_BYTES, settings[MESSAGE_BYTES])
        own = {MESSAGE_BYTES: message_bytes, CLEANUP_POLICY: cleanup_policy_of(topic)}
        config = kafka_topic_config({**settings, **own, **kept})
        return ExportedTopic(topic.name, topic.topic_id, topic.partitions, config)

    def _note_own_records(self, files: StoreFiles) -> None:
        if self._kept:
            self._notes.append(
                f"{len(self._kept)} transactions are open: Kafka aborts each, a prepared one too, "
                "once its timeout is over"
            )
        for record_type, what in (
            (NAMED_PRODUCER, "positions of named producers"),
            (APPLICATION, "versions of staged jobs"),
        ):
            if names := files.state_log.names(record_type):
                self._notes.append(f"Kafka has no {what}: {_shown(names)}")

    # The directory.

    def write(self) -> None:
        """Make the broker's directory; nothing is synced."""
        self.logs.mkdir(DIRECTORY_MODE)
        for where, bounds in self._bounds.items():
            path = self.logs / str(where)
            self._paths.partition(where).rename(path)
            write_leader_epochs(path, bounds)
        internal, bounds_of_internal = write_internal_topics(
            self._place / "internal", self.logs, self._records
        )
        for where, bounds in bounds_of_internal.items():
            write_leader_epochs(self.logs / str(where), bounds)
        content = encode_bootstrap(
            [*self._topics, *internal],
            node_id=self._identity.node_id,
            directory_id=self._identity.directory_id,
            leader_epoch=self._leader_epoch,
            next_producer_id=self._next_producer_id,
            timestamp_ms=clock.now_ms(),
        )
        write_atomically(self.logs / BOOTSTRAP_NAME, content, sync=False)
        write_top_files(self.logs, self._identity, {**self._bounds, **bounds_of_internal})

    def result(self, target: Path) -> KafkaExport:
        """Return what was exported; it is at `target` now."""
        return KafkaExport(
            target,
            self._identity.cluster_id,
            self._identity.node_id,
            topics=len(self._topics),
            partitions=len(self._bounds),
            size_bytes=self._size_bytes,
            transactional_ids=self._records.transactional_ids,
            groups=self._records.groups,
            aborted=self._aborted,
            kept=self._kept,
            notes=tuple(self._notes),
        )


def _undecided(files: StoreFiles) -> list[UndecidedTransaction]:
    """Return the open transactions of all transactional ids, and where they are open."""
    first_offsets: dict[int, dict[TopicPartition, int]] = {}
    for partition in files.partitions.opened():
        for one in partition.open_transactions():
            where = first_offsets.setdefault(one.producer_id, {})
            where[partition.topic_partition] = one.first_offset
    return [
        UndecidedTransaction(
            one.transactional_id,
            one.producer_id,
            one.prepared,
            first_offsets.get(one.producer_id, {}),
        )
        for one in files.transactions.entries.undecided()
        if one.state == ONGOING
    ]


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more
