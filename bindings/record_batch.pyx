# cython: language_level=3
"""Records and batches as Python sees them: encode columns, look at headers, decode records."""

from eoslog import errors

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from eoslog.bindings.column_set cimport ColumnSet, open_columns
from eoslog.bindings.status cimport compression_name, raise_status
from eoslog.native.batch_encode cimport batch_bytes_bound, batch_encode, newest_timestamp
from eoslog.native.crc32c cimport crc32c as native_crc32c
from eoslog.native.crc32c cimport crc32c_implementation_name
from eoslog.native.crc32c_combine cimport crc32c_combine
from eoslog.native.record_batch cimport (
    ATTRIBUTE_LOG_APPEND_TIME, BATCH_ATTRIBUTES, BATCH_HEADER_BYTES, BatchHeader as NativeHeader,
    BatchIdentity, RecordCursor, batch_check, batch_header_load, check_uncompressed, cursor_next,
    cursor_open,
)
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_OK, Fault, Status
from eoslog.native.varint cimport load_varint


@cython.final
@cython.freelist(512)                # One poll's worth: made by the hundred and dropped.
cdef class Record:
    """One record as read: where it stands, when it was made, what it holds. Immutable."""

    def __init__(self, str topic, Py_ssize_t partition, Py_ssize_t offset, Py_ssize_t timestamp_ms,
                 Py_ssize_t timestamp_type, key, value, tuple headers=()):
        if partition != <int>partition or timestamp_type not in (0, 1):
            raise ValueError(f"partition {partition}, timestamp type {timestamp_type}")
        self.topic = topic
        self.partition = <int>partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.timestamp_type = <int>timestamp_type
        self.key = key
        self.value = value
        self.headers = headers

    def _fields(self):
        return (self.topic, self.partition, self.offset, self.timestamp_ms, self.timestamp_type,
                self.key, self.value, self.headers)

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self):
        return hash(self._fields())

    def __reduce__(self):
        return Record, self._fields()

    def __repr__(self):
        return (f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp_ms={self.timestamp_ms}, key={self.key!r:.60}, "
                f"value={self.value!r:.60})")


cdef Record make_record(
    const NativeRecord* native, str topic, int partition, int timestamp_type
):
    """Copy a decoded record into Python objects."""
    cdef Record record = Record.__new__(Record)
    record.topic = topic
    record.partition = partition
    record.offset = native.offset
    record.timestamp_ms = native.timestamp
    record.timestamp_type = timestamp_type
    record.key = None
    record.value = None
    record.headers = ()
    if native.key_bytes >= 0:
        record.key = PyBytes_FromStringAndSize(<const char*>native.key, native.key_bytes)
    if native.value_bytes >= 0:
        record.value = PyBytes_FromStringAndSize(<const char*>native.value, native.value_bytes)
    if native.header_count > 0:
        record.headers = decode_headers(native.headers, native.headers + native.headers_bytes)
    return record


cdef tuple decode_headers(const uint8_t* at, const uint8_t* end):
    """Headers of a record, past their count; the cursor found them whole."""
    cdef int32_t length = 0
    cdef list pairs = []
    while at < end:
        at = load_varint(at, end, &length)
        name = PyBytes_FromStringAndSize(<const char*>at, length).decode("utf-8", "replace")
        at += length
        at = load_varint(at, end, &length)
        if length < 0:
            pairs.append((name, None))
        else:
            pairs.append((name, PyBytes_FromStringAndSize(<const char*>at, length)))
            at += length
    return tuple(pairs)


