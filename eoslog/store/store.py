"""A store: a directory of topics, open in one process or in several at once.

`StoreParts` opens and closes what it has.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, cast, overload

from eoslog.common import clock
from eoslog.common.arguments import check_synchronous, path_of, whole_number
from eoslog.common.durability import Durability, check_durability
from eoslog.common.other_clients import refuse_parameters, with_methods_of_other_clients
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC, check_user_topic_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    EoslogError,
    GroupIdNotFoundError,
    InvalidRequestError,
)
from eoslog.groups.metadata import OffsetAndMetadata, check_group_id
from eoslog.session.process_slots import ProcessSlot
from eoslog.session.settings import StoreSettings, read_settings
from eoslog.staging.on_demand import VERSION_PARTITION
from eoslog.storage.engine import Engine
from eoslog.storage.topic_registry import TopicDescription
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import raise_first
from eoslog.store.metrics import offset_bounds, store_metrics
from eoslog.store.partition import Partition
from eoslog.store.parts import StoreParts
from eoslog.store.record_deletion import (
    DeletableRecords,
    deletable_records,
    delete_records,
    find_offsets,
)

if TYPE_CHECKING:
    from eoslog.bindings.partition_log import ProducerState
    from eoslog.common.prepared_transaction import PreparedTransaction
    from eoslog.consumer.consumer import Consumer
    from eoslog.groups.coordinator import GroupDescription
    from eoslog.inspect.store_verification import Progress
    from eoslog.producer.producer import Producer
    from eoslog.producer.transactional_producer import TransactionalProducer
    from eoslog.staging.application import ApplicationState
    from eoslog.staging.commit import StagedCommit
    from eoslog.staging.job import OffsetsOfGroups
    from eoslog.staging.message import StagedMessage
    from eoslog.staging.source import VersionSource
    from eoslog.store.backup import Progress as BackupProgress
    from eoslog.store.backup import StoreBackup
    from eoslog.store.log_directories import LogDirectory
    from eoslog.store.scan import Offsets, Scan, TimeRange
    from eoslog.store.stable_offset import LastStableOffset
    from eoslog.transactions.admin import (
        HangingTransaction,
        TransactionDescription,
        TransactionListing,
    )

_log = logging.getLogger(__name__)


@with_methods_of_other_clients
class Store:
    """An open store; `eoslog.open` makes it. A context manager: it is closed at the block's end.

    A process opens a store once, and its threads share the object; other processes may have it open
    too (`processes`). Every call raises LogClosedError once the store is closed, and
    ForkedProcessError in a child of the process that opened it, which must open the store itself.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._files = parts.files

    # Who it is.

    @property
    def path(self) -> Path:
        """The store's directory, absolute."""
        return self._files.paths.shown

    @property
    def read_only(self) -> bool:
        """True if the store is only read: opened with `read_only=True`."""
        return self._files.mode.reads_only

    @property
    def durability(self) -> Durability:
        """Durability that the store is open with, in all its processes.

        With `read_only=True` it is that of the processes that have it open, or, where none has, the
        one that the store remembers.
        """
        return self._files.shown_durability

    @property
    def config(self) -> Mapping[str, int]:
        """The store's own settings, with their defaults."""
        return dict(self._files.config)

    def alter_config(
        self, config: Mapping[str, object] | None = None, *, durability: str | None = None
    ) -> None:
        """Change what the store remembers for openings that give no argument; durable on return.

        The processes that have it open go on as they are.

        Parameters
        ----------
        config : mapping, optional
            Settings as for `eoslog.open`; None as a value forgets one. The others stay.
            "eoslog.group.readable" is in effect on return, also for other processes.
        durability : {"commit", "always", "process"}, optional
            The durability to remember.

        Raises
        ------
        InvalidConfigError, ValueError
            An argument is wrong.
        StoreError
            The disk refuses, or the file is damaged: nothing is changed. Only of
            "eoslog.group.readable" a part may be, until the call is repeated.
        """
        known = None if durability is None else check_durability(durability)
        with self._parts.changing_topics():
            self._files.alter_settings({} if config is None else config, known)

    @property
    def remembered(self) -> StoreSettings:
        """Settings remembered for openings: `durability`, and `config` without defaults.

        Raises CorruptRecordError if that was damaged.
        """
        self._parts.check_open()
        return read_settings(self._files.own_paths.state)

    def processes(self) -> list[ProcessSlot]:
        """The processes that have the store open to write now, this one first if it is one: each
        with `process_id`, `host` and `opened_ms`.
        """
        self._parts.check_open()
        slots = self._files.session.slots
        own = [] if self.read_only else [slots.find(slots.own)]
        return [*own, *slots.others()]

    @property
    def closed(self) -> bool:
        """True if close() was called, or the process forked."""
        return self._parts.is_closed()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        how = "read only" if self.read_only else f"durability {self._files.durability}"
        return f"<eoslog.Store {str(self.path)!r}, {how}{state}>"

    def __reduce__(self) -> Never:
        raise TypeError("a store cannot be pickled or copied: open it where it is needed")

    # Topics.

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
        **others: Never,
    ) -> TopicDescription:
        """Create a topic; durable on return.

        Parameters
        ----------
        name : str
            1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'.
        partitions : int
            1 to 100,000.
        config : mapping, optional
            Kafka's settings of topics ("segment.bytes").
        exist_ok : bool
            Leave a topic that exists as it is, whatever its settings, if it has as many partitions:
            keys would go elsewhere.

        Raises
        ------
        TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError, InvalidConfigError
            An argument is wrong.
        StoreError
            The disk refuses: the topic does not exist; after StoreFailedError it may.
        ConcurrentAccessError
            Called in the middle of another call of the same thread.
        """
        if others:
            refuse_parameters("create_topic", others)
        with self._parts.changing_topics():
            return self._files.topics.create({name: partitions}, config, exist_ok=exist_ok)[name]

    def create_topics(
        self,
        partitions: Mapping[str, int],
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> dict[str, TopicDescription]:
        """Create many topics at once, `{"orders": 4, "payments": 1}`; durable on return.

        All are created, or none is, also if the process dies in the call. The list of topics is
        written and synced once, and above 32 partitions the file system, not each directory.
        `config` and `exist_ok` are those of `create_topic`, for all. Raises what `create_topic`
        raises.
        """
        if not isinstance(partitions, Mapping):
            raise TypeError(
                "partitions must be a mapping of topic names to partition counts, got "
                f"{type(partitions).__name__}"
            )
        with self._parts.changing_topics():
            return self._files.topics.create(partitions, config, exist_ok=exist_ok)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | None = None,
        *,
        partitions: int | None = None,
    ) -> TopicDescription:
        """Change a topic's settings, add partitions to it, or both at once; durable on return.

        It is in effect in this process on return, and within a second in every other one that has
        the store open: for appends that begin after that, for retention, and for producers, groups
        and streams, which take up the new partitions. Keys go to other partitions from then on, as
        in Kafka; what is there stays where it is.

        Parameters
        ----------
        name : str
            A topic that exists.
        config : mapping, optional
            Kafka's settings of topics to change; None as a value takes the default again. The
            others stay. "cleanup.policy" cannot be altered. A smaller "segment.bytes" ends the
            segment that is being written with the next append.
        partitions : int, optional
            How many there are to be: no fewer than there are.

        Returns
        -------
        TopicDescription
            The topic as it is now.

        Raises
        ------
        UnknownTopicOrPartitionError, InvalidTopicError, InvalidPartitionsError, InvalidConfigError
            An argument is wrong.
        StoreError
            The disk refuses: the topic is as it was.
        ConcurrentAccessError
            Called in the middle of another call of the same thread.
        """
        with self._parts.changing_topics():
            altered = self._files.topics.alter(name, config, partitions, self._parts.producers)
        # Members of groups share the new partitions.
        self._files.signal.wake()
        return altered

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records and its names' positions; durable on return.

        A deletion cut short is finished when the store is opened next. What producers gathered for
        the topic is lost: their next flush raises UnknownTopicOrPartitionError.

        Raises
        ------
        UnknownTopicOrPartitionError, InvalidTopicError
            There is no such topic of a user.
        StoreError
            Files cannot be removed: the topic is gone, its name is free once they are removed, and
            each opening tries again.
        """
        self._parts.check_writable()
        check_user_topic_name(name)
        with self._parts.changing_topics():
            self._files.engine.topic(name)
            self._files.topics.delete(name, self._parts.producers)
        # Wake those who wait for its records: there will be none.
        self._files.signal.wake()

    def topics(self) -> dict[str, TopicDescription]:
        """The topics by name, without the internal ones."""
        return self._files.engine.topics()

    def partition(self, topic: str, number: int) -> Partition:
        """Return a view of a partition; it is opened, and recovered if need be, on first use.

        Raises UnknownTopicOrPartitionError, CorruptRecordError or StoreError.
        """
        log = self._files.engine.partition(topic, number)
        return Partition(log, read_only=self.read_only)

    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        before_ms: int | None = None,
        topics: Iterable[str] | None = None,
    ) -> dict[TopicPartition, int]:
        """Delete the records below offsets, or those before a time; where each partition begins.

        All processes read from there on at once; it is durable on return. Whole segments below go
        from the disk. Producers keep their sequences: what they send again is still a duplicate.

        Parameters
        ----------
        offsets : mapping of TopicPartition to int
            The first offset that stays; -1 is the last stable offset, the highest that is possible.
            A partition that begins there or above stays as it is.
        before_ms : int
            Instead of offsets: all before the first record that is not older than this time.
        topics : iterable of str, optional
            With `before_ms`: of these topics; by default of all.

        Raises
        ------
        OffsetOutOfRangeError
            An offset is above the last stable offset: no partition was changed. So it is after
            UnknownTopicOrPartitionError, ValueError and TypeError.
        StoreError
            The disk refuses: partitions before it are done. Make the call again.
        """
        self._parts.check_writable()
        found = self._first_to_stay(offsets, before_ms, topics)
        return delete_records(self._files.names, found)

    def deletable_records(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        before_ms: int | None = None,
        topics: Iterable[str] | None = None,
    ) -> dict[TopicPartition, DeletableRecords]:
        """Return what `delete_records` with these arguments deletes; nothing is changed. It reads
        what is to go, and with `before_ms` what stays.
        """
        found = self._first_to_stay(offsets, before_ms, topics)
        return deletable_records(found, before_ms)

    def _first_to_stay(
        self,
        offsets: Mapping[TopicPartition, int] | None,
        before_ms: int | None,
        topics: Iterable[str] | None,
    ) -> dict[UnifiedLog, int]:
        self._parts.check_open()
        return find_offsets(self._files.engine, offsets, before_ms, topics)

    # Writing and reading.

    @overload
    def producer(
        self, name: str | None = None, config: Mapping[str, object] | None = None
    ) -> "Producer": ...

    @overload
    def producer(
        self,
        name: None = None,
        config: Mapping[str, object] | None = None,
        *,
        transactional_id: str,
        transaction_timeout_ms: int = 60_000,
    ) -> "TransactionalProducer": ...

    def producer(
        self,
        name: str | None = None,
        config: Mapping[str, object] | None = None,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        **others: Never,
    ) -> "Producer":
        """Return a new `Producer`, or with a transactional id a `TransactionalProducer`.

        Parameters
        ----------
        name : str, optional
            The producer goes on where the last one of this name stopped, and fences it.
        config : mapping, optional
            Kafka's "batch.size", "enable.idempotence", "linger.ms" (without transactions),
            "transactional.id" and "transaction.timeout.ms".
        transactional_id : str, optional
            The producer writes in transactions; its `init_transactions()` fences the id's older
            one. For bulk loads, which take longer than a transaction may, see `StagedWriter`.
        transaction_timeout_ms : int
            Milliseconds after its first record when an open transaction is aborted.

        Raises
        ------
        InvalidConfigError, ValueError
            A setting, name or id is wrong, or both a name and an id are given.
        """
        if others:
            refuse_parameters("producer", others)
        from eoslog.producer.producer import Producer
        from eoslog.producer.transactional_producer import TransactionalProducer

        self._parts.check_writable()
        given = dict(config) if isinstance(config, Mapping) else config
        if isinstance(given, dict) and "transactional.id" in given:
            transactional_id = cast(str, given.pop("transactional.id"))
        if transactional_id is None:
            producer = Producer(self._parts.of_producers, name, given)
        elif name is not None:
            raise ValueError("give either name or transactional_id, not both")
        else:
            producer = TransactionalProducer(
                self._parts.of_producers, transactional_id, transaction_timeout_ms, given
            )
        self._parts.add_producer(producer)
        return producer

    def consumer(
        self,
        group: str | None = None,
        isolation_level: str = "read_committed",
        auto_offset_reset: str = "earliest",
        config: Mapping[str, object] | None = None,
        **others: Never,
    ) -> "Consumer":
        """Return a new `Consumer`, which reads partitions assigned or topics subscribed.

        Parameters
        ----------
        group : str, optional
            Also "group.id" in `config`. The consumer starts at the group's committed offsets, can
            commit its own, and share topics with the group's other consumers.
        isolation_level : {"read_committed", "read_uncommitted"}
            The first leaves out records of open and aborted transactions.
        auto_offset_reset : {"earliest", "latest", "none"}
            Where to start without a committed offset, and where to go on if retention overtook the
            consumer; "none": raise an error.
        config : mapping, optional
            Kafka's settings of consumers ("max.poll.records").

        Raises
        ------
        InvalidConfigError, InvalidRequestError, TypeError
            An argument is wrong.
        """
        if others:
            refuse_parameters("consumer", others)
        self._parts.check_open()
        given = dict(config) if isinstance(config, Mapping) else config
        if isinstance(given, dict) and "group.id" in given:
            group = cast(str, given.pop("group.id"))
        from eoslog.consumer.consumer import Consumer

        return Consumer(
            self._files.engine,
            self._files.group_offsets,
            self._files.group_members,
            group,
            isolation_level,
            auto_offset_reset,
            given,
        )

    def scan(
        self,
        topic: str,
        *,
        offsets: "Offsets | None" = None,
        time: "TimeRange | None" = None,
        columns: Iterable[str] | None = None,
        isolation_level: str = "read_committed",
        max_bytes: int = 1 << 20,
    ) -> "Scan":
        """Return the records that a topic has now as a stream of Arrow record batches.

        Any library reads it that takes Arrow streams: `polars.DataFrame(scan)`. It ends where the
        log ended at the call, and cuts no transaction in two; records are read, about `max_bytes`
        at once, as they are asked for.

        Parameters
        ----------
        topic : str
        offsets : mapping of int or TopicPartition to (first, upper_bound), optional
            The partitions to be read, and of each the offsets: None is the log's start, or where
            the scan ends. By default all of all partitions.
        time : (from, to), optional
            The records with a timestamp from one time on and before the other: datetimes with a
            time zone or milliseconds; None is no limit.
        columns : list of str, optional
            Of topic, partition, offset, timestamp, key, value, headers: only these are made.
        isolation_level : {"read_committed", "read_uncommitted"}
            The second reads up to the log end.
        max_bytes : int
            About so many bytes of log make a record batch, one batch of records at least.

        Raises
        ------
        OffsetOutOfRangeError
            The log does not have these offsets now.
        UnknownTopicOrPartitionError, ValueError, TypeError
            An argument is wrong.
        MissingDependencyError
            pyarrow is not installed.
        """
        from eoslog.store.scan import open_scan  # Few programs need it.

        self._parts.check_open()
        limits = (offsets, time, columns, isolation_level, max_bytes)
        return open_scan(self._files.engine, self._parts.snapshots, topic, *limits)

    # Groups, transactions and staged jobs.

    def groups(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """Return the committed offsets of every group with offsets, undecided ones too, or members.

        A group with the name of an application also has the application's newest version, at
        partition 0 of `eoslog-version`. Raises CorruptRecordError.
        """
        self._parts.check_open()
        found = self._files.group_offsets.all()
        for group, version in self._parts.staged_jobs.versions(found).items():
            found[group][VERSION_PARTITION] = OffsetAndMetadata(version)
        return found

    def describe_group(self, name: str) -> "GroupDescription":
        """Return a group's state, generation and members, and the partitions of each.

        Raises GroupIdNotFoundError, InvalidRequestError (an empty name), CorruptRecordError.
        """
        self._parts.check_open()
        found = self._files.group_members.describe(check_group_id(name))
        if found is None:
            raise GroupIdNotFoundError(f"there is no group {name!r}")
        return found

    def delete_group(self, name: str) -> None:
        """Forget a group with all its offsets, those of open transactions too; durable on return.

        Raises GroupIdNotFoundError, NonEmptyGroupError if consumers are subscribed with it,
        InvalidRequestError (an empty name), StoreError.
        """
        self._parts.check_writable()
        self._files.group_offsets.delete(name)

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget a group's offsets of partitions, those of open transactions too; durable on
        return. One that the group does not have is left out.

        Raises GroupIdNotFoundError, GroupSubscribedToTopicError if a member reads one of the
        topics, UnknownTopicOrPartitionError, InvalidRequestError (an empty name), StoreError:
        nothing was forgotten.
        """
        self._parts.check_writable()
        self._files.group_offsets.delete_offsets(group, partitions)

    def transactions(
        self,
        states: Collection[str] | None = None,
        producer_ids: Collection[int] | None = None,
        pattern: str | None = None,
        duration_ms: int = -1,
    ) -> "list[TransactionListing]":
        """Return the transactional ids that pass all given filters, sorted.

        An id whose record is damaged is left out; `describe_transaction` raises what is wrong.

        Parameters
        ----------
        states, producer_ids : collection, optional
            Those wanted; empty: all.
        pattern : str, optional
            Regular expression of the whole id.
        duration_ms : int
            From 0 on: only transactions that have been open for longer, in milliseconds.

        Raises
        ------
        ValueError, InvalidRequestError
            A state is unknown, or the pattern is no regular expression.
        """
        self._parts.check_open()
        longer_ms = whole_number(duration_ms, "a duration")
        return self._files.transaction_admin.transactions(states, producer_ids, pattern, longer_ms)

    def describe_transaction(self, transactional_id: str) -> "TransactionDescription":
        """Return all that is known of a transactional id.

        Raises TransactionalIdNotFoundError, InvalidRequestError (an empty id), CorruptRecordError.
        """
        self._parts.check_open()
        return self._files.transaction_admin.describe(transactional_id)

    def abort_transaction(
        self,
        transactional_id: str | None = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        start_offset: int | None = None,
    ) -> None:
        """End a transaction: that of an id, or the one that is open at a partition since an offset.

        By id: its producer is fenced, and an open or prepared transaction is aborted. By partition:
        a transaction of an id is aborted as a whole; a hanging one is aborted there, or ended as it
        was decided if only its marker is lost.

        Raises
        ------
        InvalidRequestError
            Give an id, or topic, partition and start offset.
        TransactionalIdNotFoundError, UnknownTopicOrPartitionError, StoreError
        InvalidTxnStateError
            Nothing is open since that offset.
        """
        self._parts.check_writable()
        if transactional_id is not None and (topic, partition, start_offset) == (None, None, None):
            self._files.transaction_admin.abort(transactional_id)
        elif topic is not None and partition is not None and start_offset is not None:
            if transactional_id is not None:
                raise InvalidRequestError("either a transactional id, or a partition, not both")
            number = whole_number(partition, "a partition")
            offset = whole_number(start_offset, "a start offset")
            self._files.transaction_admin.abort_at(topic, number, offset)
        else:
            raise InvalidRequestError(
                "a transactional id is needed, or a topic, a partition and a start offset"
            )

    def find_hanging_transactions(
        self,
        max_transaction_timeout_ms: int = 900_000,
        topic: str | None = None,
        partition: int | None = None,
    ) -> "list[HangingTransaction]":
        """Return the transactions that nothing will end, in all partitions, a topic's, or one.

        They are open at a partition, were last written to more than `max_transaction_timeout_ms`
        ago, and belong to no transactional id. `abort_transaction` with topic, partition and start
        offset ends one. Raises UnknownTopicOrPartitionError, InvalidRequestError (a partition
        without a topic), CorruptRecordError.
        """
        self._parts.check_open()
        timeout_ms = whole_number(max_transaction_timeout_ms, "a transaction timeout")
        if partition is not None:
            partition = whole_number(partition, "a partition")
            if topic is None:
                raise InvalidRequestError("partition needs a topic")
        if topic is not None and topic != CONSUMER_OFFSETS_TOPIC:
            self._files.engine.topic(topic)
        found = self._files.partitions.with_transactions(topic, partition)
        now_ms = clock.now_ms()
        return self._files.transaction_admin.hanging(found, timeout_ms, now_ms)

    def explain_last_stable_offset(
        self, topic: str, partition: int | None = None
    ) -> "list[LastStableOffset]":
        """Return what holds the last stable offset of each partition of a topic, or of one: the
        oldest open transaction, whose it is, what ends it and when. It opens the partitions.

        Raises UnknownTopicOrPartitionError, CorruptRecordError, TypeError.
        """
        from eoslog.store.stable_offset import explain  # Few programs need it.

        self._parts.check_open()
        description = self._files.engine.topic(topic)
        numbers = range(description.partitions) if partition is None else (partition,)
        logs = [self._files.engine.partition(topic, number) for number in numbers]
        return [explain(self._files, log) for log in logs]

    def commit_prepared(self, prepared: "Iterable[PreparedTransaction]") -> None:
        """Commit prepared transactions, each by a decision of its own.

        A call may be repeated until the id goes on. All are tried; the first error is raised, with
        the others as notes. The decisions are durable on return.

        Raises
        ------
        TransactionalIdNotFoundError
            The id is unknown.
        ProducerFencedError, InvalidProducerIdMappingError
            The id has gone on since: no decision is made, and the earlier one is unknown.
        InvalidTxnStateError
            The transaction is not prepared, or is aborted already.
        TransactionCoordinatorFencedError
            A partition has another end of it, which this store did not decide: it stays prepared.
        StoreError
            The disk refuses.
        """
        self._parts.check_writable()
        self._files.transaction_admin.decide(prepared, commit=True)

    def abort_prepared(self, prepared: "Iterable[PreparedTransaction]") -> None:
        """Abort prepared transactions, each by a decision of its own, as `commit_prepared`."""
        self._parts.check_writable()
        self._files.transaction_admin.decide(prepared, commit=False)

    def commit_staged(
        self,
        app_id: str,
        version: int,
        messages: "Iterable[StagedMessage]",
        run_id: str | None = None,
        offsets: "OffsetsOfGroups | None" = None,
        source: "VersionSource | None" = None,
    ) -> "StagedCommit":
        """Make the staged files of all messages part of the log by one decision.

        On return the job is in the log and visible, as durable as the store's durability says; a
        crash after the decision is made good by the process that opens the store next. `groups()`
        shows the version, for a group with the application's name, at `eoslog-version` 0.

        Parameters
        ----------
        app_id : str
            The application.
        version : int
            Number of the job, 0 or more. If it, or a later one, is in already, nothing is done.
        messages : iterable of StagedMessage
            The results of the job's staged writers.
        run_id : str, optional
            That of the messages; required with a source.
        offsets : mapping, optional
            For each group (its name, or a consumer's `group_metadata()`) the offsets that the same
            decision commits, as `Consumer.commit` takes them.
        source : VersionSource, optional
            Counts the version; only its newest driver is let in.

        Raises
        ------
        StagedCommitError, StagedRunFencedError, StagedSourceError, StoreFullError, ValueError
            Nothing was decided (also while an earlier job is decided and cannot be completed now).
            So it is after TypeError and what `Consumer.commit` raises.
        StagedJobIncompleteError
            This version, or a later one, is decided, and completed later.
        StoreFailedError
            Unknown until the next opening.
        """
        self._parts.check_writable()
        return self._parts.staged.commit(app_id, version, messages, run_id, offsets, source)

    def application(self, app_id: str) -> "ApplicationState | None":
        """Return the state of an application's staged jobs; None if there is none."""
        self._parts.check_open()
        return self._parts.staged.application(app_id)

    def begin_run(self, app_id: str) -> str:
        """Register a run of an application that overtakes all others; return its name. Durable."""
        self._parts.check_writable()
        return self._parts.staged.begin_run(app_id)

    def sweep_run(self, app_id: str, run_id: str) -> int:
        """Remove the files of a run that will not be committed; return their number."""
        self._parts.check_writable()
        return self._parts.staged.sweep_run(app_id, run_id)

    # Looking after it.

    def snapshot(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, int]:
        """Return offsets of all partitions of these or all topics that cut no transaction.

        A `read_committed` reader that stops at these offsets sees all records of a committed
        transaction, or of a staged job, that are in these partitions, or none. For the same
        topics the offsets never move back. Where transactions overlap, those of all processes may
        wait before they begin, for 100 ms at most, once a second at most; none waits once begun.

        Without `topics` one that is deleted during the call is left out.

        Raises UnknownTopicOrPartitionError, also for one of these that is deleted during the call.
        """
        self._parts.check_open()
        return self._parts.snapshots.of_topics(topics)

    def producers(self) -> "dict[TopicPartition, list[ProducerState]]":
        """Return what each partition knows of every producer; opens them all. A topic that is
        deleted during the call is left out.
        """
        self._parts.check_open()
        return self._files.engine.producers()

    def verify(self, progress: "Progress | None" = None) -> list[dict[str, object]]:
        """Check everything that the store has on disk against its logs, internal ones too.

        Returns a dict of path, position_bytes and reason for each problem; [] is a sound store.
        `progress(done, total, topic_partition)` is called before each partition. The store may be
        in use. `docs/commands.md` lists what is checked.
        """
        return verify_counting(self, progress)

    def metrics(self) -> dict[str, Any]:
        """Counts and sizes of what is open, and what the background thread did and met; in `counts`
        those of the store's events, over all its processes, since `counted_since_ms`.
        """
        self._parts.check_open()
        return store_metrics(self._files, self._parts.checkpointer.metrics())

    def describe_log_dirs(self) -> "list[LogDirectory]":
        """Return the space on disk of each directory of the store: those of partitions, internal
        topics too, and its own. Opens no partition. Raises StoreError.
        """
        from eoslog.store.log_directories import log_directories  # Few programs need it.

        self._parts.check_open()
        return log_directories(self._files.own_paths.root)

    def backup(
        self,
        destination: str | os.PathLike[str],
        *,
        link: bool = False,
        earlier: str | os.PathLike[str] | None = None,
        progress: "BackupProgress | None" = None,
    ) -> "StoreBackup":
        """Copy the store as it is at one instant, while all its processes go on; durable on return.

        The copy is itself a store, closed cleanly: what the death of all processes at that instant
        leaves, recovered. Open transactions are aborted in it, prepared ones wait, decided ones and
        staged jobs are complete. Appends wait for some microseconds. Retention, deletion of topics
        and compaction remove no file until all is copied.

        Parameters
        ----------
        destination : str or PathLike
            A directory that does not exist, or is empty.
        link : bool
            Make sealed and synced segments of users' topics hard links, which take no space. They
            share the disk's faults with the store. Copied where the file system cannot.
        earlier : str or PathLike, optional
            An earlier backup of this store: segments that have not changed since are hard links to
            its files, once these are verified.
        progress : callable, optional
            Called with the bytes done and the total.

        Raises
        ------
        StoreInUseError
            A process holds a lock of the store and hangs; the message names it. Or another backup
            does not end.
        StoreFullError, StoreFailedError, StoreReadOnlyError
            The disk refuses.
        CorruptRecordError
            A file of the store is gone, or cannot be recovered.
        StoreError, NotAStoreError, ValueError, TypeError
            The destination holds something, `earlier` is no backup of this store, or an argument is
            wrong.
        """
        self._parts.check_writable()
        if progress is not None:
            check_synchronous(progress, "progress")
        target = path_of(destination, "destination")
        from eoslog.store.backup import back_up  # What it loads not every store needs.

        return back_up(
            self._parts,
            target,
            link=link,
            earlier=None if earlier is None else path_of(earlier, "earlier"),
            progress=progress,
        )

    def flush(self) -> None:
        """Sync everything that any process of the store has appended so far. All partitions are
        tried.

        Raises the first error: StoreFailedError where the disk refuses, CorruptRecordError.
        """
        self._parts.check_open()
        if self.read_only:
            return
        errors = self._files.partitions.sync_all()
        self._parts.check_open()
        raise_first(errors)

    # Closing.

    def close(self) -> None:
        """Flush and close the producers, sync everything, leave the files as Kafka leaves them.

        While other processes have the store open, this one only syncs what it wrote, and lets go;
        the last one to close leaves the files. A second call does nothing, and so does one in a
        forked child. An interrupt (Ctrl-C) leaves the store open, or given up: the next opening
        recovers it. If anything could not be synced or written down, the store is closed all the
        same, the first such error is raised, and the next opening recovers: nothing is lost that
        was in the log. Its `outcome` is "not_appended" only if what a producer had gathered could
        not be appended. What a fenced producer had gathered goes with it, as by its own close; that
        is a warning in the logger "eoslog.store.store", and no error.

        Raises ConcurrentAccessError in the middle of another close by the same thread.
        """
        self._parts.close()

    def __enter__(self) -> Self:
        self._parts.check_open()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except EoslogError as second:
            error.add_note(f"closing the store failed too: {second}")


