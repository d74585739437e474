# The producers of an opened log.
from libc.stdint cimport int64_t

from eoslog.bindings.log_reader cimport LogReader


cdef class LogProducers(LogReader):
    cdef int64_t _first_base                 # As the last restoring of the producers began.

    cdef int _clear_producers(self) except -1
    cdef int _restore_aborts(self, object files, int64_t below_offset) except -1
    cdef int _trim_abort_files(self) except -1
    cdef int _replay(self, int64_t from_offset) except -1
    cdef int64_t _load_newest_snapshot(self) except -2
