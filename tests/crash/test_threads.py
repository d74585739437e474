"""Threads append, read, roll, delete and close at once: each record is there once, nobody dies."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.fork import in_child
from partition_files import PartitionFiles, all_records

import eoslog
from eoslog.errors import EoslogError, LogClosedError, OffsetOutOfRangeError
from eoslog.store.store import engine_of

pytestmark = pytest.mark.crash

TOPIC = "orders"
WRITERS = 3
SECONDS = 0.6
CONFIG = {"segment.bytes": 1 << 14, "eoslog.spare.segments": 1}


class Crew:
    """Threads that repeat their work until told to stop; an error of one is everybody's."""

    def __init__(self, expected: tuple[type[Exception], ...] = ()) -> None:
        self._expected = expected
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._errors: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> None:
        def repeat() -> None:
            try:
                while not self._stop.is_set():
                    work()
            except self._expected:
                return
            except BaseException as error:
                self._errors.append(error)
                self._stop.set()

        self._threads.append(threading.Thread(target=repeat))
        self._threads[-1].start()

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """So long at least, and until there is something to look at."""
        self._stop.wait(seconds)
        while not until() and not self._stop.wait(0.01):
            pass
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def join_all(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class Writer:
    """One producer; its values count up."""

    def __init__(self, log, producer_id: int) -> None:
        self._log = log
        self._producer_id = producer_id
        self._noise = random.Random(producer_id)
        self.acknowledged = 0

    def append(self) -> None:
        count = self._noise.randint(1, 20)
        first = self.acknowledged
        values = [b"%d:%d" % (self._producer_id, first + index) for index in range(count)]
        result = self._log.append_columns(
            values,
            timestamp_ms=1_790_000_000_000,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=first,
        )
        assert not result.duplicate
        self.acknowledged += count


def check_order(values: list[bytes], acknowledged: list[int], *, gone: int = 0) -> None:
    """Per producer the numbers rise by one; the last acknowledged one is there."""
    found: dict[int, list[int]] = {}
    for value in values:
        producer, number = value.split(b":")
        found.setdefault(int(producer), []).append(int(number))
    for producer, count in enumerate(acknowledged):
        numbers = found.get(producer, [])
        if not gone:
            assert numbers == list(range(len(numbers)))
        if numbers:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert numbers[-1] + 1 >= count


class Reader:
    """Follows the log from its start on; retention may overtake it."""

    def __init__(self, log) -> None:
        self._log = log
        self._offset = 0
        self._noise = random.Random(7)

    def read(self) -> None:
        try:
            records, next_offset = self._log.fetch_records(self._offset, 100, 1 << 16)
            columns = self._log.fetch_columns(self._offset, 1 << 16)
            self._log.offset_for_timestamp(1_790_000_000_000)
        except OffsetOutOfRangeError:
            self._offset = self._log.log_start_offset
            return
        offsets = [record.offset for record in records]
        assert offsets == list(range(self._offset, self._offset + len(offsets)))
        if columns is not None:
            assert columns.offsets[0] == self._offset
        self._offset = next_offset if self._noise.random() < 0.9 else self._log.log_start_offset


def upkeep(log, noise: random.Random, *, deletes: bool) -> None:
    """What the store's own thread does, all the time."""
    time.sleep(0.001)
    work = noise.randrange(6)
    if work == 0:
        log.flush(noise.random() < 0.5)
    elif work == 1:
        log.roll()
    elif work == 2:
        _, offset = log.dirty_producers()
        log.producers_persisted(offset)
    elif work == 3:
        log.prepare_spare(1)
    elif work == 4 and deletes:
        log.take_snapshot()
        log.delete_segments(log.log_end_offset - 500)
    else:
        log.segments(), log.producers(), log.verify()


@pytest.mark.parametrize("deletes", [False, True])
def test_everything_at_once(tmp_path, deletes):
    in_child(lambda: everything_at_once(tmp_path, deletes))


def everything_at_once(root: Path, deletes: bool) -> None:
    files = PartitionFiles(root, CONFIG)
    log = files.open()
    crew = Crew()
    writers = [Writer(log, number) for number in range(WRITERS)]
    noise = random.Random(1)
    for work in (
        *(writer.append for writer in writers),
        Reader(log).read,
        Reader(log).read,
        lambda: upkeep(log, noise, deletes=deletes),
    ):
        crew.start(work)
    crew.wait(SECONDS, until=lambda: all(writer.acknowledged for writer in writers))
    acknowledged = [writer.acknowledged for writer in writers]
    assert min(acknowledged) > 0
    values = [record.value for record in all_records(log)]
    check_order(values, acknowledged, gone=log.log_start_offset)
    log = files.reopen(clean=False)
    check_order([r.value for r in all_records(log)], acknowledged, gone=log.log_start_offset)
    files.close()


@pytest.mark.parametrize("clean", [True, False])
def test_closing_while_others_work(tmp_path, clean):
    in_child(lambda: closing_while_others_work(tmp_path, clean))


def closing_while_others_work(root: Path, clean: bool) -> None:
    """They are told so by name; what was acknowledged before is there."""
    for number in range(12):
        files = PartitionFiles(root / str(number), CONFIG)
        log = files.open()
        crew = Crew(expected=(LogClosedError,))
        writers = [Writer(log, producer) for producer in range(WRITERS)]
        noise = random.Random(number)
        for work in (
            *(writer.append for writer in writers),
            Reader(log).read,
            lambda log=log, noise=noise: upkeep(log, noise, deletes=False),
        ):
            crew.start(work)
        time.sleep(noise.random() * 0.05)
        log.close(clean)
        crew.join_all()
        acknowledged = [writer.acknowledged for writer in writers]
        log = files.open(clean=clean)
        check_order([record.value for record in all_records(log)], acknowledged)
        files.close()


def test_closing_a_store_while_others_work(tmp_path):
    in_child(lambda: closing_a_store_while_others_work(tmp_path))


def closing_a_store_while_others_work(root: Path) -> None:
    path = root / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, config={"segment.bytes": 1 << 14})
    for number in range(6):
        store = eoslog.open(path, config={"eoslog.checkpoint.interval.ms": 5})
        crew = Crew(expected=(LogClosedError,))
        sent = [0] * WRITERS
        for producer in range(WRITERS):
            crew.start(named_work(store, producer, sent))
        consumer = store.consumer()
        consumer.assign([eoslog.TopicPartition(TOPIC, 0)])
        crew.start(lambda consumer=consumer: consumer.poll(timeout=0.01))
        time.sleep(0.02 + random.Random(number).random() * 0.1)
        store.close()
        crew.join_all()
        with eoslog.open(path) as again:
            values = [record.value for record in all_records(engine_of(again).partition(TOPIC, 0))]
            for producer in range(WRITERS):
                numbers = [int(v[2:]) for v in values if v.startswith(b"%d:" % producer)]
                assert numbers == list(range(len(numbers)))
                assert len(numbers) >= sent[producer]


def named_work(store: eoslog.Store, producer: int, sent: list[int]) -> Callable[[], object]:
    """A named producer that goes on where it left off; some records one by one."""
    named: list[eoslog.Producer] = []

    def work() -> None:
        if not named:
            named.append(store.producer(name=f"writer-{producer}"))
            sent[producer] = named[0].next_sequence(TOPIC, 0)
        first = sent[producer]
        values = [b"%d:%d" % (producer, first + index) for index in range(5)]
        try:
            if first % 2:
                for value in values:
                    named[0].send(TOPIC, value=value, partition=0)
                named[0].flush()
            else:
                named[0].append(TOPIC, partition=0, values=values)
        except EoslogError as error:
            assert isinstance(error, LogClosedError), error
            raise
        sent[producer] += 5

    return work
