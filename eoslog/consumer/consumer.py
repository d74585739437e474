"""Reading: a consumer of partitions, with a position at each of them.

It was assigned them, or it subscribed to topics: then it shares these with the other members of its
group, and partitions come and go at the beginning of each poll.

Invariant: a position lies after every record that was handed out and before every other, so
that what a commit writes down is what the caller has seen.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Never, Self, TypeVar, TypeVarTuple, overload

from eoslog.bindings.record_batch import Record
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.arguments import seconds, whole_number
from eoslog.common.config import CONSUMER_SETTINGS, INT64_MAX, parse_config, with_defaults
from eoslog.common.durability import IsolationLevel, check_isolation_level
from eoslog.common.other_clients import refuse_parameters, with_methods_of_other_clients
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.consumer.fetcher import Fetcher
from eoslog.consumer.positions import RESETS, ConsumerPositions, Positions, count_visible
from eoslog.consumer.record_iterator import first_offsets, records_one_by_one
from eoslog.consumer.subscription import (
    ConsumerSubscription,
    OnChange,
    listeners,
    split_membership,
    wanted_topics,
)
from eoslog.errors import (
    EoslogError,
    IllegalStateError,
    InvalidConfigError,
    LogClosedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.coordinator import GroupCoordinator
from eoslog.groups.metadata import ConsumerGroupMetadata, OffsetAndMetadata, check_group_id
from eoslog.groups.offsets import GroupOffsets
from eoslog.storage.engine import Engine
from eoslog.storage.unified_log import UnifiedLog, from_what_is_left

if TYPE_CHECKING:
    from re import Pattern

    import pyarrow


__all__ = ["ARROW_BYTES_MAX", "Consumer", "ConsumerInternals", "OffsetAndTimestamp"]

# What a core still has in a cache of its own is copied out at two thirds of the cost.
ARROW_BYTES_MAX = 2 << 20

_LONG_WAIT_S = 3600.0
Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class OffsetAndTimestamp(NamedTuple):
    """Offset of a record, and its timestamp in milliseconds."""

    offset: int
    timestamp_ms: int


@with_methods_of_other_clients
class Consumer:
    """Reader of partitions of a store; `Store.consumer` makes it. Not for several threads at once.

    Only `close` may be called from another thread: it ends a poll or an iteration under way. Other
    calls that two threads make at once raise ConcurrentAccessError and do nothing. A consumer
    starts at the offset of a `seek`, else at its group's offset, else where `auto_offset_reset`
    says. Positions end with the consumer; committed ones stay. Under "read_committed" it does not
    start while an undecided transaction may move the group's offset: a poll waits for the decision,
    and other calls raise UnstableOffsetCommitError.

    Every method raises LogClosedError when the consumer or the store is closed, ForkedProcessError
    in a child of the process that opened the store, and UnknownTopicOrPartitionError for a
    partition that does not exist. A method that reads raises CorruptRecordError for damaged bytes,
    and UnsupportedCompressionTypeError for a compressed batch; the position stays before them.
    """

    def __init__(
        self,
        engine: Engine,
        group_offsets: GroupOffsets,
        group_members: GroupCoordinator,
        group: str | None,
        isolation_level: str,
        auto_offset_reset: str,
        config: Mapping[str, object] | None,
    ) -> None:
        config, membership = split_membership(config)
        given = parse_config(config, CONSUMER_SETTINGS, "consumer")
        isolation_level = str(given.get("isolation.level", isolation_level))
        auto_offset_reset = str(given.get("auto.offset.reset", auto_offset_reset))
        if auto_offset_reset not in RESETS:
            raise InvalidConfigError(
                f"auto_offset_reset must be one of {', '.join(RESETS)}, got {auto_offset_reset!r}"
            )
        settings = with_defaults(given, CONSUMER_SETTINGS)
        self._engine = engine
        self._group_offsets = group_offsets
        self._group_members = group_members
        self._group = None if group is None else check_group_id(group)
        if group is None and membership.instance_id is not None:
            raise InvalidConfigError("group.instance.id is for members of a group: give a group")
        self._isolation_level = check_isolation_level(isolation_level)
        self._poll_records_max = int(settings["max.poll.records"])
        fetch_bytes_max = int(settings["fetch.max.bytes"])
        partition_bytes_max = int(settings["max.partition.fetch.bytes"])
        self._bytes_max = min(fetch_bytes_max, partition_bytes_max)
        self._closed = False
        self._closing = False  # No new subscription is taken.
        self._positions = ConsumerPositions(
            self._group, group_offsets, self._isolation_level, auto_offset_reset
        )
        self._call_lock = ThreadLock(waits=False)
        self._fetcher = Fetcher(
            self._positions, self._isolation_level, fetch_bytes_max, partition_bytes_max
        )
        self._subscription: ConsumerSubscription | None = None
        # The one that is being left, until it is: an interrupt leaves it to the next call.
        self._left: ConsumerSubscription | None = None
        # The one that was left last: what was read under it is committed as by that member.
        self._former: ConsumerSubscription | None = None
        self._membership = membership._replace(
            max_poll_interval_ms=int(settings["max.poll.interval.ms"])
        )
        self._warned_of: set[str] = set()

    def __repr__(self) -> str:
        group = "" if self._group is None else f" of group {self._group!r}"
        state = "closed" if self._closed else f"partitions: {len(self._positions.partitions)}"
        return f"<eoslog.Consumer{group}, {state}>"

    def __reduce__(self) -> Never:
        raise TypeError("a consumer cannot be pickled or copied: make one where it is needed")

    # Assignment and positions.

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on; those that stay keep their positions.

        Parameters
        ----------
        partitions : iterable of TopicPartition
            Without any, a read needs another `assign` or a `subscribe`.

        Raises
        ------
        IllegalStateError
            The consumer is subscribed: call `unsubscribe` first.
        """
        self._check_movable()
        self._end_leaving()
        if self._subscription is not None:
            raise IllegalStateError("the consumer is subscribed to topics: unsubscribe() first")
        self._former = None
        chosen = map(as_topic_partition, partitions)
        self._positions.assign({where: self._opened(where) for where in chosen})

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: "str | Pattern[str] | None" = None,
        on_assigned: OnChange | None = None,
        on_revoked: OnChange | None = None,
        on_lost: OnChange | None = None,
        listener: object = None,
        **others: Never,
    ) -> None:
        """Read these topics from now on, shared with the other members of the group.

        A topic that does not exist yet is read once it does; a warning is logged. The next poll
        joins the group; polls are where partitions come and go. A second call reads the new topics
        in place of the others; without topics it is an `unsubscribe`.

        Parameters
        ----------
        topics : iterable of str
            Names; one that begins with "^" is a pattern.
        pattern : str or re.Pattern, optional
            Regular expression: all topics are read whose names match it from their beginning on.
        on_assigned : callable, optional
            Called with the consumer and new partitions, before they are read, and once after
            joining.
        on_revoked : callable, optional
            Called with the consumer and partitions that go to others, before any other member has
            them: what was read of them can be committed.
        on_lost : callable, optional
            Called, or `on_revoked` without it, with what was taken away because the consumer did
            not poll for "max.poll.interval.ms".
        listener : object, optional
            In place of the functions: Kafka's methods `on_partitions_assigned`,
            `on_partitions_revoked` and `on_partitions_lost`. All of these must be plain functions,
            not async ones. The poll raises what one raises, and the change stands. A `poll` in one
            raises ConcurrentAccessError.

        Raises
        ------
        IllegalStateError
            The consumer has no group, or partitions were assigned by hand.
        InvalidTopicError, TypeError
            An argument is wrong.
        """
        if others:
            refuse_parameters("subscribe", others)
        self._check_movable()
        told = listeners(on_assigned, on_revoked, on_lost, listener)
        wanted = wanted_topics(topics, pattern)
        if not wanted.names and not wanted.patterns:
            self.unsubscribe()
            return
        self._end_leaving()
        if self._subscription is not None:
            self._subscription.wanted, self._subscription.told = wanted, told
            self._warn_of_absent_topics(wanted.names)
            return
        if self._group is None:
            raise IllegalStateError("the consumer has no group: make it with group=...")
        if self._positions.partitions:
            raise IllegalStateError("partitions were assigned by hand: unsubscribe() first")
        self._engine.check_writable()  # A member joins its group.
        self._subscription = ConsumerSubscription(
            self,
            self._positions,
            self._call_lock,
            self._begin_to_read,
            self._group_members,
            self._group,
            wanted,
            told,
            self._membership,
        )
        if self._closing:  # By another thread, which may not have seen this one.
            self._subscription = None
            raise _closed_error()
        self._warn_of_absent_topics(wanted.names)

    def _warn_of_absent_topics(self, names: Iterable[str]) -> None:
        """Log a warning of each subscribed topic that does not exist, once."""
        for name in names:
            if name not in self._warned_of and self._engine.registry.get(name) is None:
                self._warned_of.add(name)
                _log.warning(
                    "a consumer of group %s subscribed to topic %r, which does not exist in %s: "
                    "it is read once it does",
                    self._group,
                    name,
                    self._engine.path,
                )

    def unsubscribe(self) -> None:
        """Leave the group, or give up what was assigned; a read needs a `subscribe` or an `assign`.

        The partitions go to other members at once; `on_revoked` is called before.
        """
        self._check_movable()
        if self._subscription is not None and self._left is None:
            self._left = self._subscription
            try:
                self._left.member.leave(report=True)  # Still a member during the callback.
            finally:
                self._end_leaving()
        self._end_leaving()
        self._positions.assign({})

    def _end_leaving(self) -> None:
        """Do what is left of an `unsubscribe`. Where it cannot be done, others find the member dead
        in time.
        """
        if self._left is None:
            return
        try:
            self._left.member.leave(report=False)
        except EoslogError:
            self._forget_left()
            raise
        self._forget_left()

    def _forget_left(self) -> None:
        # In this order: without a subscription they would count as assigned by hand.
        self._positions.assign({})
        left = self._subscription
        if left is not None and left.member.has_joined:
            self._former = left
        self._subscription = None
        self._left = None

    def subscription(self) -> list[str]:
        """The topics that the consumer subscribed to, with those that match a pattern now."""
        self._check_open()
        return [] if self._subscription is None else list(self._subscription.topics())

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, in the order of their assignment; as of the last poll."""
        self._check_open()
        return list(self._positions.partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these assigned partitions until `resume`; the others go on.

        Positions stay, and `seek` and `commit` work as before; the consumer goes on polling, and
        stays in its group. A partition is paused as long as it stays assigned.

        Parameters
        ----------
        partitions : iterable of TopicPartition
            `assignment()` for all. A loop over the consumer gets no more of them at once, and the
            rest of what was read after `resume`.

        Raises
        ------
        UnknownTopicOrPartitionError
            One is not assigned; none is paused then.
        """
        self._positions.paused |= self._all_assigned(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these assigned partitions again, from their positions on.

        Parameters
        ----------
        partitions : iterable of TopicPartition
            `paused()` for all.

        Raises
        ------
        UnknownTopicOrPartitionError
            One is not assigned; none is resumed then.
        """
        self._positions.paused -= self._all_assigned(partitions)

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that `pause` holds, in the order of their assignment."""
        self._check_open()
        return [where for where in self._positions.partitions if where in self._positions.paused]

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on at an offset.

        Parameters
        ----------
        topic_partition : TopicPartition
            An assigned one.
        offset : int
            0 or more. If it does not exist, the next poll raises OffsetOutOfRangeError, or resets
            the position as `auto_offset_reset` says.
        """
        where = self._assigned(topic_partition)
        position = whole_number(offset, "an offset")
        if not 0 <= position <= INT64_MAX:
            raise ValueError(f"offset {position} is outside [0, {INT64_MAX}]")
        self._positions.set(where, position)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the oldest record of these partitions, or of all that are assigned."""
        with self._deletions_named():
            for where in self._assigned_or_all(partitions):
                partition = self._positions.partitions[where]
                self._positions.set(where, partition.log_start_offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on after the newest record of these partitions, or of all that are assigned."""
        with self._deletions_named():
            for where in self._assigned_or_all(partitions):
                partition = self._positions.partitions[where]
                self._positions.set(where, self._positions.end_of(partition))

    def position(self, topic_partition: TopicPartition) -> int:
        """Return the offset that is read next in an assigned partition.

        Raises
        ------
        NoOffsetForPartitionError
            There is no committed offset, and `auto_offset_reset` is "none".
        UnstableOffsetCommitError
            The group's offset waits for a transaction: try again.
        """
        where = self._assigned(topic_partition)
        self._check_still_there((where,))
        with self._deletions_named():
            return self._positions.begin(where)

    def lag(self, topic_partition: TopicPartition) -> int:
        """Return the number of readable records after the position of an assigned partition.

        Markers of transactions do not count, and under "read_committed" records of aborted ones do
        not. Over more than 100,000 offsets the distance in offsets is returned.
        """
        where = self._assigned(topic_partition)
        with self._deletions_named():
            partition = self._positions.partitions[where]
            position = self._positions.begin(where)
            end = self._positions.end_of(partition)
            return from_what_is_left(
                partition,
                position,
                lambda start: count_visible(partition, start, end, self._isolation_level),
            )

    # What partitions hold. They need not be assigned.

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the oldest offset of each partition."""
        self._check_open()
        with self._deletions_named():
            return {
                where: self._opened(where).log_start_offset
                for where in map(as_topic_partition, partitions)
            }

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the newest readable record of each partition."""
        self._check_open()
        with self._deletions_named():
            return {
                where: self._positions.end_of(self._opened(where))
                for where in map(as_topic_partition, partitions)
            }

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition at or after a time.

        Parameters
        ----------
        timestamps_ms : mapping of TopicPartition to int
            Milliseconds since 1970, 0 or more.

        Returns
        -------
        dict of TopicPartition to OffsetAndTimestamp or None
            None if there is no such record. It may be of an aborted transaction, but is never a
            marker (rule R4).
        """
        self._check_open()
        if not isinstance(timestamps_ms, Mapping):
            raise TypeError(
                f"timestamps_ms must map partitions to times, got {type(timestamps_ms).__name__}"
            )
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for where, timestamp_ms in timestamps_ms.items():
            with self._deletions_named():
                partition = self._opened(as_topic_partition(where))
                at = partition.offset_for_timestamp(timestamp_ms, self._isolation_level)
            found[where] = None if at is None else OffsetAndTimestamp(*at)
        return found

    # The group's offsets.

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        **others: Never,
    ) -> None:
        """Commit these offsets for the group, else all positions as they are.

        Durable on return, with the records below them, unless the store's durability is "process";
        all offsets or none.

        Parameters
        ----------
        offsets : mapping of TopicPartition to int or OffsetAndMetadata, optional
            The offset of the record to be read next. By default the positions; partitions that were
            not started yet are left as they are.

        Raises
        ------
        IllegalStateError
            The consumer has no group.
        UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError
            The consumer is no longer the member that it was at its last poll (another reads what it
            read, or has its "group.instance.id"), or its partitions were assigned by hand and the
            group has members.
        UnknownTopicOrPartitionError
            A topic was deleted, also if it was created again.
        OffsetMetadataTooLargeError, StoreError, ValueError, TypeError
            An argument is wrong, or the disk refuses.
        """
        if others:
            refuse_parameters("commit", others)
        self._engine.check_writable()
        self._call_lock.check()
        group = self.group_metadata()
        if self._subscription is not None and not group.member_id:
            raise UnknownMemberIdError(f"no member of group {group.group_id!r} yet: poll first")
        if offsets is None:
            offsets = self._positions.begun()
        if isinstance(offsets, Mapping):
            self._check_still_there(offsets)
        with self._deletions_named():
            self._group_offsets.commit(group, offsets)

    @overload
    def committed(self, topic_partition: TopicPartition) -> int | None: ...

    @overload
    def committed(
        self, topic_partition: list[TopicPartition]
    ) -> dict[TopicPartition, int | None]: ...

    def committed(
        self, topic_partition: TopicPartition | list[TopicPartition]
    ) -> int | dict[TopicPartition, int | None] | None:
        """Return the group's committed offset of a partition, or of each in a list; None if none.

        Raises
        ------
        IllegalStateError
            The consumer has no group.
        UnstableOffsetCommitError
            The offset waits for a transaction: try again.
        """
        if isinstance(topic_partition, list):
            return {
                where: self.committed(where) for where in map(as_topic_partition, topic_partition)
            }
        found = self.committed_metadata(topic_partition)
        return None if found is None else found.offset

    def committed_metadata(self, topic_partition: TopicPartition) -> OffsetAndMetadata | None:
        """Return what `committed` returns, with the text that was committed beside the offset."""
        group = self.group_metadata().group_id
        where = as_topic_partition(topic_partition)
        self._opened(where)
        stable = self._isolation_level == "read_committed"
        return self._group_offsets.fetch(group, where, require_stable=stable)

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Go on at the group's offsets of these partitions, or of all that are assigned.

        A new consumer would start there. Call it after an aborted transaction.
        """
        self.group_metadata()
        for where in self._assigned_or_all(partitions):
            self._positions.set(where, None)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the identity that commits, for `send_offsets_to_transaction`. Raises
        IllegalStateError without a group.

        For a subscribed consumer, also after `unsubscribe`, it names the member and the generation
        of its last poll; a commit of a former member, or of a partition that another member reads,
        is refused. It also names the topics' ids: offsets of a deleted topic are refused.
        """
        self._check_open()
        if self._group is None:
            raise IllegalStateError("the consumer has no group: make it with group=...")
        for one in (self._subscription, self._former):
            if one is not None and one.member.has_joined:
                return one.member.metadata(self._positions.topic_ids)
        return ConsumerGroupMetadata(self._group, topic_ids=self._positions.topic_ids)

    # Reading.

    def poll(
        self, timeout: float = 1.0, max_records: int | None = None, **others: Never
    ) -> list[Record]:
        """Return the next records of the assigned partitions.

        Records of a partition come in order; partitions take turns.

        Parameters
        ----------
        timeout : float
            Longest wait for records in seconds; [] is returned after it.
        max_records : int, optional
            By default "max.poll.records"; any large number stands for all that one poll reads.

        Raises
        ------
        IllegalStateError
            The consumer was neither assigned partitions nor subscribed.
        FencedInstanceIdError
            Another consumer has joined with the same "group.instance.id": close this one.
        OffsetOutOfRangeError, NoOffsetForPartitionError
            There is no such position, and `auto_offset_reset` is "none".
        """
        if others:
            refuse_parameters("poll", others)
        return self._given(self._polled, timeout, max_records)

    def poll_arrow(
        self, timeout: float = 1.0, max_bytes: int = ARROW_BYTES_MAX, **others: Never
    ) -> "pyarrow.RecordBatch":
        """Return the next records of one of the assigned partitions as an Arrow record batch.

        Columns: topic, partition, offset, timestamp (ms, UTC), key, value, headers (a list of key
        and value; null if no record of the batch has any).

        Parameters
        ----------
        timeout : float
            Longest wait for records in seconds; after it the result has no rows.
        max_bytes : int
            About so many bytes of log are read, one batch of records at least.

        Raises
        ------
        MissingDependencyError
            pyarrow is not installed.
        EoslogError
            What `poll` raises.
        """
        if others:
            refuse_parameters("poll_arrow", others)
        return self._given(self._polled_arrow, timeout, max_bytes)

    def __iter__(self) -> Iterator[Record]:
        """Return the records one after the other, for ever; ends when the consumer is closed.

        Positions follow the records: a `commit` in the loop covers the current record, and a loop
        that is left early loses none. Raises what `poll` raises.
        """
        while True:
            try:
                records = self._given(self._polled_to_iterate)
            except LogClosedError:
                if self._closed:
                    return
                raise
            for record in records:
                yield record
                if self.closed:
                    return

    @property
    def closed(self) -> bool:
        """True if close() was called."""
        return self._closed

    def close(self) -> None:
        """Close the consumer; a poll that waits in another thread ends. A second call does nothing,
        or what an interrupt (Ctrl-C) left of the first.

        A subscribed consumer leaves its group: `on_revoked` is called, unless another thread is in
        a poll, and its partitions go to other members at once.
        """
        closed_before = self._closed
        self._closing = True
        try:
            # Where the store is closed, its members have left.
            with suppress(LogClosedError):
                if not self._engine.is_closed():
                    self._end_leaving()
                subscription = self._subscription  # Another thread may be unsubscribing.
                if subscription is not None and not self._engine.is_closed():
                    is_silent = closed_before or self._call_lock.in_use()
                    subscription.member.leave(report=not is_silent)
        finally:
            self._closed = True
            self._engine.signal.wake()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # How it polls. Each step returns what it found and the positions after that; these are taken
    # over as the last step of all, so that an error, or an interrupt, passes over no record.

    def _given(self, poll: Callable[[*Ts], tuple[T, Positions]], *arguments: *Ts) -> T:
        """Poll, and move the positions after what was read."""
        self._check_open()  # In a forked child the poll of a thread of the parent never ends.
        positions = self._positions
        before: Positions | None = None
        try:
            with self._call_lock:
                found, reached = poll(*arguments)
                before, positions.current = positions.current, reached
            return found  # noqa: TRY300 -- within the guard.
        except BaseException:
            # Python handles signals as the lock is released; then there is a way back.
            if before is not None and positions.current is reached:
                positions.current = before
            raise

    def _polled(self, timeout: float, max_records: int | None) -> tuple[list[Record], Positions]:
        records_max = self._poll_records_max
        if max_records is not None:
            records_max = whole_number(max_records, "max_records")
        if records_max < 1:
            raise ValueError(f"max_records must be 1 or more, got {records_max}")
        records_max = min(records_max, INT64_MAX)
        deadline_s = time.monotonic() + seconds(timeout, "timeout")
        while True:
            records, reached = self._fetched(self._fetcher.records, records_max)
            if records:
                return records, reached
            self._positions.current = reached
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return records, reached
            records, reached = self._awaited_records(records_max, left_s)
            if records:
                return records, reached

    def _polled_arrow(
        self, timeout: float, max_bytes: int
    ) -> tuple["pyarrow.RecordBatch", Positions]:
        from eoslog.columns import arrow  # Raises if pyarrow is not there, before anything is read.

        max_bytes = whole_number(max_bytes, "max_bytes")
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be 1 or more, got {max_bytes}")
        max_bytes = min(max_bytes, INT64_MAX)
        deadline_s = time.monotonic() + seconds(timeout, "timeout")
        while True:
            found, reached = self._fetched(self._fetcher.columns, max_bytes)
            if found is not None:
                return arrow.record_batch(*found), reached
            self._positions.current = reached
            if not self._wait(deadline_s):
                return arrow.empty_batch(), self._positions.current

    def _polled_to_iterate(self) -> tuple[Iterator[Record], Positions]:
        records, reached = self._polled(_LONG_WAIT_S, None)
        firsts = first_offsets(records)
        return records_one_by_one(self._positions, records, reached, firsts), reached | firsts

    def _fetched(self, fetch: Callable[[int], T], limit: int) -> T:
        """Return what `fetch` finds up to a limit, after the group was followed."""
        while True:
            subscription = self._subscription
            if subscription is not None:
                subscription.member.follow()
                self._check_open()
            self._check_has_source()
            try:
                return fetch(limit)
            except (LogClosedError, UnknownTopicOrPartitionError) as error:
                self._check_open()
                if not self._group_has_news():
                    self._look_for_topics_made_again()
                    if isinstance(error, LogClosedError):
                        reason = f"the topic was deleted: {error}"
                        raise UnknownTopicOrPartitionError(reason) from error
                    raise
                # Else the topic is gone, and the group no longer reads it.

    def _check_has_source(self) -> None:
        """Raise IllegalStateError if there is nothing that could ever be read."""
        # Also after a function that the group called: it may have unsubscribed. A close in another
        # thread has given up the partitions, and the next look finds the consumer closed.
        has_none = not self._positions.partitions and self._subscription is None
        if has_none and not self._closing:
            text = "the consumer has no partitions to read: call assign() or subscribe() first"
            group = self._group
            if group is not None and self._engine.registry.get(group) is not None:
                text += f"; {group!r} is its group: did you mean subscribe([{group!r}])?"
            raise IllegalStateError(text)

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

    def _awaited_records(
        self, records_max: int, timeout_s: float
    ) -> tuple[list[Record], Positions]:
        """Sleep until there may be something to read; the records, where that is all to be done."""
        shared = self._engine.signal.shared
        if self._subscription is not None or not self._positions.is_one():
            self._wait(time.monotonic() + timeout_s)
            return [], self._positions.current
        found = self._positions.awaited_records(shared, timeout_s, records_max, self._bytes_max)
        if not found[0] or self._closed:
            self._check_open()
        return found

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

    def _watched(self) -> list[UnifiedLog]:
        """The partitions whose appends may make it ready."""
        watched = list(self._positions.partitions.values())
        if self._subscription is not None:
            watched.append(self._subscription.member.partition)
        elif self._group is not None and self._positions.waits_for_the_group():
            watched.append(self._group_offsets.log.of_group(self._group).partition)
        return watched

    def _is_ready(self) -> bool:
        if self._closed or self._engine.is_closed():
            return True
        return self._group_has_news() or self._positions.anything_to_read()

    # How it is done.

    @contextmanager
    def _deletions_named(self) -> Iterator[None]:
        """A partition that is closed while the store is open belongs to a deleted topic."""
        try:
            yield
        except LogClosedError as error:
            self._check_open()
            raise UnknownTopicOrPartitionError(f"the topic was deleted: {error}") from error

    def _begin_to_read(self, partitions: Iterable[TopicPartition]) -> None:
        """The group gave the consumer these."""
        self._positions.add({where: self._opened(where) for where in partitions})

    def _check_still_there(self, offsets: Iterable[TopicPartition]) -> None:
        """Check that the topics were not made again: offsets of a deleted one mean nothing
        in a new one of its name.
        """
        for where in offsets:
            partition = self._positions.partitions.get(where)
            if partition is not None and self._engine.partitions.if_open(where) is not partition:
                raise UnknownTopicOrPartitionError(
                    f"{where}: the topic was deleted since it was assigned; assign it again if "
                    "there is one of the name"
                )

    def _opened(self, where: TopicPartition) -> UnifiedLog:
        return self._engine.partition(where.topic, where.partition)

    def _assigned(self, where: TopicPartition) -> TopicPartition:
        self._check_movable()
        where = as_topic_partition(where)
        if where not in self._positions.partitions:
            self._opened(where)
            if self._closing:  # By another thread, which has given up what was assigned.
                raise _closed_error()
            raise UnknownTopicOrPartitionError(f"{where} is not assigned to this consumer")
        return where

    def _assigned_or_all(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._check_movable()
        return [self._assigned(where) for where in partitions] or self.assignment()

    def _all_assigned(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        self._check_movable()
        return frozenset(map(self._assigned, partitions))

    def _check_movable(self) -> None:
        self._check_open()
        self._call_lock.check()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed_error()
        self._engine.check_open()


def _closed_error() -> LogClosedError:
    return LogClosedError("the consumer is closed")


class ConsumerInternals:
    """The internal face of a consumer, for its asyncio client and its recorder."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.positions = consumer._positions
        self.group: str | None = consumer._group
        self.isolation_level: IsolationLevel = consumer._isolation_level
        self.check_open = consumer._check_open
        self.partition = consumer._opened  # Of any topic: it need not be assigned.
        self.deletions_named = consumer._deletions_named

    def is_plain(self) -> bool:
        """Return True if only the ends of partitions show that there is something to read."""
        is_begun = len(self.positions.begun()) == len(self.positions.partitions)
        return is_begun and self._consumer._subscription is None

    def group_partition(self) -> UnifiedLog | None:
        """Return the partition whose appends decide the group's offsets, if these are awaited."""
        if self._consumer._subscription is not None:
            return None
        own = self.positions.partitions.values()
        return next((one for one in self._consumer._watched() if one not in own), None)

    def lag(self) -> int:
        """Return the number of offsets between the positions and the ends, where it may read."""
        positions = self.positions
        return sum(
            max(0, positions.end_of(positions.partitions[where]) - position)
            for where, position in positions.begun().items()
            if where not in positions.paused
        )
