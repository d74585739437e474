"""A process that may have no more threads, or no memory for one: named errors, nothing twice."""

from __future__ import annotations

import _thread
import asyncio
import resource
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from harness.fork import as_nobody, in_child
from harness.waiting import eventually

import eoslog
import eoslog.aio
from eoslog import TopicPartition
from eoslog.errors import OutOfMemoryError
from eoslog.fs import shared_syncs
from eoslog.session.background_thread import BackgroundThread
from eoslog.store.store import engine_of

SOON_S = 10


def refuse(*arguments, **named):
    raise RuntimeError("can't start new thread")


def refuse_threads(monkeypatch):
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    # Of Python 3.12 and before; of later ones.
    for name in ("_start_new_thread", "_start_joinable_thread"):
        if hasattr(threading, name):
            monkeypatch.setattr(threading, name, refuse)


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("rows")
        yield store


def values_of(store):
    consumer = store.consumer()
    consumer.assign([TopicPartition("rows", 0)])
    return [record.value for record in consumer.poll(0)]


def send_until_taken(producer, value, then):
    """As anybody does; a record that was refused is sent again once there are threads."""
    for _ in range(3):
        try:
            producer.send("rows", value)
        except Exception:
            then()
        else:
            return


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_record_is_not_doubled_where_no_timer_can_be_started(store, monkeypatch, is_warm):
    producer = store.producer()
    if is_warm:
        producer.append("rows", 0, values=[b"warm"])
    with monkeypatch.context() as limited:
        refuse_threads(limited)
        for value in (b"one", b"two"):
            send_until_taken(producer, value, limited.undo)
    producer.flush()
    assert values_of(store) == [b"warm"] * is_warm + [b"one", b"two"]
    producer.send("rows", b"three")
    producer.flush()
    assert values_of(store)[-1] == b"three"


def test_a_partition_is_looked_after_once_there_are_threads(tmp_path, monkeypatch):
    settings = {"eoslog.checkpoint.interval.ms": 10}
    with monkeypatch.context() as limited:
        refuse_threads(limited)
        store = eoslog.open(tmp_path / "store", create=True, durability="process", config=settings)
        store.create_topic("rows")
        with pytest.raises(OutOfMemoryError, match="eoslog-checkpointer"):
            store.producer().append("rows", 0, [b"one"])
    with store:
        store.producer().append("rows", 0, [b"one"])
        partition = engine_of(store).partition("rows", 0)
        eventually(lambda: partition.producer_state.persisted_offset == 1)
        assert values_of(store) == [b"one"]


def test_what_was_sent_is_appended_at_once_where_no_timer_can_be_started(store, monkeypatch):
    producer = store.producer(config={"linger.ms": 60_000})
    producer.append("rows", 0, values=[b"warm"])
    with monkeypatch.context() as limited:
        refuse_threads(limited)
        producer.send("rows", b"one")
        assert values_of(store) == [b"warm", b"one"]


def test_a_partition_that_nobody_can_look_after_is_refused_by_name(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as limited:
        refuse_threads(limited)
        # Where nothing is appended the store can do without.
        store = eoslog.open(tmp_path / "store", create=True, durability="process")
        assert "the store's background thread did not start" in caplog.text
        store.create_topic("rows")
        producer = store.producer()
        for _ in range(2):
            with pytest.raises(OutOfMemoryError, match="cannot be started: can't start"):
                producer.append("rows", 0, values=[b"one"])
    producer.append("rows", 0, values=[b"one"])
    assert values_of(store) == [b"one"]
    store.close()


def test_refused_threads_are_not_kept(monkeypatch):
    ran = threading.Event()
    thread = BackgroundThread("test", ran.set)
    with monkeypatch.context() as limited:
        refuse_threads(limited)
        for _ in range(100):
            with pytest.raises(OutOfMemoryError):
                thread.start()
    thread.start()
    assert ran.wait(SOON_S)
    thread.join()


def test_calls_that_get_no_threads_are_made_one_after_the_other(monkeypatch):
    refuse_threads(monkeypatch)
    assert shared_syncs.run_together([lambda n=n: n for n in range(5)]) == list(range(5))


def test_an_event_loop_goes_on_with_the_threads_it_has(tmp_path, monkeypatch):
    async def work():
        async with await eoslog.aio.open(tmp_path / "store", create=True) as store:
            await store.create_topic("rows")
            producer = await store.producer()
            await producer.send_and_wait("rows", b"warm")
            with monkeypatch.context() as limited:
                refuse_threads(limited)
                sends = (producer.send_and_wait("rows", b"%d" % n) for n in range(5))
                await asyncio.gather(*sends)
                groups = (store.run(lambda one: one.groups()) for _ in range(5))
                assert await asyncio.gather(*groups) == [{}] * 5
            return await store.run(values_of)

    assert sorted(asyncio.run(work())) == [b"0", b"1", b"2", b"3", b"4", b"warm"]


def test_an_event_loop_without_any_thread_begins_nothing(tmp_path, monkeypatch):
    async def work():
        with monkeypatch.context() as limited:
            refuse_threads(limited)
            with pytest.raises(OutOfMemoryError, match="not begun"):
                await eoslog.aio.open(tmp_path / "store", create=True)
        await asyncio.sleep(0.05)
        assert not (tmp_path / "store").exists()

    asyncio.run(work())


@pytest.fixture
def own_path():
    """A directory that nobody may use; those of pytest are closed to him."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def work_as_nobody(path):
    # What is imported only when it is used may not be readable to nobody.
    with eoslog.open(path / "first", create=True) as store:
        store.create_topic("rows")
        store.producer().send("rows", b"one")
    as_nobody()
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]

    def lift():
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))

    with eoslog.open(path / "store", create=True) as store:
        store.create_topic("rows")
        producer = store.producer()
        resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
        for value in (b"one", b"two", b"three"):
            send_until_taken(producer, value, lift)
        lift()
        producer.flush()
        assert values_of(store) == [b"one", b"two", b"three"]


def test_the_limit_of_the_system_itself(own_path):
    in_child(lambda: work_as_nobody(own_path))
