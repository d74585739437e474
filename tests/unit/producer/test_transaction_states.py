"""The client's state machine and its errors against Kafka's tables; the text form of a prepared
transaction.
"""

from __future__ import annotations

import pickle
from itertools import product

import pytest

from eoslog import errors
from eoslog.bindings.accumulator import Accumulator
from eoslog.bindings.client_transaction import ClientTransaction
from eoslog.common.prepared_transaction import PreparedTransaction, parse_token
from eoslog.errors import IllegalStateError
from eoslog.producer.transaction_states import (
    ALLOWED_FROM,
    HINTS,
    SOURCES,
    ClientState,
    Reaction,
    Request,
    as_the_client_sees,
    may_move,
    reaction,
)

# Kafka's table, written down once more: target, then the states it may follow on. Ours is that a
# prepared transaction whose commit failed stays prepared, and that no end which was cut short is
# passed over by a second init_transactions() (Kafka's client makes that move itself).
TABLE = """
UNINITIALIZED: READY ABORTABLE_ERROR
INITIALIZING: UNINITIALIZED
READY: INITIALIZING COMMITTING_TRANSACTION ABORTING_TRANSACTION
IN_TRANSACTION: READY
PREPARED_TRANSACTION: IN_TRANSACTION INITIALIZING COMMITTING_TRANSACTION
COMMITTING_TRANSACTION: IN_TRANSACTION PREPARED_TRANSACTION
ABORTING_TRANSACTION: IN_TRANSACTION PREPARED_TRANSACTION ABORTABLE_ERROR
ABORTABLE_ERROR: IN_TRANSACTION COMMITTING_TRANSACTION ABORTABLE_ERROR INITIALIZING
FATAL_ERROR: UNINITIALIZED INITIALIZING READY IN_TRANSACTION PREPARED_TRANSACTION
  COMMITTING_TRANSACTION ABORTING_TRANSACTION ABORTABLE_ERROR FATAL_ERROR
""".replace("\n  ", " ")
ALLOWED = {
    (source, target)
    for target, sources in (line.split(":") for line in TABLE.strip().splitlines())
    for source in sources.split()
}
PAIRS = list(product(ClientState, ClientState))


class Machine(ClientTransaction):
    """The states and nothing else."""

    def no_move(self, target: int) -> None:
        raise IllegalStateError(f"to {target}")


def machine_in(state: ClientState) -> Machine:
    machine = Machine(Accumulator())
    machine.set_moves(
        SOURCES,
        state,
        ClientState.READY,
        ClientState.IN_TRANSACTION,
        ClientState.COMMITTING_TRANSACTION,
    )
    return machine


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_move_is_allowed_exactly_as_in_the_table(source, target):
    allowed = (source.name, target.name) in ALLOWED
    assert may_move(source, target) is allowed
    assert (source in ALLOWED_FROM[target]) is allowed


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_hot_path_moves_by_the_same_table(source, target):
    machine = machine_in(source)
    if (source.name, target.name) in ALLOWED:
        machine.move(target)
        assert machine.state_number == target
    else:
        with pytest.raises(IllegalStateError):
            machine.move(target)
        assert machine.state_number == source


def test_every_state_says_what_to_do_first():
    assert set(HINTS) == set(ClientState)


F, A, R = Reaction.FATAL, Reaction.ABORTABLE, Reaction.RETRY
INIT, PRODUCE, OFFSETS, END = Request.INIT, Request.PRODUCE, Request.OFFSETS, Request.END


