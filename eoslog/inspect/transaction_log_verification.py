"""Check that in `__transaction_state` each key's records may follow each other, and that LMDB's
index has the newest.

The check also finds the decisions on transactions, and the staged jobs that are complete. The check
of the partitions compares them with those.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.record_batch import Record
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.identity_files import read_meta_properties
from eoslog.inspect.durable_bounds import decided_job, job_parts
from eoslog.inspect.transaction_verification import DecidedTransactions
from eoslog.session.paths import StorePaths
from eoslog.storage.damage import UNREADABLE, Problem, problem, problem_of
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_partition import records_from
from eoslog.transactions.named_producers import NamedIdentity
from eoslog.transactions.state_index import StateIndex
from eoslog.transactions.state_key import (
    APPLICATION,
    NAMED_PRODUCER,
    PRODUCER_ID_BLOCK,
    RECENT_JOBS,
    is_known_key,
    is_transaction_key,
    name_of,
    transactional_id_of,
    type_of,
)

_DECISIONS = {"PrepareCommit": True, "PrepareAbort": False}
_COMPLETIONS = {"CompleteCommit": True, "CompleteAbort": False}
# In front of an indexed record of a transactional id stands its offset.
_OFFSET_BYTES = 8


class _Newest(NamedTuple):
    value: bytes | None
    offset: int


class TransactionLogVerification:
    """Check of all partitions of the log. `decided` is what their records say of transactions."""

    def __init__(self, paths: StorePaths, partitions: OpenedPartitions, index: StateIndex) -> None:
        self._paths = paths
        self._partitions = partitions
        self._index = index
        self._checks: dict[int, _PartitionCheck] = {}
        # The log may begin with what others knew at one moment.
        self._imported = read_meta_properties(paths.root).imported
        self.decided = DecidedTransactions()
        if self._imported:
            self.decided.next_producer_id = None

    def problems(self) -> list[Problem]:
        """Check the log's records and their index; `decided` is known on return."""
        problems: list[Problem] = []
        numbers = self._partitions.existing_state_partitions()
        # Where there is none, the partitions' logs may have been moved here without it.
        self.decided.has_all = bool(numbers) and not self._imported
        for number in numbers:
            try:
                problems += self._check_of(number).problems()
            except UNREADABLE as error:
                problems.append(problem_of(error))
                self.decided.has_all = False
        return problems

    def read_on(self) -> None:
        """Add to `decided` what was written since."""
        for number in self._partitions.existing_state_partitions():
            with suppress(*UNREADABLE):  # The next check reports it.
                self._check_of(number).read_on()

    def _check_of(self, number: int) -> "_PartitionCheck":
        if number not in self._checks:
            partition = self._partitions.state_partition(number)
            staging = self._paths.staging
            self._checks[number] = _PartitionCheck(
                partition, self._index, self.decided, staging, has_all=not self._imported
            )
        return self._checks[number]

    def jobs_reached(self) -> dict[TopicPartition, tuple[int, str]]:
        """Return how far partitions hold staged jobs that are complete, and which job that is."""
        reached: dict[TopicPartition, tuple[int, str]] = {}
        for check in self._checks.values():
            for where, part in job_parts(self._paths, check.of_jobs, only_recorded=True):
                if part.offset_min > reached.get(where, (0, ""))[0]:
                    reached[where] = part.offset_min, part.name
        return reached


