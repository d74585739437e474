"""An asynchronous producer: what is sent together is appended together, and each record is told."""

import asyncio
import gc
import threading

import pytest
from async_stores import Gate, count_calls, fail_once, gated, run_with_store, steps
from harness.waiting import eventually
from stores import values_of

import eoslog.aio
from eoslog import TopicPartition
from eoslog.aio import rounds
from eoslog.aio.calls import Calls
from eoslog.common import clock
from eoslog.errors import (
    InvalidTimestampError,
    LogClosedError,
    OutOfMemoryError,
    ProducerFencedError,
    RecordTooLargeError,
    StoreFailedError,
    StoreFullError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer.producer import Producer, ProducerInternals


def test_a_record_is_told_where_it_is(tmp_path):
    async def body(store):
        async with store.producer() as producer:
            first = await producer.send_and_wait(
                "t", b"v", b"k", headers={"h": b"x", "n": None}, timestamp_ms=12345
            )
            assert first == ("t", 0, 0, 12345)
            assert first.topic_partition == TopicPartition("t", 0)
            told = [await producer.send("t", b"%d" % number) for number in range(10)]
            assert not any(one.done() for one in told), "nothing is appended without a step"
            assert [(await one).offset for one in told] == list(range(1, 11))
            assert producer.producer_id >= 0 and producer.producer_epoch == 0
            assert producer.name is None
        async with store.consumer() as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            record = await consumer.getone()
            assert (record.key, record.value, record.timestamp_ms) == (b"k", b"v", 12345)
            assert record.headers == (("h", b"x"), ("n", None))
            assert len(await consumer.poll()) == 10

    run_with_store(tmp_path / "s", body)


def test_what_is_sent_in_the_meantime_is_appended_by_one_call(tmp_path):
    async def body(store):
        producer = await store.producer()
        gate = gated(ProducerInternals, "append_batch")
        first = await producer.send("t", b"first")
        await gate.until_begun()
        told = [await producer.send("t", b"%d" % number) for number in range(1000)]
        gate.go_on.set()
        await first
        assert [(await one).offset for one in told] == list(range(1, 1001))
        assert gate.count == 2
        await producer.close()

    run_with_store(tmp_path / "s", body)


def test_batches_are_cut_so_that_offsets_are_known(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "BATCH_BYTES_MAX", 5000)

    async def body(store):
        async with store.producer() as producer, store.producer() as other:
            told, others = [], []
            for number in range(300):
                told.append(await producer.send("t", b"%4d" % number * 50))
                others.append(await other.send("t", b"other%d" % number))
                if number % 50 == 0:
                    await asyncio.sleep(0.001)
            offsets = [(await one).offset for one in told]
            assert offsets == sorted(offsets)
            others = [(await one).offset for one in others]
        values = values_of(store.store, "t")
        assert [values[one] for one in offsets] == [b"%4d" % number * 50 for number in range(300)]
        assert [values[one] for one in others] == [b"other%d" % number for number in range(300)]

    run_with_store(tmp_path / "s", body)


def test_keys_choose_partitions_as_elsewhere_and_the_rest_is_spread(tmp_path):
    async def body(store):
        with store.store.producer() as plain:
            for number in range(50):
                plain.send("t", b"v", key=b"%d" % number)
        plain_places = [len(values_of(store.store, "t", number)) for number in range(4)]
        async with store.producer() as producer:
            for number in range(50):
                await producer.send("t", b"v", key=b"%d" % number)
        places = [len(values_of(store.store, "t", number)) for number in range(4)]
        assert places == [2 * one for one in plain_places]
        async with store.producer() as producer:
            found = [(await producer.send_and_wait("t", b"v")).partition for _ in range(8)]
            assert found == [0, 1, 2, 3, 0, 1, 2, 3]
            assert (await producer.send_and_wait("t", b"v", b"k", partition=2)).partition == 2

    run_with_store(tmp_path / "s", body, partitions=4)


def test_a_wrong_record_is_refused_at_once(tmp_path):
    async def body(store):
        async with store.producer() as producer:
            for error, given in [
                (TypeError, {"value": "text"}),
                (TypeError, {"key": 5}),
                (TypeError, {"headers": {5: b""}}),
                (TypeError, {"headers": {"h": "text"}}),
                (ValueError, {"headers": {"\ud800": b""}}),
                (ValueError, {"timestamp_ms": -2}),
                (TypeError, {"timestamp_ms": 1.5}),
                (UnknownTopicOrPartitionError, {"partition": 9}),
                (UnknownTopicOrPartitionError, {"topic": "none"}),
            ]:
                with pytest.raises(error):
                    await producer.send(**{"topic": "t", "value": b"v", **given})
            with pytest.raises(TypeError):
                await producer.send(5, b"v")
        assert values_of(store.store, "t") == []

    run_with_store(tmp_path / "s", body)


def test_one_refused_record_does_not_take_others_with_it(tmp_path):
    async def body(store):
        producer = await store.producer()
        told = [await producer.send("t", b"%d" % number) for number in range(3)]
        told.append(await producer.send("t", bytes(2_000_000)))
        told.append(await producer.send("t", b"old", timestamp_ms=1))
        told.append(await producer.send("t", b"last"))
        store.store.partition("t", 0)
        with pytest.raises(RecordTooLargeError):
            await producer.flush()
        assert [one.exception() is None for one in told] == [True, True, True, False, True, True]
        await producer.flush()
        assert values_of(store.store, "t") == [b"0", b"1", b"2", b"old", b"last"]
        told = await producer.send("t", bytes(2_000_000))
        with pytest.raises(RecordTooLargeError):
            await producer.close()

    run_with_store(tmp_path / "s", body)


def test_a_timestamp_that_a_topic_refuses_is_one_records_fault(tmp_path):
    async def body(store):
        await store.create_topic("now", config={"message.timestamp.before.max.ms": 60_000})
        async with store.producer() as producer:
            told = [await producer.send("now", b"%d" % number) for number in range(2)]
            wrong = await producer.send("now", b"old", timestamp_ms=1)
            told.append(await producer.send("now", b"2"))
            assert [(await one).offset for one in told] == [0, 1, 2]
            assert wrong.exception() is not None
            with pytest.raises(type(wrong.exception())):
                await producer.flush()

    run_with_store(tmp_path / "s", body)


def test_behind_a_failed_batch_nothing_of_its_partition_is_appended(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "BATCH_BYTES_MAX", 300)

    async def body(store):
        producer = await store.producer()
        full = StoreFullError("full")
        fail_once(ProducerInternals, "append_batch", full, lambda _, batch: batch.partition == 0)
        told = [await producer.send("t", bytes(200), partition=number % 2) for number in range(8)]
        with pytest.raises(StoreFullError):
            await producer.flush()
        assert [one.exception() is None for one in told] == [False, True] * 4
        assert (await producer.send_and_wait("t", b"v", partition=0)).offset == 0
        await producer.close()

    run_with_store(tmp_path / "s", body, partitions=2)


def test_a_batch_that_its_log_refuses_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "BATCH_BYTES_MAX", 300)

    async def body(store):
        producer = await store.producer()
        fail_once(ProducerInternals, "append_batch", RecordTooLargeError("a new limit"))
        told = [await producer.send("t", bytes(200)) for _ in range(3)]
        with pytest.raises(RecordTooLargeError):
            await producer.flush()
        assert [one.exception() is None for one in told] == [False, True, True]
        await producer.close()

    run_with_store(tmp_path / "s", body)


