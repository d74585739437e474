# The hot path of a producer's send(), for those who build on it.
from libc.stdint cimport int32_t, int64_t

from eoslog.bindings.accumulator cimport RecordAccumulator
from eoslog.bindings.thread_lock cimport ThreadLock

cdef class PartitionBuffer:
    cdef readonly RecordAccumulator accumulator
    cdef readonly str topic
    cdef readonly str topic_id               # Records are gathered for this topic of the name.
    cdef readonly int32_t partition
    cdef readonly int64_t first_ms           # When the oldest was added; monotonic.
    cdef bint listed                         # In the sender's list of buffers with records.
    # A transactional sender's: who takes the batch, and what an append to it means to the store.
    cdef public object part
    cdef public object owner
    cdef tuple pair                          # (accumulator, part), made once.

cdef class TopicBuffers:
    cdef list buffers                        # PartitionBuffer by partition.
    cdef int32_t partition_count
    cdef int32_t sticky_partition            # Takes records without a key until its batch is full.

cdef class Sender:
    cdef dict _topics
    cdef list _listed                        # Buffers that hold records, or did a moment ago.
    cdef int64_t _batch_bytes
    cdef bint _lingering                     # A record was added since the last look.
    cdef int64_t _first_ms                   # Of what is open: its first record's, -1 if none.
    cdef readonly ThreadLock lock
    cdef object _refused                     # Why no record is taken now; None while they are.
    cdef dict _ready                         # SequencedLog by (topic, partition).
    cdef public dict _unsynced               # Partition -> up to where this sender wrote to it.

    cdef bint _add(self, str topic, object value, object key, object partition, object headers,
                   int64_t timestamp, bint may_drain) except -1
    cdef bint _holds(self, topic, Py_ssize_t partition) except -1
