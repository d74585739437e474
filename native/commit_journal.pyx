# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Durability by one write, whatever it is of: the bytes of all logs that threads wait for go into
one record of the process's journal. docs/commit-journal.md has the protocol; W3 and the like are
its steps.

The first thread that asks leads: it gathers what the others ask for, writes, and wakes them. Who
is not served by that (the half is full, a write failed, the range is large or its file's name is
not on the disk yet) syncs the files, and so does everybody while there is no journal. Who waits may
have a log's turn to sync, so a leader takes none of the locks that come before view_lock.

Invariants: a record holds all bytes of a log from its durable end on; a log's durable end is raised
after the record is on the disk, and after the half that holds it knows the log; a half is emptied
only when the files of all its logs hold what its records do.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from eoslog.native.abort_index cimport filter_init
from eoslog.native.atomics cimport load_acquire_32, store_release_32, store_release_64
from eoslog.native.check cimport EOS_CHECK
from eoslog.native.control_page cimport (
    control_durable, control_flag, control_load, control_now_ns, control_raise,
)
from eoslog.native.counters cimport (
    COUNTER_JOURNAL_BYTES, COUNTER_JOURNAL_FAILURES, COUNTER_JOURNAL_RECORDS,
    COUNTER_JOURNAL_REQUESTS, COUNTER_JOURNAL_RETIREMENTS, COUNTER_JOURNAL_WRITES, counter_add,
    counter_add_duration,
)
from eoslog.native.crc32c cimport crc32c
from eoslog.native.journal_file cimport (
    JOURNAL_BLOCK_BYTES, JOURNAL_HALF_MAGIC, JOURNAL_RECORD_MAGIC, JOURNAL_SUMMED_AT,
    JournalHalfHeader, JournalRangeHeader, JournalRecordHeader, journal_blocks, journal_buffer,
    journal_write,
)
from eoslog.native.log_read cimport ReadRange, read_close, read_open
from eoslog.native.log_sync cimport BegunSync, log_begin_sync, log_end_sync, log_sync_durable
from eoslog.native.mapped_io cimport eos_file_length, eos_identity_of
from eoslog.native.partition_log cimport (
    log_active, log_end, log_failure, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock,
)
from eoslog.native.segment cimport Segment
from eoslog.native.shared_page cimport (
    SHARED_ALL_BITS, shared_word_load, shared_word_wait, shared_word_wake, shared_word_wake_one,
)
from eoslog.native.status cimport STATUS_OK
from eoslog.native.sync_queue cimport SyncQueue, eos_sync_queue_close, eos_sync_queue_open

cdef extern from "<errno.h>" nogil:
    int ENOMEM
    int EBUSY

cdef extern from "<sched.h>" nogil:
    int sched_yield() noexcept

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds) noexcept

cdef enum:
    HALVES = 2                       # Of a file.
    ALL_HALVES = 4                   # With those of the file before, until it is retired.
    RANGE_BYTES_MAX = 128 << 10      # More of one file is synced faster than copied.
    RECORD_BYTES_MAX = 4 << 20
    SIZES = 8
    WAIT_FOR_OTHERS_NS = 30_000
    SLEEP_NS = 1_000_000_000
    WAITS_WANTED = 8                 # For syncs, in a second: then a journal is worth its file.
    SECOND_NS = 1_000_000_000


cdef int journal_init(CommitJournal* journal) noexcept nogil:
    memset(journal, 0, sizeof(CommitJournal))
    journal.fd = -1
    journal.collecting = 1
    return pthread_mutex_init(&journal.lock, NULL)


cdef void journal_free(CommitJournal* journal) noexcept nogil:
    cdef int32_t half
    journal_free_buffers(journal)
    for half in range(ALL_HALVES):
        free(journal.halves[half].covered)
    pthread_mutex_destroy(&journal.lock)


