"""A process that has a store open and does nothing ends what others leave, within seconds."""

import os
import signal
import struct
import time

import pytest
from harness.crew import Member
from harness.waiting import eventually
from short_form import short_form

import eoslog
from eoslog import TopicPartition

# Ten times what is promised: the machine may be busy.
SOON_S = 20
SECONDS = 3.5
CONTROL_BATCH = 0x20
IDLING = {
    "has only opened it": "",
    "reads": """
consumer = store.consumer()
consumer.assign([eoslog.TopicPartition("t", 0)])
consumer.poll(0)
""",
    "waits for records": """
consumer = store.consumer()
consumer.assign([eoslog.TopicPartition("t", 0)])
def wait():
    while True: consumer.poll(timeout=60)
threading.Thread(target=wait, daemon=True).start()
""",
    "has an idle producer": """
producer = store.producer(config={"linger.ms": 0})
producer.append("t", 0, [b"old"])
""",
    "has an idle transactional producer": """
producer = store.producer(transactional_id="idle")
producer.init_transactions()
""",
}
AIO = """
import asyncio, eoslog.aio
async def idle():
    async with await eoslog.aio.open(path) as store:
        opened.set()
        await asyncio.sleep(3600)
opened = threading.Event()
threading.Thread(target=lambda: asyncio.run(idle()), daemon=True).start()
opened.wait(30)
"""
BEGIN = """
store = eoslog.open(path)
producer = store.producer(transactional_id="x", transaction_timeout_ms=timeout_ms)
producer.init_transactions()
producer.begin_transaction()
producer.send("t", b"never", partition=0)
producer.flush()
"""


@pytest.fixture
def path(tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("t")
    return tmp_path / "store"


def markers(path):
    """How many control batches the partition has; the store is not opened for it."""
    (log,) = (path / "t-0").glob("*.log")
    raw, position, found = log.read_bytes(), 0, 0
    while any(raw[position : position + 12]):  # Zeros follow the last batch.
        (attributes,) = struct.unpack_from(">h", raw, position + 21)
        found += bool(attributes & CONTROL_BATCH)
        position += 12 + struct.unpack_from(">i", raw, position + 8)[0]
    return found


def wait_for_marker(path, within_s=SOON_S):
    begun_s = time.monotonic()
    while not markers(path):
        assert time.monotonic() < begun_s + within_s, "nobody aborted the transaction"
        time.sleep(0.02)
    return time.monotonic() - begun_s


@pytest.fixture
def idle(path, request):
    """A process that idles in some way, for longer than it looks closely after an opening."""
    with Member() as process:
        if request.param == "asyncio":
            process.run(AIO, path=str(path))
        else:
            process.run(f"store = eoslog.open(path)\n{IDLING[request.param]}", path=str(path))
        time.sleep(1.5)
        yield process


@pytest.mark.parametrize(
    "idle", short_form([*IDLING, "asyncio"], "waits for records", "asyncio"), indirect=True
)
def test_the_transaction_of_a_process_that_dies_is_aborted(idle, path):
    with Member() as victim:
        victim.run(BEGIN, path=str(path), timeout_ms=600_000)
        victim.kill()
        wait_for_marker(path)


@pytest.mark.parametrize(
    ("idle", "stopped"),
    short_form(
        [*((one, True) for one in IDLING), ("has only opened it", False)],
        ("reads", True),
        ("has only opened it", False),
    ),
    indirect=["idle"],
)
def test_a_transaction_that_times_out_is_aborted(idle, path, stopped):
    with Member() as other:
        other.run(BEGIN, path=str(path), timeout_ms=1000)
        if stopped:
            other.signal(signal.SIGSTOP)
        wait_for_marker(path)


def test_a_process_aborts_its_own_that_time_out(path):
    with Member() as alone:
        alone.run(BEGIN, path=str(path), timeout_ms=500)
        wait_for_marker(path)
        assert alone.value("store.metrics()['checkpointer']['transactions_timed_out']") == 1


def test_a_prepared_transaction_waits(path):
    with Member() as idle, Member() as victim:
        idle.run("store = eoslog.open(path)", path=str(path))
        victim.run(BEGIN, path=str(path), timeout_ms=500)
        victim.run("producer.prepare_transaction()")
        victim.kill()
        time.sleep(SECONDS)
        assert markers(path) == 0


def test_a_reader_alone_gets_on_soon_after_a_writer_came_and_died(path):
    """Its looks are not those of a process that is alone any more."""
    took_s = []
    for _ in range(3):
        with Member() as reader:
            reader.run(
                "store = eoslog.open(path)\n"
                "consumer = store.consumer(auto_offset_reset='latest')\n"
                "consumer.assign([eoslog.TopicPartition('t', 0)])\n"
                "consumer.poll(0)\n",
                path=str(path),
            )
            time.sleep(1.5)
            with Member() as victim:
                victim.run(BEGIN, path=str(path), timeout_ms=600_000)
                victim.run("store.producer().append('t', 0, [b'plain'])")
                victim.kill()
            begun_s = time.monotonic()
            values = reader.value("[one.value.decode() for one in consumer.poll(timeout=30)]")
            took_s.append(time.monotonic() - begun_s)
            assert values == ["plain"]
    assert min(took_s) < SECONDS


@pytest.mark.parametrize(
    "idle",
    short_form(["has only opened it", "waits for records"], "waits for records"),
    indirect=True,
)
def test_an_idle_process_does_not_use_the_processor(idle):
    def used_ticks():
        with open(f"/proc/{idle.pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))

    before = used_ticks()
    time.sleep(SECONDS)
    used_s = (used_ticks() - before) / os.sysconf("SC_CLK_TCK")
    assert used_s / SECONDS < 0.02


def test_retention_is_applied_by_a_process_that_has_only_opened_the_store(path):
    config = {"log.initial.task.delay.ms": 200, "log.retention.check.interval.ms": 200}
    with eoslog.open(path) as store:
        store.create_topic("old", config={"segment.bytes": 1024, "retention.ms": 1000})
        for _ in range(10):
            store.producer().append("old", 0, [bytes(400)], timestamps=[1])
    with Member() as idle:
        idle.run("store = eoslog.open(path, config=config)", path=str(path), config=config)
        eventually(
            lambda: [one.name for one in (path / "old-0").glob("*.log")] == [f"{10:020d}.log"]
        )
        idle.run("store.close()")
    with eoslog.open(path) as store:
        assert store.partition(*TopicPartition("old", 0)).log_start_offset == 10
        assert store.verify() == []
