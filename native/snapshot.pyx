# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Producer state as a file: Kafka's .snapshot, version 1.

Invariants: the file named by an offset describes the state of all batches below it; it appears
under its name only when it is whole (written aside, then renamed). It keeps the last batch of a
producer, not all five.
"""
from libc.errno cimport errno
from libc.stdio cimport rename, snprintf
from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc

from eoslog.native.byte_order cimport (
    load_be16, load_be32, load_be64, store_be16, store_be32, store_be64,
)
from eoslog.native.crc32c cimport crc32c
from eoslog.native.io_fault cimport io_fault
from eoslog.native.mapped_io cimport (
    close_fd, eos_open, eos_pwrite_all, eos_sync_data, eos_truncate,
)
from eoslog.native.producer_table cimport table_at, table_insert
from eoslog.native.segment cimport segment_path
from eoslog.native.sequence_window cimport (
    NO_EPOCH, BatchMetadata, ProducerEntry, entry_clear, window_accept, window_at,
)
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_NO_MEMORY, STATUS_OK, fault

cdef extern from "<unistd.h>" nogil:
    int getpid() noexcept
    int unlink(const char* path) noexcept

cdef enum:
    SNAPSHOT_VERSION = 1
    SNAPSHOT_CRC = 2
    ENTRY_PRODUCER_ID = 0
    ENTRY_EPOCH = 8
    ENTRY_LAST_SEQUENCE = 10
    ENTRY_LAST_OFFSET = 14
    ENTRY_OFFSET_DELTA = 22
    ENTRY_TIMESTAMP = 26
    ENTRY_COORDINATOR_EPOCH = 34
    ENTRY_TXN_FIRST_OFFSET = 38


cdef void entry_store(uint8_t* at, ProducerEntry* entry) noexcept nogil:
    cdef BatchMetadata* last
    store_be64(at + ENTRY_PRODUCER_ID, entry.producer_id)
    store_be16(at + ENTRY_EPOCH, entry.producer_epoch)
    store_be32(at + ENTRY_LAST_SEQUENCE, -1)
    store_be64(at + ENTRY_LAST_OFFSET, -1)
    store_be32(at + ENTRY_OFFSET_DELTA, 0)
    if entry.batch_count > 0:
        last = window_at(entry, entry.batch_count - 1)
        store_be32(at + ENTRY_LAST_SEQUENCE, last.last_sequence)
        store_be64(at + ENTRY_LAST_OFFSET, last.last_offset)
        store_be32(at + ENTRY_OFFSET_DELTA, last.offset_delta)
    store_be64(at + ENTRY_TIMESTAMP, entry.last_timestamp)
    store_be32(at + ENTRY_COORDINATOR_EPOCH, entry.coordinator_epoch)
    store_be64(at + ENTRY_TXN_FIRST_OFFSET, entry.current_txn_first_offset)


cdef Status snapshot_write(
    const char* directory, int64_t offset, ProducerTable* producers, bint sync, Fault* out
) noexcept nogil:
    """Write the producers' state as the snapshot at `offset`; with `sync`, its bytes are on
    disk. One that has only been given its place in the table is none yet.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef char building[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t entry_count = producers.entry_count
    cdef int64_t file_bytes = SNAPSHOT_ENTRIES + entry_count * SNAPSHOT_ENTRY_BYTES
    cdef uint8_t* data = <uint8_t*>malloc(<size_t>file_bytes)
    cdef uint8_t* at
    cdef uint32_t index
    cdef int fd = -1
    cdef int error
    if data == NULL:
        return fault(out, STATUS_NO_MEMORY, "no memory for a producer snapshot", file_bytes, 0)
    at = data + SNAPSHOT_ENTRIES
    for index in range(producers.entry_count):
        if table_at(producers, index).producer_epoch != NO_EPOCH:
            entry_store(at, table_at(producers, index))
            at += SNAPSHOT_ENTRY_BYTES
    file_bytes = at - data
    store_be16(data, SNAPSHOT_VERSION)
    store_be32(data + SNAPSHOT_COUNT,
               <int32_t>((file_bytes - SNAPSHOT_ENTRIES) // SNAPSHOT_ENTRY_BYTES))
    store_be32(data + SNAPSHOT_CRC, <int32_t>crc32c(
        0, data + SNAPSHOT_COUNT, <size_t>(file_bytes - SNAPSHOT_COUNT)))
    segment_path(directory, offset, b".snapshot", path)
    # Several processes may write the snapshot of one offset, each of them the whole of it.
    snprintf(building, SEGMENT_PATH_BYTES_MAX, "%s/%020lld.%d.snapshot.tmp", directory,
             <long long>offset, <int>getpid())
    error = eos_open(building, True, False, &fd)
    if error == 0:
        error = eos_truncate(fd, 0)
        if error == 0:
            error = eos_pwrite_all(fd, data, <size_t>file_bytes, 0)
        if error == 0 and sync:
            error = eos_sync_data(fd)
        close_fd(fd)
    free(data)
    if error == 0 and rename(building, path) != 0:
        error = errno
    if error != 0:
        unlink(building)
        return io_fault(out, error, "a producer snapshot could not be written")
    return STATUS_OK


cdef Status snapshot_check(const uint8_t* data, int64_t data_bytes, Fault* out) noexcept nogil:
    """Check that a file is a snapshot, and whole: its size and its checksum."""
    cdef int64_t entry_count
    if data_bytes < SNAPSHOT_ENTRIES or load_be16(data) != SNAPSHOT_VERSION:
        return fault(
            out, STATUS_CORRUPT, "not a snapshot of version 1", SNAPSHOT_ENTRIES, data_bytes)
    entry_count = load_be32(data + SNAPSHOT_COUNT)
    if entry_count < 0 or data_bytes != SNAPSHOT_ENTRIES + entry_count * SNAPSHOT_ENTRY_BYTES:
        return fault(out, STATUS_CORRUPT, "a snapshot's size does not fit its count",
                     SNAPSHOT_ENTRIES + entry_count * SNAPSHOT_ENTRY_BYTES, data_bytes)
    if <uint32_t>load_be32(data + SNAPSHOT_CRC) != crc32c(
            0, data + SNAPSHOT_COUNT, <size_t>(data_bytes - SNAPSHOT_COUNT)):
        return fault(out, STATUS_CORRUPT, "a snapshot's checksum does not match its bytes", 0, 0)
    return STATUS_OK


cdef Status snapshot_load(
    const uint8_t* data, int64_t data_bytes, int64_t offset, ProducerTable* producers, Fault* out
) noexcept nogil:
    """Put the producers of the snapshot of an offset into the table."""
    cdef const uint8_t* at
    cdef ProducerEntry* entry
    cdef int64_t entry_count, index, txn_first_offset
    cdef Status status = snapshot_check(data, data_bytes, out)
    if status != STATUS_OK:
        return status
    entry_count = load_be32(data + SNAPSHOT_COUNT)
    for index in range(entry_count):
        at = data + SNAPSHOT_ENTRIES + index * SNAPSHOT_ENTRY_BYTES
        txn_first_offset = load_be64(at + ENTRY_TXN_FIRST_OFFSET)
        entry = table_insert(producers, load_be64(at + ENTRY_PRODUCER_ID))
        if entry == NULL:
            return fault(out, STATUS_NO_MEMORY, "no memory for the producers of a snapshot",
                         entry_count, index)
        entry_clear(entry, entry.producer_id)
        if load_be32(at + ENTRY_LAST_SEQUENCE) >= 0 or load_be64(at + ENTRY_LAST_OFFSET) >= 0:
            window_accept(
                entry, load_be16(at + ENTRY_EPOCH), load_be32(at + ENTRY_LAST_SEQUENCE),
                load_be32(at + ENTRY_OFFSET_DELTA), load_be64(at + ENTRY_LAST_OFFSET),
                load_be64(at + ENTRY_TIMESTAMP))
        # When it changed the snapshot does not say: at its offset at the latest. Rows that another
        # process stores later may be true below that, and then hold less.
        entry.changed_at_offset = offset
        entry.producer_epoch = load_be16(at + ENTRY_EPOCH)
        entry.last_timestamp = load_be64(at + ENTRY_TIMESTAMP)
        entry.coordinator_epoch = load_be32(at + ENTRY_COORDINATOR_EPOCH)
        entry.current_txn_first_offset = txn_first_offset
    return STATUS_OK
