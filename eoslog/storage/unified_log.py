"""One partition of a store: the engine's log, for all rooms.

Invariants: offsets and records are of the whole log, whichever process wrote it; readers see
nothing at or above `visible_end`, which stands still, in all processes, while a staged job is being
adopted.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar, cast

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.log_reader import ALL_PARTS
from eoslog.bindings.partition_log import (
    AbortedTransaction,
    AppendResult,
    Columns,
    OpenTransaction,
    PartitionLog,
    ProducerState,
)
from eoslog.bindings.record_batch import BatchHeader, Record, iter_batches
from eoslog.bindings.shared_page import COUNTER_NOTED
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.bindings.transaction_cuts import TransactionCuts
from eoslog.common import clock
from eoslog.common.arguments import whole_number
from eoslog.common.config import INT64_MAX
from eoslog.common.durability import Durability, check_isolation_level
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    ForkedProcessError,
    LogClosedError,
    OffsetOutOfRangeError,
    StoreError,
)
from eoslog.fs.file_lock import directory_locked
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories
from eoslog.session.append_signal import AppendSignal
from eoslog.session.file_hold import FileHold
from eoslog.storage.damage import Damage, LogDamage, with_compressed_as_one
from eoslog.storage.partition_producers import PartitionProducers

if TYPE_CHECKING:
    from eoslog.bindings.producers_verification import TransactionFollower

NO_HOLD = -1
_KNOWN_OF_CLOSED = (
    *("path", "shown_path", "recovery_point", "failed", "deleted", "cut_bytes", "attached"),
)

T = TypeVar("T")


class ClosedLog:
    """Stub in the place of a log that was closed, so that its memory and mappings can be freed, or
    that is the parent's after a fork.

    Each call raises the error of the close, a new one each time.
    """

    error: EoslogError

    def __init__(self, error: EoslogError, known: dict[str, object]) -> None:
        """`known`: attributes that can still be read."""
        self.__dict__.update(known, error=error)

    def refuse(self) -> Never:
        """Raise the error."""
        # A new one each time: tracebacks would gather on one that is raised again and again.
        raise type(self.error)(*self.error.args)

    def __getattr__(self, name: str) -> Any:
        self.refuse()

    def __setattr__(self, name: str, value: object) -> None:
        if name == "hold_offset":
            self.refuse()
        super().__setattr__(name, value)


class UnifiedLog:
    """The log of one partition; `Partition` shows users what they may use of it.

    All offsets are exclusive bounds unless their name says `last`. Reads take no lock and may go on
    in any thread while another appends.
    """

    def __init__(
        self,
        log: PartitionLog,
        topic_id: str,
        topic_config: Mapping[str, int | str],
        producers: PartitionProducers,
        durability: Durability,
        signal: AppendSignal,
        *,
        write_start: Callable[[Callable[[], int], Callable[[int], object]], None],
        reserve_start: Callable[[], None],
        file_hold: FileHold,
        spare_path: Path,
        producer_expiration_ms: int,
    ) -> None:
        """`write_start` writes to the checkpoint, synced, the log start that a function returns,
        and then calls another one with it. `reserve_start` reserves room for the next one.
        `spare_path`: the directory of spare files, which other processes may fill too.
        """
        self._log: PartitionLog | ClosedLog = log
        self.topic_partition = TopicPartition(log.topic, log.partition)
        self.topic_id = topic_id
        self.topic_config = topic_config  # The topic's own settings that the log follows.
        self.producer_state = producers
        producers.on_restored = self._note_restored
        self.damage = LogDamage(self.topic_partition, log.shown_path)
        self.write_start = write_start
        self._reserve_start = reserve_start
        self._file_hold = file_hold
        self._spare_path = spare_path
        self._producer_expiration_ms = producer_expiration_ms
        self.durability = durability
        self._signal = signal
        self._changed: Callable[[UnifiedLog], None] | None = None
        self._change_noted = False
        # All below was synced with its index files, by flushes here.
        self.flushed_up_to = 0
        self.active_when_opened = log.active_base_offset  # Base offset of that segment.
        self._spare_lock = ThreadLock()

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    @property
    def path(self) -> Path:
        """The directory with the partition's files."""
        return Path(self._log.shown_path)

    @property
    def size_bytes(self) -> int:
        """Size of all batches, in bytes."""
        return self._log.size_bytes

    @property
    def segment_count(self) -> int:
        return self._log.segment_count

    @property
    def failed(self) -> bool:
        """True if a sync failed: appends are refused until the store was closed and recovered."""
        return self._log.failed

    def segments(self) -> list[dict[str, object]]:
        """One dict a segment: base_offset, size_bytes, largest_timestamp_ms, path."""
        with named_os_errors(f"listing the segments of {self.topic_partition}"):
            return self._log.segments()

    def segment_sizes(self) -> list[tuple[int, int]]:
        """Base offset and bytes of each segment, oldest first."""
        found = self._log.segment_files(as_in_store=True)
        return [(one["base_offset"], one["size_bytes"]) for one in found]

    @property
    def attached(self) -> bool:
        """True if another process had it open already when this one opened it."""
        return self._log.attached

    def producer(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer id, from memory or from LMDB; None if there is none."""
        return self.producer_state.producer(producer_id)

    def producers(self) -> list[ProducerState]:
        """Return the states of all producers, ordered by id."""
        return self.producer_state.producers()

    # Offsets.

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
        """End of the records that a store of one copy shows: the log end."""
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of decided data: the first offset of the oldest open transaction, or of a staged job
        that is being adopted, else the high watermark.
        """
        # In this order: what is adopted in between lies above the offset that is held then.
        stable = self._log.last_stable_offset
        held = self._log.hold_offset
        return stable if held < 0 else min(held, stable)

    @property
    def visible_end(self) -> int:
        """End of what consumers read."""
        end = self.high_watermark
        held = self._log.hold_offset
        return end if held < 0 else min(held, end)

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is synced."""
        return self._log.recovery_point

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment that takes the appends."""
        return self._log.active_base_offset

    @property
    def hold_offset(self) -> int:
        """Offset where readers of all processes stop while a staged job is being adopted; -1:
        nowhere.
        """
        return self._log.hold_offset

    # Appending.

    def append_batch(
        self, batch: bytes | bytearray | memoryview, verified: bool = False
    ) -> AppendResult:
        """Append one raw batch of format 2; see `Partition.append_batch`."""
        result = self._log.append_batch(batch, verified)
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
        transactional: bool = False,
    ) -> AppendResult:
        """Append the records of columns, in batches of at most `max.message.bytes`.

        A ColumnSet may come in place of `values`: it has the others too. `timestamp_ms` holds for
        records without a timestamp of their own; -1 is now. Should the disk fill up in the middle,
        the error's `appended_record_count` says how many records are in.
        """
        if timestamp_ms == -1:
            timestamp_ms = clock.now_ms()
        result = self._log.append_columns(
            values,
            keys,
            timestamps,
            headers,
            timestamp_ms=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
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
        result = self._log.append_accumulated(
            accumulator, producer_id, producer_epoch, base_sequence
        )
        self._appended(result)
        return result

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int | None,
        commit: bool,
        *,
        timestamp_ms: int = -1,
        newer_epoch: bool = True,
    ) -> AppendResult:
        """End a producer's transaction here with a control batch, for its coordinator.

        A coordinator with an older `coordinator_epoch` than the partition has seen of the producer
        is refused. None stands for this store's own coordinator, which writes the highest one seen.
        `newer_epoch`: the marker's epoch is above the transaction's, as transaction version 2 has
        it; else it may be the same. One that did its work before is a success without offsets (-1).
        Raises InvalidProducerEpochError, TransactionCoordinatorFencedError, StoreError: nothing was
        written.
        """
        if timestamp_ms == -1:
            timestamp_ms = clock.now_ms()
        result = self._log.append_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            commit,
            timestamp_ms=timestamp_ms,
            newer_epoch=newer_epoch,
        )
        if not result.duplicate:
            self._appended(result)
        return result

    def adopt(self, staged: memoryview, producer_id: int) -> tuple[int, int]:
        """Append those staged batches of a producer id that are not in yet: (first offset, count).

        Not synced: the caller syncs all partitions of a job together. The id does not expire before
        `release_readers`.
        """
        self.producer_state.adopting.add(producer_id)
        adopted = self._log.adopt(staged, producer_id)
        self._note_change()
        return adopted

    def adopt_file(
        self, path: Path, file_bytes: int, producer_id: int, *, checked: bool
    ) -> tuple[int, int] | None:
        """Make a staged file a segment of the log, without a copy: (first offset, count).

        None if that cannot be: call `adopt` then. `checked` as in
        `PartitionLog.adopt_file`. Not synced; the id does not expire before `release_readers`.
        """
        self.producer_state.adopting.add(producer_id)
        adopted = self._log.adopt_file(str(path), file_bytes, producer_id, checked=checked)
        self._note_change()
        return adopted

    def _appended(self, result: AppendResult) -> None:
        self.note_append()
        if self.durability == "always":
            self.make_durable(result.last_offset + 1)

    @property
    def is_plain(self) -> bool:
        """True if an append to the log is all there is to it, but for `note_append`."""
        return self.durability != "always"

    def note_append(self) -> None:
        """The log was appended to by a way around this object: its checkpoint is due some time."""
        if not self._change_noted:
            self._note_change()

    def watch_changes(self, changed: Callable[["UnifiedLog"], None] | None) -> None:
        """Call `changed(self)` with the next append; for the checkpointer, once for each call."""
        self._changed = changed
        self._change_noted = changed is None

    def _note_change(self) -> None:
        self._change_noted = True
        changed = self._changed
        if changed is not None:
            changed(self)

    def make_durable(self, offset: int) -> None:
        """Make everything below `offset` power-safe, by the process's commit journal or by the
        files; threads that wait, here or for other partitions, share one write.

        Raises StoreFailedError if the disk refuses; nothing more is appended then.
        """
        self._log.make_durable(offset)

    def sync_up_to(self, offset: int, *, in_pieces: bool = False) -> None:
        """Sync the files of everything below `offset`; threads that wait here share one sync.

        `in_pieces` is for a thread in the background: what others write to the disk then, such as
        commits, waits less for it. Raises StoreFailedError if the disk refuses; nothing more is
        appended then.
        """
        # Without index entries: they cost two more syncs, and only recovery is the faster for them.
        # The checkpointer writes them.
        self._log.sync_up_to(offset, in_pieces)

    def flush(self) -> int:
        """Make everything appended before the call power-safe; the new recovery point."""
        end = self.log_end_offset
        recovery_point = self._log.flush()
        self.flushed_up_to = max(self.flushed_up_to, end)
        return recovery_point

    # Reading.

    def read(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation_level: str = "read_uncommitted",
        *,
        compressed: bool = False,
    ) -> bytes:
        """Return whole batches as they stand in the log; see `Partition.read`. With `compressed`
        they may be compressed ones.
        """
        self._check_beginning(offset)
        committed = check_isolation_level(isolation_level) == "read_committed"
        end = self.readable_end(isolation_level)
        batches = self._log.read(offset, max_bytes, end, committed, compressed=compressed)
        self._check_beginning(offset)
        return batches

    def read_headers(
        self, offset: int, max_bytes: int = 1 << 20, isolation_level: str = "read_uncommitted"
    ) -> list[BatchHeader]:
        """The headers of what `read` gives, and those of compressed batches too."""
        return iter_batches(self.read(offset, max_bytes, isolation_level, compressed=True))

    def readable_end(self, isolation_level: str) -> int:
        """Return up to where a consumer of that isolation level reads."""
        committed = isolation_level == "read_committed"
        return self.last_stable_offset if committed else self.visible_end

    def fetch_records(
        self,
        offset: int,
        max_records: int,
        max_bytes: int,
        isolation_level: str = "read_uncommitted",
    ) -> tuple[list[Record], int]:
        """Records from `offset` on, and the offset to go on from."""
        self._check_beginning(offset)
        end = self.readable_end(isolation_level)
        committed = isolation_level == "read_committed"
        found = self._log.fetch_records(offset, max_records, max_bytes, end, committed)
        self._check_beginning(offset)
        return found

    def fetch_next(
        self, offset: int, max_records: int, max_bytes: int, committed: bool
    ) -> tuple[list[Record], int, int]:
        """Records from `offset` on, the offset to go on from, and up to where there are any."""
        if offset < self.damage.first_offset:
            self._check_beginning(offset)
        found = self._log.fetch_next(offset, max_records, max_bytes, committed)
        if offset < self.damage.first_offset:
            self._check_beginning(offset)
        return found

    def fetch_columns(
        self,
        offset: int,
        max_bytes: int,
        max_records: int = -1,
        isolation_level: str = "read_uncommitted",
        upper_bound: int = INT64_MAX,
        parts: int = ALL_PARTS,
    ) -> Columns | None:
        """Records from `offset` on, below `upper_bound`, as columns of these parts; None where
        there are none.
        """
        self._check_beginning(offset)
        end = min(self.readable_end(isolation_level), upper_bound)
        committed = isolation_level == "read_committed"
        columns = self._log.fetch_columns(offset, max_bytes, end, max_records, committed, parts)
        self._check_beginning(offset)
        return columns

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation_level: str = "read_uncommitted"
    ) -> tuple[int, int] | None:
        """Return the first record at or after a time; see `Partition.offset_for_timestamp`."""
        moment_ms = whole_number(timestamp_ms, "a timestamp")
        if not 0 <= moment_ms <= INT64_MAX:
            raise ValueError(
                f"{self.topic_partition}: timestamp_ms {moment_ms} is outside [0, {INT64_MAX}]"
            )
        end = self.readable_end(check_isolation_level(isolation_level))
        return from_what_is_left(self, 0, lambda _: self._log.offset_for_timestamp(moment_ms, end))

    def open_transactions(self) -> list[OpenTransaction]:
        """The transactions that are open here, in the order of their first offsets."""
        return self._log.open_transactions()

    def take_in_transactions(
        self, cuts: TransactionCuts, number: int, first: int, upper_bound: int
    ) -> None:
        """Have cuts take in the transactions with batches in [first, upper_bound), as those of the
        log of this number; of what retention left.
        """
        from_what_is_left(
            self,
            first,
            lambda start: self._log.take_in_transactions(cuts, number, start, upper_bound),
        )

    def first_offset_of(self, transactions: set[tuple[int, int]], upper_bound: int) -> int:
        """Return where the first of these transactions, of (producer id, epoch), begins below an
        offset; -1 if none does.
        """
        return from_what_is_left(
            self, 0, lambda start: self._log.first_offset_of(transactions, start, upper_bound)
        )

    def aborted_transactions(self, first: int, last: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with offsets from `first` to `last` (inclusive)."""
        first, last = whole_number(first, "an offset"), whole_number(last, "an offset")
        return self._log.aborted_transactions(first, min(last, INT64_MAX - 1) + 1)

    def verify(
        self,
        transactions: "TransactionFollower | None" = None,
        counted: Callable[[int], object] | None = None,
    ) -> list[dict[str, object]]:
        """Check every batch and index entry, the producers' sequences and epochs, and what memory,
        snapshots and LMDB say of them: a dict of path, position_bytes, reason per problem.

        `transactions` follows what the log has of transactions, and judges their markers. A
        producer that was silent for so long that it expires may begin again. `counted(records)` is
        called with the number of sound records, markers aside.
        """
        with named_os_errors(f"verifying {self.topic_partition}"):
            return with_compressed_as_one(
                self._log.verify(
                    transactions=transactions,
                    rows=self.producer_state.stored_rows,
                    expiration_ms=self._producer_expiration_ms,
                    counted=counted,
                )
            )

    def all_damage(self) -> list[Damage]:
        """Return the damage that was found when the partition was opened."""
        beginning = self.damage.of_beginning(self.log_start_offset)
        return self.damage.found if beginning is None else [beginning, *self.damage.found]

    def _note_restored(self) -> None:
        """Note the damage that shows once the producers are restored."""
        if self._log.attached:
            # It goes first: the start is raised, and a topic marked as deleted, before files go.
            self.damage.first_offset = self._log.first_base_offset
            self.damage.report(self.damage.of_beginning(self.log_start_offset))
        else:
            self.damage.note(self.producer_state.damage())

    def _check_beginning(self, offset: int) -> None:
        """Raise CorruptRecordError if what stands at an offset was lost from the log's beginning.

        Else the engine, which lists the files that are there, would step over it. A read calls this
        before and after: that the log is reattached within it may show the loss. An internal log is
        read from what is left of it, as when it is opened again: the error was logged.
        """
        if offset >= self.damage.first_offset:
            return
        start_offset = self.log_start_offset
        lost = self.damage.lost_range(start_offset)
        if lost is not None and offset >= lost[0] and self.topic not in INTERNAL_TOPICS:
            path = self._log.shown_path
            raise CorruptRecordError(path, 0, str(self.damage.of_beginning(start_offset)))

    # Maintenance; for the store.

    def hold_readers(self, offset: int | None = None) -> None:
        """Hide what is at or above `offset` from readers, until `release_readers`.

        Without an offset it is the log's end as it is now.
        """
        held = self._log.high_watermark if offset is None else offset
        before = self._log.hold_offset
        self._log.hold_offset = held if before < 0 else min(held, before)

    def release_readers(self) -> None:
        """Readers see everything again, and the ids of the adoption may expire."""
        with suppress(LogClosedError):  # Its topic was deleted: there are no readers.
            self._log.hold_offset = NO_HOLD
        self.producer_state.adopting.clear()
        self._signal.wake()

    def refresh(self) -> int:
        """Take in what other processes appended, as every call here does; the log's end."""
        return self._log.refresh()

    @property
    def log(self) -> PartitionLog:
        """The engine's log. Raises LogClosedError once the partition is closed."""
        log = self._log
        if isinstance(log, ClosedLog):
            log.refuse()
        return log

    def want_wakeup(self) -> int:
        """Have the next append, in any process, wake those that sleep on the store's signal; return
        the bit for which they do.

        To be called before the look at what is waited for.
        """
        return self._log.want_wakeup()

    def prepare_spare(self) -> int:
        """Fill a segment file ahead of its need; how many were made.

        None where another process is just doing it.
        """
        # The checkpointer does it too, and the engine wants one thread at a time.
        with self._spare_lock:
            try:
                with named_os_errors(f"creating {self._spare_path}"):
                    make_directories(self._spare_path)
                with directory_locked(self._spare_path, wait=False) as is_free:
                    return self._log.prepare_spare() if is_free else 0
            except FileNotFoundError:
                return 0  # The topic was deleted.

    def start_without(self, up_to_offset: int) -> int:
        """Return where the log begins without the segments that end at or below an offset."""
        return max(self._log.first_to_stay(up_to_offset), self._log.log_start_offset)

    def delete_segments(self, up_to_offset: int) -> int:
        """Delete the oldest segments that end at or below an offset; how many went. Raises as
        `delete_below`.
        """
        return self.delete_below(self.start_without(up_to_offset))

    def has_segments_below(self, offset: int) -> bool:
        """True if a segment ends at or below an offset, and is not the active one."""
        return self._log.first_to_stay(offset) > self._log.first_base_offset

    def delete_below(self, offset: int) -> int:
        """Have the log begin at an offset, or where it does if that is higher, in all processes;
        delete the segments below, and return how many went: none while a backup copies them, and
        then later.

        The start is written down first, synced: a start that readers saw is never lowered. Raises
        LogClosedError or StoreError; none went, or some of the oldest.
        """
        try:
            self.write_start(
                lambda: max(offset, self._log.log_start_offset), self.log.advance_log_start
            )
            with self._file_hold.removing() as may_remove:
                # Also what a deletion before this one left.
                start = self._log.log_start_offset
                deleted = self._log.delete_segments(start) if may_remove else 0
            if not may_remove:
                self._file_hold.left_over[self] = partial(self.delete_below, 0)
            self._reserve_start()
            return deleted
        finally:
            # The other processes have their files open too.
            self._signal.shared.raise_counter(COUNTER_NOTED)

    def roll(self) -> int:
        """Seal the active segment if it holds records; the base offset of the active one."""
        return self._log.roll()

    @property
    def cut_bytes(self) -> int:
        """Bytes that recovery cut off on opening; they are kept below `state/cut`."""
        return self._log.cut_bytes

    def close(self, clean: bool = True) -> None:
        """Close it for appends; cleanly: everything synced, files as Kafka leaves them.

        No file is held afterwards, but by a read that is under way.
        """
        self._end(lambda log: log.close(clean))

    def detach(self) -> None:
        """Let go of the log as it is: other processes go on with it. Nothing is synced by this."""
        self._end(PartitionLog.detach)

    def _end(self, end: Callable[[PartitionLog], object]) -> None:
        log = self._log
        if not isinstance(log, ClosedLog):
            end(log)
            known = {name: getattr(log, name) for name in _KNOWN_OF_CLOSED}
            self._replace_log(ClosedLog(LogClosedError(f"{self.topic_partition} is closed"), known))

    def _replace_log(self, stub: ClosedLog) -> None:
        # The last step: what an interrupt leaves undone, the next closing does.
        self.producer_state.log = cast(PartitionLog, stub)
        self._log = stub

    @property
    def deleted(self) -> bool:
        """True if its topic was deleted, by any process, as far as this one still has it."""
        return self._log.deleted

    def mark_deleted(self) -> None:
        """The topic is gone: in every process each call raises LogClosedError from now on."""
        self._log.mark_deleted()
        self._signal.wake()

    def give_up(self, error: StoreError) -> None:
        """Close it as it is; each call raises `error` from now on."""
        self.close(clean=False)
        if isinstance(self._log, ClosedLog):
            self._log.error = error

    def leave_to_parent(self) -> None:
        """The process was forked and this is the child: nothing here may touch the log."""
        error = ForkedProcessError("the store was opened before a fork: open it again in the child")
        self._replace_log(ClosedLog(error, {"kept": self._log}))


def from_what_is_left(partition: UnifiedLog, first: int, read: Callable[[int], T]) -> T:
    """Return what `read` returns for an offset, or for the log's start if that is higher.

    It is called again if retention deleted what stood there.
    """
    while True:
        offset = max(first, partition.log_start_offset)
        try:
            return read(offset)
        except OffsetOutOfRangeError:
            if partition.log_start_offset <= offset:
                raise
