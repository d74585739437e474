"""What the members of a recorded life do until they are killed: all that they are told is written
down (`eoslog.checking.Recorder`), each member's in a file of its own.

To what `recorded_worker` does come staged jobs, names, sequences that begin just below their wrap,
and clocks that jump.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from checking.recorded_worker import EVENTS, LANES, PARTITIONS, Worker
from checking.recorded_worker import all_partitions as partitions_of_all
from checking.recorded_worker import finish as finish_all
from harness.member_main import Hand
from processes.index_watch import IndexWatch
from stores import start_at_epoch

from eoslog import TopicPartition
from eoslog.checking import Recorder
from eoslog.errors import (
    EoslogError,
    InvalidTimestampError,
    ProducerFencedError,
    StagedJobIncompleteError,
    TopicAlreadyExistsError,
)
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import engine_of

IDS = [f"{what}-{lane}" for what in ("lane", "loop", "member") for lane in range(LANES)]
# One transaction from the last epoch of an id, a few, and many.
EPOCHS = (0, 32_700, 32_760, 32_766)
LARGEST_SEQUENCE = 2**31 - 1
# Takes nothing of a far day; comes and goes.
STRICT, PASSING = "strict", "passing"
LATE_MS = 1 << 52
WATCH_PAUSE_S = 0.003
# Far enough for timeouts, not for what expires in days.
JUMPS_MAX_S = 3 * 3600


class JumpingClock:
    """The wall clock of this process: now and then it is set to another time."""

    def __init__(self, noise: random.Random) -> None:
        self._noise = noise
        self._real = time.time_ns
        self._ahead_ns = 0
        time.time_ns = self

    def __call__(self) -> int:
        return self._real() + self._ahead_ns

    def jump(self) -> None:
        self._ahead_ns = self._noise.choice((0, 1, -1)) * self._noise.randrange(
            JUMPS_MAX_S * 1_000_000_000
        )


class LongWorker(Worker):
    """A member's clients."""

    def __init__(self, hand: Hand, recorder: Recorder, lane: int, seed: int) -> None:
        super().__init__(hand.store, recorder, lane, seed, lambda: False)
        self._hand = hand
        self._clock = JumpingClock(self.noise)

    def run(self) -> None:
        work = (self.plain, self.transactions, self.transactions, self.loop, self.member)
        work += (self.staged, self.named, self.wrapping, self.refused, self.passing)
        while True:
            if self.noise.random() < 0.3:
                self._clock.jump()
            one = self.noise.choice(work)
            try:
                one()
                self._hand.say("did", one.__name__)
            except EoslogError as error:
                self._hand.say("met", one.__name__, type(error).__name__)

    def named(self) -> None:
        """A name, which others may take over."""
        with self.recorder.producer(self.store.producer(name=f"name-{self.lane}")) as producer:
            for _ in range(self.noise.randrange(20)):
                producer.append(EVENTS, self.lane % PARTITIONS, [self.value(), self.value()])

    def wrapping(self) -> None:
        """A producer whose sequences begin just below their end: they go on at 0."""
        plain = self.store.producer()
        where = TopicPartition(EVENTS, self.noise.randrange(PARTITIONS))
        sequenced = plain._identity.sequenced(where)
        sequenced.stands_at(LARGEST_SEQUENCE - self.noise.randrange(9), sequenced.position)
        with self.recorder.producer(plain) as producer:
            for _ in range(self.noise.randrange(2, 12)):
                values = [self.value() for _ in range(self.noise.choice((1, 3)))]
                producer.append(EVENTS, where.partition, values)

    def refused(self) -> None:
        """Commits that one partition refuses when the others have their records, and what comes
        after them.
        """
        with self.transactional("lane") as producer, self.reader() as reader:
            for _ in range(self.noise.randrange(10)):
                producer.begin_transaction()
                for where in self.noise.sample(partitions_of_all(), 3):
                    producer.send(where.topic, self.value(), partition=where.partition)
                if self.noise.random() < 0.6:
                    producer.send(STRICT, self.value(), partition=0, timestamp_ms=LATE_MS)
                try:
                    producer.commit_transaction()
                except InvalidTimestampError:
                    producer.abort_transaction()
                reader.poll(0)

    def passing(self) -> None:
        """Transactions with a topic that anybody deletes, and makes again, at any time.

        What is in it is in `EVENTS` too: a reader of committed data finds both or neither. Its name
        stands for one topic after the other, so a history has no place for what is in it.
        """
        with self.transactional("lane") as producer:
            for _ in range(self.noise.randrange(10)):
                if self.noise.random() < 0.3:
                    with suppress(TopicAlreadyExistsError):
                        self.store.create_topic(PASSING, PARTITIONS)
                producer.begin_transaction()
                try:
                    for _ in range(self.noise.randrange(1, 4)):
                        both, where = self.value(), self.noise.randrange(PARTITIONS)
                        producer.send(EVENTS, both, partition=where)
                        producer.producer.send(PASSING, both, partition=where)
                    if self.noise.random() < 0.3:
                        self.store.delete_topic(PASSING)
                    producer.commit_transaction()
                except ProducerFencedError:
                    raise
                except EoslogError:
                    producer.abort_transaction()

    def staged(self) -> None:
        """Jobs of an application, of which the newest run alone commits."""
        store, app = self.store, f"job-{self.lane}"
        client = self.recorder.new_client("job")
        begun = self.recorder.start(client, "init", transactional_id=app)
        try:
            run_id = store.begin_run(app)
        except BaseException as error:
            begun.raised(error)
            raise
        begun.ok()
        for _ in range(self.noise.randrange(1, 5)):
            self.one_job(client, app, run_id)

    def one_job(self, client: str, app: str, run_id: str) -> None:
        name = f"{app}-{self.value().decode()}"
        ids: dict[str, Any] = {"transaction": name, "transactional_id": app}
        known = self.store.application(app)
        version = 0 if known is None else known.version + 1
        messages = []
        for attempt in range(self.noise.randrange(1, 4)):
            writer = StagedWriter(
                self.store.path,
                app,
                run_id,
                f"{name}-{attempt}",
                partitions={EVENTS: PARTITIONS},
                durability=self.store.durability,
            )
            where = self.noise.randrange(PARTITIONS)
            values = [self.value() for _ in range(self.noise.choice((1, 5, 50)))]
            sent = self.recorder.start(
                client,
                "send",
                topic=EVENTS,
                partition=where,
                values=[one.decode() for one in values],
                **ids,
            )
            writer.append(EVENTS, where, values)
            messages.append(writer.close())
            sent.ok()
        commit = self.recorder.start(client, "commit", **ids)
        try:
            done = self.store.commit_staged(app, version, messages, run_id)
        except StagedJobIncompleteError as error:
            commit.unknown(error)
            raise
        except BaseException as error:
            commit.raised(error)
            raise
        (commit.ok if done.committed else commit.fail)()


