"""The child of the kill tests of transactions: writes, reads, and reports until it dies.

Arguments: the path, a seed, the durability. A lane is a thread with a transactional id. Its
transactions have numbers, and the one it does next is what its group's offset says, so that each
number is committed once. Now and then a lane aborts, is taken over by a successor, or takes too
long; a rival fences any of them; a reader tells what it saw. Each line on standard output is
written in one piece.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ProducerFencedError

TOPIC, SOURCE, GROUP = "killed", "source", "lanes"
PARTITIONS = 3
# Two of them share a partition of the state log.
LANE_IDS = ("Aa-lane", "BB-lane", "lane-2", "lane-3")
LANES = len(LANE_IDS)
# The background thread is as busy as the lanes.
BUSY = {
    "eoslog.checkpoint.interval.ms": 20,
    "log.flush.offset.checkpoint.interval.ms": 40,
    "log.initial.task.delay.ms": 30,
    "producer.id.expiration.check.interval.ms": 50,
    "log.retention.check.interval.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 50,
}
SHORT_TIMEOUT_MS = 20


def values_of(lane: int, number: int) -> dict[int, list[bytes]]:
    """What a lane's transaction of a number writes to each partition: the same in every run."""
    noise = random.Random(lane * 1_000_003 + number)
    values: dict[int, list[bytes]] = {}
    for partition in sorted(noise.sample(range(PARTITIONS), noise.randint(1, PARTITIONS))):
        count = noise.choice((1, 1, 2, 5, 30))
        values[partition] = [
            b"%d:%d:%d:" % (lane, number, index) + b"x" * noise.randrange(300)
            for index in range(count)
        ]
    return values


def source_of(lane: int) -> TopicPartition:
    return TopicPartition(SOURCE, lane)


def report(what: str, *numbers: int) -> None:
    os.write(1, (" ".join([what, *map(str, numbers)]) + "\n").encode())


class Lane:
    """One transactional id at work."""

    def __init__(self, store: eoslog.Store, lane: int, noise: random.Random) -> None:
        self._store = store
        self._lane = lane
        self._noise = noise

    def run(self) -> None:
        while True:
            timeout_ms = SHORT_TIMEOUT_MS if self._noise.random() < 0.2 else 60_000
            producer = self._new_producer(timeout_ms)
            try:
                while self._noise.random() < 0.9:
                    self._transaction(producer, timeout_ms)
                if self._noise.random() < 0.5:
                    producer.close()
            except ProducerFencedError:
                report("fenced", self._lane)

    def _new_producer(self, timeout_ms: int) -> eoslog.TransactionalProducer:
        producer = self._store.producer(
            transactional_id=LANE_IDS[self._lane], transaction_timeout_ms=timeout_ms
        )
        producer.init_transactions()
        return producer

    def _transaction(self, producer: eoslog.TransactionalProducer, timeout_ms: int) -> None:
        offsets = self._store.groups().get(GROUP, {})
        where = source_of(self._lane)
        number = offsets[where].offset if where in offsets else 0
        producer.begin_transaction()
        report("try", self._lane, number)
        self._write(producer, number)
        if timeout_ms == SHORT_TIMEOUT_MS and self._noise.random() < 0.1:
            time.sleep(2 * SHORT_TIMEOUT_MS / 1000)
        chance = self._noise.random()
        if chance < 0.15:
            producer.abort_transaction()
        elif chance < 0.2:
            self._new_producer(timeout_ms).close()
            producer.commit_transaction()
            raise AssertionError("a fenced producer has committed")
        else:
            producer.commit_transaction()
            report("ack", self._lane, number)

    def _write(self, producer: eoslog.TransactionalProducer, number: int) -> None:
        values = values_of(self._lane, number)
        offset_first = self._noise.random() < 0.5
        if offset_first:
            producer.send_offsets_to_transaction({source_of(self._lane): number + 1}, GROUP)
        for partition, ones in values.items():
            if self._noise.random() < 0.5:
                producer.append(TOPIC, partition=partition, values=ones)
            else:
                for value in ones:
                    producer.send(TOPIC, value=value, partition=partition)
            if self._noise.random() < 0.2:
                producer.flush()
        if not offset_first:
            producer.send_offsets_to_transaction({source_of(self._lane): number + 1}, GROUP)


def rival(store: eoslog.Store, noise: random.Random) -> None:
    """Takes over a lane's id now and then, or terminates its transaction as an operator."""
    while True:
        time.sleep(noise.random() * 0.03)
        transactional_id = noise.choice(LANE_IDS)
        if noise.random() < 0.5:
            with store.producer(transactional_id=transactional_id) as producer:
                producer.init_transactions()
        elif transactional_id in {one.transactional_id for one in store.transactions()}:
            store.abort_transaction(transactional_id)


def reader(store: eoslog.Store) -> None:
    """Tells what a committed reader sees."""
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        consumer.seek_to_end()
        report("ready")
        while True:
            for record in consumer.poll(timeout=1.0, max_records=20):
                lane, number, index = (record.value or b"").split(b":")[:3]
                report("saw", record.partition, record.offset, *map(int, (lane, number, index)))


def main() -> None:
    path, seed, durability = sys.argv[1:]
    noise = random.Random(int(seed))
    # Every second life has a journal, of the smallest size.
    journal = {"eoslog.journal.bytes": int(seed) % 2}
    store = eoslog.open(Path(path), durability=durability, config=BUSY | journal)
    lanes = noise.sample(range(LANES), noise.randint(1, LANES))
    start(lambda: reader(store))
    for lane in lanes:
        start(Lane(store, lane, random.Random(int(seed) * LANES + lane)).run)
    if noise.random() < 0.5:
        start(lambda: rival(store, noise))
    time.sleep(60)
    report("late")


def start(work: Callable[[], None]) -> None:
    """An error in a thread ends the process, and its message is the test's."""

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            print(f"{error!r}", file=sys.stderr, flush=True)
            os._exit(3)

    threading.Thread(target=guarded, daemon=True).start()


if __name__ == "__main__":
    main()
