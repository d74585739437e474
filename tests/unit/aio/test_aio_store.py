"""The asynchronous form: opening and closing, calls in threads, what a cancelled call leaves."""

import asyncio
import copy
import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from async_stores import Gate, run_with_store, steps
from harness.fork import in_child

import eoslog.aio
from eoslog import TopicPartition
from eoslog.errors import (
    ForkedProcessError,
    LogClosedError,
    NotAStoreError,
    UnknownTopicOrPartitionError,
)

PAGE = Path(__file__).parents[3] / "docs" / "asyncio.md"


def test_a_store_is_opened_by_await_or_by_a_block(tmp_path):
    async def main():
        store = await eoslog.aio.open(tmp_path / "s", create=True)
        assert not store.closed
        assert store.path == tmp_path / "s"
        assert store.durability == "commit"
        await store.close()
        await store.close()
        assert store.closed and store.store.closed
        async with eoslog.aio.open(tmp_path / "s") as again:
            assert await again.topics() == {}
        with pytest.raises(LogClosedError):
            await again.topics()

    asyncio.run(main())


def test_what_opening_raises_comes_through(tmp_path):
    async def main():
        with pytest.raises(NotAStoreError):
            await eoslog.aio.open(tmp_path / "none")
        with pytest.raises(NotAStoreError):
            async with eoslog.aio.open(tmp_path / "none"):
                raise AssertionError("not opened")

    asyncio.run(main())


def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path, monkeypatch):
    gate = Gate(eoslog.aio.opening.open)
    monkeypatch.setattr(eoslog.aio.opening, "open", gate)

    async def main():
        opening = asyncio.create_task(open_it())
        await gate.until_begun()
        opening.cancel()
        await steps()
        assert not opening.done(), "it waits for what it began"
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        monkeypatch.undo()
        await (await eoslog.aio.open(tmp_path / "s")).close()

    async def open_it():
        await eoslog.aio.open(tmp_path / "s", create=True)

    asyncio.run(main())


def test_the_calls_of_a_store(tmp_path):
    async def body(store):
        await store.create_topic("other", partitions=2)
        made = await store.create_topics({"other": 2, "more": 1}, exist_ok=True)
        assert sorted(made) == ["more", "other"]
        await store.delete_topic("more")
        async with store.producer() as producer:
            await producer.send_and_wait("other", b"v", partition=1)
        await store.flush()
        assert sorted(await store.topics()) == ["other", "t"]
        assert (await store.snapshot(["other"]))[TopicPartition("other", 1)] == 1
        async with store.consumer(group="g") as consumer:
            await consumer.assign([TopicPartition("other", 1)])
            assert len(await consumer.poll()) == 1
            await consumer.commit()
        where = TopicPartition("other", 1)
        assert (await store.groups())["g"][where].offset == 1
        await store.delete_offsets("g", [where])
        assert await store.groups() == {}
        assert await store.delete_records({where: -1}) == {where: 1}
        await store.run(lambda one: one.consumer(group="g").commit({where: 1}))
        await store.delete_group("g")
        assert await store.groups() == {}
        await store.delete_topic("other")
        with pytest.raises(UnknownTopicOrPartitionError):
            await store.snapshot(["other"])
        assert await store.run(eoslog.Store.verify) == []
        assert "AsyncStore of" in repr(store)

    run_with_store(tmp_path / "s", body)


def test_a_store_that_was_open_before_stays_open(tmp_path):
    with eoslog.open(tmp_path / "s", create=True) as store:
        store.create_topic("t")

        async def main():
            async with eoslog.aio.wrap(store) as wrapped:
                assert wrapped.store is store
                producer = await wrapped.producer()
                await producer.send("t", b"gathered")
            assert not store.closed

        asyncio.run(main())
        assert store.partition("t", 0).log_end_offset == 1, "closing the wrapper flushed it"


def test_no_event_loop_waits_for_a_call(tmp_path):
    async def body(store):
        gate = Gate(store.store.topics)
        store.store.topics = gate
        call = asyncio.create_task(store.topics())
        await gate.until_begun()
        begin_s = time.monotonic()
        await asyncio.sleep(0.01)
        assert time.monotonic() - begin_s < 5
        gate.go_on.set()
        assert list(await call) == ["t"]

    run_with_store(tmp_path / "s", body)


