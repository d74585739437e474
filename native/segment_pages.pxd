# The pages of an active segment in this process's map.
from libc.stdint cimport int64_t

from eoslog.native.segment cimport Segment, SegmentOptions

cdef void segment_pages_written(
    Segment* segment, int64_t end_bytes, const SegmentOptions* options) noexcept nogil
cdef void segment_pages_follow(
    Segment* segment, int64_t upper_bytes, const SegmentOptions* options) noexcept nogil
cdef void segment_pages_inherit(Segment* segment, const Segment* ended) noexcept nogil
