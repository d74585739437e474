# cython: language_level=3
"""Check that each producer's batches follow one another, and that what is remembered of them is so.

The log is followed into a table of its own, from its oldest batch on. Against it are held: the next
batch of each producer, `.snapshot` files, and stored rows; transactions go to an object that
knows what coordinators decided.

What cannot be known is no problem: a producer without a batch in the log may begin anywhere. So may
one that was silent for so long that it may have expired, or whose batches may have been in a hole
that compaction left.
"""

import os

from eoslog import errors

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from eoslog.bindings.producer_state cimport check_row
from eoslog.bindings.snapshot_files import read_snapshot
from eoslog.native.log_replay cimport MARKER_COMMIT, marker_load
from eoslog.native.producer_table cimport (
    ProducerTable, table_at, table_find, table_free, table_init, table_insert,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader,
)
from eoslog.native.sequence_window cimport (
    NO_SEQUENCE, BatchMetadata, ProducerEntry, entry_marker, entry_replay, window_at,
    window_last_sequence,
)
from eoslog.native.snapshot cimport snapshot_load
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_OK, Fault, Status
from eoslog.native.status cimport fault as fault_of

cdef enum:
    SEQUENCE_MASK = 0x7FFFFFFF


@cython.final
cdef class ProducersCheck:
    """Follows a log from its oldest segment on, which begins at `log_first_offset`.

    `transactions` is called with what the log has of producers and of their transactions, if it is
    given: `begin(log_first_offset)`, then `wrote(producer_id, epoch, offset)` where a producer's
    epoch is new or a transaction begins, and `ended(producer_id, epoch, data_epoch,
    commit, timestamp_ms, offset)` for each marker, which returns what is wrong with it, or None.
    `data_epoch` is that of the open transaction, -1 if none is known. `lose_track()` notes
    that batches are missing in between. `numbered`: the sequences of a producer's batches
    follow one another; those of a group coordinator's, in `__consumer_offsets`, do not.
    Records are counted from `log_start` on.
    """

    def __cinit__(self):
        table_init(&self._table)

    def __init__(self, Py_ssize_t log_first_offset, transactions=None,
                 Py_ssize_t expiration_ms=86_400_000, *, bint numbered=True,
                 Py_ssize_t log_start=0):
        self._log_first_offset = log_first_offset
        self._transactions = transactions
        self._expiration_ms = expiration_ms
        self._lost = False
        self._hole_end = -1
        self._numbered = numbered
        self._log_start = log_start
        self.record_count = 0
        if transactions is not None:
            transactions.begin(log_first_offset)

    def __dealloc__(self):
        table_free(&self._table)

    cdef object follow(self, const uint8_t* batch, const BatchHeader* header):
        """Take in the next batch, which is whole; what is wrong with it, or None."""
        cdef ProducerEntry* entry
        cdef int16_t marker_type = 0
        cdef int32_t coordinator_epoch = 0
        cdef int64_t timestamp = 0
        cdef object reason = None
        cdef bint known
        self._count(header)
        if header.producer_id < 0:
            return None
        entry = table_find(&self._table, header.producer_id)
        known = entry != NULL
        if header.attributes & ATTRIBUTE_CONTROL:
            if not marker_load(batch, header, &marker_type, &coordinator_epoch, &timestamp):
                return None
            reason = self._wrong_marker(entry, header, marker_type == MARKER_COMMIT)
        else:
            if known:
                reason = self._wrong_batch(entry, header)
            self._note_batch(entry, header)
        if not known:
            if header.attributes & ATTRIBUTE_CONTROL and (
                    self._hole_end >= 0 or self._log_first_offset > 0):
                # Its batches may have been before the log's beginning, or in a hole. In older
                # versions of transactions the next one goes on with their sequences.
                return reason
            entry = table_insert(&self._table, header.producer_id)
            if entry == NULL:
                raise errors.OutOfMemoryError("the producers of a log")
        if header.attributes & ATTRIBUTE_CONTROL:
            entry_marker(entry, header.producer_epoch, coordinator_epoch, timestamp)
        else:
            entry_replay(entry, header)
        entry.changed_at_offset = header.base_offset + header.last_offset_delta + 1
        return reason

    cdef int pass_hole(self, int64_t upper_bound) except -1:
        """The offsets up to this one are missing: of any producer, batches may be among them."""
        self._hole_end = upper_bound
        if self._transactions is not None:
            self._transactions.lose_track()
        return 0

    cdef bint _may_lack(self, ProducerEntry* entry) noexcept:
        """True if a hole came after the last batch that the log has of a producer.

        A marker may follow the hole: in older versions of transactions it ends no epoch.
        """
        if entry.batch_count == 0:
            return self._hole_end > entry.changed_at_offset
        return self._hole_end > window_at(entry, entry.batch_count - 1).last_offset

    cdef void _count(self, const BatchHeader* header) noexcept:
        """Count the records of a batch, from where the log starts on."""
        cdef int64_t below = self._log_start - header.base_offset
        if header.attributes & ATTRIBUTE_CONTROL or below > header.last_offset_delta:
            return
        self.record_count += header.record_count
        if 0 < below <= header.record_count:
            self.record_count -= below

    cdef void lose_track(self) noexcept:
        """A batch cannot be read: nothing is known of any producer from here on."""
        table_free(&self._table)
        table_init(&self._table)
        self._lost = True
        if self._transactions is not None:
            self._transactions.lose_track()

    cdef int _note_batch(self, const ProducerEntry* entry, const BatchHeader* header) except -1:
        """Tell of a batch with a new epoch, and of the first one of a transaction."""
        cdef bint transactional = header.attributes & ATTRIBUTE_TRANSACTIONAL != 0
        if self._transactions is None:
            return 0
        if entry == NULL or entry.producer_epoch != header.producer_epoch or (
                transactional and entry.current_txn_first_offset < 0):
            self._transactions.wrote(
                header.producer_id, header.producer_epoch, header.base_offset)
        return 0

    cdef object _wrong_marker(
        self, const ProducerEntry* entry, const BatchHeader* header, bint commit
    ):
        if entry != NULL and header.producer_epoch < entry.producer_epoch and (
                header.max_timestamp - entry.last_timestamp < self._expiration_ms):
            return (f"a marker of producer {header.producer_id} with epoch "
                    f"{header.producer_epoch} after epoch {entry.producer_epoch}")
        if self._transactions is None:
            return None
        data_epoch = -1
        if entry != NULL and entry.current_txn_first_offset >= 0:
            data_epoch = entry.producer_epoch
        return self._transactions.ended(
            header.producer_id, header.producer_epoch, data_epoch, commit, header.max_timestamp,
            header.base_offset)

    cdef object _wrong_batch(self, ProducerEntry* entry, const BatchHeader* header):
        cdef int32_t last = window_last_sequence(entry)
        cdef int32_t expected = 0
        if header.max_timestamp - entry.last_timestamp >= self._expiration_ms:
            return None
        if header.producer_epoch < entry.producer_epoch:
            return (f"a batch of producer {header.producer_id} with epoch "
                    f"{header.producer_epoch} after epoch {entry.producer_epoch}")
        if not self._numbered or header.base_sequence < 0:
            return None
        if self._may_lack(entry):
            return None              # The ones before it may have been compacted away.
        if header.producer_epoch == entry.producer_epoch and entry.batch_count > 0:
            if last == NO_SEQUENCE:
                return None
            expected = <int32_t>((<int64_t>last + 1) & SEQUENCE_MASK)
        if header.base_sequence == expected:
            return None
        return (f"the batch of producer {header.producer_id}, epoch {header.producer_epoch}, "
                f"begins with sequence {header.base_sequence}, and {expected} was to follow")

    # What is remembered elsewhere.

    def check_snapshot(self, str path, list problems, *, bint is_newest=False):
        """Hold a .snapshot file against the log, which was followed up to the file's offset.

        One that cannot be read is passed over, as readers do, if it is not the newest: it is not
        synced where a segment ends, and a power cut may spoil it.
        """
        cdef ProducerTable table
        cdef const uint8_t[::1] data
        cdef uint32_t index
        cdef Fault fault
        cdef Status status
        cdef object reason = None
        if self._lost:
            return
        try:
            raw = read_snapshot(path)
        except FileNotFoundError:
            return                   # Retention or a newer one has removed it.
        offset = int(os.path.basename(path)[:20])
        memset(&fault, 0, sizeof(Fault))
        table_init(&table)
        try:
            if raw:
                data = raw
                status = snapshot_load(&data[0], data.shape[0], offset, &table, &fault)
            else:
                status = fault_of(&fault, STATUS_CORRUPT, "the file is empty", 0, 0)
            if status != STATUS_OK:
                reason = fault.reason.decode()
                if not is_newest:
                    return
            for index in range(table.entry_count):
                if reason is None:
                    reason = self._wrong_memory(table_at(&table, index), offset)
        finally:
            table_free(&table)
        if reason is not None:
            problems.append({"path": path, "position_bytes": 0, "reason": reason})

    def check_rows(self, rows, Py_ssize_t true_at, Py_ssize_t walked_end):
        """Check rows that are true at `true_at`; yield (producer id, reason).

        The log was followed up to `walked_end`. Rows of producers that changed since are passed
        over.
        """
        cdef list found = []
        cdef ProducerEntry row
        cdef ProducerEntry* entry
        cdef bytes raw
        if self._lost:
            return found
        for raw in rows:
            if len(raw) != sizeof(ProducerEntry):
                found.append((-1, f"a row of {len(raw)} bytes, not {sizeof(ProducerEntry)}"))
                continue
            memcpy(&row, <const char*>raw, sizeof(ProducerEntry))
            try:
                check_row(&row)
            except ValueError as error:
                found.append((row.producer_id, str(error)))
                continue
            entry = table_find(&self._table, row.producer_id)
            if row.changed_at_offset > walked_end or (
                    entry != NULL and entry.changed_at_offset > true_at):
                continue
            reason = self._wrong_memory(&row, min(true_at, walked_end))
            if reason is not None:
                found.append((row.producer_id, reason))
        return found

    cdef object _wrong_memory(self, ProducerEntry* remembered, int64_t true_at):
        """Return how a producer, as it is remembered as of an offset, differs from the log."""
        cdef ProducerEntry* entry = table_find(&self._table, remembered.producer_id)
        cdef int64_t opened = remembered.current_txn_first_offset
        cdef BatchMetadata* ours
        cdef BatchMetadata* theirs
        cdef int back
        name = f"producer {remembered.producer_id}"
        if entry == NULL:
            last = opened
            if remembered.batch_count > 0:
                last = max(last, window_at(remembered, remembered.batch_count - 1).last_offset)
            if last >= max(self._log_first_offset, self._hole_end):
                return f"{name} is said to have written at offset {last}, the log has nothing of it"
            return None
        if entry.changed_at_offset > true_at or self._may_lack(entry):
            return None
        if remembered.producer_epoch != entry.producer_epoch:
            return (f"{name} is said to have epoch {remembered.producer_epoch}, in the log it has "
                    f"{entry.producer_epoch}")
        # What is left of a log may begin in the middle of a transaction: no marker of it came yet.
        began_earlier = 0 <= opened < self._log_first_offset and entry.coordinator_epoch < 0
        if opened != entry.current_txn_first_offset and not began_earlier and (
                opened >= self._log_first_offset or entry.current_txn_first_offset >= 0):
            return (f"{name} is said to have a transaction open since offset {opened}, in the log "
                    f"it is {entry.current_txn_first_offset} (-1 is none)")
        if entry.batch_count > 0 and remembered.batch_count == 0:
            return f"of {name} no batch is remembered, the log has some"
        # The newest batches; a snapshot has but one, and the log may have lost the older ones.
        for back in range(1, min(entry.batch_count, remembered.batch_count) + 1):
            ours = window_at(entry, entry.batch_count - back)
            theirs = window_at(remembered, remembered.batch_count - back)
            if ours.last_sequence != theirs.last_sequence or ours.last_offset != theirs.last_offset:
                return (f"{name} is said to have ended a batch with sequence "
                        f"{theirs.last_sequence} at offset {theirs.last_offset}, in the log it is "
                        f"{ours.last_sequence} at {ours.last_offset}")
        return None

    def open_transactions(self):
        """Producer id -> (epoch, first offset) of what is open; None if it is unknown."""
        cdef ProducerEntry* entry
        cdef uint32_t index
        cdef dict found = {}
        if self._lost:
            return None
        for index in range(self._table.entry_count):
            entry = table_at(&self._table, index)
            if entry.current_txn_first_offset >= 0:
                found[entry.producer_id] = (entry.producer_epoch, entry.current_txn_first_offset)
        return found
