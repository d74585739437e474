"""Whether `__transaction_state` says of each key what may follow, and LMDB's index says the same.

It also finds what was decided of transactions, for the check of the partitions: their markers have
to say the same. A decision that is read here was taken before; so nothing that comes in while the
partitions are looked at can look wrong.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from eoslog.bindings.record_batch import Record
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.damage import UNREADABLE, Problem, problem, problem_of
from eoslog.errors import CorruptRecordError
from eoslog.opened_partitions import OpenedPartitions
from eoslog.partition import Partition
from eoslog.producer_state_store import ProducerStateStore, StateStoreDamagedError
from eoslog.state_key import (
    PRODUCER_ID_BLOCK,
    TYPE_BYTES,
    is_transaction_key,
    name_of,
    transactional_id_of,
    type_of,
)
from eoslog.state_partition import records_from

_DECISIONS = {"PrepareCommit": True, "PrepareAbort": False}
_COMPLETIONS = {"CompleteCommit": True, "CompleteAbort": False}
# In front of an indexed record of a transactional id stands its offset.
_OFFSET_BYTES = 8


class Decided(NamedTuple):
    """What is decided of transactions, as far as the log still has it.

    `markers`: (producer id, epoch of the markers) -> whether they commit; `complete`: producer id
    -> the greatest epoch of which all markers are written.
    """

    markers: dict[tuple[int, int], bool]
    complete: dict[int, int]


class _Newest(NamedTuple):
    value: bytes | None
    offset: int


def verify_state_log(
    partitions: OpenedPartitions, index: ProducerStateStore
) -> tuple[list[Problem], Decided]:
    """What is wrong with the log's records or their index; and what they decide."""
    decided = Decided({}, {})
    problems: list[Problem] = []
    for number in partitions.existing_state_partitions():
        try:
            partition = partitions.state_partition(number)
            problems += _PartitionCheck(partition, index, decided).problems()
        except UNREADABLE as error:
            problems.append(problem_of(error))
    return problems, decided


class _PartitionCheck:
    """Of one partition, from its first record to its end as it was when this began."""

    def __init__(self, partition: Partition, index: ProducerStateStore, decided: Decided) -> None:
        self._partition = partition
        self._index = index
        self._decided = decided
        self._newest: dict[bytes, _Newest] = {}
        self._problems: list[Problem] = []
        self._next_producer_id = -1

    def problems(self) -> list[Problem]:
        # Before the log is read: all that the index is true of is read then.
        try:
            true_at = self._index.read_applied(self._partition.partition) or 0
        except StateStoreDamagedError:
            true_at = 0  # It was begun anew.
        start, end = self._partition.log_start_offset, self._partition.log_end_offset
        for record in records_from(self._partition, start, end):
            self._follow(record)
        if true_at > end:
            self._note_index(f"it knows of offset {true_at - 1}, the log ends at {end}")
        else:
            self._check_index(true_at, end)
        return self._problems

    def _note(self, reason: str, offset: int) -> None:
        self._problems.append(problem(self._partition.path, f"at offset {offset}: {reason}"))

    def _note_index(self, reason: str) -> None:
        where = self._partition.topic_partition
        self._problems.append(problem(self._index.path, f"the index of {where}: {reason}"))

    # The records.

    def _follow(self, record: Record) -> None:
        key, value = record.key, record.value
        if key is None or len(key) < TYPE_BYTES:
            return
        before = self._newest.get(key)
        self._newest[key] = _Newest(value, record.offset)
        if value is None:
            return
        if is_transaction_key(key):
            self._follow_transaction(transactional_id_of(key), before, value, record.offset)
        elif type_of(key) >= PRODUCER_ID_BLOCK:
            self._follow_own(key, value, record.offset)

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
        is_commit = _DECISIONS.get(name)
        if is_commit is not None:
            known = self._decided.markers.setdefault((producer_id, epoch), is_commit)
            if known != is_commit:
                self._note(
                    f"{transactional_id!r}, producer {producer_id}, epoch {epoch} is decided a "
                    "second time, and otherwise",
                    offset,
                )
        if name in _COMPLETIONS:
            done = self._decided.complete
            done[producer_id] = max(done.get(producer_id, -1), epoch)

    def _follow_own(self, key: bytes, value: bytes, offset: int) -> None:
        try:
            state = json.loads(value)
            state["version"]
        except (ValueError, KeyError, TypeError):
            self._note(f"the record of {name_of(key)!r} is not JSON with a version", offset)
            return
        if type_of(key) == PRODUCER_ID_BLOCK:
            found = state.get("next_producer_id")
            if not isinstance(found, int) or found < self._next_producer_id:
                self._note(
                    f"the block of producer ids ends at {found!r}, behind {self._next_producer_id}",
                    offset,
                )
            else:
                self._next_producer_id = found

    # The index.

    def _check_index(self, true_at: int, end: int) -> None:
        doubtful = {}
        try:
            for key, newest in self._newest.items():
                if newest.offset < true_at and not self._is_indexed(key, newest):
                    doubtful[key] = newest
        except StateStoreDamagedError:
            return  # It was begun anew, and is made again from the log.
        if not doubtful:
            return
        # The index may be newer than what was read: then the log has it further up.
        newer = {key: self._values_since(end, key) for key in doubtful}
        for key, newest in doubtful.items():
            if not any(self._is_indexed(key, one) for one in newer[key]):
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

    def _values_since(self, offset: int, key: bytes) -> list[_Newest]:
        end = self._partition.log_end_offset
        found: Iterator[Record] = records_from(self._partition, offset, end)
        return [_Newest(one.value, one.offset) for one in found if one.key == key]


def _read(newest: _Newest | None) -> dict[str, Any] | None:
    if newest is None or newest.value is None:
        return None
    try:
        return decode_transaction_value(newest.value)
    except CorruptRecordError:
        return None


def _shown(key: bytes) -> str:
    return transactional_id_of(key) if is_transaction_key(key) else name_of(key)
