"""An asynchronous consumer: waiting, handing out, and what a cancelled read leaves."""

import asyncio
import sys
import time

import pytest
from async_stores import Gate, fail_once, gated, run_with_store, steps

from eoslog import Consumer, TopicPartition
from eoslog.aio.calls import THREADS_MAX
from eoslog.consumer.positions import ConsumerPositions
from eoslog.errors import (
    IllegalStateError,
    LogClosedError,
    NoOffsetForPartitionError,
    UnknownTopicOrPartitionError,
)

T0 = TopicPartition("t", 0)


async def reader(store, *partitions, **named):
    consumer = await store.consumer(**named)
    await consumer.assign(partitions or [T0])
    return consumer


async def write(store, *values, partition=0):
    async with store.producer() as producer:
        for value in values:
            await producer.send("t", value, partition=partition)


def test_records_are_read_one_by_one_and_by_poll(tmp_path):
    async def body(store):
        await write(store, *(b"%d" % number for number in range(10)))
        consumer = await reader(store)
        assert (await consumer.getone()).value == b"0"
        assert await consumer.position(T0) == 1
        assert [one.value for one in await consumer.poll(max_records=2)] == [b"1", b"2"]
        found = await consumer.getmany(timeout_ms=100, max_records=3)
        assert [one.value for one in found[T0]] == [b"3", b"4", b"5"]
        assert (await consumer.poll_arrow()).num_rows == 4
        assert await consumer.lag(T0) == 0
        assert await consumer.getmany() == {}
        assert (await consumer.poll_arrow(timeout=0)).num_rows == 0
        with pytest.raises(ValueError, match="must be 0 or more"):
            await consumer.poll(timeout=-1)
        with pytest.raises(ValueError, match="must be 1 or more"):
            await consumer.poll(max_records=0)

    run_with_store(tmp_path / "s", body)


