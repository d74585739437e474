"""Interrupts (Ctrl-C) of the opening and of the closing of a named producer: one has the name."""

from contextlib import suppress

import pytest
from crash.interrupted_steps import Steps

import eoslog
from eoslog.errors import EoslogError, LogClosedError, ProducerFencedError, StoreFullError
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import parts_of

# An interrupt may come into a finalizer, which the interpreter goes on without.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = {"linger.ms": 60_000}


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("orders", partitions=1)
        yield store


def test_an_interrupted_opening_leaves_no_older_one_with_the_name(store):
    steps = Steps()
    partition = store.partition("orders", 0)
    for step in steps.each():
        older = store.producer(name="importer", config=CONFIG)
        older.append("orders", 0, [b"appended"])
        older.send("orders", b"gathered", partition=0)
        steps.interrupt(step, lambda: store.producer(name="importer", config=CONFIG))
        newer = store.producer(name="importer", config=CONFIG)
        count = newer.next_sequence("orders", 0)
        assert count == partition.log_end_offset
        with pytest.raises(ProducerFencedError):
            older.flush()
        with suppress(ProducerFencedError):
            older.close()
        assert partition.log_end_offset == count, steps.last
        newer.append("orders", 0, [b"appended"])
        assert newer.next_sequence("orders", 0) == count + 1
        # What is deleted next is counted, whoever of them had the name.
        parts_of(store).files.names.renew(eoslog.TopicPartition("orders", 0))
        newer.close()
    assert step > 50


def test_an_interrupted_close_is_ended_by_the_next(store):
    steps = Steps()
    partition = store.partition("orders", 0)
    for step in steps.each():
        producer = store.producer(name="importer", config=CONFIG)
        sent = producer.next_sequence("orders", 0)
        assert sent == partition.log_end_offset, steps.last
        producer.send("orders", b"gathered", partition=0)
        steps.interrupt(step, producer.close)
        producer.close()
        end = partition.log_end_offset
        assert end == sent + 1, steps.last
        with pytest.raises(eoslog.errors.LogClosedError):
            producer.send("orders", b"late", partition=0)
        producer._append_waiting(0)
        assert partition.log_end_offset == end
        assert "importer" not in parts_of(store).files.names.live
    assert step > 20


def test_an_interrupted_close_that_lost_records_says_so_when_it_is_repeated(store, monkeypatch):
    def full(*_):
        raise StoreFullError("no room")

    monkeypatch.setattr(UnifiedLog, "append_accumulated", full)
    steps = Steps()
    for step in steps.each():
        producer = store.producer(name="importer", config=CONFIG)
        producer.send("orders", b"gathered", partition=0)
        with pytest.raises((KeyboardInterrupt, StoreFullError)) as first, steps.armed(step):
            producer.close()
        raised = [first.value, first.value.__context__]  # The error, if that was met before.
        try:
            producer.close()
        except (StoreFullError, LogClosedError) as error:
            raised.append(error)
        assert any(isinstance(one, EoslogError) for one in raised), steps.last
        producer.close()
        assert "importer" not in parts_of(store).files.names.live, steps.last
    assert step > 20


def test_a_name_whose_producer_was_fenced_is_renewed_all_the_same(store):
    """As where the next opening was interrupted: what retention deletes is counted before."""
    older = store.producer(name="importer")
    older.append("orders", 0, [b"one", b"two"])
    names = parts_of(store).files.names
    names.live["importer"].fence("the next opening was interrupted after this")
    names.renew(eoslog.TopicPartition("orders", 0))
    (identity,) = names.all()
    assert identity.checkpoints["orders", 0].position == 2