cdef void journal_free_buffers(CommitJournal* journal) noexcept nogil:
    """Of a journal that was stopped: no leader comes to them any more."""
    eos_sync_queue_close(&journal.sync_queue)
    free(journal.buffer)
    free(journal.ranges)
    journal.buffer = NULL
    journal.ranges = NULL
    journal.range_capacity = 0


cdef Status make_durable(
    CommitJournal* journal, const DurableWish* wishes, int32_t count, int32_t* failed, Fault* out
) noexcept nogil:
    """Make each log durable up to its offset; `failed` is the first that could not be.

    Raises nothing by itself: what the journal does not take goes by the files, with their errors.
    """
    cdef BegunSync begun
    cdef Status status
    cdef int32_t index
    if journal != NULL and not are_durable(wishes, count):
        if journal_takes(journal):
            failed[0] = begin_large(journal, wishes, count, &begun)
            write_together(journal, wishes, count)
            if begun.log != NULL:
                status = log_end_sync(&begun, out)
                if status != STATUS_OK:
                    return status
        else:
            note_wait(journal, count)
    for index in range(count):
        failed[0] = index
        status = log_sync_durable(wishes[index].log, wishes[index].offset, out)
        if status != STATUS_OK:
            return status
    return STATUS_OK


cdef bint journal_takes(const CommitJournal* journal) noexcept nogil:
    """True if there is a journal, and it takes records."""
    return journal != NULL and load_acquire_32(&journal.usable) != 0


cdef int32_t begin_large(
    CommitJournal* journal, const DurableWish* wishes, int32_t count, BegunSync* begun
) noexcept nogil:
    """Have the disk begin with what no record takes (W1). If there is more to write than that, the
    kernel syncs one such log (W6) beside the write of the record; the index of that log.
    """
    cdef SyncQueue* queue = &journal.sync_queue if count > 1 else NULL
    cdef int32_t found = 0
    cdef int32_t index
    begun.log = NULL
    for index in range(count):
        if log_begin_sync(wishes[index].log, RANGE_BYTES_MAX, queue, begun):
            found = index
            queue = NULL
    return found


cdef bint are_durable(const DurableWish* wishes, int32_t count) noexcept nogil:
    cdef int32_t index
    for index in range(count):
        if control_durable(wishes[index].log.page) < wishes[index].offset:
            return False
    return True


cdef void note_wait(CommitJournal* journal, int32_t log_count) noexcept nogil:
    """A thread syncs the files of so many logs, one after the other."""
    cdef int64_t now_ns = control_now_ns()
    cdef bint is_wanted
    pthread_mutex_lock(&journal.lock)
    if now_ns - journal.waits_since_ns > SECOND_NS:
        journal.waits_since_ns = now_ns
        journal.waits = 0
    journal.waits += log_count
    is_wanted = journal.waits >= WAITS_WANTED and not journal.wanted
    journal.wanted = journal.wanted or is_wanted
    pthread_mutex_unlock(&journal.lock)
    if is_wanted:
        journal_wake(journal)


# Threads, and the one that leads.

cdef void write_together(
    CommitJournal* journal, const DurableWish* wishes, int32_t count
) noexcept nogil:
    """Have the wishes in a batch that is written, by this thread or another (W1 to W5)."""
    cdef DurableRequest request
    cdef uint32_t seen
    cdef uint32_t* word
    request.wishes = wishes
    request.count = count
    request.next = NULL
    pthread_mutex_lock(&journal.lock)
    request.batch = journal.collecting
    if journal.first == NULL:
        journal.first = &request
    else:
        journal.last.next = &request
    journal.last = &request
    store_release_32(&journal.waiting, journal.waiting + 1)
    word = &journal.words[request.batch & 1]
    while journal.done < request.batch:
        if not journal.leading and request.batch == journal.collecting:
            journal.leading = True
            pthread_mutex_unlock(&journal.lock)
            lead(journal)
            return
        seen = shared_word_load(word)
        pthread_mutex_unlock(&journal.lock)
        shared_word_wait(word, seen, SHARED_ALL_BITS, SLEEP_NS)
        pthread_mutex_lock(&journal.lock)
    pthread_mutex_unlock(&journal.lock)


