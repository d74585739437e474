# Segment files kept for reuse, in slots of a partition's spare directory.
from libc.stdint cimport int32_t, int64_t

from eoslog.native.status cimport Fault, Status

cdef enum:
    SEGMENT_PATH_BYTES_MAX = 4096    # With the NUL; of a segment's files too.

cdef bint spare_take(
    const char* spare_directory, int32_t spare_max, const char* path) noexcept nogil
cdef int spare_keep(
    const char* spare_directory, int32_t spare_max, const char* path, int fd) noexcept nogil
cdef Status spare_prepare(
    const char* directory, const char* spare_directory, int32_t spare_max, int64_t bytes,
    int64_t fill_bytes, bint synced, int32_t* made, Fault* out
) noexcept nogil
