# What a producer gathered: its records, encoded one by one into a batch of each partition.
from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from eoslog.bindings.thread_lock cimport ThreadLock
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX
from eoslog.native.record_batch cimport BatchIdentity

cdef class TransactionReport:
    cdef readonly bint is_open
    cdef readonly bint is_committed

cdef class BatchReport:
    cdef readonly int64_t base_offset    # -1 unless the batch is in the log.
    cdef readonly bint is_open           # The batch takes records, or waits to be appended.
    cdef readonly TransactionReport transaction  # None without one.

cdef class RecordAccumulator:
    cdef uint8_t* _buffer            # A batch header's room, then the records.
    cdef int64_t _capacity_bytes
    cdef int64_t _used_bytes
    cdef int64_t _base_timestamp
    cdef int64_t _max_timestamp
    cdef int32_t _record_count
    cdef bint _busy                  # An append without the GIL is reading the buffer.
    cdef readonly int64_t batch_bytes_max
    cdef readonly int64_t base_offset    # Of the batch that was appended last, -1 if none was.
    cdef BatchReport report              # Of this batch; None if there is no one to report to.

    cdef int64_t add_record(
        self, object value, object key, bytes headers, int64_t timestamp_ms) except -1
    cdef int finish(self, const BatchIdentity* identity) except -1
    cdef void reset(self) noexcept
    cdef void note_appended(self, int64_t base_offset) noexcept

cdef class PartitionBuffer:
    cdef readonly RecordAccumulator accumulator
    cdef readonly str topic
    cdef readonly str topic_id               # Records are gathered for this topic of the name.
    cdef readonly int32_t partition
    cdef readonly int64_t first_ms           # When the oldest was added; monotonic.
    cdef bint listed                         # In the list of buffers with records.
    # Of a transaction: who takes the batch, and what an append to it means to the store.
    cdef public object part
    cdef public object owner
    cdef tuple pair                          # (accumulator, part), made once.

cdef class TopicBuffers:
    cdef list buffers                        # PartitionBuffer by partition.
    cdef int32_t partition_count
    cdef int32_t sticky_partition            # Takes records without a key until its batch is full.
    cdef int64_t batch_bytes_max             # Of the topic.

    cdef int alter(self, int32_t partition_count, int64_t batch_bytes_max) except -1

cdef class Accumulator:
    cdef dict _topics
    cdef list _listed                        # Buffers that hold records, or did a moment ago.
    cdef int64_t _batch_bytes
    cdef bint _lingering                     # A record was added since the last look.
    cdef int64_t _first_ms                   # Of what is open: its first record's, -1 if none.
    cdef readonly ThreadLock lock
    cdef bint _takes_records                 # False also while no transaction takes them.
    cdef readonly object refusal             # Makes the error of each call; None while it is open.

    cpdef bint holds(self, topic, Py_ssize_t partition) except -1

cdef inline int64_t record_bytes_bound(object value, object key, bytes headers) noexcept:
    """The most that a record can add to a batch; `headers` are encoded. A value or a key of a wrong
    type counts nothing: add_record refuses it.
    """
    cdef int64_t bound = RECORD_OVERHEAD_BYTES_MAX
    if type(value) is bytes:
        bound += PyBytes_GET_SIZE(value)
    if type(key) is bytes:
        bound += PyBytes_GET_SIZE(key)
    if headers is not None:
        bound += PyBytes_GET_SIZE(headers)
    return bound
