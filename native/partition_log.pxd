# One partition's log: the struct that all log modules work on, its segments, its published offsets.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from eoslog.native.abort_index cimport AbortIndex
from eoslog.native.atomics cimport load_acquire_32, load_acquire_64, load_acquire_map
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport (
    ControlPage, ControlView, control_load, control_load_32,
)
from eoslog.native.open_files cimport FileOwner
from eoslog.native.ongoing_transactions cimport OngoingTransactions
from eoslog.native.producer_table cimport ProducerTable
from eoslog.native.segment cimport Segment, SegmentOptions
from eoslog.native.status cimport STATUS_OK, Fault, Status

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes) noexcept
    int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept

cdef struct LogOptions:
    SegmentOptions segment
    int64_t roll_bytes               # A segment that would grow beyond it is ended; it may be less.
    int64_t segment_ms
    int64_t max_message_bytes
    int64_t timestamp_before_max_ms
    int64_t timestamp_after_max_ms
    int32_t spare_segments
    int32_t leader_epoch
    int64_t written_bytes_min        # Batches of so many go into their file by calls.
    bint durable                     # Calls wait for the disk, by files or journals.
    int64_t mapped_max               # Up to so many of the process, closed files keep their maps.
    int64_t holes_below              # Below it Kafka's compaction may have left some out.

# What a directory listing says of one segment.
cdef struct SegmentFile:
    int64_t base_offset
    int64_t file_bytes

cdef struct PartitionLog:
    const char* directory            # Borrowed; the owner keeps them alive and NUL-terminated.
    const char* spare_directory
    const char* cut_directory
    const char* page_directory       # To be synced before a second segment; NULL once it was.
    uint64_t device                  # Of the directory, as it was opened.
    uint64_t inode
    LogOptions options
    ControlPage* page                # Shared with other processes; all else is this one's own.
    const ControlPage* followed      # If the log is only read here: what `page` is a copy of, and
    pthread_mutex_t follow_lock      # ... what guards the copying; after all other locks.
    bint renewed                     # ... it is of a later session: to be attached to again,
    const char* next_directory       # ... in the store's directory, if it was read in an overlay.
    uint32_t* wake_word              # What readers of many logs sleep on; NULL without any.
    uint32_t wake_bit                # For which readers of this one do.
    int32_t process_id
    pthread_mutex_t view_lock        # Guards what is derived from batches; after the page's lock.
    int64_t known_end                # Segments, indexes, producers are those of the batches below.
    int64_t stable_end               # Last stable offset as of then.
    int64_t own_end                  # Below it are batches of this process, or such as it took in.
    int64_t written_end              # After the last batch that went into its file by a call.
    int64_t whole_end                # Of producers first met below it nothing is in LMDB alone.
    ProducerTable producers
    OngoingTransactions ongoing
    AbortIndex aborts
    Segment** segments               # By base offset; the last is active. Guarded by segments_lock.
    int32_t segment_count
    int32_t segment_capacity
    Segment* deleted                 # Not in the list any longer, without holders, to be freed.
    pthread_mutex_t segments_lock    # For look-ups and list changes, and to open and close files.
    FileOwner files                  # Open ones of segments; entered and left under segments_lock.
    pthread_mutex_t flush_lock       # One thread of this process at a time syncs; comes first.
    int64_t passed_round             # Of a turn to sync that its holder does not end; -1: none.
    int64_t sync_count               # Syncs of the log by this process so far.
    int64_t snapshot_offset          # Of the newest .snapshot file, -1 if none.
    int64_t cut_bytes                # What recovery cut off, 0 if nothing.
    void* journal                    # The process's CommitJournal; NULL without any.
    uint64_t* counts                 # Of the process's counter page; NULL without any.
    int64_t journal_ends[4]          # Its halves have bytes of the log, up to here at most.
    uint32_t journal_halves          # ... those of these bits.
    bint journal_left                # It knows the log no more.
    int64_t journal_batch            # Its leader's: the last batch with a range of the log,
    int64_t journal_batch_end        # ... up to here.
    bint closed
    bint opened
    bint closes_files                # When others need room; not while it is being opened.
    bint producers_unknown           # Not restored yet: batches are not taken into the table.
    bint stable_unknown              # Being cut back: no transaction counts as decided.
    bint directory_unsynced          # A file was made or renamed since the directory's last sync.

