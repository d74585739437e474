"""The producers of a partition: in the engine's table, and as rows in LMDB.

Invariants: the producers of the table, with those in LMDB, are those of the log below its end. No
LMDB call is made while the engine holds the partition's lock.

The engine asks for a producer's row, or to be reattached, in the middle of a call, and then goes on
with it. Work on the table and the rows together begins again instead: what it read of either may be
too old by then.

Every process that has the partition open holds a table of its own, made from LMDB's rows and the
log, and all write the same rows: one that finds newer rows in LMDB than its own only notes that.
Where another process writes under an id that was evicted here, the table has only what is new until
the row is loaded (`incomplete`).
"""

import logging
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from eoslog.bindings.partition_log import (
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
from eoslog.storage.lmdb_environment import StateStoreDamagedError
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN
from eoslog.storage.producer_rows import ProducerRows, RowsHead

ROWS_PER_LOOK = 10_000
_log = logging.getLogger(__name__)
_ROWS_LOST = -2  # A generation that the rows never have.

_Result = TypeVar("_Result")


class PartitionProducers:
    """Producers of one partition, at most `cached_max` of them in memory once they are stored."""

    def __init__(
        self,
        log: PartitionLog,
        topic_partition: TopicPartition,
        rows: ProducerRows,
        cached_max: int,
        may_follow: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`may_follow`, if the store is only read: `PartitionLog.set_callbacks` has it."""
        self.log = log  # A stub once the partition is closed.
        self.cached_max = cached_max
        # Called each time after the table was filled, with the lock held.
        self.on_restored: Callable[[], None]
        self.adopting: set[int] = set()  # Ids that do not expire, as their batches are adopted.
        self.restored_from = ""  # Source of the table: "rows", "snapshot" or "log".
        self.persisted_offset = -1  # Offset up to which LMDB's rows are true; -1 if it has none.
        self._topic_partition = topic_partition
        self.rows = rows
        # Held by work on the table and the rows together; it keeps out an eviction.
        self._lock = ThreadLock()
        self._rows_generation = -1
        self._tried: RowsHead | None = None  # The rows that the last restoring began with.
        self._loaded_offset = 0
        # Of producers in LMDB alone: before which time they had expired, and which ids had not.
        self._expired_at_load: tuple[int, Container[int]] | None = None
        # Ids that were dropped without a look at LMDB since rows were written, and the log's end
        # then: another process may still write a row that is true below that.
        self._dropped: dict[int, int] = {}
        log.set_callbacks(self._load, self.reattach, may_follow)

    def producer(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer id, from memory or from LMDB; None if there is none."""
        # Read twice: while another thread reattaches the log there are none.
        evicted = self.log.evicted_producer_count
        state = self.log.producer(producer_id)
        if not (evicted or self.log.evicted_producer_count):
            return state
        return self._with_rows(lambda: self._evicted_producer(producer_id))

    def _evicted_producer(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer that may be evicted. The caller holds the lock."""
        if producer_id in self.log.incomplete_producer_ids():
            self._check_rows_whole()
            self._install_from_rows(producer_id)
        state = self.log.producer(producer_id)
        if state is not None:
            return state
        row = self._read_row(producer_id)
        return None if row is None else row_state(row)

    def producers(self) -> list[ProducerState]:
        """Return the states of all producers, ordered by id."""
        self.load_incomplete()
        states = {state.producer_id: state for state in self.log.producers()}
        if self.log.evicted_producer_count:
            for producer_id, row in self._all_rows():
                if not self._had_expired(row):
                    states.setdefault(producer_id, row_state(row))
        return [states[producer_id] for producer_id in sorted(states)]

    def restore(self) -> None:
        """Fill the producer table after opening: from LMDB's rows, a snapshot or the log.

        Rows of which only some fit into `cached_max` stay in LMDB, but for those that the log's
        tail, which is replayed, needs.
        """
        with self._lock:
            self._restore()

    def _restore(self) -> None:
        self._tried = None
        self._dropped.clear()  # They come back.
        while True:
            try:
                self.restored_from = self._restore_table()
                self._loaded_offset = self._replayed_from()
                self.on_restored()
            except (FellBehindError, OffsetOutOfRangeError, FileNotFoundError):
                # The last: a snapshot that went with its segment between the look and the reading.
                if not self.log.attached:
                    raise
                # Another process deleted segments; first it stored what they held.
                self.log.reattach()
                self.rows.environment.renew()
                self.persisted_offset = -1
            else:
                return

    def _replayed_from(self) -> int:
        """Return the offset up to which the rows or the snapshot have the producers."""
        if self.restored_from == "rows":
            return self.persisted_offset
        if self.restored_from == "log":
            return 0
        return max(
            (one for one in self.log.snapshots() if one <= self.log.log_end_offset), default=0
        )

    def damage(self) -> Damage | None:
        """Return the damage if both copies of the producers of deleted segments are gone."""
        first = self.log.first_base_offset
        if (
            self.log.attached
            or first == 0
            or self._topic_partition.topic == TRANSACTION_STATE_TOPIC
        ):
            return None  # The process that opened the log has looked; or there are no producers.
        from_rows = self.restored_from == "rows" and self.persisted_offset >= first
        if from_rows or self.restored_from == "snapshot":
            return None
        return lost_producers(self.log.path, first)

    def _restore_table(self) -> str:
        try:
            self._rows_generation = self.rows.environment.generation
            return self._restore_from_rows()
        except StateStoreDamagedError:
            # It was re-created, empty; the log has all that it held.
            self._rows_generation = self.rows.environment.generation
            return self.log.restore_producers(None, 0)

    def reattach(self) -> None:
        """Attach again if another process deleted segments that this one had not read. Raises
        FellBehindError within work that has to begin again then.
        """
        if self._lock.held_here():
            raise FellBehindError(f"{self._topic_partition} has to be reattached")
        with self._lock:
            if self.log.fell_behind:  # Else another thread has done it.
                self.log.reattach()
                self.rows.environment.renew()
                self.persisted_offset = -1
                self._restore()

    def _with_rows(self, work: Callable[[], _Result]) -> _Result:
        """Do work on the table and the rows together; from the beginning if the log has to be
        reattached in between.
        """
        while True:
            try:
                with self._lock:
                    return work()
            except FellBehindError:
                self.reattach()

    def _restore_from_rows(self) -> str:
        while True:
            head = self.rows.read_head()
            if head is None or head.offset > self.log.log_end_offset or self._is_outlived(head):
                self._drop_untrue_rows(head)
                return self.log.restore_producers(None, 0)
            if head == self._tried:
                # Too old, and no newer ones were stored: what was deleted had no producers.
                return self.log.restore_producers(None, 0)
            needed = None
            # Below the log's start no batch can be looked for, but is replayed.
            if head.row_count > self.cached_max and head.offset >= self.log.log_start_offset:
                needed = self.log.producer_ids_since(head.offset)
            # An open transaction bounds what readers see: its producer comes too.
            found = self.rows.read_rows(head, needed)
            if found is not None:
                break
        evicted_count = max(0, head.row_count - len(found.rows))
        self.persisted_offset = head.offset
        self._tried = head
        return self.log.restore_producers(
            b"".join(found.rows), head.offset, evicted_count, found.abort_files
        )

    def _is_outlived(self, head: RowsHead) -> bool:
        """True if rows are older than the deletion of segments, and a snapshot has the producers
        that they lack. A process stores both before it deletes segments: the rows are from an
        earlier copy of LMDB, or there were none.
        """
        first, end = self.log.first_base_offset, self.log.log_end_offset
        if self.log.attached or head.offset >= first:
            return False
        outlived = any(first <= offset <= end for offset in self.log.snapshots())
        if outlived:
            _log.info(
                "%s begins at offset %d, and LMDB's rows of its producers are of offset %d, from "
                "before the segments below were deleted: a snapshot is used instead",
                self._topic_partition,
                first,
                head.offset,
            )
        return outlived

    def _drop_untrue_rows(self, head: RowsHead | None) -> None:
        """Drop the rows if there is no head, or the log lost an unsynced tail that they include:
        they must go before an append assigns those offsets again.
        """
        if self.log.attached:
            return  # The process that opened the log has done it.
        if head is not None or self.rows.rows_after(0, 1):
            self.rows.delete_all()

    def persist(self, *, behind_max: int = 0) -> None:
        """Write changed rows to LMDB, synced, and evict idle producers until `cached_max` are left.

        Where another process wrote rows that are true at most `behind_max` records before the log's
        end, that is enough. Raises StoreFullError if there is no room; everything is then as it
        was.
        """
        self._with_rows(lambda: self._persist(behind_max))

    def _persist(self, behind_max: int) -> None:
        if self._rows_generation != self.rows.environment.generation:
            return  # LMDB was lost while this partition was open: its rows are no longer whole.
        self._write_changed_rows(behind_max)
        if self.log.producer_count > self.cached_max:
            self.log.evict_producers(self.cached_max)

    def store_abort_files(self) -> None:
        """Write and sync the index of aborted transactions."""
        try:
            with named_os_errors(f"syncing the aborted transactions of {self._topic_partition}"):
                self.log.store_abort_files(True)
        except StoreError as error:
            if not self.log.deleted:
                raise
            raise LogClosedError(f"{self._topic_partition} was deleted") from error

    def _write_changed_rows(self, behind_max: int = 0) -> None:
        if self._note_newer_rows(behind_max):
            return
        rows, offset = self._changed_rows()
        if not rows and offset == self.persisted_offset:
            return
        # The replay of the next opening begins at the rows' offset: what was aborted below must be
        # in the files by then.
        self.store_abort_files()
        try:
            true_at = self.rows.write_rows(
                rows,
                offset,
                self.log.abort_files(),
                since=self.persisted_offset,
                dropped=self._dropped,
            )
        except StateStoreDamagedError:
            self._rows_generation = _ROWS_LOST
            if self.log.deleted:
                raise LogClosedError(f"{self._topic_partition} was deleted") from None
            raise
        self._note_persisted(true_at)

    def _changed_rows(self) -> tuple[bytes, int]:
        """Return the whole rows of all producers that changed since they were stored, and the
        offset at which that is true.
        """
        while True:
            self._complete_rows()
            rows, offset = self.log.dirty_producers()
            # What another process appended since may have put a part of a producer in memory.
            if not self._is_incomplete():
                return rows, offset

    def _note_newer_rows(self, behind_max: int) -> bool:
        """Note what another process stored, and return True if that is enough."""
        head = self.rows.read_head()
        if head is None or head.offset <= self.persisted_offset:
            return False
        end = self._note_persisted(head.offset)
        return end - head.offset <= behind_max and behind_max > 0

    def _note_persisted(self, offset: int) -> int:
        """Note that LMDB's rows are true at an offset, and return the log's end."""
        # First: the process that stored the rows had read the log up to there.
        end = self.log.log_end_offset
        self.log.producers_persisted(offset)
        self.persisted_offset = offset
        if self._dropped:
            self._dropped = {one: at for one, at in self._dropped.items() if at > offset}
        return end

    def expire(self, oldest_timestamp_ms: int, find_exempt: Callable[[], Container[int]]) -> int:
        """Forget producers last seen before a time, in memory and in LMDB, and return how many.

        `find_exempt` returns the ids that stay. It is called after the idle ones were found, so
        that one that just began to write with old timestamps is among them.
        """
        expired = set(self.log.expired_producers(oldest_timestamp_ms))
        evicted = set()
        if self.log.evicted_producer_count:
            for producer_id, row in self._all_rows():
                state = row_state(row)
                idle = state.last_timestamp < oldest_timestamp_ms
                if idle and state.current_txn_first_offset < 0:
                    evicted.add(producer_id)
        if not expired and not evicted:
            return 0
        exempt = find_exempt()
        stay = {one for one in expired | evicted if one in exempt} | self.adopting
        return self._forget(expired - stay, oldest_timestamp_ms, evicted - stay)

    def forget_expired_at_load(
        self, oldest_timestamp_ms: int, find_exempt: Callable[[], Container[int]]
    ) -> int:
        """Forget the producers that had expired when they were loaded, just now, and return how
        many.

        As in Kafka one whose batches were replayed stays until `expire`: it may have written them,
        with old timestamps, just before a crash. Those in LMDB alone count as forgotten from now
        on. Ids of staged jobs stay: their jobs know which of these are complete.
        """
        found = {
            one
            for one in self.log.expired_producers(oldest_timestamp_ms)
            if self._wrote_only_before(self.log.producer(one))
        }
        evicted_count = self.log.evicted_producer_count
        if not found and not evicted_count:
            return 0
        exempt = find_exempt()
        if evicted_count:
            self._expired_at_load = (oldest_timestamp_ms, exempt)
        return self.forget((one for one in found if one not in exempt), oldest_timestamp_ms)

    def _wrote_only_before(self, state: ProducerState | None) -> bool:
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
            and self._wrote_only_before(state)
            and state.producer_id not in exempt
        )

    def _read_row(self, producer_id: int) -> bytes | None:
        row = self.rows.read_row(producer_id)
        return None if row is None or self._had_expired(row) else row

    def forget(self, producer_ids: Iterable[int], oldest_timestamp_ms: int | None = None) -> int:
        """Drop producers that will never append again, in memory and in LMDB, and return how many.

        With a time, those that were seen since stay; the log's lock is held for that look.
        """
        return self._forget(set(producer_ids), oldest_timestamp_ms, set())

    def _forget(
        self, producer_ids: set[int], oldest_timestamp_ms: int | None, evicted: set[int]
    ) -> int:
        """Forget producers, and `evicted` ones, which may have been loaded since."""
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
            if self.log.producer(producer_id) is None:
                row = self.rows.read_row(producer_id)
                if row is not None:
                    self._install_row(row)
                    gone.add(producer_id)
        if not gone:
            return 0
        if self._rows_generation == self.rows.environment.generation:
            # First the rows as of now. A replay from older ones, without this producer's, would
            # read the end of a transaction without its beginning.
            self._write_changed_rows()
        gone -= set(self.log.drop_producers(gone, oldest_timestamp_ms))
        # A row that another process wrote since then stays: its producer is in use.
        self.rows.delete_producers(gone, changed_up_to=self.persisted_offset)
        return len(gone)

    def forget_adopted(self, producer_ids: Iterable[int]) -> None:
        """Drop producers that will never append again, and never had a transaction.

        Those without a row in LMDB, as most that are so young, cost no write there: after a crash a
        replay from the rows as they are brings them back, and they expire. Another process may have
        gathered rows before the last of their batches, and write them only now. They are true at
        the offset that it writes; the next rows from here, which are true at a later one, remove
        them.
        """
        gone = set(producer_ids)
        self.forget(self._with_rows(lambda: self._drop_without_row(gone)))

    def _drop_without_row(self, gone: set[int]) -> frozenset[int]:
        """Drop those of the producers that have no row in LMDB, and return the others."""
        with_row = self.rows.having_row(gone)
        end = self.log.log_end_offset
        self.log.drop_producers(gone - with_row)
        if self._rows_generation == self.rows.environment.generation:
            self._dropped.update(dict.fromkeys(gone - with_row, end))
        return with_row

    def save_copies(self) -> None:
        """Save all producers twice, synced, as rows and as a snapshot: before a deletion."""
        self.take_complete_snapshot()
        self.persist()

    def save_copies_that_fit(self) -> int | None:
        """Save the producers like `save_copies`, and return None. Where the disk is full, return
        the offset up to which one of the two copies has all producers, whole and synced: up to
        there segments may be deleted, which makes room.

        Raises StoreFullError if no segment ends at or below that.
        """
        saved_up_to = -1
        try:
            saved_up_to = self.take_complete_snapshot()
            self.persist()
        except StoreFullError:
            if self._rows_generation == self.rows.environment.generation:
                saved_up_to = max(saved_up_to, self.persisted_offset)
            if saved_up_to <= self.log.first_base_offset:
                raise
            return saved_up_to
        return None

    def save_lost_copy(self) -> None:
        """Save again the rows or the snapshot with the producers of deleted segments, if one of
        them was lost.

        Called on opening, so that both are lost only if both go before the next one. Raises
        StoreError if there is no room.
        """
        start = self.log.log_start_offset
        if (
            self.log.attached
            or start == 0
            or self._topic_partition.topic == TRANSACTION_STATE_TOPIC
        ):
            return  # The process that opened the log has done it; or there are no producers.
        if not any(offset >= start for offset in self.log.snapshots()):
            self.take_complete_snapshot()
        if self.restored_from == "snapshot":
            self.persist()

    def take_complete_snapshot(self, *, sync: bool = True) -> int:
        """Take a snapshot of all producers at the log's end, synced if `sync`, and return its
        offset; -1 if the log is empty.
        """
        return self._with_rows(partial(self._snapshot_with_rows, sync))

    def _snapshot_with_rows(self, sync: bool) -> int:
        evicted = b""
        if self.log.evicted_producer_count:
            self._check_rows_whole()
            self._complete_rows()
            evicted = b"".join(row for _, row in self._all_rows())
        with named_os_errors(f"a snapshot of {self._topic_partition}"):
            taken = self.log.take_snapshot(sync, evicted, again=True)
        return -1 if taken is None else int(Path(taken).stem)

    def load_incomplete(self) -> None:
        """Load the rows of evicted producers under whose ids other processes wrote."""
        if self._is_incomplete():
            self._check_rows_whole()
            self._with_rows(self._complete_rows)

    def _is_incomplete(self) -> bool:
        return bool(self.log.evicted_producer_count and self.log.incomplete_producer_ids())

    def _complete_rows(self) -> None:
        """Load the rows of incomplete producers. The caller holds the lock."""
        if self.log.evicted_producer_count:
            for producer_id in self.log.incomplete_producer_ids():
                self._install_from_rows(producer_id)

    def _load(self, producer_id: int) -> None:
        """Load the row of a producer that may have been evicted; without one install an empty
        entry.
        """
        self._check_rows_whole()
        # With the lock, the row read here is the newest one of this process.
        self._with_rows(lambda: self._install_from_rows(producer_id))

    def _install_from_rows(self, producer_id: int) -> None:
        row = self._read_row(producer_id)
        if row is None:
            self.log.install_producer(empty_row(producer_id), was_evicted=False)
        else:
            self._install_row(row)

    def _install_row(self, row: bytes) -> None:
        # The row may be of a producer that was never evicted here; another process wrote it. So
        # the count must not sink to 0 while others may be left.
        self.log.install_producer(row, was_evicted=self.log.evicted_producer_count > 1)

    def _check_rows_whole(self) -> None:
        if self._rows_generation != self.rows.environment.generation:
            raise StoreFailedError(
                f"{self._topic_partition}: the rows of idle producers were lost while the store "
                "was open; reopen it to restore them from the log"
            )

    def stored_rows(self) -> tuple[str, Iterable[bytes], int] | None:
        """Return the path of LMDB, its rows, and the offset up to which they are true; None if
        there are none, or they were lost since.
        """
        try:
            head = self.rows.read_head()
        except StateStoreDamagedError:
            return None
        if head is None:
            return None
        return str(self.rows.environment.path), self._rows_until_lost(), head.offset

    def _rows_until_lost(self) -> Iterable[bytes]:
        with suppress(StateStoreDamagedError):
            for _, row in self._all_rows():
                yield row

    def _all_rows(self) -> Iterable[tuple[int, bytes]]:
        next_id = 0
        while True:
            rows = self.rows.rows_after(next_id, ROWS_PER_LOOK)
            yield from rows
            if len(rows) < ROWS_PER_LOOK:
                return
            next_id = rows[-1][0] + 1
