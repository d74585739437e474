# cython: language_level=3
"""One partition's log for Python: owns the native log, its control page and its directories."""

import os
import re
import threading

import numpy

from eoslog import errors
from eoslog.bindings.status import ProducerNotCached  # noqa: F401 (raised by append and adopt)

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from eoslog.bindings.accumulator cimport RecordAccumulator
from eoslog.bindings.record_batch cimport ColumnSet, make_record, open_columns
from eoslog.bindings.status cimport raise_status
from eoslog.native.control_page cimport (
    CONTROL_PAGE_BYTES, ControlPage, control_init, control_load, control_lock, control_store,
    control_unlock,
)
from eoslog.native.log_append cimport (
    AppendOutcome, ProducerStamp, log_adopt, log_append_batch, log_append_columns,
)
from eoslog.native.log_read cimport (
    FetchColumns, FetchSizes, ReadRange, fetch_fill, fetch_measure, offset_for_timestamp,
    read_close, read_open, scan_headers,
)
from eoslog.native.log_recovery cimport log_open, log_replay, log_truncate
from eoslog.native.mapped_io cimport (
    close_fd, eos_file_bytes, eos_map, eos_open, eos_reserve, munmap,
)
from eoslog.native.partition_log cimport (
    PartitionLog as NativeLog, SegmentFile, log_close, log_delete_segments, log_end, log_flush,
    log_free, log_init, log_lock, log_roll, log_unlock, pthread_mutex_lock, pthread_mutex_unlock,
)
from eoslog.native.producer_table cimport (
    ProducerTable, table_at, table_evict, table_find, table_free, table_init, table_insert,
    table_memory_bytes, table_remove,
)
from eoslog.native.record_batch cimport (
    ATTRIBUTE_COMPRESSION_MASK, ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, BATCH_HEADER_BYTES,
    BATCH_MAGIC_V2, BatchHeader, BatchIdentity, Record as NativeRecord, RecordCursor, batch_check, batch_header_load,
    cursor_next, cursor_open,
)
from eoslog.native.segment cimport Segment, spare_fill
from eoslog.native.sequence_window cimport (
    BatchMetadata, ProducerEntry, entry_clear, metadata_first_sequence, window_at,
    window_last_sequence,
)
from eoslog.native.snapshot cimport snapshot_load, snapshot_write
from eoslog.native.status cimport (
    STATUS_CORRUPT, STATUS_NO_MEMORY, STATUS_OK, Fault, Status,
)

PRODUCER_ROW_BYTES = sizeof(ProducerEntry)

_SEGMENT_NAME = re.compile(r"^(\d{20})\.log$")
_SNAPSHOT_NAME = re.compile(r"^(\d{20})\.snapshot$")
_LEFTOVER_SUFFIXES = (".deleted", ".cleaned", ".snapshot.tmp")
_NO_LIMIT = 0x7FFFFFFFFFFFFFFF


def empty_row(int64_t producer_id):
    """The row of a producer of which nothing is known."""
    cdef ProducerEntry entry
    memset(&entry, 0, sizeof(ProducerEntry))
    entry_clear(&entry, producer_id)
    return PyBytes_FromStringAndSize(<const char*>&entry, sizeof(ProducerEntry))


@cython.final
cdef class AppendResult:
    """Where the records of one append are: new ones, or those of the first write."""

    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset        # Inclusive.
    cdef readonly int64_t record_count
    cdef readonly int64_t timestamp_ms
    cdef readonly bint duplicate             # Every record was in the log before the call.

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


@cython.final
cdef class ProducerState:
    """What the partition knows of one producer id."""

    cdef readonly int64_t producer_id
    cdef readonly int producer_epoch         # -1: nothing known.
    cdef readonly int32_t last_sequence      # -1: no data batch known.
    cdef readonly int64_t last_offset        # Of the last data batch, -1 if none.
    cdef readonly int64_t last_timestamp
    cdef readonly int32_t coordinator_epoch
    cdef readonly int64_t current_txn_first_offset
    cdef readonly tuple batches              # (first_sequence, last_sequence, first_offset, last_offset, timestamp)

    def __repr__(self):
        return (f"ProducerState(producer_id={self.producer_id}, producer_epoch="
                f"{self.producer_epoch}, last_sequence={self.last_sequence}, "
                f"last_offset={self.last_offset})")


cdef ProducerState make_state(ProducerEntry* entry):
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
        raise ValueError(f"a producer row of {len(row)} bytes, not {PRODUCER_ROW_BYTES}")
    memcpy(&entry, <const char*>row, sizeof(ProducerEntry))
    return make_state(&entry)


@cython.final
cdef class Columns:
    """Records of one fetch as columns, copied out of the log."""

    cdef readonly int64_t record_count
    cdef readonly int64_t next_offset
    cdef readonly object offsets             # int64
    cdef readonly object timestamps          # int64, milliseconds
    cdef readonly object key_data            # uint8
    cdef readonly object key_offsets         # int32, record_count + 1
    cdef readonly object key_validity        # uint8 bitmap (bit set = not null), None without nulls
    cdef readonly object value_data
    cdef readonly object value_offsets
    cdef readonly object value_validity
    cdef readonly object headers             # list of tuples of (str, bytes | None), None if no record has any


