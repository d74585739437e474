"""Producers with a name: they keep their identity, and the count of their records, for ever.

A record of the state log holds, per name, the producer id, the epoch and for each partition that
the name ever wrote to a checkpoint: [position, epoch, last sequence] - so many records of this
name were in the partition when its last batch had that epoch and sequence. The partition's own
entry of the producer id tells what came after, so that the position is always that of the log
itself.

Invariants: what a checkpoint counts was synced before the checkpoint is written, so that it never
tells of records that a power cut took. A partition is in the record before the name's first append
to it. Each opening of a name takes a new epoch, and writes it down with new checkpoints before the
new producer appends. At least every 2**30 records a partition's checkpoint is renewed, so that a
sequence that wrapped around is never taken for an older one.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from eoslog.bindings.record_batch import iter_batches
from eoslog.partition import Partition
from eoslog.producer_ids import ProducerIds
from eoslog.sequence import NO_SEQUENCE, records_between
from eoslog.state_log import NAMED_PRODUCER, State, StateLog
from eoslog.topic_partition import TopicPartition

EPOCH_MAX = 32_766  # The last epoch that may write; Kafka keeps 32,767 for a fencing marker.
_SCAN_BYTES = 4 << 20


class Checkpoint(NamedTuple):
    """So many records were in a partition when the last batch had this epoch and sequence.

    `last_sequence` NO_SEQUENCE: no batch of that epoch yet.
    """

    position: int
    epoch: int
    last_sequence: int


@dataclass(slots=True)
class NamedIdentity:
    """A name's record: who it is, and where it stood at each partition."""

    name: str
    producer_id: int
    epoch: int
    checkpoints: dict[TopicPartition, Checkpoint] = field(default_factory=dict)

    def state(self) -> State:
        positions = {str(where): list(checkpoint) for where, checkpoint in self.checkpoints.items()}
        return {"producer_id": self.producer_id, "epoch": self.epoch, "positions": positions}

    @classmethod
    def of_state(cls, name: str, state: State) -> "NamedIdentity":
        checkpoints = {
            TopicPartition.parse(where): Checkpoint(*map(int, fields))
            for where, fields in state["positions"].items()
        }
        return cls(name, int(state["producer_id"]), int(state["epoch"]), checkpoints)


class LiveProducer(Protocol):
    """What the names need of the producer object that has a name now."""

    def fence(self, reason: str) -> None:
        """Take part in nothing more; waits for a call that is under way."""

    def renew_checkpoints(self, partitions: Iterable[TopicPartition]) -> None:
        """Write the name's record anew, synced, with where it stands at these partitions."""


