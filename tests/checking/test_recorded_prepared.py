"""A prepared transaction in a history: its commit may be anybody's, at any time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog import PreparedTransaction, TopicPartition
from eoslog.checking import Recorder, check
from eoslog.checking.recorded_producer import RecordedProducer
from eoslog.errors import IllegalStateError
from eoslog.store.store import Store

Ending = Callable[[Store, RecordedProducer, PreparedTransaction], object]

ENDINGS: dict[str, tuple[Ending, str | None]] = {
    "its own completion": (lambda _, producer, mine: producer.complete_transaction(mine), "commit"),
    "its own commit": (lambda _, producer, __: producer.commit_transaction(), "commit"),
    "completed as another's": (lambda _, producer, __: producer.complete_transaction(""), "abort"),
    "its own abort": (lambda _, producer, __: producer.abort_transaction(), "abort"),
    "another's commit": (lambda store, _, mine: store.commit_prepared([mine]), None),
    "another's abort": (lambda store, _, mine: store.abort_prepared([mine]), None),
    "none": (lambda *_: None, None),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_what_became_of_it_is_no_anomaly(tmp_path: Path, how: str) -> None:
    end, recorded = ENDINGS[how]
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
    ):
        store.create_topic("t")
        with recorder.producer(store.producer(transactional_id="x"), client="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"one", partition=0)
            prepared = producer.prepare_transaction()
            end(store, producer, prepared)
        for isolation in ("read_committed", "read_uncommitted"):
            consumer = recorder.consumer(store.consumer(isolation_level=isolation))
            consumer.assign([TopicPartition("t", 0)])
            consumer.poll(0)
    report = check([history])
    assert report.clean, "\n".join(report.lines())
    certain = {
        line["kind"]
        for line in map(json.loads, history.read_text().splitlines())
        if line["kind"] in ("commit", "abort") and line["outcome"] == "ok"
    }
    assert certain == ({recorded} if recorded else set())


def test_one_that_was_refused_is_aborted_by_the_close(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
        recorder.producer(store.producer(transactional_id="x"), client="x") as producer,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(IllegalStateError, match="empty"):
            producer.prepare_transaction()
    ended = [json.loads(line) for line in history.read_text().splitlines()][-1]
    assert (ended["kind"], ended["outcome"]) == ("abort", "ok")
    assert check([history]).clean


def test_a_block_leaves_it_prepared(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
        recorder.producer(store.producer(transactional_id="x"), client="x") as producer,
        recorder.consumer(store.consumer(isolation_level="read_committed")) as consumer,
    ):
        store.create_topic("t")
        producer.init_transactions()
        consumer.assign([TopicPartition("t", 0)])
        for decision in ("", None):
            with producer.transaction():
                producer.send("t", b"left %r" % decision, partition=0)
                producer.prepare_transaction()
            assert consumer.poll(0) == []
            assert producer.complete_transaction(decision) is False
        with pytest.raises(KeyError), producer.transaction():
            producer.send("t", b"whole", partition=0)
            prepared = producer.prepare_transaction()
            raise KeyError
        assert consumer.poll(0) == []
        assert producer.complete_transaction(prepared) is True
        assert [record.value for record in consumer.poll(0)] == [b"whole"]
    report = check([history])
    assert report.clean, "\n".join(report.lines())


def test_a_completion_is_a_commit_with_its_own_times(tmp_path: Path) -> None:
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
        recorder.producer(store.producer(transactional_id="x"), client="x") as producer,
    ):
        store.create_topic("t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"one", partition=0)
        prepared = producer.prepare_transaction()
        producer.complete_transaction(prepared)
    written = [json.loads(line) for line in history.read_text().splitlines()]
    commits = [line for line in written if line["kind"] == "commit"]
    assert [line["outcome"] for line in commits] == ["unknown", "ok"]
    first, second = commits
    assert first["op"] != second["op"]
    assert first["begin_ns"] < second["begin_ns"] < second["end_ns"]
    of = ("transaction", "transactional_id", "producer_id", "producer_epoch")
    assert [first[name] for name in of] == [second[name] for name in of]


def test_a_completion_after_the_init_of_a_successor_is_a_zombie_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = tmp_path / "h.jsonl"
    with (
        eoslog.open(tmp_path / "store", create=True, durability="process") as store,
        Recorder(history) as recorder,
        recorder.producer(store.producer(transactional_id="x"), client="x") as producer,
        recorder.producer(store.producer(transactional_id="x"), client="next") as successor,
    ):
        store.create_topic("t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"one", partition=0)
        prepared = producer.prepare_transaction()
        successor.init_transactions()
        # A log that fences nobody.
        monkeypatch.setattr(producer.producer, "complete_transaction", lambda _: True)
        producer.complete_transaction(prepared)
    report = check([history])
    assert [one.kind for one in report.anomalies] == ["zombie write"]
