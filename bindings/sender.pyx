# cython: language_level=3
"""The hot path of a producer's send(): a record is encoded into its partition's batch, no more.

A subclass in Python opens topics and appends full batches. Threads may share a sender: adding a
record runs no Python code, and so no other thread, from its first look to its last store. All else
needs `lock`; a thread that would add a record meanwhile waits for it, since the engine may be
reading the batches without the GIL then.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.bindings.accumulator cimport RecordAccumulator
from eoslog.bindings.partition_log cimport AppendResult, PartitionLog
from eoslog.bindings.sequenced_log cimport SequencedLog
from eoslog.bindings.thread_lock cimport ThreadLock
from eoslog.native.mapped_io cimport eos_elapsed_ms, eos_now_ms
from eoslog.native.murmur2 cimport murmur2 as hash_of
from eoslog.native.murmur2 cimport partition_for_hash
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES

cdef enum:
    NO_PARTITION = -1


@cython.final
cdef class PartitionBuffer:
    """Records that a sender gathered for one partition."""

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
    """A topic as a sender knows it."""

    def __cinit__(self, str topic not None, Py_ssize_t partition_count, Py_ssize_t batch_bytes_max,
                  str topic_id not None):
        if not 0 < partition_count <= 0x7FFFFFFF:
            raise ValueError(f"{partition_count} partitions")
        self.partition_count = <int32_t>partition_count
        self.sticky_partition = 0
        self.buffers = [
            PartitionBuffer(topic, number, batch_bytes_max, topic_id)
            for number in range(partition_count)]


cdef class Sender:
    """Gathers records into batches; a subclass says what a topic is and appends the batches."""

    def __cinit__(self, *arguments, **named):
        self._topics = {}
        self._listed = []
        self._batch_bytes = 16384
        self._lingering = False
        self._first_ms = -1
        self.lock = ThreadLock()
        self._refused = None
        self._ready = {}
        self._unsynced = {}

    def send(self, str topic not None, value=None, key=None, partition=None, headers=None,
             timestamp_ms=None):
        """Add one record to the batch of its partition; a full batch is appended first.

        `value` and `key` are bytes or None; `headers` a list of (str, bytes or None). Without a
        partition, a key chooses it as in Kafka; records without a key keep to one partition until
        its batch is full. `timestamp_ms` (>= 0) is now if it is not given. The record is in the
        log once its batch is full, once it waited for `linger.ms`, or once flush() returned.

        Raises TypeError, ValueError, RecordTooLargeError, UnknownTopicOrPartitionError,
        ProducerFencedError or LogClosedError; or the error of appending the batch before it. In
        each case this record was not taken.
        """
        cdef int64_t timestamp
        cdef Py_ssize_t given
        if timestamp_ms is None:
            timestamp = eos_now_ms()
        else:
            if timestamp_ms is True or timestamp_ms is False:
                raise TypeError("timestamp_ms: an integer (milliseconds), not bool")
            try:
                given = timestamp_ms
            except OverflowError:
                raise ValueError(f"timestamp_ms {timestamp_ms}: beyond 64 bits") from None
            timestamp = given
            if timestamp < 0:
                raise ValueError(f"timestamp_ms {timestamp}: below 0")
        if headers is not None and not isinstance(headers, (list, tuple, dict)):
            headers = list(headers)
        try:
            if self.lock._owner != 0 or headers or not self._add(
                    topic, value, key, partition, headers, timestamp, False):
                # Python code runs on this way: a full batch is appended, headers are read, or
                # another thread appends just now. The holder of the lock sees no other record come
                # or go.
                with self.lock:
                    self._add(topic, value, key, partition, headers, timestamp, True)
        except Exception as error:
            with self.lock:
                self._failed(error)
            raise
        if not self._lingering:
            self._lingering = True
            self._start_lingering()

    cdef bint _add(self, str topic, object value, object key, object partition, object headers,
                   int64_t timestamp, bint may_drain) except -1:
        """Add the record; False if a batch has to be appended first and may not be.

        Runs no Python code unless may_drain, so that no other thread comes in between.
        """
        cdef TopicBuffers buffers
        cdef PartitionBuffer buffer
        cdef int64_t held_bytes
        cdef int32_t chosen
        cdef Py_ssize_t asked        # The index protocol: a float is no partition.
        if self._refused is not None:
            self._refuse()
        found = self._topics.get(topic)
        if found is None:
            if not may_drain:
                return False
            found = self._add_topic(topic)
            if self._refused is not None:
                self._refuse()           # A call within it closed the sender.
        buffers = <TopicBuffers?>found
        if partition is not None:
            try:
                asked = partition
            except OverflowError:
                asked = NO_PARTITION
            if not 0 <= asked < buffers.partition_count:
                self._no_partition(topic, partition, buffers.partition_count)
            chosen = <int32_t>asked
        elif key is None:
            chosen = buffers.sticky_partition
        elif type(key) is bytes:
            chosen = partition_for_hash(
                hash_of(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)),
                buffers.partition_count)
        else:
            raise TypeError(f"key: bytes or None, not {type(key).__name__}")
        buffer = <PartitionBuffer>buffers.buffers[chosen]
        held_bytes = buffer.accumulator._used_bytes
        if held_bytes > BATCH_HEADER_BYTES and held_bytes + record_bytes_bound(
                value, key, headers) > self._batch_bytes:
            if not may_drain:
                return False
            self._drain(buffer)
            if self._refused is not None:
                self._refuse()
            if partition is None and key is None:
                buffers.sticky_partition = (chosen + 1) % buffers.partition_count
        buffer.accumulator.add_record(value, key, headers, timestamp)
        if buffer.accumulator._record_count == 1:
            buffer.first_ms = eos_elapsed_ms()
            if not buffer.listed:
                buffer.listed = True
                self._listed.append(buffer)
                if self._first_ms < 0:
                    self._first_ms = buffer.first_ms
        return True

    def _append_few(self, topic, partition, values):
        """Append a few values to a partition that was written to: an AppendResult.

        None where that needs more than the partition's log; nothing was done then.
        """
        cdef SequencedLog ready
        cdef PartitionLog log
        cdef AppendResult result
        if type(topic) is not str or type(partition) is not int:
            return None
        found = self._ready.get((topic, partition))
        if found is None or self._refused is not None:
            return None
        ready = <SequencedLog?>found
        log = ready.log_for(values)
        if log is None:
            return None
        self.lock.take(True)
        try:
            if self._refused is not None or ready.in_doubt or self._holds(topic, partition):
                return None
            try:
                result = ready.append_values(log, values)
                if result.duplicate:
                    ready.refuse_duplicate(result)
            except Exception as error:
                self._append_failed(ready, error)
                return None
            self._unsynced[ready.partition] = result.last_offset + 1
            if not ready.partition._change_noted:
                ready.partition.note_append()
            return result
        finally:
            self.lock.give()

    cdef bint _holds(self, topic, Py_ssize_t partition) except -1:
        """True if records were gathered for a partition that are not in the log."""
        found = self._topics.get(topic)
        if found is None:
            return False
        return (<PartitionBuffer>(<TopicBuffers>found).buffers[partition]
                ).accumulator._record_count > 0

    def __reduce__(self):
        raise TypeError("a producer cannot be pickled or copied: make one where it is needed")

    def _set_batch_bytes(self, Py_ssize_t batch_bytes):
        self._batch_bytes = batch_bytes

    def _set_refused(self, reason):
        self._refused = reason

    def _renew_lock(self):
        """Free the lock in a forked child, where no thread appends what was gathered."""
        for one in self._listed:
            (<PartitionBuffer>one).accumulator._busy = False
        self.lock.renew()

    def _set_ready(self, dict ready not None):
        """By (topic, partition): the SequencedLogs that _append_few may use."""
        self._ready = ready

    def _buffers_of(self, str topic not None):
        """The buffers of a topic's partitions; none if nothing was sent to it."""
        found = self._topics.get(topic)
        return [] if found is None else list((<TopicBuffers>found).buffers)

    def _filled_buffers(self, Py_ssize_t first_ms_max=0x7FFFFFFFFFFFFFFF):
        """The buffers that hold records, the oldest of which was added by a time at the latest."""
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

    def _has_lingering(self):
        """True if records wait for their linger.ms to pass."""
        return bool(self._lingering)

    def _keep_topic(self, str topic not None, TopicBuffers buffers not None):
        self._topics[topic] = buffers

    def _drop_topic(self, str topic not None):
        self._topics.pop(topic, None)
        self._listed = [one for one in self._listed if (<PartitionBuffer>one).topic != topic]

    def _add_topic(self, topic):
        """Open a topic: call _keep_topic and return its TopicBuffers, or raise."""
        raise NotImplementedError

    def _drain(self, buffer):
        """Append what a buffer holds, and empty it."""
        raise NotImplementedError

    def _failed(self, error):
        """A record was refused with this error, which is raised next. The caller holds the lock."""

    def _append_failed(self, ready, error):
        """An append of a few values was refused: raise, or do nothing and it goes the long way."""
        raise NotImplementedError

    def _start_lingering(self):
        """Records wait from now on."""
        raise NotImplementedError

    def _refuse(self):
        """Raise the error that _set_refused gave the reason for."""
        raise NotImplementedError

    def _no_partition(self, topic, partition, partition_count):
        """Raise the error for a partition that does not exist."""
        raise NotImplementedError


cdef inline int64_t record_bytes_bound(object value, object key, object headers) except -1:
    """The most that a record can add to a batch; of a wrong type, the overhead: add_record
    refuses.
    """
    cdef int64_t bound = RECORD_OVERHEAD_BYTES_MAX
    if type(value) is bytes:
        bound += PyBytes_GET_SIZE(value)
    if type(key) is bytes:
        bound += PyBytes_GET_SIZE(key)
    if headers:
        # Counted generously: names are at most 4 bytes a character, lengths at most 5 bytes.
        for name, content in (headers.items() if isinstance(headers, dict) else headers):
            bound += 10 + 4 * len(name) + (0 if content is None else len(content))
    return bound
