"""What a recorded client of a store does until it is told to stop, or is killed.

It writes with and without transactions, reads, and runs a loop that reads, processes and writes, as
the only owner of a partition or as a member of a group. Ids are those of its lane: another process
with the same lane takes them over.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress

import eoslog
from eoslog import TopicPartition
from eoslog.checking import RecordedConsumer, RecordedProducer, Recorder
from eoslog.errors import CommitFailedError, EoslogError

EVENTS, OUT, SHARED = "events", "out", "shared"
LOOP, MEMBERS = "loop", "members"
PARTITIONS = 2
LANES = 2


class Worker:
    """One thread's clients."""

    def __init__(
        self,
        store: eoslog.Store,
        recorder: Recorder,
        lane: int,
        seed: int,
        stop: Callable[[], bool],
    ) -> None:
        self.store, self.recorder, self.lane = store, recorder, lane
        self.noise = random.Random(seed)
        self.stop = stop
        self.numbers = itertools.count()
        self.name = recorder.new_client("value")

    def value(self) -> bytes:
        return f"{self.name}-{next(self.numbers)}".encode()

    def run(self) -> None:
        """Life after life: whoever is fenced begins anew, and fences the other."""
        work = (self.plain, self.transactions, self.loop, self.member)
        while not self.stop():
            with suppress(EoslogError):
                self.noise.choice(work)()

    def plain(self) -> None:
        with self.recorder.producer(self.store.producer()) as producer, self.reader() as reader:
            for _ in range(self.noise.randrange(20)):
                if self.noise.random() < 0.5:
                    where = self.noise.choice((0, 1, None))
                    producer.append(EVENTS, where, [self.value() for _ in range(3)])
                else:
                    producer.send(EVENTS, self.value(), partition=self.noise.choice((0, 1, None)))
                if self.noise.random() < 0.5:
                    producer.flush()
                reader.poll(0, 10)
                if self.noise.random() < 0.3:
                    reader.end_offsets(all_partitions())

    def transactions(self) -> None:
        with self.transactional("lane") as producer, self.reader() as reader:
            for _ in range(self.noise.randrange(10)):
                producer.begin_transaction()
                for _ in range(self.noise.randrange(1, 5)):
                    topic, where = self.noise.choice((EVENTS, OUT)), self.noise.randrange(2)
                    if self.noise.random() < 0.5:
                        producer.append(topic, where, [self.value(), self.value()])
                    else:
                        producer.send(topic, self.value(), partition=where)
                if self.noise.random() < 0.2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                reader.poll(0)
                if self.noise.random() < 0.3:
                    reader.end_offsets(all_partitions())

    def loop(self) -> None:
        where = TopicPartition(EVENTS, self.lane % PARTITIONS)
        with self.transactional("loop") as producer, self.group(LOOP) as consumer:
            consumer.assign([where])
            consumer.committed([where])
            for _ in range(self.noise.randrange(20)):
                self.one_share(producer, consumer, OUT)

    def member(self) -> None:
        with self.transactional("member") as producer, self.group(MEMBERS) as consumer:
            consumer.subscribe([EVENTS])
            for _ in range(self.noise.randrange(40)):
                try:
                    self.one_share(producer, consumer, SHARED)
                except CommitFailedError:
                    producer.abort_transaction()
                    consumer.seek_to_committed()

    def one_share(self, producer: RecordedProducer, consumer: RecordedConsumer, topic: str) -> None:
        records = consumer.poll(0.01, self.noise.choice((1, 5, 50)))
        if not records:
            return
        producer.begin_transaction([consumer])
        for record in records:
            producer.send(topic, b"of " + (record.value or b""), partition=record.partition)
        ends = {TopicPartition(one.topic, one.partition) for one in records}
        offsets = {where: consumer.position(where) for where in ends}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()

    def transactional(self, what: str) -> RecordedProducer:
        producer = self.recorder.producer(
            self.store.producer(transactional_id=f"{what}-{self.lane}")
        )
        producer.init_transactions()
        return producer

    def group(self, name: str) -> RecordedConsumer:
        return self.recorder.consumer(self.store.consumer(name, isolation_level="read_committed"))

    def reader(self) -> RecordedConsumer:
        isolation = self.noise.choice(("read_committed", "read_uncommitted"))
        reader = self.recorder.consumer(self.store.consumer(isolation_level=isolation))
        reader.assign(all_partitions())
        if self.noise.random() < 0.5:
            reader.seek_to_end()
        return reader


def all_partitions() -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in (EVENTS, OUT, SHARED)
        for number in range(PARTITIONS)
    ]


def finish(store: eoslog.Store, recorder: Recorder) -> None:
    """Every id is taken over, everything is read to its end, and the groups are asked."""
    worker = Worker(store, recorder, 0, 0, lambda: True)
    for lane in range(LANES):
        worker.lane = lane
        for what in ("lane", "loop", "member"):
            worker.transactional(what).close()
    everyone = recorder.consumer(store.consumer(isolation_level="read_uncommitted"))
    everyone.end_offsets(all_partitions())
    for isolation in ("read_committed", "read_uncommitted"):
        reader = recorder.consumer(store.consumer(isolation_level=isolation))
        reader.assign(all_partitions())
        while reader.poll(0):
            pass
        reader.poll(0)
    for group in (LOOP, MEMBERS):
        worker.group(group).committed(all_partitions()[:PARTITIONS])
