"""A transactional producer and its coordinator: the producer's state, its errors, its commits.

Invariants: a record is taken only while a transaction is open; after an error in a transaction only
its abort goes on, so that a part is never committed; nothing is sent twice under the same numbers;
a producer that was fenced writes nothing more. The order of locks: the producer's, then its
coordinator's entry, then a partition's.
"""

import copy
from collections.abc import Callable
from typing import Never, TypeVar

from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.status import ProducerNotCached
from eoslog.bindings.transaction_entry import PartitionLost, ProducerIdNeeded, TransactionEntry
from eoslog.bindings.transactional_sender import TransactionalSender
from eoslog.common import clock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    ConcurrentTransactionsError,
    EoslogError,
    FellBehindError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogClosedError,
    ProducerFencedError,
    StoreFailedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer.producer import Producer
from eoslog.producer.producer_parts import ProducerParts
from eoslog.producer.transaction_client_state import (
    HINTS,
    SOURCES,
    ClientState,
    Reaction,
    Request,
    as_the_client_sees,
    may_move,
    reaction,
)
from eoslog.transactions.transaction_owner import TransactionOwner, timed_out

T = TypeVar("T")
S = ClientState


# What a call can be repeated after, once it was seen to.
CURABLE = (
    ProducerNotCached,
    PartitionLost,
    ProducerIdNeeded,
    ConcurrentTransactionsError,
    FellBehindError,
)
# By number: looked up with every append.
_STATES = tuple(ClientState)


