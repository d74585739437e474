"""Records gathered one by one: the topics they are for, how long they wait, when none is taken.

The hot path is `bindings.sender`; a producer on top of this appends the batches.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from eoslog.bindings.sender import Sender, TopicBuffers
from eoslog.errors import (
    EoslogError,
    ForkedProcessError,
    LogClosedError,
    OutOfMemoryError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer.producer_parts import ProducerParts

if TYPE_CHECKING:
    from eoslog.storage.topic_registry import TopicDescription

# A batch that waited and could not be appended is tried again after so long.
RETRY_S = 1.0


def closed_error() -> EoslogError:
    """Return the error with which a closed producer refuses a call."""
    return LogClosedError("the producer is closed")


class GatheringSender(Sender):
    """Records that a producer gathers of a store's topics. A subclass has `_drain`."""

    def __init__(self, parts: ProducerParts, batch_bytes: int, linger_ms: int) -> None:
        self._store_parts = parts
        self._engine = parts.engine
        self._batch_bytes_max = batch_bytes
        self._linger_ms = linger_ms
        self._closed = self._is_parents = False
        self._refusal: Callable[[], EoslogError] | None = None
        self._set_batch_bytes(batch_bytes)

    def append_lingering(self) -> float | None:
        """Append what waited for `linger.ms`; in how many seconds to call again, or None."""
        return self._append_waiting(self._linger_ms)

    def _append_waiting(self, waited_ms_min: int) -> float | None:
        """Append what waited for so long; in how many seconds to call again, or None."""
        again_s: float | None = None
        with self.lock:
            if self._refusal is not None:
                return None
            self._follow_topics()
            for buffer in self._filled_buffers(time.monotonic_ns() // 1_000_000 - waited_ms_min):
                try:
                    self._drain(buffer)
                except (EoslogError, MemoryError) as error:
                    # It stays gathered: the next flush, or the send that finds it full, raises.
                    if isinstance(error, MemoryError) or error.retriable:
                        again_s = RETRY_S
            if again_s is None and self._has_lingering():
                again_s = max(self._linger_ms, 1) / 1000
        return again_s

    def leave_to_parent(self) -> None:
        """Leave the records to the parent process: this is a forked child. Takes no lock: a thread
        that held it is not here.

        What was gathered is the parent's, who appends it: nothing is left to close.
        """
        self._renew_lock()
        self._closed = self._is_parents = True
        self._refuse_from_now_on(
            lambda: ForkedProcessError("the store was opened before a fork: open it in the child")
        )

    def _discard(self) -> int:
        """Forget what was gathered; how many records. The caller holds the lock."""
        discarded = 0
        for buffer in self._filled_buffers():
            discarded += buffer.accumulator.record_count
            buffer.accumulator.clear()
        return discarded

    def _refuse_from_now_on(self, refusal: Callable[[], EoslogError]) -> None:
        # In this order: once it is refused here, nothing is left to be done.
        self._set_refused(refusal)
        self._refusal = refusal

    def _check_usable(self) -> None:
        self._refuse()
        self._engine.check_open()

    def _check_appendable(self) -> None:
        """Check that records are taken now."""
        self._check_usable()

    # What the hot path asks for.

    def _add_topic(self, topic: str) -> TopicBuffers:
        description = self._engine.topic(topic)
        self._follow(description)
        config = self._engine.partitions.config_of(description)
        # A gathered batch has to fit into every topic's limits.
        batch_bytes = config["max.message.bytes"]
        self._batch_bytes_max = min(self._batch_bytes_max, batch_bytes)
        self._set_batch_bytes(self._batch_bytes_max)
        buffers = TopicBuffers(topic, description.partitions, batch_bytes, description.topic_id)
        self._keep_topic(topic, buffers)
        return buffers

    def _follow(self, topic: "TopicDescription") -> bool:
        """Forget what is of an earlier topic of the name, if another process deleted that; whether
        there was anything.
        """
        return False

    def _follow_topics(self) -> None:
        """Forget, for all topics, what is of an earlier topic of the name."""

    def _start_lingering(self) -> None:
        try:
            self._store_parts.linger.add(self, self._linger_ms / 1000)
        except OutOfMemoryError:
            # Nobody would come for them. The record was taken: what is wrong is told by a flush.
            self._append_waiting(0)

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    def _no_partition(self, topic: str, partition: int, partition_count: int) -> None:
        raise UnknownTopicOrPartitionError(
            f"topic {topic!r} has partitions 0 to {partition_count - 1}, not {partition}"
        )
