# One segment: a mapped .log file with its two indexes.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from eoslog.native.index_file cimport IndexFile
from eoslog.native.mapped_io cimport WatchedFile
from eoslog.native.record_batch cimport (
    BATCH_HEADER_BYTES, BATCH_MAGIC_V2, BatchHeader, batch_header_load,
)
from eoslog.native.status cimport STATUS_CORRUPT, STATUS_OK, Fault, Status, fault

cdef extern from "segment_files.h" nogil:
    # Of a file that becomes a segment by its renaming; an opening of the partition sweeps it.
    const char* SEGMENT_UNNAMED_SUFFIX
    const char* SEGMENT_REOPENED

cdef struct SegmentOptions:
    int64_t segment_bytes
    int64_t segment_index_bytes
    int64_t index_interval_bytes
    int64_t fill_bytes               # Zeros are written so many at a time ahead of the batches.
    bint overlay                     # The directory is a reader's own: nothing is synced.
    WatchedFile watched              # Of a log that is only read: while unchanged, its files count.

cdef struct Segment:
    int64_t base_offset
    uint8_t* map                     # map_bytes long, shared with the file; NULL until needed.
    int64_t map_bytes
    int64_t used_bytes               # Valid batches end here; <= reserved_bytes while active.
    int64_t reserved_bytes           # Length of the file: nothing is stored beyond it.
    int64_t max_timestamp            # -1 = no record yet.
    int64_t max_timestamp_offset     # Last offset of the earliest batch that has it.
    int64_t first_max_timestamp      # Of the first batch: the age of the segment counts from it.
    int64_t created_ms
    int64_t bytes_since_index_entry
    int64_t touched_bytes            # The pages below are in this process's map, or need not be.
    int64_t journaled_offset         # Where the journal's last range of it ends, else its begin,
    int64_t journaled_bytes          # ... in offsets and in bytes. The journal's leader's.
    int64_t begun_bytes              # The disk was asked to begin with what is below.
    int64_t given_bytes              # The disk was given what is below, piece by piece.
    int64_t own_bytes                # After the last batch of this process; -1: it wrote none.
    IndexFile offset_index
    IndexFile time_index
    Segment* next_deleted            # In the log's list of deleted segments.
    int fd                           # -1 until it is needed; a loaded one may keep its map alone.
    uint64_t device                  # Of a file that was closed, to know it again.
    uint64_t inode
    int32_t references               # Readers that hold the map; guarded by the log's segment lock.
    bint active
    bint loaded                      # Indexes are in memory.
    bint linked                      # The file had another name too when it was opened.
    int64_t apart_upto               # Of a foreign one that is recovered: what is below was read.
    bint foreign                     # A link in an overlay: its file is never written to.
    bint mended                      # A foreign one whose map is not as its file: it stays mapped.
    bint read_only                   # No byte of it is this process's to change.
    bint retired                     # Deleted from the log; freed after its last reader.
    bint unsynced                    # Has bytes that no sync covers.
    bint indexes_unsynced            # Its index files do.

cdef void segment_init(Segment* segment, int64_t base_offset) noexcept nogil
cdef void segment_path(
    const char* directory, int64_t base_offset, const char* suffix, char* path) noexcept nogil
cdef Status segment_create(
    Segment* segment, const char* directory, const char* spare_directory, int32_t spare_max,
    const SegmentOptions* options, Fault* out) noexcept nogil
cdef Status segment_load(
    Segment* segment, const char* directory, int64_t writable_bytes, const SegmentOptions* options,
    Fault* out) noexcept nogil
cdef void segment_begin_anew(Segment* segment) noexcept nogil
cdef void segment_clear_indexes(Segment* segment) noexcept nogil
cdef Status segment_cut(
    Segment* segment, const char* directory, int64_t bytes, Fault* out) noexcept nogil
cdef Status segment_reserve(
    Segment* segment, int64_t bytes_wanted, bint unfilled, const SegmentOptions* options, Fault* out
) noexcept nogil
cdef void segment_begin_sync(
    Segment* segment, int64_t begin_bytes, int64_t end_bytes
) noexcept nogil
cdef void segment_note_batch(
    Segment* segment, const BatchHeader* header, int64_t position_bytes,
    const SegmentOptions* options) noexcept nogil
cdef inline Status batch_in_chain(
    const Segment* segment, int64_t position_bytes, int64_t upper_bytes, int64_t base_offset_min,
    BatchHeader* header, Fault* out,
) noexcept nogil:
    """Load the header at a position that follows another batch, or begins the segment.

    STATUS_CORRUPT unless the batch ends by upper_bytes and its offsets are base_offset_min or more:
    base offsets lie outside of the checksum, and in a log they rise.
    """
    batch_header_load(segment.map + position_bytes, header)
    if header.batch_bytes < BATCH_HEADER_BYTES or header.magic != BATCH_MAGIC_V2 or (
            header.batch_bytes > upper_bytes - position_bytes):
        out.base_offset = segment.base_offset
        out.position_bytes = position_bytes
        return fault(out, STATUS_CORRUPT, "the chain of batches breaks",
                     upper_bytes - position_bytes, header.batch_bytes)
    if header.base_offset < base_offset_min or header.last_offset_delta < 0:
        out.base_offset = segment.base_offset
        out.position_bytes = position_bytes
        return fault(out, STATUS_CORRUPT, "a base offset is below the end of the batch before",
                     base_offset_min, header.base_offset)
    return STATUS_OK


cdef inline int64_t batch_end_offset(const BatchHeader* header) noexcept nogil:
    """Return the offset after the batch's last record."""
    return header.base_offset + header.last_offset_delta + 1


cdef bint index_entry_holds(const Segment* segment, int32_t entry) noexcept nogil
cdef bint segment_times_before(Segment* segment, int64_t position) noexcept nogil
cdef Status segment_find(
    const Segment* segment, int64_t offset, int64_t upper_bytes, int64_t* position_bytes, Fault* out
) noexcept nogil
cdef bint segment_indexes_hold(const Segment* segment) noexcept nogil
cdef Status segment_rebuild_indexes(
    Segment* segment, const SegmentOptions* options, Fault* out) noexcept nogil
cdef Status segment_index_active(
    Segment* segment, const SegmentOptions* options, int64_t* end, Fault* out) noexcept nogil
cdef Status segment_store_indexes(
    Segment* segment, const char* directory, bint sync, Fault* out) noexcept nogil
cdef void segment_end_times(Segment* segment) noexcept nogil
cdef Status segment_seal(Segment* segment, const char* directory, Fault* out) noexcept nogil
cdef void segment_unload(Segment* segment) noexcept nogil
cdef bint segment_close_file(Segment* segment, bint keep_map) noexcept nogil
cdef Status segment_reopen_file(
    Segment* segment, const char* directory, const SegmentOptions* options, Fault* out
) noexcept nogil