def test_a_cancelled_call_that_failed_says_so_in_a_note(tmp_path):
    async def body(store):
        def fail(_):
            raise RuntimeError("broken")

        gate = Gate(fail)
        call = asyncio.create_task(store.run(gate))
        await gate.until_begun()
        call.cancel()
        await steps()
        call.cancel()
        await steps()
        assert not call.done()
        gate.go_on.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await call
        assert caught.value.__notes__ == ["the call that was under way failed: broken"]

    run_with_store(tmp_path / "s", body)


def test_a_call_that_waits_for_a_thread_is_cancelled_at_once(tmp_path):
    async def body(store):
        gates = [Gate(lambda _: None) for _ in range(32)]
        calls = [asyncio.create_task(store.run(gate)) for gate in gates]
        for gate in gates:
            await gate.until_begun()
        waiting = asyncio.create_task(store.run(lambda _: pytest.fail("not to be called")))
        await steps()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await waiting
        assert caught.value.__notes__ == ["the call was not begun: nothing was done"]
        for gate in gates:
            gate.go_on.set()
        await asyncio.gather(*calls)

    run_with_store(tmp_path / "s", body)


def test_closing_ends_the_threads(tmp_path):
    async def body(store):
        async with store.consumer() as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            assert await consumer.poll(timeout=0.05) == []

    before = {thread.name for thread in threading.enumerate()}
    run_with_store(tmp_path / "s", body)
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in left if name.startswith("eoslog")}


def test_closing_the_store_closes_its_users_and_ends_their_waits(tmp_path):
    async def body(store):
        consumer = await store.consumer()
        await consumer.assign([TopicPartition("t", 0)])
        producer = await store.producer()
        told = await producer.send("t", b"v")

        async def read():
            return [record.value async for record in consumer]

        reading = asyncio.create_task(read())
        await steps()
        await store.close()
        assert (await told).offset == 0
        assert await asyncio.wait_for(reading, 30) in ([], [b"v"])
        with pytest.raises(LogClosedError):
            await producer.send("t", b"late")

    run_with_store(tmp_path / "s", body)


def test_nothing_can_be_pickled_or_copied(tmp_path):
    async def body(store):
        transactional = await store.producer(transactional_id="x")
        for one in (store, await store.consumer(), await store.producer(), transactional):
            for work in (pickle.dumps, copy.copy):
                with pytest.raises(TypeError, match="cannot be pickled or copied"):
                    work(one)

    run_with_store(tmp_path / "s", body)


def test_a_fork_leaves_the_store_to_the_parent(tmp_path):
    async def body(store):
        consumer = await store.consumer()
        await consumer.assign([TopicPartition("t", 0)])
        producer = await store.producer()
        await producer.send_and_wait("t", b"v")

        def of_the_child():
            async def use():
                for call in (store.topics(), consumer.poll(), consumer.getone()):
                    with pytest.raises(ForkedProcessError):
                        await call
                async with eoslog.aio.open(tmp_path / "other", create=True) as own:
                    await own.create_topic("mine")

            loop = asyncio.new_event_loop()
            asyncio._set_running_loop(None)
            loop.run_until_complete(use())

        await store.run(lambda _: in_child(of_the_child))
        assert (await consumer.getone()).value == b"v"

    run_with_store(tmp_path / "s", body)


def test_the_first_example_of_the_page_runs(tmp_path):
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", example[1]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0 0\nb'one'\n"), done.stderr


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_of_its_closing_leaves_no_store_open(tmp_path, monkeypatch, begun):
    """Nobody comes back to do the rest of it."""

    async def main():
        store = await eoslog.aio.open(tmp_path / "s", create=True, durability="process")

        def interrupted(*_, **named):
            raise KeyboardInterrupt

        producer = await store.producer()
        if begun:
            monkeypatch.setattr("eoslog.aio.store.until_over", interrupted)
        else:
            producer.close = interrupted
        with pytest.raises(KeyboardInterrupt):
            await store.close()
        assert store.store.closed
        await store.close()

    asyncio.run(main())
    with eoslog.open(tmp_path / "s") as again:
        assert again.verify() == []