def test_a_timestamp_that_a_batch_outlives_is_one_records_fault(tmp_path):
    async def body(store):
        await store.create_topic("now", config={"message.timestamp.before.max.ms": 20_000})
        producer = await store.producer()
        gate = gated(ProducerInternals, "append_batch")
        told = [await producer.send("now", b"0")]
        await gate.until_begun()
        now_ms = clock.now_ms()
        told += [await producer.send("now", b"1"), await producer.send("now", b"2", None, 0)]
        old = await producer.send("now", b"old", timestamp_ms=now_ms - 19_800)
        told.append(await producer.send("now", b"3"))
        while clock.now_ms() <= now_ms + 200:
            await asyncio.sleep(0.01)
        gate.go_on.set()
        assert [(await one).offset for one in told] == [0, 1, 2, 3]
        with pytest.raises(InvalidTimestampError):
            await old
        with pytest.raises(InvalidTimestampError):
            await producer.close()

    run_with_store(tmp_path / "s", body)


def test_what_is_sent_before_a_failure_is_told_fails_with_it(tmp_path):
    async def body(store):
        producer = await store.producer()
        fail_once(ProducerInternals, "append_batch", StoreFullError("full"))
        gate = gated(ProducerInternals, "append_batch")
        told = [await producer.send("t", b"0", partition=0)]
        await gate.until_begun()
        told += [await producer.send("t", b"%d" % one, partition=one % 2) for one in range(1, 5)]
        gate.go_on.set()
        with pytest.raises(StoreFullError):
            await told[0]
        told.append(await producer.send("t", b"6", partition=0))
        with pytest.raises(StoreFullError):
            await producer.flush()
        assert [one.exception() is None for one in told] == [False, True, False, True, False, True]
        assert values_of(store.store, "t", 0) == [b"6"]
        assert values_of(store.store, "t", 1) == [b"1", b"3"]
        await producer.close()

    run_with_store(tmp_path / "s", body, partitions=2)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_cancelled_call_leaves_the_failure_of_a_record_to_the_next(tmp_path, call, begun):
    async def body(store):
        producer = await store.producer()
        closed = count_calls(Producer, "close")
        gate = gated(Producer, call) if begun else gated(ProducerInternals, "append_batch")
        await producer.send("t", b"v")
        await producer.send("t", bytes(2_000_000))
        if not begun:
            await gate.until_begun()
        task = asyncio.create_task(getattr(producer, call)())
        if begun:
            await gate.until_begun()
        await steps()
        task.cancel()
        await steps()
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(RecordTooLargeError):
            await getattr(producer, call)()
        await producer.close()
        assert len(closed) == 1

    run_with_store(tmp_path / "s", body)


