"""Producers with a name: they keep their identity, and the count of their records, forever.

A record of the state log holds, per name, the producer id, the epoch, and a checkpoint for each
partition that the name ever wrote to: [position, epoch, last sequence]. The partition had so many
records of this name when its last batch had that epoch and sequence. The partition's own row of the
producer id adds what came after, so the position is always that of the log itself.

Invariants: what a checkpoint counts was synced before the checkpoint is written, so that it counts
no records that a power cut took. A partition is in the record before the name's first append to it.
Each opening of a name takes a new epoch, and writes it with new checkpoints before the new producer
appends. At least every 2**30 records a partition's checkpoint is renewed, so that a sequence that
wrapped around is never taken for an older one.

A count belongs to a topic, which another thread or process may delete and re-create at any time. An
identity keeps with its checkpoints the ids of their topics, taken while the name is held. The
deletion of a topic corrects the record with the name held, before the topic can be re-created, so
that an id that is found then is that of the topic that the record counts in, or of none.

A name's lock keeps these true among processes: it is held for each append of the name and for each
change of its record. An opening of the name holds it from the count of the records to the record of
the new epoch. An older producer of another process, when it next has the lock, reads that record
before it appends, and is fenced.

Order of locks: the one of this class, a producer's, the name's in all processes, the state log's.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from eoslog.bindings.counter_page import CounterPage
from eoslog.bindings.shared_page import LOCK_TIMEOUT_S, SharedPage
from eoslog.bindings.store_wide_lock import StoreWideLock
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.json_text import fields_read_of
from eoslog.common.sequence import NO_SEQUENCE, SEQUENCE_MAX, records_between
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import ConcurrentAccessError, LogClosedError, ProducerFencedError
from eoslog.session.process_slots import ProcessSlots
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.compacted_partition import State, WatchedKey
from eoslog.transactions.producer_ids import EPOCH_EXHAUSTED, ProducerIds
from eoslog.transactions.state_key import NAMED_PRODUCER, state_key

_log = logging.getLogger(__name__)

# A checkpoint is renewed after 2**30 records, by the batch that goes beyond.
_RECORDS_SINCE_MAX = 3 << 29
_SCAN_BYTES = 4 << 20


class Checkpoint(NamedTuple):
    """Checkpoint of a name: the records in a partition when the last batch had this epoch and
    sequence.

    `last_sequence` NO_SEQUENCE: no batch of that epoch yet.
    """

    position: int
    epoch: int
    last_sequence: int


@dataclass(slots=True)
class NamedIdentity:
    """A name's record: its identity, and its checkpoint at each partition.

    `process` is the slot of the process that has the name, b"" if it is not known. `offset` is that
    of the record, or of one with the same content; -1 where that does not matter. `topic_ids` has
    the ids of the topics of the checkpoints, while the name is held: a checkpoint of a topic that
    has another id now, or none, counts nothing.
    """

    name: str
    producer_id: int
    epoch: int
    checkpoints: dict[TopicPartition, Checkpoint] = field(default_factory=dict)
    process: bytes = b""
    offset: int = -1
    topic_ids: dict[str, str] = field(default_factory=dict)

    def state(self) -> State:
        positions = {str(where): list(checkpoint) for where, checkpoint in self.checkpoints.items()}
        state: dict[str, Any] = {
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "positions": positions,
        }
        if self.process:
            state["process"] = self.process.hex()
        return state

    @classmethod
    def of_state(cls, name: str, state: State) -> "NamedIdentity":
        """Restore from what `state` gave, read back from the record. Raises CorruptRecordError."""
        with fields_read_of(f"the record of producer {name!r}"):
            checkpoints = {
                TopicPartition.parse(where): Checkpoint(*map(int, fields))
                for where, fields in state["positions"].items()
            }
            process = bytes.fromhex(state.get("process", ""))
            return cls(name, int(state["producer_id"]), int(state["epoch"]), checkpoints, process)


class LiveProducer(Protocol):
    """Part of a producer that the names need, while it has a name."""

    def fence(self, reason: str) -> None:
        """Refuse every later call. Waits for a call that is under way."""

    def renew_checkpoints(self, partitions: Iterable[TopicPartition]) -> bool:
        """Write the name's record with new checkpoints of these partitions, synced.

        Returns False, and does nothing, if the producer is closed or fenced.
        """


class HeldName:
    """A name, for the producer that has it: its lock in all processes, and a check under that lock.

    With `lock` held, and after a `check` without an error, the producer has the name until it
    releases the lock.
    """

    def __init__(
        self, names: "NamedProducers", shared: SharedPage, identity: NamedIdentity
    ) -> None:
        key = state_key(NAMED_PRODUCER, identity.name)
        self.lock = StoreWideLock(shared, SharedPage.lock_of(key), LOCK_TIMEOUT_S)
        self._names = names
        self._identity = identity

    def check(self) -> None:
        """Read what other processes wrote of the name; the lock is held.

        Raises ProducerFencedError if one of them has the name now.
        """
        self._names.check(self._identity)


class NamedProducers:
    """The names of a store, and the producer that has each of them in this process."""

    def __init__(
        self,
        state_log: CompactedLog,
        producer_ids: ProducerIds,
        find_partition: Callable[[TopicPartition], UnifiedLog | None],
        topic_id: Callable[[TopicPartition], str | None],
        *,
        shared: SharedPage,
        slots: ProcessSlots,
        counters: CounterPage,
    ) -> None:
        self._state_log = state_log
        self._producer_ids = producer_ids
        self._find_partition = find_partition
        self._topic_id = topic_id
        self._shared = shared
        self._slots = slots
        self._counters = counters
        # Held to open and to renew names; taken before any producer's own lock.
        self.lock = ThreadLock()
        self.live: dict[str, LiveProducer] = {}
        self._watched: dict[str, WatchedKey] = {}

    # Opening.

    def open(self, name: str, fenced_because: Callable[[int], str]) -> NamedIdentity:
        """Give the name a new epoch, and fence the producer that had it.

        `fenced_because(epoch)` gives the reason, for a producer of this process. The caller holds
        `lock` until it has called `adopt`.
        """
        known = self._read(name)
        live = self.live.get(name)
        if live is not None and known is not None:
            # Before the name's lock is taken: a call of it may wait for that. And before it is
            # forgotten: after an interrupt the next opening fences it.
            live.fence(fenced_because(known.epoch + 1))
        self.live.pop(name, None)
        for where in () if known is None else known.checkpoints:
            self._find_partition(where)  # Opening, and recovering, takes time and other locks.
        if name not in self._watched:
            self._watched[name] = self._state_log.watch(NAMED_PRODUCER, name)
        with self._state_log.held(NAMED_PRODUCER, name):
            older = self._read(name)
            if older is not None:
                replaces_live = live is not None or (
                    older.process != self._slots.own and self._slots.alive(older.process)
                )
                identity = self.succeed(older)
                self._counters.add("producers_fenced", replaces_live)
            else:
                producer_id = self._producer_ids.take()
                identity = NamedIdentity(name, producer_id, 0, process=self._slots.own)
                self._append(identity)
            _log.info(
                "producer %r: producer id %d, epoch %d, is opened by process %d; older ones are "
                "fenced",
                *(name, identity.producer_id, identity.epoch, os.getpid()),
            )
            return identity

    def _read(self, name: str) -> NamedIdentity | None:
        state = self._state_log.get(NAMED_PRODUCER, name)
        return None if state is None else NamedIdentity.of_state(name, state)

    def _append(self, identity: NamedIdentity, *, sync: bool | None = None) -> None:
        identity.offset = self._state_log.append(
            NAMED_PRODUCER, identity.name, identity.state(), sync=sync
        )

    def _position(
        self, where: TopicPartition, producer_id: int, checkpoint: Checkpoint
    ) -> tuple[int, int] | None:
        """Return `position_of`, with what is counted on disk; None if the topic was deleted."""
        partition = self._find_partition(where)
        if partition is None:
            return None
        try:
            position, epoch = position_of(partition, producer_id, checkpoint)
            if position != checkpoint.position:
                # What the new checkpoint counts must be on disk before it is.
                partition.make_durable(partition.log_end_offset)
        except LogClosedError:
            if partition.deleted or self._find_partition(where) is not partition:
                return None
            raise
        return position, epoch

    def succeed(self, older: NamedIdentity) -> NamedIdentity:
        """The next identity: with a higher epoch than any that the partitions have seen."""
        positions: dict[TopicPartition, int] = {}
        epoch = older.epoch
        for where, checkpoint in older.checkpoints.items():
            found = self._position(where, older.producer_id, checkpoint)
            if found is None:
                continue  # The topic was deleted, and the count with it.
            positions[where] = found[0]
            epoch = max(epoch, found[1])
        rotates = epoch >= EPOCH_EXHAUSTED
        newer = NamedIdentity(
            older.name,
            self._producer_ids.take() if rotates else older.producer_id,
            0 if rotates else epoch + 1,
            process=self._slots.own,
        )
        newer.checkpoints = {
            where: Checkpoint(position, newer.epoch, NO_SEQUENCE)
            for where, position in positions.items()
        }
        newer.topic_ids = self._topic_ids_of(positions)
        # A new id is synced, whatever the durability: it is found by its record alone.
        self._append(newer, sync=True if rotates else None)
        if rotates:
            for where in positions:
                partition = self._find_partition(where)
                if partition is not None:
                    partition.producer_state.forget([older.producer_id])
        return newer

    def _topic_ids_of(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """The ids of the topics of these partitions that exist; with the name held."""
        topics = {where.topic for where in partitions}
        found = {topic: self._topic_id(TopicPartition(topic, 0)) for topic in topics}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def adopt(self, name: str, producer: LiveProducer) -> None:
        """Note the producer that has the name from now on."""
        self.live[name] = producer

    def release(self, name: str, producer: LiveProducer) -> None:
        """Note that the producer is closed: no producer has the name until it is opened again."""
        # In the middle of an opening of a name by the same thread, the next opening does it.
        with suppress(ConcurrentAccessError), self.lock:
            if self.live.get(name) is producer:
                del self.live[name]
                self._watched.pop(name).unwatch()

    # While a producer has its name.

    def held(self, identity: NamedIdentity) -> HeldName:
        """Return the guard of the name's appends."""
        return HeldName(self, self._shared, identity)

    def check(self, identity: NamedIdentity) -> None:
        """Read what other processes wrote of the name; called with the name held.

        Raises ProducerFencedError if the name was opened again.
        """
        watched = self._watched.get(identity.name)
        read_at = -1 if watched is None else watched.newest_read()
        if read_at <= identity.offset:
            return
        newest = self._read(identity.name)
        if newest is None:
            return
        if (newest.producer_id, newest.epoch) != (identity.producer_id, identity.epoch):
            raise ProducerFencedError(
                f"producer {identity.name!r} was opened again, with epoch {newest.epoch}, by "
                f"{self._described(newest.process)}"
            )
        ids = self._topic_ids_of(newest.checkpoints)
        identity.checkpoints, identity.topic_ids, identity.offset = newest.checkpoints, ids, read_at

    def _described(self, process: bytes) -> str:
        if not process:
            return "another process"
        if process == self._slots.own:
            return "this process"
        return self._slots.describe(process)

    def write(
        self,
        identity: NamedIdentity,
        changed: Mapping[TopicPartition, Checkpoint],
        topic_ids: Mapping[str, str],
        *,
        sync: bool | None = None,
    ) -> None:
        """Write a name's record with these checkpoints, if they are new. It is synced according to
        `sync`, or to the store's durability.

        `topic_ids` has the ids of their topics. Checkpoints of a topic that was deleted are left
        out, those of the identity too.

        Raises ProducerFencedError if another process has opened the name.
        """
        with self._state_log.held(NAMED_PRODUCER, identity.name):
            self.check(identity)
            before, before_ids = identity.checkpoints, identity.topic_ids
            ids = self._topic_ids_of([*before, *changed])
            newest = {
                where: checkpoint
                for known, known_ids in ((before, before_ids), (changed, topic_ids))
                for where, checkpoint in known.items()
                if where.topic in ids and ids[where.topic] == known_ids.get(where.topic)
            }
            identity.checkpoints, identity.topic_ids = newest, ids
            if newest == before:
                return
            try:
                self._append(identity, sync=sync)
            except BaseException:
                identity.checkpoints, identity.topic_ids = before, before_ids
                raise

    # All names.

    def all(self) -> Iterator[NamedIdentity]:
        """Every name's newest record."""
        for name in self._state_log.names(NAMED_PRODUCER):
            identity = self._read(name)
            if identity is not None:
                yield identity

    def producer_ids(self) -> frozenset[int]:
        """The ids of names, which never expire."""
        return frozenset(identity.producer_id for identity in self.all())

    def renew(self, where: TopicPartition) -> None:
        """Renew every name's checkpoint of a partition, before part of its log is deleted."""
        with self.lock:
            partition = self._find_partition(where)
            for identity in list(self.all()):
                if where not in identity.checkpoints or partition is None:
                    continue
                if not self._renewed_by_producer(identity.name, where):
                    self._renew(identity.name, where, partition)

    def _renewed_by_producer(self, name: str, where: TopicPartition) -> bool:
        live = self.live.get(name)
        if live is None:
            return False
        try:
            return live.renew_checkpoints([where])
        except ProducerFencedError:
            return False  # Another process has the name by now.

    def _renew(self, name: str, where: TopicPartition, partition: UnifiedLog) -> None:
        with self._state_log.held(NAMED_PRODUCER, name):
            identity = self._read(name)
            checkpoint = None if identity is None else identity.checkpoints.get(where)
            if identity is None or checkpoint is None:
                return
            renewed = renewed_checkpoint(partition, identity.producer_id, checkpoint)
            if renewed != checkpoint:
                partition.make_durable(partition.log_end_offset)
                identity.checkpoints[where] = renewed
                self._append(identity, sync=True)

    def forget_topic(self, topic: str) -> None:
        """Drop the checkpoints of a deleted topic: names count from 0 in a new topic of the name.

        The producers of this process that have a name dropped theirs before.
        """
        with self.lock:
            for name in self._state_log.names(NAMED_PRODUCER):
                with self._state_log.held(NAMED_PRODUCER, name):
                    identity = self._read(name)
                    if identity is None:
                        continue
                    gone = [where for where in identity.checkpoints if where.topic == topic]
                    for where in gone:
                        del identity.checkpoints[where]
                    if gone:
                        self._append(identity, sync=True)