class _PartitionCheck:
    """Check of one partition, from its first record to its end as it was when this began."""

    def __init__(
        self,
        partition: UnifiedLog,
        index: StateIndex,
        decided: DecidedTransactions,
        staging: Path,
        *,
        has_all: bool,
    ) -> None:
        self._partition = partition
        self._staging = staging
        self._index = index
        self._decided = decided
        self._newest: dict[bytes, _Newest] = {}
        self._problems: list[Problem] = []
        self._next_producer_id = -1
        self._next_offset = 0
        self._has_all = has_all  # Nothing was deleted or compacted so far.
        self._producer_ids: set[int] = set()
        self.of_jobs: list[tuple[bytes, bytes]] = []  # Keys and values, in the log's order.

    def problems(self) -> list[Problem]:
        # Before the log is read: all that the index is true of is read then.
        try:
            true_at = self._index.read_applied(self._partition.partition) or 0
        except StateStoreDamagedError:
            true_at = 0  # It was re-created.
        end = self.read_on()
        if true_at > end:
            self._note_index(f"it knows of offset {true_at - 1}, the log ends at {end}")
        else:
            self._check_index(true_at, end)
        return self._problems

    def read_on(self) -> int:
        """Follow the records that were not followed yet, and return the log's end."""
        end = self._partition.log_end_offset
        for record in records_from(self._partition, self._next_offset, end):
            if record.offset > self._next_offset:
                self._has_all = False
                self._decided.note_gone(self._producer_ids)
            self._next_offset = record.offset + 1
            self._follow(record)
        return end

    def _note(self, reason: str, offset: int) -> None:
        self._problems.append(problem(self._partition.path, f"at offset {offset}: {reason}"))

    def _note_index(self, reason: str) -> None:
        where = self._partition.topic_partition
        self._problems.append(
            problem(self._index.environment.path, f"the index of {where}: {reason}")
        )

    # The records.

    def _follow(self, record: Record) -> None:
        key, value = record.key, record.value
        if key is None or not is_known_key(key):
            return
        before = self._newest.get(key)
        self._newest[key] = _Newest(value, record.offset)
        if value is None:
            return
        if is_transaction_key(key):
            self._follow_transaction(transactional_id_of(key), before, value, record.offset)
        else:
            self._follow_own(key, value, record.offset)
        if type_of(key) in (APPLICATION, RECENT_JOBS):
            self.of_jobs.append((key, value))

    def _follow_transaction(
        self, transactional_id: str, before: _Newest | None, value: bytes, offset: int
    ) -> None:
        try:
            state = decode_transaction_value(value)
        except CorruptRecordError as error:
            self._note(f"the record of {transactional_id!r} cannot be read: {error.reason}", offset)
            return
        producer_id, epoch, name = (
            state["producer_id"],
            state["producer_epoch"],
            state["state"],
        )
        older = _read(before)
        if older is not None and older["producer_id"] == producer_id:
            if epoch < older["producer_epoch"]:
                self._note(
                    f"the epoch of {transactional_id!r} falls from {older['producer_epoch']} to "
                    f"{epoch}",
                    offset,
                )
            wanted = _DECISIONS.get(older["state"])
            found = _COMPLETIONS.get(name)
            if wanted is not None and found is not None and wanted != found:
                self._note(f"{transactional_id!r} goes from {older['state']} to {name}", offset)
        reason = self._decided.follow(
            f"transactional id {transactional_id!r}", state, older, has_all=self._has_all
        )
        self._producer_ids.add(producer_id)
        if reason is not None:
            self._note(reason, offset)

    def _follow_own(self, key: bytes, value: bytes, offset: int) -> None:
        try:
            state = json.loads(value)
            state["version"]
        except (ValueError, KeyError, TypeError):
            self._note(f"the record of {name_of(key)!r} is not JSON with a version", offset)
            return
        if type_of(key) == NAMED_PRODUCER:
            with suppress(CorruptRecordError):  # The opening of the name reports it.
                one = NamedIdentity.of_state(name_of(key), state)
                self._decided.follow_named(f"producer {one.name!r}", one.producer_id, one.epoch)
        elif type_of(key) == APPLICATION and state.get("job") is not None:
            job = None
            with suppress(CorruptRecordError):
                job = decided_job(self._staging, state)
            if job is None:  # Its list of files is gone with the files, for example.
                self._decided.has_all_jobs = False
            else:
                self._decided.staged_producer_ids |= job.all_producer_ids
        elif type_of(key) == PRODUCER_ID_BLOCK:
            found = state.get("next_producer_id")
            if not isinstance(found, int) or found < self._next_producer_id:
                self._note(
                    f"the block of producer ids ends at {found!r}, below {self._next_producer_id}",
                    offset,
                )
            else:
                self._next_producer_id = self._decided.next_producer_id = found

    # The index.

    def _check_index(self, true_at: int, end: int) -> None:
        doubtful = {}
        try:
            for key, newest in self._newest.items():
                if newest.offset < true_at and not self._is_indexed(key, newest):
                    doubtful[key] = newest
        except StateStoreDamagedError:
            return  # It was re-created, and is filled from the log.
        if not doubtful:
            return
        # The index may be newer than what was read: then the log has it further up.
        log_end = self._partition.log_end_offset
        records = records_from(self._partition, end, log_end)
        newer = [one for one in records if one.key in doubtful]
        for key, newest in doubtful.items():
            found = (_Newest(one.value, one.offset) for one in newer if one.key == key)
            if not any(self._is_indexed(key, one) for one in found):
                self._note_index(
                    f"it has another record of {_shown(key)!r} than the log at {newest.offset}"
                )

    def _is_indexed(self, key: bytes, newest: _Newest) -> bool:
        found = self._index.read_state(key)
        if found is None or newest.value is None:
            return found is None and newest.value is None
        if not is_transaction_key(key):
            return found == newest.value
        return (
            int.from_bytes(found[:_OFFSET_BYTES], "big") == newest.offset
            and found[_OFFSET_BYTES:] == newest.value
        )


def _read(newest: _Newest | None) -> dict[str, Any] | None:
    if newest is None or newest.value is None:
        return None
    try:
        return decode_transaction_value(newest.value)
    except CorruptRecordError:
        return None


def _shown(key: bytes) -> str:
    return transactional_id_of(key) if is_transaction_key(key) else name_of(key)