class TransactionClient(TransactionalSender, Producer):
    """Transaction client that `TransactionalProducer` is made on. The caller holds its lock."""

    def __init__(self, parts: ProducerParts, transactional_id: str, batch_bytes: int) -> None:
        Producer.__init__(self, parts, None, {"batch.size": batch_bytes})
        self._transactional_id = transactional_id
        self._coordinator = parts.coordinator
        self._owner = TransactionOwner.here()
        self._taken_over: TransactionEntry | None = None
        self._cause: EoslogError | None = None
        self._is_prepared = False  # The open transaction: nobody aborts it unasked.
        self._is_cut_off = False  # A close found it open, and aborts it or has done so.
        self._was_late = False  # It was aborted here, being older than its timeout.
        self._set_moves(
            SOURCES, S.UNINITIALIZED, S.READY, S.IN_TRANSACTION, S.COMMITTING_TRANSACTION
        )

    # State.

    @property
    def _state(self) -> ClientState:
        return _STATES[self._state_number]

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise self._refusal()
        self._engine.check_open()

    def _check_appendable(self) -> None:
        self._check_usable()
        if self._state is not S.IN_TRANSACTION:
            self._refuse()

    def _refuse(self) -> None:
        """Say why no record is taken."""
        self._check_usable()
        self._no_move(S.IN_TRANSACTION)

    def _no_move(self, target: int) -> None:
        state = self._state
        if state is S.ABORTABLE_ERROR:
            cause = self._cause or "an error before"
            raise TransactionAbortableError(f"{HINTS[state]}: {cause}") from self._cause
        hint = HINTS[state]
        if target == S.INITIALIZING and state in (S.READY, S.IN_TRANSACTION):
            hint = "init_transactions() was called already"
        raise IllegalStateError(
            f"transactional id {self._transactional_id!r}, state {state.name}: {hint}"
        )

    # Errors.

    def _failed(self, error: Exception) -> None:
        """A record was refused: the transaction must not be committed without it."""
        if self._state is S.IN_TRANSACTION and self._refusal is None:
            self._take_in(error, Request.PRODUCE)

    def _break(self, error: Exception, request: Request) -> Never:
        """Raise the error as the caller is to see it; what it means for this producer is done."""
        seen = self._take_in(error, request)
        if seen is not error:
            raise seen from error
        raise error

    def _take_in(self, error: Exception, request: Request) -> Exception:
        """Do what an error means for this producer; the error as the caller is to see it."""
        if not isinstance(error, EoslogError) or isinstance(error, ConcurrentAccessError):
            if self._state is S.COMMITTING_TRANSACTION:
                self._move(S.PREPARED_TRANSACTION if self._is_prepared else S.ABORTABLE_ERROR)
            return error
        seen = as_the_client_sees(self._named(error), request)
        found = reaction(seen, request)
        if found is Reaction.FATAL:
            self._move(S.FATAL_ERROR)
            again = copy.copy(seen)  # Without its traceback, which keeps records alive.
            self._refuse_from_now_on(lambda: copy.copy(again))
        elif self._is_prepared and self._state is S.COMMITTING_TRANSACTION:
            self._move(S.PREPARED_TRANSACTION)
        elif found is Reaction.ABORTABLE and may_move(self._state, S.ABORTABLE_ERROR):
            self._cause = seen
            self._move(S.ABORTABLE_ERROR)
        return seen

    def _named(self, error: EoslogError) -> EoslogError:
        """The error with what the coordinator knows of who did it, or with what was deleted."""
        if isinstance(error, (ProducerFencedError, InvalidProducerEpochError)):
            return self._owner.explain(error)
        if isinstance(error, LogClosedError) and not self._engine.is_closed():
            deleted = f"a topic of the transaction was deleted: {error}"
            return self._engine.failure or UnknownTopicOrPartitionError(deleted)
        return error

    def notice_replacement(self) -> None:
        """Refuse records from now on if the transactional id was taken over.

        Takes no lock: whoever calls it holds another producer's. It only lets the user know sooner;
        what keeps a fenced producer from writing is the entry.
        """
        reason = self._owner.fenced_because
        if reason is not None and self._refusal is None:
            self._refuse_from_now_on(lambda: ProducerFencedError(reason))

    def _look_again(self) -> None:
        if self._taken_over is not None:
            try:
                with self._taken_over.lock:
                    self._owner.check()
            except EoslogError as error:
                self._break(error, Request.END)

    # The coordinator's entry.

    def _on_entry(self, call: Callable[[TransactionEntry], T]) -> T:
        """Call the entry; what stands in the way and can be put right is."""
        entry = self._known_entry()
        looked = False
        while True:
            try:
                with entry.lock:
                    self._owner.check()
                    return call(entry)
            except CURABLE as error:
                self._cure(entry, error)
            except InvalidTxnStateError:
                # A power cut took the record of a transaction of this id, not its batches, and
                # recovery could not end it when the partition was opened: others were at work.
                if looked:
                    raise
                looked = True
                self._coordinator.end_unknown()

    def _append_on_entry(
        self, append: Callable[[TransactionEntry, AppendResult | None], AppendResult]
    ) -> AppendResult:
        """Call the entry for an append of several batches. It is called again after a cure, with
        what the call before put in: it goes on behind that.
        """
        appended: AppendResult | None = None

        def go_on(entry: TransactionEntry) -> AppendResult:
            nonlocal appended
            try:
                return append(entry, appended)
            except (ProducerNotCached, FellBehindError) as asked:
                appended = asked.appended
                raise

        return self._on_entry(go_on)

    def _cure(self, entry: TransactionEntry, error: Exception) -> None:
        """Put right what keeps the entry from a call; raises what cannot be."""
        if isinstance(error, ProducerNotCached):
            self._coordinator.hold_producer(error.producer_id, error.topic, error.partition)
        elif isinstance(error, FellBehindError):
            self._coordinator.take_up_anew(error)
        elif isinstance(error, PartitionLost):
            self._engine.check_open()
            if self._engine.find_partition(TopicPartition(error.topic, error.partition)):
                raise StoreFailedError(f"{error}: open the store anew") from error
            with entry.lock:
                entry.drop_partition(error.topic, error.partition)
        elif not (
            # The transaction before this one is decided, and could not be completed then.
            isinstance(error, ConcurrentTransactionsError) and self._coordinator.complete(entry)
        ):
            raise error

    def _known_entry(self) -> TransactionEntry:
        if self._taken_over is None:
            raise IllegalStateError(HINTS[S.UNINITIALIZED])
        return self._taken_over

    def _is_at_the_coordinator(self) -> bool:
        """True if the coordinator has the open transaction, or had it and ended it."""
        if not self._is_registered:
            return False

        def look(entry: TransactionEntry) -> bool:
            own = (self.producer_id, self.producer_epoch)
            return entry.state == "Ongoing" or entry.client_identity != own

        return self._on_entry(look)

    def _end(self, commit: bool) -> tuple[int, int]:
        """End the transaction; the coordinator's wrapper gets a new id where one is needed."""
        return self._on_entry(
            lambda entry: self._coordinator.end(
                entry, self.producer_id, self.producer_epoch, commit
            )
        )

    def _check_in_time(self) -> None:
        """Abort the open transaction, and raise ProducerFencedError, if it is older than its
        timeout. What is prepared or decided stays so.
        """
        age_ms = self._late_age_ms
        if age_ms < 0 or self._is_prepared:
            return
        now_ms = clock.now_ms()
        start_ms, timeout_ms = now_ms - age_ms, self._timeout_ms
        reason = timed_out(self._transactional_id, start_ms, timeout_ms, now_ms)
        own = (self.producer_id, self.producer_epoch)
        try:
            if self._is_at_the_coordinator() and not self._on_entry(
                lambda entry: self._coordinator.abort_late(entry, *own, reason)
            ):
                return
        except EoslogError as error:
            self._break(error, Request.END)
        self._was_late = True
        self._owner.fence(reason)
        self._break(ProducerFencedError(reason), Request.END)

    def _over(self, answer: tuple[int, int] | None) -> None:
        """The transaction is over; None: the coordinator never heard of it."""
        self._cause = None
        self._is_prepared = False
        if answer is None:
            self._ended_without()
        else:
            self._ended(answer)

    # What the hot path of a commit leaves to others.

    def _append_all(self) -> None:
        """Append all that is gathered."""
        raise NotImplementedError

    def _commit_otherwise(self) -> None:
        self._check_usable()
        if self._state is not S.COMMITTING_TRANSACTION:
            self._move(S.COMMITTING_TRANSACTION)
        self._check_in_time()
        self._over(self._commit_on())

    def _commit_failed(self, error: Exception) -> tuple[int, int]:
        if not isinstance(error, (*CURABLE, InvalidTxnStateError)):
            self._break_commit(error)
        return self._commit_on()

    def _commit_on(self) -> tuple[int, int]:
        """Do the rest of a commit: append what is still gathered, then the decision."""
        try:
            self._append_all()
            if not self._is_at_the_coordinator():
                # An interrupt came before the first append had reached it: there is nothing.
                return self.producer_id, self.producer_epoch
            return self._end(commit=True)
        except Exception as error:
            self._break_commit(error)

    def _break_commit(self, error: Exception) -> Never:
        request = Request.END
        if isinstance(error, StoreFailedError) and not self._is_decision_in_doubt():
            request = Request.PRODUCE  # A partition failed, before there was anything to decide.
        self._break(error, request)

    def _is_decision_in_doubt(self) -> bool:
        """True if the log that would have the decision failed."""
        return self._store_parts.state_log.partition_of(self._transactional_id).failed

    def _complete_entry(self) -> None:
        # What it cannot do now is tried again when the next transaction begins to write.
        entry = self._known_entry()
        self._coordinator.complete(entry)
        self._coordinator.check_not_refused(entry)
