"""States of a producer's transactions: the one table of their moves, and what each error means.

Invariants: a state is left only as the table allows; a call that does not fit changes nothing; out
of FATAL_ERROR there is no way; a record is taken only while a transaction is open; after an error
in a transaction only its abort goes on, so that a part is never committed; a producer that was
fenced writes nothing more.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType

from eoslog.bindings.transaction_entry import PartitionLost, ProducerIdNeeded
from eoslog.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    EoslogError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    StoreFailedError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
)

# After these a call of the hot path is made again, in the way that can put them right.
CURABLE = (
    PartitionLost,
    ProducerIdNeeded,
    ConcurrentTransactionsError,
    InvalidTxnStateError,
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
        # Ours: an end that was cut short goes on; what was gathered would be of the next one.
        _S.INITIALIZING: frozenset({_S.UNINITIALIZED}),
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