@cython.final
cdef class PartitionLog:
    """The engine's log of one partition. Appends take its lock; reads take none.

    Durability: an append survives the death of this process when it returned; it survives a power cut
    once flush() returned.
    """

    cdef NativeLog _log
    cdef uint8_t* _page_map
    cdef bytes _directory_bytes, _spare_bytes, _cut_bytes
    cdef readonly str path
    cdef readonly str topic
    cdef readonly int partition
    cdef object _close_lock

    def __cinit__(self):
        memset(&self._log, 0, sizeof(NativeLog))
        self._page_map = NULL

    def __init__(self, str path, *, str topic, int partition, str control_path, str spare_path,
                 str cut_path, dict config, bint clean, int64_t recovery_point=0,
                 int64_t log_start_offset=0):
        if self._page_map != NULL:
            raise ValueError("a partition log is opened once")
        self.path = path
        self.topic = topic
        self.partition = partition
        self._close_lock = threading.Lock()
        self._directory_bytes = os.fsencode(path)
        self._spare_bytes = os.fsencode(spare_path)
        self._cut_bytes = os.fsencode(cut_path)
        for directory in (spare_path, cut_path, os.path.dirname(control_path)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        self._log.directory = self._directory_bytes
        self._log.spare_directory = self._spare_bytes
        self._log.cut_directory = self._cut_bytes
        self._set_options(config)
        log_init(&self._log)
        self._open_page(control_path)
        self._open_log(clean, recovery_point, log_start_offset)

    def __dealloc__(self):
        log_free(&self._log)
        if self._page_map != NULL:
            munmap(self._page_map, CONTROL_PAGE_BYTES)

    cdef int _set_options(self, dict config) except -1:
        self._log.options.segment.segment_bytes = config["segment.bytes"]
        self._log.options.segment.segment_index_bytes = config["segment.index.bytes"]
        self._log.options.segment.index_interval_bytes = config["index.interval.bytes"]
        self._log.options.segment_ms = config["segment.ms"]
        self._log.options.max_message_bytes = config["max.message.bytes"]
        self._log.options.timestamp_before_max_ms = config.get(
            "message.timestamp.before.max.ms", _NO_LIMIT)
        self._log.options.timestamp_after_max_ms = config.get(
            "message.timestamp.after.max.ms", _NO_LIMIT)
        self._log.options.spare_segments = config.get("eoslog.spare.segments", 1)
        self._log.options.leader_epoch = 0
        if not 0 < self._log.options.segment.segment_bytes <= 0x7FFFFFFF:
            raise ValueError(f"segment.bytes {config['segment.bytes']}")
        return 0

    cdef int _open_page(self, str control_path) except -1:
        cdef bytes path = os.fsencode(control_path)
        cdef bytes boot_id = _boot_id()
        cdef int64_t file_bytes = 0
        cdef int64_t modified_ms = 0
        cdef int fd = -1
        cdef int error = eos_open(path, True, False, &fd)
        if error == 0:
            error = eos_file_bytes(fd, &file_bytes, &modified_ms)
            if error == 0 and file_bytes < CONTROL_PAGE_BYTES:
                error = eos_reserve(fd, 0, CONTROL_PAGE_BYTES)
            if error == 0:
                error = eos_map(fd, CONTROL_PAGE_BYTES, True, &self._page_map)
            close_fd(fd)
        if error == 0:
            self._log.page = <ControlPage*>self._page_map
            error = control_init(self._log.page, <const uint8_t*><const char*>boot_id)
        if error != 0:
            raise OSError(error, os.strerror(error), control_path)
        return 0

    cdef int _open_log(self, bint clean, int64_t recovery_point, int64_t log_start) except -1:
        cdef list found = []
        cdef SegmentFile* files
        cdef Fault fault
        cdef Status status
        cdef int32_t count
        cdef Py_ssize_t index
        names = set(os.listdir(self.path))
        for name in sorted(names):
            match = _SEGMENT_NAME.match(name)
            if match:
                found.append((int(match[1]), os.path.getsize(os.path.join(self.path, name))))
            elif name.endswith(_LEFTOVER_SUFFIXES) or (
                    name.endswith((".index", ".timeindex")) and name[:20] + ".log" not in names):
                os.unlink(os.path.join(self.path, name))
        count = <int32_t>len(found)
        files = <SegmentFile*>malloc((count + 1) * sizeof(SegmentFile))
        if files == NULL:
            raise MemoryError(f"{count} segments")
        for index in range(count):
            files[index].base_offset = found[index][0]
            files[index].file_bytes = found[index][1]
        self._fault_init(&fault)
        with nogil:
            status = log_open(
                &self._log, files, count, clean, recovery_point, log_start, &fault)
        free(files)
        if status != STATUS_OK:
            self._raise(status, &fault)
        self._remove_stray_snapshots()
        return 0

    cdef void _fault_init(self, Fault* fault) noexcept:
        memset(fault, 0, sizeof(Fault))
        fault.base_offset = -1

    cdef int _raise(self, Status status, Fault* fault) except -1:
        return raise_status(status, fault, f"{self.topic}-{self.partition}", self.path)

    cdef int _check_open(self) except -1:
        if self._page_map == NULL or self._log.closed or not self._log.opened:
            raise errors.LogClosedError(f"{self.topic}-{self.partition} is closed")
        return 0

    # --- Appending -------------------------------------------------------------------------------

    def append_columns(self, values, keys=None, timestamps=None, headers=None, *,
                       int64_t timestamp_ms, int64_t producer_id=-1, int producer_epoch=-1,
                       int32_t base_sequence=-1, int64_t batch_records_max=0,
                       int64_t batch_bytes_max=0):
        """Append all records of the columns and return an AppendResult.

        They are split into batches of at most batch_records_max records and batch_bytes_max bytes
        (0: max.message.bytes). A duplicate returns the first write's offsets. On an error in the
        middle (a full disk), the exception's `appended_record_count` says how many are in.
        """
        cdef ColumnSet opened = open_columns(values, keys, timestamps, headers, timestamp_ms)
        cdef ProducerStamp stamp
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        self._check_open()
        if opened.columns.count == 0:
            raise ValueError("no records to append")
        check_identity(producer_id, producer_epoch, base_sequence)
        stamp.producer_id = producer_id
        stamp.producer_epoch = <int16_t>producer_epoch
        stamp.base_sequence = base_sequence
        memset(&outcome, 0, sizeof(AppendOutcome))
        self._fault_init(&fault)
        with nogil:
            status = log_append_columns(
                &self._log, &opened.columns, &stamp, batch_records_max, batch_bytes_max, &outcome,
                &fault)
        if status < 0:
            self._raise_append(status, &fault, &outcome)
        return make_result(&outcome)

    cdef int _raise_append(
        self, Status status, Fault* fault, const AppendOutcome* outcome
    ) except -1:
        try:
            self._raise(status, fault)
        except Exception as error:
            error.appended_record_count = outcome.record_count
            raise

    def append_batch(self, batch not None):
        """Append one whole v2 batch as a client builds it (base offset 0); an AppendResult.

        A leader's checks apply: checksum, size, counts, deltas, timestamps. Nothing is written on an error.
        """
        # A copy unless it is bytes: nobody may change it between the checksum and the write.
        cdef const uint8_t[::1] whole = batch if isinstance(batch, bytes) else bytes(batch)
        cdef AppendOutcome outcome
        cdef Fault fault
        cdef Status status
        self._check_open()
        if whole.shape[0] == 0:
            raise errors.CorruptRecordError("", 0, "no bytes")
        memset(&outcome, 0, sizeof(AppendOutcome))
        self._fault_init(&fault)
        with nogil:
            status = log_append_batch(
                &self._log, &whole[0], whole.shape[0], &outcome, &fault)
        if status < 0:
            raise_status(status, &fault, f"{self.topic}-{self.partition}", "")
        return make_result(&outcome)

    def append_accumulated(self, RecordAccumulator accumulator not None, int64_t producer_id,
                           int producer_epoch, int32_t base_sequence):
        """Append what the accumulator holds as one batch, and empty it; an AppendResult.

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
        identity.base_sequence = base_sequence
        identity.producer_epoch = <int16_t>producer_epoch
        identity.attributes = 0
        accumulator.finish(&identity)
        memset(&outcome, 0, sizeof(AppendOutcome))
        self._fault_init(&fault)
        accumulator._busy = True
        with nogil:
            status = log_append_batch(
                &self._log, accumulator._buffer, accumulator._used_bytes, &outcome, &fault)
        accumulator._busy = False
        if status < 0:
            raise_status(status, &fault, f"{self.topic}-{self.partition}", "")
        accumulator.reset()
        return make_result(&outcome)

    def adopt(self, const uint8_t[::1] data not None, int64_t producer_id):
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
        memset(&outcome, 0, sizeof(AppendOutcome))
        self._fault_init(&fault)
        with nogil:
            status = log_adopt(
                &self._log, &data[0], data.shape[0], producer_id, &outcome, &fault)
        if status < 0:
            raise_status(status, &fault, f"{self.topic}-{self.partition}", "")
        return (outcome.base_offset if outcome.record_count else -1), outcome.record_count

    # --- Reading ---------------------------------------------------------------------------------

    cdef int64_t _bound(self, int64_t upper_bound) noexcept nogil:
        cdef int64_t end = log_end(&self._log)
        return end if upper_bound < 0 or upper_bound > end else upper_bound

    def read(self, int64_t offset, int64_t max_bytes=1 << 20, int64_t upper_bound=-1):
        """Whole batches from the one that holds `offset` on: at least one, at most max_bytes.

        The first may begin below `offset`. Empty at the end of the log.
        """
        cdef ReadRange found
        cdef Fault fault
        cdef Status status
        self._check_open()
        self._fault_init(&fault)
        with nogil:
            status = read_open(
                &self._log, offset, self._bound(upper_bound), max_bytes, &found, &fault)
        if status != STATUS_OK:
            self._raise_read(status, &fault, offset)
        if found.segment == NULL:
            return b""
        try:
            return PyBytes_FromStringAndSize(<const char*>found.data, found.data_bytes)
        finally:
            read_close(&self._log, &found)

    cdef int _raise_read(self, Status status, Fault* fault, int64_t offset) except -1:
        return raise_status(
            status, fault, f"{self.topic}-{self.partition} at offset {offset}", self.path)

    def fetch_columns(self, int64_t offset, int64_t max_bytes=1 << 23, int64_t upper_bound=-1,
                      int64_t max_records=-1):
        """Records from `offset` on as Columns, checksums verified; None where there are none.

        Control records are passed over: `next_offset` is where to go on. A single batch may exceed
        max_bytes.
        """
        cdef ReadRange found
        cdef FetchSizes sizes
        cdef Fault fault
        cdef Status status
        cdef Columns columns
        cdef int64_t bound
        self._check_open()
        bound = self._bound(upper_bound)
        self._fault_init(&fault)
        with nogil:
            status = read_open(&self._log, offset, bound, max_bytes, &found, &fault)
        if status != STATUS_OK:
            self._raise_read(status, &fault, offset)
        if found.segment == NULL:
            return None
        try:
            with nogil:
                status = fetch_measure(&found, offset, bound, max_records, &sizes, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            columns = Columns.__new__(Columns)
            status = self._fill(&found, offset, &sizes, columns, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            if sizes.header_count:
                columns.headers = self._headers(&found, offset, sizes.record_count)
            return columns
        finally:
            read_close(&self._log, &found)

    cdef Status _fill(
        self, const ReadRange* found, int64_t offset, const FetchSizes* sizes, Columns columns,
        Fault* fault,
    ) except *:
        cdef int64_t count = sizes.record_count
        cdef FetchColumns target
        cdef int64_t[::1] offsets = numpy.empty(count, numpy.int64)
        cdef int64_t[::1] timestamps = numpy.empty(count, numpy.int64)
        cdef int32_t[::1] key_offsets = numpy.empty(count + 1, numpy.int32)
        cdef int32_t[::1] value_offsets = numpy.empty(count + 1, numpy.int32)
        cdef uint8_t[::1] key_data = numpy.empty(sizes.key_bytes, numpy.uint8)
        cdef uint8_t[::1] value_data = numpy.empty(sizes.value_bytes, numpy.uint8)
        cdef uint8_t[::1] key_validity = None
        cdef uint8_t[::1] value_validity = None
        cdef Status status
        memset(&target, 0, sizeof(FetchColumns))
        target.offsets = &offsets[0] if count else NULL
        target.timestamps = &timestamps[0] if count else NULL
        target.key_offsets = &key_offsets[0]
        target.value_offsets = &value_offsets[0]
        target.key_data = &key_data[0] if sizes.key_bytes else NULL
        target.value_data = &value_data[0] if sizes.value_bytes else NULL
        if sizes.null_key_count:
            key_validity = numpy.zeros((count + 7) // 8, numpy.uint8)
            target.key_validity = &key_validity[0]
            columns.key_validity = key_validity.base
        if sizes.null_value_count:
            value_validity = numpy.zeros((count + 7) // 8, numpy.uint8)
            target.value_validity = &value_validity[0]
            columns.value_validity = value_validity.base
        with nogil:
            status = fetch_fill(found, offset, sizes, &target, fault)
        columns.record_count = count
        columns.next_offset = sizes.next_offset
        columns.offsets = offsets.base
        columns.timestamps = timestamps.base
        columns.key_offsets = key_offsets.base
        columns.value_offsets = value_offsets.base
        columns.key_data = key_data.base
        columns.value_data = value_data.base
        return status

    cdef list _headers(self, const ReadRange* found, int64_t offset, int64_t record_count):
        """Headers of the records that fetch_fill copied; only where some record has any."""
        cdef list headers = []
        for record in self._records(found, offset, record_count):
            headers.append(record.headers)
        return headers

    cdef list _records(self, const ReadRange* found, int64_t offset, int64_t record_count):
        """Records of a range that fetch_measure verified, from `offset` on."""
        cdef list records = []
        cdef int64_t position = 0
        cdef BatchHeader header
        cdef RecordCursor cursor
        cdef NativeRecord native
        cdef Fault fault
        cdef int32_t index
        cdef int timestamp_type
        while position < found.data_bytes and len(records) < record_count:
            if batch_check(found.data + position, found.data_bytes - position, &header, &fault) < 0:
                break
            timestamp_type = 1 if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else 0
            if not header.attributes & ATTRIBUTE_CONTROL:
                cursor_open(&cursor, found.data + position, &header)
                for index in range(header.record_count):
                    if len(records) == record_count:
                        break
                    if cursor_next(&cursor, &native, &fault) != STATUS_OK:
                        break
                    if native.offset >= offset:
                        records.append(
                            make_record(&native, self.topic, self.partition, timestamp_type))
            position += header.batch_bytes
        return records

    def fetch_records(self, int64_t offset, int64_t max_records=500, int64_t max_bytes=1 << 20,
                      int64_t upper_bound=-1):
        """Records from `offset` on as (list of Record, offset to go on from)."""
        cdef ReadRange found
        cdef FetchSizes sizes
        cdef Fault fault
        cdef Status status
        cdef int64_t bound
        self._check_open()
        bound = self._bound(upper_bound)
        self._fault_init(&fault)
        with nogil:
            status = read_open(&self._log, offset, bound, max_bytes, &found, &fault)
        if status != STATUS_OK:
            self._raise_read(status, &fault, offset)
        if found.segment == NULL:
            return [], offset
        try:
            with nogil:
                status = fetch_measure(&found, offset, bound, max_records, &sizes, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            return self._records(&found, offset, sizes.record_count), sizes.next_offset
        finally:
            read_close(&self._log, &found)

    def scan_headers(self, int64_t offset=0, int64_t upper_bound=-1):
        """Walk the batch headers from `offset` on: (batches, records, offset behind the last)."""
        cdef int64_t batch_count = 0
        cdef int64_t record_count = 0
        cdef int64_t next_offset = offset
        cdef int64_t bound
        cdef Fault fault
        cdef Status status
        self._check_open()
        bound = self._bound(upper_bound)
        self._fault_init(&fault)
        with nogil:
            status = scan_headers(
                &self._log, offset, bound, &batch_count, &record_count, &next_offset, &fault)
        if status != STATUS_OK:
            self._raise_read(status, &fault, next_offset)
        return batch_count, record_count, next_offset

    def offset_for_timestamp(self, int64_t timestamp_ms, int64_t upper_bound=-1):
        """First record with a timestamp >= timestamp_ms as (offset, timestamp), or None."""
        cdef int64_t offset = -1
        cdef int64_t timestamp = -1
        cdef int64_t bound
        cdef Fault fault
        cdef Status status
        self._check_open()
        bound = self._bound(upper_bound)
        self._fault_init(&fault)
        with nogil:
            status = offset_for_timestamp(
                &self._log, timestamp_ms, bound, &offset, &timestamp, &fault)
        if status != STATUS_OK:
            self._raise_read(status, &fault, offset)
        return None if offset < 0 else (offset, timestamp)

    # --- State -----------------------------------------------------------------------------------

    @property
    def log_start_offset(self):
        self._check_open()
        return control_load(&self._log.page.log_start_offset)

    @property
    def log_end_offset(self):
        self._check_open()
        return log_end(&self._log)

    @property
    def high_watermark(self):
        self._check_open()
        return control_load(&self._log.page.high_watermark)

    @property
    def last_stable_offset(self):
        self._check_open()
        return control_load(&self._log.page.last_stable_offset)

    @property
    def recovery_point(self):
        """Everything below is synced."""
        return self._log.recovery_point

    @property
    def cut_bytes(self):
        """Bytes that recovery cut off on opening and kept in the cut directory."""
        return self._log.cut_bytes

    @property
    def failed(self):
        """Whether a sync failed: appends are refused until the store was reopened."""
        return self._log.failed_errno != 0

    @property
    def segment_count(self):
        return self._log.segment_count

    @property
    def active_base_offset(self):
        self._check_open()
        return control_load(&self._log.page.active_base_offset)

    @property
    def size_bytes(self):
        """Bytes of all batches."""
        return sum(segment["size_bytes"] for segment in self.segments())

    def segments(self):
        """One dict a segment, oldest first: base_offset, size_bytes, largest_timestamp_ms, path."""
        cdef list found = []
        cdef Segment* segment
        cdef int32_t index
        self._check_open()
        pthread_mutex_lock(&self._log.segments_lock)
        for index in range(self._log.segment_count):
            segment = self._log.segments[index]
            found.append([segment.base_offset, segment.used_bytes, segment.max_timestamp,
                          segment.loaded, segment.time_index.count])
        pthread_mutex_unlock(&self._log.segments_lock)
        return [self._describe(*fields) for fields in found]

    def _describe(self, base_offset, size_bytes, max_timestamp, loaded, time_entries):
        path = os.path.join(self.path, f"{base_offset:020d}.log")
        if max_timestamp < 0 and not loaded:
            max_timestamp = _last_time_entry(path[:-4] + ".timeindex")
        if max_timestamp < 0:
            max_timestamp = int(os.path.getmtime(path) * 1000)
        return {"base_offset": base_offset, "size_bytes": size_bytes,
                "largest_timestamp_ms": max_timestamp, "path": path}

    # --- Durability and maintenance --------------------------------------------------------------

    def flush(self, bint with_indexes=True):
        """Sync all that was appended before the call; the new recovery point.

        `with_indexes` also writes index entries, so that a recovery begins at the last of them and not
        at the segment's start: for checkpoints, not for each commit.

        Raises StoreFailedError when the sync fails: what the disk holds is then unknown, and the log
        refuses appends until it was recovered.
        """
        cdef Fault fault
        cdef Status status
        self._check_open()
        self._fault_init(&fault)
        with nogil:
            status = log_flush(&self._log, with_indexes, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return self._log.recovery_point

    def roll(self):
        """Seal the active segment, if it holds records, and start the next; its base offset."""
        cdef Fault fault
        cdef Status status
        self._check_open()
        self._fault_init(&fault)
        with nogil:
            status = log_lock(&self._log, &fault)
            if status == STATUS_OK:
                status = log_roll(&self._log, &fault)
                log_unlock(&self._log)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return self.active_base_offset

    def delete_segments(self, int64_t up_to_offset):
        """Delete the oldest segments that end at or below up_to_offset; how many went.

        The log start offset moves to the first one left. Files are kept as spares, up to
        eoslog.spare.segments. The caller has written down what it needs of them.
        """
        cdef int32_t deleted = 0
        cdef Fault fault
        cdef Status status
        self._check_open()
        self._fault_init(&fault)
        with nogil:
            status = log_lock(&self._log, &fault)
            if status == STATUS_OK:
                deleted = log_delete_segments(&self._log, up_to_offset)
                log_unlock(&self._log)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return deleted

    def advance_log_start(self, int64_t offset):
        """Raise the log start offset; records below it can no longer be read."""
        self._check_open()
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise errors.OffsetOutOfRangeError(
                f"{self.topic}-{self.partition}: log start {offset} is not in "
                f"[{self.log_start_offset}, {self.high_watermark}]")
        control_store(&self._log.page.log_start_offset, offset)
        return offset

    def truncate(self, int64_t offset):
        """Cut the log back to end at `offset` and rebuild the producers from what is left."""
        cdef Fault fault
        cdef Status status
        self._check_open()
        if offset < 0:
            raise ValueError(f"offset {offset}")
        self._fault_init(&fault)
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

    def prepare_spare(self, int count=1):
        """Fill free spare slots, `count` at most, with zeroed files of segment.bytes; how many."""
        cdef int32_t made = 0
        cdef Fault fault
        cdef Status status
        self._check_open()
        if not 0 <= count <= self._log.options.spare_segments:
            raise ValueError(
                f"{count} spare files; eoslog.spare.segments is {self._log.options.spare_segments}")
        self._fault_init(&fault)
        with nogil:
            status = spare_fill(self._log.spare_directory, count,
                                self._log.options.segment.segment_bytes, &made, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return made

    def close(self, bint clean=True):
        """Take no more appends; with `clean`, leave the files as Kafka does. May be called twice."""
        cdef Fault fault
        cdef Status status = STATUS_OK
        with self._close_lock:
            if self._page_map == NULL or self._log.closed or not self._log.opened:
                return
            self._fault_init(&fault)
            with nogil:
                status = log_close(&self._log, clean, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        if clean:
            self._remove_stray_snapshots()

    # --- Producers -------------------------------------------------------------------------------

    def restore_producers(self, bytes rows, int64_t rows_offset, int64_t evicted_count=0):
        """Fill the producer table. Says from what: "rows", "snapshot" or "log".

        `rows` (PRODUCER_ROW_BYTES each) are true for all batches below rows_offset; the rest is
        replayed. None stands for no rows: the newest readable .snapshot serves, else the whole log.
        """
        self._check_open()
        self._clear_producers()
        if rows is not None and rows_offset <= self.log_end_offset:
            _load_rows(&self._log.producers, rows)
            self._log.producers.evicted_count = evicted_count
            self._log.producers.persisted_offset = rows_offset
            self._replay(rows_offset)
            return "rows"
        snapshot = self._load_newest_snapshot()
        self._log.producers.persisted_offset = -1
        self._replay(max(snapshot, 0))
        return "snapshot" if snapshot >= 0 else "log"

    cdef int _clear_producers(self) except -1:
        while self._log.producers.entry_count:
            table_remove(&self._log.producers, table_at(&self._log.producers, 0).producer_id)
        self._log.producers.evicted_count = 0
        self._log.producers.persisted_offset = -1
        return 0

    cdef int _replay(self, int64_t from_offset) except -1:
        cdef Fault fault
        cdef Status status
        self._fault_init(&fault)
        with nogil:
            status = log_replay(&self._log, from_offset, &fault)
        if status != STATUS_OK:
            self._raise(status, &fault)
        return 0

    def _snapshot_path(self, offset):
        return os.path.join(self.path, f"{offset:020d}.snapshot")

    def snapshots(self):
        """Offsets of the .snapshot files, in order."""
        return sorted(int(match[1]) for match in map(_SNAPSHOT_NAME.match, os.listdir(self.path))
                      if match)

    cdef int64_t _load_newest_snapshot(self) except -2:
        """Load the newest snapshot that can be read and is not beyond the log; its offset or -1.

        Unreadable ones, those beyond the log end and those below the log start are deleted.
        """
        cdef const uint8_t[::1] data
        cdef Fault fault
        cdef Status status
        cdef int64_t start = control_load(&self._log.page.log_start_offset)
        cdef int64_t end = log_end(&self._log)
        for offset in reversed(self.snapshots()):
            path = self._snapshot_path(offset)
            # At the log start too: it may be all that remembers producers whose batches were deleted.
            if start <= offset <= end:
                with open(path, "rb") as file:
                    raw = file.read()
                self._fault_init(&fault)
                status = STATUS_CORRUPT
                if raw:
                    data = raw
                    status = snapshot_load(
                        &data[0], data.shape[0], -0x7FFFFFFFFFFFFFFF, &self._log.producers, &fault)
                if status == STATUS_OK:
                    self._log.snapshot_offset = offset
                    return offset
                self._clear_producers()
            os.unlink(path)
        return -1

    def _remove_stray_snapshots(self):
        """Keep the snapshots of live segments, and of all others the newest that the log reaches."""
        bases = {int(match[1]) for match in map(_SEGMENT_NAME.match, os.listdir(self.path)) if match}
        stray = [offset for offset in self.snapshots() if offset not in bases]
        end = log_end(&self._log)
        newest = max((offset for offset in stray if offset <= end), default=-1)
        if newest >= max(bases, default=0):
            stray.remove(newest)
        for offset in stray:
            os.unlink(self._snapshot_path(offset))

    def producer_ids_since(self, int64_t offset):
        """Ids of the producers with batches at or above `offset`: whose rows a replay needs."""
        cdef set found = set()
        cdef int64_t position
        cdef ReadRange batches
        cdef BatchHeader header
        cdef Fault fault
        cdef Status status
        self._check_open()
        offset = max(offset, self.log_start_offset)
        while offset < self.log_end_offset:
            self._fault_init(&fault)
            status = read_open(
                &self._log, offset, log_end(&self._log), 1 << 26, &batches, &fault)
            if status != STATUS_OK:
                self._raise_read(status, &fault, offset)
            if batches.segment == NULL:
                break
            position = 0
            while position < batches.data_bytes:
                batch_header_load(batches.data + position, &header)
                if header.producer_id >= 0:
                    found.add(header.producer_id)
                position += header.batch_bytes
            offset = batches.next_offset
            read_close(&self._log, &batches)
        return found

    def dirty_producers(self):
        """Rows changed since the last producers_persisted, and the offset they are true at."""
        cdef list rows = []
        cdef ProducerEntry* entry
        cdef int64_t end
        cdef uint32_t index
        self._check_open()
        with nogil:
            control_lock(self._log.page)
        try:
            end = log_end(&self._log)
            for index in range(self._log.producers.entry_count):
                entry = table_at(&self._log.producers, index)
                if entry.changed_at_offset > self._log.producers.persisted_offset:
                    rows.append(PyBytes_FromStringAndSize(<const char*>entry, sizeof(ProducerEntry)))
        finally:
            control_unlock(self._log.page)
        return b"".join(rows), end

    def producers_persisted(self, int64_t offset):
        """The rows of dirty_producers are stored: they need not be handed out again."""
        self._check_open()
        if offset > self._log.producers.persisted_offset:
            self._log.producers.persisted_offset = offset

    def evict_producers(self, uint32_t keep_max):
        """Drop the longest idle stored producers from memory until keep_max are left; how many."""
        cdef uint32_t evicted
        self._check_open()
        with nogil:
            control_lock(self._log.page)
            evicted = table_evict(&self._log.producers, keep_max)
            control_unlock(self._log.page)
        return evicted

    def install_producer(self, bytes row not None, bint was_evicted=True):
        """Put a row into the table if its producer is not there."""
        cdef ProducerEntry entry
        cdef ProducerEntry* target
        self._check_open()
        if len(row) != PRODUCER_ROW_BYTES:
            raise ValueError(f"a producer row of {len(row)} bytes, not {PRODUCER_ROW_BYTES}")
        memcpy(&entry, <const char*>row, sizeof(ProducerEntry))
        if entry.batch_count > 5 or entry.batch_first > 4:
            raise ValueError(f"a producer row with {entry.batch_count} batches")
        with nogil:
            control_lock(self._log.page)
            target = table_find(&self._log.producers, entry.producer_id)
            if target == NULL:
                target = table_insert(&self._log.producers, entry.producer_id)
                if target != NULL:
                    target[0] = entry
                    if was_evicted and self._log.producers.evicted_count > 0:
                        self._log.producers.evicted_count -= 1
            control_unlock(self._log.page)
        if target == NULL:
            raise MemoryError("no memory for another producer")

    def expired_producers(self, int64_t oldest_timestamp_ms):
        """Ids last seen before the given time that have no open transaction."""
        cdef list ids = []
        cdef ProducerEntry* entry
        cdef uint32_t index
        self._check_open()
        with nogil:
            control_lock(self._log.page)
        try:
            for index in range(self._log.producers.entry_count):
                entry = table_at(&self._log.producers, index)
                if entry.current_txn_first_offset < 0 and entry.last_timestamp < oldest_timestamp_ms:
                    ids.append(entry.producer_id)
        finally:
            control_unlock(self._log.page)
        return ids

    def drop_producers(self, ids):
        """Forget producers; those with an open transaction stay. How many went."""
        cdef int64_t producer_id
        cdef ProducerEntry* entry
        cdef int dropped = 0
        self._check_open()
        for value in ids:
            producer_id = value
            with nogil:
                control_lock(self._log.page)
                entry = table_find(&self._log.producers, producer_id)
                if entry != NULL and entry.current_txn_first_offset < 0:
                    table_remove(&self._log.producers, producer_id)
                    dropped += 1
                control_unlock(self._log.page)
        return dropped

    def producer(self, int64_t producer_id):
        """The ProducerState of an id in memory, or None."""
        cdef ProducerEntry copied
        cdef ProducerEntry* entry
        self._check_open()
        with nogil:
            control_lock(self._log.page)
            entry = table_find(&self._log.producers, producer_id)
            if entry != NULL:
                copied = entry[0]
            control_unlock(self._log.page)
        return None if entry == NULL else make_state(&copied)

    def producers(self):
        """The ProducerState of every id in memory."""
        cdef list entries = []
        cdef uint32_t index
        self._check_open()
        with nogil:
            control_lock(self._log.page)
        try:
            for index in range(self._log.producers.entry_count):
                entries.append(make_state(table_at(&self._log.producers, index)))
        finally:
            control_unlock(self._log.page)
        return entries

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

    def take_snapshot(self, bint sync=False, bytes evicted_rows=b""):
        """Write a .snapshot at the log end; its path, or None when there is nothing new.

        `evicted_rows` are the rows of producers that are not in memory: the snapshot is to be complete.
        With `sync` it survives a power cut.
        """
        cdef ProducerTable table
        cdef Fault fault
        cdef Status status = STATUS_OK
        cdef int64_t end
        self._check_open()
        self._fault_init(&fault)
        table_init(&table)
        try:
            _load_rows(&table, evicted_rows)
            with nogil:
                control_lock(self._log.page)
                end = log_end(&self._log)
                if end > self._log.snapshot_offset and end > 0:
                    status = copy_entries(&table, &self._log.producers, &fault)
                    if status == STATUS_OK:
                        status = snapshot_write(self._log.directory, end, &table, sync, &fault)
                    if status == STATUS_OK:
                        self._log.snapshot_offset = end
                else:
                    end = -1
                control_unlock(self._log.page)
        finally:
            table_free(&table)
        if status != STATUS_OK:
            self._raise(status, &fault)
        if sync and end >= 0:
            self._sync_directory()
        return None if end < 0 else self._snapshot_path(end)

    def _sync_directory(self):
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- Verification ----------------------------------------------------------------------------

    def verify(self):
        """Check every batch and index entry; a list of {"path", "position_bytes", "reason"}."""
        cdef list problems = []
        cdef int64_t expected = -1
        self._check_open()
        for segment in self.segments():
            expected = self._verify_segment(segment, expected, problems)
        return problems

    cdef int64_t _verify_segment(self, dict described, int64_t expected, list problems) except -2:
        cdef const uint8_t[::1] data
        cdef BatchHeader header
        cdef Fault fault
        cdef Status status
        cdef int64_t position = 0
        cdef int64_t size = described["size_bytes"]
        cdef dict batches = {}
        raw = numpy.memmap(described["path"], numpy.uint8, "r") if size else numpy.empty(0, numpy.uint8)
        if raw.shape[0] < size:
            problems.append({"path": described["path"], "position_bytes": raw.shape[0],
                             "reason": f"the file is shorter than its {size} bytes"})
            size = raw.shape[0]
        data = raw
        if expected < 0:
            expected = described["base_offset"]
        while position < size:
            self._fault_init(&fault)
            status = verify_batch(&data[position], size - position, expected, &header, &fault)
            if status != STATUS_OK:
                problems.append({"path": described["path"], "position_bytes": position,
                                 "reason": fault.reason.decode()})
                if not leads_on(&data[position], size - position, expected):
                    return expected  # Nothing says where the next batch begins.
                batch_header_load(&data[position], &header)
                batches[position] = None
            else:
                batches[position] = header.base_offset + header.last_offset_delta
                expected = header.base_offset + header.last_offset_delta + 1
            position += header.batch_bytes
        _verify_index(described, batches, problems)
        return expected


cdef Status verify_batch(
    const uint8_t* batch, int64_t bytes_left, int64_t base_offset_min, BatchHeader* header, Fault* out
) noexcept nogil:
    """Check everything about a batch that stands in a log."""
    cdef RecordCursor cursor
    cdef NativeRecord record
    cdef int32_t index
    cdef Status status = batch_check(batch, bytes_left, header, out)
    if status == STATUS_OK and header.base_offset < base_offset_min:
        out.reason = b"the base offset is below the end of the batch before"
        return STATUS_CORRUPT
    if status == STATUS_OK and not header.attributes & ATTRIBUTE_COMPRESSION_MASK:
        cursor_open(&cursor, batch, header)
        for index in range(header.record_count):
            status = cursor_next(&cursor, &record, out)
            if status != STATUS_OK:
                break
    return status


cdef bint leads_on(const uint8_t* batch, int64_t bytes_left, int64_t base_offset_min) noexcept nogil:
    """Whether a broken batch's length is to be believed: another batch, or the end, follows there."""
    cdef BatchHeader header
    cdef BatchHeader following
    if bytes_left < BATCH_HEADER_BYTES:
        return False
    batch_header_load(batch, &header)
    if header.batch_bytes < BATCH_HEADER_BYTES or header.batch_bytes > bytes_left:
        return False
    if header.batch_bytes == bytes_left:
        return True
    if header.batch_bytes + BATCH_HEADER_BYTES > bytes_left:
        return False
    batch_header_load(batch + header.batch_bytes, &following)
    return following.magic == BATCH_MAGIC_V2 and following.base_offset > base_offset_min and (
        BATCH_HEADER_BYTES <= following.batch_bytes <= bytes_left - header.batch_bytes)


cdef int check_identity(int64_t producer_id, int producer_epoch, int32_t base_sequence) except -1:
    """A producer id comes with an epoch and a sequence, and without an id there are neither."""
    if producer_id >= 0:
        if 0 <= producer_epoch <= 0x7FFF and base_sequence >= 0:
            return 0
    elif producer_id == -1 and producer_epoch == -1 and base_sequence == -1:
        return 0
    raise ValueError(f"producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence}: "
                     "all of them 0 or more, the epoch at most 32767, or all of them -1")


cdef int _load_rows(ProducerTable* table, bytes rows) except -1:
    """Put stored rows into a table."""
    cdef const char* at = rows
    cdef Py_ssize_t position
    cdef ProducerEntry row
    cdef ProducerEntry* entry
    if len(rows) % PRODUCER_ROW_BYTES:
        raise ValueError(f"{len(rows)} bytes are no producer rows of {PRODUCER_ROW_BYTES}")
    for position in range(0, len(rows), sizeof(ProducerEntry)):
        memcpy(&row, at + position, sizeof(ProducerEntry))
        if row.batch_count > 5 or row.batch_first > 4:
            raise ValueError(f"producer row at byte {position}: {row.batch_count} batches")
        entry = table_insert(table, row.producer_id)
        if entry == NULL:
            raise MemoryError("producer rows")
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


def _verify_index(dict described, dict batches, list problems):
    """Each .index entry names the batch that stands at its position."""
    path = described["path"][:-4] + ".index"
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return                       # The active segment's index is in memory until it is stored.
    if len(raw) % 8:
        problems.append({"path": path, "position_bytes": len(raw), "reason": "not whole entries"})
    for position in range(0, len(raw) - 7, 8):
        relative = int.from_bytes(raw[position:position + 4], "big", signed=True)
        place = int.from_bytes(raw[position + 4:position + 8], "big", signed=True)
        if relative == 0 and place == 0:
            return                   # The zero tail of a file that was made larger ahead of need.
        if batches.get(place, -1) not in (None, described["base_offset"] + relative):
            problems.append({"path": path, "position_bytes": position,
                             "reason": f"no batch at {place} ends at relative offset {relative}"})
            return


def _last_time_entry(path):
    """Timestamp of a .timeindex file's last entry, -1 if there is none."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return -1
    whole = len(raw) - len(raw) % 12
    return int.from_bytes(raw[whole - 12:whole - 4], "big", signed=True) if whole else -1


def _boot_id():
    """16 bytes that change with each boot of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
