"""A store's calls one after the other, any of which may fail; what must be in the store then.

A call that returned is acknowledged: all it wrote is there ever after. One that raised an error of
eoslog wrote all or nothing, and nothing if the error says so. Any other exception is a fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from call_faults import failing_calls
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.common.prepared_transaction import PreparedTransaction
from eoslog.errors import EoslogError
from eoslog.staging import job as staged_job
from eoslog.staging.writer import StagedWriter
from eoslog.store.store import parts_of

TOPIC, SOURCE, EXTRA, STRICT = "orders", "source", "extra", "strict"
PARTITIONS = 2
PLACES = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
EXTRA_PLACE = TopicPartition(EXTRA, 0)
HELD_PLACE = TopicPartition("held", 0)
# Of another process that works there meanwhile: its values begin so, and it has a topic of its own.
BESIDE = b"beside:"
BESIDE_PLACE = TopicPartition("beside", 0)
NAME, ID, MOVING_ID, HELD_ID = "writer", "pays", "moves", "holds"
APP, GROUP, PLAIN_GROUP = "job", "readers", "plain"
LATE_MS = 1 << 52
JOURNAL_S = 0.3
# Calls after which what they wrote is on the disk.
DURABLE = ("flush", "commit", "commit offsets", "commit a job", "prepare", "flush the store")
# A small journal is retired all the time, a large one has all that was appended.
SMALL_JOURNAL, LARGE_JOURNAL = 1, 1 << 21
# Whether the records are gathered, and how it ends.
TRANSACTIONS = (
    (False, "commit"),
    (False, "abort"),
    (False, "commit"),
    (True, "commit"),
    (True, "refused"),
    (True, "commit"),
)
SETTINGS = QUIET | {"eoslog.spare.segments": 1}

Values = dict[TopicPartition, list[bytes]]


def make(path: Path) -> None:
    """The store that the work begins with."""
    config = {"segment.bytes": 2000, "retention.bytes": 2500}
    with eoslog.open(path, create=True, config=SETTINGS) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config=config)
        store.create_topic(SOURCE, partitions=2)
        store.create_topic(STRICT, config={"message.timestamp.after.max.ms": 1000})
        store.create_topic(HELD_PLACE.topic)
        store.create_topic(BESIDE_PLACE.topic)
        store.producer(name=NAME).append(TOPIC, partition=0, values=[b"first"])


class Dies(BaseException):
    """The process is to end here."""


class Work:
    """Does it all, and remembers what became of each call."""

    def __init__(
        self, path: Path, *, journal_bytes: int = 0, dies: bool = False, mark: bytes = b""
    ) -> None:
        """`journal_bytes`: it has one from the first open on, if a failing call does not keep it
        from being made. `dies`: it ends with the first call of the store in which a call of the
        system failed. `mark`: its values begin so.
        """
        self.path = path
        self.mark = mark
        self.dies = dies
        self.settings = SETTINGS | (
            {"eoslog.journal.bytes": journal_bytes} if journal_bytes else {}
        )
        self.there: Values = {place: [] for place in (*PLACES, BESIDE_PLACE)}
        if not mark:
            self.there[PLACES[0]].append(b"first")
        self.maybe: list[Values] = []  # All of one or nothing.
        self.never: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.offsets: dict[str, set[int | None]] = {GROUP: {None}, PLAIN_GROUP: {None}}
        self.topics: dict[str, bool | None] = {EXTRA: False}  # None: it may be there or not.
        # What was prepared, and is committed with an external database; by token what is not
        # decided here yet, or may be.
        self.held: list[bytes] = []
        self.owed: dict[str, list[bytes]] = {}
        self.errors: list[str] = []
        self.broken: list[str] = []
        self.number = 0
        self.store: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to check it."""
        return self.__dict__ | {"store": None}

    def attempt(self, what: str, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether the call returned, and with what: or the outcome of its error.

        Raises Dies instead of another call after the one in which this process is to die.
        """
        if self.dies and failing_calls.hits():
            raise Dies
        overlapped = failing_calls.overlapped()
        try:
            answer = call()
        except EoslogError as error:
            self.errors.append(f"{what}: {type(error).__name__}")
            return False, error.outcome
        except MemoryError:
            self.errors.append(f"{what}: MemoryError")
            return False, "not_appended"
        # Another sync of the same log failed meanwhile, and had the only report of it.
        if what in DURABLE and failing_calls.overlapped() > overlapped:
            self.broken.append(f"{what}: acknowledged beside a failed sync")
        return True, answer

    def values(self, count: int = 2) -> list[bytes]:
        self.number += 1
        return [self.mark + b"%d:%d:" % (self.number, index) + b"v" * 150 for index in range(count)]

    def wrote(self, done: bool, outcome: Any, values: Values) -> None:
        if done:
            for place, ones in values.items():
                if place in self.there:
                    self.there[place] += ones
        elif outcome == "not_appended":
            self.never.update(value for ones in values.values() for value in ones)
        else:
            self.maybe.append(
                {place: ones for place, ones in values.items() if place in self.there}
            )

    # The calls.

    def run(self) -> None:
        """Open the store, use it and close it, twice."""
        try:
            self.live()
            self.live()
        except Dies:
            pass

    def live(self, *, closes: bool = True) -> None:
        failing_calls.reopened()
        opened, self.store = self.attempt(
            "open", lambda: eoslog.open(self.path, durability="commit", config=self.settings)
        )
        if opened:
            self.use()
            if closes:
                self.attempt("close", self.store.close)

    def use(self) -> None:
        self.plainly(2)  # What a segment begins with is in its file, not in the journal.
        journal = parts_of(self.store).files.journal
        until_s = time.monotonic() + (JOURNAL_S if self.settings != SETTINGS else 0)
        while not journal.journal.usable and time.monotonic() < until_s:
            time.sleep(0.001)
        self.plainly(8)
        self.transactions()
        self.prepared()
        self.job()
        self.groups()
        self.housekeeping()
        self.topic()
        self.attempt("flush the store", self.store.flush)
        self.read()

    def read(self) -> None:
        for place in PLACES:
            self.attempt("read", lambda place=place: visible(self.store, place))
        self.attempt("metrics", self.store.metrics)
        self.attempt("verify", self.store.verify)

    def plainly(self, turns: int) -> None:
        done, producer = self.attempt("open a name", lambda: self.store.producer(name=NAME))
        if not done:
            return
        for turn in range(turns):
            place = PLACES[turn % PARTITIONS]
            values = self.values(4)
            how = self.attempt(
                "append",
                lambda place=place, values=values: producer.append(
                    place.topic, partition=place.partition, values=values
                ),
            )
            self.wrote(*how, {place: values})
            if turn % 3 == 0:
                self.attempt("flush", producer.flush)
        self.attempt("close a producer", producer.close)

    def transactions(self) -> None:
        """One producer goes on for as long as it can end what it began."""
        done, producer = self.attempt(
            "make a producer", lambda: self.store.producer(transactional_id=ID)
        )
        if not done or not self.attempt("init", producer.init_transactions)[0]:
            return
        for gathered, end in TRANSACTIONS:
            values: Values = {place: self.values() for place in PLACES}
            number = self.number
            if not self.attempt("begin", producer.begin_transaction)[0]:
                return
            written = self.write(producer, values, gathered=gathered)
            if end == "refused":
                # One partition takes nothing of a far day, when the others have theirs. The
                # coordinator hears of it all by the commit.
                late = partial(producer.send, STRICT, b"late", partition=0, timestamp_ms=LATE_MS)
                self.attempt("write late", late)
            elif written:
                offsets = {TopicPartition(SOURCE, 0): number}
                send = partial(producer.send_offsets_to_transaction, offsets, GROUP)
                written, _ = self.attempt("send offsets", send)
            ended = self.end(producer, values, commit=written and end != "abort")
            if ended == "committed":
                self.offsets[GROUP] = {number}
            elif ended == "unknown":
                self.offsets[GROUP].add(number)
            if ended not in ("committed", "aborted"):
                return

    def prepared(self) -> None:
        """Transactions that an external database commits as soon as they are prepared."""
        done, producer = self.attempt(
            "make a producer", lambda: self.store.producer(transactional_id=HELD_ID)
        )
        if not done:
            return
        done, kept = self.attempt("init", lambda: producer.init_transactions(keep_prepared=True))
        if done and kept is not None and str(kept) in self.owed:
            done = self.complete(producer, kept)
        elif done and kept is not None:
            done, _ = self.attempt("abort", producer.abort_transaction)
        for _ in range(2):
            values = self.values()
            done = done and self.attempt("begin", producer.begin_transaction)[0]
            if not done or not self.write(producer, {HELD_PLACE: values}, gathered=False):
                break
            done, token = self.attempt("prepare", producer.prepare_transaction)
            if not done:
                break
            self.owed[str(token)] = values
            done = self.complete(producer, token)
        # Which aborts what is not prepared, and nothing else.
        self.attempt("close a producer", producer.close)

    def complete(self, producer: Any, token: Any) -> bool:
        done, _ = self.attempt("complete", lambda: producer.complete_transaction(token))
        if done:
            self.held += self.owed.pop(str(token))
        return done

    def write(self, producer: Any, values: Values, *, gathered: bool) -> bool:
        """Whether all calls returned."""
        for (topic, partition), ones in values.items():
            if gathered:
                calls = [partial(producer.send, topic, one, partition=partition) for one in ones]
            else:
                calls = [partial(producer.append, topic, partition=partition, values=ones)]
            if not all(self.attempt("write", call)[0] for call in calls):
                return False
        return True

    def end(self, producer: Any, values: Values, *, commit: bool) -> str:
        """Commit, and abort what was not committed: what became of it.

        Where neither returned it is what the commit's error said.
        """
        done, outcome = False, "not_appended"
        if commit:
            done, outcome = self.attempt("commit", producer.commit_transaction)
        if done:
            self.wrote(done, outcome, values)
            return "committed"
        if self.attempt("abort", producer.abort_transaction)[0]:
            # Whatever the commit wrote before it failed, and whatever its error said.
            self.wrote(False, "not_appended", values)
            return "aborted"
        self.wrote(False, outcome, values)
        return outcome

    def job(self) -> None:
        for whole_bytes in (0, 4 << 20):
            staged_job.WHOLE_FILE_BYTES_MIN = whole_bytes
            values: Values = {place: self.values(5) for place in PLACES}
            done, run_id = self.attempt("begin a run", lambda: self.store.begin_run(APP))
            known, state = self.attempt("ask an application", lambda: self.store.application(APP))
            if not done or not known:
                continue
            staged, message = self.attempt(
                "stage", lambda run_id=run_id, values=values: self.stage(run_id, values)
            )
            if not staged:
                self.never.update(value for ones in values.values() for value in ones)
                continue
            version = 0 if state is None else state.version + 1
            self.wrote(
                *self.attempt(
                    "commit a job",
                    lambda run_id=run_id, version=version, message=message: (
                        self.store.commit_staged(APP, version, [message], run_id)
                    ),
                ),
                values,
            )

    def stage(self, run_id: str, values: Values) -> Any:
        writer = StagedWriter(
            self.path, APP, run_id, f"task-{self.number}", partitions={TOPIC: PARTITIONS}
        )
        for place, ones in values.items():
            writer.append(place.topic, place.partition, ones, None, None)
        return writer.close()

    def groups(self) -> None:
        done, consumer = self.attempt(
            "make a consumer", lambda: self.store.consumer(group=PLAIN_GROUP)
        )
        if not done:
            return
        where = TopicPartition(SOURCE, 1)
        self.attempt("assign", lambda: consumer.assign([where]))
        for _ in range(2):
            self.number += 1
            offset = self.number
            done, outcome = self.attempt(
                "commit offsets", lambda offset=offset: consumer.commit({where: offset})
            )
            if done:
                self.offsets[PLAIN_GROUP] = {offset}
            elif outcome != "not_appended":
                self.offsets[PLAIN_GROUP].add(offset)
        self.attempt("close a consumer", consumer.close)

    def housekeeping(self) -> None:
        """What the background thread does; what goes wrong there is kept, never raised."""
        checkpointer = parts_of(self.store).checkpointer
        opened = parts_of(self.store).files.partitions.opened()
        self.attempt("write checkpoints", checkpointer.write_checkpoints)
        for partition in opened:
            for each in (checkpointer.persist, checkpointer.prepare_spare):
                self.attempt("look after a log", partial(checkpointer.each, partition, each))
        # Which records go is not the matter here: any that are not the newest may.
        self.gone.update(value for ones in self.there.values() for value in ones)
        self.gone.update(
            value for values in self.maybe for ones in values.values() for value in ones
        )
        self.attempt("retain", checkpointer.retain)
        sweep = parts_of(self.store).staged.sweep
        self.attempt("sweep", partial(checkpointer.attempt, sweep, "sweeping"))

    def topic(self) -> None:
        """A topic comes, goes in the middle of a transaction, and comes again."""
        done, producer = self.attempt(
            "make a producer", lambda: self.store.producer(transactional_id=MOVING_ID)
        )
        goes_on = done and self.attempt("init", producer.init_transactions)[0]
        for deleted_first in (True, False):
            self.create_extra()
            if goes_on:
                values: Values = {PLACES[0]: self.values(), EXTRA_PLACE: self.values()}
                goes_on = self.attempt("begin", producer.begin_transaction)[0]
            written = goes_on and self.write(producer, values, gathered=True)
            if deleted_first:
                self.delete_extra()
            if goes_on:
                ended = self.end(producer, values, commit=written)
                goes_on = ended in ("committed", "aborted")
        self.delete_extra()

    def create_extra(self) -> None:
        done, outcome = self.attempt("create a topic", lambda: self.store.create_topic(EXTRA))
        self.topics[EXTRA] = True if done else self.topics[EXTRA] and None
        if not done and outcome != "not_appended":
            self.topics[EXTRA] = None

    def delete_extra(self) -> None:
        done, _ = self.attempt("delete a topic", lambda: self.store.delete_topic(EXTRA))
        if done:
            self.topics[EXTRA] = False
        elif self.topics[EXTRA]:
            self.topics[EXTRA] = None


def visible(store: Any, place: TopicPartition) -> list[bytes]:
    """The values in the log, but for those of the process beside."""
    return [value for value in all_visible(store, place) if not value.startswith(BESIDE)]


def values_beside(store: Any, place: TopicPartition) -> list[bytes]:
    return [value for value in all_visible(store, place) if value.startswith(BESIDE)]


def all_visible(store: Any, place: TopicPartition) -> list[bytes]:
    found: list[bytes] = []
    with store.consumer() as consumer:
        consumer.assign([place])
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [record.value or b"" for record in records]
    return found


# What retention says of what it deleted to make room, where even then none was there to write it
# down (docs/durability-and-recovery.md): nothing is lost by it.
UNWRITTEN_START = "the log begins at offset"


def check(work: Work, *, start_is_old: bool = False) -> None:
    """Opened without faults the store holds what was acknowledged, and goes on."""
    assert not work.broken, work.broken
    lowest = {place: lowest_segment(work.path, place) for place in PLACES}
    with eoslog.open(work.path, durability="commit", config=SETTINGS) as store:
        check_prepared(work, store)
        seen = {place: visible(store, place) for place in PLACES}
        check_values(work, seen)
        for place, base_offset in lowest.items():
            start = store.partition(*place).log_start_offset
            assert start >= base_offset, f"{place}: {start} was deleted, and is back"
        groups = store.groups()
        for group, number in ((GROUP, 0), (PLAIN_GROUP, 1)):
            found = groups.get(group, {}).get(TopicPartition(SOURCE, number))
            offset = None if found is None else found.offset
            assert offset in work.offsets[group], f"{group} is at {offset}: {work.offsets[group]}"
        for name, is_there in work.topics.items():
            assert is_there is None or (name in store.topics()) == is_there, f"{name}: {is_there}"
        if EXTRA in store.topics():
            assert work.never.isdisjoint(visible(store, EXTRA_PLACE)), "aborted records are there"
        for partition in parts_of(store).files.partitions.with_transactions(None, None):
            assert partition.open_transactions() == []
        producer = store.producer(name=NAME)
        for place in PLACES:
            producer.append(place.topic, partition=place.partition, values=[b"after"])
        producer = store.producer(transactional_id=ID)
        producer.init_transactions()
        with producer.transaction():
            producer.append(TOPIC, partition=0, values=[b"committed"])
        run_id = store.begin_run(APP)
        state = store.application(APP)
        version = 0 if state is None else state.version + 1
        assert store.commit_staged(APP, version, [], run_id).committed
    with eoslog.open(work.path, durability="commit", config=SETTINGS) as store:
        seen[PLACES[0]] += [b"after", b"committed"]
        seen[PLACES[1]] += [b"after"]
        assert {place: visible(store, place) for place in PLACES} == seen
        problems = store.verify()
        if start_is_old:
            problems = [one for one in problems if UNWRITTEN_START not in one["reason"]]
        assert problems == [], problems


def lowest_segment(path: Path, place: TopicPartition) -> int:
    directory = path / f"{place.topic}-{place.partition}"
    return min((int(segment.stem) for segment in directory.glob("*.log")), default=0)


def check_prepared(work: Work, store: Any) -> None:
    """What an external database has committed can be committed here, and nothing else is there."""
    for token in work.owed:
        with suppress(EoslogError):  # It is decided, and maybe long ago: the records tell how.
            store.commit_prepared([PreparedTransaction.parse(HELD_ID, token)])
    with store.producer(transactional_id=HELD_ID) as producer:
        producer.init_transactions()  # Aborts what was prepared without the answer.
    seen = visible(store, HELD_PLACE)
    expected = sorted([*work.held, *(one for values in work.owed.values() for one in values)])
    assert sorted(seen) == expected, "what was prepared is not there, or something else is"


def check_values(work: Work, seen: Values) -> None:
    chosen = [
        values
        for values in work.maybe
        if any(value in seen[place] for place, ones in values.items() for value in ones)
    ]
    for place, values in seen.items():
        assert len(set(values)) == len(values), f"{place}: a record is there twice"
        expected = set(work.there[place])
        for one in chosen:
            expected.update(one.get(place, []))
        unknown = [value[:20] for value in values if value not in expected]
        assert not unknown, f"{place}: {unknown} were not acknowledged"
        missing = [value[:20] for value in expected - set(values) - work.gone]
        assert not missing, f"{place}: {missing} are gone"
        if work.gone:
            # Retention takes the oldest.
            order = [value for value in work.there[place] if value in expected]
            kept = [value for value in order if value in values]
            assert kept == order[len(order) - len(kept) :], f"{place}: newer ones are gone"
