"""`verify` of a store where another process deletes topics, and makes new ones of their names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from harness.crew import Member
from short_form import short_form

import eoslog
from eoslog.cli import verify as cli_verify
from eoslog.inspect import store_verification, transaction_log_verification
from eoslog.staging import pending_jobs
from eoslog.staging.application import ApplicationRecord
from eoslog.store.store import engine_of, parts_of

RECORDS = 50
# No lock is held at any of their lines that keeps others from changing topics.
MODULES = (pending_jobs, store_verification, transaction_log_verification)
FILES = frozenset(module.__file__ for module in MODULES)
# How another process changes topic "t", which has three partitions.
CHANGES = {
    "deleted": "store.delete_topic('t')",
    "made again, smaller": "store.delete_topic('t'); store.create_topic('t', 1)",
    "made again, with a record": (
        "store.delete_topic('t'); store.create_topic('t', 3)\n"
        "with store.producer() as producer: producer.send('t', value=b'new', partition=0)"
    ),
}

Place = tuple[str, int]


def test_a_partition_whose_segments_are_all_deleted_meanwhile_is_no_torn_copy(
    tmp_path, monkeypatch
):
    class Deleting(store_verification.FollowedTransactions):
        def wrote(self, *batch: Any) -> None:
            super().wrote(*batch)
            if self.where.topic == "t" and not deleted:
                log = engine_of(store).partition("t", 0)
                log.roll()
                deleted.append(log.delete_segments(log.active_base_offset))

    deleted: list[int] = []
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("t", config={"segment.bytes": 2048})
        producer = store.producer(transactional_id="x")
        producer.init_transactions()
        for _ in range(20):
            with producer.transaction():
                producer.send("t", b"x" * 300, partition=0)
        monkeypatch.setattr(store_verification, "FollowedTransactions", Deleting)
        assert store.verify() == []
    assert deleted > [1]


@contextmanager
def at_each_line(do: Callable[[Place], None]) -> Iterator[None]:
    """Call `do` with each line of the modules, when it is first reached."""
    seen: set[Place] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in seen:
            seen.add(place)
            do(place)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@pytest.fixture
def store(tmp_path) -> Iterator[eoslog.Store]:
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("other")
        with store.producer(transactional_id="writer") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("other", value=b"x", partition=0)
        with store.consumer(group="group") as consumer:
            consumer.commit({eoslog.TopicPartition("other", 0): 1})
        yield store


@pytest.fixture
def other(store) -> Iterator[Member]:
    with Member() as process:
        process.run("store = eoslog.open(path, durability=None)", path=str(store.path))
        yield process


def fill(store: eoslog.Store) -> None:
    """Make the topic as it was before any change, with records that the checkpoints know."""
    if "t" in store.topics():
        store.delete_topic("t")
    store.create_topic("t", 3)
    with store.producer() as producer:
        for number in range(RECORDS):
            producer.send("t", value=b"old", partition=number % 3)
    store.flush()
    parts_of(store).checkpointer.write_checkpoints()


def lines_of_verify(store: eoslog.Store) -> list[Place]:
    fill(store)
    places: list[Place] = []
    with at_each_line(places.append):
        assert store.verify() == []
    return places


@pytest.mark.parametrize("stride", short_form([17, 1], 17))
@pytest.mark.parametrize("change", CHANGES)
def test_a_topic_that_changes_at_any_line_is_no_problem(store, other, change, stride):
    for wanted in lines_of_verify(store)[::stride]:
        fill(store)

        def interfere(place: Place, wanted: Place = wanted) -> None:
            if place == wanted:
                other.run(CHANGES[change])

        with at_each_line(interfere):
            assert store.verify() == [], wanted
    assert store.verify() == []


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", range(3))
def test_nor_is_one_that_changes_between_two_partitions(store, other, change, step):
    fill(store)

    def interfere(done: int, total: int, where: eoslog.TopicPartition) -> None:
        if where == ("t", step):
            other.run(CHANGES[change])

    assert store.verify(interfere) == []
    assert store.verify() == []


def test_a_job_is_looked_at_again_where_a_topic_of_it_goes_meanwhile(monkeypatch):
    existing = {("t", 0)}

    def find(where: eoslog.TopicPartition) -> Any:
        return SimpleNamespace(topic_id="id") if where in existing else None

    def wrong(*_: Any) -> list[dict[str, object]]:
        if not existing:
            return []
        existing.clear()
        return [{"reason": "t-0 was deleted"}]

    record = SimpleNamespace(
        name="job",
        job={"topics": {"t": {"topic_id": "id", "bounds": {"0": 0}}}},
        says_the_same=lambda other: True,
    )
    monkeypatch.setattr(pending_jobs, "_wrong", wrong)
    monkeypatch.setattr(ApplicationRecord, "read_by_name", lambda *_: record)
    undone: Any = SimpleNamespace(prepared=lambda: [record])
    state_log: Any = None
    found = pending_jobs.verify_pending_jobs(undone, state_log, find, Path("staging"))
    assert found == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_named_topic_that_is_deleted_meanwhile_is_an_error_and_no_problem(
    store, other, change, monkeypatch
):
    fill(store)
    verify = eoslog.storage.unified_log.UnifiedLog.verify

    def interfere(partition: Any, *arguments: Any, **named: Any) -> list[dict[str, object]]:
        other.run(CHANGES[change])
        return verify(partition, *arguments, **named)

    monkeypatch.setattr(eoslog.storage.unified_log.UnifiedLog, "verify", interfere)
    description = store.topics()["t"]
    target = eoslog.TopicPartition("t", 0)
    with pytest.raises(
        eoslog.errors.UnknownTopicOrPartitionError, match="deleted during the check"
    ):
        cli_verify.problems_of(store, description, target)
