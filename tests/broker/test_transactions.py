"""Transactions of a store in a broker: its tools describe all, and it ends what is open."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_broker import Broker, wait_until
from staged_jobs import load
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.broker

T0 = TopicPartition("t", 0)


def started(store: Any, transactional_id: str, **options: Any) -> Any:
    producer = store.producer(transactional_id=transactional_id, **options)
    producer.init_transactions()
    return producer


def states(broker: Broker) -> dict[str, str]:
    """What `kafka-transactions list` shows: the state of each transactional id."""
    rows = [line.split() for line in broker.transactions("list").splitlines()]
    return {row[0]: row[3] for row in rows if len(row) == 4 and row[0] != "TransactionalId"}


def test_every_transaction_is_described_and_what_is_open_is_aborted(make_broker, tmp_path):
    path, copy = tmp_path / "store", tmp_path / "copy"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=2)
        started(store, "idle")
        for transactional_id, end in (("committed", "commit"), ("aborted", "abort")):
            producer = started(store, transactional_id)
            for _ in range(3):
                producer.begin_transaction()
                producer.send("t", transactional_id.encode(), partition=0)
                producer.flush()
                getattr(producer, f"{end}_transaction")()
        # Records of the store's own in the internal topic: a name, an application, an id block.
        with store.producer(name="named") as named:
            named.append("t", partition=1, values=[b"named"])
        load(store, "staged", {("t", 1): [b"staged"]}, {"staged-group": {T0: 1}})
        prepared = started(store, "prepared", transaction_timeout_ms=1000)
        prepared.begin_transaction()
        prepared.send("t", b"prepared", partition=0)
        prepared.send_offsets_to_transaction({T0: 3}, "prepared-group")
        prepared.prepare_transaction()
        undecided = started(store, "open", transaction_timeout_ms=1000)
        undecided.begin_transaction()
        undecided.send("t", b"open", partition=0)
        undecided.flush()
        copy_store(path, copy)
    broker = make_broker(
        config={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
    )
    broker.load(copy)
    # The broker does not know that one is prepared: it aborts both once their timeouts are over.
    expected = {
        "idle": "Empty",
        "committed": "CompleteCommit",
        "aborted": "CompleteAbort",
        "prepared": "CompleteAbort",
        "open": "CompleteAbort",
        "first-id": "CompleteCommit",
    }
    wait_until("the broker ends the transactions", lambda: states(broker) == expected)
    for transactional_id in ("idle", "prepared"):
        shown = broker.transactions("describe", "--transactional-id", transactional_id)
        assert expected[transactional_id] in shown
    hanging = broker.transactions("find-hanging", "--broker-id", "1")
    assert len(hanging.splitlines()) == 1, hanging
    assert [one.value for one in broker.records("t", 0)] == [b"committed"] * 3
    assert [one.value for one in broker.records("t", 1)] == [b"named", b"staged"]
    assert broker.committed("prepared-group", "t") is None
    assert broker.committed("staged-group", "t") == 1
    for transactional_id in ("committed", "prepared", "staged"):
        with broker.producer(transactional_id) as client:
            client.begin_transaction()
            client.send("t", transactional_id.encode(), partition=1).get(60)
            client.commit_transaction()
    assert [one.value for one in broker.records("t", 1)][2:] == [
        b"committed",
        b"prepared",
        b"staged",
    ]
