"""Costs that must not grow with what a store holds: CPU time, syncs, files, at rising sizes.

    python benches/growth.py            all costs, each size in a process of its own
    python benches/growth.py poll wake  some of them

Prints a Markdown table. No figure is a time that the machine's other work could change: the one
latency is a median beside the same without bystanders, and an export is timed beside a copy.
"""

from __future__ import annotations

import argparse
import errno
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import eoslog
from eoslog import TopicPartition

TESTS = Path(__file__).parent.parent / "tests"
FILES = 1024  # What a Linux machine allows a process by default.
APPENDS = 500
PAUSE_S = 0.002
IDS = 100
IDLE_S = 20
EXPORTS = 3
OFFSETS = 100  # Of each group.
OPENINGS = 9
TURNS = 20
SETTLE_S = 20  # What is done once after an append, and the first of the regular looks.
SOON = {"log.flush.offset.checkpoint.interval.ms": 5000, "log.initial.task.delay.ms": 5000}


def made(folder: Path, partitions: int) -> Path:
    """A closed store with a topic of so many partitions, and a record in each."""
    path = folder / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=partitions)
        fill(store, partitions)
    return path


def fill(store: eoslog.Store, partitions: int) -> None:
    producer = store.producer()
    for number in range(partitions):
        producer.append("t", partition=number, values=[b"value"])


def assigned(store: eoslog.Store, partitions: int) -> eoslog.Consumer:
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", number) for number in range(partitions)])
    return consumer


def read_all(store: eoslog.Store, partitions: int) -> None:
    consumer = assigned(store, partitions)
    found = 0
    while found < partitions:
        found += len(consumer.poll(0))


def first_poll(folder: Path, size: int) -> float:
    with eoslog.open(made(folder, size), durability="process") as store:
        consumer = assigned(store, size)
        begun_s = time.process_time()
        assert consumer.poll(0)
        return (time.process_time() - begun_s) * 1e3


def init_transactions(folder: Path, size: int) -> float:
    with eoslog.open(folder / "store", create=True, durability="process") as store:
        store.create_topic("t")
        alive = []
        for number in range(size):
            alive.append(store.producer(transactional_id=f"id-{number}"))
            alive[-1].init_transactions()
        taken = []
        for number in range(200):
            producer = store.producer(transactional_id=f"more-{number}")
            begun_s = time.process_time()
            producer.init_transactions()
            taken.append(time.process_time() - begun_s)
        return statistics.median(taken) * 1e6


def wake(folder: Path, size: int) -> float:
    """The median time from an append to its reader, in microseconds, with so many bystanders."""
    path = folder / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=size + 1)
        reader = assigned(store, 1)
        arrived, taken = threading.Semaphore(0), []

        def stand_by(number: int) -> None:
            consumer = store.consumer()
            consumer.assign([TopicPartition("t", number)])
            while not consumer.poll(60):
                pass

        def read() -> None:
            while len(taken) < APPENDS:
                for record in reader.poll(60):
                    taken.append(time.monotonic_ns() - int(record.value or b"0"))
                    arrived.release()

        threads = [threading.Thread(target=stand_by, args=(one + 1,)) for one in range(size)]
        threads.append(threading.Thread(target=read))
        for thread in threads:
            thread.start()
        producer = store.producer()
        for _ in range(APPENDS):
            time.sleep(PAUSE_S)
            producer.append("t", partition=0, values=[b"%d" % time.monotonic_ns()])
            arrived.acquire()
        fill(store, size + 1)
        for thread in threads:
            thread.join()
    return statistics.median(taken) / 1e3


def close(folder: Path, size: int) -> float:
    """The syncs of a close after so many partitions were read."""
    sys.path.insert(0, str(TESTS))
    from call_faults import failing_calls

    path = made(folder, size)
    with eoslog.open(path, durability="process") as store:
        read_all(store, size)
        failing_calls.arm(path, "sync", 1 << 30, errno.EIO, again=False)
    return failing_calls.disarm()[0]


