"""Who a producer is, and where it stands at each partition.

Invariants: a named producer's partition is in the name's record before its first append there; at
least every RENEW_RECORDS records the record says anew where the name stands.
"""

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from eoslog.named_producers import Checkpoint, LiveProducer, NamedIdentity
from eoslog.partition import Partition
from eoslog.sequence import NO_SEQUENCE
from eoslog.sequenced_partition import NO_EPOCH, NO_PRODUCER_ID, SequencedPartition
from eoslog.store_lock import moment_text
from eoslog.topic_partition import TopicPartition

if TYPE_CHECKING:
    from eoslog.store import Store

# Half of the sequences before they begin anew: far from taking an older one for a newer one.
RENEW_RECORDS = 1 << 30


class ProducerIdentity:
    """Of one producer; its lock guards it. An id is taken with the first append."""

    def __init__(self, store: "Store", name: str | None, idempotent: bool) -> None:
        if name is not None:
            if not isinstance(name, str):
                raise TypeError(f"a producer's name is a str, not {type(name).__name__}")
            if not name:
                raise ValueError("a producer's name must not be empty")
            if not idempotent:
                raise ValueError("a producer with a name needs enable.idempotence")
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self._store = store
        self._idempotent = idempotent
        self._named: NamedIdentity | None = None
        self._partitions: dict[TopicPartition, SequencedPartition] = {}

    @property
    def name(self) -> str | None:
        return None if self._named is None else self._named.name

    def take_name(self, name: str, producer: LiveProducer) -> None:
        """Go on as the name; the producer that had it is fenced."""
        names = self._store._names
        with names.exclusive():
            named = names.open(name, lambda epoch: _fencing_reason(name, epoch))
            self.producer_id, self.producer_epoch = named.producer_id, named.epoch
            self._named = named
            names.adopt(name, producer)

    def known(self, where: TopicPartition) -> SequencedPartition | None:
        """The partition, if this producer wrote to it."""
        return self._partitions.get(where)

    def sequenced(self, where: TopicPartition) -> SequencedPartition:
        """The partition, ready for the next append: registered with the name, or renewed there."""
        sequenced = self._partitions.get(where)
        if sequenced is None:
            partition = self._store.partition(where.topic, where.partition)
            if self._named is not None:
                self._register(self._named, where.topic)
            elif self._idempotent and self.producer_id == NO_PRODUCER_ID:
                self.producer_id, self.producer_epoch = self._store._files.producer_ids.take(), 0
            sequenced = SequencedPartition(
                partition, self.producer_id, self.producer_epoch, self._checkpoint(where).position
            )
            self._partitions[where] = sequenced
        elif sequenced.position - self._checkpoint(where).position >= RENEW_RECORDS:
            self.renew([where])
        return sequenced

    def position(self, where: TopicPartition) -> int:
        """How many records of the name, or of this producer, are in the partition or were."""
        sequenced = self._partitions.get(where)
        if sequenced is None:
            return self._checkpoint(where).position
        sequenced.settle()
        return sequenced.position

    def renew(self, partitions: Iterable[TopicPartition]) -> None:
        """Write down, synced, where the name stands at these partitions. Nothing without a name."""
        named = self._named
        if named is None:
            return
        before = dict(named.checkpoints)
        renewed = {}
        for where in partitions:
            sequenced = self._partitions.get(where)
            if sequenced is not None:
                sequenced.settle()
                sequenced.partition.sync_up_to(sequenced.partition.log_end_offset)
                renewed[where] = Checkpoint(
                    sequenced.position, named.epoch, sequenced.last_sequence
                )
        named.checkpoints = {**before, **renewed}
        if named.checkpoints == before:
            return
        try:
            # Synced: what it counts may be deleted next.
            self._store._names.write(named, sync=True)
        except BaseException:
            named.checkpoints = before
            raise

    def forget_topic(self, topic: str) -> list[Partition]:
        """The topic is gone; the partitions of it that this producer wrote to."""
        gone = [where for where in self._partitions if where.topic == topic]
        if self._named is not None:
            for where in [one for one in self._named.checkpoints if one.topic == topic]:
                del self._named.checkpoints[where]
        return [self._partitions.pop(where).partition for where in gone]

    def _checkpoint(self, where: TopicPartition) -> Checkpoint:
        """Where the name stood at the partition when that was last written down."""
        begin = Checkpoint(0, self.producer_epoch, NO_SEQUENCE)
        return begin if self._named is None else self._named.checkpoints.get(where, begin)

    def _register(self, named: NamedIdentity, topic: str) -> None:
        """Have all partitions of a topic in the name's record, by one write."""
        partitions = self._store._topic(topic).topic_partitions()
        missing = [where for where in partitions if where not in named.checkpoints]
        if not missing:
            return
        named.checkpoints.update(
            {where: Checkpoint(0, named.epoch, NO_SEQUENCE) for where in missing}
        )
        try:
            self._store._names.write(named)
        except BaseException:
            for where in missing:
                del named.checkpoints[where]
            raise


def _fencing_reason(name: str, epoch: int) -> str:
    moment = moment_text(time.time_ns() // 1_000_000)
    thread = threading.current_thread().name
    return (
        f"producer {name!r} was opened again, with epoch {epoch}, at {moment} by thread {thread!r}"
    )
