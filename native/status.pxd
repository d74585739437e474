# What a native call answers. >= 0: the call did its work; < 0: it changed nothing, save where
# noted.
from libc.stdint cimport int64_t

cdef enum Status:
    STATUS_OK = 0
    STATUS_DUPLICATE = 1             # In the log already: acknowledge with the first offsets.
    STATUS_SEQUENCE_GAP = -1
    STATUS_FENCED = -2
    STATUS_SEGMENT_FULL = -3
    STATUS_CLOSED = -4
    STATUS_IO = -5                   # Durability unknown; errno is in the fault.
    STATUS_NO_SPACE = -6
    STATUS_NO_MEMORY = -7
    STATUS_CORRUPT = -8
    STATUS_OFFSET_OUT_OF_RANGE = -9
    STATUS_RECORD_TOO_LARGE = -10
    STATUS_BATCH_TOO_LARGE = -11
    STATUS_INVALID_RECORD = -12
    STATUS_INVALID_TIMESTAMP = -13
    STATUS_INVALID_TXN_STATE = -14
    STATUS_PRODUCER_NOT_CACHED = -15  # Load the row of producer id `actual`, and call again.
    STATUS_OFFSET_OVERFLOW = -16
    STATUS_FAILED = -17              # An earlier flush failed: nothing is taken until recovery.
    STATUS_READ_ONLY = -19
    STATUS_COORDINATOR_FENCED = -20  # A newer coordinator has written a marker.
    STATUS_LOCK_HELD = -21           # For too long by another process, which the fault names.
    STATUS_FELL_BEHIND = -22         # What this process did not look at yet was deleted.
    STATUS_REOPENED = -24            # The store that is only read was opened by another process.
    STATUS_COMPRESSED = -23          # The batch is whole; the fault has its compression type.

# Details for the message of the exception; filled by the function that returns a negative status.
cdef struct Fault:
    int os_errno
    int64_t position_bytes
    int64_t base_offset              # Of the segment or batch concerned, -1 if none.
    int64_t expected
    int64_t actual
    const char* reason

cdef inline Status fault(
    Fault* out, Status status, const char* reason, int64_t expected, int64_t actual
) noexcept nogil:
    out.reason = reason
    out.expected = expected
    out.actual = actual
    return status
