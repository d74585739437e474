# What the operating system refused of a file, as a status: want of room and of memory are others
# than a failure of the disk.
from eoslog.native.mapped_io cimport EDQUOT, EFBIG, ENOMEM, ENOSPC
from eoslog.native.status cimport (
    STATUS_IO, STATUS_NO_MEMORY, STATUS_NO_SPACE, Fault, Status, fault,
)


cdef inline Status io_fault(Fault* out, int error, const char* reason) noexcept nogil:
    out.os_errno = error
    if error == ENOSPC or error == EDQUOT or error == EFBIG:
        return fault(out, STATUS_NO_SPACE, reason, 0, error)
    if error == ENOMEM:
        return fault(out, STATUS_NO_MEMORY, reason, 0, error)
    return fault(out, STATUS_IO, reason, 0, error)
