"""The producers of a partition: in the engine's table, and in LMDB behind it.

Invariants: the producers of the table, with those in LMDB, are those of the log below its end. No
LMDB call is made while the engine holds the partition's lock.

The engine asks for a producer's row, or to be reattached, in the middle of a call, and goes on with
it then. Work on the table and the rows together begins again instead: what it read of either may be
too old by then.

Every process that has the partition open holds a table of its own, made from LMDB's rows and the
log, and all write the same rows: one that finds rows in LMDB which are true later than its own only
notes that. Where another process writes under an id that was evicted here, the table knows the new
part alone until the row comes back (`incomplete`).
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from eoslog.bindings.partition_log import (
    PRODUCER_ROW_BYTES,
    PartitionLog,
    ProducerState,
    empty_row,
    row_state,
)
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    FellBehindError,
    LogClosedError,
    OffsetOutOfRangeError,
    StoreError,
    StoreFailedError,
    StoreFullError,
)
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.damage import Damage, lost_producers
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN
from eoslog.storage.producer_state_store import ProducerStateStore, RowsHead, StateStoreDamagedError

ROWS_PER_LOOK = 10_000
_log = logging.getLogger(__name__)
_ROWS_LOST = -2  # A generation that the rows never have.

_Result = TypeVar("_Result")


class PartitionProducers:
    """Producers that a partition knows; `Partition` is made on top of it."""

    def __init__(
        self, log: PartitionLog, topic_id: str, rows: ProducerStateStore, *, shared: bool = False
    ) -> None:
        self.topic_partition = TopicPartition(log.topic, log.partition)
        self.topic_id = topic_id
        self._log = log
        self._rows = rows
        self._shared = shared  # Other processes may have the partition open too.
        # Held by work on the table and the rows together; it keeps out an eviction.
        self._checkpoint_lock = ThreadLock()
        self._adopting: set[int] = set()
        self._restored_from = ""
        self.damage: list[Damage] = []
        self._rows_generation = -1
        self._tried: RowsHead | None = None  # The rows that the last restoring began with.
        self._persisted_offset = -1
        self._loaded_offset = 0
        # Of producers in LMDB alone: before which time they had expired, and which ids had not.
        self._expired_at_load: tuple[int, frozenset[int]] | None = None
        # Ids that were dropped without a look at LMDB since rows were written, and the log's end
        # then: another process may put in a row of below that yet.
        self._dropped: dict[int, int] = {}
        self._cached_max = 0
        log.set_callbacks(self._install, self._reattach_asked)

    @property
    def topic(self) -> str:
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        return self.topic_partition.partition

    @property
    def restored_from(self) -> str:
        """Source of the producers on opening: "rows", "snapshot" or "log"."""
        return self._restored_from

    def producer(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer id, from memory or from LMDB; None if there is none."""
        # Looked at twice: while another thread reattaches the log there are none.
        evicted = self._log.evicted_producer_count
        state = self._log.producer(producer_id)
        if not (evicted or self._log.evicted_producer_count):
            return state
        return self._with_rows(lambda: self._evicted_producer(producer_id))

    def _evicted_producer(self, producer_id: int) -> ProducerState | None:
        """The caller holds the lock, as a producer may be evicted."""
        if producer_id in self._log.incomplete_producer_ids():
            self._check_rows_whole()
            self._install_from_rows(producer_id)
        state = self._log.producer(producer_id)
        if state is not None:
            return state
        row = self._read_row(producer_id)
        return None if row is None else row_state(row)

    def producers(self) -> list[ProducerState]:
        """Return what the partition knows of every producer, ordered by id."""
        self.complete_producers()
        states = {state.producer_id: state for state in self._log.producers()}
        if self._log.evicted_producer_count:
            for producer_id, row in self._all_rows():
                if not self._had_expired(row):
                    states.setdefault(producer_id, row_state(row))
        return [states[producer_id] for producer_id in sorted(states)]

    def highest_producer_id(self, upper_bound: int) -> int:
        """The highest producer id in memory below a bound, -1 if there is none."""
        return self._log.highest_producer_id(upper_bound)

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
        with self._checkpoint_lock:
            return self._restore(cached_max)

    def _restore(self, cached_max: int) -> str:
        self._cached_max = cached_max
        self._tried = None
        self._dropped.clear()  # They come back.
        while True:
            try:
                self._restored_from = self._restored(cached_max)
            except (FellBehindError, OffsetOutOfRangeError, FileNotFoundError):
                # The last: a snapshot that went with its segment between the look and the reading.
                if not self._log.attached:
                    raise
                # Another process deleted segments meanwhile; it stored what they said before.
                self._log.reattach()
                self._persisted_offset = -1
            else:
                self._loaded_offset = self._told_up_to()
                self._look_for_lost_producers()
                return self._restored_from

    def _told_up_to(self) -> int:
        """Offset up to which the rows or the snapshot tell of the producers; what follows was
        replayed.
        """
        if self._restored_from == "rows":
            return self._persisted_offset
        if self._restored_from == "log":
            return 0
        return max(
            (one for one in self._log.snapshots() if one <= self._log.log_end_offset), default=0
        )

    def _look_for_lost_producers(self) -> None:
        """Note the damage if both copies of the producers of deleted segments are gone."""
        first = self._log.first_base_offset
        if self._log.attached or first == 0 or self.topic == TRANSACTION_STATE_TOPIC:
            return  # Whoever opened the log looked; or there are no producers.
        from_rows = self._restored_from == "rows" and self._persisted_offset >= first
        if not from_rows and self._restored_from != "snapshot":
            self._note(lost_producers(self._log.path, first))

    def _note(self, damage: Damage | None) -> None:
        if damage is not None:
            self.damage.append(damage)
            _log.error("%s: %s", self.topic_partition, damage)

    def _restored(self, cached_max: int) -> str:
        try:
            self._rows_generation = self._rows.generation
            return self._restore_from_rows(cached_max)
        except StateStoreDamagedError:
            # It was begun anew, empty; the log has all that it held.
            self._rows_generation = self._rows.generation
            return self._log.restore_producers(None, 0)

    def take_up_anew(self) -> None:
        """Attach again to what is there, where another process deleted segments before this one had
        looked at them. The caller holds no lock of this partition.
        """
        with self._checkpoint_lock:
            if self._log.fell_behind:  # Else another thread has done it.
                self._log.reattach()
                self._persisted_offset = -1
                self._restore(self._cached_max)

    def _reattach_asked(self) -> None:
        """The engine asks to be reattached. Raises FellBehindError in work that begins again."""
        if self._checkpoint_lock.held_here():
            raise FellBehindError(f"{self.topic_partition} has to be reattached")
        self.take_up_anew()

    def _with_rows(self, work: Callable[[], _Result]) -> _Result:
        """Do work on the table and the rows together; from the beginning if the log has to be
        reattached in between.
        """
        while True:
            try:
                with self._checkpoint_lock:
                    return work()
            except FellBehindError:
                self.take_up_anew()

    def _restore_from_rows(self, cached_max: int) -> str:
        while True:
            head = self._rows.read_head(self.topic_id, self.partition)
            if head is None or head.offset > self._log.log_end_offset or self._is_outlived(head):
                self._drop_untrue_rows(head)
                return self._log.restore_producers(None, 0)
            if head == self._tried:
                # Too old, and no newer ones were stored: what was deleted had no producers.
                return self._log.restore_producers(None, 0)
            needed = None
            if head.row_count > cached_max:
                needed = self._log.producer_ids_since(head.offset)
            # An open transaction bounds what readers see: its producer comes too.
            found = self._rows.read_rows(self.topic_id, self.partition, head, needed)
            if found is not None:
                break
        evicted_count = max(0, head.row_count - len(found.rows))
        self._persisted_offset = head.offset
        self._tried = head
        return self._log.restore_producers(
            b"".join(found.rows), head.offset, evicted_count, found.abort_files
        )

    def _is_outlived(self, head: RowsHead) -> bool:
        """True if rows are older than the deletion of segments, and a snapshot tells what they do
        not. A process that deletes segments with producers stores both before: the rows are an
        earlier copy of LMDB's, or there were none.
        """
        first, end = self._log.first_base_offset, self._log.log_end_offset
        if self._log.attached or head.offset >= first:
            return False
        outlived = any(first <= offset <= end for offset in self._log.snapshots())
        if outlived:
            _log.info(
                "%s begins at offset %d, and LMDB's rows of its producers are of offset %d, from "
                "before the segments below were deleted: a snapshot serves in their place",
                self.topic_partition,
                first,
                head.offset,
            )
        return outlived

    def _drop_untrue_rows(self, head: RowsHead | None) -> None:
        """Drop the rows if there is no head, or the log lost an unsynced tail that they know of:
        they must go before an append gives those offsets out again.
        """
        if self._log.attached:
            return  # Whoever opened the log saw to it.
        if head is not None or self._rows.rows_after(self.topic_id, self.partition, 0, 1):
            self._rows.delete_partition(self.topic_id, self.partition)

    def persist_producers(self, cached_max: int, *, behind_max: int = 0) -> None:
        """Write changed rows to LMDB, synced, and drop idle producers from memory beyond the limit.

        Where another process wrote rows that are true at most `behind_max` records before the log's
        end, that is enough. Raises StoreFullError if there is no room; everything is then as it
        was.
        """
        self._with_rows(lambda: self._persist(cached_max, behind_max))

    def _persist(self, cached_max: int, behind_max: int) -> None:
        if self._rows_generation != self._rows.generation:
            return  # LMDB was lost while this partition was open: its rows are no longer whole.
        self._write_changed_rows(behind_max)
        if self._log.producer_count > cached_max:
            self._log.evict_producers(cached_max)

    def _store_abort_files(self) -> None:
        try:
            with named_os_errors(f"syncing the aborted transactions of {self.topic_partition}"):
                self._log.store_abort_files(True)
        except StoreError as error:
            if not self._log.deleted:
                raise
            raise LogClosedError(f"{self.topic_partition} was deleted") from error

    def _write_changed_rows(self, behind_max: int = 0) -> None:
        if self._shared and self._learn_of_rows(behind_max):
            return
        rows, offset = self._changed_rows()
        if not rows and offset == self._persisted_offset:
            return
        # The replay that follows an opening begins at the rows' offset: what was aborted below must
        # be in the files by then.
        self._store_abort_files()
        try:
            true_at = self._rows.write_rows(
                self.topic_id,
                self.partition,
                rows,
                PRODUCER_ROW_BYTES,
                offset,
                self._log.abort_files(),
                since=self._persisted_offset,
                dropped=self._dropped,
            )
        except StateStoreDamagedError:
            self._rows_generation = _ROWS_LOST
            if self._log.deleted:
                raise LogClosedError(f"{self.topic_partition} was deleted") from None
            raise
        self._note_persisted(true_at)

    def _changed_rows(self) -> tuple[bytes, int]:
        """The whole rows of all producers that changed since they were stored, and at which offset
        that is true.
        """
        while True:
            self._complete_rows()
            rows, offset = self._log.dirty_producers()
            # What another process appended meanwhile may have brought one half of a producer back.
            if not self._is_incomplete():
                return rows, offset

    def _learn_of_rows(self, behind_max: int) -> bool:
        """Note what another process stored; whether that is enough."""
        head = self._rows.read_head(self.topic_id, self.partition)
        if head is None or head.offset <= self._persisted_offset:
            return False
        end = self._note_persisted(head.offset)
        return end - head.offset <= behind_max and behind_max > 0

    def _note_persisted(self, offset: int) -> int:
        """LMDB's rows are true at an offset; the log's end."""
        # Asked first: whoever stored rows knew of the log up to there.
        end = self._log.log_end_offset
        self._log.producers_persisted(offset)
        self._persisted_offset = offset
        if self._dropped:
            self._dropped = {one: at for one, at in self._dropped.items() if at > offset}
        return end

    @property
    def persisted_offset(self) -> int:
        """Offset up to which LMDB's rows are true; -1 if it has none."""
        return self._persisted_offset

    def expire_producers(
        self, oldest_timestamp_ms: int, find_exempt: Callable[[], frozenset[int]]
    ) -> int:
        """Forget producers last seen before a time, in memory and in LMDB; how many.

        `find_exempt` is asked for the ids that stay after the idle ones were found, so that one
        who just began to write with old timestamps is among them.
        """
        expired = set(self._log.expired_producers(oldest_timestamp_ms))
        if not expired and not self._log.evicted_producer_count:
            return 0
        exempt = find_exempt() | self._adopting
        evicted = set()
        if self._log.evicted_producer_count:
            for producer_id, row in self._all_rows():
                state = row_state(row)
                idle = state.last_timestamp < oldest_timestamp_ms
                if idle and state.current_txn_first_offset < 0 and producer_id not in exempt:
                    evicted.add(producer_id)
        return self._forget(expired - exempt, oldest_timestamp_ms, evicted)

    def forget_expired_at_load(
        self, oldest_timestamp_ms: int, find_exempt: Callable[[], frozenset[int]]
    ) -> int:
        """Forget the producers that had expired when they were loaded, just now; how many.

        As in Kafka one whose batches were replayed stays until `expire_producers`: it may have
        written them, with old timestamps, just before a crash. Those in LMDB alone are taken for
        forgotten from now on. Ids of staged jobs stay: which of these are complete the jobs say.
        """
        found = {
            one
            for one in self._log.expired_producers(oldest_timestamp_ms)
            if self._is_of_before(self._log.producer(one))
        }
        evicted_count = self._log.evicted_producer_count
        if not found and not evicted_count:
            return 0
        exempt = find_exempt()
        if evicted_count:
            self._expired_at_load = (oldest_timestamp_ms, exempt)
        return self.forget_producers(found - exempt, oldest_timestamp_ms)

    def _is_of_before(self, state: ProducerState | None) -> bool:
        """True if a producer wrote nothing that was replayed, nor anything since."""
        return (
            state is not None
            and state.last_offset < self._loaded_offset
            and state.producer_id < STAGED_PRODUCER_ID_MIN
        )

    def _had_expired(self, row: bytes) -> bool:
        """True if it is the row of a producer that had expired when the partition was opened."""
        if self._expired_at_load is None:
            return False
        oldest_timestamp_ms, exempt = self._expired_at_load
        state = row_state(row)
        return (
            state.last_timestamp < oldest_timestamp_ms
            and state.current_txn_first_offset < 0
            and self._is_of_before(state)
            and state.producer_id not in exempt
        )

    def _read_row(self, producer_id: int) -> bytes | None:
        row = self._rows.read_row(self.topic_id, self.partition, producer_id)
        return None if row is None or self._had_expired(row) else row

    def forget_producers(
        self, producer_ids: Iterable[int], oldest_timestamp_ms: int | None = None
    ) -> int:
        """Drop producers that will never append again, in memory and in LMDB; how many.

        With a time, those that were seen since, as is found out under the log's lock, stay.
        """
        return self._forget(set(producer_ids), oldest_timestamp_ms, set())

    def _forget(
        self, producer_ids: set[int], oldest_timestamp_ms: int | None, evicted: set[int]
    ) -> int:
        """Forget producers, and those of LMDB alone that may have come back meanwhile."""
        if not producer_ids and not evicted:
            return 0
        return self._with_rows(
            lambda: self._drop_with_rows(producer_ids, oldest_timestamp_ms, evicted)
        )

    def _drop_with_rows(
        self, producer_ids: set[int], oldest_timestamp_ms: int | None, evicted: set[int]
    ) -> int:
        gone = set(producer_ids)
        for producer_id in evicted:
            if self._log.producer(producer_id) is None:
                row = self._rows.read_row(self.topic_id, self.partition, producer_id)
                if row is not None:
                    self._install_row(row)
                    gone.add(producer_id)
        if not gone:
            return 0
        if self._rows_generation == self._rows.generation:
            # First the rows as of now. A replay from older ones, without this producer's, would
            # meet the end of a transaction whose beginning it does not know.
            self._write_changed_rows()
        gone -= set(self._log.drop_producers(gone, oldest_timestamp_ms))
        # A row that another process wrote since then stays: its producer is in use.
        known_to = self._persisted_offset if self._shared else None
        self._rows.delete_producers(self.topic_id, self.partition, gone, changed_up_to=known_to)
        return len(gone)

    def forget_adopted(self, producer_ids: Iterable[int]) -> None:
        """Drop producers that will never append again, and never had a transaction.

        Those without a row in LMDB, as most that are so young, cost no write there: after a crash a
        replay from the rows as they are brings them back, and they expire. Another process may have
        gathered rows before the last of their batches, and write them only now. They are true at
        the offset that it writes; the next rows from here, which are true at a later one, take them
        away.
        """
        gone = set(producer_ids)
        self.forget_producers(self._with_rows(lambda: self._drop_without_row(gone)))

    def _drop_without_row(self, gone: set[int]) -> frozenset[int]:
        """Drop those of the producers that have no row in LMDB, and return the others."""
        with_row = self._rows.having_row(self.topic_id, self.partition, gone)
        end = self._log.log_end_offset
        self._log.drop_producers(gone - with_row)
        if self._shared and self._rows_generation == self._rows.generation:
            self._dropped.update(dict.fromkeys(gone - with_row, end))
        return with_row

    def write_down_producers(self, cached_max: int) -> None:
        """Save all producers twice, synced, as rows and as a snapshot: before segments go."""
        self._take_complete_snapshot()
        self.persist_producers(cached_max)

    def write_down_what_fits(self, cached_max: int) -> int | None:
        """Write the producers down like `write_down_producers`, and return None. Where the disk is
        full, return up to where one of the two copies tells of all producers, whole and synced: up
        to there segments may go, for the room.

        Raises StoreFullError if no segment ends at or below that.
        """
        told_up_to = -1
        try:
            told_up_to = self._take_complete_snapshot()
            self.persist_producers(cached_max)
        except StoreFullError:
            if self._rows_generation == self._rows.generation:
                told_up_to = max(told_up_to, self._persisted_offset)
            if told_up_to <= self._log.first_base_offset:
                raise
            return told_up_to
        return None

    def keep_both_copies(self, cached_max: int) -> None:
        """See that two copies tell of producers whose batches were deleted: rows and a snapshot.

        Retention wrote both; the one that was lost is written anew. Called on opening, so that both
        are lost only if both go before the next one. Raises StoreError if there is no room.
        """
        start = self._log.log_start_offset
        if self._log.attached or start == 0 or self.topic == TRANSACTION_STATE_TOPIC:
            return  # Whoever opened the log saw to it; or there are no producers.
        if not any(offset >= start for offset in self._log.snapshots()):
            self._take_complete_snapshot()
        if self._restored_from == "snapshot":
            self.persist_producers(cached_max)

    def _take_complete_snapshot(self) -> int:
        """Take a snapshot at the log's end and return its offset; -1 if the log is empty."""
        return self._with_rows(self._snapshot_with_rows)

    def _snapshot_with_rows(self) -> int:
        evicted = b""
        if self._log.evicted_producer_count:
            self._check_rows_whole()
            self._complete_rows()
            evicted = b"".join(row for _, row in self._all_rows())
        with named_os_errors(f"a snapshot of {self.topic_partition}"):
            taken = self._log.take_snapshot(True, evicted, again=True)
        return -1 if taken is None else int(Path(taken).stem)

    def hold_producer(self, producer_id: int) -> None:
        """See that the producer is in memory, if anything is known of it."""
        if self._log.evicted_producer_count and (
            self._log.producer(producer_id) is None
            or producer_id in self._log.incomplete_producer_ids()
        ):
            self._install(producer_id)

    def complete_producers(self) -> None:
        """Bring back the rows of evicted producers under whose ids other processes wrote."""
        if self._is_incomplete():
            self._check_rows_whole()
            self._with_rows(self._complete_rows)

    def _is_incomplete(self) -> bool:
        return bool(self._log.evicted_producer_count and self._log.incomplete_producer_ids())

    def _complete_rows(self) -> None:
        """The caller holds the lock that keeps out an eviction."""
        if self._log.evicted_producer_count:
            for producer_id in self._log.incomplete_producer_ids():
                self._install_from_rows(producer_id)

    def _install(self, producer_id: int) -> None:
        """Bring a producer that may have been evicted back into memory."""
        self._check_rows_whole()
        # With the lock, the row read here is the newest one of this process.
        self._with_rows(lambda: self._install_from_rows(producer_id))

    def _install_from_rows(self, producer_id: int) -> None:
        row = self._read_row(producer_id)
        if row is None:
            self._log.install_producer(empty_row(producer_id), was_evicted=False)
        else:
            self._install_row(row)

    def _install_row(self, row: bytes) -> None:
        # The row may be one that another process wrote, of a producer that was never evicted here.
        # So the count is kept from sinking to 0 while others may be left.
        counted = not self._shared or self._log.evicted_producer_count > 1
        self._log.install_producer(row, was_evicted=counted)

    def _check_rows_whole(self) -> None:
        if self._rows_generation != self._rows.generation:
            raise StoreFailedError(
                f"{self.topic_partition}: the rows of idle producers were lost while the store was "
                "open; reopen it, and they come from the log"
            )

    def stored_rows(self) -> tuple[str, Iterable[bytes], int] | None:
        """Return the path of LMDB, its rows, and the offset below which they tell of all batches;
        None if there are none, or they were lost meanwhile.
        """
        try:
            head = self._rows.read_head(self.topic_id, self.partition)
        except StateStoreDamagedError:
            return None
        if head is None:
            return None
        return str(self._rows.path), self._rows_until_lost(), head.offset

    def _rows_until_lost(self) -> Iterable[bytes]:
        with suppress(StateStoreDamagedError):
            for _, row in self._all_rows():
                yield row

    def _all_rows(self) -> Iterable[tuple[int, bytes]]:
        next_id = 0
        while True:
            rows = self._rows.rows_after(self.topic_id, self.partition, next_id, ROWS_PER_LOOK)
            yield from rows
            if len(rows) < ROWS_PER_LOOK:
                return
            next_id = rows[-1][0] + 1
