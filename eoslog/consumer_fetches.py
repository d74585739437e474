"""How a consumer fetches: it follows its group first, and sleeps where there is nothing to read.

Invariant: what is not handed out, because of an error or an interrupt, counts as not read.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from eoslog.bindings.record_batch import Record
from eoslog.consumer_positions import ConsumerPositions
from eoslog.consumer_subscription import ConsumerSubscription
from eoslog.consumer_turns import ConsumerTurns
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from eoslog.store import Store

T = TypeVar("T")


class ConsumerFetches:
    """This part of a `Consumer`, which is made on top of it."""

    _store: "Store"
    _group: str | None
    _positions: ConsumerPositions
    _turns: ConsumerTurns
    _subscription: ConsumerSubscription | None
    _bytes_max: int
    _closed: bool
    _polling: bool

    def _fetched(self, fetch: Callable[[int], T], limit: int) -> T:
        """What `fetch` finds up to a limit, after the group was followed."""
        before = None
        try:
            self._polling = True
            try:
                while True:
                    before = None
                    if self._subscription is not None:
                        self._subscription.member.follow()
                        self._check_open()
                    before = self._positions.all()
                    try:
                        return fetch(limit)
                    except (LogClosedError, UnknownTopicOrPartitionError) as error:
                        self._positions.put_back(before)
                        before = None  # From here on a partition may be that of a new topic.
                        self._check_open()
                        if not self._group_has_news():
                            self._look_for_topics_made_again()
                            if isinstance(error, LogClosedError):
                                reason = f"the topic was deleted: {error}"
                                raise UnknownTopicOrPartitionError(reason) from error
                            raise
                        # Else the topic is gone, and the group reads it no more.
            finally:
                self._polling = False
        except BaseException:
            # What is not handed out, also by an interrupt, counts as not read.
            if before is not None:
                self._positions.put_back(before)
            raise

    def _look_for_topics_made_again(self) -> None:
        """Have the next poll of a subscribed consumer read the new topic of a deleted one's name:
        the group does, and the consumer was told.
        """
        if self._subscription is None:
            return
        for where, partition in self._positions.partitions.items():
            if self._store._partitions.if_open(where) is not partition:
                with suppress(UnknownTopicOrPartitionError, LogClosedError):
                    self._positions.add({where: self._opened(where)})

    def _group_has_news(self) -> bool:
        return self._subscription is not None and self._subscription.member.has_news()

    def _awaited_records(self, records_max: int, timeout_s: float) -> list[Record]:
        """Sleep until there may be something to read; the records, where that is all to be done."""
        shared = self._store._signal.shared
        if self._subscription is not None or shared is None or not self._positions.is_one():
            self._wait(time.monotonic() + timeout_s)
            return []
        records = self._positions.awaited_records(shared, timeout_s, records_max, self._bytes_max)
        if not records or self._closed:
            self._check_open()
        return records

    def _fetched_batch(self, bytes_max: int) -> "pyarrow.RecordBatch | None":
        from eoslog import arrow

        found = self._turns.columns(bytes_max)
        return None if found is None else arrow.record_batch(*found)

    def _wait(self, deadline_s: float) -> bool:
        """Sleep until there may be something to read; False if the time is over before."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        self._polling = True
        try:
            if self._subscription is None and self._positions.are_begun():
                self._positions.wait_for_more(self._store._signal, left_s)
            else:
                self._store._signal.wait(self._watched(), self._is_ready, left_s)
        except LogClosedError as error:
            self._check_open()
            if not self._group_has_news():
                raise UnknownTopicOrPartitionError(f"the topic was deleted: {error}") from error
        except UnknownTopicOrPartitionError:
            if not self._group_has_news():
                raise
        finally:
            self._polling = False
        self._check_open()
        return True

    def _watched(self) -> list[Partition]:
        """The partitions whose appends may make it ready."""
        watched = list(self._positions.partitions.values())
        if self._subscription is not None:
            watched.append(self._subscription.member.partition)
        elif self._group is not None and self._positions.waits_for_the_group():
            watched.append(self._store._group_offsets.partition_with(self._group))
        return watched

    def _is_ready(self) -> bool:
        if self._closed or self._store.closed:
            return True
        return self._group_has_news() or self._positions.anything_to_read()

    # What the consumer has.

    def _check_open(self) -> None:
        raise NotImplementedError

    def _opened(self, where: TopicPartition) -> Partition:
        raise NotImplementedError
