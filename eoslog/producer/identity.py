"""Identity of a producer, and its position at each partition.

Invariants: a named producer's partition is in the name's record before its first append there; at
least every RENEW_RECORDS records a new record has the name's position.
"""

import threading
from collections.abc import Iterable

from eoslog.bindings.accumulator import Accumulator
from eoslog.common import clock
from eoslog.common.sequence import NO_SEQUENCE
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InvalidRequestError, ProducerFencedError
from eoslog.producer.parts import ProducerParts
from eoslog.producer.sequenced_partition import NO_EPOCH, NO_PRODUCER_ID, SequencedPartition
from eoslog.session.lock import moment_text
from eoslog.storage.unified_log import UnifiedLog
from eoslog.transactions.named_producers import Checkpoint, HeldName, NamedIdentity

# Half of the sequences before they wrap: an older one is never taken for a newer one.
RENEW_RECORDS = 1 << 30


class ProducerIdentity:
    """Identity of one producer; the accumulator's lock guards it. An id is taken with the first
    append.
    """

    def __init__(
        self, parts: ProducerParts, accumulator: Accumulator, name: str | None, idempotent: bool
    ) -> None:
        if name is not None:
            if not isinstance(name, str):
                raise TypeError(f"a producer's name must be a str, got {type(name).__name__}")
            if not name:
                raise ValueError("a producer's name must not be empty")
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequestError(f"producer name {name!r:.80}: {error}") from error
            if not idempotent:
                raise ValueError("a producer with a name needs enable.idempotence")
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self._store_parts = parts
        self._engine = parts.engine
        self._accumulator = accumulator
        self._idempotent = idempotent
        self._named: NamedIdentity | None = None
        self._held: HeldName | None = None  # Of the name, if there is one.
        self._partitions: dict[TopicPartition, SequencedPartition] = {}

    @property
    def name(self) -> str | None:
        return None if self._named is None else self._named.name

    def take_name(self, name: str) -> None:
        """Go on as the name; the producer that had it is fenced."""
        names = self._store_parts.names
        with names.lock:
            named = names.open(name, lambda epoch: _fencing_reason(name, epoch))
            self.producer_id, self.producer_epoch = named.producer_id, named.epoch
            self._named = named
            self._held = names.held(named)
            names.adopt(name, self)

    def known(self, where: TopicPartition) -> SequencedPartition | None:
        """The partition, if this producer wrote to it."""
        return self._partitions.get(where)

    def ready(self) -> dict[TopicPartition, SequencedPartition]:
        """The partitions that were written to, as they come and go, if there is no name that may
        have to be renewed there. Their logs know if the topic was deleted.
        """
        return self._partitions if self._named is None else {}

    def sequenced(self, where: TopicPartition) -> SequencedPartition:
        """The partition, ready for the next append: registered with the name, or renewed there."""
        sequenced = self._partitions.get(where)
        if sequenced is not None and sequenced.partition is not self._engine.partitions.if_open(
            where
        ):
            # Another process has deleted the topic; there may be a new one of the name.
            self.forget_topic(where.topic)
            sequenced = self._partitions.get(where)
        if sequenced is None:
            partition = self._engine.partition(where.topic, where.partition)
            if self._named is not None:
                self._register(self._named, where.topic)
            elif self._idempotent and self.producer_id == NO_PRODUCER_ID:
                self._take_id()
            sequenced = self._partitions[where] = SequencedPartition(
                partition,
                self.producer_id,
                self.producer_epoch,
                self._checkpoint(where).position,
                self._held,
            )
        elif self._named is not None:
            # Looked at, and registered, when the partition was: it is that of the same topic.
            checkpoint = self._named.checkpoints.get(where)
            if checkpoint and sequenced.position - checkpoint.position >= RENEW_RECORDS:
                self.renew([where])
        return sequenced

    def position(self, where: TopicPartition) -> int:
        """Return how many records of the name, or of this producer, are in the partition or were.

        Raises ProducerFencedError if another process has the name by now.
        """
        self._check_held()
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
        renewed, topic_ids = {}, {}
        for where in partitions:
            sequenced = self._partitions.get(where)
            if sequenced is not None:
                topic_ids[where.topic] = sequenced.partition.topic_id
                sequenced.settle()
                sequenced.partition.make_durable(sequenced.partition.log_end_offset)
                renewed[where] = Checkpoint(
                    sequenced.position, named.epoch, sequenced.last_sequence
                )
        # Synced: what it counts may be deleted next.
        self._store_parts.names.write(named, renewed, topic_ids, sync=True)

    # For the names of the store.

    def renew_checkpoints(self, partitions: Iterable[TopicPartition]) -> bool:
        """Write down where the name stands at these partitions; False if the producer has ended."""
        with self._accumulator.lock:
            if self._accumulator.refusal is not None:
                return False
            self.renew(partitions)
            return True

    def fence(self, reason: str) -> None:
        """Have the producer take nothing more; waits for a call that is under way.

        Raises ConcurrentAccessError in the middle of a call of the producer by the same thread.
        """
        with self._accumulator.lock:
            self._accumulator.refuse(lambda: ProducerFencedError(reason))

    # For the producer.

    def forget_topic(self, topic: str) -> list[UnifiedLog]:
        """The topic is gone; the partitions of it that this producer wrote to.

        Those of a new topic of the name stay.
        """
        topic_id = self._engine.registry.id_of
        gone = [
            where
            for where, sequenced in self._partitions.items()
            if where.topic == topic and sequenced.partition.topic_id != topic_id(where)
        ]
        named = self._named
        if named is not None and named.topic_ids.get(topic) != topic_id(TopicPartition(topic, 0)):
            known = named.checkpoints
            named.checkpoints = {where: one for where, one in known.items() if where.topic != topic}
        return [self._partitions.pop(where).partition for where in gone]

    def _take_id(self) -> None:
        self.producer_id, self.producer_epoch = self._store_parts.producer_ids.take(), 0

    def _checkpoint(self, where: TopicPartition) -> Checkpoint:
        """Return where the name stood at the partition when that was last written down."""
        named = self._named
        begin = Checkpoint(0, self.producer_epoch, NO_SEQUENCE)
        if named is None or named.topic_ids.get(where.topic) != self._engine.registry.id_of(where):
            return begin  # What was written down was of a topic that was deleted since.
        return named.checkpoints.get(where, begin)

    def _check_held(self) -> None:
        """Know what another process wrote of the name, if there is one. ProducerFencedError."""
        if self._held is not None:
            with self._held.lock:
                self._held.check()

    def _register(self, named: NamedIdentity, topic: str) -> None:
        """Have all partitions of a topic in the name's record, by one write."""
        self._check_held()
        description = self._engine.topic(topic)
        is_known = named.topic_ids.get(topic) == description.topic_id
        known = named.checkpoints if is_known else {}
        begin = Checkpoint(0, named.epoch, NO_SEQUENCE)
        missing = {where: begin for where in description.topic_partitions() if where not in known}
        if missing:
            self._store_parts.names.write(named, missing, {topic: description.topic_id})


def _fencing_reason(name: str, epoch: int) -> str:
    moment = moment_text(clock.now_ms())
    thread = threading.current_thread().name
    return (
        f"producer {name!r} was opened again, with epoch {epoch}, at {moment} by thread {thread!r}"
    )
