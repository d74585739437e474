# cython: language_level=3
"""The hot path of a transaction: begun, filled by send() and committed with few Python calls.

A subclass in Python says which moves its states allow (its one table), opens partitions, and does
all that is rare: errors, aborts, columns, offsets. Outside of a transaction `_refused` is set, so
that send() pays for the check no more than it did anyway.
"""

cimport cython
from libc.stdint cimport int64_t

from eoslog.bindings.entry_lock cimport EntryLock
from eoslog.bindings.sender cimport PartitionBuffer, Sender
from eoslog.native.mapped_io cimport eos_elapsed_ms

# What `_refused` is while records are refused only because no transaction takes them.
cdef object OUTSIDE = "no transaction takes records"

cdef enum:
    STATES_MAX = 32
    NEVER_MS = 0x7FFFFFFF                     # Kafka's sign of a transaction without a timeout.


@cython.final
@cython.freelist(8)
cdef class Transaction:
    """The block of one transaction: begun where it starts, committed at its end.

    An exception in the block aborts the transaction; so does a commit that failed and left it to be
    aborted. A transaction that the block itself ended or prepared is left as it is.
    """

    cdef TransactionalSender _sender

    def __enter__(self):
        self._made().begin_transaction()
        return self._sender

    cdef TransactionalSender _made(self):
        if self._sender is None:
            raise TypeError("a producer makes its transactions: call transaction()")
        return self._sender

    def __exit__(self, error_type, error, traceback):
        cdef TransactionalSender sender = self._made()
        if error_type is None and sender._state == sender._open:
            try:
                sender.commit_transaction()
            except BaseException as failure:
                sender._abort_after(failure)
                raise
        elif error_type is not None:
            sender._abort_after(error)
        else:
            sender._leave_block()


