# cython: language_level=3
"""What a producer gathered: its records, encoded one by one into a batch of each partition."""

from eoslog import errors

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc

from eoslog.bindings.columns cimport encode_headers
from eoslog.bindings.thread_lock cimport ThreadLock
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX, record_encode
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES, BatchIdentity, batch_header_store


def encoded_headers(headers):
    """Return a record's headers, pairs or a mapping of (str, bytes or None), as a batch has them;
    None for None. Raises TypeError, ValueError.
    """
    return None if headers is None else encode_headers(headers)


@cython.final
cdef class TransactionReport:
    """What became of a transaction, for those who sent its records."""

    def __cinit__(self):
        self.is_open = True


@cython.final
cdef class BatchReport:
    """What became of a batch, for those who sent its records."""

    def __cinit__(self):
        self.base_offset = -1
        self.is_open = True


@cython.final
cdef class RecordAccumulator:
    """A batch being filled: `add` encodes a record after the last one. The GIL guards it."""

    def __cinit__(self, Py_ssize_t batch_bytes_max):
        self._buffer = NULL
        self._capacity_bytes = 0
        self.reset()
        if batch_bytes_max <= BATCH_HEADER_BYTES:
            raise ValueError(f"batch_bytes_max {batch_bytes_max}")
        self.batch_bytes_max = batch_bytes_max
        self.base_offset = -1

    def __dealloc__(self):
        free(self._buffer)

    cdef void reset(self) noexcept:
        self._used_bytes = BATCH_HEADER_BYTES
        self._base_timestamp = -1
        self._max_timestamp = -1
        self._record_count = 0
        if self.report is not None:
            self.report.is_open = False
            self.report = None

    cdef void note_appended(self, int64_t base_offset) noexcept:
        """The batch is in the log: the next one is empty."""
        if self.report is not None:
            self.report.base_offset = base_offset
        self.base_offset = base_offset
        self.reset()

    @property
    def record_count(self):
        """Records held."""
        return self._record_count

    @property
    def batch_bytes(self):
        """Size in bytes of the batch as it would be written now; 61 when empty."""
        return self._used_bytes

    def clear(self):
        """Forget the records held."""
        if self._busy:
            raise errors.ConcurrentAccessError(
                "two threads use one accumulator at once: another thread is appending it, and this "
                "call did nothing")
        self.reset()

    def has_room(self, value, key, bytes headers, Py_ssize_t batch_bytes):
        """True if it is empty, or has at most batch_bytes with this record, too."""
        return not self._record_count or (
            self._used_bytes + record_bytes_bound(value, key, headers) <= batch_bytes)

    def add(self, value, key=None, bytes headers=None, Py_ssize_t timestamp_ms=-1):
        """Encode one record after the last one; return the batch's size in bytes.

        `value` and `key` are bytes or None, `headers` what `encoded_headers` returned. Raises
        TypeError, or RecordTooLargeError when the record alone exceeds batch_bytes_max; nothing has
        changed then.
        """
        return self.add_record(value, key, headers, timestamp_ms)

    cdef int64_t add_record(
        self, object value, object key, bytes headers, int64_t timestamp_ms
    ) except -1:
        cdef const uint8_t* value_at = NULL
        cdef const uint8_t* key_at = NULL
        cdef const uint8_t* headers_at = NULL
        cdef int64_t value_bytes = -1
        cdef int64_t key_bytes = -1
        cdef int64_t headers_bytes = 0
        cdef int64_t bound, base_timestamp, used_bytes
        cdef uint8_t* grown
        if self._busy:
            raise errors.ConcurrentAccessError(
                "two threads use one accumulator at once: another thread is appending it, and this "
                "call did nothing")
        if timestamp_ms < -1:
            raise ValueError(f"timestamp_ms {timestamp_ms}")
        if type(value) is bytes:
            value_at = <const uint8_t*>PyBytes_AS_STRING(value)
            value_bytes = PyBytes_GET_SIZE(value)
        elif value is not None:
            raise TypeError(f"value must be bytes or None, got {type(value).__name__}")
        if type(key) is bytes:
            key_at = <const uint8_t*>PyBytes_AS_STRING(key)
            key_bytes = PyBytes_GET_SIZE(key)
        elif key is not None:
            raise TypeError(f"key must be bytes or None, got {type(key).__name__}")
        if headers is not None:
            headers_at = <const uint8_t*>PyBytes_AS_STRING(headers)
            headers_bytes = PyBytes_GET_SIZE(headers)
        bound = RECORD_OVERHEAD_BYTES_MAX + headers_bytes
        if value_bytes > 0:
            bound += value_bytes
        if key_bytes > 0:
            bound += key_bytes
        if bound > self.batch_bytes_max - BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES_MAX:
            raise errors.RecordTooLargeError(
                f"a record of about {bound} bytes; batches hold {self.batch_bytes_max}")
        if self._used_bytes + bound > self._capacity_bytes:
            grown = <uint8_t*>realloc(
                self._buffer, <size_t>(2 * self._capacity_bytes + self._used_bytes + bound))
            if grown == NULL:
                raise errors.OutOfMemoryError("a record accumulator")
            self._capacity_bytes = 2 * self._capacity_bytes + self._used_bytes + bound
            self._buffer = grown
        base_timestamp = timestamp_ms if self._record_count == 0 else self._base_timestamp
        used_bytes = record_encode(
            self._buffer + self._used_bytes, timestamp_ms - base_timestamp,
            self._record_count, key_at, key_bytes, value_at, value_bytes, headers_at, headers_bytes
        ) - self._buffer
        if self._record_count == 0:
            # Now it is known to the byte. One that no log took would stay, and keep the rest out.
            if used_bytes > self.batch_bytes_max:
                raise errors.RecordTooLargeError(
                    f"a record whose batch has {used_bytes} bytes; batches hold "
                    f"{self.batch_bytes_max}")
            self._base_timestamp = timestamp_ms
        if timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        self._used_bytes = used_bytes
        self._record_count += 1
        return self._used_bytes

    cdef int finish(self, const BatchIdentity* identity) except -1:
        """Write the header: the buffer's first _used_bytes are then one whole batch."""
        if self._busy:
            raise errors.ConcurrentAccessError(
                "two threads use one accumulator at once: another thread is appending it, and this "
                "call did nothing")
        if self._record_count == 0:
            raise ValueError("no records to append")
        with nogil:
            batch_header_store(self._buffer, self._used_bytes, self._record_count,
                               self._base_timestamp, self._max_timestamp, identity)
        return 0


