"""`eoslog processes`: those that have the store open, and what each holds."""

from __future__ import annotations

import os
import socket

from cli_calls import DONE, call
from harness.crew import Member

from eoslog.cli.monitor.processes import process_rows
from eoslog.cli.table import duration_text, moment_text


def test_processes_with_their_transactions_and_members(open_store, store_path):
    store = open_store()
    store.create_topic("orders")
    with Member() as other:
        other.run(
            "store = eoslog.open(path)\n"
            "producer = store.producer(transactional_id='till')\n"
            "producer.init_transactions()\n"
            "producer.begin_transaction()\n"
            "producer.send('orders', b'x')\n"
            "producer.flush()\n"
            "consumer = store.consumer('readers')\n"
            "consumer.subscribe(['orders'])\n"
            "consumer.poll(timeout=0.0)",
            path=str(store_path),
        )
        own, theirs = call("processes", "--json", "--store", store_path).json
        assert (own["process_id"], theirs["process_id"]) == (os.getpid(), other.pid)
        assert own["host"] == theirs["host"] == socket.gethostname()
        assert own["opened_ms"] <= theirs["opened_ms"]
        assert own["open_ms"] >= theirs["open_ms"] >= 0
        assert (own["transactional_ids"], own["members"]) == ([], [])
        assert theirs["transactional_ids"] == ["till"]
        (member,) = theirs["members"]
        assert member.startswith("readers: ")
        shown = call("processes", "--store", store_path).stdout.splitlines()
        assert len(shown) == 4
        assert shown[0].split()[:2] == ["process", "host"]
        assert moment_text(theirs["opened_ms"]) in shown[3]
        assert "till" in shown[3]


def test_a_store_that_none_has_open_has_none(open_store, store_path):
    open_store().close()
    answer = call("processes", "--json", "--store", store_path)
    assert (answer.status, answer.json) == (DONE, [])


def test_a_group_that_is_deleted_between_two_looks_is_left_out(store, monkeypatch):
    monkeypatch.setattr(store, "groups", lambda: {"gone": {}})
    assert process_rows(store, []) == []


def test_times_for_people():
    assert moment_text(1_769_860_800_001) == "2026-01-31T12:00:00.001Z"
    assert moment_text(1 << 62) == f"{1 << 62} ms"
    for duration_ms, text in {
        -5: "0.0 s",
        1_250: "1.2 s",
        59_000: "59.0 s",
        3_599_000: "59 min",
        12_000_000: "3 h 20 min",
        187_200_000: "2 d 4 h",
    }.items():
        assert duration_text(duration_ms) == text