cdef class TransactionalSender(Sender):
    """Gathers a transaction's records, and hands them to its coordinator's entry at the commit."""

    cdef readonly int64_t producer_id        # -1 before the first initialization.
    cdef readonly int producer_epoch         # Of the next, or the open, transaction.
    cdef int _state
    cdef int _idle, _open, _committing       # The numbers of three of the states.
    cdef unsigned int[STATES_MAX] _sources   # By target: a bit for each state it follows on.
    cdef object _entry
    cdef EntryLock _entry_lock               # None: its lock is another one.
    cdef object _plain_lock
    cdef object _entry_owner                 # Its `fenced_because` says who took the entry over.
    cdef object _signal                      # Wakes readers.
    cdef object _state_partition             # The coordinator's own; changes with each transaction.
    cdef list _others                        # Partitions written to other than by send().
    cdef public int64_t _timeout_ms          # How old the open transaction may become.
    cdef bint _registered                    # The coordinator may know of this transaction.
    cdef Py_ssize_t _registered_count        # Of `_listed`, whose partitions it knows.

    def __cinit__(self, *arguments, **named):
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
        self._signal = None
        self._state_partition = None
        self._others = []
        self._timeout_ms = NEVER_MS
        self._registered = False
        self._registered_count = 0

    def transaction(self):
        """A block that is one transaction: begun here, committed at its end.

        An exception in the block aborts the transaction and is raised on. If the commit itself
        fails, the transaction is aborted where that can be, and the commit's error is raised. A
        transaction that the block itself ended or prepared is left as it is.
        """
        cdef Transaction made = Transaction.__new__(Transaction)
        made._sender = self
        return made

    def begin_transaction(self):
        """Begin a transaction; nothing is written, and its timeout starts with its first record.

        Raises IllegalStateError before init_transactions(), and in a transaction, which is
        unharmed; TransactionAbortableError if one has to be aborted first; ProducerFencedError,
        LogClosedError.
        """
        # Runs no Python code where all is well, and so no other thread.
        if self.lock._owner != 0 or self._refused is not OUTSIDE or self._is_behind():
            with self.lock:
                self._check_usable()
                self._look_again()
                self._begin()
        else:
            self._begin()

    def commit_transaction(self):
        """Append what was gathered and commit: all of the transaction becomes visible, or nothing.

        On return the decision is as durable as the store's durability says. A transaction without
        records and offsets writes nothing. One that is older than its timeout is aborted, and the
        call is a ProducerFencedError. After an error that leaves the transaction to be
        aborted (`abortable`, and any error of a record or of the disk before the decision) only
        abort_transaction() goes on; a part is never committed.

        Raises IllegalStateError outside of a transaction; TransactionAbortableError if something in
        the transaction failed; ProducerFencedError, StoreFailedError, LogClosedError; the error of
        a batch that was refused.
        """
        self.lock.take(True)
        try:
            self._commit_held()
        finally:
            self.lock.give()

    def _commit_held(self):
        """Commit like `commit_transaction`; the caller holds the lock."""
        if self._state == self._open and self._refused is None:
            self._commit()
        else:
            self._commit_otherwise()

    cdef int _begin(self) except -1:
        self._step(self._open)
        self._refused = None
        self._first_ms = -1
        return 0

    cdef int _commit(self) except -1:
        cdef list pairs
        cdef tuple answer
        if not self._registered and not self._listed and (
                self._is_behind() or self._entry_owner.fenced_because is not None):
            self._look_again()
        if self._is_late():
            self._check_in_time()
        self._step(self._committing)
        self._refused = OUTSIDE
        if not self._registered and not self._listed:
            self._leave(self.producer_id, self.producer_epoch)
            return 0
        try:
            pairs = self._filled_pairs()
            answer = self._commit_entry(pairs)
        except Exception as error:
            answer = self._commit_failed(error)
        self._ended(answer)
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
            if self._entry.completion_error is not None:
                self._complete_entry()
        finally:
            self._give_entry()
        return answer

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
        return -1 if self._first_ms < 0 else eos_elapsed_ms() - self._first_ms

    cdef bint _is_late(self) noexcept:
        return self._timeout_ms != NEVER_MS and self._age() > self._timeout_ms

    @property
    def _late_age_ms(self):
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
            self._no_move(target)
        self._state = target
        return 0

    cdef int _leave(self, int64_t producer_id, int producer_epoch) except -1:
        """The transaction is over; what comes next has these numbers, and sequences from 0 on."""
        cdef PartitionBuffer buffer
        self._step(self._idle)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._first_ms = -1
        self._registered = False
        self._registered_count = 0
        self._others = []
        for one in self._listed:
            buffer = <PartitionBuffer>one
            buffer.listed = False
            buffer.accumulator.reset()
        self._listed = []
        if self._refused is None:
            self._refused = OUTSIDE
        return 0

    def _ended(self, answer):
        """The coordinator ended the transaction; `answer` is what it gave for the next one."""
        cdef list written = self._listed
        cdef list others = self._others
        cdef tuple numbers = answer
        self._leave(numbers[0], numbers[1])
        for buffer in written:
            if (<PartitionBuffer>buffer).owner is not None:
                (<PartitionBuffer>buffer).owner.note_append()
        for partition in others:
            partition.note_append()
        self._state_partition.note_append()
        self._signal.appended()

    def _ended_without(self):
        """The transaction ended, and the coordinator never heard of it."""
        self._leave(self.producer_id, self.producer_epoch)

    # For the subclass.

    def _set_moves(self, sources, int first, int idle, int open, int committing):
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
        self._refused = OUTSIDE

    def _set_entry(self, entry, owner, state_partition, signal, int64_t producer_id,
                   int producer_epoch):
        """The coordinator's entry, who has it, and the numbers of the first transaction."""
        self._entry = entry
        self._plain_lock = entry.lock
        self._entry_lock = self._plain_lock if isinstance(self._plain_lock, EntryLock) else None
        self._entry_owner = owner
        self._state_partition = state_partition
        self._signal = signal
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch

    def _move(self, int target):
        """Go to another state, if the table has it so; records are taken in one state only."""
        self._step(target)
        if self._refused is None or self._refused is OUTSIDE:
            self._refused = None if target == self._open else OUTSIDE

    @property
    def _state_number(self):
        return self._state

    @property
    def _is_registered(self):
        """True if the coordinator may know of the open transaction."""
        return bool(self._registered)

    def _register(self, partition=None):
        """The coordinator is about to hear of the transaction, and the partition to change."""
        if self._first_ms < 0:
            self._first_ms = eos_elapsed_ms()
        self._registered = True
        if partition is not None and partition not in self._others:
            self._others.append(partition)

    def _filled_pairs(self):
        """(accumulator, part) of each buffer that holds records, in the order they were begun."""
        cdef PartitionBuffer buffer
        cdef list pairs = []
        for one in self._listed:
            buffer = <PartitionBuffer>one
            if buffer.accumulator._record_count:
                pairs.append(self._pair(buffer))
        return pairs

    def _drop_others(self, str topic not None):
        """Partitions of a topic that is gone are not told of the transaction's end."""
        self._others = [one for one in self._others if one.topic != topic]
        self._registered_count = 0

    def _unregistered_parts(self):
        """Return the partitions that the coordinator must learn of before an append."""
        cdef list found = self._listed[self._registered_count:]
        self._registered_count = len(self._listed)
        return [self._pair(<PartitionBuffer>one)[1] for one in found]

    def _touched_buffers(self):
        """The buffers that held records of this transaction."""
        return list(self._listed)

    def _pair_of(self, PartitionBuffer buffer not None):
        """(accumulator, part) of a buffer."""
        return self._pair(buffer)

    cdef tuple _pair(self, PartitionBuffer buffer):
        if buffer.pair is None:
            self._open_buffer(buffer)
            buffer.pair = (buffer.accumulator, buffer.part)
        return buffer.pair

    def _open_buffer(self, buffer):
        """Set the buffer's `part` and `owner`: what an entry writes to, and the partition."""
        raise NotImplementedError

    def _look_again(self):
        """Raise what a call comes to if another process has the id by now."""
        raise NotImplementedError

    def _check_in_time(self):
        """Abort the open transaction, and raise, if it is older than its timeout."""
        raise NotImplementedError

    def _no_move(self, target):
        """Raise the error for a call that does not fit the state."""
        raise NotImplementedError

    def _commit_otherwise(self):
        """Commit, or raise, in a state that is not an open transaction that takes records."""
        raise NotImplementedError

    def _commit_failed(self, error):
        """Go on with a commit that raised, and answer what the coordinator does; or raise."""
        raise NotImplementedError

    def _complete_entry(self):
        """The transaction is decided, but a partition refused its marker."""
        raise NotImplementedError

    def _abort_after(self, error):
        """Abort what is open, if anything is, because of an error that is raised on."""
        raise NotImplementedError

    def _leave_block(self):
        """A block ended without an error, and without an open transaction that takes records."""
        raise NotImplementedError
