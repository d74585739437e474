"""Many threads write transactions, others read: none sees a record that is not committed."""

from __future__ import annotations

import threading
import time

import pytest

import eoslog
from eoslog import TopicPartition

TOPIC = "orders"
PARTITIONS = 2
WRITERS = 4
GROUP = "progress"
SECONDS_MAX = 300.0
PLACES = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
DONE = b"done"


def value_of(writer: int, number: int, part: int) -> bytes:
    return b"%d:%d:%d" % (writer, number, part)


def fate_of(value: bytes) -> tuple[int, int, int]:
    writer, number, part = value.split(b":")
    return int(writer), int(number), int(part)


def is_committed(number: int) -> bool:
    return number % 3 != 0


class Writer(threading.Thread):
    """Transactions over both partitions, some in several batches, a third of them aborted."""

    def __init__(self, store: eoslog.Store, number: int, count: int) -> None:
        super().__init__()
        self._number = number
        self._count = count
        self._producer = store.producer(transactional_id=f"writer-{number}")
        self._producer.init_transactions()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(self._count):
                self._write(number)
        except BaseException as error:
            self.failure = error

    def _write(self, number: int) -> None:
        producer = self._producer
        producer.begin_transaction()
        for part in range(4):
            value = value_of(self._number, number, part)
            producer.send(TOPIC, value, partition=part % PARTITIONS)
            if (number + part) % 2:
                producer.flush()
        place = TopicPartition(TOPIC, self._number % PARTITIONS)
        producer.send_offsets_to_transaction({place: number}, f"{GROUP}-{self._number}")
        if is_committed(number):
            producer.commit_transaction()
        else:
            producer.abort_transaction()


class Reader(threading.Thread):
    """Reads on as records come, by one of the consumer's two ways, until the last one."""

    def __init__(self, store: eoslog.Store, by_columns: bool, deadline_s: float) -> None:
        super().__init__()
        self._consumer = store.consumer()
        self._consumer.assign(PLACES)
        self._by_columns = by_columns
        self._deadline_s = deadline_s
        self.seen: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}

    def run(self) -> None:
        ends = 0
        while ends < PARTITIONS and time.monotonic() < self._deadline_s:
            for partition, value in self._next():
                if value == DONE:
                    ends += 1
                else:
                    self.seen[partition].append(value)

    def _next(self) -> list[tuple[int, bytes]]:
        if not self._by_columns:
            return [(one.partition, one.value) for one in self._consumer.poll(timeout=0.1)]
        batch = self._consumer.poll_arrow(timeout=0.1)
        columns = (batch.column(name).to_pylist() for name in ("partition", "value"))
        return list(zip(*columns, strict=True))


def watch_the_bounds(store: eoslog.Store, stop: threading.Event, failures: list[str]) -> None:
    """The last stable offset never goes back, and never passes the first open transaction."""
    before = [0] * PARTITIONS
    while not stop.is_set():
        for number in range(PARTITIONS):
            partition = store.partition(TOPIC, number)
            stable = partition.last_stable_offset
            opened = partition.open_transactions()
            if stable < before[number]:
                failures.append(f"the last stable offset went from {before[number]} to {stable}")
            if opened and stable > opened[0].first_offset:
                # Those that are open now may have begun since: their offsets are higher.
                failures.append(f"{stable} is beyond {opened[0].first_offset}")
            before[number] = stable


@pytest.mark.parametrize("segment_bytes", [1 << 20, 4000])
def test_readers_see_what_is_committed(tmp_path, segment_bytes):
    count = 150
    config = {"eoslog.spare.segments": 0}
    with eoslog.open(tmp_path / "store", create=True, config=config) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": segment_bytes})
        deadline_s = time.monotonic() + SECONDS_MAX
        writers = [Writer(store, number, count) for number in range(WRITERS)]
        readers = [Reader(store, by_columns, deadline_s) for by_columns in (False, True)]
        stop, failures = threading.Event(), []
        watcher = threading.Thread(target=watch_the_bounds, args=(store, stop, failures))
        for thread in (*readers, watcher, *writers):
            thread.start()
        for writer in writers:
            writer.join()
            assert writer.failure is None, writer.failure
        with store.producer() as producer:
            for number in range(PARTITIONS):
                producer.append(TOPIC, partition=number, values=[DONE])
        for reader in readers:
            reader.join()
        stop.set()
        watcher.join()
        assert failures == []
        check_what_was_seen(readers, count)
        check_the_groups(store, count)
    with eoslog.open(tmp_path / "store") as store:
        late = Reader(store, False, time.monotonic() + SECONDS_MAX)
        late.run()
        assert late.seen == readers[0].seen
        assert store.verify() == []


def check_what_was_seen(readers: list[Reader], count: int) -> None:
    """Each committed record once, each writer's in its order, and the same by both ways."""
    assert readers[0].seen == readers[1].seen
    for number in range(PARTITIONS):
        found = [fate_of(value) for value in readers[0].seen[number]]
        for writer in range(WRITERS):
            expected = [
                (writer, transaction, part)
                for transaction in range(count)
                if is_committed(transaction)
                for part in range(4)
                if part % PARTITIONS == number
            ]
            assert [one for one in found if one[0] == writer] == expected


def check_the_groups(store: eoslog.Store, count: int) -> None:
    last = max(number for number in range(count) if is_committed(number))
    for writer in range(WRITERS):
        with store.consumer(group=f"{GROUP}-{writer}") as consumer:
            assert consumer.committed(TopicPartition(TOPIC, writer % PARTITIONS)) == last