cdef void lead(CommitJournal* journal) noexcept nogil:
    """Write one batch for all who wait for it, and have the next one led."""
    cdef DurableRequest* first
    cdef int64_t batch
    cdef bint others
    wait_for_others(journal)
    pthread_mutex_lock(&journal.lock)
    first = journal.first
    batch = journal.collecting
    journal.first = journal.last = NULL
    journal.collecting += 1
    journal.sizes[batch % SIZES] = journal.waiting
    store_release_32(&journal.waiting, 0)
    pthread_mutex_unlock(&journal.lock)
    write_batch(journal, first, batch)
    pthread_mutex_lock(&journal.lock)
    journal.done = batch
    journal.leading = False
    others = journal.first != NULL
    pthread_mutex_unlock(&journal.lock)
    shared_word_wake(&journal.words[batch & 1], 1, SHARED_ALL_BITS)
    if others:
        shared_word_wake_one(&journal.words[(batch + 1) & 1])  # Any of them leads.


cdef void wait_for_others(CommitJournal* journal) noexcept nogil:
    """Until as many wait as did for the largest of the last batches; not for long."""
    cdef int32_t expected = 1
    cdef int32_t index
    cdef int64_t until_ns
    for index in range(SIZES):
        if journal.sizes[index] > expected:
            expected = journal.sizes[index]
    if load_acquire_32(&journal.waiting) >= expected:
        return
    until_ns = control_now_ns() + WAIT_FOR_OTHERS_NS
    while load_acquire_32(&journal.waiting) < expected and control_now_ns() < until_ns:
        sched_yield()


# A batch.

cdef void write_batch(
    CommitJournal* journal, const DurableRequest* first, int64_t batch
) noexcept nogil:
    """Write one record of what the requests wait for, as far as it fits (W2 to W4)."""
    cdef const DurableRequest* request = first
    cdef JournalRange* one
    cdef int64_t bytes = sizeof(JournalRecordHeader)
    cdef int64_t request_count = 0
    cdef int32_t index
    cdef bint is_written
    while request != NULL and load_acquire_32(&journal.usable):
        for index in range(request.count):
            bytes += add_range(journal, &request.wishes[index], batch, bytes)
        request_count += 1
        request = request.next
    is_written = journal.range_count > 0 and write_record(journal, bytes)
    if is_written:
        journal.requests_written += request_count
        counter_add(journal.counts, COUNTER_JOURNAL_REQUESTS, <uint64_t>request_count)
    for index in range(journal.range_count):
        one = &journal.ranges[index]
        # If a sync has failed by now, the disk may not get what the page cache holds.
        if is_written and one.covered and log_failure(one.log) == 0:
            control_raise(&one.log.page.durable, one.found.next_offset)
            one.found.segment.journaled_offset = one.found.next_offset
            store_release_64(
                &one.found.segment.journaled_bytes,
                one.found.position_bytes + one.found.data_bytes)
        read_close(one.log, &one.found)
    journal.range_count = 0


