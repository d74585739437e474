"""Reading: a consumer of partitions that it was assigned, with a position at each of them."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from eoslog.bindings.partition_log import Columns
from eoslog.bindings.record_batch import Record
from eoslog.config import CONSUMER_SETTINGS, INT64_MAX, parse_config, with_defaults
from eoslog.durability import check_isolation_level
from eoslog.errors import (
    InvalidConfigError,
    LogClosedError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition
from eoslog.whole_number import whole_number

if TYPE_CHECKING:
    import pyarrow

    from eoslog.store import Store

ARROW_BYTES_MAX = 4 << 20
_LONG_WAIT_S = 3600.0
_RESETS = ("earliest", "latest", "none")


class OffsetAndTimestamp(NamedTuple):
    """Where a record is, and its timestamp in milliseconds."""

    offset: int
    timestamp_ms: int


class Consumer:
    """Reads partitions of a store; `Store.consumer` makes it. Not for several threads at once.

    Only `close` may be called from another thread: it ends a poll or an iteration under way. A
    consumer starts at a partition where `auto_offset_reset` says, unless it was sent elsewhere by
    `seek`. Nothing that it does is kept: positions end with the consumer.

    Every method raises LogClosedError when the consumer or the store is closed, ForkedProcessError
    in a child of the process that opened the store, and UnknownTopicOrPartitionError for a
    partition that does not exist. A method that reads raises CorruptRecordError for damaged bytes;
    the position stays in front of them.
    """

    def __init__(
        self,
        store: "Store",
        isolation_level: str,
        auto_offset_reset: str,
        config: Mapping[str, object] | None,
    ) -> None:
        given = parse_config(config, CONSUMER_SETTINGS, "consumer")
        isolation_level = str(given.get("isolation.level", isolation_level))
        auto_offset_reset = str(given.get("auto.offset.reset", auto_offset_reset))
        if auto_offset_reset not in _RESETS:
            raise InvalidConfigError(
                f"auto_offset_reset={auto_offset_reset!r}: one of {', '.join(_RESETS)}"
            )
        settings = with_defaults(given, CONSUMER_SETTINGS)
        self._store = store
        self._isolation_level = check_isolation_level(isolation_level)
        self._reset = auto_offset_reset
        self._poll_records_max = int(settings["max.poll.records"])
        self._fetch_bytes_max = int(settings["fetch.max.bytes"])
        self._partition_bytes_max = int(settings["max.partition.fetch.bytes"])
        self._closed = False
        self._partitions: dict[TopicPartition, Partition] = {}
        self._positions: dict[TopicPartition, int | None] = {}
        self._turns: list[TopicPartition] = []  # In the order in which they are looked at next.

    # Assignment and positions.

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on; those that stay keep their positions."""
        self._check_open()
        opened = {where: self._opened(where) for where in map(_checked, partitions)}
        self._positions = {where: self._positions.get(where) for where in opened}
        self._partitions = opened
        self._turns = list(opened)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, in the order of their assignment."""
        self._check_open()
        return list(self._partitions)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on at an offset (0 or more). One that does not exist is found out by the next poll."""
        where = self._assigned(topic_partition)
        position = whole_number(offset, "an offset")
        if not 0 <= position <= INT64_MAX:
            raise ValueError(f"offset {position}: not from 0 to {INT64_MAX}")
        self._positions[where] = position

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on at the oldest record of these partitions, or of all that are assigned."""
        with self._deletions_named():
            for where in self._assigned_or_all(partitions):
                self._positions[where] = self._partitions[where].log_start_offset

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on behind the newest record of these partitions, or of all that are assigned."""
        with self._deletions_named():
            for where in self._assigned_or_all(partitions):
                self._positions[where] = self._end_of(self._partitions[where])

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset that is read next. Raises NoOffsetForPartitionError."""
        where = self._assigned(topic_partition)
        position = self._positions[where]
        with self._deletions_named():
            return self._reset_position(where) if position is None else position

    def lag(self, topic_partition: TopicPartition) -> int:
        """How many offsets lie between the position and the end that can be read now."""
        where = self._assigned(topic_partition)
        with self._deletions_named():
            return max(0, self._end_of(self._partitions[where]) - self.position(where))

    # What partitions hold; they need not be assigned.

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The oldest offset of each partition."""
        self._check_open()
        return {where: self._opened(where).log_start_offset for where in map(_checked, partitions)}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the newest record of each partition that this consumer may read."""
        self._check_open()
        return {where: self._end_of(self._opened(where)) for where in map(_checked, partitions)}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms, 0 or more); None if none."""
        self._check_open()
        if not isinstance(timestamps_ms, Mapping):
            raise TypeError(f"a mapping of partitions to times, not {type(timestamps_ms).__name__}")
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for where, timestamp_ms in timestamps_ms.items():
            moment_ms = whole_number(timestamp_ms, "a timestamp")
            if not 0 <= moment_ms <= INT64_MAX:
                raise ValueError(f"{where}: timestamp_ms {moment_ms}: not from 0 to {INT64_MAX}")
            at = self._opened(_checked(where)).offset_for_timestamp(moment_ms)
            found[where] = None if at is None else OffsetAndTimestamp(*at)
        return found

    # Reading.

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        """The next records of the assigned partitions, at most `max_records`.

        At once if there are any; else it waits up to `timeout` seconds for them, and answers [] if
        none came. Records of a partition come in order; partitions take turns. Without
        `max_records` the setting "max.poll.records" holds.

        Raises OffsetOutOfRangeError or NoOffsetForPartitionError if `auto_offset_reset` is "none".
        """
        records_max = self._poll_records_max if max_records is None else max_records
        if records_max < 1:
            raise ValueError(f"max_records {records_max}: below 1")
        deadline_s = self._deadline_s(timeout)
        with self._deletions_named():
            while True:
                records = self._fetched_records(records_max)
                if records or not self._wait(deadline_s):
                    return records

    def poll_arrow(
        self, timeout: float = 1.0, max_bytes: int = ARROW_BYTES_MAX
    ) -> "pyarrow.RecordBatch":
        """The next records of one of the assigned partitions as an Arrow record batch.

        Columns: topic, partition, offset, timestamp (ms, UTC), key, value, headers (a list of key
        and value; null if no record of the batch has any). About `max_bytes` of log are read, one
        batch of records at least. Waits like `poll`; the answer has no rows if none came.

        Raises as `poll` does, and MissingDependencyError if pyarrow is not installed.
        """
        from eoslog import arrow

        if max_bytes < 1:
            raise ValueError(f"max_bytes {max_bytes}: below 1")
        deadline_s = self._deadline_s(timeout)
        with self._deletions_named():
            while True:
                found = self._fetched_columns(max_bytes)
                if found is not None:
                    return arrow.record_batch(*found)
                if not self._wait(deadline_s):
                    return arrow.empty_batch()

    def __iter__(self) -> Iterator[Record]:
        """Records one after the other, for ever; ends when the consumer is closed."""
        while True:
            try:
                records = self.poll(timeout=_LONG_WAIT_S)
            except LogClosedError:
                return
            for record in records:
                yield record
                if self.closed:
                    return

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def close(self) -> None:
        """Read no more; a poll that waits in another thread ends. A second call does nothing."""
        self._closed = True
        self._store._signal.appended()

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

    # How it is done.

    def _fetched_records(self, records_max: int) -> list[Record]:
        """Records of all partitions in turn, until there are enough or there are no more."""
        records: list[Record] = []
        bytes_left = self._fetch_bytes_max
        count_before = -1
        while len(records) > count_before:
            count_before = len(records)
            for where in list(self._turns):
                if len(records) >= records_max or bytes_left <= 0:
                    return records
                fetch_bytes = min(bytes_left, self._partition_bytes_max)
                try:
                    found = self._records_of(where, records_max - len(records), fetch_bytes)
                except Exception:
                    if records:
                        return records  # These first; the next poll raises.
                    raise
                if found:
                    bytes_left -= sum(len(one.value or b"") + len(one.key or b"") for one in found)
                    records += found
                    self._to_the_back(where)
        return records

    def _records_of(self, where: TopicPartition, records_max: int, bytes_max: int) -> list[Record]:
        partition = self._partitions[where]
        while True:
            position = self._checked_position(where)
            if position >= self._end_of(partition):
                return []
            try:
                records, following = partition.fetch_records(
                    position, records_max, bytes_max, self._isolation_level
                )
            except OffsetOutOfRangeError:
                self._out_of_range(where)
                continue
            if following == position:
                return records
            self._positions[where] = following
            if records:
                return records

    def _fetched_columns(self, bytes_max: int) -> tuple[TopicPartition, Columns] | None:
        for where in list(self._turns):
            partition = self._partitions[where]
            while True:
                position = self._checked_position(where)
                if position >= self._end_of(partition):
                    break
                try:
                    columns = partition.fetch_columns(
                        position, bytes_max, isolation_level=self._isolation_level
                    )
                except OffsetOutOfRangeError:
                    self._out_of_range(where)
                    continue
                if columns is None or columns.next_offset == position:
                    break
                self._positions[where] = columns.next_offset
                if columns.record_count:
                    self._to_the_back(where)
                    return where, columns
        return None

    def _to_the_back(self, where: TopicPartition) -> None:
        self._turns.remove(where)
        self._turns.append(where)

    def _checked_position(self, where: TopicPartition) -> int:
        """The position, moved if it lies outside of the log."""
        position = self._positions[where]
        if position is None:
            return self._reset_position(where)
        partition = self._partitions[where]
        if position < partition.log_start_offset or position > partition.log_end_offset:
            return self._out_of_range(where)
        return position

    def _reset_position(self, where: TopicPartition) -> int:
        partition = self._partitions[where]
        if self._reset == "none":
            raise NoOffsetForPartitionError(
                f"{where} has no position, and auto_offset_reset is 'none': seek first"
            )
        beginning = self._reset == "earliest"
        position = partition.log_start_offset if beginning else self._end_of(partition)
        self._positions[where] = position
        return position

    def _out_of_range(self, where: TopicPartition) -> int:
        """The log does not hold the position any more, or not yet."""
        partition = self._partitions[where]
        if self._reset == "none":
            raise OffsetOutOfRangeError(
                f"{where}: offset {self._positions[where]} is not in "
                f"[{partition.log_start_offset}, {partition.log_end_offset}]"
            )
        return self._reset_position(where)

    def _end_of(self, partition: Partition) -> int:
        return partition.readable_end(self._isolation_level)

    def _wait(self, deadline_s: float) -> bool:
        """Sleep until there may be something to read; False if the time is over before."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        self._store._signal.wait(self._is_ready, left_s)
        self._check_open()
        return True

    def _is_ready(self) -> bool:
        if self._closed or self._store.closed:
            return True
        return any(
            position is None or self._end_of(self._partitions[where]) > position
            for where, position in self._positions.items()
        )

    def _deadline_s(self, timeout: Any) -> float:
        self._check_open()
        if not timeout >= 0:
            raise ValueError(f"timeout {timeout}: below 0")
        return time.monotonic() + float(timeout)

    def _opened(self, where: TopicPartition) -> Partition:
        return self._store.partition(where.topic, where.partition)

    def _assigned(self, where: TopicPartition) -> TopicPartition:
        self._check_open()
        where = _checked(where)
        if where not in self._partitions:
            self._opened(where)
            raise UnknownTopicOrPartitionError(f"{where} is not assigned to this consumer")
        return where

    def _assigned_or_all(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._check_open()
        return [self._assigned(where) for where in partitions] or list(self._partitions)

    @contextmanager
    def _deletions_named(self) -> Iterator[None]:
        """A partition that is closed while the store is open belongs to a deleted topic."""
        try:
            yield
        except LogClosedError as error:
            self._check_open()
            raise UnknownTopicOrPartitionError(f"the topic was deleted: {error}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosedError("the consumer is closed")
        self._store._check_open()


def _checked(where: Any) -> TopicPartition:
    if isinstance(where, tuple) and len(where) == 2 and isinstance(where[0], str):
        return TopicPartition(where[0], whole_number(where[1], "a partition"))
    raise TypeError(f"a TopicPartition is expected, not {where!r:.80}")