cdef Status log_init(PartitionLog* log) noexcept nogil
cdef void log_free(PartitionLog* log) noexcept nogil
cdef Status log_add_segment(
    PartitionLog* log, int64_t base_offset, int64_t file_bytes) noexcept nogil
cdef Status log_load_writable(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil
cdef Status log_load_segment(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil
cdef void log_enter_files(PartitionLog* log) noexcept nogil
cdef Status log_reopen(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil
cdef void log_unload_idle(PartitionLog* log) noexcept nogil
cdef void log_publish(PartitionLog* log, int64_t log_end_offset) noexcept nogil
cdef void log_note_end(PartitionLog* log, int64_t log_end_offset) noexcept nogil
cdef void log_fail(PartitionLog* log, int error) noexcept nogil
cdef bint log_look(PartitionLog* log, ControlView* view) noexcept nogil
cdef Status log_check_directory(PartitionLog* log, Fault* out) noexcept nogil
cdef Status log_name_page(PartitionLog* log, Fault* out) noexcept nogil
cdef Status log_start_segment(PartitionLog* log, int64_t base_offset, Fault* out) noexcept nogil
cdef Status log_acquire(
    PartitionLog* log, int64_t offset, Segment** segment_out, Fault* out) noexcept nogil
cdef void log_release(PartitionLog* log, Segment* segment) noexcept nogil
cdef int64_t log_next_base(PartitionLog* log, const Segment* segment) noexcept nogil
cdef void segment_retire(PartitionLog* log, Segment* segment) noexcept nogil
cdef int32_t deleted_segments_free(PartitionLog* log) noexcept nogil
cdef int64_t deleted_segments_waiting() noexcept nogil
cdef Segment* take_first(PartitionLog* log, int64_t upto_offset, bint ends) noexcept nogil
cdef void log_drop_segments(PartitionLog* log, int64_t first_base_offset) noexcept nogil


# On the way of an append: a call of another module goes through a pointer.
cdef inline Segment* log_active(PartitionLog* log) noexcept nogil:
    EOS_CHECK(log.segment_count > 0, "partition log: there is an active segment")
    return log.segments[log.segment_count - 1]


cdef inline Status log_use_active(PartitionLog* log, Fault* out) noexcept nogil:
    """Have the active segment mapped, whose file may have been closed. The caller holds view_lock.
    """
    log.files.used = True
    if log.segment_count == 0 or load_acquire_map(&log_active(log).map) != NULL:
        return STATUS_OK
    return log_reopen(log, log_active(log), out)


cdef inline Status log_use_file(PartitionLog* log, Segment* segment, Fault* out) noexcept nogil:
    """Have the descriptor too of a segment that was the active one. The caller holds view_lock."""
    if load_acquire_32(<const int32_t*>&segment.fd) >= 0:
        return STATUS_OK
    return log_reopen(log, segment, out)


cdef inline int64_t log_end(PartitionLog* log) noexcept nogil:
    """Log end offset as far as this process looked: every record below it may be read. For a
    writer, who has the lock, it is the end.
    """
    return load_acquire_64(&log.known_end)


cdef inline int64_t log_stable_end(PartitionLog* log) noexcept nogil:
    """Last stable offset as far as this process looked; never below the log's start."""
    cdef int64_t stable = load_acquire_64(&log.stable_end)
    cdef int64_t start = control_load(&log.page.log_start_offset)
    return stable if stable > start else start


cdef inline int log_failure(PartitionLog* log) noexcept nogil:
    """Return the errno for which nothing is appended any more; 0 if all is well."""
    return control_load_32(&log.page.failed_errno)
