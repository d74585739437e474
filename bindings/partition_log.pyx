# cython: language_level=3
"""One partition's log for Python: appends, syncs and maintenance over an opened log."""

import logging
import os
from contextlib import suppress

from eoslog import errors
from eoslog.bindings.file_descriptor import make_directories
from eoslog.bindings.log_verification import verify_segment
from eoslog.bindings.producers_verification cimport ProducersCheck
from eoslog.bindings.segment_pieces import open_segment
from eoslog.bindings.snapshot_files import remove_stray_snapshots

# Parts of this module's interface: what its methods take, answer and raise.
from eoslog.bindings.log_reader import Columns  # no-cython-lint
from eoslog.bindings.log_transactions import AbortedTransaction, OpenTransaction  # no-cython-lint
from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES, empty_row  # no-cython-lint
from eoslog.bindings.producer_state import ProducerState, row_state  # no-cython-lint

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from eoslog.bindings.abort_index_verification cimport AbortIndexCheck
from eoslog.bindings.accumulator cimport RecordAccumulator
from eoslog.bindings.log_transactions cimport LogTransactions
from eoslog.bindings.column_set cimport ColumnSet, open_columns
from eoslog.bindings.record_batch cimport check_identity
from eoslog.native.commit_journal cimport (
    CommitJournal as NativeJournal, DurableWish, make_durable,
)
from eoslog.native.control_page cimport (
    control_durable, control_flag, control_load, control_raise,
)
from eoslog.native.deleted_segments cimport log_delete_segments, log_first_to_stay
from eoslog.native.log_adopt cimport log_adopt, log_adopt_file
from eoslog.native.log_append cimport (
    AppendOutcome, ProducerStamp, log_append_batch, log_append_columns,
)
from eoslog.native.log_close cimport log_close, log_detach
from eoslog.native.log_lock cimport log_lock, log_unlock
from eoslog.native.log_marker cimport LOCAL_COORDINATOR, Marker, log_append_marker
from eoslog.native.log_recovery cimport log_truncate
from eoslog.native.log_sync cimport log_flush, log_store_indexes, log_sync_up_to
from eoslog.native.log_roll cimport log_roll
from eoslog.native.partition_log cimport (
    deleted_segments_free, deleted_segments_waiting, log_end,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_TRANSACTIONAL, BatchHeader, BatchIdentity, batch_header_load,
)
from eoslog.native.sequence_window cimport NO_SEQUENCE, OFFSETS_SEQUENCE
from eoslog.native.spare_file cimport spare_prepare
from eoslog.native.status cimport (
    STATUS_FENCED, STATUS_OK, STATUS_SEQUENCE_GAP, Fault, Status,
)

_log = logging.getLogger(__name__)


@cython.final
cdef class AppendResult:
    """Place of the records of one append: new ones, or those of the first write."""

    def __repr__(self):
        return (f"AppendResult(base_offset={self.base_offset}, last_offset={self.last_offset}, "
                f"record_count={self.record_count}, duplicate={bool(self.duplicate)})")


cdef AppendResult make_result(const AppendOutcome* outcome):
    cdef AppendResult result = AppendResult.__new__(AppendResult)
    result.base_offset = outcome.base_offset
    result.last_offset = outcome.last_offset
    result.record_count = outcome.record_count
    result.timestamp_ms = outcome.timestamp
    result.duplicate = outcome.duplicate_count == outcome.record_count
    return result


def joined_results(AppendResult first not None, AppendResult last not None):
    """Return the place of the records of two appends of one call, one after the other."""
    cdef AppendResult joined = AppendResult.__new__(AppendResult)
    joined.base_offset = first.base_offset
    joined.last_offset = last.last_offset
    joined.record_count = first.record_count + last.record_count
    joined.timestamp_ms = last.timestamp_ms
    joined.duplicate = first.duplicate and last.duplicate
    return joined


cdef int note_verdict(
    PartitionLog log, Status status, const Fault* fault, const AppendOutcome* outcome,
    int64_t producer_id, int producer_epoch, int64_t base_sequence
) except -1:
    """Log what a log drops as a duplicate, or refuses for its epoch or sequence."""
    if status >= 0:
        _log.debug(
            "%s-%d: producer id %d, epoch %d, sequence %d: %d records are a duplicate of those up "
            "to offset %d", log.topic, log.partition, producer_id, producer_epoch, base_sequence,
            outcome.duplicate_count, outcome.last_offset)
    elif status == STATUS_FENCED or status == STATUS_SEQUENCE_GAP:
        _log.debug(
            "%s-%d: producer id %d, epoch %d, sequence %d: refused, %s (got %d, expected %d)",
            log.topic, log.partition, producer_id, producer_epoch, base_sequence,
            fault.reason.decode(), fault.actual, fault.expected)
    return 0