@cython.final
cdef class BatchEncoder:
    """Encodes columns into whole v2 batches in one growing buffer of its own."""

    cdef uint8_t* _buffer
    cdef size_t _capacity_bytes

    def __cinit__(self, Py_ssize_t initial_bytes=1 << 20):
        self._buffer = NULL
        self._capacity_bytes = 0

    def __init__(self, Py_ssize_t initial_bytes=1 << 20):
        if initial_bytes < 0:
            raise ValueError(f"initial_bytes {initial_bytes}")
        self._reserve(<size_t>initial_bytes)

    def __dealloc__(self):
        free(self._buffer)

    cdef int _reserve(self, size_t wanted) except -1:
        cdef uint8_t* grown
        if wanted > self._capacity_bytes:
            grown = <uint8_t*>realloc(self._buffer, wanted)
            if grown == NULL:
                raise errors.OutOfMemoryError(f"a batch buffer of {wanted} bytes")
            self._buffer = grown
            self._capacity_bytes = wanted
        return 0

    def encode_columns(self, values, keys=None, timestamps=None, headers=None, *,
                       Py_ssize_t timestamp_ms, Py_ssize_t first=0, Py_ssize_t count=-1,
                       Py_ssize_t producer_id=-1, Py_ssize_t producer_epoch=-1,
                       Py_ssize_t base_sequence=-1, Py_ssize_t base_offset=0):
        """Encode records [first, first + count) of the columns as one batch.

        Answers the batch as bytes. `timestamp_ms` holds where no timestamps are given. Raises
        TypeError or ValueError on columns that are none or differ in length.
        """
        cdef ColumnSet opened = open_columns(values, keys, timestamps, headers, timestamp_ms)
        cdef BatchIdentity identity
        cdef int64_t batch_bytes
        cdef int64_t bound
        check_identity(producer_id, producer_epoch, base_sequence)
        if base_offset < 0:
            raise ValueError(f"base offset {base_offset}")
        if not 0 <= first <= opened.columns.count:
            raise ValueError(f"record {first} of {opened.columns.count}")
        if count < 0:
            count = opened.columns.count - first
        if count == 0 or count > opened.columns.count - first:
            raise ValueError(f"{count} records from {first} on, of {opened.columns.count}")
        bound = batch_bytes_bound(&opened.columns, first, count)
        if bound > 0x7FFFFFFF or count > 0x7FFFFFFF:
            raise ValueError(f"a batch of up to {bound} bytes; encode fewer records at once")
        self._reserve(<size_t>bound)
        identity.base_offset = base_offset
        identity.producer_id = producer_id
        identity.producer_epoch = <int16_t>producer_epoch
        identity.base_sequence = <int32_t>base_sequence
        identity.partition_leader_epoch = 0
        identity.attributes = 0
        with nogil:
            batch_bytes = batch_encode(
                self._buffer, &opened.columns, first, <int32_t>count, &identity, NULL,
                newest_timestamp(&opened.columns, first, count))
        return PyBytes_FromStringAndSize(<const char*>self._buffer, batch_bytes)


cdef int check_identity(
    Py_ssize_t producer_id, Py_ssize_t producer_epoch, Py_ssize_t base_sequence
) except -1:
    """A producer id comes with an epoch and a sequence, and without an id there are neither."""
    if producer_id >= 0:
        if 0 <= producer_epoch <= 0x7FFF and 0 <= base_sequence <= 0x7FFFFFFF:
            return 0
    elif producer_id == -1 and producer_epoch == -1 and base_sequence == -1:
        return 0
    raise ValueError(
        f"producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence}: all of "
        "them 0 or more, the epoch at most 32767, the sequence at most 2147483647; or all -1")


@cython.final
cdef class BatchHeader:
    """The header of one batch, by Kafka's names, and where it was found."""

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self):
        return compression_name(self.attributes)

    @property
    def is_transactional(self):
        return bool(self.attributes & 0x10)

    @property
    def is_control(self):
        return bool(self.attributes & 0x20)

    def __repr__(self):
        return (f"BatchHeader(base_offset={self.base_offset}, record_count={self.record_count}, "
                f"batch_bytes={self.batch_bytes}, producer_id={self.producer_id}, "
                f"producer_epoch={self.producer_epoch}, base_sequence={self.base_sequence})")


