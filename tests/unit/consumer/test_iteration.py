"""An iteration that is left by an interrupt or an error: where the next one goes on."""

import asyncio
import itertools
import threading

import pytest
from async_stores import run_with_store

from eoslog import TopicPartition
from eoslog.consumer.consumer import ConsumerInternals
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.store.store import parts_of

T0 = TopicPartition("t", 0)


def write(store, *values, topic="t"):
    with store.producer() as producer:
        for value in values:
            producer.send(topic, value)


def numbers(upper_bound):
    return [b"%d" % number for number in range(upper_bound)]


def instead_of_a_wait(monkeypatch, consumer, do):
    """The next time that the consumer has nothing to read, `do` comes in place of its waiting."""

    def wait(records_max, timeout_s):
        monkeypatch.undo()
        do()
        return [], ConsumerInternals(consumer).positions.current

    monkeypatch.setattr(consumer, "_awaited_records", wait)


def interrupt():
    raise KeyboardInterrupt


def values(consumer, count):
    return [record.value for record in itertools.islice(consumer, count)]


def test_a_topic_made_again_is_read_from_its_beginning(store, monkeypatch):
    store.create_topic("t")
    write(store, *numbers(5))
    consumer = store.consumer(group="g")
    consumer.subscribe(["t"])
    assert values(consumer, 5) == numbers(5)

    def make_again():
        store.delete_topic("t")
        store.create_topic("t")

    instead_of_a_wait(monkeypatch, consumer, make_again)
    with pytest.raises(UnknownTopicOrPartitionError):
        next(iter(consumer))
    write(store, *numbers(10))
    assert values(consumer, 10) == numbers(10)


def test_what_another_member_committed_meanwhile_is_not_read_again(store, monkeypatch):
    store.create_topic("t", partitions=1)
    write(store, b"before")
    consumer = store.consumer(group="g")
    consumer.subscribe(["t"], on_revoked=lambda consumer, _: consumer.commit())
    assert values(consumer, 1) == [b"before"]

    def lend_it():
        """As a rebalance within the poll: it goes, is read by another one, and comes back."""
        consumer._call_lock.call_released(consumer.commit)
        ConsumerInternals(consumer).positions.drop([T0])
        write(store, b"lent")
        parts_of(store).files.group_offsets.commit(consumer.group_metadata(), {T0: 2})
        consumer._begin_to_read([T0])
        interrupt()

    instead_of_a_wait(monkeypatch, consumer, lend_it)
    with pytest.raises(KeyboardInterrupt):
        next(iter(consumer))
    write(store, b"after")
    assert values(consumer, 1) == [b"after"]


def test_a_seek_of_its_listener_stands(store, monkeypatch):
    store.create_topic("t")
    write(store, *numbers(3))
    consumer = store.consumer(group="g")
    consumer.subscribe(["t"], on_assigned=lambda consumer, _: consumer.seek(T0, 3))
    instead_of_a_wait(monkeypatch, consumer, interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(iter(consumer))
    write(store, b"new")
    assert values(consumer, 1) == [b"new"]


def test_the_latest_is_what_it_was_at_the_beginning(store, monkeypatch):
    store.create_topic("t")
    write(store, b"old")
    consumer = store.consumer(auto_offset_reset="latest")
    consumer.assign([T0])
    instead_of_a_wait(monkeypatch, consumer, interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(iter(consumer))
    write(store, b"new")
    assert values(consumer, 1) == [b"new"]


def test_records_of_a_deleted_topic_move_no_position_of_the_new_one(store):
    store.create_topic("a")
    store.create_topic("t")
    write(store, b"first", topic="a")
    write(store, *[b"old"] * 10)
    consumer = store.consumer(group="g")
    consumer.subscribe(["a", "t"])
    iteration = iter(consumer)
    assert next(iteration).value == b"first"
    store.delete_topic("t")
    store.create_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        while True:
            consumer.poll(0)
    consumer.poll(0)
    assert consumer.position(T0) == 0
    write(store, *numbers(20))
    assert [next(iteration).value for _ in range(20)] == numbers(20)


def test_a_cancelled_poll_leaves_the_new_topic_at_its_beginning(tmp_path):
    async def body(store):
        async def fill(count):
            async with store.producer() as producer:
                for value in numbers(count):
                    await producer.send("t", value, partition=0)

        begun, goes_on = threading.Event(), threading.Event()

        def revoked(consumer, partitions):
            begun.set()
            goes_on.wait(60)

        await fill(5)
        consumer = await store.consumer(group="g")
        await consumer.subscribe(["t"], on_revoked=revoked)
        for value in numbers(5):
            assert (await consumer.getone()).value == value
        await store.delete_topic("t")
        polling = asyncio.create_task(consumer.poll(60))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        await store.create_topic("t")
        await fill(10)
        polling.cancel()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await polling
        found = []
        while len(found) < 10:
            try:
                found += [record.value for record in await consumer.poll(60)]
            except UnknownTopicOrPartitionError:
                continue  # The deletion is told once.
        assert found == numbers(10)

    run_with_store(tmp_path, body)
