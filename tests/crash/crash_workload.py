"""A short program that uses all of a store; each step goes on where a dead process stopped.

Whatever was done before, by whomever, `run` brings the store to the same end: each record of the
plan once, none of an aborted or an open transaction, each group where its outputs are. What was
acknowledged goes to a file of its own (`Acknowledged`) and to a history for `eoslog.checking`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import staged_jobs
from background_work import do_background_work
from commit_journals import SMALL, journal_of
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.checking import Recorder
from eoslog.errors import InvalidTimestampError
from eoslog.groups import membership as group_membership
from eoslog.staging import adoption as staged_adoption
from eoslog.staging import attempt_files
from eoslog.staging import job as staged_job
from eoslog.storage import log_opener
from eoslog.storage.process_journal import HALF_BYTES_MIN, ProcessJournal
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.checkpointer import Checkpointer
from eoslog.store.store import engine_of, parts_of

EVENTS, OUT, BULK, OLD, LANES, PASSING = "events", "out", "bulk", "old", "lanes", "passing"
SETTLED = "settled"
PARTITIONS = {EVENTS: 2, OUT: 2, BULK: staged_jobs.PARTITIONS, OLD: 1, LANES: 2, SETTLED: 1}
TOPIC_CONFIG = {
    EVENTS: {"segment.bytes": 1024, "index.interval.bytes": 256},
    OLD: {
        "segment.bytes": 1024,
        "retention.bytes": 2048,
        "message.timestamp.after.max.ms": 3_600_000,
    },
    BULK: {"segment.bytes": 16384},
}
# Names of which few partitions of the internal topics hold all: each costs every opening its time.
NUMBERS, SHARES, LOOKERS, APP = "numbers", "shares-34", "lookers-22", "app9"
LOADER, BULK_READERS = "loader", "bulk-readers-3"
SETTLER_ID, SETTLERS = "settler-19", "settlers-21"
LEFT_ID, TRANSACTIONS_ID, SHARES_ID = "left-6", "transactions-20", "shares-34"
NUMBER_AT = TopicPartition(LANES, 0)
LEFT_OPEN = TopicPartition(LANES, 1)
LOADED_AT = TopicPartition(LANES, 0)
SETTLED_AT = TopicPartition(SETTLED, 0)
OLD_AT = TopicPartition(OLD, 0)

NAMED_COUNT = (8, 10)  # In the first life, and with the second.
OLD_COUNT = 30
OLD_LEFT = 3
NAMED_BATCH = {EVENTS: 2, OLD: 5}
PLAIN_COUNT = 5
TRANSACTIONS = (2, 3)
SETTLED_COUNT = (2, 3)
# What comes before this one is refused half-way; were it not ended, the next would commit it.
REFUSED_BEFORE = 0
LATE_MS = 1 << 52
# Of so many tasks. Large files become the segment of an empty log, and segments behind others;
# those of the last job are small, and copied, batch by batch.
JOBS = (range(27), range(27, 63), range(63, 69))
TASKS = (1, 2, 1)
STAGED_BATCH_BYTES_MAX = 200
LOADS = 1
WHOLE_FILE_BYTES_MIN = 400
WRITTEN_BYTES_MIN = 300

PATIENT = {"linger.ms": 3_600_000}


def begin_journal(journal: ProcessJournal) -> None:
    """Make a file where a size was given, and leave what its thread does to the program."""
    if journal.fixed_bytes > 0:
        journal.take(HALF_BYTES_MIN)


def be_deterministic() -> None:
    """Each run makes the same changes: no thread but the program's own works on the store, and sets
    of partitions have an order that is not that of addresses.
    """
    Checkpointer.start = lambda self: not self._stopped  # type: ignore[method-assign]
    UnifiedLog.__hash__ = lambda self: crc32(str(self.topic_partition).encode())  # type: ignore
    ProcessJournal.begin = begin_journal  # type: ignore[method-assign]
    for module in (staged_adoption, attempt_files):
        module.run_together = one_after_another  # type: ignore
    staged_job.WHOLE_FILE_BYTES_MIN = WHOLE_FILE_BYTES_MIN
    log_opener.WRITTEN_BYTES_MIN = WRITTEN_BYTES_MIN
    # A member says that it lives when it joins, and not again if its process stood still meanwhile.
    group_membership.LOOK_AROUND_S = 3600.0


def one_after_another(calls: Iterable[Callable[[], Any]], _threads_max: int = 1) -> list[Any]:
    """What several threads would do at once."""
    return [call() for call in calls]


class Acknowledged:
    """How much of each lane was acknowledged; a file that only grows, by plain writes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.database = database_beside(path)

    def say(self, lane: str, count: int) -> None:
        os.write(self._file, f"{lane} {count}\n".encode())

    def close(self) -> None:
        os.close(self._file)

    @staticmethod
    def read(path: Path) -> dict[str, int]:
        counts: dict[str, int] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            lane, count = line.split()
            counts[lane] = max(counts.get(lane, 0), int(count))
        return counts | {"database": len(database_beside(path).tokens())}


