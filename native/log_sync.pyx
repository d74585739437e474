# cython: language_level=3, wraparound=False, boundscheck=False
# cython: initializedcheck=False, cdivision=True
"""Syncs of a log: whose turn it is to make one, for all who wait, and what it covers.

Invariants: the recovery point is raised after the sync that covers it, and by log_synced alone,
unless another sync of the log failed by then; a sync that failed is not made again, the log has
failed. Appends go on during a sync.
"""
from libc.stdint cimport int32_t, uint32_t

from eoslog.native.atomics cimport (
    after_files, load_acquire_64, set_mark, store_release_64, take_mark,
)
from eoslog.native.control_page cimport (
    control_durable, control_flag, control_load, control_now_ns, control_raise, control_sync_end,
    control_sync_holder, control_sync_round, control_sync_take, control_sync_wait,
)
from eoslog.native.counters cimport COUNTER_LOG_SYNCS, counter_add_duration
from eoslog.native.file_space cimport eos_begin_writeback
from eoslog.native.log_lock cimport log_lock, log_unlock
from eoslog.native.log_roll cimport is_for_want
from eoslog.native.mapped_io cimport (
    EMFILE, ENFILE, ENODATA, ENOENT, ENOMEM, EOS_FILE_LOST, eos_still_holds, eos_still_named,
    eos_sync_data,
)
from eoslog.native.named_sync cimport eos_sync_named
from eoslog.native.partition_log cimport (
    log_active, log_end, log_fail, log_failure, log_release, log_use_file, pthread_mutex_lock,
    pthread_mutex_unlock,
)
from eoslog.native.segment cimport Segment, segment_path, segment_store_indexes
from eoslog.native.spare_file cimport SEGMENT_PATH_BYTES_MAX
from eoslog.native.status cimport STATUS_FAILED, STATUS_OK, fault
from eoslog.native.sync_queue cimport (
    eos_sync_queue_begin, eos_sync_queue_end, eos_sync_queue_is_free,
)

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds) noexcept

cdef enum:
    TURN_LOOKS_MAX = 20              # Of 50 ms each: a process with a longer turn to sync hangs.
    PIECE_BYTES = 128 << 10
    PIECE_US = 150                   # Between two of these: other writes to the disk have a turn.
    IN_PIECES_BYTES_MAX = 64 << 20   # As much as a half of a journal; what is older comes at once.

cdef enum Turn:
    TURN_AWAITED
    TURN_HELD
    TURN_PASSED                      # Another process has it and hangs.


cdef Status log_flush(PartitionLog* log, bint with_indexes, Fault* out) noexcept nogil:
    """Sync all that was appended; then recovery_point is the log end as it was on the call.

    Appends go on. A sync that fails is never repeated: the log refuses appends from then
    on. `with_indexes` also writes the active segment's index entries, so that a recovery starts at
    the last of them; without them it begins with the segment.
    """
    cdef Status status
    cdef int looks = 0
    cdef Turn turn = TURN_AWAITED
    # One at a time: a thread that waits here would otherwise return before the sync it relies on.
    while turn == TURN_AWAITED:
        turn = look_for_turn(log, &looks)
    status = flush_in_turn(log, with_indexes, out)
    if turn == TURN_HELD:
        control_sync_end(log.page)
    return status


cdef Status log_sync_up_to(
    PartitionLog* log, int64_t offset, bint in_pieces, Fault* out
) noexcept nogil:
    """Sync everything below `offset`; those who call it together, in whatever process, share a
    sync or two. `in_pieces`: other writes to the disk then wait for one piece, not for all.
    """
    if in_pieces and is_wanted(log, offset, False):
        begin_in_pieces(log)
    return sync_until(log, offset, False, out)


cdef Status log_sync_durable(PartitionLog* log, int64_t offset, Fault* out) noexcept nogil:
    """Sync everything below `offset` that journals do not hold either."""
    return sync_until(log, offset, True, out)