cdef int64_t add_range(
    CommitJournal* journal, const DurableWish* wish, int64_t batch, int64_t bytes
) noexcept nogil:
    """Hold what is to be written of a log; how many bytes of the record it takes. 0: it is in
    already, or goes by the files.
    """
    cdef PartitionLog* log = wish.log
    cdef JournalRange* one
    cdef int64_t start = control_durable(log.page)
    cdef int64_t room = journal.buffer_bytes - bytes - <int64_t>sizeof(JournalRangeHeader)
    cdef Fault ignored
    if log.journal_batch == batch and log.journal_batch_end > start:
        start = log.journal_batch_end
    # A name that is not on the disk: a power cut would leave nothing to write the bytes to.
    if start >= wish.offset or log.directory_unsynced or log.device != journal.device or (
            log_failure(log) != 0 or log.closed):
        return 0
    if not has_room_for_range(journal):
        return 0
    one = &journal.ranges[journal.range_count]
    if not find_new_bytes(log, start, &one.found) and (
            read_open(log, start, log_end(log), min(room, <int64_t>RANGE_BYTES_MAX), False,
                      &one.found, &ignored) != STATUS_OK or one.found.segment == NULL):
        return 0
    if one.found.next_offset < wish.offset or one.found.data_bytes > min(
            room, <int64_t>RANGE_BYTES_MAX) or one.found.segment.linked:
        read_close(log, &one.found)
        return 0
    one.log = log
    one.covered = False
    journal.range_count += 1
    log.journal_batch = batch
    log.journal_batch_end = one.found.next_offset
    return <int64_t>sizeof(JournalRangeHeader) + one.found.data_bytes


cdef bint find_new_bytes(PartitionLog* log, int64_t start, ReadRange* found) noexcept nogil:
    """Hold what was appended from an offset on, if the last range of the log ended there, or its
    active segment begins there: as read_open does, without a search.
    """
    cdef Segment* active
    cdef int64_t file_bytes = 0
    cdef bint is_there
    pthread_mutex_lock(&log.view_lock)
    pthread_mutex_lock(&log.segments_lock)
    is_there = not log.closed and log.segment_count > 0 and control_flag(&log.page.deleted) == 0
    if is_there:
        active = log_active(log)
        is_there = active.journaled_offset == start and active.fd >= 0 and (
            active.used_bytes > active.journaled_bytes)
    if is_there:
        # A load beyond the end of a file that was truncated would be a SIGBUS.
        is_there = eos_file_length(active.fd, &file_bytes) == 0 and (
            file_bytes >= active.used_bytes)
    if is_there:
        active.references += 1
        filter_init(&found.filter)
        found.segment = active
        found.position_bytes = active.journaled_bytes
        found.data = active.map + found.position_bytes
        found.data_bytes = active.used_bytes - found.position_bytes
        found.next_offset = log_end(log)
    pthread_mutex_unlock(&log.segments_lock)
    pthread_mutex_unlock(&log.view_lock)
    return is_there


cdef bint has_room_for_range(CommitJournal* journal) noexcept nogil:
    cdef JournalRange* grown
    cdef int32_t capacity
    if journal.range_count < journal.range_capacity:
        return True
    capacity = journal.range_capacity * 2 if journal.range_capacity > 0 else 64
    grown = <JournalRange*>realloc(journal.ranges, <size_t>capacity * sizeof(JournalRange))
    if grown == NULL:
        return False
    journal.ranges = grown
    journal.range_capacity = capacity
    return True


cdef bint write_record(CommitJournal* journal, int64_t bytes) noexcept nogil:
    """Write the ranges as one record. On the disk, and known to its half, if it returns True."""
    cdef JournalHalf* half = half_with_room(journal, journal_blocks(bytes))
    cdef JournalRange* one
    cdef int64_t position, begun_ns
    cdef int32_t index
    cdef int error
    if half == NULL:
        return False
    fill_record(journal, half, bytes)
    position = journal.active * journal.half_bytes + half.used_bytes
    begun_ns = control_now_ns()
    error = journal_write(journal.fd, journal.synced, journal.buffer,
                          <size_t>journal_blocks(bytes), position)
    counter_add_duration(journal.counts, COUNTER_JOURNAL_WRITES, control_now_ns() - begun_ns)
    pthread_mutex_lock(&journal.lock)
    if error != 0:
        # It may be in the file or not: it is after all others, and no record follows it.
        journal.failed_errno = error
        journal.failed_count += 1
        counter_add(journal.counts, COUNTER_JOURNAL_FAILURES, 1)
        store_release_32(&journal.usable, 0)
    else:
        half.used_bytes += journal_blocks(bytes)
        half.record_count += 1
        journal.records_written += 1
        journal.bytes_written += journal_blocks(bytes)
        counter_add(journal.counts, COUNTER_JOURNAL_RECORDS, 1)
        counter_add(journal.counts, COUNTER_JOURNAL_BYTES, <uint64_t>journal_blocks(bytes))
        for index in range(journal.range_count):
            one = &journal.ranges[index]
            one.covered = cover(journal, one.log, one.found.next_offset)
    pthread_mutex_unlock(&journal.lock)
    if error != 0:
        journal_wake(journal)
    return error == 0