def files(folder: Path, size: int) -> float:
    """The segment files that are open after all of so many partitions were written and read."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    path = made(folder, size)
    with eoslog.open(path, durability="process") as store:
        fill(store, size)
        read_all(store, size)
        assert not store.verify()
        found = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                name = str(descriptor.readlink())
                found += name.startswith(str(path)) and name.endswith(".log")
    return found


def topic(folder: Path, size: int) -> float:
    """The median time of the last topics of so many, created one by one."""
    with eoslog.open(folder / "store", create=True, durability="process") as store:
        taken = []
        for number in range(size):
            begun_s = time.process_time()
            store.create_topic(f"topic-{number}")
            taken.append(time.process_time() - begun_s)
    return statistics.median(taken[-20:]) * 1e3


def state(folder: Path, size: int) -> float:
    """The bytes of `__transaction_state` after so many transactions of 100 ids."""
    path = folder / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
        producers = [store.producer(transactional_id=f"id-{number}") for number in range(IDS)]
        for producer in producers:
            producer.init_transactions()
        for number in range(size):
            producer = producers[number % IDS]
            producer.begin_transaction()
            producer.send("t", b"value")
            producer.commit_transaction()
    files = path.glob("__transaction_state-*/*")
    return sum(one.stat().st_size for one in files) / 1e6


def idle(folder: Path, size: int) -> float:
    """The CPU time of a store in which so many partitions were used once, for a while."""
    path = folder / "store"
    with eoslog.open(path, create=True, durability="process", config=SOON) as store:
        store.create_topic("t", partitions=size)
        fill(store, size)
        time.sleep(SETTLE_S)
        begun_s = time.process_time()
        time.sleep(IDLE_S)
        return (time.process_time() - begun_s) * 1e3


def export(folder: Path, size: int) -> float:
    """The time of an export of so many MB beside that of a copy, both with their syncs."""
    path = folder / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
        producer = store.producer()
        for _ in range(size):
            producer.append("t", partition=0, values=[os.urandom(1024)] * 1000)

    def timed(work: Callable[[Path], object]) -> float:
        target = folder / "target"
        begun_s = time.monotonic()
        work(target)
        taken_s = time.monotonic() - begun_s
        shutil.rmtree(target)
        os.sync()
        return taken_s

    def copy(target: Path) -> None:
        shutil.copytree(path, target)
        os.sync()

    def export_it(target: Path) -> None:
        eoslog.export_kafka(path, target)

    return statistics.median(timed(export_it) / timed(copy) for _ in range(EXPORTS))


def opening(folder: Path, size: int) -> float:
    """The median of openings after a clean close, with so many offsets committed."""
    path = folder / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=OFFSETS)
        for number in range(size // OFFSETS):
            with store.consumer(group=f"group-{number}") as consumer:
                consumer.assign([TopicPartition("t", one) for one in range(OFFSETS)])
                consumer.commit({TopicPartition("t", one): one for one in range(OFFSETS)})
    taken = []
    for _ in range(OPENINGS):
        begun_s = time.process_time()
        with eoslog.open(path, durability="process"):
            taken.append(time.process_time() - begun_s)
    return max(taken[0], statistics.median(taken)) * 1e3


def beyond_files(folder: Path, size: int) -> float:
    """The CPU time of an append in turn to so many partitions, in microseconds."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    with eoslog.open(folder / "store", create=True, durability="process") as store:
        store.create_topic("t", partitions=size)
        fill(store, size)
        producer = store.producer()
        begun_s = time.process_time()
        for _ in range(TURNS):
            for number in range(size):
                producer.append("t", partition=number, values=[b"value"])
        return (time.process_time() - begun_s) / TURNS / size * 1e6


class Cost(NamedTuple):
    what: str
    sizes: tuple[int, ...]
    measure: Callable[[Path, int], float]


COSTS = {
    "poll": Cost(
        "first poll of a consumer with so many partitions, ms of CPU",
        (500, 2000, 8000),
        first_poll,
    ),
    "init": Cost(
        "`init_transactions` with so many producers alive, µs of CPU",
        (100, 1000, 10_000),
        init_transactions,
    ),
    "wake": Cost(
        "append to reader with so many readers of other partitions, median µs", (0, 10, 40), wake
    ),
    "opening": Cost(
        "open after a clean close, with so many offsets of groups, ms of CPU",
        (100, 10_000, 100_000),
        opening,
    ),
    "close": Cost("syncs of a close after so many partitions were read", (1, 100, 1000), close),
    "topic": Cost("create the last topic of so many, ms of CPU", (100, 600, 3000), topic),
    "state": Cost(
        f"`__transaction_state` after so many transactions of {IDS} ids, MB",
        (10_000, 100_000, 400_000),
        state,
    ),
    "idle": Cost(
        f"a store with so many partitions used once, ms of CPU in {IDLE_S} idle seconds",
        (40, 400, 4000),
        idle,
    ),
    "files": Cost(
        f"segment files open, of so many partitions, where {FILES} files are allowed",
        (100, 1000, 10_000),
        files,
    ),
    "beyond": Cost(
        f"append in turn to so many partitions, where {FILES} files are allowed, µs of CPU",
        (400, 600, 1000),
        beyond_files,
    ),
    "export": Cost(
        "export to Kafka of so many MB, time beside a copy, both synced",
        (16, 128, 1024),
        export,
    ),
}


def measured(name: str, size: int) -> float:
    """One cost at one size, by a process of its own."""
    env = dict(os.environ)
    if name == "close":
        sys.path.insert(0, str(TESTS))
        from call_faults import failing_calls

        folder = Path(tempfile.gettempdir())
        env["LD_PRELOAD"] = str(failing_calls.build_library(folder))
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(size)],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show costs at rising sizes.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(COSTS)}; all if none is named")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, size = arguments.one
        with tempfile.TemporaryDirectory() as folder:
            print(COSTS[name].measure(Path(folder), int(size)))
        return
    unknown = set(arguments.names) - COSTS.keys()
    if unknown:
        parser.error(f"no such cost: {', '.join(sorted(unknown))}")
    print("| cost | size: measured | | |\n|---|---:|---:|---:|")
    for name in arguments.names or COSTS:
        cost = COSTS[name]
        cells = [f"{size:,}: {measured(name, size):.4g}" for size in cost.sizes]
        print(f"| {cost.what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
