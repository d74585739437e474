"""One partition of a store: the engine's log, with its producers in LMDB behind it.

Invariants: the producers of the table, with those in LMDB, are those of the log below its end. No
LMDB call is made while the engine holds the partition's lock. Readers see nothing at or above
`visible_end`, which stands still while a staged job is being adopted.
"""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from eoslog.append_signal import AppendSignal
from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.partition_log import (
    PRODUCER_ROW_BYTES,
    AppendResult,
    Columns,
    PartitionLog,
    ProducerState,
    empty_row,
    row_state,
)
from eoslog.bindings.record_batch import Record
from eoslog.bindings.status import ProducerNotCached
from eoslog.durability import Durability, check_isolation_level
from eoslog.errors import StoreFailedError
from eoslog.producer_state_store import ProducerStateStore, StateStoreDamagedError
from eoslog.topic_partition import TopicPartition

ROWS_PER_LOOK = 10_000


class Partition:
    """The engine's own view of one partition; `Store.partition(topic, number)` gives it.

    All offsets are exclusive bounds unless their name says `last`. Reads take no lock and may go on
    in any thread while another appends.
    """

    def __init__(
        self,
        log: PartitionLog,
        topic_id: str,
        rows: ProducerStateStore,
        durability: Durability,
        signal: AppendSignal,
    ) -> None:
        self.topic_partition = TopicPartition(log.topic, log.partition)
        self.topic_id = topic_id
        self.durability = durability
        self.rolled_ms = 0  # When the checkpointer last saw a new segment.
        self._log = log
        self._rows = rows
        self._signal = signal
        self._sync_lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._hold: int | None = None
        self._restored_from = ""
        self._rows_generation = -1
        self._persisted_offset = -1

    # Offsets.

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    @property
    def path(self) -> Path:
        """The directory with the partition's files."""
        return Path(self._log.path)

    @property
    def log_start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Up to where a store of one copy shows its records: the log end."""
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Up to where everything is decided: short of a staged job that is being adopted."""
        held = self._hold
        stable = self._log.last_stable_offset
        return stable if held is None else min(held, stable)

    @property
    def visible_end(self) -> int:
        """Up to where consumers read."""
        held = self._hold
        end = self._log.high_watermark
        return end if held is None else min(held, end)

    @property
    def recovery_point(self) -> int:
        """Everything below is synced."""
        return self._log.recovery_point

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches."""
        return self._log.size_bytes

    @property
    def segment_count(self) -> int:
        return self._log.segment_count

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment that takes the appends."""
        return self._log.active_base_offset

    @property
    def failed(self) -> bool:
        """Whether a sync failed: appends are refused until the store was closed and recovered."""
        return self._log.failed

    @property
    def restored_from(self) -> str:
        """From what the producers came on opening: "rows", "snapshot" or "log"."""
        return self._restored_from

    def segments(self) -> list[dict[str, object]]:
        """One dict a segment: base_offset, size_bytes, largest_timestamp_ms, path."""
        return self._log.segments()

    # Appending.

    def append_batch(self, batch: bytes | bytearray | memoryview) -> AppendResult:
        """Append one raw batch of format 2 as a client builds it, under a leader's rules.

        A duplicate answers with the offsets of the first write. Durable on return with durability
        "always". Raises CorruptRecordError, RecordTooLargeError, RecordBatchTooLargeError,
        InvalidRecordError, InvalidTimestampError, OutOfOrderSequenceError, InvalidProducerEpochError
        or StoreError; nothing was written then.
        """
        while True:
            try:
                result = self._log.append_batch(batch)
                break
            except ProducerNotCached:
                self._install(_producer_id_of(batch))
        self._appended(result)
        return result

    def append_columns(
        self,
        values: object,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
        *,
        timestamp_ms: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> AppendResult:
        """Append the records of columns, in batches of at most `max.message.bytes`.

        `timestamp_ms` holds for records without a timestamp of their own; -1 is now. Should the disk
        fill up in the middle, the error's `appended_record_count` says how many records are in.
        """
        if timestamp_ms == -1:
            timestamp_ms = time.time_ns() // 1_000_000
        while True:
            try:
                result = self._log.append_columns(
                    values,
                    keys,
                    timestamps,
                    headers,
                    timestamp_ms=timestamp_ms,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=base_sequence,
                )
                break
            except ProducerNotCached:
                self._install(producer_id)
        self._appended(result)
        return result

    def append_accumulated(
        self,
        accumulator: RecordAccumulator,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
    ) -> AppendResult:
        """Append what an accumulator holds as one batch and empty it; on an error it keeps all."""
        while True:
            try:
                result = self._log.append_accumulated(
                    accumulator, producer_id, producer_epoch, base_sequence
                )
                break
            except ProducerNotCached:
                self._install(producer_id)
        self._appended(result)
        return result

    def adopt(self, staged: memoryview, producer_id: int) -> tuple[int, int]:
        """Append those staged batches of a producer id that are not in yet: (first offset, count).

        Not synced: the caller syncs all partitions of a job together.
        """
        while True:
            try:
                return self._log.adopt(staged, producer_id)
            except ProducerNotCached:
                self._install(producer_id)

    def _appended(self, result: AppendResult) -> None:
        if self.durability == "always":
            self.sync_up_to(result.last_offset + 1)
        self._signal.appended()

    def sync_up_to(self, offset: int) -> None:
        """Make everything below `offset` power-safe; threads that wait here share one sync.

        Raises StoreFailedError if the disk refuses; nothing more is appended then.
        """
        with self._sync_lock:
            if self._log.recovery_point < offset or self._log.failed:
                self._log.flush()

    def flush(self) -> int:
        """Make everything appended before the call power-safe; the new recovery point."""
        with self._sync_lock:
            return self._log.flush()

    # Reading.

    def read(
        self, offset: int, max_bytes: int = 1 << 20, isolation_level: str = "read_uncommitted"
    ) -> bytes:
        """Whole batches as they stand in the log, from the one that holds `offset` on.

        The first may begin below `offset`. Empty at the end. Raises OffsetOutOfRangeError.
        """
        check_isolation_level(isolation_level)
        return self._log.read(offset, max_bytes, self.visible_end)

    def fetch_records(
        self, offset: int, max_records: int, max_bytes: int
    ) -> tuple[list[Record], int]:
        """Records from `offset` on, and the offset to go on from."""
        return self._log.fetch_records(offset, max_records, max_bytes, self.visible_end)

    def fetch_columns(self, offset: int, max_bytes: int, max_records: int = -1) -> Columns | None:
        """Records from `offset` on as columns; None where there are none."""
        return self._log.fetch_columns(offset, max_bytes, self.visible_end, max_records)

    def scan_headers(self, offset: int = 0, upper_bound: int = -1) -> tuple[int, int, int]:
        """Walk batch headers from `offset` on: (batches, records, next offset)."""
        return self._log.scan_headers(offset, upper_bound)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The first record at or after a time as (offset, timestamp in ms), or None."""
        return self._log.offset_for_timestamp(timestamp_ms, self.visible_end)

    def verify(self) -> list[dict[str, object]]:
        """Check every batch and index entry: a dict of path, position_bytes, reason per problem."""
        return self._log.verify()

    # Producers.

    def producer(self, producer_id: int) -> ProducerState | None:
        """What the partition knows of a producer id, in memory or in LMDB; None if nothing."""
        state = self._log.producer(producer_id)
        if state is not None or not self._log.evicted_producer_count:
            return state
        row = self._rows.read_row(self.topic_id, self.partition, producer_id)
        return None if row is None else row_state(row)

    def producers(self) -> list[ProducerState]:
        """What the partition knows of every producer, ordered by id."""
        states = {state.producer_id: state for state in self._log.producers()}
        if self._log.evicted_producer_count:
            for producer_id, row in self._all_rows():
                states.setdefault(producer_id, row_state(row))
        return [states[producer_id] for producer_id in sorted(states)]

    @property
    def producer_count(self) -> int:
        """Producers in memory."""
        return self._log.producer_count

    @property
    def evicted_producer_count(self) -> int:
        """Producers that only LMDB remembers."""
        return self._log.evicted_producer_count

    @property
    def producer_memory_bytes(self) -> int:
        """Bytes of memory that the producer table holds."""
        return self._log.producer_memory_bytes

    def restore_producers(self, cached_max: int) -> str:
        """Fill the producer table after opening: from LMDB's rows, a snapshot or the log.

        Rows of which only some fit into `cached_max` stay in LMDB, but for those that the log's
        tail, which is replayed, needs.
        """
        try:
            self._rows_generation = self._rows.generation
            self._restored_from = self._restore_from_rows(cached_max)
        except StateStoreDamagedError:
            # It was begun anew, empty; the log has all that it held.
            self._rows_generation = self._rows.generation
            self._restored_from = self._log.restore_producers(None, 0)
        return self._restored_from

    def _restore_from_rows(self, cached_max: int) -> str:
        head = self._rows.read_head(self.topic_id, self.partition)
        if head is None:
            if self._rows.rows_after(self.topic_id, self.partition, 0, 1):
                self._rows.delete_partition(self.topic_id, self.partition)
            return self._log.restore_producers(None, 0)
        if head.offset > self._log.log_end_offset:
            # The log lost an unsynced tail that the rows know of. They must go before an append
            # gives those offsets out again.
            self._rows.delete_partition(self.topic_id, self.partition)
            return self._log.restore_producers(None, 0)
        if head.row_count <= cached_max:
            rows = [row for _, row in self._all_rows()]
        else:
            needed = self._log.producer_ids_since(head.offset)
            found = (self._rows.read_row(self.topic_id, self.partition, one) for one in needed)
            rows = [row for row in found if row is not None]
        evicted_count = max(0, head.row_count - len(rows))
        self._persisted_offset = head.offset
        return self._log.restore_producers(b"".join(rows), head.offset, evicted_count)

    def persist_producers(self, cached_max: int) -> None:
        """Write changed rows to LMDB, synced, and drop idle producers from memory beyond the limit.

        Raises StoreFullError if there is no room; everything is then as it was.
        """
        with self._checkpoint_lock:
            if self._rows_generation != self._rows.generation:
                return  # LMDB was lost while this partition was open: its rows are no longer whole.
            rows, offset = self._log.dirty_producers()
            if rows or offset != self._persisted_offset:
                self._rows.write_rows(
                    self.topic_id, self.partition, rows, PRODUCER_ROW_BYTES, offset
                )
                self._log.producers_persisted(offset)
                self._persisted_offset = offset
            if self._log.producer_count > cached_max:
                self._log.evict_producers(cached_max)

    @property
    def persisted_offset(self) -> int:
        """Up to where LMDB's rows are true; -1 if it has none."""
        return self._persisted_offset

    def expire_producers(self, oldest_timestamp_ms: int, exempt: frozenset[int]) -> int:
        """Forget producers last seen before a time, in memory and in LMDB; how many."""
        expired = set(self._log.expired_producers(oldest_timestamp_ms)) - exempt
        if self._log.evicted_producer_count:
            for producer_id, row in self._all_rows():
                state = row_state(row)
                idle = state.last_timestamp < oldest_timestamp_ms
                if idle and state.current_txn_first_offset < 0 and producer_id not in exempt:
                    in_memory = self._log.producer(producer_id)
                    if in_memory is None:
                        self._log.install_producer(row)
                        expired.add(producer_id)
        self.forget_producers(expired)
        return len(expired)

    def forget_producers(self, producer_ids: Iterable[int]) -> None:
        """Drop producers that will never append again, in memory and in LMDB."""
        gone = list(producer_ids)
        if gone:
            with self._checkpoint_lock:
                self._log.drop_producers(gone)
                self._rows.delete_producers(self.topic_id, self.partition, gone)

    def write_down_producers(self, cached_max: int) -> None:
        """Save all producers twice, synced: as rows and as a snapshot. Before segments are deleted."""
        if self._log.evicted_producer_count:
            for _, row in self._all_rows():
                self._log.install_producer(row)
        self._log.take_snapshot(sync=True)
        self.persist_producers(cached_max)

    def _install(self, producer_id: int) -> None:
        """Bring a producer that may have been evicted back into memory."""
        if self._rows_generation != self._rows.generation:
            raise StoreFailedError(
                f"{self.topic_partition}: the rows of idle producers were lost while the store was "
                "open; reopen it, and they come from the log"
            )
        # The lock keeps out an eviction: the row read here is then the newest one.
        with self._checkpoint_lock:
            row = self._rows.read_row(self.topic_id, self.partition, producer_id)
            if row is None:
                self._log.install_producer(empty_row(producer_id), was_evicted=False)
            else:
                self._log.install_producer(row)

    def _all_rows(self) -> Iterable[tuple[int, bytes]]:
        next_id = 0
        while True:
            rows = self._rows.rows_after(self.topic_id, self.partition, next_id, ROWS_PER_LOOK)
            yield from rows
            if len(rows) < ROWS_PER_LOOK:
                return
            next_id = rows[-1][0] + 1

    # Maintenance; for the store.

    def hold_readers(self) -> None:
        """From now on readers see nothing that is appended, until `release_readers`."""
        if self._hold is None:
            self._hold = self._log.high_watermark

    def release_readers(self) -> None:
        self._hold = None
        self._signal.appended()

    def prepare_spare(self) -> int:
        """Fill a segment file ahead of its need; how many were made."""
        return self._log.prepare_spare()

    def delete_segments(self, up_to_offset: int) -> int:
        """Delete the oldest segments that end at or below an offset; how many went."""
        return self._log.delete_segments(up_to_offset)

    def close(self, clean: bool = True) -> None:
        """Take no more appends; cleanly: everything synced, files as Kafka leaves them."""
        self._log.close(clean)


_PRODUCER_ID_POSITION = 43


def _producer_id_of(batch: bytes | bytearray | memoryview) -> int:
    view = memoryview(batch).cast("B")
    field = view[_PRODUCER_ID_POSITION : _PRODUCER_ID_POSITION + 8]
    return int.from_bytes(field, "big", signed=True)