cdef void fill_record(
    CommitJournal* journal, const JournalHalf* half, int64_t bytes
) noexcept nogil:
    cdef JournalRecordHeader* header = <JournalRecordHeader*>journal.buffer
    cdef JournalRangeHeader* ranges = <JournalRangeHeader*>(
        journal.buffer + sizeof(JournalRecordHeader))
    cdef uint8_t* data = <uint8_t*>(ranges + journal.range_count)
    cdef JournalRange* one
    cdef int32_t index
    for index in range(journal.range_count):
        one = &journal.ranges[index]
        memcpy(ranges[index].topic_id, one.log.page.topic_id, 16)
        ranges[index].base_offset = one.found.segment.base_offset
        ranges[index].position_bytes = one.found.position_bytes
        ranges[index].bytes = one.found.data_bytes
        ranges[index].end_offset = one.found.next_offset
        ranges[index].partition = one.log.page.partition
        ranges[index].zero = 0
        memcpy(data, one.found.data, <size_t>one.found.data_bytes)
        data += one.found.data_bytes
    EOS_CHECK(data - journal.buffer == bytes, "journal: the record's length")
    memset(data, 0, <size_t>(journal_blocks(bytes) - bytes))
    header.magic = JOURNAL_RECORD_MAGIC
    header.range_count = <uint32_t>journal.range_count
    memcpy(header.journal_id, journal.journal_id, 16)
    header.epoch = half.epoch
    header.number = half.record_count + 1
    pthread_mutex_lock(&journal.lock)
    header.other_epoch = journal.halves[1 - journal.active].epoch
    header.other_count = journal.halves[1 - journal.active].record_count
    pthread_mutex_unlock(&journal.lock)
    header.bytes = <uint64_t>bytes
    header.crc = crc32c(0, journal.buffer + JOURNAL_SUMMED_AT, <size_t>(bytes - JOURNAL_SUMMED_AT))


cdef JournalHalf* half_with_room(CommitJournal* journal, int64_t blocks) noexcept nogil:
    """Return the half that takes so many bytes more; the active one is full if it is the other
    (H1). NULL: neither has room.
    """
    cdef JournalHalf* half
    cdef bint has_room, is_full
    pthread_mutex_lock(&journal.lock)
    half = &journal.halves[journal.active]
    has_room = not half.full and half.used_bytes + blocks <= journal.half_bytes
    is_full = not has_room
    if is_full:
        if not half.full:
            journal.fill_count += 1
        half.full = True
        half = &journal.halves[1 - journal.active]
        # A half that is not full was emptied, and has no record since.
        has_room = not half.full
        if has_room:
            journal.active = 1 - journal.active
    pthread_mutex_unlock(&journal.lock)
    if is_full:
        journal_wake(journal)
    return half if has_room else NULL


cdef bint cover(CommitJournal* journal, PartitionLog* log, int64_t end_offset) noexcept nogil:
    """Have the active half know that it has bytes of a log up to an offset. The caller holds the
    lock. False: the log was let go of.
    """
    cdef JournalHalf* half = &journal.halves[journal.active]
    cdef PartitionLog** grown
    cdef int32_t capacity
    if log.journal_left:
        return False
    if not log.journal_halves & (1 << journal.active):
        if half.covered_count == half.covered_capacity:
            capacity = half.covered_capacity * 2 if half.covered_capacity > 0 else 64
            grown = <PartitionLog**>realloc(
                half.covered, <size_t>capacity * sizeof(PartitionLog*))
            if grown == NULL:
                half.kept = True
                return False
            half.covered = grown
            half.covered_capacity = capacity
        half.covered[half.covered_count] = log
        half.covered_count += 1
        log.journal_halves |= 1 << journal.active
    if log.journal_ends[journal.active] < end_offset:
        log.journal_ends[journal.active] = end_offset
    return True