@cython.final
cdef class PartitionBuffer:
    """Records that a producer gathered for one partition."""

    def __cinit__(self, str topic not None, Py_ssize_t partition, Py_ssize_t batch_bytes_max,
                  str topic_id not None):
        self.accumulator = RecordAccumulator(batch_bytes_max)
        self.topic = topic
        self.topic_id = topic_id
        self.partition = <int32_t>partition
        self.first_ms = 0
        self.listed = False


@cython.final
cdef class TopicBuffers:
    """A topic as a producer knows it."""

    def __cinit__(self, str topic not None, Py_ssize_t partition_count, Py_ssize_t batch_bytes_max,
                  str topic_id not None):
        if not 0 < partition_count <= 0x7FFFFFFF:
            raise ValueError(f"{partition_count} partitions")
        self.partition_count = <int32_t>partition_count
        self.sticky_partition = 0
        self.batch_bytes_max = batch_bytes_max
        self.buffers = [
            PartitionBuffer(topic, number, batch_bytes_max, topic_id)
            for number in range(partition_count)]

    cdef int alter(self, int32_t partition_count, int64_t batch_bytes_max) except -1:
        cdef PartitionBuffer first = <PartitionBuffer>self.buffers[0]
        for one in self.buffers:
            (<PartitionBuffer>one).accumulator.batch_bytes_max = batch_bytes_max
        self.buffers.extend([
            PartitionBuffer(first.topic, number, batch_bytes_max, first.topic_id)
            for number in range(len(self.buffers), partition_count)])
        # Last: a record goes to no partition that has no buffer.
        self.partition_count = <int32_t>len(self.buffers)
        self.batch_bytes_max = batch_bytes_max
        return 0