def test_a_close_that_could_not_begin_is_made_by_the_next(tmp_path):
    async def body(store):
        producer = await store.producer()
        closed = count_calls(Producer, "close")
        fail_once(Calls, "start", OutOfMemoryError("no thread"))
        with pytest.raises(OutOfMemoryError):
            await producer.close()
        assert not closed
        await producer.close()
        assert len(closed) == 1

    run_with_store(tmp_path / "s", body)


def test_who_sends_too_fast_waits_for_room(tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "GATHERED_RECORDS_MAX", 10)

    async def body(store):
        producer = await store.producer()
        gate = gated(ProducerInternals, "append_batch")
        await producer.send("t", b"under way")
        await gate.until_begun()
        for number in range(10):
            await producer.send("t", b"%d" % number)
        waiting = asyncio.create_task(producer.send("t", b"waits"))
        given_up = asyncio.create_task(producer.send("t", b"given up"))
        await steps()
        assert not waiting.done()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        gate.go_on.set()
        assert (await (await waiting)).offset == 11
        await producer.close()
        assert b"given up" not in values_of(store.store, "t")

    run_with_store(tmp_path / "s", body)


def test_a_record_that_was_taken_is_appended_also_if_its_sender_is_cancelled(tmp_path):
    async def body(store):
        producer = await store.producer()
        gate = gated(ProducerInternals, "append_batch")
        tasks = [asyncio.create_task(producer.send_and_wait("t", b"under way"))]
        await gate.until_begun()
        tasks.append(asyncio.create_task(producer.send_and_wait("t", b"gathered")))
        await steps()
        future = await producer.send("t", b"future")
        kept = await producer.send("t", b"kept")
        for one in (*tasks, future):
            one.cancel()
        await steps()
        assert not any(one.done() for one in tasks)
        gate.go_on.set()
        for offset, task in enumerate(tasks):
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert f"offset={offset}" in caught.value.__notes__[0]
        assert (await kept).offset == 3
        await producer.close()
        assert values_of(store.store, "t") == [b"under way", b"gathered", b"future", b"kept"]

    run_with_store(tmp_path / "s", body)


