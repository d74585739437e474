"""Fetches of a consumer: it follows its group first, and sleeps where there is nothing to read.

Invariant: after an error the positions are as they were before the poll.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from eoslog.bindings.record_batch import Record
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.consumer_positions import ConsumerPositions
from eoslog.consumer.consumer_subscription import ConsumerSubscription
from eoslog.consumer.consumer_turns import ConsumerTurns
from eoslog.consumer.record_iterator import record_iterator
from eoslog.errors import IllegalStateError, LogClosedError, UnknownTopicOrPartitionError
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.storage.engine import Engine
from eoslog.storage.partition import Partition

if TYPE_CHECKING:
    import pyarrow


Ts = TypeVarTuple("Ts")
T = TypeVar("T")
_LONG_WAIT_S = 3600.0


class ConsumerFetches:
    """Fetches, a part of a `Consumer`, which is made on top of it."""

    _engine: Engine
    _group_offsets: GroupOffsets
    _group: str | None
    _positions: ConsumerPositions
    _call_lock: ThreadLock
    _turns: ConsumerTurns
    _subscription: ConsumerSubscription | None
    _poll_records_max: int
    _bytes_max: int
    _closed: bool
    _closing: bool
    _polling: bool

    def _given(self, poll: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Poll, and leave the positions after what was read; as they were if the poll raised."""
        self._check_open()  # In a forked child the poll of a thread of the parent never ends.
        with self._call_lock:
            self._positions.forget_kept()
            try:
                self._polling = True
                found = poll(*arguments)
                self._polling = False
                return found  # noqa: TRY300 -- within the guard.
            except BaseException:
                self._polling = False
                self._positions.restore_kept()
                raise

    def _polled(self, timeout: float, max_records: int | None) -> list[Record]:
        records_max = self._poll_records_max if max_records is None else max_records
        if records_max < 1:
            raise ValueError(f"max_records {records_max}: below 1")
        records_max = min(records_max, INT64_MAX)
        deadline_s = self._deadline_s(timeout)
        while True:
            records = self._fetched(self._turns.records, records_max)
            if records:
                return records
            self._positions.forget_kept()  # Where a partition begins stands.
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return records
            records = self._awaited_records(records_max, left_s)
            if records:
                return records

    def _polled_arrow(self, timeout: float, max_bytes: int) -> "pyarrow.RecordBatch":
        from eoslog.columns import arrow  # Raises if pyarrow is not there, before anything is read.

        if max_bytes < 1:
            raise ValueError(f"max_bytes {max_bytes}: below 1")
        max_bytes = min(max_bytes, INT64_MAX)
        deadline_s = self._deadline_s(timeout)
        while True:
            found = self._fetched(self._fetched_batch, max_bytes)
            if found is not None:
                return found
            self._positions.forget_kept()  # Where a partition begins stands.
            if not self._wait(deadline_s):
                return arrow.empty_batch()

    def _polled_to_iterate(self) -> Iterator[Record]:
        return record_iterator(self._positions, self._polled(_LONG_WAIT_S, None))

    def _deadline_s(self, timeout: Any) -> float:
        self._check_open()
        if not timeout >= 0:
            raise ValueError(f"timeout {timeout}: below 0")
        try:
            return time.monotonic() + float(timeout)
        except OverflowError:  # A whole number beyond all seconds.
            return math.inf

    def _fetched(self, fetch: Callable[[int], T], limit: int) -> T:
        """Return what `fetch` finds up to a limit, after the group was followed."""
        while True:
            self._positions.forget_kept()  # The group may move them.
            subscription = self._subscription
            if subscription is not None:
                subscription.member.follow()
                self._check_open()
            self._check_has_source()
            self._positions.keep()
            try:
                return fetch(limit)
            except (LogClosedError, UnknownTopicOrPartitionError) as error:
                # From here on a partition may be that of a new topic.
                self._positions.restore_kept()
                self._positions.forget_kept()
                self._check_open()
                if not self._group_has_news():
                    self._look_for_topics_made_again()
                    if isinstance(error, LogClosedError):
                        reason = f"the topic was deleted: {error}"
                        raise UnknownTopicOrPartitionError(reason) from error
                    raise
                # Else the topic is gone, and the group reads it no more.

    def _check_has_source(self) -> None:
        """Raise IllegalStateError if there is nothing that could ever be read."""
        # Also after a function that the group called: it may have unsubscribed. A close in another
        # thread has given up the partitions, and the next look finds the consumer closed.
        has_none = not self._positions.partitions and self._subscription is None
        if has_none and not self._closing:
            raise IllegalStateError(
                "the consumer has no partitions to read: call assign() or subscribe() first"
            )

    def _look_for_topics_made_again(self) -> None:
        """Have the next poll of a subscribed consumer read the new topic of a deleted one's name:
        the group does, and the consumer was told.
        """
        if self._subscription is None:
            return
        for where, partition in self._positions.partitions.items():
            if self._engine.partitions.if_open(where) is not partition:
                with suppress(UnknownTopicOrPartitionError, LogClosedError):
                    self._positions.add({where: self._opened(where)})

    def _group_has_news(self) -> bool:
        return self._subscription is not None and self._subscription.member.has_news()

    def _awaited_records(self, records_max: int, timeout_s: float) -> list[Record]:
        """Sleep until there may be something to read; the records, where that is all to be done."""
        shared = self._engine.signal.shared
        if self._subscription is not None or shared is None or not self._positions.is_one():
            self._wait(time.monotonic() + timeout_s)
            return []
        self._positions.keep()
        records = self._positions.awaited_records(shared, timeout_s, records_max, self._bytes_max)
        if not records or self._closed:
            self._check_open()
        return records

    def _fetched_batch(self, bytes_max: int) -> "pyarrow.RecordBatch | None":
        from eoslog.columns import arrow

        found = self._turns.columns(bytes_max)
        return None if found is None else arrow.record_batch(*found)

    def _wait(self, deadline_s: float) -> bool:
        """Sleep until there may be something to read; False if the time is over before."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        try:
            if self._subscription is None and self._positions.are_begun():
                self._positions.wait_for_more(self._engine.signal, left_s)
            else:
                self._engine.signal.wait(self._watched(), self._is_ready, left_s)
        except LogClosedError as error:
            self._check_open()
            if not self._group_has_news():
                raise UnknownTopicOrPartitionError(f"the topic was deleted: {error}") from error
        except UnknownTopicOrPartitionError:
            if not self._group_has_news():
                raise
        self._check_open()
        return True

    def _watched(self) -> list[Partition]:
        """The partitions whose appends may make it ready."""
        watched = list(self._positions.partitions.values())
        if self._subscription is not None:
            watched.append(self._subscription.member.partition)
        elif self._group is not None and self._positions.waits_for_the_group():
            watched.append(self._group_offsets.partition_with(self._group))
        return watched

    def _is_ready(self) -> bool:
        if self._closed or self._engine.is_closed():
            return True
        return self._group_has_news() or self._positions.anything_to_read()

    # What the consumer has.

    def _check_open(self) -> None:
        raise NotImplementedError

    def _opened(self, where: TopicPartition) -> Partition:
        raise NotImplementedError
