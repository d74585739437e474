# cython: language_level=3
"""The hot path of a transaction: begun, filled by send() and committed with few Python calls.

A subclass in Python has the table of the moves that its states allow, opens partitions, and does
all that is rare: errors, aborts, columns, offsets. Outside of a transaction the accumulator takes
no records.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from eoslog.bindings.accumulator cimport Accumulator, PartitionBuffer, TransactionReport
from eoslog.bindings.entry_lock cimport EntryLock
from eoslog.bindings.shared_page cimport SharedPage
from eoslog.native.mapped_io cimport eos_elapsed_ms
from eoslog.native.shared_page cimport shared_counter_load

from eoslog.bindings.shared_page import COUNTER_TOPICS, LOCK_TIMEOUT_S
from eoslog.errors import IllegalStateError

cdef enum:
    NEVER_MS = 0x7FFFFFFF                     # Kafka's sign of a transaction without a timeout.
cdef int _COUNTER_TOPICS = COUNTER_TOPICS
cdef double _LOCK_TIMEOUT_S = LOCK_TIMEOUT_S


@cython.final
cdef class OffsetsTarget:
    """Where offsets of some partitions go for a group without members, and their keys.

    `lock` is the group's lock in the page. It holds until a topic is created or deleted:
    `topics_count` is the page's counter of that, read before the partitions were looked for.
    """

    cdef object _partition
    cdef object _part
    cdef list _keys
    cdef SharedPage _page
    cdef int _lock
    cdef uint64_t _topics_count

    def __init__(self, partition not None, part not None, list keys not None,
                 SharedPage page not None, int lock, uint64_t topics_count):
        page._check_index(lock)
        self._partition = partition
        self._part = part
        self._keys = keys
        self._page = page
        self._lock = lock
        self._topics_count = topics_count


cdef class ClientTransaction:
    """The transactions of one producer: their numbers, their state, and the coordinator's entry.

    The caller holds the accumulator's lock.
    """

    def __cinit__(self, Accumulator accumulator not None, *arguments, **named):
        self.accumulator = accumulator
        self.producer_id = -1
        self.producer_epoch = -1
        self._state = 0
        self._idle = self._open = self._committing = -1
        for number in range(STATES_MAX):
            self._sources[number] = 0
        self._entry = None
        self._entry_lock = None
        self._plain_lock = None
        self._entry_owner = None
        self.state_partition = None
        self._others = {}
        self.timeout_ms = NEVER_MS
        self.end_refusal = None
        self.logs = False
        self._registered = False
        self._registered_count = 0
        self._report = None

    cpdef int check_end(self) except -1:
        """Raise IllegalStateError if its user may not end the open transaction now."""
        if self.end_refusal is not None:
            raise IllegalStateError(self.end_refusal)
        return 0

    cdef bint may_begin(self) noexcept:
        """True if a transaction can begin without a look at what others did."""
        return (self.accumulator.refusal is None and not self.accumulator._takes_records
                and not self._is_behind())

    def commit(self):
        """Commit the open transaction, or raise."""
        if self._state == self._open and self.accumulator._takes_records:
            self._commit()
        else:
            self.commit_otherwise()

    cdef int begin(self) except -1:
        self._step(self._open)
        self.accumulator._takes_records = self.accumulator.refusal is None
        self.accumulator._first_ms = -1
        if self.logs:
            self.log_begin()
        return 0

    cdef int _commit(self) except -1:
        cdef list pairs
        cdef tuple answer
        if not self._registered and not self.accumulator._listed and (
                self._is_behind() or self._entry_owner.fenced_because is not None):
            self.look_again()
        if self.accumulator._listed:
            self._wait_to_begin()
        if self._is_late():
            self.check_in_time()
        self._step(self._committing)
        self.accumulator._takes_records = False
        if not self._registered and not self.accumulator._listed:
            self._leave(self.producer_id, self.producer_epoch)
            return 0
        try:
            pairs = self.filled_pairs()
            answer = self._commit_entry(pairs)
        except Exception as error:
            answer = self.commit_failed(error)
        self.ended(answer)
        return 0

    cdef tuple _commit_entry(self, list pairs):
        cdef tuple answer
        self._take_entry()
        try:
            if self._entry_owner.fenced_because is not None:
                self._entry_owner.check()
            # It may fail with some of it in the log: then an abort has to end that there.
            self._registered = True
            answer = self._entry.commit(self.producer_id, self.producer_epoch, pairs)
            if self.logs:
                self._log_commit()
            if self._entry.completion_error is not None:
                self.complete_entry()
        finally:
            self._give_entry()
        return answer

    cdef int _log_commit(self) except -1:
        cdef list parts = []
        for one in self.accumulator._listed:
            parts.append(self._pair(<PartitionBuffer>one)[1])
        parts.extend(self._others)
        self.log_commit(parts)
        return 0

    cdef int _wait_to_begin(self) except -1:
        """Before the first record of a transaction, and before its id's lock: a snapshot may hold
        those that begin.
        """
        if not self._registered and self._entry_lock is not None and (
                self._entry_lock._page is not None):
            return self._entry_lock._page.wait_to_begin()
        return 0

    def wait_to_begin(self):
        """Wait, if the coordinator does not know the transaction yet, until it may begin."""
        self._wait_to_begin()

    cdef int _take_entry(self) except -1:
        if self._entry_lock is not None:
            return self._entry_lock.take()
        self._plain_lock.acquire()
        return 0

    cdef int _give_entry(self) except -1:
        if self._entry_lock is not None:
            return self._entry_lock.give()
        self._plain_lock.release()
        return 0

    cdef int64_t _age(self) noexcept:
        """Return for how long the open transaction has had a record, -1 if it has none."""
        return (-1 if self.accumulator._first_ms < 0
                else eos_elapsed_ms() - self.accumulator._first_ms)

    cdef bint _is_late(self) noexcept:
        return self.timeout_ms != NEVER_MS and self._age() > self.timeout_ms

    @property
    def age_ms(self):
        """For how long the open transaction has had a record; -1 without one."""
        return self._age()

    @property
    def late_age_ms(self):
        """The age of the open transaction if that is above its timeout, else -1."""
        return self._age() if self._is_late() else -1

    cdef bint _is_behind(self) noexcept:
        """True if another process may have taken the id."""
        return self._entry_lock is not None and self._entry_lock.is_behind()

    # Steps between the states.

    cdef int _step(self, int target) except -1:
        if not 0 <= target < STATES_MAX:
            raise ValueError(f"state {target}")
        if not (self._sources[target] >> self._state) & 1:
            self.no_move(target)
        self._state = target
        return 0

    cdef TransactionReport report(self):
        """Return what says how the open transaction ends."""
        if self._report is None:
            self._report = TransactionReport.__new__(TransactionReport)
        return self._report

    cdef int _leave(self, int64_t producer_id, int producer_epoch) except -1:
        """The transaction is over; what comes next has these numbers, and sequences from 0 on."""
        cdef PartitionBuffer buffer
        cdef bint committed = self._state == self._committing
        self._step(self._idle)
        if self._report is not None:
            self._report.is_committed = committed
            self._report.is_open = False
            self._report = None
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.accumulator._first_ms = -1
        self.accumulator._takes_records = False
        self._registered = False
        self._registered_count = 0
        self._others = {}
        for one in self.accumulator._listed:
            buffer = <PartitionBuffer>one
            buffer.listed = False
            buffer.accumulator.reset()
        self.accumulator._listed = []
        return 0

    def ended(self, answer):
        """The coordinator ended the transaction; `answer` is what it gave for the next one."""
        cdef list written = self.accumulator._listed
        cdef dict others = self._others
        cdef tuple numbers = answer
        self._leave(numbers[0], numbers[1])
        for buffer in written:
            if (<PartitionBuffer>buffer).owner is not None:
                (<PartitionBuffer>buffer).owner.note_append()
        for partition in others:
            partition.note_append()
        self.state_partition.note_append()

    def ended_without(self):
        """The transaction ended, and the coordinator never heard of it."""
        self._leave(self.producer_id, self.producer_epoch)

    # For the subclass.

    def set_moves(self, sources, int first, int idle, int open, int committing):
        """The states' numbers: `sources[target]` has a bit set for each state it may follow on."""
        if len(sources) > STATES_MAX:
            raise ValueError(f"{len(sources)} states; at most {STATES_MAX}")
        for number in (first, idle, open, committing):
            if not 0 <= number < len(sources):
                raise ValueError(f"state {number} of {len(sources)}")
        for number, mask in enumerate(sources):
            self._sources[number] = mask
        self._state = first
        self._idle = idle
        self._open = open
        self._committing = committing
        self.accumulator._takes_records = False

    def set_entry(self, entry, owner, state_partition, int64_t producer_id, int producer_epoch):
        """The coordinator's entry, who has it, and the numbers of the first transaction."""
        self._entry = entry
        self._plain_lock = entry.lock
        self._entry_lock = self._plain_lock if isinstance(self._plain_lock, EntryLock) else None
        self._entry_owner = owner
        self.state_partition = state_partition
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch

    def move(self, int target):
        """Go to another state, if the table has it so; records are taken in one state only."""
        self._step(target)
        self.accumulator._takes_records = (
            target == self._open and self.accumulator.refusal is None)

    @property
    def state_number(self):
        return self._state

    @property
    def is_registered(self):
        """True if the coordinator may know of the open transaction."""
        return bool(self._registered)

    def register(self, partition=None):
        """The coordinator is about to hear of the transaction, and the partition to change."""
        if self.accumulator._first_ms < 0:
            self.accumulator._first_ms = eos_elapsed_ms()
        self._registered = True
        if partition is not None:
            self._others[partition] = None

    def append_offsets(self, OffsetsTarget target not None, list values not None,
                       Py_ssize_t timestamp_ms):
        """Append offsets in the open transaction; False, and none is appended, where more is to be
        looked at first. A call that raised an error of the entry may be made in another way.
        """
        cdef list parts
        if self._state != self._open or not self.accumulator._takes_records or self._is_late():
            return False
        self._wait_to_begin()
        self._take_entry()
        try:
            if self._entry_owner.fenced_because is not None:
                self._entry_owner.check()
            self.register(target._partition)
            parts = self.unregistered_parts()
            if parts:
                # One record of the coordinator for all partitions.
                parts.append(target._part)
                self._entry.add_partitions(self.producer_id, self.producer_epoch, parts)
            target._page.take(target._lock, _LOCK_TIMEOUT_S)
            try:
                # Under the lock: a deletion that is not seen here buries what is written.
                if shared_counter_load(
                        target._page._page, _COUNTER_TOPICS) != target._topics_count:
                    return False
                self._entry.append_offsets(
                    self.producer_id, self.producer_epoch, target._part, values, target._keys,
                    timestamp_ms=timestamp_ms)
            finally:
                target._page.give(target._lock)
        finally:
            self._give_entry()
        return True

    def filled_pairs(self):
        """(accumulator, part) of each buffer that holds records, in the order they were begun."""
        cdef PartitionBuffer buffer
        cdef list pairs = []
        for one in self.accumulator._listed:
            buffer = <PartitionBuffer>one
            if buffer.accumulator._record_count:
                pairs.append(self._pair(buffer))
        return pairs

    def drop_others(self, str topic not None):
        """Leave partitions of a deleted topic out of the transaction's end."""
        self._others = {one: None for one in self._others if one.topic != topic}
        self._registered_count = 0

    def unregistered_parts(self):
        """Return the partitions that the coordinator must learn of before an append."""
        cdef list found = self.accumulator._listed[self._registered_count:]
        self._registered_count = len(self.accumulator._listed)
        return [self._pair(<PartitionBuffer>one)[1] for one in found]

    def pair_of(self, PartitionBuffer buffer not None):
        """(accumulator, part) of a buffer."""
        return self._pair(buffer)

    cdef tuple _pair(self, PartitionBuffer buffer):
        if buffer.pair is None:
            self.open_buffer(buffer)
            buffer.pair = (buffer.accumulator, buffer.part)
        return buffer.pair

    def open_buffer(self, buffer):
        """Set the buffer's `part` and `owner`: what an entry writes to, and the partition."""
        raise NotImplementedError

    def check_begin(self):
        """Raise the error of a transaction that may not begin."""
        raise NotImplementedError

    def look_again(self):
        """Raise what a call comes to if another process has the id by now."""
        raise NotImplementedError

    def check_in_time(self):
        """Abort the open transaction, and raise, if it is older than its timeout."""
        raise NotImplementedError

    def no_move(self, target):
        """Raise the error for a call that does not fit the state."""
        raise NotImplementedError

    def commit_otherwise(self):
        """Commit, or raise, in a state that is not an open transaction that takes records."""
        raise NotImplementedError

    def commit_failed(self, error):
        """Go on with a commit that raised, and answer what the coordinator does; or raise."""
        raise NotImplementedError

    def complete_entry(self):
        """The transaction is decided, but a partition refused its marker."""
        raise NotImplementedError

    def abort_after(self, error):
        """Abort what is open, if anything is, because of an error that is raised on."""
        raise NotImplementedError

    def log_begin(self):
        """Log that a transaction begins."""
        raise NotImplementedError

    def log_commit(self, parts):
        """Log that the transaction is committed, over these partitions."""
        raise NotImplementedError

    def leave_block(self):
        """A block ended without an error, and without an open transaction that takes records."""
        raise NotImplementedError
