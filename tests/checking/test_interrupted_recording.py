"""A commit that was interrupted (Ctrl-C), and what is recorded of the calls that follow it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from crash.interrupted_lines import interrupted_at

import eoslog
from eoslog import TopicPartition
from eoslog.checking import Recorder, check
from eoslog.errors import EoslogError

FILES = (
    "/checking/recorded_producer.py",
    "/checking/recorder.py",
    "/eoslog/producer/transactional_producer.py",
    "/eoslog/producer/producer.py",
    "/eoslog/producer/transaction_manager.py",
    "/eoslog/producer/transaction_states.py",
    "/eoslog/transactions/coordinator.py",
)
COMMIT, ABORT, CLOSE = "commit_transaction", "abort_transaction", "close"


def is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(FILES)


def is_before_the_decision(frame: FrameType) -> bool:
    return frame.f_code.co_name == "open_buffer"


def is_cut(producer: Any, line: int, again: bool, calls: tuple[str, ...]) -> bool:
    """Commit a transaction, interrupted at a line, then make the calls; whether it was.

    `again`: it was interrupted before, and goes on.
    """
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"%d" % line, partition=0)
    if again:
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted_at(1, is_before_the_decision),
        ):
            producer.commit_transaction()
    was_cut = False
    with interrupted_at(line, is_ours):
        try:
            producer.commit_transaction()
        except KeyboardInterrupt:
            was_cut = True
    for call in calls:
        with suppress(EoslogError):
            getattr(producer, call)()
    return was_cut


def read_all(consumer: Any) -> set[str]:
    """The values that were committed."""
    consumer.assign([TopicPartition("t", 0)])
    consumer.seek_to_beginning()
    found = set()
    while records := consumer.poll(0.1):
        found |= {record.value.decode() for record in records}
    return found


def outcomes(history: Path, kind: str) -> dict[str, str]:
    """Of each producer the outcome of its last operation of a kind."""
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    return {line["client"]: line["outcome"] for line in lines if line["kind"] == kind}


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "calls", [(CLOSE,), (ABORT, CLOSE), (COMMIT, CLOSE), (COMMIT, ABORT, CLOSE)]
)
def test_what_follows_an_interrupted_commit_is_no_false_alarm(
    again: bool, calls: tuple[str, ...], tmp_path: Path
) -> None:
    history, line, was_cut = tmp_path / "h.jsonl", 0, True
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
    ):
        store.create_topic("t")
        while was_cut:
            line += 1
            producer: Any = store.producer(transactional_id="x")
            was_cut = is_cut(recorder.producer(producer, client=f"{line}"), line, again, calls)
        committed = read_all(recorder.consumer(store.consumer(isolation_level="read_committed")))
    report = check([history])
    assert report.clean, "\n".join(report.lines())
    aborts = outcomes(history, "abort")
    assert not {value for value in committed if aborts.get(value) == "ok"}
    if COMMIT not in calls:
        assert committed & aborts.keys(), "one was interrupted behind the decision"
        assert aborts.keys() - committed, "and one before it"


def test_the_close_aborts_what_no_commit_can_have_decided(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
    ):
        store.create_topic("t")
        for client in ("never committed", "refused"):
            made = store.producer(transactional_id=client)
            with recorder.producer(made, client=client) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.send("t", b"one", partition=0)
                if client == "refused":
                    with pytest.raises(EoslogError):
                        producer.send("nowhere", b"one")
                    with pytest.raises(EoslogError):
                        producer.commit_transaction()
    assert outcomes(history, "commit") == {"refused": "fail"}
    assert outcomes(history, "abort") == {"never committed": "ok", "refused": "ok"}


def test_an_end_without_a_transaction_is_no_operation(tmp_path: Path) -> None:
    """After an interrupt nobody knows whether there is one to end."""
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
        recorder.producer(store.producer(transactional_id="x")) as producer,
    ):
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(EoslogError):
                end()
    assert check([history]).counts["operations"] == 1