cdef BatchHeader make_header(const NativeHeader* native, int64_t position_bytes):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.position_bytes = position_bytes
    header.base_offset = native.base_offset
    header.batch_bytes = native.batch_bytes
    header.partition_leader_epoch = native.partition_leader_epoch
    header.magic = native.magic
    header.crc = native.crc
    header.attributes = native.attributes
    header.last_offset_delta = native.last_offset_delta
    header.base_timestamp = native.base_timestamp
    header.max_timestamp = native.max_timestamp
    header.producer_id = native.producer_id
    header.producer_epoch = native.producer_epoch
    header.base_sequence = native.base_sequence
    header.record_count = native.record_count
    return header


def iter_batches(const uint8_t[::1] data not None):
    """The headers of batches that stand back to back; each checksum is verified.

    Raises CorruptRecordError with the position of the first bad one.
    """
    cdef NativeHeader native
    cdef Fault fault
    cdef Py_ssize_t position = 0
    cdef Status status
    cdef list found = []
    memset(&fault, 0, sizeof(Fault))
    fault.base_offset = -1
    while position < data.shape[0]:
        with nogil:
            status = batch_check(&data[position], data.shape[0] - position, &native, &fault)
        if status != STATUS_OK:
            fault.position_bytes = position
            raise_status(status, &fault, "batches", "")
        found.append(make_header(&native, position))
        position += native.batch_bytes
    return found


def decode_records(const uint8_t[::1] batch not None, str topic="", Py_ssize_t partition=-1):
    """The records of one whole, uncompressed batch; its checksum is verified."""
    cdef NativeHeader header
    cdef RecordCursor cursor
    cdef NativeRecord native
    cdef Fault fault
    cdef Status status = STATUS_CORRUPT
    cdef list records = []
    cdef int32_t _index
    memset(&fault, 0, sizeof(Fault))
    fault.base_offset = -1
    fault.reason = b"no bytes"
    if not -1 <= partition <= 0x7FFFFFFF:
        raise ValueError(f"partition {partition}")
    if batch.shape[0]:
        status = batch_check(&batch[0], batch.shape[0], &header, &fault)
    if status != STATUS_OK:
        raise_status(status, &fault, "batch", "")
    status = check_uncompressed(&header, &fault)
    if status != STATUS_OK:
        raise_status(status, &fault, "batch", "")
    cursor_open(&cursor, &batch[0], &header)
    for _index in range(header.record_count):
        status = cursor_next(&cursor, &native, &fault)
        if status != STATUS_OK:
            raise_status(status, &fault, "batch", "")
        records.append(make_record(
            &native, topic, <int>partition,
            1 if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0))
    return records


def crc32c(const uint8_t[::1] data not None, Py_ssize_t crc=0):
    """CRC-32C of the data, or of what `crc` covers followed by the data."""
    if not 0 <= crc <= <Py_ssize_t>0xFFFFFFFF:
        raise ValueError(f"crc {crc}: 32 bits")
    if data.shape[0] == 0:
        return crc
    return native_crc32c(<uint32_t>crc, &data[0], <size_t>data.shape[0])


def batch_crc32c(const uint8_t[::1] batch not None, Py_ssize_t crc=0):
    """CRC-32C of one whole batch, or of what `crc` covers followed by it, without reading it again.

    The checksum in the batch's header is believed. Raises ValueError if the length is not the
    batch's own.
    """
    cdef NativeHeader header
    cdef uint32_t joined
    if not 0 <= crc <= <Py_ssize_t>0xFFFFFFFF:
        raise ValueError(f"crc {crc}: 32 bits")
    if batch.shape[0] >= BATCH_HEADER_BYTES:
        batch_header_load(&batch[0], &header)
        if header.batch_bytes == batch.shape[0]:
            joined = native_crc32c(<uint32_t>crc, &batch[0], BATCH_ATTRIBUTES)
            return crc32c_combine(joined, header.crc, <size_t>batch.shape[0] - BATCH_ATTRIBUTES)
    raise ValueError(f"{batch.shape[0]} bytes, which are not one whole batch")


def crc32c_implementation():
    """Name of the implementation chosen for this processor."""
    return (<bytes>crc32c_implementation_name()).decode()