def position_of(partition: UnifiedLog, producer_id: int, checkpoint: Checkpoint) -> tuple[int, int]:
    """Return how many records of the name the partition ever held, and its newest epoch."""
    entry = partition.producer(producer_id)
    if entry is None or entry.producer_epoch < checkpoint.epoch:
        return checkpoint.position, checkpoint.epoch
    if entry.producer_epoch == checkpoint.epoch:
        return _counted_on(checkpoint, {checkpoint.epoch: entry.last_sequence}), checkpoint.epoch
    # A power cut took the state log's newest records but not the partition's. The partition's
    # batches have the last sequence of each epoch since the checkpoint, its row that of the newest.
    last_sequences = last_sequences_of(partition, producer_id, checkpoint.epoch)
    last_sequences[entry.producer_epoch] = entry.last_sequence
    return _counted_on(checkpoint, last_sequences), entry.producer_epoch


def _counted_on(checkpoint: Checkpoint, last_sequences: Mapping[int, int]) -> int:
    position = checkpoint.position
    for epoch, last_sequence in last_sequences.items():
        before = checkpoint.last_sequence if epoch == checkpoint.epoch else NO_SEQUENCE
        since = records_between(before, last_sequence)
        if before != NO_SEQUENCE and since > _RECORDS_SINCE_MAX:
            # Fewer than none: a power cut took records that the checkpoint counts.
            since -= SEQUENCE_MAX + 1
        position += since
    return position


def renewed_checkpoint(
    partition: UnifiedLog, producer_id: int, checkpoint: Checkpoint
) -> Checkpoint:
    """The checkpoint as it would be written now."""
    position, epoch = position_of(partition, producer_id, checkpoint)
    entry = partition.producer(producer_id)
    if entry is None or entry.producer_epoch != epoch:
        return checkpoint
    return Checkpoint(position, epoch, entry.last_sequence)


def last_sequences_of(partition: UnifiedLog, producer_id: int, epoch_min: int) -> dict[int, int]:
    """Per epoch from `epoch_min` on, the last sequence of a producer's batches in the log."""
    found: dict[int, int] = {}
    offset = partition.log_start_offset
    while offset < partition.log_end_offset:
        headers = partition.read_headers(offset, _SCAN_BYTES)
        if not headers:
            break
        for header in headers:
            offset = header.last_offset + 1
            if header.producer_id == producer_id and header.producer_epoch >= epoch_min:
                last = header.base_sequence + header.last_offset_delta
                found[header.producer_epoch] = last & 0x7FFFFFFF
    return found
