# The one place where a native status becomes an exception.
from eoslog.native.status cimport Fault, Status

cdef str compression_name(int attributes)
cdef object fault_error(Status status, const Fault* fault, str context, str path)
cdef int raise_status(Status status, const Fault* fault, str context, str path) except -1
