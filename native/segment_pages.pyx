# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Pages of an active segment: how a process that writes beside others brings them into its map.

The kernel maps all of a large folio at the first touch of any of its pages, as long as none is
mapped yet: writable after a store, read-only after a look. A process that appends alone stores
first, and pays once for each folio. One that follows looks first, at the headers that others wrote:
each page that it stores to later is then mapped by a fault of its own, which takes as long as
several appends, under the lock. So a process that appends has the folio in which the log ends
mapped writable before it looks. One that only reads does not: it would make clean pages dirty.

Only hints are given here: whatever becomes of them, the bytes and their safety are the same.
"""
from eoslog.native.mapped_io cimport eos_page_start, eos_populate

cdef enum:
    OTHERS_BYTES_MAX = 8 << 20       # Who wrote none of so many bytes counts as a reader.
    NEVER = -1


cdef inline int64_t folio_end(
    const Segment* segment, int64_t position_bytes, const SegmentOptions* options
) noexcept nogil:
    """Return the end of the folio with the byte before a position; at most the file's end."""
    cdef int64_t fill = options.fill_bytes
    cdef int64_t end = (position_bytes + fill - 1) // fill * fill
    return end if end < segment.reserved_bytes else segment.reserved_bytes


cdef void segment_pages_written(
    Segment* segment, int64_t end_bytes, const SegmentOptions* options
) noexcept nogil:
    """This process has stored a batch, up to a position."""
    segment.own_bytes = end_bytes
    if end_bytes > segment.touched_bytes:
        segment.touched_bytes = folio_end(segment, end_bytes, options)


cdef void segment_pages_follow(
    Segment* segment, int64_t upper_bytes, const SegmentOptions* options
) noexcept nogil:
    """Before headers up to a position are looked at, which others have stored."""
    cdef int64_t first, end
    if upper_bytes <= segment.touched_bytes or segment.own_bytes == NEVER or not segment.active or (
            segment.linked or upper_bytes - segment.own_bytes > OTHERS_BYTES_MAX):
        return
    end = folio_end(segment, upper_bytes, options)
    first = eos_page_start(max(segment.touched_bytes, end - options.fill_bytes))
    if end > first:
        eos_populate(segment.map + first, <size_t>(end - first))
    segment.touched_bytes = end


cdef void segment_pages_inherit(Segment* segment, const Segment* ended) noexcept nogil:
    """Inherit the pages' owner from a segment that ended; another process began the next one."""
    segment.own_bytes = NEVER if ended.own_bytes == NEVER else 0