# The file, and the retiring of its halves.

cdef int write_header(
    int fd, bint synced, const uint8_t* journal_id, int64_t half_bytes, int32_t half,
    uint64_t epoch,
) noexcept nogil:
    """Have the records of an epoch count, and no others; on the disk on return."""
    cdef uint8_t* block = journal_buffer(JOURNAL_BLOCK_BYTES)
    cdef JournalHalfHeader* header = <JournalHalfHeader*>block
    cdef int error
    if block == NULL:
        return ENOMEM
    memset(block, 0, JOURNAL_BLOCK_BYTES)
    header.magic = JOURNAL_HALF_MAGIC
    header.half = <uint32_t>half
    memcpy(header.journal_id, journal_id, 16)
    header.half_bytes = <uint64_t>half_bytes
    header.epoch = epoch
    header.crc = crc32c(
        0, block + JOURNAL_SUMMED_AT, sizeof(JournalHalfHeader) - JOURNAL_SUMMED_AT)
    error = journal_write(fd, synced, block, JOURNAL_BLOCK_BYTES, half * half_bytes)
    free(block)
    return error


cdef int journal_write_headers(
    int fd, bint synced, const uint8_t* journal_id, int64_t half_bytes
) noexcept nogil:
    """Have a file be two empty halves with an id that no record in it has (M3); 0 or an errno."""
    cdef int32_t half
    cdef int error = 0
    for half in range(HALVES):
        if error == 0:
            error = write_header(fd, synced, journal_id, half_bytes, half, 1)
    return error


cdef int journal_take_file(
    CommitJournal* journal, int fd, bint synced, const uint8_t* journal_id, int64_t half_bytes
) noexcept nogil:
    """Go over to a file with headers, whose descriptor stays the caller's; 0 or an errno, and then
    nothing has changed.

    The journal is stopped, and starts by journal_start. What the file before holds, whose
    descriptor is used no more, is to be retired; nothing is left of one before that.
    """
    cdef uint64_t inode = 0
    cdef uint64_t device = 0
    cdef int64_t buffer_bytes = min(half_bytes - JOURNAL_BLOCK_BYTES, <int64_t>RECORD_BYTES_MAX)
    cdef int32_t half
    cdef uint8_t* buffer
    cdef int error = eos_identity_of(fd, &device, &inode)
    if error != 0:
        return error
    buffer = journal_buffer(<size_t>buffer_bytes)
    if buffer == NULL:
        return ENOMEM
    free(journal.buffer)
    journal.buffer = buffer
    journal.buffer_bytes = buffer_bytes
    eos_sync_queue_open(&journal.sync_queue)
    pthread_mutex_lock(&journal.lock)
    for half in range(HALVES):
        put_behind(journal, half)
    journal.fd = fd
    journal.device = device
    journal.synced = synced
    journal.half_bytes = half_bytes
    journal.failed_errno = 0
    memcpy(journal.journal_id, journal_id, 16)
    journal.active = 0
    pthread_mutex_unlock(&journal.lock)
    return 0