cdef void begin_in_pieces(PartitionLog* log) noexcept nogil:
    """Have the disk begin with the segment that was appended to, a piece at a time.

    Its calls do not wait for the disk: a call that waits would get the error of a failed write, and
    the sync that follows, or one by another opened file, would not.
    """
    cdef Segment* opened = hold_opened(log)
    cdef int64_t position, used_bytes
    if opened == NULL:
        return
    used_bytes = load_acquire_64(&opened.used_bytes)
    position = max(load_acquire_64(&opened.given_bytes), used_bytes - IN_PIECES_BYTES_MAX)
    while position < used_bytes:
        eos_begin_writeback(opened.fd, position, PIECE_BYTES)
        position += PIECE_BYTES
        usleep(PIECE_US)
    # The last piece was not whole.
    store_release_64(&opened.given_bytes, used_bytes // PIECE_BYTES * PIECE_BYTES)
    log_release(log, opened)


cdef bint log_begin_sync(
    PartitionLog* log, int64_t bytes_min, SyncQueue* queue, BegunSync* begun
) noexcept nogil:
    """Have the disk begin with batches of more bytes than a journal takes, before the caller waits
    for one. Only the sync that follows makes them durable.

    `queue`, if it is not NULL: let the kernel make that sync, beside this thread. True: it does;
    log_end_sync must follow, in this thread.
    """
    cdef Segment* opened
    if load_acquire_64(&log.written_end) <= control_durable(log.page):
        return False
    if queue != NULL and begin_in_kernel(log, bytes_min, queue, begun):
        return True
    opened = hold_opened(log)
    if opened != NULL:
        if new_bytes(opened) > bytes_min:
            eos_begin_writeback(opened.fd, 0, 0)
        log_release(log, opened)
    return False


cdef inline int64_t new_bytes(const Segment* segment) noexcept nogil:
    return load_acquire_64(&segment.used_bytes) - load_acquire_64(&segment.journaled_bytes)


cdef bint begin_in_kernel(
    PartitionLog* log, int64_t bytes_min, SyncQueue* queue, BegunSync* begun
) noexcept nogil:
    """Have the kernel sync all that is not synced of the log. It needs one unsynced file and a
    place in the queue, and does not wait for the turn. False: it was not begun.
    """
    cdef Fault ignored
    if not eos_sync_queue_is_free(queue) or (
            control_sync_take(log.page, 0, log.process_id) != 0):
        return False
    pthread_mutex_lock(&log.flush_lock)
    if log_lock(log, &ignored) == STATUS_OK:
        begun.end_offset = log_end(log)
        log_unlock(log)
        begun.segment = only_unsynced(log, begun.end_offset, bytes_min)
        if begun.segment != NULL:
            begun.used_bytes = load_acquire_64(&begun.segment.used_bytes)
            begun.begun_ns = control_now_ns()
            if eos_sync_queue_begin(queue, begun.segment.fd) == 0:
                log.sync_count += 1
                begun.queue = queue
                begun.log = log
                return True
            set_mark(&begun.segment.unsynced)
            log_release(log, begun.segment)
    pthread_mutex_unlock(&log.flush_lock)
    control_sync_end(log.page)
    return False


cdef Status log_end_sync(const BegunSync* begun, Fault* out) noexcept nogil:
    """Wait for a sync that was begun; its result, as of log_sync_durable."""
    cdef PartitionLog* log = begun.log
    cdef Status status
    cdef int error = result_of_sync(
        log, begun.segment, begun.used_bytes, eos_sync_queue_end(begun.queue))
    count_sync(log, begun.begun_ns)
    log_release(log, begun.segment)
    status = log_synced(log, begun.end_offset, error, out)
    pthread_mutex_unlock(&log.flush_lock)
    control_sync_end(log.page)
    return status


cdef inline bint is_wanted(PartitionLog* log, int64_t offset, bint journals) noexcept nogil:
    cdef int64_t reached = (
        control_durable(log.page) if journals else control_load(&log.page.recovery_point))
    return reached < offset or log_failure(log) != 0


cdef Status sync_until(
    PartitionLog* log, int64_t offset, bint journals, Fault* out
) noexcept nogil:
    cdef Status status
    cdef int looks = 0
    cdef Turn turn
    while is_wanted(log, offset, journals):
        # The thread that syncs now may have begun before this offset was written, or not.
        turn = look_for_turn(log, &looks)
        if turn == TURN_AWAITED:
            continue
        status = STATUS_OK
        if is_wanted(log, offset, journals):
            status = flush_in_turn(log, False, out)
        if turn == TURN_HELD:
            control_sync_end(log.page)
        return status
    return STATUS_OK


cdef Turn look_for_turn(PartitionLog* log, int* looks) noexcept nogil:
    """Take the turn to sync if it is free, else wait for a little; `looks` counts that.

    The turn is there only to share syncs: where another process has it for too long (it was
    stopped, or its disk hangs) this one syncs beside it, from then on at once.
    """
    cdef uint32_t round = control_sync_round(log.page)
    if control_sync_take(log.page, 0, log.process_id) == 0:
        return TURN_HELD
    if control_sync_holder(log.page) != log.process_id and (
            looks[0] >= TURN_LOOKS_MAX or log.passed_round == round):
        log.passed_round = round
        return TURN_PASSED
    control_sync_wait(log.page, round)
    looks[0] = looks[0] + 1 if control_sync_round(log.page) == round else 0
    return TURN_AWAITED


cdef Status flush_in_turn(PartitionLog* log, bint with_indexes, Fault* out) noexcept nogil:
    cdef Status status
    pthread_mutex_lock(&log.flush_lock)
    status = flush_alone(log, with_indexes, out)
    pthread_mutex_unlock(&log.flush_lock)
    return status


cdef Status flush_alone(PartitionLog* log, bint with_indexes, Fault* out) noexcept nogil:
    cdef int64_t end
    cdef Status status = log_lock(log, out)
    if status != STATUS_OK:
        return status
    end = log_end(log)
    # Before anything is taken for synced: a process that may open nothing more fails no log by it.
    status = log_use_file(log, log_active(log), out)
    if not is_for_want(status, out):
        status = STATUS_OK               # A file that was lost is named by its sync.
    if status == STATUS_OK and with_indexes:
        status = store_active_indexes(log, out)
    log_unlock(log)
    if status != STATUS_OK:
        return status
    log.sync_count += 1
    return log_synced(log, end, log_sync_segments(log, end, with_indexes), out)


cdef Status log_store_indexes(PartitionLog* log, Fault* out) noexcept nogil:
    """Write the active segment's index entries, so that the recovery after a process was killed
    starts at the last of them. A flush with them syncs them.
    """
    cdef Status status = log_lock(log, out)
    if status == STATUS_OK:
        status = store_active_indexes(log, out)
        log_unlock(log)
    return status


cdef Status store_active_indexes(PartitionLog* log, Fault* out) noexcept nogil:
    cdef Segment* active = log_active(log)
    cdef Status status
    if active.offset_index.count <= active.offset_index.stored_count and (
            active.time_index.count <= active.time_index.stored_count):
        return STATUS_OK
    status = segment_store_indexes(active, log.directory, False, out)
    set_mark(&active.indexes_unsynced)
    if status != STATUS_OK and not is_for_want(status, out):
        log_fail(log, out.os_errno)
    return status


cdef int log_sync_segments(
    PartitionLog* log, int64_t below_offset, bint with_indexes
) noexcept nogil:
    """Sync every segment that begins below an offset and has unsynced bytes; 0 or an errno, for
    log_synced.

    Also the directory if it changed, and `with_indexes` the index files of segments that were
    ended: what a power cut leaves of them is looked at before it is believed, so a commit need not
    wait for these. The bound keeps a sync from chasing the appends that go on. The caller has
    flush_lock.
    """
    cdef int64_t after_offset = -1
    cdef Segment* segment
    cdef bint log_unsynced = False
    cdef int error = 0
    if log.options.segment.overlay:
        return 0
    while error == 0:
        segment = next_unsynced(log, after_offset, below_offset, with_indexes, &log_unsynced)
        if segment == NULL:
            break
        after_offset = segment.base_offset
        if log_unsynced:
            error = sync_log_file(log, segment)
        if error == 0 and with_indexes and take_mark(&segment.indexes_unsynced):
            error = sync_indexes(log, segment.base_offset)
        log_release(log, segment)
    if error == 0 and take_mark(&log.directory_unsynced):
        error = log_sync_directory(log)
    return error


cdef Status log_synced(
    PartitionLog* log, int64_t end_offset, int error, Fault* out
) noexcept nogil:
    """End a sync of the log up to an offset, with its result: 0 or an errno.

    A sync that succeeded proves nothing if another one of the log failed by then, in any process:
    that one may have got the error of bytes which both were to sync.
    """
    if error != 0:
        log_fail(log, error)
    else:
        error = log_failure(log)
    if error == 0:
        control_raise(&log.page.recovery_point, end_offset)
        return STATUS_OK
    # Whatever the errno: what was appended may be on the disk or not.
    out.os_errno = error
    if error == ENOENT or error == ENODATA:
        return fault(out, STATUS_FAILED, EOS_FILE_LOST, 0, error)
    return fault(out, STATUS_FAILED, "a sync failed", 0, error)


cdef Segment* only_unsynced(
    PartitionLog* log, int64_t below_offset, int64_t bytes_min
) noexcept nogil:
    """The one segment with unsynced bytes, held and marked as synced from here on. NULL: there are
    others, its bytes are few, its file is not open, or the directory has to be synced too.
    """
    cdef Segment* segment
    cdef Segment* found = NULL
    cdef int32_t index
    cdef bint is_alone = not log.directory_unsynced
    pthread_mutex_lock(&log.segments_lock)
    for index in range(log.segment_count):
        segment = log.segments[index]
        if segment.base_offset >= below_offset:
            break
        if segment.unsynced:
            is_alone = is_alone and found == NULL
            found = segment
    if found != NULL and (not is_alone or found.fd < 0 or new_bytes(found) <= bytes_min):
        found = NULL
    if found != NULL:
        take_mark(&found.unsynced)
        found.references += 1
    pthread_mutex_unlock(&log.segments_lock)
    return found


cdef Segment* next_unsynced(
    PartitionLog* log, int64_t after_offset, int64_t below_offset, bint with_indexes,
    bint* log_unsynced,
) noexcept nogil:
    """The next segment past after_offset with unsynced bytes, held; its log is marked as synced
    from here on. `log_unsynced`: it was not.
    """
    cdef Segment* segment
    cdef int32_t index
    pthread_mutex_lock(&log.segments_lock)
    for index in range(log.segment_count):
        segment = log.segments[index]
        if segment.base_offset >= below_offset:
            break
        if segment.base_offset > after_offset and (
                segment.unsynced or (with_indexes and segment.indexes_unsynced)):
            log_unsynced[0] = take_mark(&segment.unsynced)
            segment.references += 1
            pthread_mutex_unlock(&log.segments_lock)
            return segment
    pthread_mutex_unlock(&log.segments_lock)
    return NULL


cdef int sync_log_file(PartitionLog* log, Segment* segment) noexcept nogil:
    """Sync a segment's content; result_of_sync has the errors."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int64_t used_bytes = load_acquire_64(&segment.used_bytes)
    cdef int64_t begun_ns = control_now_ns()
    cdef int error
    if segment.fd >= 0:
        error = eos_sync_data(segment.fd)
    else:
        # Its map alone is there, or another process wrote and ended it, and it was not read here.
        segment_path(log.directory, segment.base_offset, b".log", path)
        error = sync_named(log, path, False)
    count_sync(log, begun_ns)
    return result_of_sync(log, segment, used_bytes, error)


cdef inline void count_sync(PartitionLog* log, int64_t begun_ns) noexcept nogil:
    counter_add_duration(log.counts, COUNTER_LOG_SYNCS, control_now_ns() - begun_ns)


cdef int result_of_sync(
    PartitionLog* log, const Segment* segment, int64_t used_bytes, int error
) noexcept nogil:
    """Result of a segment's sync: 0 or an errno. ENOENT, ENODATA: the sync did its work, for a file
    that has no name any more, or does not hold what was appended.
    """
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    if error == 0 and segment.fd >= 0:
        error = eos_still_holds(segment.fd, used_bytes)
    elif error == 0 and segment.map != NULL and used_bytes > 0:
        segment_path(log.directory, segment.base_offset, b".log", path)
        error = eos_still_named(path, segment.device, segment.inode, used_bytes)
    if error == ENOENT or error == ENODATA:
        # Asked last: what is deleted on purpose is on the page before files go.
        after_files()
        if segment.base_offset < control_load(&log.page.first_base_offset) or (
                control_flag(&log.page.deleted)):
            error = 0
    return error


cdef int sync_indexes(PartitionLog* log, int64_t base_offset) noexcept nogil:
    """Sync a segment's index files; one that is not there is rebuilt when it is wanted."""
    cdef char path[SEGMENT_PATH_BYTES_MAX]
    cdef int error
    segment_path(log.directory, base_offset, b".index", path)
    error = sync_named(log, path, False)
    if error == 0 or error == ENOENT:
        segment_path(log.directory, base_offset, b".timeindex", path)
        error = sync_named(log, path, False)
    return 0 if error == ENOENT else error


cdef int log_sync_directory(PartitionLog* log) noexcept nogil:
    """Sync the names in the log's directory; 0, or an errno after which the log is to fail."""
    cdef int error = 0 if log.options.segment.overlay else sync_named(log, log.directory, True)
    # Asked last, as of a file.
    after_files()
    if error == ENOENT and control_flag(&log.page.deleted):
        error = 0
    return error


cdef int sync_named(PartitionLog* log, const char* path, bint directory) noexcept nogil:
    """Sync what is not open here. A process that may open nothing more fails no log by it, which
    would fail it for all others too.
    """
    cdef Segment* opened
    cdef int error = eos_sync_named(path, directory, -1)
    if error != EMFILE and error != ENFILE and error != ENOMEM:
        return error
    opened = hold_opened(log)
    if opened != NULL:
        error = eos_sync_named(path, directory, opened.fd)
        log_release(log, opened)
    return error


cdef Segment* hold_opened(PartitionLog* log) noexcept nogil:
    """The last segment whose file is open, held; NULL: there is none."""
    cdef int32_t index
    cdef Segment* found = NULL
    pthread_mutex_lock(&log.segments_lock)
    for index in range(log.segment_count - 1, -1, -1):
        if log.segments[index].fd >= 0:
            found = log.segments[index]
            found.references += 1
            break
    pthread_mutex_unlock(&log.segments_lock)
    return found