def test_columns_come_behind_what_was_sent_before(tmp_path):
    async def body(store):
        async with store.producer() as producer:
            await producer.send("t", b"0")
            await producer.send("t", b"1")
            result = await producer.append("t", 0, [b"2", b"3"])
            assert (result.base_offset, result.last_offset) == (2, 3)
            assert (await producer.append("t", values=[b"4"], keys=[b"k"]))[0].base_offset == 4
        assert values_of(store.store, "t") == [b"0", b"1", b"2", b"3", b"4"]

    run_with_store(tmp_path / "s", body)


def test_a_name_counts_what_was_sent(tmp_path):
    async def body(store):
        async with store.producer(name="import") as producer:
            assert producer.name == "import"
            assert await producer.next_sequence("t", 0) == 0
            await producer.send("t", b"0")
            assert await producer.next_sequence("t", 0) == 1
            successor = await store.producer(name="import")
            with pytest.raises(ProducerFencedError):
                await producer.send("t", b"late")
            assert await successor.next_sequence("t", 0) == 1

    run_with_store(tmp_path / "s", body)


def test_a_closed_producer_and_one_of_another_loop_take_nothing(tmp_path):
    async def body(store):
        producer = await store.producer()
        told = await producer.send("t", b"v")
        await producer.close()
        await producer.close()
        assert told.result().offset == 0
        for call in (producer.send("t", b"v"), producer.append("t", 0, [b"v"]), producer.flush()):
            with pytest.raises(LogClosedError):
                await call
        return await store.producer()

    other = run_with_store(tmp_path / "s", body)

    async def elsewhere():
        with pytest.raises(RuntimeError, match="another event loop"):
            await other.send("t", b"v")

    asyncio.run(elsewhere())


def test_what_was_sent_to_a_store_that_was_closed_fails(tmp_path):
    async def body(store):
        producer = await store.producer()
        await producer.send_and_wait("t", b"v")
        told = await producer.send("t", b"late")
        await asyncio.to_thread(store.store.close)
        with pytest.raises(LogClosedError):
            await told
        for call in (producer.send_and_wait("t", b"v"), producer.flush(), producer.close()):
            with pytest.raises(LogClosedError):
                await call

    run_with_store(tmp_path / "s", body)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_deleted_topic_fails_what_was_sent(tmp_path, made_again):
    async def body(store):
        producer = await store.producer()
        gate = gated(ProducerInternals, "append_batch")
        told = await producer.send("t", b"v")
        await gate.until_begun()
        await store.delete_topic("t")
        if made_again:
            await store.create_topic("t")
        gate.go_on.set()
        with pytest.raises(UnknownTopicOrPartitionError):
            await told
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.close()

    run_with_store(tmp_path / "s", body)


def test_an_exception_in_a_block_keeps_its_own_error_first(tmp_path):
    async def body(store):
        with pytest.raises(ZeroDivisionError) as caught:
            async with store.producer() as producer:
                await producer.send("t", bytes(2_000_000))
                raise ZeroDivisionError
        assert "closing the producer failed too" in caught.value.__notes__[0]

    run_with_store(tmp_path / "s", body)


def test_many_tasks_share_a_producer(tmp_path):
    async def body(store):
        async with store.producer() as producer:

            async def send(task):
                offsets = []
                for number in range(100):
                    told = await producer.send_and_wait("t", b"%d:%d" % (task, number))
                    offsets.append(told.offset)
                return offsets

            found = await asyncio.gather(*(send(task) for task in range(20)))
        values = values_of(store.store, "t")
        assert len(values) == 2000
        for task, offsets in enumerate(found):
            assert [values[one] for one in offsets] == [b"%d:%d" % (task, n) for n in range(100)]

    run_with_store(tmp_path / "s", body)


def test_public_names():
    assert eoslog.aio.__all__ == sorted(eoslog.aio.__all__)
    for name in eoslog.aio.__all__:
        assert getattr(eoslog.aio, name).__doc__