def work(hand: Hand, history: str, lane: int, seed: int) -> None:
    """For ever."""
    with Recorder(history) as recorder:
        LongWorker(hand, recorder, lane, seed).run()


def watch_index(hand: Hand) -> None:
    """For ever: the index of the coordinator's log is as true as it says, whoever writes it."""
    watch = IndexWatch(hand.store)
    while True:
        watch.look()
        time.sleep(WATCH_PAUSE_S)


def begin(hand: Hand, seed: int) -> list[str]:
    """The topics, and ids that have almost no epochs left: which."""
    noise = random.Random(seed)
    for topic in {where.topic for where in partitions_of_all()}:
        hand.store.create_topic(topic, PARTITIONS, config={"segment.bytes": 1 << 16})
    hand.store.create_topic(STRICT, config={"message.timestamp.after.max.ms": JUMPS_MAX_S * 1000})
    worn = []
    for transactional_id in IDS:
        epoch = noise.choice(EPOCHS)
        if epoch:
            start_at_epoch(hand.store, transactional_id, epoch)
            worn.append(transactional_id)
    return worn


def finish(hand: Hand, history: str, worn: list[str]) -> dict[str, Any]:
    """Everything that is open is ended, all is read to its end, and the groups are asked.

    Says what is wrong with the store, and how many of the worn ids have a new producer id.
    """
    store = hand.store
    with Recorder(history) as recorder:
        finish_all(store, recorder)
    epochs = [store.describe_transaction(one).producer_epoch for one in worn]
    rotated = sum(epoch < min(EPOCHS[1:]) for epoch in epochs)
    return {"verify": store.verify(), "rotated": rotated, "halves": halves(store)}


def halves(store: Any) -> list[str]:
    """Committed records of the topic that comes and goes: those there twice, or not in `EVENTS`."""
    if PASSING not in store.topics():
        return []
    found: dict[str, list[bytes]] = {}
    for topic in (PASSING, EVENTS):
        with store.consumer(isolation_level="read_committed") as reader:
            reader.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
            found[topic] = [
                one.value for records in iter(partial(reader.poll, 0), []) for one in records
            ]
    counts, there = Counter(found[PASSING]), set(found[EVENTS])
    return [str(value) for value, count in counts.items() if count > 1 or value not in there]


def producers_in_bounded_memory(hand: Hand, count: int, first_id: int) -> dict[str, int]:
    """So many producers, each with a batch of its own: how much memory that took."""
    hand.store.create_topic("million", config={"segment.bytes": 1 << 26})
    partition = engine_of(hand.store).partition("million", 0)

    def append(ids: range) -> None:
        for producer_id in ids:
            partition.append_columns(
                [b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0
            )
            if producer_id % 5_000 == 0:
                partition.producer_state.persist()

    warm = min(50_000, count // 10)
    append(range(first_id, first_id + warm))
    before = resident_bytes()
    append(range(first_id + warm, first_id + count))
    found = {
        "grown_bytes": resident_bytes() - before,
        "in_memory": partition.log.producer_count,
        "records": partition.log_end_offset,
    }
    return found | {"known": len(partition.producers())}


def resident_bytes() -> int:
    """Anonymous memory of this process: what is mapped of files belongs to the page cache."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
