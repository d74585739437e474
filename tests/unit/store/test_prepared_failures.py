"""What keeps a prepared transaction from its decision: it stays prepared, also if its producer is
closed, since an external database may have committed with it.
"""

import pytest
from crash.interrupted_steps import Steps
from crash.rows_topic import opened_with_rows, values

from eoslog.errors import EoslogError, InvalidTxnStateError, OutOfMemoryError, StoreFullError
from eoslog.transactions.coordinator import TransactionCoordinator

FAILURES = [
    MemoryError("none left"),
    TimeoutError("of a handler"),
    StoreFullError("no room"),
    OutOfMemoryError("none left"),
    ZeroDivisionError("of a handler"),
]


@pytest.fixture
def store(tmp_path):
    with opened_with_rows(tmp_path / "store") as store:
        yield store


def prepared(store, value=b"value"):
    producer = store.producer(transactional_id="id")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("rows", value)
    return producer, producer.prepare_transaction()


def fail_once(monkeypatch, failure):
    end = TransactionCoordinator.end
    failures = [failure]

    def failing(*given):
        if failures:
            raise failures.pop()
        return end(*given)

    monkeypatch.setattr(TransactionCoordinator, "end", failing)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("then", ["again", "close", "another"])
def test_a_failure_before_the_decision_leaves_it_prepared(store, monkeypatch, failure, then):
    producer, token = prepared(store)
    fail_once(monkeypatch, failure)
    with pytest.raises((EoslogError, type(failure))):
        producer.complete_transaction(token)
    assert values(store) == []
    if then == "again":
        assert producer.complete_transaction(token)
    elif then == "close":
        producer.close()
        (found,) = store.transactions()
        assert found.transaction_state == "Ongoing"
        store.commit_prepared([token])
    else:
        producer.close()
        with store.producer(transactional_id="id") as other:
            assert other.init_transactions(keep_prepared=True) == token
            assert other.complete_transaction(token)
    assert values(store) == [b"value"]


def test_an_interrupted_completion_is_called_again(store):
    steps, expected = Steps(), []
    for step in steps.each():
        value = b"%d" % step
        producer, token = prepared(store, value)
        if steps.interrupt(step, lambda p=producer, t=token: p.complete_transaction(t)):
            try:
                assert producer.complete_transaction(token)
            except InvalidTxnStateError as error:
                assert "no transaction is prepared" in str(error)
        expected.append(value)
        assert values(store) == expected, steps.last
        producer.close()
    assert step > 20


def test_an_interrupted_completion_and_a_close_leave_it_prepared_or_whole(store):
    steps, expected = Steps(), []
    for step in steps.each():
        value = b"%d" % step
        producer, token = prepared(store, value)
        steps.interrupt(step, lambda p=producer, t=token: p.complete_transaction(t))
        producer.close()
        (found,) = store.transactions()
        if found.transaction_state == "Ongoing":
            store.commit_prepared([token])
        expected.append(value)
        assert values(store) == expected, steps.last
    assert step > 20
