# cython: language_level=3
"""The coordinator's entry of one transactional id: its state, and the one way to change it.

All methods but the properties need `lock` to be held by the caller. In memory the state is that of
the newest record in the state log. A call that raised may be made again; but batches are never
appended twice with the same numbers, so after an error of an append the transaction is aborted,
unless a disk was full. Where a log asks for the row of a producer, or to be reattached, its
callbacks do that, with `lock` held, and the call goes on from where it stopped.
"""

import logging

from eoslog import errors

# Parts of this module's interface.
from eoslog.bindings.known_transaction import PartitionLost, TransactionPart  # no-cython-lint
from eoslog.bindings.transaction_record import (
    STATE_NAMES,  # no-cython-lint
    decode_transaction_value,  # no-cython-lint
    encode_transaction_value,  # no-cython-lint
    state_name,  # no-cython-lint
    state_number,  # no-cython-lint
    transaction_key,  # no-cython-lint
    transactional_id_of,  # no-cython-lint
    transition_allowed,  # no-cython-lint
)

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport free, malloc

from eoslog.bindings.accumulator cimport RecordAccumulator
from eoslog.bindings.column_set cimport ColumnSet
from eoslog.bindings.known_transaction cimport TransactionPart as Part
from eoslog.bindings.known_transaction cimport fault_init, find_part
from eoslog.bindings.partition_log cimport AppendResult
from eoslog.bindings.transaction_record cimport set_owner
from eoslog.native.counters cimport COUNTER_REFUSED_EPOCHS, counter_add
from eoslog.native.record_batch cimport sequence_add
from eoslog.native.sequence_window cimport OFFSETS_SEQUENCE
from eoslog.native.status cimport STATUS_OK
from eoslog.native.transaction_log cimport (
    transaction_append, transaction_complete, transaction_decide, transaction_register,
    transaction_revoke, transaction_sync_parts, transaction_sync_state, transaction_withdraw,
    transaction_write, transaction_write_tombstone,
)
from eoslog.native.transaction_state cimport (
    END_CONCURRENT, END_DECIDE, END_EMPTY_ABORT, END_FENCED, END_OTHER_PRODUCER, END_REPEATED,
    EPOCH_BUMPING_VERSION, EPOCH_EXHAUSTED, EPOCH_MAX, NO_PRODUCER_ID, TRANSACTION_COMPLETE_ABORT,
    TRANSACTION_COMPLETE_COMMIT, TRANSACTION_DEAD, TRANSACTION_EMPTY, TRANSACTION_ONGOING,
    EndVerdict, TransactionState, end_verdict, is_prepare, is_rotated_client,
)
from eoslog.native.transaction_state cimport TransactionPart as NativePart

cdef enum:
    BATCHES_ON_STACK = 8


_log = logging.getLogger(__name__)


class ProducerIdNeeded(Exception):
    """The epochs of the producer id are used up: call again with the next producer id."""


