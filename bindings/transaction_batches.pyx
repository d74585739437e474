# cython: language_level=3
"""Batches of a log that is replayed key by key, without transactions that a later one replaces."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from eoslog.bindings.record_batch cimport BatchHeader
from eoslog.native.log_replay cimport MARKER_COMMIT, marker_load
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader as NativeHeader, Record, RecordCursor,
    batch_header_load, check_uncompressed, cursor_next, cursor_open,
)
from eoslog.native.status cimport STATUS_OK, Fault

from eoslog.bindings.record_batch import iter_batches


@cython.final
cdef class OpenTransaction:
    """One batch of a producer, and what ends it."""

    cdef Py_ssize_t batch            # Their indexes among all batches.
    cdef Py_ssize_t marker
    cdef tuple keys                  # Of its records; None: it is kept, whatever comes.


def iter_unreplaced_batches(const uint8_t[::1] data not None):
    """The headers of batches that stand back to back, as `iter_batches` has them, without those of
    transactions that a later one in `data` replaces.

    A transaction is replaced by a later one of its producer that writes the same keys, if both have
    one batch, begin in `data` and are committed there. Who keeps the newest committed value of each
    key comes to the same state at the end of `data`, if a commit marker gives keys the values that
    its transaction wrote.
    """
    cdef BatchHeader header
    cdef OpenTransaction one, earlier
    cdef const uint8_t* batch
    cdef Py_ssize_t index
    cdef list found = iter_batches(data)
    cdef dict begun = {}             # By producer id: what its last marker was followed by.
    cdef dict committed = {}         # By producer id: its last transaction.
    for index in range(len(found)):
        header = found[index]
        batch = &data[header.position_bytes]
        if header.attributes & ATTRIBUTE_CONTROL:
            one = begun.get(header.producer_id)
            earlier = committed.pop(header.producer_id, None)
            if one is not None and one.keys is not None and is_commit_marker(batch):
                one.marker = index
                if earlier is not None and earlier.keys == one.keys:
                    found[earlier.batch] = found[earlier.marker] = None
                committed[header.producer_id] = one
            begun[header.producer_id] = None
        elif header.attributes & ATTRIBUTE_TRANSACTIONAL and header.producer_id in begun:
            one = OpenTransaction.__new__(OpenTransaction)
            one.batch = index
            if begun[header.producer_id] is None:
                one.keys = keys_of(batch)
            begun[header.producer_id] = one
    return [one_header for one_header in found if one_header is not None]


cdef tuple keys_of(const uint8_t* batch):
    """The keys of a batch's records; None where they cannot be read, or one is null."""
    cdef NativeHeader header
    cdef RecordCursor cursor
    cdef Record record
    cdef Fault fault
    cdef list keys = []
    cdef int64_t _index
    batch_header_load(batch, &header)
    if check_uncompressed(&header, &fault) != STATUS_OK:
        return None
    cursor_open(&cursor, batch, &header)
    for _index in range(header.record_count):
        if cursor_next(&cursor, &record, &fault) != STATUS_OK or record.key_bytes < 0:
            return None
        # A tombstone stands at once, whatever the transaction comes to.
        if record.value_bytes < 0:
            return None
        keys.append(PyBytes_FromStringAndSize(<const char*>record.key, record.key_bytes))
    return tuple(keys)


cdef bint is_commit_marker(const uint8_t* batch):
    cdef NativeHeader header
    cdef int16_t marker_type = 0
    cdef int32_t coordinator_epoch = 0
    cdef int64_t timestamp = 0
    batch_header_load(batch, &header)
    return (header.record_count == 1
            and marker_load(batch, &header, &marker_type, &coordinator_epoch, &timestamp)
            and marker_type == MARKER_COMMIT)
