"""A store at transactional work, with the order in which each step of it reached the logs.

The work is that of one thread, so that between two calls nothing moves; within a call the protocol
says what came after what: the record that lists the partitions, the batches, their syncs, the
decision, its sync, the markers, the record that all is done. A `Trace` is the list of these events.
Whatever a crash leaves follows from it: at an event, each log has an end, and a part of it that was
synced.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from crash.lost_power import DiskState
from reference_model import batch_codec as codec

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.transaction_entry import (
    decode_transaction_value,
    encode_transaction_value,
    transaction_key,
    transactional_id_of,
)
from eoslog.errors import ProducerFencedError
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_partition import StateRecord

TOPIC = "orders"
SOURCE = "source"
PARTITIONS = 3
GROUP = "readers"
STATE_PREFIX = "__transaction_state-"
HOUR_MS = 3_600_000
# The background thread works at times of its own; here only the calls of the test do.
QUIET = {
    "eoslog.checkpoint.interval.ms": HOUR_MS,
    "log.initial.task.delay.ms": HOUR_MS,
    "log.flush.offset.checkpoint.interval.ms": HOUR_MS,
    "log.retention.check.interval.ms": HOUR_MS,
    "producer.id.expiration.check.interval.ms": HOUR_MS,
    "offsets.retention.check.interval.ms": HOUR_MS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": HOUR_MS,
    "transaction.remove.expired.transaction.cleanup.interval.ms": HOUR_MS,
}
# Two of a kind share a partition of the state log, the others have their own.
IDS = ("Aa-writer", "BB-writer", "c", "d")


class Event(NamedTuple):
    """A log came to hold, or to hold for certain, everything below an offset."""

    kind: str  # "append" or "sync"
    log: str
    offset: int


@dataclass
class Work:
    """One transaction, or one batch of a producer without transactions, and what became of it."""

    owner: str
    number: int
    values: dict[int, list[bytes]] = field(default_factory=dict)
    group_offset: int | None = None
    plain: bool = False
    # Events before which it was not decided, and by which its caller knew.
    decided_at: int | None = None
    decision: tuple[str, int] | None = None  # The log, and the offset of the decision in it.
    promised_at: int | None = None
    committed: bool | None = None


@dataclass
class Moment:
    """What there is beside the logs, when so many events had happened."""

    at: int
    files: DiskState


def end_of_life(store: eoslog.Store) -> None:
    """The process dies: nothing more is written, nothing is closed as it should be."""
    parts_of(store).checkpointer.stop()
    parts_of(store).linger.stop()
    parts_of(store).files.partitions.stop()
    store._closed = True
    parts_of(store).files.give_up()


def start_at_epoch(store: eoslog.Store, transactional_id: str, epoch: int) -> None:
    """As if the id had been used for very long."""
    value = encode_transaction_value(
        producer_id=parts_of(store).files.producer_ids.take(),
        producer_epoch=epoch,
        last_producer_epoch=-1,
        previous_producer_id=-1,
        timeout_ms=60_000,
        state="Empty",
        partitions=None,
        last_update_ms=time.time_ns() // 1_000_000,  # One that was used long ago expires.
        start_ms=-1,
        client_transaction_version=2,
    )
    partition = parts_of(store).files.state_log.partition_of(transactional_id)
    # Whoever keeps the index asks those that have an id, and nobody has this one.
    with parts_of(store).files.state_log._persist_lock:
        appended = partition.append_columns([value], [transaction_key(transactional_id)])
        partition.flush()
        record = StateRecord(value, appended.base_offset)
        parts_of(store).files.state_log.moved(transactional_id, record)


class Trace:
    """What happened to the logs, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ends: dict[str, int] = {}
        self._synced: dict[str, int] = {}

    def found(self, log: str, end: int) -> None:
        """A log as it was when the trace began."""
        self._append(log, end)
        self._sync(log, end)

    def look(self, store: eoslog.Store) -> list[tuple[str, dict, Event]]:
        """Take in what a call did; the decisions in it: (transactional id, record, its event)."""
        new: dict[str, list[codec.ModelBatch]] = {}
        synced: dict[str, int] = {}
        for partition in parts_of(store).files.partitions.opened():
            name = f"{partition.topic}-{partition.partition}"
            first = self._ends.get(name, 0)
            new[name] = list(_batches_from(partition, first))
            synced[name] = partition.recovery_point
        decisions = self._in_order(new, synced)
        for name, batches in new.items():
            if batches:
                self._append(name, batches[-1].last_offset + 1)
        for name, offset in synced.items():
            self._sync(name, offset)
        return decisions

    def _in_order(
        self, new: dict[str, list[codec.ModelBatch]], synced: dict[str, int]
    ) -> list[tuple[str, dict, Event]]:
        decisions = []
        records = []
        for name, batches in new.items():
            if not name.startswith(STATE_PREFIX):
                continue
            for batch in batches:
                for index, record in enumerate(codec.records_of(batch.data)):
                    transactional_id = transactional_id_of(record.key)
                    records.append(
                        (transactional_id or "", name, batch.base_offset + index, record)
                    )
        # Recovery takes the ids in their order, and other calls have but one.
        for transactional_id, name, offset, record in sorted(records, key=lambda one: one[:3]):
            if not transactional_id:
                self._append(name, offset + 1)
                self._sync(name, min(offset + 1, synced[name]))
                continue
            fields = decode_transaction_value(record.value)
            producer_id, state = fields["producer_id"], fields["state"]
            if state in ("PrepareCommit", "PrepareAbort"):
                self._append_batches(new, producer_id, control=False)
                if state == "PrepareCommit":
                    for log in (f"{topic}-{number}" for topic, number in fields["partitions"]):
                        self._sync(log, synced.get(log, 0))
            self._append(name, offset + 1)
            if state in ("PrepareCommit", "PrepareAbort"):
                decisions.append((transactional_id, fields, self.events[-1]))
                self._sync(name, min(offset + 1, synced[name]))
                self._append_batches(new, producer_id, control=True)
            elif state == "Ongoing":
                self._append_batches(new, producer_id, control=False)
            elif state == "Empty":
                self._sync(name, min(offset + 1, synced[name]))
        return decisions

    def _append_batches(
        self, new: dict[str, list[codec.ModelBatch]], producer_id: int, *, control: bool
    ) -> None:
        """The next batches of a producer, as far as they are of that kind."""
        for name, batches in sorted(new.items()):
            own = [one for one in batches if one.producer_id == producer_id]
            if name.startswith(STATE_PREFIX) or not own or own[0].is_control is not control:
                continue
            if control:
                del own[1:]  # What follows came after the next decision.
            for batch in own:
                if batch.is_control is not control:
                    break
                self._append(name, batch.last_offset + 1)
                batches.remove(batch)

    def _append(self, name: str, end: int) -> None:
        if end > self._ends.get(name, 0):
            self._ends[name] = end
            self.events.append(Event("append", name, end))

    def _sync(self, name: str, offset: int) -> None:
        offset = min(offset, self._ends.get(name, 0))
        if offset > self._synced.get(name, 0):
            self._synced[name] = offset
            self.events.append(Event("sync", name, offset))

    def at(self, count: int) -> tuple[dict[str, int], dict[str, int]]:
        """After so many events: the end of each log, and up to where it is synced."""
        ends: dict[str, int] = {}
        synced: dict[str, int] = {}
        for event in self.events[:count]:
            (ends if event.kind == "append" else synced)[event.log] = event.offset
        return ends, synced


