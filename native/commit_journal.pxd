# The commit journal of a process: one write makes durable what its threads wait for.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from eoslog.native.log_read cimport ReadRange
from eoslog.native.partition_log cimport PartitionLog, pthread_mutex_t
from eoslog.native.status cimport Fault, Status
from eoslog.native.sync_queue cimport SyncQueue

# Up to where one log is to be durable.
cdef struct DurableWish:
    PartitionLog* log
    int64_t offset

# What one thread waits for.
cdef struct DurableRequest:
    const DurableWish* wishes
    int32_t count
    int64_t batch
    DurableRequest* next

# Bytes of one log on their way into a record.
cdef struct JournalRange:
    PartitionLog* log
    ReadRange found
    bint covered                     # The half knows that it holds bytes of the log.

cdef struct JournalHalf:
    int64_t used_bytes               # With the header.
    uint64_t epoch
    uint64_t record_count
    bint full                        # Takes no more records until it is retired.
    bint kept                        # Holds the only good copy of something: it is never retired.
    PartitionLog** covered           # The logs of whose bytes it has some; owned.
    int32_t covered_count
    int32_t covered_capacity

cdef struct CommitJournal:
    pthread_mutex_t lock             # Guards all but what the leader alone uses.
    int32_t usable                   # Takes records; atomic.
    int32_t waiting                  # Requests for the next batch; atomic.
    int fd
    SyncQueue sync_queue             # For one sync beside a record's write.
    uint64_t device                  # Of the file; logs of others go by their files.
    bint synced                      # Each write is on the disk when it returns.
    int failed_errno                 # Of a write; no more are made to the file.
    int64_t failed_count             # Such writes, of all files.
    uint8_t journal_id[16]
    int64_t half_bytes
    uint8_t* buffer                  # The leader's; owned.
    int64_t buffer_bytes
    JournalRange* ranges             # The leader's; owned.
    int32_t range_count
    int32_t range_capacity
    JournalHalf halves[4]            # Two of the file, then those of the one before it.
    int32_t active
    int64_t fill_count               # How often a half was full.
    DurableRequest* first            # Requests for the next batch, in their order.
    DurableRequest* last
    int64_t collecting               # Number of the next batch, from 1 on.
    int64_t done                     # Of the last one that was written.
    bint leading                     # A thread is gathering or writing.
    int32_t sizes[8]                 # Of the last batches, in requests.
    uint32_t words[2]                # Futex words: who waits for a batch sleeps on one, by turns.
    uint32_t work                    # Futex word: rises when there is something to retire.
    int64_t waits_since_ns           # Waits for syncs of logs, without a journal,
    int32_t waits                    # ... so many in a second from then on,
    bint wanted                      # ... were enough for one to be worth its file.
    uint64_t* counts                 # Of the process's counter page; NULL without any.
    int64_t records_written
    int64_t bytes_written
    int64_t requests_written

cdef bint journal_takes(const CommitJournal* journal) noexcept nogil
cdef int journal_init(CommitJournal* journal) noexcept nogil
cdef void journal_free(CommitJournal* journal) noexcept nogil
cdef Status make_durable(
    CommitJournal* journal, const DurableWish* wishes, int32_t count, int32_t* failed, Fault* out
) noexcept nogil
cdef int journal_write_headers(
    int fd, bint synced, const uint8_t* journal_id, int64_t half_bytes
) noexcept nogil
cdef int journal_take_file(
    CommitJournal* journal, int fd, bint synced, const uint8_t* journal_id, int64_t half_bytes
) noexcept nogil
cdef void journal_free_buffers(CommitJournal* journal) noexcept nogil
cdef void journal_start(CommitJournal* journal) noexcept nogil
cdef void journal_stop(CommitJournal* journal) noexcept nogil
cdef void journal_wait(CommitJournal* journal, uint32_t seen, int64_t timeout_ns) noexcept nogil
cdef void journal_wake(CommitJournal* journal) noexcept nogil
cdef int journal_empty_half(CommitJournal* journal, int32_t half) noexcept nogil
cdef void journal_leave(CommitJournal* journal, PartitionLog* log) noexcept nogil