def test_headers_of_any_form_count_in_the_size_of_a_batch(tmp_path):
    async def body(store):
        async with store.producer() as producer:
            told = [
                await producer.send("t", b"v", headers=headers)
                for headers in (None, [{"key": "h", "value": bytes((1 << 20) - 100)}])
            ]
            assert [(await one).offset for one in told] == [0, 1]
            with pytest.raises(TypeError, match="headers must have names of str, got int"):
                await producer.send("t", b"v", headers=[(1, b"")])

    run_with_store(tmp_path / "s", body)


def rounds_there():
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is rounds.Rounds]


def test_what_was_sent_is_appended_also_if_the_loop_is_closed_then(tmp_path, monkeypatch):
    gate = Gate(ProducerInternals.append_batch)
    monkeypatch.setattr(ProducerInternals, "append_batch", lambda *given: gate(*given))

    async def begin(store):
        producer = await store.producer()
        await producer.send("t", b"first")
        await gate.until_begun()
        await producer.send("t", b"second")

    with eoslog.open(tmp_path / "s", create=True) as store:
        store.create_topic("t")
        loops = eoslog.aio.wrap(store)
        asyncio.run(begin(loops))
        gate.go_on.set()
        eventually(lambda: not rounds_there(), "the store keeps what is over")
        asyncio.run(loops.close())  # Returns once its threads have ended.
        assert values_of(store, "t") == [b"first", b"second"]


def test_what_a_dropped_producer_was_sent_is_appended_before_its_store_is_closed(tmp_path):
    async def body(store):
        async def send_and_drop(value):
            producer = await store.producer()
            await producer.send("t", value)

        await send_and_drop(b"first")
        await send_and_drop(b"second")

    run_with_store(tmp_path / "s", body)
    with eoslog.open(tmp_path / "s", durability=None) as store:
        assert sorted(values_of(store, "t")) == [b"first", b"second"]


def test_closing_a_store_raises_the_failure_of_a_dropped_producer(tmp_path):
    async def body(store):
        producer = await store.producer()
        await producer.send("t", b"lost")
        fail_once(ProducerInternals, "append_batch", StoreFailedError("broken"))
        del producer
        with pytest.raises(StoreFailedError, match="broken"):
            await store.close()

    run_with_store(tmp_path / "s", body)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("drops", [True, False])
def test_what_was_sent_is_appended_also_if_the_loop_stops_then(
    tmp_path, monkeypatch, closes, drops
):
    gate = Gate(ProducerInternals.append_batch)
    monkeypatch.setattr(ProducerInternals, "append_batch", lambda *given: gate(*given))

    async def begin(store):
        producer = await store.producer()
        await producer.send("t", b"first")
        await gate.until_begun()
        return None if drops else producer, await producer.send("t", b"second")

    with eoslog.open(tmp_path / "s", create=True) as store:
        store.create_topic("t")
        loops = eoslog.aio.wrap(store)
        loop = asyncio.new_event_loop()
        _kept, told = loop.run_until_complete(begin(loops))
        told_to_loop = threading.Event()
        call_soon = loop.call_soon_threadsafe

        def noted(*arguments):
            call_soon(*arguments)
            told_to_loop.set()

        loop.call_soon_threadsafe = noted
        gate.go_on.set()
        assert told_to_loop.wait(60)  # The first round has ended; the loop makes no step any more.
        if closes:
            loop.close()
        asyncio.run(loops.close())
        assert values_of(store, "t") == [b"first", b"second"]
        if not closes:
            assert loop.run_until_complete(told).offset == 1
            loop.close()


def test_a_stream_of_arrow_is_appended(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"value": [b"a", b"b"], "key": ["k", None]})

    async def body(store):
        async with store.producer() as producer:
            stream = pa.RecordBatchReader.from_batches(table.schema, table.to_batches() * 2)
            placed = await producer.append("t", 0, stream)
            assert (placed.base_offset, placed.last_offset) == (0, 3)

        def read(opened):
            return [row for batch in opened.scan("t") for row in batch.to_pylist()]

        found = await store.run(read)
        assert [(row["key"], row["value"]) for row in found] == [(b"k", b"a"), (None, b"b")] * 2

    run_with_store(tmp_path / "s", body)