cdef void put_behind(CommitJournal* journal, int32_t half) noexcept nogil:
    """Have a half be one of the file before, and begin it empty."""
    cdef JournalHalf emptied = journal.halves[HALVES + half]
    cdef JournalHalf* before = &journal.halves[HALVES + half]
    cdef PartitionLog* log
    cdef int32_t index
    before[0] = journal.halves[half]
    for index in range(before.covered_count):
        log = before.covered[index]
        log.journal_ends[HALVES + half] = log.journal_ends[half]
        log.journal_halves &= ~(1 << half)
        log.journal_halves |= 1 << (HALVES + half)
    emptied.used_bytes = JOURNAL_BLOCK_BYTES
    emptied.epoch = 1
    emptied.record_count = 0
    emptied.full = False
    journal.halves[half] = emptied


cdef void journal_start(CommitJournal* journal) noexcept nogil:
    """Take records from now on (M5)."""
    store_release_32(&journal.usable, 1)


cdef void journal_stop(CommitJournal* journal) noexcept nogil:
    """Take no more records; the last one is written when it returns."""
    cdef bint leading = True
    store_release_32(&journal.usable, 0)
    while leading:
        pthread_mutex_lock(&journal.lock)
        leading = journal.leading
        if not leading:
            journal.halves[0].full = journal.halves[1].full = True
        pthread_mutex_unlock(&journal.lock)
        if leading:
            usleep(100)


cdef void journal_wait(CommitJournal* journal, uint32_t seen, int64_t timeout_ns) noexcept nogil:
    """Sleep until there is something to retire, unless that came since `work` was seen."""
    shared_word_wait(&journal.work, seen, SHARED_ALL_BITS, timeout_ns)


cdef void journal_wake(CommitJournal* journal) noexcept nogil:
    shared_word_wake(&journal.work, 1, SHARED_ALL_BITS)


cdef bint is_synced(const PartitionLog* log, int32_t half) noexcept nogil:
    """True if the files hold all that a half may have of a log, or the log was deleted."""
    return control_load(&log.page.recovery_point) >= log.journal_ends[half] or (
        control_flag(&log.page.deleted) != 0)


cdef int journal_empty_half(CommitJournal* journal, int32_t half) noexcept nogil:
    """Empty a full half whose logs are all synced (H3, H4); 0, or an errno. One of the file before
    is only forgotten: that file is to be removed.

    EBUSY: a log is not synced yet, or its sync failed.
    """
    cdef JournalHalf* found = &journal.halves[half]
    cdef int32_t index
    cdef int error = 0
    pthread_mutex_lock(&journal.lock)
    if not found.full or found.kept:
        error = EBUSY
    for index in range(found.covered_count):
        if error == 0 and not is_synced(found.covered[index], half):
            error = EBUSY
    pthread_mutex_unlock(&journal.lock)
    # It is full: no other thread changes it.
    if error == 0 and half < HALVES:
        error = write_header(
            journal.fd, journal.synced, journal.journal_id, journal.half_bytes, half,
            found.epoch + 1)
    if error != 0:
        return error
    pthread_mutex_lock(&journal.lock)
    for index in range(found.covered_count):
        found.covered[index].journal_halves &= ~(1 << half)
    found.covered_count = 0
    found.epoch += 1
    found.used_bytes = JOURNAL_BLOCK_BYTES
    found.record_count = 0
    found.full = False
    pthread_mutex_unlock(&journal.lock)
    counter_add(journal.counts, COUNTER_JOURNAL_RETIREMENTS, 1)
    return 0


cdef void journal_leave(CommitJournal* journal, PartitionLog* log) noexcept nogil:
    """Let go of a log that is being closed. What its files do not hold of it the half keeps."""
    cdef JournalHalf* half
    cdef int32_t index, number
    pthread_mutex_lock(&journal.lock)
    log.journal_left = True
    for number in range(ALL_HALVES):
        half = &journal.halves[number]
        if not log.journal_halves & (1 << number):
            continue
        if not is_synced(log, number):
            half.kept = True
        for index in range(half.covered_count):
            if half.covered[index] == log:
                half.covered_count -= 1
                half.covered[index] = half.covered[half.covered_count]
                break
    log.journal_halves = 0
    pthread_mutex_unlock(&journal.lock)
