# cython: language_level=3
"""Batches being filled from columns, for the partitions of a topic: each record is copied once."""

from eoslog import errors

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memset

from eoslog.bindings.column_set cimport ColumnSet
from eoslog.bindings.record_batch cimport check_identity
from eoslog.native.batch_filler cimport (
    FILL_DONE, FILL_NO_MEMORY, FILL_NO_ROOM, BatchFiller as NativeFiller, filler_close,
    filler_empty, filler_fill, filler_finish, filler_open, filler_release,
)
from eoslog.native.record_batch cimport BATCH_HEADER_BYTES, BatchIdentity

# What stopped a fill, where it is no partition.
DONE = FILL_DONE
NO_ROOM = FILL_NO_ROOM

cdef enum:
    PARTITION_COUNT_MAX = 0x7FFFFFFF
    NOTHING_SHOWN = -1


@cython.final
cdef class BatchFiller:
    """One batch for each partition of a topic, filled record by record. One thread uses it.

    The batch that `finish` returns is the filler's own memory: while a view of it lives, nothing
    is added and nothing emptied (BufferError).
    """

    cdef NativeFiller _filler
    cdef int32_t _shown              # The partition whose batch is handed out.
    cdef Py_ssize_t _exports
    cdef bint _busy                  # A thread is in native code, without the GIL.

    def __cinit__(self):
        memset(&self._filler, 0, sizeof(NativeFiller))
        self._shown = NOTHING_SHOWN

    def __init__(self, Py_ssize_t partition_count, Py_ssize_t batch_bytes_max,
                 Py_ssize_t first_partition=0):
        if self._filler.batches != NULL:
            raise RuntimeError("a filler is made once")
        if not 1 <= partition_count <= PARTITION_COUNT_MAX:
            raise ValueError(f"partition_count {partition_count}")
        if not BATCH_HEADER_BYTES <= batch_bytes_max <= 0x7FFFFFFF:
            raise ValueError(f"batch_bytes_max {batch_bytes_max}")
        if not 0 <= first_partition < partition_count:
            raise ValueError(f"first_partition {first_partition} of {partition_count}")
        if filler_open(&self._filler, <int32_t>partition_count, <int32_t>first_partition,
                       <size_t>batch_bytes_max) < 0:
            raise errors.OutOfMemoryError(f"batches of {partition_count} partitions")

    def __dealloc__(self):
        filler_close(&self._filler)

    @property
    def held_bytes(self):
        """Memory that the batches take up."""
        return self._filler.held_bytes

    @property
    def record_count(self):
        """Records in all batches."""
        return self._filler.record_count

    def held(self, Py_ssize_t partition):
        """Return the count of a partition's batched records, and their bytes; (0, 0) if none."""
        self._check(partition)
        return (self._filler.batches[partition].record_count,
                self._filler.batches[partition].used_bytes)

    def fill(self, ColumnSet records not None, Py_ssize_t first, Py_ssize_t partition,
             Py_ssize_t held_bytes_max):
        """Add records from `first` on to a partition's batch, or each to its key's partition (-1).

        Records without a key fill one partition's batch after the other. Answers the first record
        that was not added, and what stopped it: DONE; the partition whose batch is full; NO_ROOM if
        one more buffer would take more memory than `held_bytes_max`.
        """
        cdef int64_t index = first
        cdef int32_t stopped
        if partition != -1:
            self._check(partition)
        self._check_free()
        if not 0 <= first <= records.columns.count:
            raise ValueError(f"record {first} of {records.columns.count}")
        if held_bytes_max < 0:
            held_bytes_max = 0
        self._busy = True
        with nogil:
            stopped = filler_fill(
                &self._filler, &records.columns, &index, <int32_t>partition,
                <size_t>held_bytes_max)
        self._busy = False
        if stopped == FILL_NO_MEMORY:
            raise errors.OutOfMemoryError("a batch of a staged file")
        return index, stopped

    def finish(self, Py_ssize_t partition, *, Py_ssize_t producer_id, Py_ssize_t producer_epoch,
               Py_ssize_t base_sequence):
        """The records of a partition's batch as one whole batch with base offset 0; they stay held.

        Raises ValueError if there are none, or for numbers that no batch can have.
        """
        cdef BatchIdentity identity
        self._check(partition)
        self._check_free()
        check_identity(producer_id, producer_epoch, base_sequence)
        if self._filler.batches[partition].record_count == 0:
            raise ValueError(f"partition {partition} has no records")
        identity.base_offset = 0
        identity.producer_id = producer_id
        identity.partition_leader_epoch = 0
        identity.base_sequence = <int32_t>base_sequence
        identity.producer_epoch = <int16_t>producer_epoch
        identity.attributes = 0
        self._busy = True
        with nogil:
            filler_finish(&self._filler, <int32_t>partition, &identity)
        self._busy = False
        self._shown = <int32_t>partition
        return memoryview(self)

    def empty(self, Py_ssize_t partition):
        """Forget the records of a partition's batch."""
        self._check(partition)
        self._check_free()
        filler_empty(&self._filler, <int32_t>partition)

    def release(self):
        """Forget all records and give their memory back."""
        self._check_free()
        filler_release(&self._filler)

    def __getbuffer__(self, Py_buffer* view, int flags):
        if self._shown == NOTHING_SHOWN:
            raise BufferError("no batch is finished")
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("a batch is for reading only")
        PyBuffer_FillInfo(
            view, self, self._filler.batches[self._shown].bytes,
            <Py_ssize_t>self._filler.batches[self._shown].used_bytes, True, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self._exports -= 1

    cdef int _check(self, Py_ssize_t partition) except -1:
        if not 0 <= partition < self._filler.partition_count:
            raise ValueError(f"partition {partition} of {self._filler.partition_count}")
        return 0

    cdef int _check_free(self) except -1:
        if self._busy:
            raise errors.ConcurrentAccessError(
                "two threads use one filler at once: another thread is in it, and this call did "
                "nothing; make one for each thread")
        if self._exports > 0:
            raise BufferError("a batch of this filler is still looked at")
        self._shown = NOTHING_SHOWN
        return 0
