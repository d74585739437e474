"""One producer at one partition: which sequence comes next, and how many records went before.

Invariant: `last_sequence` and `position` are those of the log unless `in_doubt`. An append that
ended in an error, or in an interrupt, leaves a doubt: it may have written all of its records, some
or none. The partition's own entry of the producer settles it before the next append; so an append
is never numbered like one that is in the log, which would pass for its duplicate. An append from
within an append, by a handler of a signal, is refused: ConcurrentAccessError.
"""

from contextlib import AbstractContextManager
from typing import Any, Never, Protocol

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.column_set import ColumnSet
from eoslog.bindings.partition_log import AppendResult
from eoslog.bindings.sequenced_log import SequencedLog
from eoslog.common.sequence import NO_SEQUENCE, SEQUENCE_MAX, records_between
from eoslog.errors import OutOfOrderSequenceError
from eoslog.storage.unified_log import UnifiedLog

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class Held(Protocol):
    """Guard of an append where other processes could write under the same id."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def check(self) -> None:
        """Raise ProducerFencedError if another process has the id; the lock is held."""


class SequencedPartition(SequencedLog):
    """A partition as one producer writes it. The producer's lock guards it."""

    def __init__(
        self,
        partition: UnifiedLog,
        producer_id: int,
        producer_epoch: int,
        position: int,
        held: Held | None = None,
    ) -> None:
        is_plain = held is None and partition.is_plain
        super().__init__(partition, producer_id, producer_epoch, position, is_plain)
        self._held = held

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record that is in; NO_SEQUENCE if there is none."""
        if not self._appended or not self._idempotent:
            return NO_SEQUENCE
        return (self._next_sequence - 1) & SEQUENCE_MAX

    def append_columns(self, columns: ColumnSet) -> AppendResult:
        """Append all records of the columns. After an error `position` says how many are in."""
        if self._held is None:
            return self._append_columns(columns)
        with self._held.lock:
            self._held.check()
            return self._append_columns(columns)

    def _append_columns(self, columns: ColumnSet) -> AppendResult:
        base_sequence = self._begin()
        result: AppendResult = self.partition.append_columns(
            columns,
            timestamp_ms=0,  # Known to the columns.
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=base_sequence,
        )
        self._end(result)
        return result

    def append_accumulated(self, accumulator: RecordAccumulator) -> AppendResult | None:
        """Append what an accumulator holds and empty it; on an error it keeps all. None if it is
        empty.
        """
        if self._held is None:
            return self._append_accumulated(accumulator)
        with self._held.lock:
            self._held.check()
            return self._append_accumulated(accumulator)

    def _append_accumulated(self, accumulator: RecordAccumulator) -> AppendResult | None:
        if not accumulator.record_count:
            return None
        base_sequence = self._begin()
        result: AppendResult = self.partition.append_accumulated(
            accumulator, self._producer_id, self._producer_epoch, base_sequence
        )
        self._end(result)
        return result

    def settle(self) -> None:
        """Learn from the partition what the last append wrote, if that is not known."""
        if self.in_doubt and self._idempotent:
            entry = self.partition.producer(self._producer_id)
            if (
                entry is not None
                and entry.producer_epoch == self._producer_epoch
                and entry.last_sequence != NO_SEQUENCE
            ):
                more = records_between(self.last_sequence, entry.last_sequence)
                self.stands_at(entry.last_sequence, self.position + more)
                return
        self.in_doubt = False

    def _begin(self) -> int:
        if self.in_doubt:
            self.settle()
        self.in_doubt = True
        return self._next_sequence

    def refuse_duplicate(self, result: AppendResult) -> Never:
        """An append came back as one that was in the log before."""
        raise OutOfOrderSequenceError(
            f"{self.partition.topic_partition}: another process wrote under producer id "
            f"{self._producer_id}, epoch {self._producer_epoch}, at offset {result.base_offset}"
        )

    def _end(self, result: AppendResult) -> None:
        if result.duplicate:
            self.refuse_duplicate(result)
        self._took(result)
