# cython: language_level=3
"""One producer at one partition: the numbers of its records, and the short way of a few of them.

Invariant: what was appended is counted before anybody can interrupt; until then it is in doubt.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t

from eoslog.bindings.column_set cimport open_columns
from eoslog.bindings.partition_log cimport AppendResult, PartitionLog
from eoslog.native.batch_encode cimport RECORD_OVERHEAD_BYTES_MAX
from eoslog.native.log_append cimport ProducerStamp
from eoslog.native.mapped_io cimport eos_now_ms
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES, sequence_add

cdef enum:
    NO_SEQUENCE = -1
    FEW_RECORDS = 64
    FEW_BYTES = 65536


cdef class SequencedLog:
    """Log as an append of a producer to a partition needs to know it; the producer's lock guards
    it.

    `is_plain`: no other writer uses the id, nothing is synced by the append, and the engine
    itself wakes readers.
    """

    def __init__(self, partition, int64_t producer_id, int producer_epoch, int64_t position,
                 bint is_plain):
        self.partition = partition
        self.position = position
        self.in_doubt = False
        self._producer_id = producer_id
        self._producer_epoch = <int16_t>producer_epoch
        # Kept ready for the next append: the hot path only adds and compares.
        self._idempotent = producer_id >= 0
        self._next_sequence = 0 if producer_id >= 0 else NO_SEQUENCE
        self._appended = False
        self.is_plain = is_plain

    cdef PartitionLog log_for(self, object values):
        """Return the log if these enter it as one batch and nothing else is to do, else None."""
        cdef int64_t total_bytes = BATCH_HEADER_BYTES
        cdef object log
        if not self.is_plain or self.in_doubt or type(values) is not list or not (
                0 < len(<list>values) <= FEW_RECORDS):
            return None
        log = self.partition._log        # Another kind of object once it is closed.
        if type(log) is not PartitionLog:
            return None
        for value in <list>values:
            total_bytes += RECORD_OVERHEAD_BYTES_MAX
            if type(value) is bytes:
                total_bytes += PyBytes_GET_SIZE(value)
            elif value is not None:
                return None
        if total_bytes > FEW_BYTES or (
                total_bytes > (<PartitionLog>log)._log.options.max_message_bytes):
            return None
        return <PartitionLog>log

    cdef AppendResult append_values(self, PartitionLog log, object values):
        """Append these, which log_for found few, and count them unless they are a duplicate."""
        cdef ProducerStamp stamp
        cdef AppendResult result
        stamp.transactional = False
        stamp.producer_id = self._producer_id
        stamp.producer_epoch = self._producer_epoch
        stamp.base_sequence = self._next_sequence
        self.in_doubt = True
        result = log.append_stamped(
            open_columns(values, None, None, None, eos_now_ms()), &stamp, 0, 0)
        if not result.duplicate:
            self.took(result)
        return result

    def stands_at(self, int32_t last_sequence, int64_t position):
        """The log holds this producer's records up to this sequence, and so many of them.

        As `_took`, in one step: an interrupt between two of them would count records twice.
        """
        self._next_sequence = sequence_add(last_sequence, 1)
        self._appended = True
        self.position = position
        self.in_doubt = False

    def _took(self, AppendResult result not None):
        """An append put its records in."""
        self.took(result)

    cdef int took(self, AppendResult result) except -1:
        if self._idempotent:
            self._next_sequence = sequence_add(self._next_sequence, <int32_t>result.record_count)
        self._appended = True
        self.position += result.record_count
        self.in_doubt = False
        return 0