def _batches_from(partition: eoslog.Partition, offset: int) -> Iterator[codec.ModelBatch]:
    end = partition.log_end_offset
    while offset < end:
        data = partition.read(offset, 1 << 22)
        for batch in codec.iter_batches(data):
            yield batch
            offset = batch.last_offset + 1


def ends_on_disk(path: Path) -> dict[str, int]:
    """The end of each log, behind the last batch that follows on all those before it."""
    ends: dict[str, int] = {}
    for file in sorted(path.glob("*/*.log")):
        end = ends.setdefault(file.parent.name, 0)
        if end == int(file.stem):
            batches = codec.whole_batches(file.read_bytes())
            ends[file.parent.name] = batches[-1].last_offset + 1 if batches else end
    return ends


class LiveStore:
    """A store at work; what it is told to do is drawn from a seed."""

    def __init__(
        self,
        path: Path,
        seed: int,
        durability: str = "commit",
        *,
        ids: tuple[str, ...] = IDS,
        partitions: int = PARTITIONS,
        value_bytes: int = 500,
    ) -> None:
        self.path = path
        self.durability = durability
        self.ids = ids
        self.partitions = partitions
        self.noise = random.Random(seed)
        self.trace = Trace()
        self.works: list[Work] = []
        self.moments: list[Moment] = []
        self.producers: dict[str, eoslog.TransactionalProducer] = {}
        self.open: dict[str, Work] = {}
        self._value_bytes = value_bytes

    def create(self, *, segment_bytes: int = 5000, epochs: tuple[int, ...] = ()) -> None:
        """A new store; `epochs` at which the ids are."""
        self.store = eoslog.open(self.path, create=True, durability=self.durability, config=QUIET)
        config = {"segment.bytes": segment_bytes}
        self.store.create_topic(TOPIC, partitions=self.partitions, config=config)
        self.store.create_topic(SOURCE, partitions=len(self.ids))
        for transactional_id, epoch in zip(self.ids, epochs, strict=False):
            if epoch > 0:
                start_at_epoch(self.store, transactional_id, epoch)
        self._begin_life()

    def take_up(self, before: LiveStore, there: set[tuple[str, int]]) -> None:
        """Go on with what a crash left of a store, in which these works were found committed.

        The machine was started anew: what is there is on the disk.
        """
        for work in before.works:
            if (work.owner, work.number) in there:
                known = replace(work, decided_at=-1, decision=("", -1), promised_at=0)
                self.works.append(known)
        for name, end in ends_on_disk(self.path).items():
            self.trace.found(name, end)
        self.remember()
        self.store = eoslog.open(self.path, durability=self.durability, config=QUIET)
        self._begin_life()

    # Lives.

    def _begin_life(self) -> None:
        for number in range(self.partitions):
            self.store.partition(TOPIC, number)
        self.look()
        self.plain = self.store.producer(config={"linger.ms": 0})
        for transactional_id in self.ids:
            self.init(transactional_id)
        self.remember()

    def reopen(self, *, clean: bool) -> None:
        """The process ends, and another one opens the store."""
        if clean:
            self.store.close()
        else:
            end_of_life(self.store)
        self.producers.clear()
        self.store = eoslog.open(self.path, durability=self.durability, config=QUIET)
        for work in self.open.values():
            work.committed = False
        self.open.clear()
        if clean:
            # All of them were synced: have a look at each.
            list(parts_of(self.store).files.partitions.with_transactions(None, None))
            for number in parts_of(self.store).files.partitions.existing_state_partitions():
                parts_of(self.store).files.partitions.state_partition(number)
        self._begin_life()

    def remember(self) -> None:
        """Note what there is beside the logs."""
        if self.producers:
            self.look()
        state = DiskState.of(self.path)
        state.files = {
            name: file
            for name, file in state.files.items()
            if name.suffix != ".log" and name.name not in ("lock", "lock.mdb")
        }
        self.moments.append(Moment(len(self.trace.events), state))

    def checkpoint(self) -> None:
        """What the background thread does now and then, for what it has heard of by then."""
        checkpointer = parts_of(self.store).checkpointer
        if self.noise.random() < 0.3:
            checkpointer._write_offsets()  # As after retention: nothing is synced for it.
        else:
            opened = parts_of(self.store).files.partitions.opened()
            heard_of = self.noise.sample(opened, self.noise.randint(1, len(opened)))
            checkpointer._unwritten.update(heard_of)
            checkpointer._write_checkpoints()
        assert self.store.metrics()["checkpointer"]["errors"] == []
        self.remember()

    def persist(self) -> None:
        """Bring LMDB up to the logs, whether these are synced or not."""
        for partition in parts_of(self.store).files.partitions.opened():
            if self.noise.random() < 0.7:
                parts_of(self.store).checkpointer._persist(partition)
        self.remember()

    def look(self) -> None:
        for transactional_id, fields, event in self.trace.look(self.store):
            work = self.open.get(transactional_id)
            if work is not None and fields["state"] == "PrepareCommit":
                work.decided_at = self.trace.events.index(event)
                work.decision = (event.log, event.offset - 1)

    # Work.

    def init(self, transactional_id: str) -> None:
        """A successor takes the id over; what was open is aborted."""
        older = self.producers.get(transactional_id)
        producer = self.store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        self.look()
        work = self.open.pop(transactional_id, None)
        if work is not None:
            work.committed = False
        if older is not None:
            with suppress(ProducerFencedError):
                older.close()
        self.producers[transactional_id] = producer

    def begin(self, transactional_id: str) -> None:
        number = self._next_number(transactional_id)
        work = Work(transactional_id, number)
        self.works.append(work)
        self.open[transactional_id] = work
        self.producers[transactional_id].begin_transaction()

    def _next_number(self, owner: str) -> int:
        return max((one.number for one in self.works if one.owner == owner), default=-1) + 1

    def write(self, transactional_id: str, partition: int, count: int = 1) -> None:
        """Send some records, or append them as columns."""
        work, producer = self.open[transactional_id], self.producers[transactional_id]
        values = self._values(work, partition, count)
        if self.noise.random() < 0.5:
            producer.append(TOPIC, partition=partition, values=values)
        else:
            for value in values:
                producer.send(TOPIC, value=value, partition=partition)
            if self.noise.random() < 0.5:
                producer.flush()
        self.look()

    def _values(self, work: Work, partition: int, count: int) -> list[bytes]:
        known = work.values.setdefault(partition, [])
        values = []
        for _ in range(count):
            head = f"{work.owner}:{work.number}:{partition}:{len(known)}:".encode()
            known.append(head + b"v" * self.noise.randrange(self._value_bytes))
            values.append(known[-1])
        return values

    def send_offset(self, transactional_id: str) -> None:
        work = self.open[transactional_id]
        work.group_offset = work.number + 1
        self.producers[transactional_id].send_offsets_to_transaction(
            {self.place_of(transactional_id): work.group_offset}, GROUP
        )
        self.look()

    def place_of(self, transactional_id: str) -> TopicPartition:
        """Each id has an offset of its own in the group."""
        return TopicPartition(SOURCE, self.ids.index(transactional_id))

    def end(self, transactional_id: str, *, commit: bool) -> None:
        producer = self.producers[transactional_id]
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        self.look()
        work = self.open.pop(transactional_id)
        work.promised_at = len(self.trace.events)
        work.committed = commit

    def write_plainly(self) -> None:
        """Records of no transaction, between those of transactions; flushed."""
        number = self._next_number("plain")
        work = Work("plain", number, plain=True)
        partition = self.noise.randrange(self.partitions)
        self.works.append(work)
        self.plain.append(TOPIC, partition=partition, values=self._values(work, partition, 2))
        self.look()
        if self.noise.random() < 0.5:
            self.plain.flush()
            self.look()
            work.promised_at = len(self.trace.events)
        name = f"{TOPIC}-{partition}"
        offset = self.trace.at(len(self.trace.events))[0][name]
        work.decision = (name, offset - 1)
        work.decided_at = next(
            index
            for index, event in enumerate(self.trace.events)
            if event == Event("append", name, offset)
        )

    def step(self) -> None:
        """One step of work that is drawn."""
        transactional_id = self.noise.choice(self.ids)
        chance = self.noise.random()
        if chance < 0.03:
            self.init(transactional_id)
        elif chance < 0.07:
            self.write_plainly()
        elif chance < 0.12:
            self.checkpoint()
        elif chance < 0.15:
            self.persist()
        elif transactional_id not in self.open:
            self.begin(transactional_id)
            self.write(transactional_id, self.noise.randrange(self.partitions))
        elif chance < 0.55:
            self.write(
                transactional_id, self.noise.randrange(self.partitions), self.noise.randint(1, 4)
            )
        elif chance < 0.65:
            self.send_offset(transactional_id)
        else:
            self.end(transactional_id, commit=chance < 0.9)
