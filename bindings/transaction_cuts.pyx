# cython: language_level=3
"""Offsets of several logs, moved down until they cut no transaction in two: see
`LogTransactions.take_in_transactions`.
"""

from eoslog import errors

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memset

from eoslog.native.status cimport STATUS_OK
from eoslog.native.transaction_cuts cimport cuts_free, cuts_init, cuts_met, cuts_settle


@cython.final
cdef class TransactionCuts:
    """The cut of each log to begin with; then what is taken in of the logs moves them down.

    One thread uses it.
    """

    def __cinit__(self, list offsets not None):
        memset(&self._cuts, 0, sizeof(self._cuts))
        if cuts_init(&self._cuts, len(offsets)) != STATUS_OK:
            raise errors.OutOfMemoryError(f"the cuts of {len(offsets)} logs")
        for number in range(len(offsets)):
            self._cuts.logs[number].cut = offsets[number]

    def __dealloc__(self):
        cuts_free(&self._cuts)

    def __reduce__(self):
        raise TypeError("cuts cannot be pickled or copied")

    def lower(self, Py_ssize_t number, int64_t offset):
        """Move the cut of a log down to an offset, if it is higher."""
        self._check_number(number)
        if offset < self._cuts.logs[number].cut:
            self._cuts.logs[number].cut = offset

    def settle(self):
        """Move the cuts down until no transaction that was taken in lies on both sides of them; all
        cuts.
        """
        with nogil:
            cuts_settle(&self._cuts)
        return [self._cuts.logs[number].cut for number in range(self._cuts.log_count)]

    @property
    def transaction_count(self):
        """Count of the transactions that were taken in."""
        return self._cuts.met_count

    def met(self, int64_t producer_id, int producer_epoch):
        """True if a transaction, by the epoch of its batches, was taken in."""
        return cuts_met(&self._cuts, producer_id, producer_epoch)

    cdef int _check_number(self, Py_ssize_t number) except -1:
        if not 0 <= number < self._cuts.log_count:
            raise ValueError(f"log {number} is outside [0, {self._cuts.log_count})")
        return 0
