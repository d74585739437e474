"""States of a producer's transactions: the one table of their moves, what each error means, and
how a transaction ends.

Invariants: a state is left only as the table allows; a call that does not fit changes nothing; out
of FATAL_ERROR there is no way; a record is taken only while a transaction is open; after an error
in a transaction only its abort goes on, so that a part is never committed; a producer that was
fenced writes nothing more.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Never

from eoslog.bindings.accumulator import Accumulator, PartitionBuffer
from eoslog.bindings.client_transaction import ClientTransaction
from eoslog.bindings.status import ProducerNotCached
from eoslog.bindings.transaction_entry import PartitionLost, ProducerIdNeeded
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    EoslogError,
    FellBehindError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    LogClosedError,
    ProducerFencedError,
    StoreFailedError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from eoslog.producer.producer_parts import ProducerParts
from eoslog.transactions.transaction_owner import TransactionOwner

# What a call can be repeated after, once it was seen to.
CURABLE = (
    ProducerNotCached,
    PartitionLost,
    ProducerIdNeeded,
    ConcurrentTransactionsError,
    FellBehindError,
)


class ClientState(IntEnum):
    """State of a transactional producer."""

    UNINITIALIZED = 0
    INITIALIZING = 1
    READY = 2
    IN_TRANSACTION = 3
    PREPARED_TRANSACTION = 4
    COMMITTING_TRANSACTION = 5
    ABORTING_TRANSACTION = 6
    ABORTABLE_ERROR = 7
    FATAL_ERROR = 8


_S = ClientState

# Begun, and nothing of its end.
OPEN = (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR)
# A block that ends without an error leaves these as they are.
ENDED = (_S.READY, _S.PREPARED_TRANSACTION)

# Target: the states it may follow on.
ALLOWED_FROM: Mapping[ClientState, frozenset[ClientState]] = MappingProxyType(
    {
        _S.UNINITIALIZED: frozenset({_S.READY, _S.ABORTABLE_ERROR}),
        _S.INITIALIZING: frozenset(
            {_S.UNINITIALIZED, _S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION}
        ),
        _S.READY: frozenset({_S.INITIALIZING, _S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION}),
        _S.IN_TRANSACTION: frozenset({_S.READY}),
        # Ours: a prepared one whose commit failed before the decision stays prepared.
        _S.PREPARED_TRANSACTION: frozenset(
            {_S.IN_TRANSACTION, _S.INITIALIZING, _S.COMMITTING_TRANSACTION}
        ),
        _S.COMMITTING_TRANSACTION: frozenset({_S.IN_TRANSACTION, _S.PREPARED_TRANSACTION}),
        _S.ABORTING_TRANSACTION: frozenset(
            {_S.IN_TRANSACTION, _S.PREPARED_TRANSACTION, _S.ABORTABLE_ERROR}
        ),
        _S.ABORTABLE_ERROR: frozenset(
            {_S.IN_TRANSACTION, _S.COMMITTING_TRANSACTION, _S.ABORTABLE_ERROR, _S.INITIALIZING}
        ),
        _S.FATAL_ERROR: frozenset(_S),
    }
)

# The same for the hot path: by target, a bit for each state it may follow on.
SOURCES = tuple(sum(1 << source for source in ALLOWED_FROM[target]) for target in ClientState)


def may_move(source: ClientState, target: ClientState) -> bool:
    """True if the table has the move."""
    return bool(SOURCES[target] >> source & 1)


# Hints for a call that the state does not allow: what to do first.
HINTS: Mapping[ClientState, str] = MappingProxyType(
    {
        _S.UNINITIALIZED: "call init_transactions() first",
        _S.INITIALIZING: "init_transactions() did not end: call it again",
        _S.READY: "no transaction is open: call begin_transaction() first",
        _S.IN_TRANSACTION: "a transaction is open",
        _S.PREPARED_TRANSACTION: "the transaction is prepared: it can be committed or aborted",
        _S.COMMITTING_TRANSACTION: "commit_transaction() did not end: call it again",
        _S.ABORTING_TRANSACTION: "abort_transaction() did not end: call it again",
        _S.ABORTABLE_ERROR: "the transaction failed: call abort_transaction()",
        _S.FATAL_ERROR: "the producer can do nothing more: close it",
    }
)


class Request(Enum):
    """Request of a producer in which an error came; Kafka's clients know the error by it."""

    INIT = "init"
    PRODUCE = "produce"
    OFFSETS = "offsets"
    END = "end"