@cython.final
cdef class TransactionEntry(KnownTransaction):
    """One transactional id: the coordinator's state, in memory never ahead of the log.

    `durable`: decisions are on the disk before they are answered. `completion_error` is why a
    decided transaction could not be completed by the call that decided it, or None; complete()
    tries again.
    """

    # Moves.

    def initialize(self, *, Py_ssize_t producer_id, Py_ssize_t producer_epoch,
                   Py_ssize_t last_producer_epoch, Py_ssize_t previous_producer_id,
                   Py_ssize_t timeout_ms, Py_ssize_t now_ms, bytes owner=None):
        """Become Empty with these numbers: nothing is open, and the next transaction may begin.

        `owner` is the slot of the process whose producer has the id from now on, if one has it.

        In a durable store the record is on the disk on return. Raises IllegalStateError if the
        state or the numbers do not allow it, or the error of the state log.
        """
        cdef TransactionState next_state = self._txn.state
        if (producer_id < 0 or not 0 <= producer_epoch <= EPOCH_EXHAUSTED
                or not -1 <= last_producer_epoch <= EPOCH_MAX or previous_producer_id < -1
                or not 0 < timeout_ms <= 0x7FFFFFFF):
            raise ValueError(
                f"producer id {producer_id} (before: {previous_producer_id}), epoch "
                f"{producer_epoch} (last: {last_producer_epoch}), timeout {timeout_ms} ms")
        next_state.status = TRANSACTION_EMPTY
        next_state.producer_id = producer_id
        next_state.producer_epoch = <int16_t>producer_epoch
        next_state.last_producer_epoch = <int16_t>last_producer_epoch
        next_state.previous_producer_id = previous_producer_id
        next_state.next_producer_id = NO_PRODUCER_ID
        next_state.next_producer_epoch = -1
        next_state.timeout_ms = <int32_t>timeout_ms
        next_state.last_update_ms = now_ms
        next_state.start_ms = -1
        next_state.partition_count = 0
        next_state.client_version = EPOCH_BUMPING_VERSION
        next_state.prepared = False
        set_owner(&next_state, owner)
        self._write(&next_state)

    def hand_over(self, bytes owner):
        """Another process has the prepared transaction from now on; its numbers stay.

        In a durable store the record is on the disk on return. Raises the error of the state log.
        """
        cdef TransactionState next_state = self._txn.state
        set_owner(&next_state, owner)
        self._write(&next_state)

    def add_partitions(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch, parts):
        """Have the partitions in the open transaction, which begins with the first one.

        One record lists those that are new; without any nothing is written. Raises
        InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError while a
        decided transaction is not complete, InvalidTxnStateError once it is prepared.
        """
        self._register(list(parts), producer_id, producer_epoch)

    def flush(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch, filled):
        """Append what the accumulators hold, as batches of the transaction, and empty them.

        Their partitions are added to it first. After an error, those that still hold records were
        not appended. Raises what add_partitions() and appends raise.
        """
        self._check_can_add(producer_id, producer_epoch)
        self._append(filled if type(filled) is list else list(filled), False, NO_PRODUCER_ID)

    def commit(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch, filled,
               Py_ssize_t next_producer_id=NO_PRODUCER_ID):
        """flush(), then end() with a commit, in one call; what the client uses next."""
        cdef list pairs = filled if type(filled) is list else list(filled)
        cdef bint empty = True
        for accumulator, _ in pairs:
            if (<RecordAccumulator?>accumulator)._record_count:
                empty = False
        if empty:
            return self.end(producer_id, producer_epoch, True, next_producer_id)
        self._check_can_add(producer_id, producer_epoch)
        self._check_next(next_producer_id)
        self._append(pairs, True, next_producer_id)
        return self._answer()

    def append_columns(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch,
                       Part part not None, ColumnSet columns not None):
        """Append all records of the columns in the transaction; an AppendResult.

        The partition is added to it first. Raises what add_partitions() and appends raise.
        """
        cdef AppendResult result
        cdef NativePart* native
        self._register([part], producer_id, producer_epoch)
        native = &self._txn.parts[find_part(&self._txn, part)]
        result = part.log.append_columns(
            columns, timestamp_ms=0, producer_id=producer_id, producer_epoch=producer_epoch,
            base_sequence=native.next_sequence, transactional=True)
        native = &self._txn.parts[find_part(&self._txn, part)]
        native.end_offset = result.last_offset + 1
        native.next_sequence = sequence_add(
            native.next_sequence, <int32_t>(result.record_count & 0x7FFFFFFF))
        return result

    def append_offsets(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch,
                       Part part not None, values, keys, *, Py_ssize_t timestamp_ms):
        """Append records of a group coordinator in the transaction: sequence 0 in each batch."""
        cdef AppendResult result
        self._register([part], producer_id, producer_epoch)
        result = part.log.append_columns(
            values, keys, timestamp_ms=timestamp_ms, producer_id=producer_id,
            producer_epoch=producer_epoch, base_sequence=OFFSETS_SEQUENCE, transactional=True)
        self._txn.parts[find_part(&self._txn, part)].end_offset = result.last_offset + 1
        return result

    def prepare(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch):
        """Leave the decision to another process: only an end is taken from here on.

        On return the data and the record are on the disk, whatever the store's durability. May be
        called twice. Raises InvalidTxnStateError if no transaction is open.
        """
        cdef TransactionState next_state
        cdef Fault fault
        cdef Status status
        self._check_producer(producer_id, producer_epoch)
        if self._txn.state.status != TRANSACTION_ONGOING:
            raise errors.InvalidTxnStateError(
                f"{self.transactional_id!r} is {self.state}: there is nothing to prepare")
        next_state = self._txn.state
        next_state.prepared = True
        while True:
            fault_init(&fault)
            with nogil:
                status = transaction_sync_parts(&self._txn, &fault)
                if status == STATUS_OK and not self._txn.state.prepared:
                    status = transaction_write(&self._txn, &next_state, &fault)
                if status == STATUS_OK:
                    status = transaction_sync_state(&self._txn, &fault)
            if status == STATUS_OK:
                return
            self._before_repeat(status, &fault, False)

    def end(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch, bint commit,
            Py_ssize_t next_producer_id=NO_PRODUCER_ID):
        """Commit or abort, as a client asks for it; (producer id, epoch) of its next transaction.

        It then tries to complete the decision; `completion_error` is set if that failed. A
        repeated call gets the answer of the first. Raises ProducerIdNeeded before anything is
        written; InvalidProducerIdMappingError, ProducerFencedError, InvalidTxnStateError;
        ConcurrentTransactionsError for a repeated call while complete() has not succeeded.
        """
        cdef EndVerdict verdict = END_OTHER_PRODUCER
        if producer_id >= 0 and 0 <= producer_epoch <= EPOCH_MAX:
            verdict = end_verdict(&self._txn.state, producer_id, <int16_t>producer_epoch, commit)
        if verdict == END_DECIDE or verdict == END_EMPTY_ABORT:
            self._check_next(next_producer_id)
            self._end(commit, False, next_producer_id)
        elif verdict != END_REPEATED:
            self._refuse_end(verdict, producer_id, producer_epoch, commit)
        return self._answer()

    def fence(self, Py_ssize_t next_producer_id=NO_PRODUCER_ID):
        """Abort the open transaction without its client, whose epoch is then too old.

        `completion_error` is set if the abort could not be completed. Raises ProducerIdNeeded, or
        IllegalStateError if no transaction is open.
        """
        if self._txn.state.status != TRANSACTION_ONGOING:
            raise errors.IllegalStateError(
                f"{self.transactional_id!r} is {self.state}: there is nothing to fence")
        self._check_next(next_producer_id)
        self._end(False, True, next_producer_id)

    def complete(self):
        """Write the markers that are missing and the record that all is done; may be repeated.

        Where a partition has seen a later epoch, a decision taken over from the log by load() has
        its marker: what came after it was on the disk before the record that all is done.
        Raises PartitionLost, or the error of a partition or of the state log; the partitions that
        took their marker keep it.
        """
        cdef Fault fault
        cdef Status status
        if (self._txn.state.status == TRANSACTION_COMPLETE_COMMIT
                or self._txn.state.status == TRANSACTION_COMPLETE_ABORT):
            return
        if not is_prepare(self._txn.state.status):
            raise errors.IllegalStateError(
                f"{self.transactional_id!r} is {self.state}: nothing is decided")
        fault_init(&fault)
        with nogil:
            status = transaction_complete(&self._txn, &fault)
        self._ended(status, &fault)
        if self.completion_error is not None:
            raise self.completion_error

    def expire(self):
        """Write a record without a value: the id is no longer known, and the entry is Dead."""
        cdef Fault fault
        cdef Status status
        while True:
            fault_init(&fault)
            with nogil:
                status = transaction_write_tombstone(&self._txn, &fault)
            if status == STATUS_OK:
                return
            self._before_repeat(status, &fault)

    # Steps.

    def _check_producer(self, Py_ssize_t producer_id, Py_ssize_t producer_epoch):
        """Check what a client that adds to its transaction must be."""
        self._check_can_add(producer_id, producer_epoch, True)

    cdef int _check_can_add(
        self, int64_t producer_id, int64_t producer_epoch, bint even_if_prepared=False
    ) except -1:
        if is_rotated_client(&self._txn.state, producer_id, producer_epoch):
            raise self._concurrent()
        if (producer_id != self._txn.state.producer_id or producer_id < 0
                or self._txn.state.status == TRANSACTION_DEAD):
            raise self._other_producer(producer_id)
        if producer_epoch != self._txn.state.producer_epoch:
            raise self._fenced(producer_id, producer_epoch)
        if is_prepare(self._txn.state.status):
            raise self._concurrent()
        if self._txn.state.prepared and not even_if_prepared:
            raise errors.InvalidTxnStateError(
                f"{self.transactional_id!r} is prepared: it can only be committed or aborted")
        return 0

    cdef int _check_next(self, int64_t next_producer_id) except -1:
        """The next producer id is given exactly when it is needed."""
        if self._txn.state.producer_epoch < EPOCH_EXHAUSTED:
            if next_producer_id != NO_PRODUCER_ID:
                raise ValueError(
                    f"next producer id {next_producer_id} at epoch {self.producer_epoch}")
            return 0
        if next_producer_id == NO_PRODUCER_ID:
            raise ProducerIdNeeded(
                f"{self.transactional_id!r}: producer id {self.producer_id} has used up its epochs")
        if next_producer_id < 0 or next_producer_id == self._txn.state.producer_id:
            raise ValueError(f"next producer id {next_producer_id} after {self.producer_id}")
        return 0

    cdef int _write(self, const TransactionState* next) except -1:
        """Write the record of a move; in a durable store it is on the disk on return."""
        cdef Fault fault
        cdef Status status
        cdef bint written = False
        while True:
            fault_init(&fault)
            with nogil:
                status = STATUS_OK
                if not written:
                    status = transaction_write(&self._txn, next, &fault)
                written = status == STATUS_OK or written
                if status == STATUS_OK and self._txn.durable:
                    status = transaction_sync_state(&self._txn, &fault)
            if status == STATUS_OK:
                return 0
            self._before_repeat(status, &fault)

    cdef int _register(
        self, list parts, int64_t producer_id, int64_t producer_epoch
    ) except -1:
        cdef Fault fault
        cdef Status status
        self._check_can_add(producer_id, producer_epoch)
        try:
            for part in parts:
                self._hold(<Part?>part)
            while parts:
                fault_init(&fault)
                with nogil:
                    status = transaction_register(&self._txn, &fault)
                if status == STATUS_OK:
                    break
                self._before_repeat(status, &fault)
        finally:
            transaction_withdraw(&self._txn)
        return 0

    cdef int _append(self, list filled, bint commit, int64_t next_producer_id) except -1:
        """Register, append and, for a commit, end: all that was gathered, in one go."""
        cdef TransactionBatch on_stack[BATCHES_ON_STACK]
        cdef TransactionBatch* batches = on_stack
        cdef Py_ssize_t index
        if len(filled) > BATCHES_ON_STACK:
            batches = <TransactionBatch*>malloc(<size_t>len(filled) * sizeof(TransactionBatch))
            if batches == NULL:
                raise errors.OutOfMemoryError(f"{len(filled)} batches")
        for index in range(len(filled)):
            batches[index].buffer = NULL         # Not taken yet.
            batches[index].appended = False
        try:
            if self._collect(filled, batches):
                self._append_all(batches, <int32_t>len(filled), commit, next_producer_id)
        finally:
            for index in range(len(filled)):
                if batches[index].buffer != NULL:
                    give_back(filled[index], &batches[index])
            if batches != on_stack:
                free(batches)
            transaction_withdraw(&self._txn)
        return 0

    cdef int _collect(self, list filled, TransactionBatch* batches) except -1:
        """Take the accumulators that hold records; how many."""
        cdef RecordAccumulator accumulator
        cdef Part part
        cdef Py_ssize_t index
        cdef int taken = 0
        for index in range(len(filled)):
            accumulator, part = filled[index]
            if accumulator._busy:
                raise errors.ConcurrentAccessError(
                    "two threads use one accumulator at once: another thread is appending it, and "
                    "this call did nothing")
            batches[index].record_count = accumulator._record_count
            if accumulator._record_count == 0:
                batches[index].appended = True   # There is nothing to append.
                continue
            self._hold(part)
            accumulator._busy = True
            taken += 1
            batches[index].buffer = accumulator._buffer
            batches[index].used_bytes = accumulator._used_bytes
            batches[index].base_timestamp = accumulator._base_timestamp
            batches[index].max_timestamp = accumulator._max_timestamp
        for index in range(len(filled)):
            if batches[index].buffer != NULL:
                batches[index].part = find_part(&self._txn, <Part>filled[index][1])
        return taken

    cdef int _append_all(
        self, TransactionBatch* batches, int32_t batch_count, bint commit, int64_t next_producer_id
    ) except -1:
        cdef Fault fault
        cdef Status status
        cdef Status completed = STATUS_OK
        cdef bint appending = True
        while True:
            fault_init(&fault)
            with nogil:
                status = STATUS_OK
                if appending:
                    status = transaction_register(&self._txn, &fault)
                    if status == STATUS_OK:
                        status = transaction_append(&self._txn, batches, batch_count, &fault)
                if status == STATUS_OK and commit:
                    appending = False
                    status = transaction_decide(&self._txn, True, False, next_producer_id, &fault)
                    if status == STATUS_OK:
                        completed = transaction_complete(&self._txn, &fault)
            if status == STATUS_OK:
                break
            self._before_repeat(status, &fault, appending)
        if commit:
            self._ended(completed, &fault)
        return 0

    cdef int _end(self, bint commit, bint fencing, int64_t next_producer_id) except -1:
        cdef Fault fault
        cdef Status status
        cdef Status completed = STATUS_OK
        while True:
            fault_init(&fault)
            with nogil:
                status = transaction_decide(&self._txn, commit, fencing, next_producer_id, &fault)
                if status == STATUS_OK:
                    completed = transaction_complete(&self._txn, &fault)
            if status == STATUS_OK:
                break
            self._before_repeat(status, &fault, False)
        self._ended(completed, &fault)
        return 0

    def revoke(self):
        """Have a commit be an abort, since its data did not all reach the disk; complete it then.

        For a recovery, before anything is appended to its partitions. The record is on the disk on
        return. Raises IllegalStateError if the decision does not name where its logs end.
        """
        cdef Fault fault
        cdef Status status
        if not self._txn.state.named:
            raise errors.IllegalStateError(
                f"{self.transactional_id!r} is {self.state}: it names no ends of logs")
        fault_init(&fault)
        with nogil:
            status = transaction_revoke(&self._txn, &fault)
        if status != STATUS_OK:
            raise self._failure(status, &fault, True)

    cdef int _ended(self, Status status, Fault* fault) except -1:
        """Complete what is decided, if a log asked for something; then keep why that failed, or let
        go of the partitions.
        """
        cdef object error = None
        while status != STATUS_OK and error is None:
            try:
                self._before_repeat(status, fault, False)
            except (errors.EoslogError, PartitionLost) as failed:
                error = failed
            else:
                fault_init(fault)
                with nogil:
                    status = transaction_complete(&self._txn, fault)
        self.completion_error = error
        if error is None and self._held:
            self._held = []
        return 0

    @property
    def client_identity(self):
        """(producer id, epoch) of the client's open transaction, or of its next one."""
        return self._answer()

    cdef tuple _answer(self):
        if self._txn.state.next_producer_id != NO_PRODUCER_ID:
            return (self._txn.state.next_producer_id, 0)
        return (self._txn.state.producer_id, self._txn.state.producer_epoch)

    # Refusals.

    def _other_producer(self, producer_id):
        if self._txn.state.status == TRANSACTION_DEAD:
            return errors.InvalidProducerIdMappingError(
                f"{self.transactional_id!r} is forgotten, as nothing was done with it for "
                "transactional.id.expiration.ms: make a new producer, and call init_transactions()")
        return errors.InvalidProducerIdMappingError(
            f"{self.transactional_id!r} has producer id {self.producer_id} ({self.state}), "
            f"not {producer_id}")

    def _fenced(self, producer_id, producer_epoch):
        counter_add(self._txn.state_log.counts, COUNTER_REFUSED_EPOCHS, 1)
        _log.debug("transactional id %r: producer id %d, epoch %d: refused, the newest is producer "
                   "id %d, epoch %d", self.transactional_id, producer_id, producer_epoch,
                   self.producer_id, self.producer_epoch)
        return errors.ProducerFencedError(
            f"{self.transactional_id!r}: epoch {producer_epoch} of producer id {producer_id} is "
            f"not the current one, {self.producer_epoch} ({self.state})")

    def _concurrent(self):
        return errors.ConcurrentTransactionsError(
            f"{self.transactional_id!r} is {self.state}: its last transaction is not complete")

    def _refuse_end(self, int verdict, producer_id, producer_epoch, commit):
        """Raise what a client's end of a transaction comes to."""
        if verdict == END_OTHER_PRODUCER:
            raise self._other_producer(producer_id)
        if verdict == END_FENCED:
            raise self._fenced(producer_id, producer_epoch)
        if verdict == END_CONCURRENT:
            raise self._concurrent()
        raise errors.InvalidTxnStateError(
            f"{self.transactional_id!r} is {self.state}: it cannot be "
            f"{'committed' if commit else 'aborted'} with epoch {producer_epoch}")


cdef int give_back(object pair, const TransactionBatch* batch) except -1:
    """An accumulator that was taken is free again, and empty if its batch is in the log."""
    cdef RecordAccumulator accumulator = pair[0]
    accumulator._busy = False
    if batch.appended:
        accumulator.note_appended(batch.base_offset)
    return 0
