"""The read-process-write loop, awaited: what it commits, when it ends, what a cancel leaves."""

import asyncio
import threading

import pytest
from async_stores import Gate, gated, run_with_store
from harness.fork import Kill, dies_in_child
from stores import QUIET, values_of

import eoslog
import eoslog.aio
from eoslog import TopicPartition, errors
from eoslog.aio.consumer import AsyncConsumer
from eoslog.aio.producer import AsyncTransactionalProducer
from eoslog.producer.transactional_producer import TransactionalProducer

GROUP = "upper"


async def upper(producer, records):
    for record in records:
        await producer.send("out", record.value.upper(), partition=record.partition)


async def prepared(store, count=20):
    """The topics "t", which has some records, "out" and "dead"."""
    await store.create_topic("out", partitions=2, exist_ok=True)
    await store.create_topic("dead", exist_ok=True)
    await fill(store, range(count))


async def fill(store, numbers):
    async with store.producer() as producer:
        for number in numbers:
            await producer.send("t", b"v%d" % number, partition=number % 2)


async def caught_up(store, process=upper, **changes):
    settings = {"topics": ["t"], "group": GROUP, "until_caught_up": True, "poll_timeout_s": 0.0}
    return await eoslog.aio.read_process_write(store, process, **settings | changes)


def check(store, numbers):
    for partition in range(2):
        expected = [b"V%d" % number for number in numbers if number % 2 == partition]
        assert values_of(store, "out", partition) == expected


def run(tmp_path, body):
    async def with_topics(store):
        await prepared(store)
        await body(store)

    run_with_store(tmp_path / "s", with_topics, partitions=2)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("max_records", [1, 3, 500])
def test_every_record_is_processed_once_over_several_runs(tmp_path, max_records, share):
    async def body(store):
        settings = {"max_records": max_records, "share": share}
        assert await caught_up(store, **settings) == 20
        assert await caught_up(store, **settings) == 0
        await fill(store, range(20, 25))
        assert await caught_up(store, **settings) == 5
        check(store.store, range(25))
        # The synchronous loop goes on where this one was.
        await fill(store, range(25, 30))

        def upper_now(producer, records):
            for record in records:
                producer.send("out", record.value.upper(), partition=record.partition)

        count = await store.run(
            eoslog.read_process_write, upper_now, topics=["t"], group=GROUP, until_caught_up=True
        )
        assert count == 5
        check(store.store, range(30))

    run(tmp_path, body)


def test_loops_that_share_do_everything_once_while_records_come(tmp_path):
    async def body(store):
        done = 0

        async def slow(producer, records):
            await upper(producer, records)
            await asyncio.sleep(0.001)

        def counted(process):
            async def count(producer, records):
                nonlocal done
                await process(producer, records)
                done += len(records)

            return count

        loops = [
            caught_up(
                store,
                counted(slow),
                share=True,
                max_records=3,
                until_caught_up=False,
                poll_timeout_s=0.05,
                stop=lambda: done >= 100,
            )
            for _ in range(3)
        ]

        async def write():
            for number in range(20, 100, 10):
                await fill(store, range(number, number + 10))
                await asyncio.sleep(0.01)

        *counts, _ = await asyncio.gather(*loops, write())
        assert sum(counts) == 100
        check(store.store, range(100))

    run(tmp_path, body)


def test_it_waits_for_records_and_stops_when_asked(tmp_path):
    async def body(store):
        stop = threading.Event()
        loop = asyncio.create_task(
            caught_up(store, until_caught_up=False, poll_timeout_s=0.05, stop=stop.is_set)
        )
        await fill(store, range(20, 30))
        while sum(one.offset for one in (await store.groups()).get(GROUP, {}).values()) < 30:
            await asyncio.sleep(0.01)
        stop.set()
        assert await loop == 30
        check(store.store, range(30))

    run(tmp_path, body)


async def loop_that_has_sent_offsets(store):
    """The producer of another loop of the group, in a transaction."""
    other = await store.producer(transactional_id="another loop")
    await other.init_transactions()
    await other.begin_transaction()
    where = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 10}
    await other.send_offsets_to_transaction(where, GROUP)
    return other