class Reaction(Enum):
    """Reaction of the producer to an error."""

    RETRY = "retry"  # The same call may be made again, and no other.
    ABORTABLE = "abortable"
    FATAL = "fatal"


_R = Reaction
_INIT, _PRODUCE, _OFFSETS, _END = Request.INIT, Request.PRODUCE, Request.OFFSETS, Request.END

# Kafka's table, as far as a single store meets it. What is not named here follows below.
_REACTIONS: Mapping[type[EoslogError], Mapping[Request, Reaction]] = MappingProxyType(
    {
        ConcurrentTransactionsError: {_INIT: _R.RETRY},
        CoordinatorNotAvailableError: {_INIT: _R.RETRY},
        InvalidProducerEpochError: {_INIT: _R.FATAL, _OFFSETS: _R.FATAL, _END: _R.FATAL},
        ProducerFencedError: dict.fromkeys(Request, _R.FATAL),
        InvalidProducerIdMappingError: dict.fromkeys(Request, _R.FATAL),
        InvalidTxnStateError: {_INIT: _R.FATAL, _OFFSETS: _R.FATAL, _END: _R.FATAL},
        InvalidTransactionTimeoutError: {_INIT: _R.FATAL},
        UnknownProducerIdError: {_INIT: _R.FATAL, _OFFSETS: _R.FATAL},
        TransactionAbortableError: {_INIT: _R.ABORTABLE},
        TransactionCoordinatorFencedError: {_END: _R.FATAL},
        # The disk refused a flush: whether the decision is in the log, only recovery can say.
        StoreFailedError: {_INIT: _R.FATAL, _END: _R.FATAL},
    }
)


def reaction(error: BaseException, request: Request) -> Reaction:
    """Return the producer's reaction to an error. An error that Kafka's table names follows the
    table.

    Otherwise: what the disk lets pass later is tried again at the initialization; anything else
    there is fatal. In a transaction it is to be aborted, since nothing is ever sent twice under the
    same numbers; a closed store is the end of all.
    """
    for kind, by_request in _REACTIONS.items():
        if isinstance(error, kind):
            found = by_request.get(request)
            if found is not None:
                return found
            break
    retriable = isinstance(error, EoslogError) and error.retriable
    if request is Request.INIT:
        return _R.RETRY if retriable else _R.FATAL
    ended = isinstance(error, EoslogError) and error.fatal and not isinstance(error, KafkaError)
    if ended and not isinstance(error, StoreFailedError):
        return _R.FATAL
    return _R.ABORTABLE


def as_the_client_sees(error: EoslogError, request: Request) -> EoslogError:
    """The error under the name that Kafka's clients give it."""
    if isinstance(error, InvalidProducerEpochError) and request is not Request.PRODUCE:
        return ProducerFencedError(str(error))
    return error


# By number: looked up with every append.
_STATES = tuple(ClientState)


