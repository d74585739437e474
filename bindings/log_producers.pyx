# cython: language_level=3
"""The producers of an opened log: restored from rows, a snapshot or the log; stored, evicted,
dropped.

The table is read and changed under the partition's lock; no file is read while it is held.
"""

import os
from contextlib import suppress
from typing import NamedTuple

from eoslog import errors

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from eoslog.bindings.producer_state cimport check_row, copy_entries, load_rows, make_state
from eoslog.bindings.file_descriptor import sync_path
from eoslog.bindings.snapshot_files import read_snapshot
from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES
from eoslog.native.abort_files cimport (
    AbortFile, abort_file_describe, abort_file_load, abort_file_trim, abort_files_store,
    abort_index_rebuild,
)
from eoslog.native.abort_index cimport abort_index_drop_below, abort_index_truncate
from eoslog.native.log_read cimport ReadRange, read_close
from eoslog.native.log_replay cimport log_replay, log_restore_ongoing
from eoslog.native.atomics cimport load_acquire_64
from eoslog.native.control_page cimport control_load, control_note_opened, control_set_flag
from eoslog.native.counters cimport COUNTER_PRODUCERS_EVICTED, counter_add
from eoslog.native.log_lock cimport log_lock, log_unlock, log_view_end
from eoslog.native.partition_log cimport (
    log_end, log_failure, log_note_end, log_publish, pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.producer_table cimport (
    ProducerTable, table_at, table_evict, table_find, table_free, table_init, table_insert,
    table_complete, table_is_incomplete, table_memory_bytes, table_note_whole, table_remove,
)
from eoslog.native.record_batch cimport BatchHeader, batch_header_load
from eoslog.native.sequence_window cimport NO_EPOCH, ProducerEntry
from eoslog.native.snapshot cimport snapshot_load, snapshot_write
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_FAILED, STATUS_OK, Fault, Status


class LogFigures(NamedTuple):
    """Where a log begins and ends, where its decided data ends, and how large it is."""

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    size_bytes: int
    segment_count: int
    producer_count: int
    evicted_producer_count: int
    producer_memory_bytes: int
    failed: bool


cdef int64_t copy_changed(const ProducerTable* table, ProducerEntry* copied) noexcept nogil:
    """Copy the entries that changed since the last stored rows; how many."""
    cdef ProducerEntry* entry
    cdef int64_t count = 0
    cdef uint32_t index
    for index in range(table.entry_count):
        entry = table_at(table, index)
        if entry.changed_at_offset > table.persisted_offset:
            copied[count] = entry[0]
            count += 1
    return count


cdef inline bint is_idle(const ProducerEntry* entry, int64_t oldest_timestamp_ms) noexcept nogil:
    """True if a producer was last seen before a time, and has nothing open."""
    return (entry.producer_epoch != NO_EPOCH and entry.current_txn_first_offset < 0
            and entry.last_timestamp < oldest_timestamp_ms)


cdef class LogProducers(LogReader):
    """A log that can be read and knows its producers."""

    @property
    def first_base_offset(self):
        """The base offset of the oldest segment, as this process knows it."""
        self._check_open()
        return self._log.segments[0].base_offset

    def restore_producers(self, bytes rows, Py_ssize_t rows_offset, Py_ssize_t evicted_count=0,
                          abort_files=None):
        """Fill the producer table and the abort index, and return the source: "rows", "snapshot" or
        "log".

        `rows` (PRODUCER_ROW_BYTES each) are true for all batches below rows_offset; the rest is
        replayed. None stands for no rows: the newest readable .snapshot is used, else the whole
        log. `abort_files` is what abort_files() returned when the rows were stored, None if that is
        not known: then the abort index is rebuilt from the log.
        """
        self._check_open()
        self._clear_producers()
        if not self.attached:
            self._log.whole_end = log_end(&self._log)
        self._first_base = self._log.segments[0].base_offset
        if self.attached and rows is not None and rows_offset < self._first_base:
            # The process that deleted what lies between stored newer rows first.
            raise errors.FellBehindError(
                f"{self.topic}-{self.partition}: rows of offset {rows_offset} are too old for a "
                f"log that begins at {self._first_base}; call again")
        if rows is not None and rows_offset <= self.log_end_offset:
            self._restore_aborts(abort_files, rows_offset)
            load_rows(&self._log.producers, rows)
            self._log.producers.evicted_count = evicted_count
            self._log.producers.persisted_offset = rows_offset
            self._replay(rows_offset)
            self._trim_abort_files()
            return "rows"
        snapshot = self._load_newest_snapshot()
        self._restore_aborts(None, max(snapshot, 0))
        self._log.producers.persisted_offset = -1
        self._replay(max(snapshot, 0))
        self._trim_abort_files()
        return "snapshot" if snapshot >= 0 else "log"

    cdef int _restore_aborts(self, object files, int64_t below_offset) except -1:
        """Restore the abort index of all markers below an offset; a replay adds the others."""
        cdef AbortFile described
        cdef bint whole = True
        cdef Fault fault
        cdef Status status = STATUS_OK
        self._fault_init(&fault)
        abort_index_truncate(&self._log.aborts, -1)
        if files is not None:
            first_base = self._log.segments[0].base_offset
            for base_offset, entry_count, checksum in files:
                if base_offset < first_base:
                    continue  # Deleted since.
                described.base_offset = base_offset
                described.entry_count = entry_count
                described.checksum = checksum
                status = abort_file_load(
                    &self._log, &described, below_offset, &whole, &fault)
                if status != STATUS_OK or not whole:
                    break
        if status == STATUS_OK and (files is None or not whole):
            abort_index_truncate(&self._log.aborts, -1)
            with nogil:
                status = abort_index_rebuild(&self._log, below_offset, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return 0

    def _segment_ranges(self):
        """Base offset of each segment, and of the next one."""
        bases = [segment["base_offset"] for segment in self.segment_files()]
        return zip(bases, [*bases[1:], 0x7FFFFFFFFFFFFFFF])

    cdef int _trim_abort_files(self) except -1:
        """Cut from the files what the log did not keep: other readers would believe it."""
        cdef Fault fault
        cdef Status status = STATUS_OK
        if self.attached or not any(name.endswith(".txnindex") for name in os.listdir(self.path)):
            return 0
        for base_offset, next_base in self._segment_ranges():
            self._fault_init(&fault)
            status = abort_file_trim(&self._log, base_offset, next_base, &fault)
            if status != STATUS_OK:
                self._raise(status, &fault)
        return 0

    def store_abort_files(self, bint sync=False):
        """Write what the .txnindex files do not hold yet; with `sync`, sync them."""
        cdef int64_t first_offset
        cdef Fault fault
        cdef Status status = STATUS_OK
        self._check_writable()
        while True:
            self._fault_init(&fault)
            with nogil:
                first_offset = -1
                # The writer's lock: no two processes write these files at once.
                status = log_lock(&self._log, &fault)
                if status == STATUS_OK and self._log.aborts.stored_count < self._log.aborts.count:
                    first_offset = (
                        self._log.aborts.entries[self._log.aborts.stored_count].last_offset)
                    status = abort_files_store(&self._log, &fault)
                    log_unlock(&self._log)
                elif status == STATUS_OK:
                    log_unlock(&self._log)
            if status == STATUS_OK:
                break
            self._before_repeat(status, &fault)
        if sync and first_offset >= 0:
            self._sync_abort_files(first_offset)

    def _sync_abort_files(self, first_offset):
        """Sync the files of the segments that hold an offset or come after it."""
        for base_offset, next_base in self._segment_ranges():
            if next_base > first_offset:
                # There is none where nothing was aborted, or once its segment is deleted.
                with suppress(FileNotFoundError):
                    sync_path(
                        os.path.join(self.path, f"{base_offset:020d}.txnindex"), os.O_RDONLY)
        sync_path(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def abort_files(self):
        """Return the content of the .txnindex files: (base offset, entry count, checksum) each."""
        cdef AbortFile described
        cdef Fault fault
        cdef Status status
        cdef list found = []
        self._check_open()
        if self._log.aborts.stored_count == 0:
            return found
        for base_offset, next_base in self._segment_ranges():
            self._fault_init(&fault)
            status = abort_file_describe(&self._log, base_offset, next_base, &described, &fault)
            if status != STATUS_OK:
                self._raise(status, &fault)
            if described.entry_count:
                found.append((described.base_offset, described.entry_count, described.checksum))
        return found

    cdef int _clear_producers(self) except -1:
        while self._log.producers.entry_count:
            table_remove(&self._log.producers, table_at(&self._log.producers, 0).producer_id)
        self._log.producers.evicted_count = 0
        self._log.producers.persisted_offset = -1
        return 0

    cdef int _replay(self, int64_t from_offset) except -1:
        cdef int64_t first_base
        cdef Fault fault
        cdef Status status
        self._fault_init(&fault)
        self._view_log()
        first_base = self._log.segments[0].base_offset
        if first_base != self._first_base and from_offset < first_base:
            # Neither rows nor a snapshot have all producers of what was deleted.
            log_view_end(&self._log)
            raise errors.FellBehindError(
                f"{self.topic}-{self.partition}: segments were deleted while its producers were "
                "restored; call again")
        with nogil:
            abort_index_drop_below(&self._log.aborts, first_base)
            status = log_restore_ongoing(&self._log)
            if status == STATUS_OK:
                status = log_replay(&self._log, from_offset, &fault)
            if status == STATUS_OK:
                self._log.stable_unknown = False
                self._log.producers_unknown = False
                log_note_end(&self._log, log_end(&self._log))
            log_view_end(&self._log)
        if status != STATUS_OK:
            self._raise(status, &fault)
        if not self.attached:
            with nogil:
                status = log_lock(&self._log, &fault)
                if status == STATUS_OK:
                    log_publish(&self._log, log_end(&self._log))
                    # Nothing was made, cut or removed here since the files were found.
                    if self._was_clean and not self._log.directory_unsynced:
                        control_note_opened(self._log.page)
                    control_set_flag(&self._log.page.ready, 1)
                    log_unlock(&self._log)
            if status != STATUS_OK and status != STATUS_FAILED:
                self._raise(status, &fault)
        self._let_others_in()
        return 0

    cdef int64_t _load_newest_snapshot(self) except -2:
        """Load the newest snapshot that can be read and is not beyond the log; its offset or -1.

        Unreadable ones, those beyond the log end and those below the first segment are deleted.
        """
        cdef const uint8_t[::1] data
        cdef Fault fault
        cdef Status status
        # Not the log start offset, which may lie within a segment: a snapshot at or above the first
        # segment may be all that remembers producers whose batches were deleted.
        cdef int64_t start = self._log.segments[0].base_offset
        cdef int64_t end = log_end(&self._log)
        for offset in reversed(self.snapshots()):
            path = self._snapshot_path(offset)
            if start <= offset <= end:
                raw = read_snapshot(path)
                self._fault_init(&fault)
                status = STATUS_CORRUPT
                if raw:
                    data = raw
                    status = snapshot_load(
                        &data[0], data.shape[0], offset, &self._log.producers, &fault)
                if status == STATUS_OK:
                    self._log.snapshot_offset = offset
                    return offset
                self._clear_producers()
            if not self.attached:
                os.unlink(path)
        return -1

    def producer_ids_since(self, Py_ssize_t offset):
        """Ids of the producers with batches at or above `offset`: whose rows a replay needs."""
        cdef set found = set()
        cdef int64_t position
        cdef ReadRange batches
        cdef BatchHeader header
        self._check_open()
        offset = max(offset, self.log_start_offset)
        while offset < self.log_end_offset:
            self._open_range(offset, log_end(&self._log), 1 << 26, False, &batches)
            if batches.segment == NULL:
                offset = max(offset, batches.next_offset)
                break
            position = 0
            while position < batches.data_bytes:
                batch_header_load(batches.data + position, &header)
                if header.producer_id >= 0:
                    found.add(header.producer_id)
                position += header.batch_bytes
            offset = batches.next_offset
            read_close(&self._log, &batches)
        # A producer that appends later may have a row that was not loaded.
        self._log.whole_end = offset
        return found

    def dirty_producers(self):
        """Rows changed since the last producers_persisted, and the offset they are true at."""
        cdef ProducerEntry* copied = NULL
        cdef int64_t end
        cdef int64_t count = 0
        self._check_open()
        # The lock is held for the copying alone: appends wait for it.
        self._view()
        with nogil:
            end = log_end(&self._log)
            copied = <ProducerEntry*>malloc(
                (<size_t>self._log.producers.entry_count + 1) * sizeof(ProducerEntry))
            if copied != NULL:
                count = copy_changed(&self._log.producers, copied)
            log_view_end(&self._log)
        if copied == NULL:
            raise errors.OutOfMemoryError("no memory for the rows of changed producers")
        try:
            return PyBytes_FromStringAndSize(
                <const char*>copied, count * <Py_ssize_t>sizeof(ProducerEntry)), end
        finally:
            free(copied)

    def producers_persisted(self, Py_ssize_t offset):
        """The rows of dirty_producers are stored: they need not be handed out again."""
        self._check_open()
        if not 0 <= offset <= log_end(&self._log):
            raise ValueError(f"offset {offset} is outside [0, {log_end(&self._log)}]")
        if offset > self._log.producers.persisted_offset:
            self._log.producers.persisted_offset = offset

    def evict_producers(self, Py_ssize_t keep_max):
        """Drop the longest idle stored producers from memory until keep_max are left; how many."""
        cdef uint32_t evicted
        self._check_open()
        if keep_max < 0:
            raise ValueError(f"keep_max must be 0 or more, got {keep_max}")
        keep_max = min(keep_max, <Py_ssize_t>0x7FFFFFFF)
        self._view()
        with nogil:
            evicted = table_evict(&self._log.producers, <uint32_t>keep_max)
            log_view_end(&self._log)
        counter_add(self._log.counts, COUNTER_PRODUCERS_EVICTED, evicted)
        return evicted

    def install_producer(self, bytes row not None, bint was_evicted=True):
        """Put a row into the table if its producer is not there, or not all of it.

        What other processes wrote under its id after it was evicted here is kept.
        """
        cdef ProducerEntry entry
        cdef ProducerEntry* target
        self._check_open()
        if len(row) != PRODUCER_ROW_BYTES:
            raise ValueError(f"producer row must have {PRODUCER_ROW_BYTES} bytes, got {len(row)}")
        memcpy(&entry, <const char*>row, sizeof(ProducerEntry))
        check_row(&entry)
        self._view()
        with nogil:
            target = table_find(&self._log.producers, entry.producer_id)
            if target == NULL:
                target = table_insert(&self._log.producers, entry.producer_id)
                if target != NULL:
                    target[0] = entry
                    if was_evicted and self._log.producers.evicted_count > 0:
                        self._log.producers.evicted_count -= 1
            elif table_is_incomplete(&self._log.producers, entry.producer_id):
                table_complete(target, &entry)
                table_note_whole(&self._log.producers, entry.producer_id)
                if was_evicted and self._log.producers.evicted_count > 0:
                    self._log.producers.evicted_count -= 1
            log_view_end(&self._log)
        if target == NULL:
            raise errors.OutOfMemoryError("no memory for another producer")

    def incomplete_producer_ids(self):
        """The producers that were evicted here and that other processes wrote under since: of these
        only a part is in memory, until install_producer is given their rows.
        """
        cdef uint32_t index
        self._check_open()
        self._view()
        try:
            return [self._log.producers.incomplete[index]
                    for index in range(self._log.producers.incomplete_count)]
        finally:
            log_view_end(&self._log)

    def expired_producers(self, Py_ssize_t oldest_timestamp_ms):
        """Ids last seen before the given time that have no open transaction.

        One that was only given its place, for its first batch, was not seen yet.
        """
        cdef list ids = []
        cdef ProducerEntry* entry
        cdef uint32_t index
        self._check_open()
        self._view()
        try:
            for index in range(self._log.producers.entry_count):
                entry = table_at(&self._log.producers, index)
                if is_idle(entry, oldest_timestamp_ms):
                    ids.append(entry.producer_id)
        finally:
            log_view_end(&self._log)
        return ids

    def drop_producers(self, ids, oldest_timestamp_ms=None):
        """Forget producers; those with an open transaction stay, and such as were seen at the given
        time or after it, or not seen yet. The ids of those that stay.
        """
        cdef Py_ssize_t producer_id
        cdef Py_ssize_t oldest_ms = 0
        cdef bint only_idle = oldest_timestamp_ms is not None
        cdef ProducerEntry* entry
        cdef bint stays
        cdef list staying = []
        if only_idle:
            oldest_ms = oldest_timestamp_ms
        self._check_open()
        for value in ids:
            producer_id = value
            self._view()
            with nogil:
                entry = table_find(&self._log.producers, producer_id)
                stays = entry != NULL and (
                    entry.current_txn_first_offset >= 0
                    or (only_idle and not is_idle(entry, oldest_ms)))
                if entry != NULL and not stays:
                    table_remove(&self._log.producers, producer_id)
                log_view_end(&self._log)
            if stays:
                staying.append(producer_id)
        return staying

    def producer(self, Py_ssize_t producer_id):
        """The ProducerState of an id in memory, or None."""
        cdef ProducerEntry copied
        cdef ProducerEntry* entry
        self._check_open()
        self._view()
        with nogil:
            entry = table_find(&self._log.producers, producer_id)
            if entry != NULL:
                copied = entry[0]
            log_view_end(&self._log)
        return None if entry == NULL else make_state(&copied)

    def producers(self):
        """The ProducerState of every id in memory."""
        cdef list entries = []
        cdef uint32_t index
        self._check_open()
        self._view()
        try:
            for index in range(self._log.producers.entry_count):
                entries.append(make_state(table_at(&self._log.producers, index)))
        finally:
            log_view_end(&self._log)
        return entries

    def highest_producer_id(self, Py_ssize_t upper_bound):
        """The highest producer id in memory below a bound, -1 if there is none."""
        cdef int64_t highest = -1
        cdef int64_t producer_id
        cdef uint32_t index
        self._check_open()
        self._view()
        with nogil:
            for index in range(self._log.producers.entry_count):
                producer_id = table_at(&self._log.producers, index).producer_id
                if highest < producer_id < upper_bound:
                    highest = producer_id
            log_view_end(&self._log)
        return highest

    @property
    def producer_count(self):
        """Producers in memory."""
        return self._log.producers.entry_count

    @property
    def evicted_producer_count(self):
        """Producers that the state store alone remembers."""
        return self._log.producers.evicted_count

    @property
    def producer_memory_bytes(self):
        """Bytes of memory that the producer table holds."""
        return table_memory_bytes(&self._log.producers)

    def figures(self):
        """Return LogFigures, of all that was published by now. No file is read but for batches that
        other processes appended.
        """
        cdef int64_t stable, size_bytes = 0
        cdef int32_t index, segment_count
        self._check_open()
        stable = self._readable_end(True)
        pthread_mutex_lock(&self._log.segments_lock)
        segment_count = self._log.segment_count
        for index in range(segment_count):
            size_bytes += load_acquire_64(&self._log.segments[index].used_bytes)
        pthread_mutex_unlock(&self._log.segments_lock)
        return LogFigures(
            control_load(&self._log.page.log_start_offset), log_end(&self._log), stable, size_bytes,
            segment_count, self._log.producers.entry_count, self._log.producers.evicted_count,
            table_memory_bytes(&self._log.producers), log_failure(&self._log) != 0)

    def take_snapshot(self, bint sync=False, bytes evicted_rows=b"", *, bint again=False):
        """Write a .snapshot at the log end; its path, or None when there is nothing new.

        `evicted_rows` are the rows of producers that are not in memory: the snapshot must be
        complete. With `sync` it survives a power cut. `again` replaces one that is at the log end
        already: a roll's may be neither.
        """
        cdef ProducerTable table
        cdef Fault fault
        cdef Status status = STATUS_OK
        cdef int64_t end
        self._check_writable()
        self._fault_init(&fault)
        table_init(&table)
        try:
            load_rows(&table, evicted_rows)
            self._view()
            with nogil:
                end = log_end(&self._log)
                if end > 0 and (end > self._log.snapshot_offset or again):
                    status = copy_entries(&table, &self._log.producers, &fault)
                    if status == STATUS_OK:
                        status = snapshot_write(self._log.directory, end, &table, sync, &fault)
                    if status == STATUS_OK:
                        self._log.snapshot_offset = end
                else:
                    end = -1
                log_view_end(&self._log)
        finally:
            table_free(&table)
        if status != STATUS_OK:
            self._raise(status, &fault)
        if sync and end >= 0:
            sync_path(self.path, os.O_RDONLY | os.O_DIRECTORY)
        return None if end < 0 else self._snapshot_path(end)