@pytest.mark.parametrize("commits", [True, False])
def test_it_is_not_caught_up_while_a_transaction_holds_its_offsets(tmp_path, commits):
    async def body(store):
        other = await loop_that_has_sent_offsets(store)
        loop = asyncio.create_task(caught_up(store, poll_timeout_s=0.02))
        await asyncio.sleep(0.3)
        assert not loop.done()
        await (other.commit_transaction() if commits else other.abort_transaction())
        assert await loop == (0 if commits else 20)

    run(tmp_path, body)


def test_a_decision_after_a_poll_without_records_ends_no_loop(tmp_path, monkeypatch):
    async def body(store):
        other = await loop_that_has_sent_offsets(store)
        poll = AsyncConsumer.poll
        decided = []

        async def decided_after_it(consumer, **named):
            records = await poll(consumer, **named)
            if not decided:
                decided.append(records)
                await other.abort_transaction()
            return records

        monkeypatch.setattr(AsyncConsumer, "poll", decided_after_it)
        assert await caught_up(store) == 20
        assert decided == [[]]

    run(tmp_path, body)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_records_that_fail_go_to_the_dead_letter_topic(tmp_path, max_attempts, waits):
    async def body(store):
        alone = []

        async def fails(producer, records):
            alone.append([record.value for record in records] == [b"v7"])
            for record in records:
                value = b"x" * 2_000_000 if record.value == b"v7" else record.value.upper()
                sent = await producer.send("out", value, partition=record.partition)
                if waits:
                    await sent

        settings = {"max_attempts": max_attempts, "dead_letter": "dead"}
        assert await caught_up(store, fails, **settings) == 20
        assert sum(alone) == max_attempts
        assert values_of(store.store, "out", 1) == [
            b"V%d" % number for number in range(1, 20, 2) if number != 7
        ]
        consumer = await store.consumer()
        await consumer.assign([TopicPartition("dead", 0)])
        (record,) = await consumer.poll(timeout=0)
        assert record.value == b"v7"
        found = dict(record.headers)
        assert found["__streams.errors.offset"] == b"3"
        kind = "RecordTooLargeError" if waits else "TransactionAbortableError"
        assert found["__connect.errors.exception.class.name"] == f"eoslog.errors.{kind}".encode()

    run(tmp_path, body)


def test_a_stop_that_is_said_once_passes_over_no_record(tmp_path):
    async def body(store):
        counts = []

        async def fails(producer, records):
            counts.append(len(records))
            if len(records) > 1:
                raise ZeroDivisionError
            await upper(producer, records)

        def stop():
            return len(counts) == 9 and asked.append(None) is None and len(asked) == 1

        asked = []
        settings = {"dead_letter": "dead", "stop": stop, "max_records": 15}
        assert await caught_up(store, fails, **settings) == 8
        assert await caught_up(store) == 12
        check(store.store, range(20))

    run(tmp_path, body)


def test_a_full_disk_is_no_fault_of_a_record(tmp_path, monkeypatch):
    async def body(store):
        def full(self, batch):
            raise errors.StoreFullError("full")

        with monkeypatch.context() as patch:
            patch.setattr(TransactionalProducer, "_append_batch", full)
            with pytest.raises(errors.EoslogError) as raised:
                await caught_up(store, max_attempts=3, dead_letter="dead")
        assert isinstance(raised.value.__cause__, errors.StoreFullError)
        assert values_of(store.store, "dead") == []
        assert await caught_up(store) == 20
        check(store.store, range(20))

    run(tmp_path, body)