READS = {
    "poll": lambda consumer: consumer.poll(),
    "poll_arrow": lambda consumer: consumer.poll_arrow(),
    "getone": lambda consumer: consumer.getone(),
    "getmany": lambda consumer: consumer.getmany(),
    "getmany that waits": lambda consumer: consumer.getmany(timeout_ms=10**9),
    "iteration": lambda consumer: anext(aiter(consumer)),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", ["new", "unsubscribed", "assigned nothing"])
def test_without_an_assignment_or_a_subscription_a_read_is_refused_at_once(tmp_path, read, way):
    async def body(store):
        consumer = await store.consumer(group="g") if way == "new" else await reader(store)
        if way == "unsubscribed":
            await consumer.unsubscribe()
        elif way == "assigned nothing":
            await consumer.assign([])
        with pytest.raises(IllegalStateError, match="call assign"):
            await READS[read](consumer)
        await write(store, b"0")
        await consumer.assign([T0])
        assert (await consumer.getone()).value == b"0"

    run_with_store(tmp_path / "s", body)


@pytest.mark.parametrize("way", ["unsubscribe", "assign nothing"])
@pytest.mark.parametrize("read", ["getone", "getmany that waits", "iteration"])
def test_a_read_that_waits_ends_when_its_consumer_is_left_without_partitions(tmp_path, read, way):
    async def body(store):
        consumer = await reader(store)
        reading = asyncio.create_task(READS[read](consumer))
        await asyncio.sleep(0.05)
        assert not reading.done()
        await (consumer.unsubscribe() if way == "unsubscribe" else consumer.assign([]))
        with pytest.raises(IllegalStateError, match="call assign"):
            await asyncio.wait_for(reading, 60)

    run_with_store(tmp_path / "s", body)


def test_a_loop_waits_for_records_and_commits_what_it_has_at_hand(tmp_path):
    async def body(store):
        consumer = await reader(store, group="g")
        values = []

        async def read():
            async for record in consumer:
                values.append(record.value)
                if len(values) == 3:
                    await consumer.commit()
                    break

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        assert not reading.done()
        await write(store, b"0", b"1", b"2", b"3", b"4")
        await reading
        assert values == [b"0", b"1", b"2"]
        assert await consumer.committed(T0) == 3
        assert await consumer.committed([T0]) == {T0: 3}
        assert (await consumer.committed_metadata(T0)).offset == 3
        assert consumer.group_metadata().group_id == "g"
        # A loop that was left goes on there.
        assert (await consumer.getone()).value == b"3"

    run_with_store(tmp_path / "s", body)


def test_the_positions_of_a_consumer(tmp_path):
    async def body(store):
        await write(store, *(b"%d" % number for number in range(10)))
        consumer = await reader(store, group="g")
        await consumer.seek(T0, 8)
        assert (await consumer.getone()).value == b"8"
        await consumer.seek_to_beginning()
        assert (await consumer.getone()).value == b"0"
        await consumer.seek_to_end(T0)
        assert await consumer.poll(timeout=0) == []
        await consumer.commit({T0: 4})
        await consumer.seek_to_committed()
        assert (await consumer.getone()).value == b"4"
        assert consumer.assignment() == [T0]
        assert await consumer.beginning_offsets([T0]) == {T0: 0}
        assert await consumer.end_offsets([T0]) == {T0: 10}
        assert (await consumer.offsets_for_times({T0: 0}))[T0].offset == 0

    run_with_store(tmp_path / "s", body)


def test_many_waiting_tasks_are_woken_by_their_own_records(tmp_path):
    async def body(store):
        consumers = [await reader(store, TopicPartition("t", number)) for number in range(8)]
        reading = [asyncio.create_task(consumer.getone()) for consumer in consumers]
        await asyncio.sleep(0.05)
        for number in (3, 5):
            await write(store, b"%d" % number, partition=number)
        await asyncio.wait([reading[3], reading[5]])
        assert {one.result().partition for one in reading if one.done()} == {3, 5}
        took_s = []
        for number in (0, 1, 2, 4, 6):
            begin_s = time.monotonic()
            await write(store, b"x", partition=number)
            assert (await reading[number]).value == b"x"
            took_s.append(time.monotonic() - begin_s)
        # They did not have to look again after a second.
        assert sorted(took_s)[len(took_s) // 2] < 0.5
        assert not reading[7].done()
        reading[7].cancel()
        await asyncio.wait(reading)

    run_with_store(tmp_path / "s", body, partitions=8)


def test_another_process_wakes_a_waiting_task(tmp_path):
    """And this process wakes that one's."""
    path = str(tmp_path / "s")
    code = (
        "import asyncio, sys, eoslog.aio\n"
        "from eoslog import TopicPartition\n"
        "async def main():\n"
        "    async with eoslog.aio.open(sys.argv[1], durability='process') as store:\n"
        "        consumer = await store.consumer()\n"
        "        await consumer.assign([TopicPartition('t', 0)])\n"
        "        producer = await store.producer()\n"
        "        async for record in consumer:\n"
        "            await producer.send('t', b'answer to ' + record.value, partition=1)\n"
        "            if record.value == b'19': break\n"
        "        await producer.close()\n"
        "asyncio.run(main())\n"
    )

    async def body(store):
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, path)
        consumer = await reader(store, TopicPartition("t", 1))
        took_s = []
        async with store.producer() as producer:
            for number in range(20):
                begin_s = time.monotonic()
                await producer.send("t", b"%d" % number, partition=0)
                assert (await consumer.getone()).value == b"answer to %d" % number
                took_s.append(time.monotonic() - begin_s)
        assert await child.wait() == 0
        # Nobody had to look again after a second.
        assert sorted(took_s)[len(took_s) // 2] < 0.5

    run_with_store(tmp_path / "s", body, partitions=2)


def test_a_wait_ends_with_its_time(tmp_path):
    async def body(store):
        consumer = await reader(store)
        begin_s = time.monotonic()
        assert await consumer.poll(timeout=0.05) == []
        assert 0.04 < time.monotonic() - begin_s < 20
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.getone()
        await write(store, b"v")
        assert (await consumer.getone()).value == b"v"

    run_with_store(tmp_path / "s", body)


def test_a_cancelled_read_loses_no_record(tmp_path):
    async def body(store):
        await write(store, *(b"%d" % number for number in range(10)))
        consumer = await reader(store, group="g")
        assert (await consumer.poll(max_records=1))[0].value == b"0"
        for call in (consumer.poll, consumer.getone, consumer.poll_arrow):
            name = "poll_arrow" if call == consumer.poll_arrow else "poll"
            gate = gated(Consumer, name)
            reading = asyncio.create_task(call())
            await gate.until_begun()
            reading.cancel()
            gate.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert await consumer.position(T0) == 1
        await consumer.commit()
        assert await consumer.committed(T0) == 1
        assert [one.value for one in await consumer.poll()] == [b"%d" % one for one in range(1, 10)]

    run_with_store(tmp_path / "s", body)


def test_tasks_share_a_consumer_and_each_record_goes_to_one(tmp_path):
    async def body(store):
        consumer = await reader(store)
        values = []

        async def read():
            async for record in consumer:
                values.append(int(record.value))
                await asyncio.sleep(0)

        reading = [asyncio.create_task(read()) for _ in range(5)]
        async with store.producer() as producer:
            for number in range(2000):
                await producer.send("t", b"%d" % number)
                if number % 100 == 0:
                    await asyncio.sleep(0.001)
        while len(values) < 2000:
            await asyncio.sleep(0.001)
        assert sorted(values) == list(range(2000))
        await consumer.close()
        await asyncio.gather(*reading)

    run_with_store(tmp_path / "s", body)


def test_another_task_commits_and_seeks_while_one_waits(tmp_path):
    async def body(store):
        await write(store, b"0", b"1")
        consumer = await reader(store, group="g")
        assert len(await consumer.poll()) == 2
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0.02)
        await consumer.commit()
        assert await consumer.committed(T0) == 2
        await consumer.seek(T0, 1)
        assert (await asyncio.wait_for(waiting, 30)).value == b"1"

    run_with_store(tmp_path / "s", body)


def test_a_cancelled_commit_was_not_begun_or_has_its_effect(tmp_path):
    async def body(store):
        await write(store, b"0", b"1")
        consumer = await reader(store, group="g")
        await consumer.poll(max_records=1)
        gate = gated(Consumer, "commit")
        under_way = asyncio.create_task(consumer.commit())
        await gate.until_begun()
        waiting = asyncio.create_task(consumer.commit({T0: 2}))
        await asyncio.sleep(0.01)
        waiting.cancel()
        under_way.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await waiting
        assert caught.value.__notes__ == ["the call was not begun: nothing was done"]
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await under_way
        assert not hasattr(caught.value, "__notes__")
        assert await consumer.committed(T0) == 1

    run_with_store(tmp_path / "s", body)


def test_a_loop_does_not_keep_others_from_their_steps(tmp_path):
    """At most one poll's records come without another task having had a step."""

    async def body(store):
        await write(store, *[b"v"] * 5000)
        consumer = await reader(store)
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        count = 0
        async for _ in consumer:
            count += 1
            if count == 5000:
                break
        assert ticks >= 9
        ticking.cancel()

    run_with_store(tmp_path / "s", body)


def test_a_deleted_topic_ends_a_wait(tmp_path):
    async def body(store):
        consumer = await reader(store)
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0.05)
        await store.delete_topic("t")
        with pytest.raises(UnknownTopicOrPartitionError):
            await asyncio.wait_for(waiting, 30)

    run_with_store(tmp_path / "s", body)


