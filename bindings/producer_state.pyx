# cython: language_level=3
"""State of one producer id in a partition: as an object for Python, and as a row to be stored."""

from eoslog import errors

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memcpy, memset

from eoslog.native.producer_table cimport table_at, table_insert
from eoslog.native.sequence_window cimport (
    BatchMetadata, entry_clear, metadata_first_sequence, window_at, window_last_sequence,
)
from eoslog.native.status cimport STATUS_NO_MEMORY, STATUS_OK

PRODUCER_ROW_BYTES = sizeof(ProducerEntry)


def empty_row(Py_ssize_t producer_id):
    """Return the row of an unknown producer."""
    cdef ProducerEntry entry
    memset(&entry, 0, sizeof(ProducerEntry))
    entry_clear(&entry, producer_id)
    return PyBytes_FromStringAndSize(<const char*>&entry, sizeof(ProducerEntry))


@cython.final
cdef class ProducerState:
    """State of one producer id, as the partition knows it."""

    cdef readonly int64_t producer_id
    cdef readonly int producer_epoch         # -1: nothing known.
    cdef readonly int32_t last_sequence      # -1: no data batch known.
    cdef readonly int64_t last_offset        # Of the last data batch, -1 if none.
    cdef readonly int64_t last_timestamp
    cdef readonly int32_t coordinator_epoch
    cdef readonly int64_t current_txn_first_offset
    # Of (first_sequence, last_sequence, first_offset, last_offset, timestamp), oldest first.
    cdef readonly tuple batches

    def __repr__(self):
        return (f"ProducerState(producer_id={self.producer_id}, producer_epoch="
                f"{self.producer_epoch}, last_sequence={self.last_sequence}, "
                f"last_offset={self.last_offset})")


cdef object make_state(ProducerEntry* entry):
    cdef ProducerState state = ProducerState.__new__(ProducerState)
    cdef BatchMetadata* batch
    cdef list batches = []
    cdef int index
    state.producer_id = entry.producer_id
    state.producer_epoch = entry.producer_epoch
    state.last_sequence = window_last_sequence(entry)
    state.last_offset = -1
    state.last_timestamp = entry.last_timestamp
    state.coordinator_epoch = entry.coordinator_epoch
    state.current_txn_first_offset = entry.current_txn_first_offset
    for index in range(entry.batch_count):
        batch = window_at(entry, index)
        state.last_offset = batch.last_offset
        batches.append((metadata_first_sequence(batch), batch.last_sequence,
                        batch.last_offset - batch.offset_delta, batch.last_offset, batch.timestamp))
    state.batches = tuple(batches)
    return state


def row_state(bytes row not None):
    """The ProducerState that a row describes."""
    cdef ProducerEntry entry
    if len(row) != PRODUCER_ROW_BYTES:
        raise ValueError(f"producer row must have {PRODUCER_ROW_BYTES} bytes, got {len(row)}")
    memcpy(&entry, <const char*>row, sizeof(ProducerEntry))
    return make_state(&entry)


cdef int check_row(const ProducerEntry* row) except -1:
    """Refuse a row whose window could not be walked."""
    if row.batch_count > 5 or row.batch_first > 4:
        raise ValueError(f"a producer row with {row.batch_count} batches from {row.batch_first} on")
    return 0


cdef int load_rows(ProducerTable* table, bytes rows) except -1:
    """Put stored rows into a table."""
    cdef const char* at = rows
    cdef Py_ssize_t position
    cdef ProducerEntry row
    cdef ProducerEntry* entry
    if len(rows) % PRODUCER_ROW_BYTES:
        raise ValueError(f"producer rows have {PRODUCER_ROW_BYTES} bytes each, got {len(rows)}")
    for position in range(0, len(rows), sizeof(ProducerEntry)):
        memcpy(&row, at + position, sizeof(ProducerEntry))
        check_row(&row)
        entry = table_insert(table, row.producer_id)
        if entry == NULL:
            raise errors.OutOfMemoryError("producer rows")
        entry[0] = row
    return 0


cdef Status copy_entries(
    ProducerTable* target, const ProducerTable* source, Fault* out
) noexcept nogil:
    """Put all of the source's entries into the target, over older ones."""
    cdef ProducerEntry* entry
    cdef uint32_t index
    for index in range(source.entry_count):
        entry = table_insert(target, table_at(source, index).producer_id)
        if entry == NULL:
            out.reason = b"no memory for a producer snapshot"
            return STATUS_NO_MEMORY
        entry[0] = table_at(source, index)[0]
    return STATUS_OK
