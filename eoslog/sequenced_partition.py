"""One producer at one partition: which sequence comes next, and how many records went before.

Invariant: `last_sequence` and `position` are those of the log unless `in_doubt`. An append that
ended in an error, or in an interrupt, leaves a doubt: it may have written all of its records, some
or none. The partition's own entry of the producer settles it before the next append; so an append
is never numbered like one that is in the log, which would pass for its duplicate.
"""

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.partition_log import AppendResult
from eoslog.errors import OutOfOrderSequenceError
from eoslog.partition import Partition
from eoslog.sequence import NO_SEQUENCE, records_between, sequence_after

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class SequencedPartition:
    """A partition as one producer writes it. The producer's lock guards it."""

    def __init__(
        self, partition: Partition, producer_id: int, producer_epoch: int, position: int
    ) -> None:
        self.partition = partition
        self.position = position
        self.last_sequence = NO_SEQUENCE
        self.in_doubt = False
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch

    def append_columns(
        self, values: object, keys: object, timestamps: object, headers: object
    ) -> AppendResult:
        """Append all records of the columns. After an error `position` tells how many are in."""
        base_sequence = self._begin()
        result = self.partition.append_columns(
            values,
            keys,
            timestamps,
            headers,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=base_sequence,
        )
        self._end(result)
        return result

    def append_accumulated(self, accumulator: RecordAccumulator) -> AppendResult:
        """Append what an accumulator holds and empty it; on an error it keeps all."""
        base_sequence = self._begin()
        result = self.partition.append_accumulated(
            accumulator, self._producer_id, self._producer_epoch, base_sequence
        )
        self._end(result)
        return result

    def settle(self) -> None:
        """Learn from the partition what the last append wrote, if that is not known."""
        if not self.in_doubt:
            return
        if self._producer_id != NO_PRODUCER_ID:
            entry = self.partition.producer(self._producer_id)
            if entry is not None and entry.producer_epoch == self._producer_epoch:
                self.position += records_between(self.last_sequence, entry.last_sequence)
                self.last_sequence = entry.last_sequence
        self.in_doubt = False

    def _begin(self) -> int:
        self.settle()
        self.in_doubt = True
        if self._producer_id == NO_PRODUCER_ID:
            return NO_SEQUENCE
        return sequence_after(self.last_sequence)

    def _end(self, result: AppendResult) -> None:
        if result.duplicate:
            raise OutOfOrderSequenceError(
                f"{self.partition.topic_partition}: somebody else wrote under producer id "
                f"{self._producer_id}, epoch {self._producer_epoch}, at offset {result.base_offset}"
            )
        if self._producer_id != NO_PRODUCER_ID:
            count = result.record_count
            self.last_sequence = sequence_after(self.last_sequence + count - 1)
        self.position += result.record_count
        self.in_doubt = False