def database_beside(acknowledged: Path) -> Database:
    """The database of a program whose acknowledgements go there."""
    return Database(acknowledged.with_name("database"))


class Database:
    """One that has transactions of its own: with each it keeps the token of one that is prepared
    in the store, which is committed by that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def commit(self, token: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{token}\n")

    def tokens(self) -> list[str]:
        """Of all its transactions, oldest first."""
        return self._path.read_text().split() if self._path.exists() else []


class Life:
    """The program in one open store."""

    def __init__(self, store: eoslog.Store, recorder: Recorder, acknowledged: Acknowledged) -> None:
        self.store, self.recorder, self._acknowledged = store, recorder, acknowledged
        self._database = acknowledged.database
        self._attempt = os.urandom(4).hex()
        self._left: Any = None

    def work(self, life: int) -> None:
        """All of the plan up to a life, 0 or 1; what is done already is not done again."""
        self.topics()
        self.left_open()
        self.named(EVENTS, NAMED_COUNT[life])
        self.plain()
        self.transactions(TRANSACTIONS[life])
        self.shares()
        self.jobs()
        self.loads()
        self.settled(SETTLED_COUNT[life])
        self.named(OLD, OLD_COUNT)
        self.housekeeping()
        self.deletion()
        self.passing_topic()
        self.looks()
        self.leave_open(life)

    def topics(self) -> None:
        for topic, partitions in PARTITIONS.items():
            if topic not in self.store.topics():
                self.store.create_topic(topic, partitions, config=TOPIC_CONFIG.get(topic))

    def left_open(self) -> None:
        """A transaction that nobody ends."""
        producer = self.recorder.producer(self.store.producer(transactional_id=LEFT_ID))
        producer.init_transactions()
        producer.begin_transaction()
        self._left = producer
        value = f"left:{self._attempt}".encode()
        producer.append(LEFT_OPEN.topic, LEFT_OPEN.partition, [value])

    def leave_open(self, life: int) -> None:
        """In the first life nobody has its producer any more when the store is closed, which aborts
        what it knows; in the second one somebody has.
        """
        if life == 0:
            self._left = None
            gc.collect()  # Else it would hang on chance whether the store still knows it.

    def named(self, topic: str, count: int) -> None:
        """A name goes on where it stopped; its batches are sent or appended."""
        with self.recorder.producer(
            self.store.producer(name=f"named-{topic}", config=PATIENT)
        ) as producer:
            position = producer.producer.next_sequence(topic, 0)
            while position < count:
                values = [
                    f"named-{topic}-{number}:".encode().ljust(100, b"n")
                    for number in range(position, min(position + NAMED_BATCH[topic], count))
                ]
                if position // NAMED_BATCH[topic] % 2:
                    producer.append(topic, 0, values)
                else:
                    for value in values:
                        producer.send(topic, value, partition=0)
                    producer.flush()
                position += len(values)
                self._say(f"named-{topic}", position)

    def plain(self) -> None:
        """A producer without a name: what of an earlier one is not in the log is sent again."""
        done = len(values_of_lane(self.read(EVENTS, 1), "plain"))
        with self.recorder.producer(self.store.producer(config=PATIENT)) as producer:
            for number in range(done, PLAIN_COUNT):
                producer.send(EVENTS, f"plain-{number}:".encode(), key=b"k", partition=1)
            producer.flush()
        self._say("plain", PLAIN_COUNT)

    def transactions(self, count: int) -> None:
        """Each over two partitions, with the group's offset behind its number; some abort first."""
        producer = self.recorder.producer(self.store.producer(transactional_id=TRANSACTIONS_ID))
        producer.init_transactions()
        for number in range(self.offset(NUMBERS, NUMBER_AT), count):
            if number == REFUSED_BEFORE:
                self._refused(producer)
            for aborted in (True, False) if number % 2 else (False,):
                what = "aborted" if aborted else "transactions"
                producer.begin_transaction()
                for partition in range(2):
                    value = f"{what}-{number}:{self._attempt}-{partition}".encode()
                    producer.append(EVENTS, partition, [value.ljust(150, b"t")])
                producer.send(EVENTS, f"{what}-{number}:{self._attempt}".encode(), partition=0)
                producer.send_offsets_to_transaction({NUMBER_AT: number + 1}, NUMBERS)
                if aborted:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    self._say("transactions", number + 1)
        producer.close()

    def _refused(self, producer: Any) -> None:
        """A commit that the last partition refuses, when the others have their records."""
        producer.begin_transaction()
        for partition in range(PARTITIONS[LANES]):
            value = f"refused-{partition}:{self._attempt}".encode()
            producer.send(LANES, value, partition=partition)
        producer.send(OLD, f"refused:{self._attempt}".encode(), partition=0, timestamp_ms=LATE_MS)
        with suppress(InvalidTimestampError):
            producer.commit_transaction()
            raise AssertionError("a record of a far day was taken")
        producer.abort_transaction()

    def shares(self) -> None:
        """A member of a group reads, processes and writes what there is, and leaves."""
        producer = self.recorder.producer(self.store.producer(transactional_id=SHARES_ID))
        producer.init_transactions()
        consumer = self.recorder.consumer(
            self.store.consumer(SHARES, isolation_level="read_committed")
        )
        consumer.subscribe([EVENTS])
        while not consumer.assignment() or self._lag(consumer):
            records = consumer.poll(0.01, 10)
            if not records:
                continue
            producer.begin_transaction([consumer])
            for one in records:
                producer.send(OUT, b"of " + (one.value or b""), partition=one.partition)
            read = {TopicPartition(one.topic, one.partition) for one in records}
            offsets = {where: consumer.position(where) for where in read}
            producer.send_offsets_to_transaction(offsets, consumer.consumer.group_metadata())
            producer.commit_transaction()
            for where, offset in offsets.items():
                self._say(f"shares-{where.partition}", offset)
        consumer.close()
        producer.close()

    def _lag(self, consumer: Any) -> bool:
        ends = {
            where: engine_of(self.store).partition(*where).visible_end
            for where in consumer.assignment()
        }
        return any(consumer.position(where) < end for where, end in ends.items())

    def looks(self) -> None:
        """A consumer without transactions that commits where it stands."""
        with self.recorder.consumer(self.store.consumer(LOOKERS)) as consumer:
            where = TopicPartition(OUT, 0)
            consumer.assign([where])
            while consumer.poll(0, 100):
                consumer.commit()
                self._say("looks", consumer.position(where))

    def jobs(self) -> None:
        """Staged files of several tasks, and a group's offset, enter the log by one decision."""
        state = self.store.application(APP)
        done = -1 if state is None else state.version
        for version, numbers in enumerate(JOBS):
            if version <= done:
                continue
            attempt = f"{version}-{self._attempt}"
            messages = staged_jobs.stage_job(
                self.store.path,
                f"run-{attempt}",
                numbers,
                TASKS[version],
                app_id=APP,
                topic=BULK,
                batch_bytes_max=STAGED_BATCH_BYTES_MAX,
            )
            with self._staged_history(
                "jobs", f"jobs-{attempt}", map(staged_jobs.value_of, numbers)
            ):
                offsets = {BULK_READERS: {TopicPartition(BULK, 0): version + 1}}
                committed = self.store.commit_staged(APP, version, messages, offsets=offsets)
                assert committed.committed
            self._say("jobs", version + 1)
            # As the background thread does, but at the same place each time.
            parts_of(self.store).staged.clear_leftovers()

    def loads(self) -> None:
        """The same by one program, which stages in its run and commits."""
        state = self.store.application(LOADER)
        done = 0 if state is None else state.version + 1
        if done >= LOADS:
            return
        for number in range(done, LOADS):
            values = [f"load-{number}-{index}:".encode() for index in range(3)]
            name = f"loads-{number}-{self._attempt}"
            with self._staged_history("loads", name, values, LOADED_AT.topic):
                staged_jobs.load(self.store, LOADER, {LOADED_AT: values})
            self._say("loads", number + 1)

    def settled(self, count: int) -> None:
        """Transactions that are prepared, and committed when the database has; some never are."""
        producer = self.store.producer(transactional_id=SETTLER_ID)
        # What a dead one had prepared is committed if the database has its token, else aborted.
        if producer.init_transactions(keep_prepared=True) is not None:
            producer.complete_transaction(next(reversed(self._database.tokens()), None))
        for number in range(len(self._database.tokens()), count):
            self._settle(producer, number, aborted=True)
            self._settle(producer, number, aborted=False)
            self._say("settled", number + 1)
        producer.close()

    def _settle(self, producer: Any, number: int, *, aborted: bool) -> None:
        client, what = f"settled-{self._attempt}", "aborted" if aborted else "settled"
        name = f"{what}-{number}-{self._attempt}"
        value = f"{what}-{number}:{self._attempt}".encode()
        producer.begin_transaction()
        identities = [self.recorder.identity(None, value)]
        self.recorder.start(client, "send", topic=SETTLED, values=identities, transaction=name).ok()
        producer.append(*SETTLED_AT, [value])
        producer.send_offsets_to_transaction({SETTLED_AT: number + 1}, SETTLERS)
        token = str(producer.prepare_transaction())
        if aborted:
            # The database did not commit: its last token, if it has one, is another one's.
            assert not producer.complete_transaction(next(reversed(self._database.tokens()), None))
            return
        commit = self.recorder.start(client, "commit", transaction=name)
        self._database.commit(token)
        assert producer.complete_transaction(token)
        commit.ok()

    @contextmanager
    def _staged_history(
        self, client: str, name: str, values: Any, topic: str = BULK
    ) -> Iterator[None]:
        client = f"{client}-{self._attempt}"
        identities = [self.recorder.identity(None, value) for value in values]
        self.recorder.start(client, "send", topic=topic, values=identities, transaction=name).ok()
        commit = self.recorder.start(client, "commit", transaction=name)
        yield
        commit.ok()

    def housekeeping(self) -> None:
        """What the background thread does in time: rolls are noticed, old segments deleted."""
        engine_of(self.store).partition(EVENTS, 0).roll()
        checkpointer = parts_of(self.store).checkpointer
        for _ in range(2):
            do_background_work(
                self.store, without=("looking at other processes", "looking at open transactions")
            )
        # As the thread does at its end. Else the next life has the lead only if this one's store is
        # no more by then.
        checkpointer.peers.end()
        assert checkpointer.metrics()["errors"] == []
        self.store.flush()

    def deletion(self) -> None:
        """All but the last records go, up to the middle of a batch."""
        highest = engine_of(self.store).partition(OLD, 0).last_stable_offset
        offset = highest - OLD_LEFT
        assert self.store.delete_records({OLD_AT: offset}) == {OLD_AT: offset}
        self._say("deletion", offset)

    def passing_topic(self) -> None:
        """A topic that comes, is altered while its first segment is empty, and another time, is
        written to by a name each time, and goes.
        """
        if PASSING not in self.store.topics():
            self.store.create_topic(PASSING, 1, config={"segment.bytes": 1024})
        with self.store.producer(name="passing") as producer:
            assert engine_of(self.store).partition(PASSING, 0).log_end_offset >= 0
            for partitions, segment_bytes in ((2, 8192), (3, 2048)):
                partitions = max(partitions, self.store.topics()[PASSING].partitions)
                self.store.alter_topic(
                    PASSING, {"segment.bytes": segment_bytes}, partitions=partitions
                )
                for number in range(partitions):
                    producer.append(PASSING, number, [b"p" * (segment_bytes - 200)])
        self.store.delete_topic(PASSING)
        self._say("passing", 1)

    def read(self, topic: str, partition: int) -> list[bytes]:
        return [value for _, value in read(self.store, topic, partition)]

    def offset(self, group: str, where: TopicPartition) -> int:
        with self.store.consumer(group) as consumer:
            return consumer.committed(where) or 0

    def _say(self, lane: str, count: int) -> None:
        self._acknowledged.say(lane, count)
        # As the journal's thread does, but at the same place each time.
        assert journal_of(self.store).empty_all()


