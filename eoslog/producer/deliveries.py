"""Functions to call with what became of records: the `on_delivery` of `send`.

Invariants: each function is called once, by a thread that called a method of the producer, with
none of its locks held. What one raises is logged: it is no error of the call that settled the
record. After an interrupt in a function, the next such call goes on with the others.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from typing import NamedTuple

from eoslog.bindings.accumulator import BatchReport
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.arguments import check_ran, check_synchronous
from eoslog.common.record_metadata import RecordMetadata
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, TransactionAbortedError, UnknownTopicOrPartitionError

OnDelivery = Callable[[Exception | None, RecordMetadata], object]
Failures = Mapping[TopicPartition, EoslogError]
NO_OFFSET = -1

_log = logging.getLogger(__name__)


class Delivery(NamedTuple):
    """A record that waits to be settled; the sender makes plain tuples of this shape."""

    report: BatchReport
    batch_index: int
    topic: str
    partition: int
    timestamp_ms: int
    on_delivery: OnDelivery

    @property
    def is_appended(self) -> bool:
        """True if the record is in the log, committed or not."""
        return self.report.base_offset >= 0


class Settled(NamedTuple):
    """A function, and what it is to be called with."""

    on_delivery: OnDelivery
    error: Exception | None
    metadata: RecordMetadata


class Deliveries:
    """Records of one producer that wait to be settled, in the order in which they were sent."""

    def __init__(self, lock: ThreadLock, waiting: list[tuple[object, ...]]) -> None:
        """`waiting` is the sender's list, which `lock` guards."""
        self._lock = lock
        self._waiting = waiting
        self._left: list[Settled] = []
        self._checked: object = None

    def check(self, on_delivery: object) -> None:
        """Raise TypeError unless a call of the function runs it to its end."""
        if on_delivery is not self._checked:
            check_synchronous(on_delivery, "on_delivery")
            self._checked = on_delivery

    def forget(self) -> None:
        """Forget all: they are the parent process's."""
        self._waiting.clear()
        self._left.clear()

    def no_longer_gathered(self) -> frozenset[BatchReport]:
        """Return the batches that are in the log, or lost. The caller holds the lock."""
        waiting = map(Delivery._make, self._waiting)
        return frozenset(one.report for one in waiting if not one.report.is_open)

    def report_flushed(self, batches: frozenset[BatchReport], failed: Failures) -> None:
        """Report these batches after a flush, which could not sync some partitions."""

        def error_of(one: Delivery) -> Exception | None:
            where = TopicPartition(one.topic, one.partition)
            if not one.is_appended:
                return UnknownTopicOrPartitionError(f"{where}: the topic was deleted")
            return _in_doubt(failed[where]) if where in failed else None

        self.report(error_of, batches)

    def report_discarded(self, error: EoslogError) -> None:
        """Report what was gathered and is given up."""
        with self._lock:
            waiting = map(Delivery._make, self._waiting)
            batches = {one.report for one in waiting if not one.report.is_open | one.is_appended}
        self.report(lambda _: error, frozenset(batches))

    def report_rest(self, error: Exception, failed: Failures, *, is_synced: bool) -> None:
        """Report everything at a close, with the error for what is not in the log."""

        def error_of(one: Delivery) -> Exception | None:
            if not one.is_appended:
                return error
            where = TopicPartition(one.topic, one.partition)
            if is_synced and where not in failed:
                return None
            return _in_doubt(failed.get(where, error))

        self.report(error_of)

    def report_transactions(self, error: Exception | None, *, in_doubt: bool) -> None:
        """Report the records of transactions that have ended, and with an error those of the open
        one, of which this producer will hear nothing more; `in_doubt` if it may be committed.
        """
        if error is not None and in_doubt:
            error = _in_doubt(error)
        with self._lock:
            found = {Delivery._make(one).report for one in self._waiting}
            if error is None:
                found = {one for one in found if not (one.transaction and one.transaction.is_open)}

        def error_of(one: Delivery) -> Exception | None:
            transaction = one.report.transaction
            if transaction is None or transaction.is_open:
                return error
            if transaction.is_committed:
                return None
            return TransactionAbortedError("the transaction was aborted")

        self.report(error_of, frozenset(found))

    def report(
        self,
        error_of: Callable[[Delivery], Exception | None],
        batches: frozenset[BatchReport] | None = None,
    ) -> None:
        """Call the functions of the records of these batches, or of all, with what `error_of`
        returns for each.
        """
        calls: deque[Settled] = deque()
        try:
            with self._lock:
                due: list[Delivery] = []
                rest: list[tuple[object, ...]] = []
                for one in map(Delivery._make, self._waiting):
                    (due if batches is None or one.report in batches else rest).append(one)
                found = deque(self._left)
                found.extend(_settled(one, error_of(one)) for one in due)
                # No interrupt comes between them.
                calls, self._left, self._waiting[:] = found, [], rest
            while calls:
                on_delivery, error, place = calls[0]
                del calls[0]  # An interrupt comes before it, or in the function.
                try:
                    check_ran(on_delivery(error, place), "on_delivery")
                except Exception:
                    _log.exception("on_delivery of a record of %s raised", place.topic_partition)
        finally:
            self._left[:0] = calls


def _in_doubt(error: Exception) -> Exception:
    """Return the error for a record that may be in the log for good, or not."""
    found = copy(error)
    if isinstance(found, EoslogError):
        found.outcome = "unknown"
    return found


def _settled(delivery: Delivery, error: Exception | None) -> Settled:
    offset = NO_OFFSET
    if error is None:
        offset = delivery.report.base_offset + delivery.batch_index
    place = RecordMetadata(delivery.topic, delivery.partition, offset, delivery.timestamp_ms)
    return Settled(delivery.on_delivery, error, place)