def count_deleted():
    """Return how many segments that left the logs of this process wait for `free_deleted`."""
    return deleted_segments_waiting()


@cython.final
cdef class PartitionLog(LogTransactions):
    """The engine's log of one partition. Appends take its lock; reads take none.

    Durability: an append survives the death of this process when it returned; it survives a power
    cut once flush() returned.
    """

    def append_columns(self, values, keys=None, timestamps=None, headers=None, *,
                       Py_ssize_t timestamp_ms, Py_ssize_t producer_id=-1,
                       Py_ssize_t producer_epoch=-1, Py_ssize_t base_sequence=-1,
                       Py_ssize_t batch_records_max=0, Py_ssize_t batch_bytes_max=0,
                       bint transactional=False):
        """Append all records of the columns and return an AppendResult.

        A ColumnSet may come in place of `values`: it has the others too. The records are split into
        batches of at most batch_records_max records and batch_bytes_max bytes (0:
        max.message.bytes). A duplicate returns the first write's offsets. On an error in the
        middle (a full disk), the exception's `appended_record_count` says how many are in.
        `transactional`: the producer's transaction, in which its coordinator has this partition;
        without a base sequence (-1), or with OFFSETS_SEQUENCE, it is an append of a coordinator
        itself, and no sequence is judged.
        """
        if not transactional or base_sequence not in (NO_SEQUENCE, OFFSETS_SEQUENCE):
            check_identity(producer_id, producer_epoch, base_sequence)
        elif not (producer_id >= 0 and 0 <= producer_epoch <= 0x7FFF):
            raise ValueError(f"producer id {producer_id}, epoch {producer_epoch}")
        if transactional and producer_id < 0:
            raise ValueError("a transactional batch needs a producer id")
        cdef ProducerStamp stamp
        stamp.transactional = transactional
        stamp.producer_id = producer_id
        stamp.producer_epoch = <int16_t>producer_epoch
        stamp.base_sequence = <int32_t>base_sequence
        return self.append_stamped(
            open_columns(values, keys, timestamps, headers, timestamp_ms), &stamp,
            batch_records_max, batch_bytes_max)

    cdef AppendResult append_stamped(
        self, ColumnSet opened, ProducerStamp* stamp, int64_t batch_records_max,
        int64_t batch_bytes_max
    ):
        """Append columns like append_columns, for a producer whose identity was checked."""
        cdef int32_t base_sequence = stamp.base_sequence
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        self._check_open()
        if opened.columns.count == 0:
            raise ValueError("no records to append")
        memset(&outcome, 0, sizeof(AppendOutcome))
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_append_columns(
                    &self._log, &opened.columns, stamp, batch_records_max, batch_bytes_max,
                    &outcome, &fault)
            if status < 0 or outcome.duplicate_count:
                note_verdict(self, status, &fault, &outcome, stamp.producer_id,
                             stamp.producer_epoch, base_sequence)
            if status >= 0:
                return make_result(&outcome)
            try:
                self._before_repeat(status, &fault)
            except Exception as error:
                error.appended_record_count = outcome.record_count
                raise
            # The call moved it on with each batch, and counts again from the first record.
            stamp.base_sequence = base_sequence

    def append_batch(self, batch not None, bint verified=False):
        """Append one whole v2 batch as a client builds it (base offset 0); return an AppendResult.

        A leader's checks apply: checksum, size, counts, deltas, timestamps. A transactional one
        needs an open transaction of its producer here, or `verified`: its coordinator has this
        partition in the transaction. Nothing is written on an error.
        """
        # A copy unless it is bytes: it must not change between the checksum and the write.
        cdef const uint8_t[::1] whole = batch if isinstance(batch, bytes) else bytes(batch)
        cdef AppendOutcome outcome
        cdef BatchHeader header
        cdef Fault fault
        cdef Status status
        self._check_open()
        if whole.shape[0] == 0:
            raise errors.CorruptRecordError("", 0, "no bytes")
        while True:
            memset(&outcome, 0, sizeof(AppendOutcome))
            self._fault_init(&fault)
            with nogil:
                status = log_append_batch(
                    &self._log, &whole[0], whole.shape[0], verified, &outcome, &fault)
            if outcome.duplicate_count or status == STATUS_FENCED or (
                    status == STATUS_SEQUENCE_GAP):
                batch_header_load(&whole[0], &header)
                note_verdict(self, status, &fault, &outcome, header.producer_id,
                             header.producer_epoch, header.base_sequence)
            if status >= 0:
                return make_result(&outcome)
            self._before_repeat(status, &fault, "")

    def append_accumulated(self, RecordAccumulator accumulator not None, Py_ssize_t producer_id,
                           Py_ssize_t producer_epoch, Py_ssize_t base_sequence,
                           bint transactional=False):
        """Append what the accumulator holds as one batch, empty it, and return an AppendResult.

        On an error the accumulator keeps its records.
        """
        cdef BatchIdentity identity
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        self._check_open()
        check_identity(producer_id, producer_epoch, base_sequence)
        identity.base_offset = 0
        identity.producer_id = producer_id
        identity.partition_leader_epoch = 0
        identity.base_sequence = <int32_t>base_sequence
        identity.producer_epoch = <int16_t>producer_epoch
        identity.attributes = ATTRIBUTE_TRANSACTIONAL if transactional else 0
        while True:
            accumulator.finish(&identity)
            memset(&outcome, 0, sizeof(AppendOutcome))
            self._fault_init(&fault)
            accumulator._busy = True
            with nogil:
                status = log_append_batch(
                    &self._log, accumulator._buffer, accumulator._used_bytes, transactional,
                    &outcome, &fault)
            accumulator._busy = False
            if status < 0 or outcome.duplicate_count:
                note_verdict(self, status, &fault, &outcome, producer_id, <int>producer_epoch,
                             base_sequence)
            if status >= 0:
                accumulator.note_appended(outcome.base_offset)
                return make_result(&outcome)
            self._before_repeat(status, &fault, "")

    def adopt(self, const uint8_t[::1] data not None, Py_ssize_t producer_id):
        """Append the staged batches of one producer id whose sequences count from 0.

        Goes on after the last sequence that the partition holds, so a second call adds nothing.
        Returns (first offset or -1, records appended by this call).
        """
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        self._check_open()
        if data.shape[0] == 0:
            return -1, 0
        while True:
            memset(&outcome, 0, sizeof(AppendOutcome))
            self._fault_init(&fault)
            with nogil:
                status = log_adopt(
                    &self._log, &data[0], data.shape[0], producer_id, &outcome, &fault)
            if status >= 0:
                return (outcome.base_offset if outcome.record_count else -1), outcome.record_count
            self._before_repeat(status, &fault, "")

    def adopt_file(self, str path not None, Py_ssize_t file_bytes, Py_ssize_t producer_id, *,
                   bint checked):
        """Make a staged file of one producer id a segment of the log, without a copy.

        The file keeps its own name beside that of the segment, and must not be written to again.
        `checked`: its checksums were verified just now. With the next flush it is in the log on
        disk too.

        Returns (first offset, records), or None where it has to be copied: some of it is in the log
        already, it does not fit a segment, it cannot be linked here. Raises CorruptRecordError or a
        StoreError; nothing of it is in the log then.
        """
        cdef bytes path_bytes = os.fsencode(path)
        cdef const char* raw_path = path_bytes
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        cdef bint adopted = False
        self._check_writable()
        while True:
            memset(&outcome, 0, sizeof(AppendOutcome))
            self._fault_init(&fault)
            with nogil:
                status = log_adopt_file(
                    &self._log, raw_path, file_bytes, producer_id, checked, &adopted, &outcome,
                    &fault)
            if status >= 0:
                return (outcome.base_offset, outcome.record_count) if adopted else None
            self._before_repeat(status, &fault, path)

    def append_marker(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch,
                      object coordinator_epoch, bint commit, *, Py_ssize_t timestamp_ms,
                      bint newer_epoch=True):
        """End a producer's transaction here with a control batch, and return an AppendResult.

        `coordinator_epoch`: None for this store's own coordinator, which is never fenced: the
        marker gets the highest epoch that the partition has seen of the producer, 0 if none.
        `newer_epoch`: the marker's epoch is above that of the transaction's batches, as transaction
        version 2 has it. A marker that did its work before is a success and is not written again:
        the result is a duplicate without offsets (-1).

        Raises InvalidProducerEpochError, TransactionCoordinatorFencedError or a StoreError; nothing
        was written then.
        """
        cdef Py_ssize_t given = LOCAL_COORDINATOR
        cdef Marker marker
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        self._check_open()
        if producer_id < 0 or not 0 <= producer_epoch <= 0x7FFF:
            raise ValueError(f"producer id {producer_id}, epoch {producer_epoch}")
        if coordinator_epoch is not None:
            given = coordinator_epoch
            if not 0 <= given <= 0x7FFFFFFF:
                raise ValueError(f"coordinator epoch {given} is outside [0, 2**31)")
        marker.producer_id = producer_id
        marker.producer_epoch = <int16_t>producer_epoch
        marker.coordinator_epoch = <int32_t>given
        marker.commit = commit
        marker.newer_epoch = newer_epoch
        marker.timestamp_ms = timestamp_ms
        while True:
            memset(&outcome, 0, sizeof(AppendOutcome))
            outcome.base_offset = outcome.last_offset = -1
            self._fault_init(&fault)
            with nogil:
                status = log_append_marker(&self._log, &marker, &outcome, &fault)
            if status >= 0:
                return make_result(&outcome)
            self._before_repeat(status, &fault)

    def sync_up_to(self, Py_ssize_t offset, bint in_pieces=False):
        """Sync everything below `offset`; threads that wait here share one sync. `in_pieces`:
        other writes to the disk wait less for it, and the caller waits longer.
        """
        cdef Fault fault
        cdef Status status
        self._check_writable()
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_sync_up_to(&self._log, offset, in_pieces, &fault)
            if status == STATUS_OK:
                return
            self._before_repeat(status, &fault)

    def make_durable(self, Py_ssize_t offset):
        """Have everything below `offset` on the disk, by the process's journal or by the files;
        threads that wait, for whatever logs, share one write.
        """
        cdef Fault fault
        cdef Status status
        cdef DurableWish wish
        cdef int32_t failed
        self._check_writable()
        wish.log = &self._log
        wish.offset = offset
        while True:
            self._fault_init(&fault)
            with nogil:
                status = make_durable(
                    <NativeJournal*>self._log.journal, &wish, 1, &failed, &fault)
            if status == STATUS_OK:
                return
            self._before_repeat(status, &fault)

    @property
    def durable_offset(self):
        """Everything below is on the disk, by files or journals of any process."""
        self._check_open()
        return control_durable(self._log.page)

    def journaled_end(self, int half):
        """What a half of the process's journal has of the log ends here, or below."""
        if not 0 <= half < 4:
            raise ValueError(f"half {half} is outside [0, 4)")
        return self._log.journal_ends[half]

    def flush(self, bint with_indexes=True):
        """Sync all that was appended before the call, and return the new recovery point.

        `with_indexes` also writes index entries, so that a recovery begins at the last of them and
        not at the segment's start: for checkpoints, not for each commit.

        Raises StoreFailedError when the sync fails: what the disk holds is then unknown, and the
        log refuses appends until it was recovered.
        """
        cdef Fault fault
        cdef Status status
        self._check_writable()
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_flush(&self._log, with_indexes, &fault)
            if status == STATUS_OK:
                return self.recovery_point
            self._before_repeat(status, &fault)

    def store_indexes(self):
        """Write the index entries that only memory has; not synced. If this process is killed, the
        recovery begins at the last of them.
        """
        cdef Fault fault
        cdef Status status
        self._check_writable()
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_store_indexes(&self._log, &fault)
            if status == STATUS_OK:
                return
            self._before_repeat(status, &fault)

    def roll(self):
        """Seal the active segment, if it holds records, start the next, and return its base offset.
        """
        cdef Fault fault
        cdef Status status
        self._check_writable()
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_lock(&self._log, &fault)
                if status == STATUS_OK:
                    status = log_roll(&self._log, &fault)
                    log_unlock(&self._log)
            if status == STATUS_OK:
                return self.active_base_offset
            self._before_repeat(status, &fault)

    def first_to_stay(self, Py_ssize_t up_to_offset):
        """Base offset of the first segment that stays when the oldest ones that end at or below
        up_to_offset are deleted.
        """
        self._check_open()
        return log_first_to_stay(&self._log, up_to_offset)

    def delete_segments(self, Py_ssize_t up_to_offset):
        """Delete the oldest segments that end at or below up_to_offset, and return how many.

        The log start offset moves to the first one left. Files are kept as spares, up to
        eoslog.spare.segments. The caller has saved what it needs of them. Each deletion is durable
        before the next one.

        Raises StoreFailedError when a sync fails, as `flush` does; StoreError, or a subclass for
        the cause, when a file cannot be removed: no younger segment is deleted, and the next call
        tries again.
        """
        cdef int32_t deleted = 0
        cdef int64_t total = 0
        cdef Fault fault
        cdef Status status
        self._check_writable()
        if self._log.options.spare_segments > 0:
            with suppress(OSError):  # Without it the files are removed.
                make_directories(os.fsdecode(self._spare_bytes))
        while True:
            self._fault_init(&fault)
            with nogil:
                status = log_delete_segments(&self._log, up_to_offset, &deleted, &fault)
                deleted_segments_free(&self._log)
            total += deleted
            if status == STATUS_OK:
                return total
            self._before_repeat(status, &fault)

    def repair(self):
        """Repair what a writer left that died, as the next append would."""
        cdef Fault fault
        cdef Status status
        while True:
            self._check_open()
            self._fault_init(&fault)
            with nogil:
                status = log_lock(&self._log, &fault)
            if status == STATUS_OK:
                log_unlock(&self._log)
                return
            self._before_repeat(status, &fault)

    def free_deleted(self):
        """Free the files of segments that are deleted and no longer read, and return how many.

        Other processes delete segments too, and this one holds their files until then. It may take
        long: a file system frees a large file slowly.
        """
        cdef int32_t freed = 0
        if self._page_map != NULL and self._log.opened:
            with nogil:
                freed = deleted_segments_free(&self._log)
        return freed

    def advance_log_start(self, Py_ssize_t offset):
        """Raise the log start offset, in all processes; records below it can no longer be read.
        No file goes by this.
        """
        self._check_writable()
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise errors.OffsetOutOfRangeError(
                f"{self.topic}-{self.partition}: log start {offset} is not in "
                f"[{self.log_start_offset}, {self.high_watermark}]")
        control_raise(&self._log.page.log_start_offset, offset)
        return offset

    def truncate(self, Py_ssize_t offset):
        """Cut the log back to end at `offset` and rebuild the producers from what is left."""
        cdef Fault fault
        cdef Status status
        self._check_writable()
        if offset < 0:
            raise ValueError(f"offset must be 0 or more, got {offset}")
        if self.attached:
            raise errors.StoreInUseError(
                f"{self.topic}-{self.partition} is open in other processes: it cannot be cut back")
        if offset >= self.log_end_offset:
            return
        self._fault_init(&fault)
        with suppress(FileNotFoundError):  # The directory: there are none.
            for name in os.listdir(os.fsdecode(self._spare_bytes)):
                # Their batches could have offsets at or above the new end.
                os.unlink(os.path.join(os.fsdecode(self._spare_bytes), name))
        with nogil:
            status = log_truncate(&self._log, offset, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        for snapshot in self.snapshots():
            if snapshot > offset:
                os.unlink(self._snapshot_path(snapshot))
        self.restore_producers(None, 0)

    def prepare_spare(self, Py_ssize_t count=1):
        """Fill the first `count` spare slots with recycled or zeroed files, and return how many
        were made.

        Runs beside appends and reads; one thread at a time may call it.
        """
        cdef int32_t made = 0
        cdef Fault fault
        cdef Status status
        self._check_writable()
        if not 0 <= count <= self._log.options.spare_segments:
            raise ValueError(
                f"{count} spare files; eoslog.spare.segments is {self._log.options.spare_segments}")
        self._fault_init(&fault)
        make_directories(os.fsdecode(self._spare_bytes))
        with nogil:
            status = spare_prepare(self._log.directory, self._log.spare_directory,
                                   <int32_t>count, self._log.options.segment.segment_bytes,
                                   self._log.options.segment.fill_bytes,
                                   self._log.options.durable, &made, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return made

    def close(self, bint clean=True):
        """Close the log for appends; with `clean`, leave the files as Kafka does. May be called
        twice.
        """
        cdef Fault fault
        cdef Status status = STATUS_OK
        with self._close_lock:
            if self._page_map == NULL or self._log.closed or not self._log.opened:
                return
            if clean:
                self._check_writable()
            if clean and not self.failed and not control_flag(&self._log.page.deleted):
                self.store_abort_files(True)
            self._fault_init(&fault)
            with nogil:
                status = log_close(&self._log, clean, &fault)
            self._leave_journal()
            self._let_others_in()
        if status != STATUS_OK:
            self._raise(status, &fault)
        if clean:
            remove_stray_snapshots(self.path, log_end(&self._log), clean=True)

    def detach(self):
        """Let go of the log as it is: other processes go on with it. May be called twice.

        What was appended is not synced by this.
        """
        with self._close_lock:
            if self._page_map == NULL or self._log.closed or not self._log.opened:
                return
            with nogil:
                log_detach(&self._log)
            self._leave_journal()
            self._let_others_in()

    def verify(self, *, transactions=None, rows=None, Py_ssize_t expiration_ms=86_400_000,
               counted=None):
        """Check every batch and index entry, and what is remembered of producers and transactions;
        a list of {"path", "position_bytes", "reason"}.

        `transactions`: see ProducersCheck. `rows()` gives stored rows when the log was followed:
        where they are kept, the rows, and at which offset they are true. `counted(records)` is
        called with the number of sound records, markers aside. Runs beside appends, rolls
        and deletions, by other processes too. What is appended later is not checked; a segment that
        is deleted before its turn is skipped.
        """
        cdef list problems = []
        cdef int64_t expected = -1
        cdef AbortIndexCheck aborts = None
        cdef ProducersCheck producers = None
        self._check_open()
        log_start = self.log_start_offset
        segments = self.segment_files()
        for segment in segments:
            pieces = open_segment(segment["path"])
            if pieces is None and self._was_deleted(segment["base_offset"]):
                # So were all before it: what they hold of transactions no longer counts.
                aborts = producers = None
                expected = -1
                if transactions is not None:
                    transactions.lose_track()  # Until the next segment, if there is one.
                continue
            if aborts is None:
                aborts = AbortIndexCheck(max(segment["base_offset"], log_start))
                producers = ProducersCheck(
                    segment["base_offset"], transactions, expiration_ms,
                    numbered=self.topic != "__consumer_offsets", log_start=log_start)
            if pieces is None:
                aborts.lose_track()
                producers.lose_track()
                problems.append({"path": segment["path"], "position_bytes": 0,
                                 "reason": "the file is gone, or another program has it locked"})
                continue
            if expected == segment["base_offset"]:
                producers.check_snapshot(segment["path"][:-4] + ".snapshot", problems)
            end_of_log = (lambda: self.log_end_offset) if segment is segments[-1] else None
            expected = verify_segment(
                segment, pieces, expected, aborts, producers, max(log_start, self.holes_below),
                end_of_log, problems)
            aborts.check_segment(self, segment, expected, problems)
        if 0 <= expected < log_start:
            problems.append({"path": self.path, "position_bytes": 0, "reason": (
                f"the log starts at offset {log_start}, and its batches end at {expected}")})
        if producers is not None:
            self._verify_producers(producers, expected, rows, problems)
            if counted is not None:
                counted(producers.record_count)
        for problem in problems:
            problem["path"] = problem["path"].replace(self.path, self.shown_path)
        return problems

    def _verify_producers(
        self, ProducersCheck producers, Py_ssize_t expected, rows, list problems
    ):
        """Check that the newest snapshot, the rows and the engine agree with the log."""
        newest = max(self.snapshots(), default=-1)
        if newest == expected:
            producers.check_snapshot(self._snapshot_path(newest), problems, is_newest=True)
        stored = None if rows is None else rows()
        if stored is not None:
            path, rows_found, true_at = stored
            problems.extend(
                {"path": path, "position_bytes": 0,
                 "reason": f"{self.topic}-{self.partition}: {reason}"}
                for _, reason in producers.check_rows(rows_found, true_at, expected))
        problems.extend(
            {"path": self.path, "position_bytes": 0, "reason": f"in memory: {reason}"}
            for reason in self._wrong_transactions(producers.open_transactions(), expected))

    def _wrong_transactions(self, dict followed, int64_t expected):
        """Return the differences of the open transactions that the engine knows from those of the
        log.
        """
        if followed is None:
            return []
        first_base = control_load(&self._log.page.first_base_offset)
        opened = self.open_transactions()
        is_still = self.log_end_offset == expected
        known = {one.producer_id: one.first_offset for one in opened}
        wrong = [
            f"the transaction of producer {producer_id} is open since offset {first}, in the log "
            f"since {followed.get(producer_id, (0, -1))[1]} (-1 is not at all)"
            for producer_id, first in known.items()
            if first_base <= first < expected and followed.get(producer_id, (0, -1))[1] != first
        ]
        if is_still:
            wrong += [
                f"the transaction of producer {producer_id}, open since offset {first}, is unknown"
                for producer_id, (_, first) in followed.items() if producer_id not in known
            ]
        return wrong
