# cython: language_level=3
"""The records of a poll one by one, the position behind each as it goes.

The position moves as the record is given away, with no step of Python code between the two: an
interrupt, or a handler of a signal, comes before both of them or behind both.
"""

cimport cython

from eoslog.bindings.record_batch cimport Record


@cython.final
cdef class OneByOne:
    """An iterator of records that were read from these `partitions`, the positions at which are
    `expected`; in the end they are `ends`.

    Passed over are those of a partition that was moved, taken away or made anew meanwhile. A
    partition's name equals the pair of its topic and its number.
    """

    cdef object _positions
    cdef object _partitions
    cdef list _records
    cdef dict _ends, _last, _expected
    cdef Py_ssize_t _next

    def __cinit__(self, positions not None, partitions not None, list records not None,
                  dict ends not None, dict expected not None):
        cdef Record record
        self._positions = positions
        self._partitions = partitions
        self._records = records
        self._ends = ends
        self._expected = expected
        self._last = {}
        self._next = 0
        for record in records:
            self._last[(record.topic, record.partition)] = record

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record
        cdef Py_ssize_t index
        while self._next < len(self._records):
            index = self._next
            record = self._records[index]
            where = (record.topic, record.partition)
            behind = self._ends[where] if record is self._last[where] else record.offset + 1
            if index != self._next:
                continue  # A finalizer went on with this, while the pair was made.
            # From here on there are only dictionaries.
            if self._stands_at(where):
                self._expected[where] = behind
                self._positions.current[where] = behind
                self._next = index + 1
                return record
            self._expected.pop(where, None)  # Nor are those behind it handed out.
            self._next = index + 1
        self._records = []
        self._next = 0
        raise StopIteration

    cdef bint _stands_at(self, object where) except -1:
        cdef object now
        if where not in self._expected:
            return False
        now = self._positions.partitions.get(where)
        return (now is not None and now is self._partitions.get(where)
                and self._positions.current.get(where) == self._expected[where])