def opened(path: Path, **settings: int) -> eoslog.Store:
    return eoslog.open(path, create=True, durability="commit", config=QUIET | settings)


def run(path: Path, history: Path, acknowledged: Path) -> None:
    """Both lives, each with a store of its own; the first one commits by a journal."""
    said = Acknowledged(acknowledged)
    with Recorder(history) as recorder:
        for life, settings in enumerate((SMALL, {})):
            with opened(path, **settings) as store:
                alive = Life(store, recorder, said)
                alive.work(life)
            said.say("lives", life + 1)
    said.close()


def read(
    store: eoslog.Store, topic: str, partition: int, isolation: str = "read_committed"
) -> list[tuple[int, bytes]]:
    """Offset and value of all records of a partition, in order."""
    found: list[tuple[int, bytes]] = []
    with store.consumer(isolation_level=isolation) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        while records := consumer.poll(0, 1000):
            found += [(one.offset, one.value or b"") for one in records]
    return found


def values_of_lane(values: list[bytes], lane: str) -> list[bytes]:
    return [value for value in values if value.startswith(lane.encode() + b"-")]


def numbers_of_lane(values: list[bytes], lane: str) -> list[int]:
    """The numbers in `lane-number:...`, in order."""
    begin = len(lane) + 1
    return [int(value[begin : value.index(b":")]) for value in values_of_lane(values, lane)]