@pytest.mark.parametrize(
    ("kind", "request_", "expected"),
    [
        # Kafka's reactions, row by row, as far as a single store meets them.
        (errors.ConcurrentTransactionsError, INIT, R),
        (errors.CoordinatorNotAvailableError, INIT, R),
        (errors.InvalidProducerEpochError, INIT, F),
        (errors.InvalidProducerEpochError, PRODUCE, A),
        (errors.InvalidProducerEpochError, OFFSETS, F),
        (errors.InvalidProducerEpochError, END, F),
        *[(errors.ProducerFencedError, request, F) for request in Request],
        *[(errors.InvalidProducerIdMappingError, request, F) for request in Request],
        (errors.InvalidTxnStateError, INIT, F),
        (errors.InvalidTxnStateError, PRODUCE, A),
        (errors.InvalidTxnStateError, OFFSETS, F),
        (errors.InvalidTxnStateError, END, F),
        (errors.UnknownProducerIdError, INIT, F),
        (errors.UnknownProducerIdError, PRODUCE, A),
        (errors.UnknownProducerIdError, OFFSETS, F),
        (errors.UnknownProducerIdError, END, A),
        (errors.OutOfOrderSequenceError, PRODUCE, A),
        (errors.UnknownMemberIdError, OFFSETS, A),
        (errors.IllegalGenerationError, OFFSETS, A),
        (errors.CommitFailedError, OFFSETS, A),
        (errors.FencedInstanceIdError, OFFSETS, A),
        (errors.OperationNotAttemptedError, PRODUCE, A),
        (errors.InvalidTransactionTimeoutError, INIT, F),
        *[(errors.TransactionAbortableError, request, A) for request in Request],
        # What Kafka's clients try again by themselves is to be aborted where its retries end.
        (errors.ConcurrentTransactionsError, PRODUCE, A),
        (errors.UnknownTopicOrPartitionError, PRODUCE, A),
        # The store's own.
        (errors.StoreFullError, INIT, R),
        (errors.StoreFullError, PRODUCE, A),
        (errors.StoreFullError, END, A),
        (errors.StoreFailedError, INIT, F),
        (errors.StoreFailedError, PRODUCE, A),
        (errors.StoreFailedError, END, F),
        *[(errors.LogClosedError, request, F) for request in Request],
        *[(errors.ForkedProcessError, request, F) for request in Request],
        (errors.RecordTooLargeError, PRODUCE, A),
        (errors.InvalidTimestampError, PRODUCE, A),
        (errors.OffsetMetadataTooLargeError, OFFSETS, A),
        (errors.InvalidRequestError, INIT, F),
    ],
)
def test_what_an_error_means_follows_kafkas_table(kind, request_, expected):
    assert reaction(kind("why"), request_) is expected


def test_an_unexpected_error_aborts_a_transaction_and_ends_an_initialization():
    assert reaction(MemoryError(), END) is A
    assert reaction(MemoryError(), INIT) is F


def test_the_client_sees_kafkas_names():
    old = errors.InvalidProducerEpochError("epoch 3")
    for request in (INIT, OFFSETS, END):
        assert isinstance(as_the_client_sees(old, request), errors.ProducerFencedError)
    assert as_the_client_sees(old, PRODUCE) is old
    for kind in (errors.UnknownMemberIdError, errors.IllegalGenerationError):
        seen = as_the_client_sees(kind("gone"), OFFSETS)
        assert isinstance(seen, errors.CommitFailedError)
        assert "gone" in str(seen)


# C34: the text form.


def test_a_prepared_transaction_and_its_text():
    prepared = PreparedTransaction("x", 7, 0)
    assert prepared.token == str(prepared) == "7:0"
    assert PreparedTransaction.parse("x", "7:0") == prepared
    assert PreparedTransaction.parse("x", "") is None
    assert parse_token("9223372036854775807:32767") == (2**63 - 1, 2**15 - 1)
    assert pickle.loads(pickle.dumps(prepared)) == prepared
    with pytest.raises(AttributeError):
        prepared.producer_epoch = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "7:x",
        "-1:0",
        "7:0:1",
        ":",
        "7:",
        ":0",
        "7:-1",
        "+7:0",
        " 7:0",
        "7:0\n",
        "07:0",
        "7:00",
        "\u0667:0",
        "9223372036854775808:0",
        "7:32768",
    ],
)
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="token"):
        PreparedTransaction.parse("x", text)


def test_a_token_is_text():
    with pytest.raises(TypeError, match="token must be a str"):
        parse_token(7)  # type: ignore[arg-type]
