"""The transactions of one staged producer: files of the open one, and its decision.

A transaction is one attempt of the producer's run, with files of its own, and its commit is one
version of the application that the transactional id names. Nothing of it is in the log before the
decision.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable
from weakref import WeakMethod

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    InvalidTxnStateError,
    LogClosedError,
    ProducerFencedError,
    StagedCommitError,
    StagedJobIncompleteError,
    StagedRunFencedError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata, as_group_metadata
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.staging.staged_application import ApplicationRecord
from eoslog.staging.staged_commit import StagedCommits
from eoslog.staging.staged_job import Offsets
from eoslog.staging.staged_leftovers import remove_if_empty, remove_tree
from eoslog.staging.staged_names import attempt_path, run_path
from eoslog.staging.staged_writer import StagedWriter
from eoslog.storage.engine import Engine
from eoslog.storage.topic_registry import TopicDescription
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.transaction_owner import TransactionOwner

_log = logging.getLogger(__name__)
_NO_VERSION_YET = -1


class StagedTransactions:
    """Transactions of one producer, in the place of its coordinator's entry; the caller holds the
    producer's lock.
    """

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        commits: StagedCommits,
        app_id: str,
        check_gathered: Callable[[str, str], None],
    ) -> None:
        """`check_gathered(topic, topic_id)` raises if records were gathered for another topic of
        the name.
        """
        self.lock = threading.RLock()
        # Of a transactional producer's entry; here the store completes a decision that failed.
        self.completion_error: Exception | None = None
        self._engine = engine
        self._state_log = state_log
        self._group_offsets = group_offsets
        self._commits = commits
        # Its producer has this object: a cycle would outlive both.
        self._check_gathered = WeakMethod(check_gathered)
        self._app_id = app_id
        self._run_id: str | None = None
        self._attempt = ""
        self._writer: StagedWriter | None = None
        self.topics: set[str] = set()  # Of the open transaction's records.
        self._offsets: dict[
            str | ConsumerGroupMetadata, dict[TopicPartition, int | OffsetAndMetadata]
        ] = {}
        # Ids of their topics: a topic of the same name that is created later has other records.
        self._sent_for: dict[str | ConsumerGroupMetadata, dict[TopicPartition, str]] = {}
        self._version = _NO_VERSION_YET
        self._decision = ""  # Its name in the record of the decision.

    def begin_run(self, owner: TransactionOwner) -> None:
        """Register a new run of the application. Raises what `StagedCommits.begin_run` raises."""
        self._run_id = self._commits.begin_run(self._app_id, owner)

    def append_gathered(self, accumulator: RecordAccumulator, where: TopicPartition) -> None:
        """Stage the records of an accumulator, and empty it."""
        topic = self._engine.topic(where.topic)
        check = self._check_gathered()
        if check is not None:
            check(topic.name, topic.topic_id)
        self.writer_for(topic).append_accumulated(where.topic, where.partition, accumulator)

    def add_offsets(self, group: str | ConsumerGroupMetadata, offsets: Offsets) -> bool:
        """Have offsets committed with the transaction; return True if there are any.

        Raises what a commit of them raises.
        """
        checked = self._group_offsets.prepare_commit(group, offsets)
        if checked.keys:
            member = as_group_metadata(group)
            known = dict(self._offsets.get(member, {}))
            known |= {TopicPartition(*where): one for where, one in offsets.items()}
            sent_for = {**self._sent_for.get(member, {}), **checked.topic_ids}
            # In one step: an interrupt leaves no offset without its topic's id.
            self._offsets, self._sent_for = (
                {**self._offsets, member: known},
                {**self._sent_for, member: sent_for},
            )
        return bool(checked.keys)

    def commit(
        self,
        producer_id: int,
        producer_epoch: int,
        filled: Iterable[tuple[RecordAccumulator, TopicPartition]],
    ) -> tuple[int, int]:
        """Stage what is still gathered and decide; return the given producer id and epoch.

        A call after an interrupt goes on where the first one was, and decides once. It may come
        after the decision, so the transaction is kept until the next one begins. Raises
        ProducerFencedError if a later run has the id: either of the two may have decided the
        version.
        """
        for accumulator, where in filled:
            self.append_gathered(accumulator, where)
        messages = []
        if self._writer is not None:
            try:
                messages.append(self._writer.close())
            except LogClosedError as error:
                raise _interrupted(error) from error
        with self._commits.standing_still():
            if self._version == _NO_VERSION_YET:
                known = self._commits.application(self._app_id)
                self._decision = os.urandom(8).hex()
                self._version = 0 if known is None else known.version + 1
            try:
                done = self._commits.commit(
                    self._app_id,
                    self._version,
                    messages,
                    self._run_id,
                    self._offsets,
                    sent_for=self._sent_for,
                    decision=self._decision,
                )
            except StagedRunFencedError as error:
                raise ProducerFencedError(str(error)) from error
            except StagedJobIncompleteError as error:
                if not self._is_decided():
                    raise  # An earlier job cannot be completed.
                _log.warning("transactional id %r: %s", self._app_id, error)
            else:
                if not done.committed and not self._is_decided():
                    raise StagedCommitError(
                        f"version {self._version} of {self._app_id!r} was committed without a run "
                        "meanwhile; nothing of this transaction is in the log: abort it"
                    )
        return producer_id, producer_epoch

    def check_run(self) -> None:
        """Raise ProducerFencedError if a later run of any process has the id."""
        known = ApplicationRecord.read(self._state_log, self._app_id)
        if known is not None:
            try:
                known.check_run(self._run_id, self._engine.session.slots.describe)
            except StagedRunFencedError as error:
                raise ProducerFencedError(str(error)) from error

    def abort(self) -> None:
        """Forget the open transaction and remove its files; what cannot be removed is swept.

        Raises InvalidTxnStateError if an interrupted commit had decided it, and ProducerFencedError
        if a later run has the id, which removes the files.
        """
        if self._is_decided():
            raise InvalidTxnStateError(
                f"the transaction is committed, as version {self._version} of {self._app_id!r}: "
                "its commit was interrupted after the decision"
            )
        if self._writer is not None:
            self._writer.abandon()
            staging = self._engine.paths.staging
            path = attempt_path(staging, self._app_id, str(self._run_id), self._attempt)
            remove_tree(path, staging)
        self.forget_last()

    def settle(self) -> None:
        """Complete the decision of an interrupted commit, or take it back if it is not in the log.

        The background thread tries again if it cannot be completed now. Raises StoreError.
        """
        if self._version != _NO_VERSION_YET:
            self._commits.record_of_decision(self._app_id, self._version)

    def remove_empty_directories(self) -> None:
        """Remove the run's directory, and the application's, if they are empty."""
        if self._run_id is not None:
            run = run_path(self._engine.paths.staging, self._app_id, self._run_id)
            remove_if_empty(run)
            remove_if_empty(run.parent)

    def forget_last(self) -> None:
        """Forget the last transaction, which is over."""
        self._writer = None
        self.topics = set()
        self._offsets = {}
        self._sent_for = {}
        self._version = _NO_VERSION_YET

    def _is_decided(self) -> bool:
        """True if a commit has decided the open transaction; if not, none will.

        A version may also be that of another caller, which commits without a run. Raises
        ProducerFencedError if a later run has the id: then it cannot be known.
        """
        if self._version == _NO_VERSION_YET:
            return False
        record = self._commits.record_of_decision(self._app_id, self._version)
        if record is None:
            return False
        if record.run_id != self._run_id:
            raise ProducerFencedError(f"{self._app_id!r} was taken over by run {record.run_id}")
        return record.decision == self._decision

    def writer_for(self, topic: TopicDescription) -> StagedWriter:
        """Return the open transaction's writer, which takes records of the topic."""
        try:
            return self._opened_writer(topic)
        except ValueError as error:
            # The writer read the list of topics just now.
            gone = f"the topic was deleted and created again just now: {error}"
            raise UnknownTopicOrPartitionError(gone) from error

    def _opened_writer(self, topic: TopicDescription) -> StagedWriter:
        if self._writer is None:
            self._attempt = f"{os.getpid()}-{os.urandom(8).hex()}"
            self._writer = StagedWriter(
                self._engine.path,
                self._app_id,
                str(self._run_id),
                self._attempt,
                partitions={topic.name: topic.partitions},
                durability=self._engine.durability,
            )
        if topic.name not in self.topics:
            config = self._engine.partitions.config_of(topic)
            self._writer.add_topic(topic.name, topic.partitions, config, topic.topic_id)
            self.topics.add(topic.name)
        if self._writer.failed is not None:
            raise _interrupted(self._writer.failed)
        return self._writer


def _interrupted(error: BaseException) -> StagedCommitError:
    return StagedCommitError(f"part of the transaction may be missing: abort it: {error}")