@cython.final
cdef class Accumulator:
    """What one producer gathered, by topic and partition, since when, and if it takes more.

    Its producer's `send` adds records without running Python code, and so without another thread
    in between. All else needs `lock`: the engine may be reading the batches without the GIL then.
    """

    def __cinit__(self):
        self._topics = {}
        self._listed = []
        self._batch_bytes = 16384
        self._lingering = False
        self._first_ms = -1
        self.lock = ThreadLock()
        self._takes_records = True
        self.refusal = None

    def refuse(self, refusal not None):
        """Take nothing more: `refusal()` is the error with which a call is refused."""
        self.refusal = refusal
        self._takes_records = False

    def check_refusal(self):
        """Raise the error with which calls are refused, if they are."""
        if self.refusal is not None:
            raise self.refusal()

    def leave_to_parent(self):
        """Free the lock in a forked child, where no thread appends what was gathered."""
        for one in self._listed:
            (<PartitionBuffer>one).accumulator._busy = False
        self.lock.renew()

    def set_batch_bytes(self, Py_ssize_t batch_bytes):
        """Fill batches up to this size."""
        self._batch_bytes = batch_bytes

    def buffers_of(self, str topic not None):
        """The buffers of a topic's partitions; none if nothing was sent to it."""
        found = self._topics.get(topic)
        return [] if found is None else list((<TopicBuffers>found).buffers)

    def touched_buffers(self):
        """The buffers that held records since the last look, or in this transaction."""
        return list(self._listed)

    def record_count_of(self, str topic not None):
        """How many records of a topic are gathered."""
        cdef Py_ssize_t count = 0
        found = self._topics.get(topic)
        if found is not None:
            for one in (<TopicBuffers>found).buffers:
                count += (<PartitionBuffer>one).accumulator._record_count
        return count

    def filled_buffers(self, Py_ssize_t first_ms_max=0x7FFFFFFFFFFFFFFF):
        """Return the buffers whose oldest record was added at `first_ms_max` or earlier."""
        cdef PartitionBuffer buffer
        cdef list found = []
        cdef list listed = []
        self._lingering = False
        for one in self._listed:
            buffer = <PartitionBuffer>one
            if not buffer.accumulator._record_count:
                buffer.listed = False
                continue
            listed.append(buffer)
            if buffer.first_ms <= first_ms_max:
                found.append(buffer)
            else:
                self._lingering = True
        self._listed = listed
        return found

    def has_lingering(self):
        """True if records wait for their linger.ms to pass."""
        return bool(self._lingering)

    def discard(self):
        """Forget what was gathered; how many records."""
        cdef Py_ssize_t discarded = 0
        for one in self.filled_buffers():
            discarded += (<PartitionBuffer>one).accumulator._record_count
            (<PartitionBuffer>one).accumulator.clear()
        return discarded

    def keep_topic(self, str topic not None, TopicBuffers buffers not None):
        """Gather records for a topic."""
        self._topics[topic] = buffers

    def alter_topic(self, str topic not None, Py_ssize_t partition_count,
                    Py_ssize_t batch_bytes_max):
        """Gather records for more partitions of a topic, and in batches of another size at most;
        what was gathered stays. Nothing is done where nothing was sent to the topic.
        """
        found = self._topics.get(topic)
        if found is not None:
            (<TopicBuffers>found).alter(<int32_t>partition_count, batch_bytes_max)

    def batch_bytes_max(self):
        """The largest batch that all topics take, in bytes; None before a record was sent."""
        return min(
            ((<TopicBuffers>one).batch_bytes_max for one in self._topics.values()), default=None)

    def drop_topic(self, str topic not None):
        """Forget a topic, with what was gathered for it."""
        cdef RecordAccumulator records
        for one in self.buffers_of(topic):
            records = (<PartitionBuffer>one).accumulator
            if records.report is not None:
                records.report.is_open = False
                records.report = None
        self._topics.pop(topic, None)
        self._listed = [one for one in self._listed if (<PartitionBuffer>one).topic != topic]

    cpdef bint holds(self, topic, Py_ssize_t partition) except -1:
        """True if records were gathered for a partition that are not in the log."""
        found = self._topics.get(topic)
        if found is None:
            return False
        return (<PartitionBuffer>(<TopicBuffers>found).buffers[partition]
                ).accumulator._record_count > 0