def test_closing_a_consumer_ends_its_waits(tmp_path):
    async def body(store):
        consumer = await reader(store)
        waiting = asyncio.create_task(consumer.getone())

        async def read():
            return [record async for record in consumer]

        looping = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        await consumer.close()
        await consumer.close()
        assert consumer.closed
        with pytest.raises(LogClosedError):
            await asyncio.wait_for(waiting, 30)
        assert await asyncio.wait_for(looping, 30) == []
        with pytest.raises(LogClosedError):
            async with consumer:
                pass

    run_with_store(tmp_path / "s", body)


def test_errors_of_reading_come_through_and_do_not_spin(tmp_path):
    async def body(store):
        consumer = await reader(store, auto_offset_reset="none")
        with pytest.raises(NoOffsetForPartitionError):
            await consumer.getone()
        consumer = await reader(store)
        assert await consumer.poll(timeout=0) == []
        fail_once(ConsumerPositions, "end_of", ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(timeout=10)

    run_with_store(tmp_path / "s", body)


def test_an_aborted_transaction_is_not_read_and_a_committed_one_wakes(tmp_path):
    async def body(store):
        consumer = await reader(store)
        waiting = asyncio.create_task(consumer.getone())
        async with store.producer(transactional_id="x") as producer:
            await producer.init_transactions()
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait("t", b"aborted")
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send("t", b"committed")
                await asyncio.sleep(0.02)
                assert not waiting.done()
        assert (await asyncio.wait_for(waiting, 30)).value == b"committed"

    run_with_store(tmp_path / "s", body)


def test_members_of_a_group_share_topics_and_hand_over(tmp_path):
    async def body(store):
        taken = []

        async def member(**named):
            consumer = await store.consumer(group="g")
            await consumer.subscribe(["t"], **named)
            return consumer

        first = await member(on_assigned=lambda _, partitions: taken.append(len(partitions)))
        reading = asyncio.create_task(first.getone())
        while not taken:
            await asyncio.sleep(0.01)
        assert taken == [4] and await first.subscription() == ["t"]
        second = await member()
        also = asyncio.create_task(second.getone())
        while len(first.assignment()) != 2 or len(second.assignment()) != 2:
            await asyncio.sleep(0.01)
        for number in range(4):
            await write(store, b"%d" % number, partition=number)
        found = {(await reading).partition, (await also).partition}
        assert len(found) == 2
        assert first.group_metadata().member_id != second.group_metadata().member_id
        await second.close()
        values = {(await first.getone()).partition for _ in range(3)}
        assert values
        await first.unsubscribe()
        assert first.assignment() == []

    run_with_store(tmp_path / "s", body, partitions=4)


def test_a_group_whose_offset_is_undecided_is_waited_for(tmp_path):
    async def body(store):
        await write(store, b"0", b"1")
        async with store.producer(transactional_id="x") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({T0: 1}, "g")
            consumer = await reader(store, group="g")
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await producer.commit_transaction()
            assert (await asyncio.wait_for(waiting, 30)).value == b"1"

    run_with_store(tmp_path / "s", body)


def test_a_wrong_timeout_is_named(tmp_path):
    async def body(store):
        async with store.consumer() as consumer:
            for call in ("poll", "poll_arrow"):
                with pytest.raises(TypeError, match="timeout must be a number of seconds"):
                    await getattr(consumer, call)(timeout=None)
            with pytest.raises(TypeError, match="timeout_ms must be a number"):
                await consumer.getmany(timeout_ms=None)

    run_with_store(tmp_path / "s", body)


def test_a_cancelled_close_closes_all_the_same(tmp_path):
    async def body(store):
        consumer = await store.consumer()
        gates = [Gate(lambda _: None) for _ in range(THREADS_MAX)]
        calls = [asyncio.create_task(store.run(gate)) for gate in gates]
        for gate in gates:
            await gate.until_begun()
        closing = asyncio.create_task(consumer.close())
        await steps()
        closing.cancel()
        await steps()
        for gate in gates:
            gate.go_on.set()
        await asyncio.gather(*calls)
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert consumer.closed

    run_with_store(tmp_path / "s", body)
