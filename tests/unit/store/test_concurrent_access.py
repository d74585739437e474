"""Objects that are for one thread at a time: a second one gets a named error, and did nothing."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading

import pytest

import eoslog
import eoslog.aio
from eoslog import TopicPartition
from eoslog.consumer.fetcher import Fetcher
from eoslog.errors import ConcurrentAccessError, EoslogError

T0 = TopicPartition("t", 0)

CALLS = {
    "poll": lambda consumer: consumer.poll(timeout=0),
    "poll_arrow": lambda consumer: consumer.poll_arrow(timeout=0),
    "iteration": lambda consumer: next(iter(consumer)),
    "seek": lambda consumer: consumer.seek(T0, 3),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "seek_to_committed": lambda consumer: consumer.seek_to_committed(),
    "position": lambda consumer: consumer.position(T0),
    "lag": lambda consumer: consumer.lag(T0),
    "assign": lambda consumer: consumer.assign([T0]),
    "subscribe": lambda consumer: consumer.subscribe(["t"]),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "commit": lambda consumer: consumer.commit(),
}


def test_what_the_error_is():
    error = ConcurrentAccessError("two threads")
    assert isinstance(error, EoslogError)
    assert isinstance(error, RuntimeError)
    assert error.outcome == "not_appended"
    assert not (error.retriable or error.abortable or error.fatal)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is ConcurrentAccessError
        assert str(again) == "two threads"


@pytest.fixture
def read_by_a_thread(store, monkeypatch):
    """A consumer with which another thread is in the middle of a poll; what that poll gave."""
    store.create_topic("t")
    store.producer().append("t", 0, [b"%d" % number for number in range(10)])
    consumer = store.consumer(group="g")
    consumer.assign([T0])
    reads, go_on = threading.Event(), threading.Event()
    fetch = Fetcher.records

    def waits(fetcher, limit):
        if threading.current_thread() is thread:
            reads.set()
            assert go_on.wait(60)
        return fetch(fetcher, limit)

    monkeypatch.setattr(Fetcher, "records", waits)
    given = []
    thread = threading.Thread(target=lambda: given.extend(consumer.poll(timeout=0)))
    thread.start()
    assert reads.wait(60)
    yield consumer, given, lambda: (go_on.set(), thread.join(60))
    go_on.set()
    thread.join(60)


@pytest.mark.parametrize("call", CALLS)
def test_a_consumer_that_another_thread_is_reading_with(read_by_a_thread, call):
    consumer, given, finish = read_by_a_thread
    with pytest.raises(ConcurrentAccessError, match="two threads use one consumer"):
        CALLS[call](consumer)
    finish()
    assert [record.offset for record in given] == list(range(10))
    assert consumer.position(T0) == 10


def test_a_call_within_an_append_of_the_same_thread(store):
    class Column(list):
        def __iter__(self):
            for call in inner:
                with pytest.raises(ConcurrentAccessError, match=r"did nothing|has returned"):
                    call()
            return super().__iter__()

    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"first"])
    inner = [
        lambda: producer.append("t", 0, [b"inner"]),
        lambda: producer.next_sequence("t", 0),
        lambda: producer.next_sequence("t", 0),
    ]
    producer.append("t", 0, Column([b"second"]))
    assert producer.next_sequence("t", 0) == 2


@pytest.mark.parametrize("kind", ["plain", "named", "transactional"])
def test_a_column_that_appends_while_it_is_read(store, kind):
    class Headers(list):
        def __iter__(self):
            producer.append("t", 0, [b"inner"])
            return super().__iter__()

    store.create_topic("t")
    if kind == "transactional":
        producer = store.producer(transactional_id="x")
        producer.init_transactions()
        producer.begin_transaction()
    else:
        producer = store.producer(name="n" if kind == "named" else None)
    producer.append("t", 0, [b"first"])
    with pytest.raises(ConcurrentAccessError, match="this call did nothing"):
        producer.append("t", 0, [b"outer"], headers=Headers([[("h", b"")]]))
    producer.append("t", 0, [b"last"])
    if kind == "transactional":
        producer.commit_transaction()
    consumer = store.consumer()
    consumer.assign([T0])
    assert [record.value for record in consumer.poll()] == [b"first", b"last"]


def test_a_transaction_goes_on_after_a_call_within_its_append(store):
    class Column(list):
        def __iter__(self):
            with pytest.raises(ConcurrentAccessError):
                producer.append("t", 0, [b"inner"])
            with pytest.raises(ConcurrentAccessError):
                producer.commit_transaction()
            return super().__iter__()

    store.create_topic("t")
    producer = store.producer(transactional_id="x")
    producer.init_transactions()
    with producer.transaction():
        producer.append("t", 0, Column([b"outer"]))
    consumer = store.consumer()
    consumer.assign([T0])
    assert [record.value for record in consumer.poll()] == [b"outer"]


def test_an_event_loops_producer_in_another_thread(store):
    store.create_topic("t")

    async def main() -> None:
        async with eoslog.aio.wrap(store) as store_of_loop, store_of_loop.producer() as producer:

            async def elsewhere() -> None:
                for call in (producer.send, producer.send_and_wait):
                    with pytest.raises(ConcurrentAccessError, match="another event loop"):
                        await call("t", b"v")
                with pytest.raises(ConcurrentAccessError, match="another event loop"):
                    await producer.flush()

            await asyncio.to_thread(asyncio.run, elsewhere())
            await producer.send_and_wait("t", b"v")

    asyncio.run(main())
    assert store.partition("t", 0).log_end_offset == 1


def test_the_error_has_a_public_name():
    assert eoslog.errors.ConcurrentAccessError is ConcurrentAccessError
