"""The transactions of one staged producer: what the open one staged, and how it is decided.

A transaction is one attempt of the producer's run, with files of its own, and its commit is one
version of the application that has the transactional id for a name. Nothing of it is in the log
before the decision.
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

_log = logging.getLogger(__name__)
_NO_VERSION_YET = -1


class StagedTransactions:
    """Stands where a transactional producer has its coordinator's entry; whoever calls has its
    producer for himself.
    """

    def __init__(
        self,
        engine: Engine,
        state_log: CompactedLog,
        group_offsets: GroupOffsets,
        commits: StagedCommits,
        app_id: str,
        run_id: str,
        check_gathered: Callable[[str, str], None],
    ) -> None:
        """`check_gathered(topic, its id)` raises if records were gathered for an earlier one."""
        self.lock = threading.RLock()
        # What could not be completed after its decision is with the store, which tries again.
        self.completion_error: Exception | None = None
        self._engine = engine
        self._state_log = state_log
        self._group_offsets = group_offsets
        self._commits = commits
        # Its producer has this object: a cycle would outlive both.
        self._check_gathered = WeakMethod(check_gathered)
        self._app_id = app_id
        self._run_id = run_id
        self._attempt = ""
        self._writer: StagedWriter | None = None
        self._topics: set[str] = set()
        self._offsets: dict[
            str | ConsumerGroupMetadata, dict[TopicPartition, int | OffsetAndMetadata]
        ] = {}
        # What they were sent for: a topic of the name that is made later has other records.
        self._sent_for: dict[str | ConsumerGroupMetadata, dict[TopicPartition, str]] = {}
        self._version = _NO_VERSION_YET
        self._decision = ""  # What the record of the decision calls it.

    def append(
        self,
        topic: TopicDescription,
        partition: int | None,
        values: object,
        keys: object,
        timestamps: object,
        headers: object,
    ) -> None:
        """Stage columns. Raises what `StagedWriter.append` raises."""
        self._writer_for(topic).append(topic.name, partition, values, keys, timestamps, headers)

    def append_gathered(self, accumulator: RecordAccumulator, where: TopicPartition) -> None:
        """Stage what an accumulator holds, and empty it."""
        topic = self._engine.topic(where.topic)
        check = self._check_gathered()
        if check is not None:
            check(topic.name, topic.topic_id)
        self._writer_for(topic).append_accumulated(where.topic, where.partition, accumulator)

    def add_offsets(self, group: str | ConsumerGroupMetadata, offsets: Offsets) -> bool:
        """Have offsets committed with the transaction; whether there are any.

        Raises what a commit of them would raise.
        """
        checked = self._group_offsets.prepare_staged_commit(group, offsets)
        if checked.keys:
            member = as_group_metadata(group)
            known = dict(self._offsets.get(member, {}))
            known |= {TopicPartition(*where): one for where, one in offsets.items()}
            sent_for = {**self._sent_for.get(member, {}), **checked.topic_ids}
            # In one step: an interrupt leaves no offset with the topic of another one.
            self._offsets, self._sent_for = (
                {**self._offsets, member: known},
                {**self._sent_for, member: sent_for},
            )
        return bool(checked.keys)

    def has_staged(self, topic: str) -> bool:
        """True if the open transaction has records of a topic in its files."""
        return topic in self._topics

    def commit(
        self,
        producer_id: int,
        producer_epoch: int,
        filled: Iterable[tuple[RecordAccumulator, TopicPartition]],
    ) -> tuple[int, int]:
        """Stage what is still gathered and decide; the numbers that were given come back.

        Called again after an interrupt it goes on where it was, and decides once: also behind the
        decision, so what the transaction was is kept until the next one begins. Raises
        ProducerFencedError if a later run has the id by now: nobody knows then which of the two
        decided the version.
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
                    raise  # It is another one that stands in the way.
                _log.warning("transactional id %r: %s", self._app_id, error)
            else:
                if not done.committed and not self._is_decided():
                    raise StagedCommitError(
                        f"version {self._version} of {self._app_id!r} was committed without a run "
                        "meanwhile, and nothing of this transaction: abort it"
                    )
        return producer_id, producer_epoch

    def check_run(self) -> None:
        """Raise ProducerFencedError if a later run has the id, by whatever process."""
        known = ApplicationRecord.read(self._state_log, self._app_id)
        if known is not None:
            try:
                known.check_run(self._run_id, self._engine.session.slots.describe)
            except StagedRunFencedError as error:
                raise ProducerFencedError(str(error)) from error

    def abort(self) -> None:
        """Forget the open transaction and remove its files; what cannot be removed is swept.

        Raises InvalidTxnStateError if it is decided, which a commit that was cut short could not
        say, and ProducerFencedError if a later run has the id, which sees to the files.
        """
        if self._is_decided():
            raise InvalidTxnStateError(
                f"the transaction is committed, as version {self._version} of {self._app_id!r}: "
                "its commit was cut short before it could say so"
            )
        if self._writer is not None:
            self._writer.abandon()
            staging = self._engine.paths.staging
            path = attempt_path(staging, self._app_id, self._run_id, self._attempt)
            remove_tree(path, staging)
        self.begin_anew()

    def settle(self) -> None:
        """Have what a commit that was cut short has decided completed, and else taken back.

        What cannot be completed now is tried again by the background thread. Raises StoreError.
        """
        if self._version != _NO_VERSION_YET:
            self._commits.record_of_decision(self._app_id, self._version)

    def close(self) -> None:
        """Leave no empty directories."""
        run = run_path(self._engine.paths.staging, self._app_id, self._run_id)
        remove_if_empty(run)
        remove_if_empty(run.parent)

    def begin_anew(self) -> None:
        """Forget the last transaction, which is over."""
        self._writer = None
        self._topics = set()
        self._offsets = {}
        self._sent_for = {}
        self._version = _NO_VERSION_YET

    def _is_decided(self) -> bool:
        """True if a commit has decided the open transaction; if not, none will.

        A version may also be somebody else's, who commits without a run. Raises
        ProducerFencedError if a later run has the id: nobody knows then.
        """
        if self._version == _NO_VERSION_YET:
            return False
        record = self._commits.record_of_decision(self._app_id, self._version)
        if record is None:
            return False
        if record.run_id != self._run_id:
            raise ProducerFencedError(f"{self._app_id!r} was taken over by run {record.run_id}")
        return record.decision == self._decision

    def _writer_for(self, topic: TopicDescription) -> StagedWriter:
        try:
            return self._opened_writer(topic)
        except ValueError as error:
            # The writer goes by the list of topics as it is just now.
            gone = f"deleted and made again just now: {error}"
            raise UnknownTopicOrPartitionError(gone) from error

    def _opened_writer(self, topic: TopicDescription) -> StagedWriter:
        if self._writer is None:
            self._attempt = f"{os.getpid()}-{os.urandom(8).hex()}"
            self._writer = StagedWriter(
                self._engine.path,
                self._app_id,
                self._run_id,
                self._attempt,
                partitions={topic.name: topic.partitions},
                durability=self._engine.durability,
            )
        if topic.name not in self._topics:
            config = self._engine.partitions.config_of(topic)
            self._writer.add_topic(topic.name, topic.partitions, config, topic.topic_id)
            self._topics.add(topic.name)
        if self._writer.failed is not None:
            raise _interrupted(self._writer.failed)
        return self._writer


def _interrupted(error: BaseException) -> StagedCommitError:
    return StagedCommitError(f"part of the transaction may be missing: abort it: {error}")
