"""Paused partitions: what a consumer reads beside them, and how long they stay paused."""

import asyncio
import threading
import time

import pytest

import eoslog.aio
from eoslog import TopicPartition
from eoslog.errors import ConcurrentAccessError, LogClosedError, UnknownTopicOrPartitionError

T = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def topic(store):
    """Three partitions with 4 records each."""
    store.create_topic("t", partitions=3)
    for number in range(3):
        write(store, number, range(4))
    return store


def write(store, number, offsets):
    store.producer().append("t", number, [b"%d:%d" % (number, offset) for offset in offsets])


def reader(store, **named):
    consumer = store.consumer(**named)
    consumer.assign(T)
    return consumer


def read(consumer, **named):
    """The partitions of the records of one poll."""
    return {record.partition for record in consumer.poll(timeout=0, **named)}


def test_a_paused_partition_gives_nothing_until_it_is_resumed(topic):
    consumer = reader(topic)
    consumer.pause([T[2], T[0]])
    assert consumer.paused() == [T[0], T[2]]
    assert read(consumer) == {1}
    assert [consumer.position(where) for where in T] == [0, 4, 0]
    assert consumer.poll_arrow(timeout=0).num_rows == 0
    consumer.resume([T[0], T[1]])
    assert consumer.paused() == [T[2]]
    assert consumer.poll_arrow(timeout=0).column("partition").to_pylist() == [0] * 4
    consumer.resume(consumer.paused())
    assert [record.offset for record in consumer.poll(timeout=0)] == [0, 1, 2, 3]


def test_a_seek_moves_a_paused_partition_and_a_commit_counts_it(topic):
    consumer = reader(topic, group="g")
    consumer.pause(T)
    consumer.seek(T[0], 3)
    assert read(consumer) == set()
    assert (consumer.lag(T[0]), consumer.lag(T[1])) == (1, 4)
    consumer.commit()
    assert consumer.committed(T) == {T[0]: 3, T[1]: 0, T[2]: 0}
    consumer.seek_to_end(T[1])
    consumer.resume(T[:2])
    assert [(one.partition, one.offset) for one in consumer.poll(timeout=0)] == [(0, 3)]


def test_a_loop_gets_the_rest_of_what_was_read_after_the_resumption(topic):
    consumer = reader(topic)
    consumer.pause(T[1:])
    values = []
    for record in consumer:
        values.append(record.value)
        if record.value == b"0:1":
            consumer.pause([T[0]])
            consumer.resume([T[1]])
        elif record.value == b"1:3":
            assert consumer.position(T[0]) == 2
            consumer.resume([T[0]])
        elif record.value == b"0:3":
            break
    assert values == [b"0:0", b"0:1", b"1:0", b"1:1", b"1:2", b"1:3", b"0:2", b"0:3"]


@pytest.mark.parametrize("waits", [T[:1], T])
def test_a_poll_waits_for_what_is_not_paused(topic, waits):
    consumer = topic.consumer()
    consumer.assign(waits)
    consumer.pause([T[0]])
    consumer.poll(timeout=0)
    spent_s, began_s = time.process_time(), time.monotonic()
    assert consumer.poll(timeout=0.3) == []
    assert time.monotonic() - began_s >= 0.3
    assert time.process_time() - spent_s < 0.15  # It slept.
    if len(waits) > 1:
        timer = threading.Timer(0.1, write, (topic, 1, range(4, 5)))
        timer.start()
        assert [record.value for record in consumer.poll(timeout=60)] == [b"1:4"]
        timer.join()


def test_what_stays_assigned_stays_paused_and_nothing_else(topic):
    consumer = reader(topic)
    consumer.pause(T[:2])
    consumer.assign(T[1:])
    assert consumer.paused() == [T[1]]
    consumer.assign(T)
    assert consumer.paused() == [T[1]]
    assert read(consumer) == {0, 2}
    consumer.unsubscribe()
    consumer.assign(T)
    assert consumer.paused() == []


def test_a_rebalance_keeps_what_is_paused_of_what_the_member_keeps(topic):
    first = topic.consumer(group="g")
    first.subscribe(["t"])
    first.poll(timeout=0, max_records=1)
    first.pause(first.assignment())
    second = topic.consumer(group="g")
    second.subscribe(["t"])
    for _ in range(3):
        second.poll(timeout=0)
        assert first.poll(timeout=0) == []
    kept = first.assignment()
    assert 0 < len(kept) < 3
    assert first.paused() == kept
    assert topic.describe_group("g").state == "Stable"
    second.close()
    # What comes back is not paused.
    back = {where.partition for where in T if where not in kept}
    while len(first.assignment()) < 3:
        assert read(first) <= back
    assert first.paused() == kept


def test_a_new_topic_of_the_name_is_read_from_its_beginning_after_the_resumption(topic):
    consumer = topic.consumer(group="g")
    consumer.subscribe(["t"])
    assert len(consumer.poll(timeout=0)) == 12
    consumer.pause(T)
    topic.delete_topic("t")
    topic.create_topic("t", partitions=1)
    topic.producer().append("t", 0, [b"new"])
    assert consumer.poll(timeout=0) == []
    assert consumer.paused() == T[:1]
    consumer.resume(T[:1])
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.poll(timeout=0)
    assert [record.value for record in consumer.poll(timeout=0)] == [b"new"]


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_a_call_that_names_what_is_not_assigned_does_nothing(topic, call):
    consumer = topic.consumer()
    consumer.assign(T[:2])
    consumer.pause([T[0]])
    with pytest.raises(UnknownTopicOrPartitionError, match="not assigned"):
        getattr(consumer, call)([T[1], T[2]] if call == "pause" else [T[0], T[2]])
    with pytest.raises(TypeError, match="expected a TopicPartition"):
        getattr(consumer, call)(T[0])
    assert consumer.paused() == [T[0]]
    consumer.close()
    with pytest.raises(LogClosedError):
        getattr(consumer, call)([T[0]])
    with pytest.raises(LogClosedError):
        consumer.paused()


def test_no_other_thread_pauses_during_a_poll(topic):
    consumer = reader(topic)
    consumer.pause(T)

    def wait():
        with pytest.raises(LogClosedError):
            consumer.poll(timeout=60)

    thread = threading.Thread(target=wait)
    thread.start()
    met = None
    while met is None:
        try:
            consumer.resume([])
        except ConcurrentAccessError as error:
            met = error
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_task_that_waits_goes_on_when_another_one_resumes(topic):
    async def main():
        async with eoslog.aio.wrap(topic) as store:
            consumer = await store.consumer()
            await consumer.assign(T[:1])
            await consumer.pause(T[:1])
            assert consumer.paused() == T[:1]
            reading = asyncio.create_task(consumer.getone())
            spent_s = time.process_time()
            await asyncio.sleep(0.3)
            assert not reading.done()
            assert time.process_time() - spent_s < 0.15  # It sleeps.
            await consumer.resume(T[:1])
            return await asyncio.wait_for(reading, 60)

    assert asyncio.run(main()).value == b"0:0"
