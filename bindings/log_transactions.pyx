# cython: language_level=3
"""The transactions of an opened log: which are open, which were aborted."""

from eoslog import errors

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free

from eoslog.bindings.transaction_cuts cimport TransactionCuts
from eoslog.native.abort_index cimport AbortedTransaction as NativeAborted
from eoslog.native.abort_index cimport abort_index_collect
from eoslog.native.log_lock cimport log_view_end
from eoslog.native.log_read cimport ReadRange, read_close
from eoslog.native.producer_table cimport table_at
from eoslog.native.record_batch cimport (
    ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader, batch_header_load,
)
from eoslog.native.sequence_window cimport ProducerEntry
from eoslog.native.status cimport STATUS_OK, Fault, Status
from eoslog.native.transaction_cuts cimport cuts_take_in


@cython.final
cdef class OpenTransaction:
    """A transaction that is open at a partition."""

    cdef readonly int64_t producer_id
    cdef readonly int producer_epoch
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_timestamp_ms
    cdef readonly int32_t coordinator_epoch  # -1: no marker of the producer was seen yet.

    def __repr__(self):
        return (f"OpenTransaction(producer_id={self.producer_id}, "
                f"producer_epoch={self.producer_epoch}, first_offset={self.first_offset})")


@cython.final
cdef class AbortedTransaction:
    """A transaction that was aborted at a partition, with records there."""

    cdef readonly int64_t producer_id
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset        # Of the marker.
    cdef readonly int64_t last_stable_offset  # Once the marker was in.

    def __repr__(self):
        return (f"AbortedTransaction(producer_id={self.producer_id}, "
                f"first_offset={self.first_offset}, last_offset={self.last_offset}, "
                f"last_stable_offset={self.last_stable_offset})")


cdef OpenTransaction make_open(const ProducerEntry* entry):
    cdef OpenTransaction found = OpenTransaction.__new__(OpenTransaction)
    found.producer_id = entry.producer_id
    found.producer_epoch = entry.producer_epoch
    found.first_offset = entry.current_txn_first_offset
    found.last_timestamp_ms = entry.last_timestamp
    found.coordinator_epoch = entry.coordinator_epoch
    return found


cdef class LogTransactions(LogProducers):
    """A log that knows its producers and their transactions."""

    def open_transactions(self):
        """The transactions that are open now, in the order of their first offsets."""
        cdef list found = []
        cdef uint32_t index
        self._check_open()
        self._view()
        try:
            if self._log.ongoing.open_count:
                for index in range(self._log.producers.entry_count):
                    if table_at(&self._log.producers, index).current_txn_first_offset >= 0:
                        found.append(make_open(table_at(&self._log.producers, index)))
        finally:
            log_view_end(&self._log)
        return sorted(found, key=lambda one: one.first_offset)

    @property
    def open_transaction_count(self):
        """Count of the open transactions."""
        self._refresh()
        return self._log.ongoing.open_count

    @property
    def aborted_transaction_count(self):
        """Count of the aborted transactions that the log remembers."""
        self._refresh()
        return self._log.aborts.count

    def aborted_transactions(self, Py_ssize_t first, Py_ssize_t upper_bound):
        """The aborted transactions that have offsets in [first, upper_bound), by their markers."""
        cdef NativeAborted* native = NULL
        cdef AbortedTransaction aborted
        cdef list found = []
        cdef int64_t count = 0
        cdef int64_t index
        cdef Status status
        self._check_open()
        if first < 0 or upper_bound < first:
            raise ValueError(f"[{first}, {upper_bound}) is no range of offsets")
        self._refresh()
        with nogil:
            status = abort_index_collect(&self._log.aborts, first, upper_bound, &native, &count)
        if status != STATUS_OK:
            raise errors.OutOfMemoryError("aborted transactions")
        try:
            for index in range(count):
                aborted = AbortedTransaction.__new__(AbortedTransaction)
                aborted.producer_id = native[index].producer_id
                aborted.first_offset = native[index].first_offset
                aborted.last_offset = native[index].last_offset
                aborted.last_stable_offset = native[index].last_stable_offset
                found.append(aborted)
        finally:
            free(native)
        return found

    def take_in_transactions(self, TransactionCuts cuts not None, Py_ssize_t number,
                             int64_t first, Py_ssize_t upper_bound):
        """Have cuts take in the transactions, open or ended, with batches in [first, upper_bound),
        as those of the log of this number. Logs are taken in one after the other, the ranges of
        each from its beginning on.
        """
        cdef Fault fault
        cdef Status status
        cdef int64_t bound
        cuts._check_number(number)
        self._check_open()
        bound = self._bound(upper_bound, False)
        while True:
            self._fault_init(&fault)
            with nogil:
                status = cuts_take_in(
                    &cuts._cuts, <int32_t>number, &self._log, &first, bound, &fault)
            if status == STATUS_OK:
                return
            self._before_read_again(status, &fault, first)

    def first_offset_of(self, set transactions not None, Py_ssize_t first,
                        Py_ssize_t upper_bound):
        """Base offset of the first batch in [first, upper_bound) that is of one of these
        transactions, of (producer id, epoch of the batches); -1 if there is none.
        """
        cdef set producer_ids = {producer_id for producer_id, _ in transactions}
        cdef int64_t position
        cdef int64_t found = -1
        cdef ReadRange batches
        cdef BatchHeader header
        self._check_open()
        while first < upper_bound and found < 0:
            # Only headers may be believed.
            self._open_range(first, self._bound(upper_bound, False), 1 << 26, False, &batches)
            if batches.segment == NULL:
                break
            position = 0
            while position < batches.data_bytes and found < 0:
                batch_header_load(batches.data + position, &header)
                if is_transactional(&header) and header.producer_id in producer_ids and (
                        (header.producer_id, header.producer_epoch) in transactions):
                    found = header.base_offset
                position += header.batch_bytes
            first = batches.next_offset
            read_close(&self._log, &batches)
        return found


cdef inline bint is_transactional(const BatchHeader* header) noexcept nogil:
    return header.attributes & ATTRIBUTE_TRANSACTIONAL and not (
        header.attributes & ATTRIBUTE_CONTROL)