class NamedProducers:
    """The names of a store, and which producer object has each of them now."""

    def __init__(
        self,
        state_log: StateLog,
        producer_ids: ProducerIds,
        find_partition: Callable[[TopicPartition], Partition | None],
    ) -> None:
        self._state_log = state_log
        self._producer_ids = producer_ids
        self._find_partition = find_partition
        self._lock = threading.RLock()
        self._live: dict[str, LiveProducer] = {}

    def open(self, name: str, fenced_because: Callable[[int], str]) -> NamedIdentity:
        """Give the name a new epoch; the producer that had it so far is fenced from now on.

        `fenced_because(epoch)` words the reason for it. The caller holds `exclusive()` until it has
        called `adopt`.
        """
        state = self._state_log.get(NAMED_PRODUCER, name)
        if state is None:
            identity = NamedIdentity(name, self._producer_ids.take(), 0)
            self._state_log.append(NAMED_PRODUCER, name, identity.state())
            return identity
        older = NamedIdentity.of_state(name, state)
        live = self._live.pop(name, None)
        if live is not None:
            live.fence(fenced_because(older.epoch + 1))
            state = self._state_log.get(NAMED_PRODUCER, name)
            older = NamedIdentity.of_state(name, state or older.state())
        return self._succeed(older)

    def _succeed(self, older: NamedIdentity) -> NamedIdentity:
        """The identity that follows: a higher epoch than any the partitions have seen."""
        positions: dict[TopicPartition, int] = {}
        epoch = older.epoch
        for where, checkpoint in older.checkpoints.items():
            partition = self._find_partition(where)
            if partition is None:
                continue  # The topic was deleted, and the count with it.
            positions[where], seen = position_of(partition, older.producer_id, checkpoint)
            epoch = max(epoch, seen)
            if positions[where] != checkpoint.position:
                # What the new checkpoint counts must be on disk before it is.
                partition.sync_up_to(partition.log_end_offset)
        rotates = epoch + 1 > EPOCH_MAX
        newer = NamedIdentity(
            older.name,
            self._producer_ids.take() if rotates else older.producer_id,
            0 if rotates else epoch + 1,
        )
        newer.checkpoints = {
            where: Checkpoint(position, newer.epoch, NO_SEQUENCE)
            for where, position in positions.items()
        }
        # A new id is synced whatever the durability: without the record nobody would find it again.
        sync = True if rotates else None
        self._state_log.append(NAMED_PRODUCER, older.name, newer.state(), sync=sync)
        if rotates:
            for where in positions:
                partition = self._find_partition(where)
                if partition is not None:
                    partition.forget_producers([older.producer_id])
        return newer

    def exclusive(self) -> threading.RLock:
        """The lock under which names are opened and renewed; taken before any producer's own."""
        return self._lock

    def adopt(self, name: str, producer: LiveProducer) -> None:
        """The producer object that has the name from now on."""
        self._live[name] = producer

    def release(self, name: str, producer: LiveProducer) -> None:
        """The producer is closed; nobody has the name until it is opened again."""
        with self._lock:
            if self._live.get(name) is producer:
                del self._live[name]

    def write(self, identity: NamedIdentity, *, sync: bool | None = None) -> None:
        """Write a name's record; durably as the store's durability, or `sync`, says."""
        self._state_log.append(NAMED_PRODUCER, identity.name, identity.state(), sync=sync)

    def all(self) -> Iterator[NamedIdentity]:
        """Every name's newest record."""
        for name in self._state_log.names(NAMED_PRODUCER):
            state = self._state_log.get(NAMED_PRODUCER, name)
            if state is not None:
                yield NamedIdentity.of_state(name, state)

    def producer_ids(self) -> frozenset[int]:
        """The ids that never expire: those of names."""
        return frozenset(identity.producer_id for identity in self.all())

    def renew(self, where: TopicPartition) -> None:
        """Write down where every name stands at a partition, before part of its log is deleted."""
        with self._lock:
            partition = self._find_partition(where)
            for identity in list(self.all()):
                checkpoint = identity.checkpoints.get(where)
                if checkpoint is None or partition is None:
                    continue
                live = self._live.get(identity.name)
                if live is not None:
                    live.renew_checkpoints([where])
                    continue
                renewed = renewed_checkpoint(partition, identity.producer_id, checkpoint)
                if renewed != checkpoint:
                    partition.sync_up_to(partition.log_end_offset)
                    identity.checkpoints[where] = renewed
                    self._state_log.append(
                        NAMED_PRODUCER, identity.name, identity.state(), sync=True
                    )

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: names count from 0 in one that is made under the same name.

        The producers that have a name now were told before.
        """
        with self._lock:
            for identity in list(self.all()):
                gone = [where for where in identity.checkpoints if where.topic == topic]
                if not gone:
                    continue
                for where in gone:
                    del identity.checkpoints[where]
                self._state_log.append(NAMED_PRODUCER, identity.name, identity.state(), sync=True)


def position_of(partition: Partition, producer_id: int, checkpoint: Checkpoint) -> tuple[int, int]:
    """How many records of the name the partition ever held, and the newest epoch seen there."""
    entry = partition.producer(producer_id)
    if entry is None or entry.producer_epoch < checkpoint.epoch:
        return checkpoint.position, checkpoint.epoch
    if entry.producer_epoch == checkpoint.epoch:
        return _counted_on(checkpoint, {checkpoint.epoch: entry.last_sequence}), checkpoint.epoch
    # A power cut took the state log's newest records but not the partition's. The partition's
    # batches tell how far each epoch since the checkpoint came; its entry tells of the newest
    # alone.
    last_sequences = last_sequences_of(partition, producer_id, checkpoint.epoch)
    last_sequences[entry.producer_epoch] = entry.last_sequence
    return _counted_on(checkpoint, last_sequences), entry.producer_epoch


def _counted_on(checkpoint: Checkpoint, last_sequences: Mapping[int, int]) -> int:
    position = checkpoint.position
    for epoch, last_sequence in last_sequences.items():
        before = checkpoint.last_sequence if epoch == checkpoint.epoch else NO_SEQUENCE
        position += records_between(before, last_sequence)
    return position


def renewed_checkpoint(
    partition: Partition, producer_id: int, checkpoint: Checkpoint
) -> Checkpoint:
    """The checkpoint as it would be written now."""
    position, epoch = position_of(partition, producer_id, checkpoint)
    entry = partition.producer(producer_id)
    if entry is None or entry.producer_epoch != epoch:
        return checkpoint
    return Checkpoint(position, epoch, entry.last_sequence)


def last_sequences_of(partition: Partition, producer_id: int, epoch_min: int) -> dict[int, int]:
    """Per epoch from `epoch_min` on, the last sequence of a producer's batches in the log."""
    found: dict[int, int] = {}
    offset = partition.log_start_offset
    while offset < partition.log_end_offset:
        data = partition.read(offset, _SCAN_BYTES)
        if not data:
            break
        for header in iter_batches(data):
            offset = header.last_offset + 1
            if header.producer_id == producer_id and header.producer_epoch >= epoch_min:
                last = header.base_sequence + header.last_offset_delta
                found[header.producer_epoch] = last & 0x7FFFFFFF
    return found