class TransactionStates(ClientTransaction):
    """Transactions of one producer, apart from where their records go and who decides them.

    The caller holds the producer's lock, which comes before that of the coordinator's entry.
    """

    def __init__(
        self, accumulator: Accumulator, parts: ProducerParts, transactional_id: str
    ) -> None:
        self.transactional_id = transactional_id
        self.is_prepared = False  # The open transaction: only its answer ends it.
        self.was_late = False  # It was aborted here, being older than its timeout.
        self._store_parts = parts
        self._engine = parts.engine
        self._owner = TransactionOwner.here()
        self._cause: EoslogError | None = None
        self._is_cut_off = False  # A close found it open, and aborts it or has done so.
        self.set_moves(
            SOURCES, _S.UNINITIALIZED, _S.READY, _S.IN_TRANSACTION, _S.COMMITTING_TRANSACTION
        )

    # State.

    @property
    def state(self) -> ClientState:
        """State now."""
        return _STATES[self.state_number]

    def check_usable(self) -> None:
        """Raise the error of a producer or a store that is closed or fenced."""
        self.accumulator.check_refusal()
        self._engine.check_open()

    def check_appendable(self) -> None:
        """Check that records are taken now."""
        self.check_usable()
        if self.state_number != _S.IN_TRANSACTION:
            self.no_move(_S.IN_TRANSACTION)

    def check_begin(self) -> None:
        """Raise the error of a transaction that may not begin."""
        self.check_usable()
        self.look_again()

    def look_again(self) -> None:
        """Raise ProducerFencedError if another process is known to have the id by now."""

    def no_move(self, target: int) -> Never:
        """Raise the error for a call that does not fit the state."""
        state = self.state
        if state is _S.ABORTABLE_ERROR:
            cause = self._cause or "an error before"
            raise TransactionAbortableError(f"{HINTS[state]}: {cause}") from self._cause
        hint = HINTS[state]
        if target == _S.INITIALIZING and state in (_S.READY, _S.IN_TRANSACTION):
            hint = "init_transactions() was called already"
        raise IllegalStateError(
            f"transactional id {self.transactional_id!r}, state {state.name}: {hint}"
        )

    @property
    def is_ended(self) -> bool:
        """True if the transaction of a block was ended there; what a close aborted was not."""
        return self.state in ENDED and not self._is_cut_off

    # Errors.

    def record_refused(self, error: Exception) -> None:
        """Take in that a record was refused: the transaction must not be committed without it."""
        if self.state is _S.IN_TRANSACTION and self.accumulator.refusal is None:
            self._take_in(error, Request.PRODUCE)

    def break_(self, error: Exception, request: Request) -> Never:
        """Raise the error as the caller is to see it; what it means for this producer is done."""
        seen = self._take_in(error, request)
        if seen is not error:
            raise seen from error
        raise error

    def _take_in(self, error: Exception, request: Request) -> Exception:
        """Do what an error means for this producer; the error as the caller is to see it."""
        if not isinstance(error, EoslogError) or isinstance(error, ConcurrentAccessError):
            if self.state is _S.COMMITTING_TRANSACTION:
                self.move(_S.PREPARED_TRANSACTION if self.is_prepared else _S.ABORTABLE_ERROR)
            return error
        seen = as_the_client_sees(self._explained(error), request)
        found = reaction(seen, request)
        if found is Reaction.FATAL:
            self.move(_S.FATAL_ERROR)
            again = copy.copy(seen)  # Without its traceback, which keeps records alive.
            self.accumulator.refuse(lambda: copy.copy(again))
        elif self.is_prepared and self.state is _S.COMMITTING_TRANSACTION:
            self.move(_S.PREPARED_TRANSACTION)
        elif found is Reaction.ABORTABLE and may_move(self.state, _S.ABORTABLE_ERROR):
            self._cause = seen
            self.move(_S.ABORTABLE_ERROR)
        return seen

    def _explained(self, error: EoslogError) -> EoslogError:
        """Return the error with who took the id over, or with the topic that was deleted."""
        if isinstance(error, (ProducerFencedError, InvalidProducerEpochError)):
            return self._owner.explain(error)
        if isinstance(error, LogClosedError) and not self._engine.is_closed():
            deleted = f"a topic of the transaction was deleted: {error}"
            return self._engine.failure or UnknownTopicOrPartitionError(deleted)
        return error

    def notice_replacement(self) -> None:
        """Refuse records from now on if the transactional id was taken over.

        Takes no lock: the caller holds another producer's. It only lets the user know sooner;
        what keeps a fenced producer from writing is the entry.
        """
        reason = self._owner.fenced_because
        if reason is not None and self.accumulator.refusal is None:
            self.accumulator.refuse(lambda: ProducerFencedError(reason))

    # Where the records go, and who decides.

    @abstractmethod
    def initialize(self, keep_prepared: bool) -> PreparedTransaction | None:
        """Take the transactional id over; the prepared transaction that stays, or None."""

    @abstractmethod
    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
    ) -> None:
        """Have a group's offsets committed with the transaction."""

    @abstractmethod
    def prepare(self) -> PreparedTransaction:
        """Append and sync all of the transaction, and leave its decision open."""

    @abstractmethod
    def complete(self, prepared: PreparedTransaction | str | None) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it; if committed."""

    @abstractmethod
    def append_buffers(self, buffers: list[PartitionBuffer]) -> None:
        """Append these batches."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the open transaction."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the transactional id: the producer is closed."""

    @abstractmethod
    def _is_begun(self) -> bool:
        """True if there is, or was, something to decide."""

    @abstractmethod
    def _decide(self, commit: bool) -> tuple[int, int]:
        """End the transaction; the numbers of the next one."""

    @abstractmethod
    def _end_cut_commit(self) -> None:
        """Abort what an interrupt left of a commit, if that had not decided it; else complete it.

        A prepared transaction stays so: it may have been committed outside.
        """

    # Its ends.

    def drain(self, buffer: PartitionBuffer) -> None:
        """Append a batch that is full, or that columns for its partition follow."""
        try:
            self.append_buffers([buffer])
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)

    def flush(self) -> None:
        """Append what the open transaction gathered."""
        self.check_usable()
        if self.state is _S.ABORTABLE_ERROR:
            self.no_move(_S.IN_TRANSACTION)
        if self.state is not _S.IN_TRANSACTION:
            return
        try:
            self._append_all()
        except EoslogError as error:
            self.break_(error, Request.PRODUCE)

    def _append_all(self) -> None:
        touched = self.accumulator.touched_buffers()
        filled = [one for one in touched if one.accumulator.record_count]
        if filled:
            self.append_buffers(filled)

    def commit_otherwise(self) -> None:
        """Commit in another state than an open transaction that takes records, or raise."""
        self.check_usable()
        if self.state is not _S.COMMITTING_TRANSACTION:
            self.move(_S.COMMITTING_TRANSACTION)
        self.check_in_time()
        self._over(self._commit_on())

    def check_in_time(self) -> None:
        """Abort the open transaction, and raise, if it is older than its timeout."""

    def commit_failed(self, error: Exception) -> tuple[int, int]:
        """Go on with a commit that failed, where that can be; the numbers of the next one."""
        if not isinstance(error, (*CURABLE, InvalidTxnStateError)):
            self._break_commit(error)
        return self._commit_on()

    def _commit_on(self) -> tuple[int, int]:
        """Do the rest of a commit: append what is still gathered, then the decision."""
        try:
            self._append_all()
            if not self._is_begun():
                # An interrupt came before the first append had reached it: there is nothing.
                return self.producer_id, self.producer_epoch
            return self._decide(commit=True)
        except Exception as error:
            self._break_commit(error)

    def _break_commit(self, error: Exception) -> Never:
        request = Request.END
        if isinstance(error, StoreFailedError) and not self._is_decision_in_doubt():
            request = Request.PRODUCE  # A partition failed, before there was anything to decide.
        self.break_(error, request)

    def _is_decision_in_doubt(self) -> bool:
        """True if the log that would have the decision failed."""
        return bool(self.state_partition.failed)

    def _over(self, answer: tuple[int, int] | None) -> None:
        """The transaction is over; None: the coordinator never heard of it."""
        self._cause = None
        self.is_prepared = False
        if answer is None:
            self.ended_without()
        else:
            self.ended(answer)

    def leave_block(self) -> None:
        """Commit at the end of a block what the block did not end; takes the lock."""
        with self.accumulator.lock:
            if self.is_ended:
                return
            try:
                self.commit()
            except BaseException as error:
                self._abort_after(error)
                raise

    def abort_after(self, error: BaseException) -> None:
        """Abort the open transaction; a failure becomes a note of the error. Takes the lock."""
        with self.accumulator.lock:
            self._abort_after(error)

    def _abort_after(self, error: BaseException) -> None:
        if self.accumulator.refusal is not None or self.state not in OPEN:
            return
        try:
            self.abort()
        except EoslogError as second:
            error.add_note(f"aborting the transaction failed too: {second}")

    def close(self) -> EoslogError | None:
        """Abort the open transaction, and end a commit that was cut short; what failed."""
        if self.accumulator.refusal is not None:
            return None
        try:
            if self.state in (*OPEN, _S.ABORTING_TRANSACTION):
                self._is_cut_off = True
                self.abort()
            elif self.state is _S.COMMITTING_TRANSACTION:
                self._end_cut_commit()
        except EoslogError as error:
            return error
        return None

    # Topics that come and go.

    def check_gathered_for(self, topic: str, topic_id: str | None) -> None:
        """Refuse if another process has re-created the topic since records were gathered for it."""
        buffers = self.accumulator.buffers_of(topic)
        if buffers and buffers[0].topic_id != topic_id:
            lost = self.accumulator.record_count_of(topic)
            self.forget_topic(topic)
            if lost:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} was deleted with records that were gathered for it"
                )

    @abstractmethod
    def forget_topic(self, topic: str) -> None:
        """Forget a topic that is being deleted, with what was gathered for it."""

    def _lost_with_topic(self, text: str) -> None:
        """Have only an abort go on: records of the transaction went with their topic."""
        if self.state is _S.IN_TRANSACTION:
            self._take_in(UnknownTopicOrPartitionError(text), Request.PRODUCE)
