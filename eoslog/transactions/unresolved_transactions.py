"""Unresolved transactions of an opening, in a file for all processes of the session.

A partition is in it if a transaction is open there that was never decided, or with the decisions
that it waits for. The file also notes that every transactional id must take a new producer id. Most
stores never have it. `state/unended.json` belongs to one session; the next one finds the same.

Invariant: a partition is in the file before any process could take it for resolved, until it is.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_entry import decode_transaction_value
from eoslog.common.json_text import loads_json
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.atomic_file import read_if_there, write_atomically
from eoslog.fs.file_lock import file_locked
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.transactions.compacted_partition import decisions_from
from eoslog.transactions.entries import EPOCH_BUMPING_VERSION

FILE_NAME = "unended.json"
_LOCK_NAME = "unended.lock"


class Decision(NamedTuple):
    """Decision on a partition's open transaction of a producer id and epoch, and the place of its
    record.

    Transactions of older protocols share an epoch, and their markers do not have a newer one.
    `commit` is None if those of one epoch were decided in both ways, `decided_ms` the time of the
    newest one.
    """

    commit: bool | None
    marker_epoch: int
    newer_epoch: bool
    state_partition: int
    offset: int
    decided_ms: int = -1


# By producer id and epoch of the data.
Decisions = dict[tuple[int, int], Decision]


def decision_of(
    fields: Mapping[str, Any], state_partition: int, offset: int
) -> tuple[tuple[int, int], Decision]:
    """Return the producer id and epoch of the data, and the decision, of a decided transaction's
    record at an offset.
    """
    marker_epoch = fields["producer_epoch"]
    newer_epoch = fields["client_transaction_version"] >= EPOCH_BUMPING_VERSION
    decision = Decision(
        fields["state"] in ("PrepareCommit", "CompleteCommit"),
        marker_epoch,
        newer_epoch,
        state_partition,
        offset,
        fields["last_update_ms"],
    )
    return (fields["producer_id"], marker_epoch - 1 if newer_epoch else marker_epoch), decision


def with_older(decision: Decision, older: Decision | None) -> Decision:
    """A decision merged with an older one of the same producer id and epoch.

    Where each end of a transaction has an epoch of its own, the newer one counts: a recovery may
    make an abort of a commit.
    """
    if older is None:
        return decision
    is_same = decision.newer_epoch or older.commit == decision.commit
    commit = decision.commit if is_same else None
    return decision._replace(commit=commit, offset=older.offset)


def find_decision(
    partitions: OpenedPartitions, where: TopicPartition, producer_id: int, epoch: int
) -> Decision | None:
    """Search the whole state log for the decision on a transaction of a partition; None if it has
    none. Those of older protocols share an epoch, and are not found.

    Waits for no lock of a coordinator.
    """
    found = None
    for number in partitions.existing_state_partitions():
        for record in decisions_from(partitions.state_partition(number), 0, complete=True):
            value = record.value or b""
            if int.from_bytes(value[2:10], "big", signed=True) != producer_id:
                continue
            with suppress(CorruptRecordError):
                fields = decode_transaction_value(value)
                of_data, decision = decision_of(fields, number, record.offset)
                named = fields["partitions"]  # A complete one names none any more.
                if (
                    decision.newer_epoch
                    and of_data == (producer_id, epoch)
                    and (not named or tuple(where) in named)
                ):
                    found = with_older(decision, found)
    return found


class UnresolvedTransactions:
    """The file of one session. Any thread of any process may call it."""

    def __init__(self, state_path: Path, session: bytes) -> None:
        self._path = state_path / FILE_NAME
        self._lock_path = state_path / _LOCK_NAME
        self._session = session.hex()
        self._threads = ThreadLock()

    def read(self) -> dict[TopicPartition, Decisions]:
        """The partitions, each with the decisions that it waits for."""
        return self._read()[0]

    def renews(self) -> bool:
        """True if the first initialization of each id has to take a new producer id."""
        return self._read()[1]

    def note_renewal(self) -> None:
        """Note that the first initialization of each id has to take a new producer id."""
        with self._threads, file_locked(self._lock_path):
            self._write(self.read(), True)

    def _read(self) -> tuple[dict[TopicPartition, Decisions], bool]:
        content = read_if_there(self._path)
        if content is None:
            return {}, False
        try:
            document = loads_json(content)
            if document["session"] != self._session:
                return {}, False
            partitions = {
                TopicPartition(topic, number): {
                    (producer_id, epoch): Decision(*decision)
                    for producer_id, epoch, *decision in decisions
                }
                for topic, number, decisions in document["partitions"]
            }
            return partitions, bool(document["renews"])
        except (ValueError, KeyError, TypeError):
            return {}, False

    def note(self, where: TopicPartition, decisions: Decisions) -> None:
        """Note the decisions that a partition waits for."""
        with self._threads, file_locked(self._lock_path):
            known, renews = self._read()
            if known.get(where) != decisions:
                known[where] = decisions
                self._write(known, renews)

    def forget(self, where: TopicPartition) -> None:
        """Remove a partition that is resolved."""
        if where not in self.read():
            return
        with self._threads, file_locked(self._lock_path):
            known, renews = self._read()
            if known.pop(where, None) is not None:
                self._write(known, renews)

    def _write(self, known: dict[TopicPartition, Decisions], renews: bool) -> None:
        partitions = [
            [*where, [[*of, *decision] for of, decision in decisions.items()]]
            for where, decisions in known.items()
        ]
        document = {"session": self._session, "renews": renews, "partitions": partitions}
        # Of no use after a power cut.
        write_atomically(self._path, json.dumps(document).encode(), sync=False)
