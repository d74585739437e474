"""Work on a store that is drawn from a seed, with notes of what was tried and what was promised.

Each record says whose it is and where it belongs: `owner:number:place:index:`. The notes stand in
the trace between the events of the files:

- try: from here on a work may be found in the log (an append, a commit); its values by place;
- promise: these works survive a power cut;
- offset_try, offset_promise: the same of a group's offset;
- retaining, retained: old records of a place may be gone, or surely are; which ones;
- creating, created, deleting, deleted: the topic that comes and goes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from commit_journals import journal_of, with_journal
from power_loss.disk_trace import mark
from staged_jobs import load
from stores import QUIET, start_at_epoch

import eoslog
from eoslog import TopicPartition
from eoslog.common.config import NO_LIMIT
from eoslog.common.topic_name import TRANSACTION_STATE_TOPIC
from eoslog.errors import ProducerFencedError
from eoslog.staging import job as staged_job
from eoslog.staging.writer import StagedWriter
from eoslog.storage import log_opener, process_journal
from eoslog.store.store import abandon, parts_of

TOPIC = "orders"
SOURCE = "source"
TEMPORARY = "temporary"
PARTITIONS = 2
PLACES = tuple(f"{TOPIC}/{number}" for number in range(PARTITIONS))
NAME = "writer"
IDS = ("Aa-writer", "BB-writer", "c")  # Two of them share a partition of the state log.
APP = "job"
BULK = "bulk"
PREPARING = "prepares"
READERS = "readers"
PLAIN_GROUP = "plain"
# The background thread has a look as often as it can.
BUSY = QUIET | {
    "eoslog.checkpoint.interval.ms": 5,
    "log.flush.offset.checkpoint.interval.ms": 5,
}

WAYS = process_journal.FILE_WAYS

# What is done how often, by workload.
STEPS: dict[str, dict[str, int]] = {
    name: {step: int(count) for step, count in (one.split("=") for one in steps.split())}
    for name, steps in {
        "appends": "append=60 flush=12 checkpoint=4 persist=4 kill=1",
        "transactions": "begin=12 write=40 offset=8 commit=14 abort=5 init=3 append=6 flush=2 "
        "together=4 compact=2 checkpoint=4 persist=3 kill=1",
        "prepared": "prepare=8 decide=8 begin=6 write=12 commit=6 append=4 checkpoint=2 persist=2 "
        "kill=2",
        "groups": "append=20 group=30 begin=5 write=10 offset=10 commit=8 checkpoint=3 persist=3 "
        "kill=1",
        "staged": "job=20 lost_job=4 bulk=8 append=8 flush=2 checkpoint=2 persist=2 clear=5 kill=1",
        "retention": "append=60 flush=6 retain=8 delete_records=4 begin=4 write=10 commit=5 "
        "checkpoint=3 persist=3 kill=1",
        "topics": "create_temporary=10 temporary_append=20 delete=8 append=10 flush=4 checkpoint=2 "
        "kill=1",
        # Of more than a record of the journal takes.
        "large": "begin=10 write=20 offset=3 commit=14 abort=2 together=4 append=6 flush=1 "
        "checkpoint=2 persist=2 kill=2",
        "closing": "append=20 begin=6 write=12 commit=6 group=4 close=8 kill=4 job=2 checkpoint=2",
    }.items()
}
STEPS["everything"] = {
    step: max(weights.get(step, 0) for weights in STEPS.values())
    for step in {step: 0 for weights in STEPS.values() for step in weights}
}


def value_of(owner: str, number: int, place: str, index: int, size: int) -> bytes:
    return f"{owner}:{number}:{place}:{index}:".encode() + b"v" * size


def values_of_place(store: eoslog.Store, place: str) -> list[bytes]:
    """What a reader of committed records sees there."""
    topic, number = place.split("/")
    found: list[bytes] = []
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(topic, int(number))])
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [record.value or b"" for record in records]
    return found


class Workload:
    """A store at work."""

    def __init__(self, path: Path, kind: str, durability: Any, seed: int) -> None:
        self.path = path
        self.kind = kind
        self.durability = durability
        self.noise = random.Random(f"{kind} {durability} {seed}")
        self.settings = dict(BUSY if self.noise.random() < 0.3 else QUIET)
        self.settings["eoslog.spare.segments"] = self.noise.choice((0, 1, 2))
        # Of the smallest size: its halves fill up. Without a limit it begins so, and soon grows.
        self.settings["eoslog.journal.bytes"] = self.noise.choice((0, 1, 1, 1, NO_LIMIT))
        process_journal.HALF_BYTES_FIRST = process_journal.HALF_BYTES_MIN
        process_journal.GROWTH = 2
        process_journal.HALF_BYTES_LAST = 4 * process_journal.HALF_BYTES_MIN
        process_journal.FILLED_S_MIN = float("inf")
        process_journal.IN_MEMORY = frozenset()
        process_journal.FILE_WAYS = self.noise.choice((WAYS, WAYS, WAYS[1:]))
        log_opener.WRITTEN_BYTES_MIN = self.noise.choice((1, 300, 8192))
        self.numbers: dict[str, int] = {}
        self.unpromised: dict[str, list[list[Any]]] = {}  # Plain works that were acknowledged.
        self.open: dict[str, tuple[int, dict[str, list[bytes]]]] = {}
        self.before: dict[str, dict[str, list[list[Any]]]] = {}
        self.offsets: dict[str, int] = {}
        self.prepared: int | None = None
        self.group_offset = 0
        self.incarnation = 0
        self.temporary = False

    def create(self) -> None:
        """A new store, before anything is traced."""
        sizes = (400_000, 1 << 20) if self.kind == "large" else (2000, 8000)
        config = {"segment.bytes": self.noise.choice(sizes)}
        if self.kind in ("retention", "everything"):
            config["retention.bytes"] = 2 * config["segment.bytes"]
        with eoslog.open(self.path, create=True, config=self.settings) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS, config=config)
            store.create_topic(SOURCE, partitions=len(IDS) + 1)
            for transactional_id in IDS:
                # Some ids are about to use up their epochs.
                if epoch := self.noise.choice((0, 0, 32_760, 32_766)):
                    start_at_epoch(store, transactional_id, epoch)

    def run(self, steps: int) -> None:
        self.whole_files = self.noise.random() < 0.6
        staged_job.WHOLE_FILE_BYTES_MIN = 0 if self.whole_files else 4 << 20
        self.start()
        names, weights = zip(*STEPS[self.kind].items(), strict=True)
        for name in self.noise.choices(names, weights, k=steps):
            getattr(self, name)()
        # The trace goes on to the end of a life, or just stops.
        if self.noise.random() < 0.5:
            self.close(again=False)
        mark(note="end")

    def start(self) -> None:
        self.store = eoslog.open(self.path, durability=self.durability, config=self.settings)
        if self.durability != "process" and self.settings["eoslog.journal.bytes"]:
            journal_of(self.store).journal.want()
            with_journal(self.store)
        self.plain = self.store.producer(name=NAME)
        self.producers: dict[str, eoslog.TransactionalProducer] = {}
        self.preparing: Any = None
        self.written: set[str] = set()
        # What this life has open: a close syncs nothing else.
        self.touched: set[str] = {"transactions", "jobs"}
        self.grouped = False
        self.open.clear()
        self.offsets.clear()

    # Notes.

    def _try(self, owner: str, number: int, values: dict[str, list[bytes]], **more: Any) -> None:
        texts = {place: [one.decode() for one in ones] for place, ones in values.items()}
        mark(note="try", work=[owner, number], values=texts, **more)

    def _promise(self, works: list[list[Any]]) -> None:
        if works:
            mark(note="promise", works=works)

    def _promise_plain(self, *places: str) -> None:
        """All plain records of these places were synced."""
        if self.durability == "process":
            return
        for place in list(places):
            self._promise(self.unpromised.pop(place, []))

    def _next(self, owner: str) -> int:
        self.numbers[owner] = self.numbers.get(owner, -1) + 1
        return self.numbers[owner]

    def _values(self, owner: str, number: int, place: str, first: int, count: int) -> list[bytes]:
        sizes = [self.noise.randrange(400) for _ in range(count)]
        if self.kind == "large" and self.noise.random() < 0.5:
            sizes[0] = self.noise.randrange(120_000, 150_000)
        return [value_of(owner, number, place, first + at, size) for at, size in enumerate(sizes)]

    # Plain records.

    def append(self) -> None:
        place = self.noise.choice(PLACES)
        self._append(self.plain, NAME, place)

    def _append(self, producer: Any, owner: str, place: str) -> None:
        topic, partition = place.split("/")
        number = self._next(f"{owner} {place}")
        work = [owner, number, place]
        values = self._values(owner, number, place, 0, self.noise.randint(1, 4))
        mark(note="try", work=work, values={place: [one.decode() for one in values]}, plain=True)
        producer.append(topic, partition=int(partition), values=values)
        self.written.add(place)
        self.touched.add(place)
        self.unpromised.setdefault(place, []).append(work)
        if self.durability == "always":
            self._promise_plain(place)

    def flush(self) -> None:
        if self.noise.random() < 0.7:
            self.plain.flush()
            self._promise_plain(*self.written)
        else:
            self.store.flush()
            self._promise_plain(*self.unpromised)

    # Transactions.

    def _producer(self, transactional_id: str) -> eoslog.TransactionalProducer:
        if transactional_id not in self.producers:
            self._init(transactional_id)
        return self.producers[transactional_id]

    def _init(self, transactional_id: str) -> None:
        older = self.producers.pop(transactional_id, None)
        producer = self.store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        self.producers[transactional_id] = producer
        self.open.pop(transactional_id, None)
        self.offsets.pop(transactional_id, None)
        if older is not None:
            with suppress(ProducerFencedError):
                older.close()

    def init(self) -> None:
        self._init(self.noise.choice(IDS))

    def begin(self) -> None:
        transactional_id = self.noise.choice(IDS)
        if transactional_id not in self.open:
            self._producer(transactional_id).begin_transaction()
            self.open[transactional_id] = (self._next(transactional_id), {})
            self.before.pop(transactional_id, None)
            self._write(transactional_id)

    def _drawn_open(self) -> str | None:
        return self.noise.choice(sorted(self.open)) if self.open else None

    def write(self) -> None:
        if (transactional_id := self._drawn_open()) is not None:
            self._write(transactional_id)

    def _write(self, transactional_id: str) -> None:
        producer = self.producers[transactional_id]
        number, known = self.open[transactional_id]
        place = self.noise.choice(PLACES)
        earlier = known.setdefault(place, [])
        count = self.noise.randint(1, 3)
        values = self._values(transactional_id, number, place, len(earlier), count)
        partition = int(place.split("/")[1])
        if self.noise.random() < 0.5:
            producer.append(TOPIC, partition=partition, values=values)
        else:
            for value in values:
                producer.send(TOPIC, value=value, partition=partition)
            if self.noise.random() < 0.5:
                producer.flush()
        earlier += values
        # A commit syncs up to here: all that the place had before.
        self.before.setdefault(transactional_id, {})[place] = list(self.unpromised.get(place, []))

    def offset(self) -> None:
        transactional_id = self._drawn_open()
        if transactional_id is not None:
            number, _ = self.open[transactional_id]
            where = TopicPartition(SOURCE, IDS.index(transactional_id))
            producer = self.producers[transactional_id]
            producer.send_offsets_to_transaction({where: number + 1}, READERS)
            self.offsets[transactional_id] = number + 1

    def commit(self) -> None:
        if (transactional_id := self._drawn_open()) is not None:
            number = self._try_to_commit(transactional_id)
            self.producers[transactional_id].commit_transaction()
            self._promise_commit(transactional_id, number)

    def _try_to_commit(self, transactional_id: str) -> int:
        number, values = self.open.pop(transactional_id)
        offset = self.offsets.pop(transactional_id, None)
        self._try(transactional_id, number, values, offset=offset)
        return number

    def _promise_commit(self, transactional_id: str, number: int) -> None:
        if self.durability != "process":
            self._promise([[transactional_id, number]])
            for place, works in self.before.pop(transactional_id).items():
                self._promise(works)
                left = [one for one in self.unpromised.get(place, []) if one not in works]
                self.unpromised[place] = left
        else:
            self.unpromised.setdefault("transactions", []).append([transactional_id, number])

    def together(self) -> None:
        """Threads end all open transactions at once, beside one that appends."""
        self.begin()
        numbers = {one: self._try_to_commit(one) for one in sorted(self.open)}
        with ThreadPoolExecutor(len(numbers)) as threads:
            commits = [threads.submit(self.producers[one].commit_transaction) for one in numbers]
            for _ in range(self.noise.randint(0, 3)):
                self.append()
            for commit in commits:
                commit.result()
        for transactional_id, number in numbers.items():
            self._promise_commit(transactional_id, number)

    def abort(self) -> None:
        if (transactional_id := self._drawn_open()) is not None:
            del self.open[transactional_id]
            self.offsets.pop(transactional_id, None)
            self.producers[transactional_id].abort_transaction()

    def prepare(self) -> None:
        """A transaction that waits for its decision; it is decided for a commit, whoever comes."""
        if self.prepared is not None or self.durability == "process":
            return
        producer = self.store.producer(transactional_id=PREPARING)
        producer.init_transactions()
        number = self._next(PREPARING)
        producer.begin_transaction()
        values = {}
        for place in PLACES:
            values[place] = self._values(PREPARING, number, place, 0, 2)
            producer.append(TOPIC, partition=int(place.split("/")[1]), values=values[place])
        self._try(PREPARING, number, values)
        self.preparing = producer
        self.token = str(producer.prepare_transaction())
        self._promise([[PREPARING, number]])
        self._promise_plain(*PLACES)
        self.prepared = number

    def decide(self) -> None:
        if self.prepared is not None:
            if self.preparing is None:
                self.preparing = self.store.producer(transactional_id=PREPARING)
                found = self.preparing.init_transactions(keep_prepared=True)
                assert str(found) == self.token
            assert self.preparing.complete_transaction(self.token)
            self.prepared = None

    # Groups.

    def group(self) -> None:
        self.group_offset += 1
        self.grouped = True
        mark(note="offset_try", offset=self.group_offset)
        with self.store.consumer(group=PLAIN_GROUP) as consumer:
            where = TopicPartition(SOURCE, len(IDS))
            consumer.assign([where])
            consumer.commit({where: self.group_offset})
        if self.durability != "process":
            mark(note="offset_promise", offset=self.group_offset)

    # Staged jobs.

    def _messages(self, run_id: str, number: int, values: dict[str, list[bytes]]) -> list[Any]:
        messages = []
        for task in range(2):
            writer = StagedWriter(
                self.path,
                APP,
                run_id,
                f"{number}-{task}",
                partitions={TOPIC: PARTITIONS},
                durability=self.durability,
                batch_bytes_max=self.noise.choice((600, 100_000)),
            )
            for place, ones in values.items():
                half = len(ones) // 2
                part = ones[:half] if task == 0 else ones[half:]
                if part:
                    writer.append(TOPIC, int(place.split("/")[1]), part, None, None)
            messages.append(writer.close())
        return messages

    def job(self) -> None:
        state = self.store.application(APP)
        version = 0 if state is None else state.version + 1
        run_id = self.store.begin_run(APP)
        values = {
            place: self._values(APP, version, place, 0, self.noise.randint(2, 12))
            for place in PLACES
        }
        messages = self._messages(run_id, version, values)
        self._try(APP, version, values)
        assert self.store.commit_staged(APP, version, messages, run_id).committed
        if self.durability != "process":
            self._promise([[APP, version]])
        else:
            self.unpromised.setdefault("jobs", []).append([APP, version])

    def lost_job(self) -> None:
        """Staged, and never committed."""
        run_id = self.store.begin_run(APP)
        values = {place: self._values("nobody", 0, place, 0, 4) for place in PLACES}
        self._messages(run_id, self.noise.randrange(1 << 30), values)
        if self.noise.random() < 0.5:
            self.store.sweep_run(APP, run_id)

    def bulk(self) -> None:
        """A job of one task in a run of its own, with all that it does in this process."""
        number = self._next(BULK)
        values = {place: self._values(BULK, number, place, 0, 3) for place in PLACES}
        self._try(BULK, number, values)
        records = {(TOPIC, int(place.split("/")[1])): ones for place, ones in values.items()}
        load(self.store, BULK, records)
        if self.durability != "process":
            self._promise([[BULK, number]])
        else:
            self.unpromised.setdefault("jobs", []).append([BULK, number])

    # What the background thread does, and ends of lives.

    def checkpoint(self) -> None:
        checkpointer = parts_of(self.store).checkpointer
        if self.noise.random() < 0.3:
            checkpointer.write_offsets()
            return
        checkpointer.write_checkpoints()

    def persist(self) -> None:
        for partition in parts_of(self.store).files.partitions.opened():
            if self.noise.random() < 0.7:
                parts_of(self.store).checkpointer.persist(partition)

    def compact(self) -> None:
        """Of the state log; its active segments are ended for it."""
        files = parts_of(self.store).files
        opened = [one for one in files.partitions.opened() if one.topic == TRANSACTION_STATE_TOPIC]
        for partition in opened:
            if self.noise.random() < 0.5:
                partition.roll()
        files.compact(*opened)

    def clear(self) -> None:
        if self.noise.random() < 0.2:
            parts_of(self.store).staged.sweep()
        parts_of(self.store).staged.clear_leftovers()

    def retain(self) -> None:
        self._delete(parts_of(self.store).checkpointer.retain, surely=False)

    def delete_records(self) -> None:
        """Up to any offset of each place."""
        offsets = {}
        for number in range(PARTITIONS):
            log = self.store.partition(TOPIC, number)
            offset = self.noise.randint(log.log_start_offset, log.last_stable_offset)
            offsets[TopicPartition(TOPIC, number)] = offset
        self._delete(lambda: self.store.delete_records(offsets), surely=True)

    def _delete(self, call: Callable[[], object], *, surely: bool) -> None:
        before = {place: values_of_place(self.store, place) for place in PLACES}
        mark(note="retaining")
        call()
        gone = {}
        for place, values in before.items():
            left = set(values_of_place(self.store, place))
            gone[place] = [one.decode() for one in values if one not in left]
        mark(note="retained", gone=gone, surely=surely)

    def close(self, again: bool = True) -> None:
        self.store.close()
        for place in self.touched & set(self.unpromised):
            self._promise(self.unpromised.pop(place))
        if self.grouped:
            mark(note="offset_promise", offset=self.group_offset)
        if again:
            self._reopened()

    def kill(self) -> None:
        """The process dies, the machine goes on."""
        abandon(self.store)
        self.unpromised.pop("transactions", None)
        self.unpromised.pop("jobs", None)
        self._reopened()

    def _reopened(self) -> None:
        self.start()

    # A topic that comes and goes.

    def create_temporary(self) -> None:
        if self.temporary:
            return
        self.incarnation += 1
        mark(note="creating", incarnation=self.incarnation)
        self.store.create_topic(TEMPORARY, config={"segment.bytes": 2000})
        self.temporary = True
        mark(note="created", incarnation=self.incarnation)

    def temporary_append(self) -> None:
        if self.temporary:
            self._append(self.plain, f"life{self.incarnation}", f"{TEMPORARY}/0")

    def delete(self) -> None:
        if self.temporary:
            mark(note="deleting", incarnation=self.incarnation)
            self.store.delete_topic(TEMPORARY)
            self.temporary = False
            mark(note="deleted", incarnation=self.incarnation)
            self.unpromised.pop(f"{TEMPORARY}/0", None)