@pytest.mark.parametrize("step", ["process", "send", "offsets", "commit"])
def test_a_task_that_is_cancelled_does_all_or_nothing_of_a_piece(tmp_path, step):
    async def body(store):
        gate = Gate(lambda: None)
        if step == "offsets":
            gate = gated(TransactionalProducer, "send_offsets_to_transaction")
        elif step == "commit":
            gate = gated(TransactionalProducer, "commit_transaction")

        async def process(producer, records):
            await upper(producer, records)
            if step == "process":
                gate.began.set()
                await asyncio.sleep(60)
            elif step == "send":
                gate.began.set()
                await producer.send_and_wait("out", b"never committed", partition=0)
                await asyncio.sleep(60)

        task = asyncio.create_task(caught_up(store, process))
        await gate.until_begun()
        task.cancel()
        await asyncio.sleep(0.05)
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        done = sum(one.offset for one in (await store.groups()).get(GROUP, {}).values())
        assert done == (20 if step == "commit" else 0)
        check(store.store, range(done))
        assert await caught_up(store) == 20 - done
        check(store.store, range(20))

    run(tmp_path, body)


@pytest.mark.parametrize("end", ["commit", "abort", "prepare", "block", "close"])
def test_only_the_loop_ends_its_transactions(tmp_path, end):
    async def body(store):
        async def ends(producer, records):
            await upper(producer, records)
            if end == "block":
                async with producer.transaction():
                    pytest.fail("it was begun")
            elif end == "close":
                await producer.close()
            else:
                await getattr(producer, f"{end}_transaction")()
                await producer.begin_transaction()

        named = {"block": "a transaction is open", "close": "closed"}
        kind = errors.LogClosedError if end == "close" else errors.IllegalStateError
        with pytest.raises(kind, match=named.get(end, "return from process to commit")):
            await caught_up(store, ends, dead_letter="dead")
        check(store.store, range(0))
        assert await caught_up(store) == 20
        check(store.store, range(20))

    run(tmp_path, body)


def test_work_that_is_not_done_moves_no_record(tmp_path):
    async def body(store):
        async def returns_a_task(producer, records):
            return asyncio.ensure_future(upper(producer, records))

        async def generates(producer, records):
            yield 1

        for process, words in (
            (lambda producer, records: None, "it returned a NoneType, which cannot be awaited"),
            (generates, "it returned a async_generator, which cannot be awaited"),
            (returns_a_task, "it must do its work before it returns"),
            (7, "must be an async function, got int"),
        ):
            with pytest.raises(TypeError, match=words):
                await caught_up(store, process, max_attempts=3, dead_letter="dead")
        assert await store.groups() == {}
        assert values_of(store.store, "dead") == []

    run(tmp_path, body)


def test_wrong_arguments_are_those_of_the_synchronous_loop(tmp_path):
    async def body(store):
        for wrong, kind in (
            ({"topics": ["none"]}, errors.UnknownTopicOrPartitionError),
            ({"topics": []}, errors.InvalidRequestError),
            ({"max_attempts": 0}, ValueError),
            ({"dead_letter": "t"}, errors.InvalidRequestError),
            ({"stop": upper}, TypeError),
        ):
            with pytest.raises(kind):
                await caught_up(store, **wrong)
        assert store.store.transactions() == []

    run(tmp_path, body)


@pytest.mark.parametrize("name", ["_commit", "_begin_now", "_abort_left"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_loop_that_is_killed_does_everything_once(tmp_path, name, nth, when):
    path = tmp_path / "s"
    with eoslog.open(path, create=True, config=QUIET) as store:
        store.create_topic("t", partitions=2)

    async def main(*, kill):
        async with eoslog.aio.open(path) as store:
            if kill:
                Kill(AsyncTransactionalProducer, name, nth, when).arm()
            await caught_up(store, fails, max_records=6, max_attempts=2, dead_letter="dead")

    async def fails(producer, records):
        await upper(producer, records)
        if any(record.value == b"v4" for record in records):
            raise ZeroDivisionError

    async def begin():
        async with eoslog.aio.open(path) as store:
            await prepared(store)

    asyncio.run(begin())
    assert dies_in_child(lambda: asyncio.run(main(kill=True)))
    asyncio.run(main(kill=False))
    with eoslog.open(path) as store:
        for partition in range(2):
            expected = [b"V%d" % one for one in range(20) if one % 2 == partition and one != 4]
            assert values_of(store, "out", partition) == expected
        assert values_of(store, "dead") == [b"v4"]
        assert store.verify() == []
