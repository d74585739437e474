"""Timeouts of transactional ids: open transactions time out, unused ids are forgotten.

Invariants: a transaction is aborted if it was open for longer than its producer asked for. Prepared
ones wait for their decision without a limit. An id is forgotten only with nothing open or
undecided; a producer that uses it later gets another producer id.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain

from eoslog.bindings.transaction_entry import TransactionEntry, decode_transaction_value
from eoslog.common import clock
from eoslog.common.config import INT32_MAX
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    StoreInUseError,
    TransactionalIdNotFoundError,
)
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.coordinator import TransactionCoordinator
from eoslog.transactions.entries import ONGOING, UNDECIDED_STATES, NewestRecord
from eoslog.transactions.owner import timed_out

_log = logging.getLogger(__name__)

# Kafka's timeout of a transaction with an external decision: it never times out.
NEVER_MS = INT32_MAX


def abort_timed_out(coordinator: TransactionCoordinator, now_ms: int) -> int:
    """Abort the transactions of any process that were open for too long, and fence their producers.
    Returns their count.
    """
    aborted = 0
    for one in coordinator.entries.undecided():
        if not _has_timed_out(one, now_ms):
            continue
        try:
            with coordinator.entries.locked(one.transactional_id) as entry:
                if not _has_timed_out(entry, now_ms):
                    continue
                reason = timed_out(entry.transactional_id, entry.start_ms, entry.timeout_ms, now_ms)
                coordinator.fence(entry, reason, "timeout")
                aborted += 1
        except EoslogError as error:
            coordinator.warnings.warning(
                "%s: it cannot be aborted now: %s", one.transactional_id, error
            )
    return aborted


class NextTimeout:
    """Times at which the open transactions time out; found again only after one has moved."""

    def __init__(self, coordinator: TransactionCoordinator, state_log: CompactedLog) -> None:
        self._entries = coordinator.entries
        self._state_log = state_log
        self._ends: Mapping[int, int] | None = None
        # When each was begun, and its timeout; the first to time out comes last.
        self._waiting: list[tuple[int, int]] = []

    def has_come(self) -> bool:
        """True if a transaction of any process timed out, and was not reported yet."""
        ends = self._state_log.ends()
        if ends != self._ends:
            waiting = [one for one in self._entries.undecided() if _may_time_out(one)]
            times = [(one.start_ms, one.timeout_ms) for one in waiting]
            self._waiting, self._ends = sorted(times, key=sum, reverse=True), ends
        now_ms = clock.now_ms()
        count = len(self._waiting)
        # One that cannot be aborted now is not tried all the time.
        while self._waiting and now_ms - self._waiting[-1][0] > self._waiting[-1][1]:
            self._waiting.pop()
        return len(self._waiting) < count

    def forget(self) -> None:
        """Find the time again, though no transaction has moved."""
        self._ends = None


def expire_ids(
    coordinator: TransactionCoordinator, state_log: CompactedLog, now_ms: int, expiration_ms: int
) -> int:
    """Forget the transactional ids that were last used before a time. Returns their count.

    Raises StoreError if a tombstone cannot be written; the ids before it are forgotten.
    """
    expired = 0
    in_memory = [entry.transactional_id for entry in coordinator.entries.known()]
    for transactional_id in chain(in_memory, _expired_records(state_log, now_ms - expiration_ms)):
        try:
            with coordinator.entries.locked(transactional_id) as entry:
                settled = entry.state not in UNDECIDED_STATES
                if settled and entry.last_update_ms <= now_ms - expiration_ms:
                    entry.expire()
                    _log.debug(
                        "transactional id %r: forgotten, last used %d ms ago",
                        *(transactional_id, now_ms - entry.last_update_ms),
                    )
                    coordinator.entries.buried(entry)
                    expired += 1
        except (CorruptRecordError, StoreInUseError, TransactionalIdNotFoundError):
            continue  # Unreadable, or in use, or it was forgotten since.
    return expired


def _has_timed_out(entry: TransactionEntry | NewestRecord, now_ms: int) -> bool:
    return _may_time_out(entry) and now_ms - entry.start_ms > entry.timeout_ms


def _may_time_out(entry: TransactionEntry | NewestRecord) -> bool:
    return entry.state == ONGOING and not entry.prepared and entry.timeout_ms != NEVER_MS


def _expired_records(state_log: CompactedLog, oldest_ms: int) -> Iterator[str]:
    """The ids with settled records that are that old; entries in memory may be newer."""
    for transactional_id, record in state_log.transactions():
        with suppress(CorruptRecordError):
            fields = decode_transaction_value(record.value or b"")
            if fields["state"] not in UNDECIDED_STATES and fields["last_update_ms"] <= oldest_ms:
                yield transactional_id