def verify_counting(
    store: Store,
    progress: "Progress | None",
    counted: Callable[[TopicPartition, int], object] | None = None,
) -> list[dict[str, object]]:
    """Verify a store as `Store.verify`; `counted(topic_partition, records)` is called for each."""
    parts, files = store._parts, store._parts.files
    parts.check_open()
    if progress is not None:
        check_synchronous(progress, "progress")
    from eoslog.inspect.store_verification import StoreVerification  # What it loads not all need.

    found = StoreVerification(
        files.paths,
        files.own_paths,
        files.partitions,
        files.registry,
        files.lmdb,
        files.checkpoints.lost,
        files.topics.unremoved(),
        parts.staged.verify,
        counted,
    ).problems(progress)
    return [{**one, "path": files.paths.as_shown(str(one["path"]))} for one in found]


def offset_bounds_of(store: Store, name: str) -> dict[TopicPartition, range] | None:
    """Return the bounds of a topic's logs, also of an internal one; None if there is none."""
    files = store._parts.files
    topic = files.registry.get(name)
    return None if topic is None else offset_bounds(files, topic)


def parts_of(store: Store) -> StoreParts:
    """Return the parts of an open store, for this room, repairs, tests and benches."""
    return store._parts


def abandon(store: Store) -> None:
    """Give a store up as the death of the process would: the next opening recovers it."""
    store._parts.abandon()


def engine_of(store: Store) -> Engine:
    """Return the parts of an open store up to its partitions, for rooms above `store/`.

    Raises TypeError for what is no store, also for one whose clients are recorded.
    """
    if not isinstance(store, Store):
        raise TypeError(f"store must be a Store, got {type(store).__name__}")
    return store._parts.files.engine
