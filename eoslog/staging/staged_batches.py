"""The batches of one attempt while they are filled, and the files that the full ones go to.

A record is copied once, from the caller's column into its partition's batch; a full batch goes to
its file from where it is. Rows of a partition keep the order in which they were added.

Invariants: nothing of a caller's column is kept after `add`; what is held takes up no more than
HELD_BYTES_MAX, but for a batch of one record that is larger.
"""

import os
import re
import zlib
from typing import NamedTuple

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.batch_filler import DONE, NO_ROOM, BatchFiller, RecordSet
from eoslog.columns.placed_rows import TopicLimits
from eoslog.common.topic_partition import TopicPartition
from eoslog.staging.staged_file import AttemptFiles

HELD_BYTES_MAX = 32 << 20
# Each record goes where its key says.
OWN_PARTITION = -1


def first_turn(run_id: str, attempt: str) -> int:
    """A number that differs from one task of a job to the next, and from job to job.

    So the records without keys of small tasks spread over all partitions. An attempt that does not
    begin with the number of its task gets a random one.
    """
    number = re.match(r"[0-9]{1,18}", attempt)
    task = int.from_bytes(os.urandom(4), "big") if number is None else int(number[0])
    return zlib.crc32(run_id.encode(errors="surrogatepass")) + task


class StagedTopic(NamedTuple):
    """Facts that a writer knows of a topic."""

    partitions: int
    limits: TopicLimits
    segment_bytes: int  # A staged file may become a segment of the log: it is no larger.
    topic_id: str = ""  # Unknown.


class _Filling(NamedTuple):
    topic: StagedTopic
    filler: BatchFiller


class StagedBatches:
    """Takes the records of all topics of a writer; `turn` is from `first_turn`."""

    def __init__(self, files: AttemptFiles, batch_bytes_max: int, turn: int) -> None:
        self._files = files
        self._batch_bytes_max = batch_bytes_max
        self._turn = turn
        self._filling: dict[str, _Filling] = {}

    def add(self, name: str, topic: StagedTopic, partition: int | None, records: RecordSet) -> None:
        """Add records to a partition, or each to where its key says; write the batches they fill.

        After an error part of them may be added.
        """
        filler = self._filler(name, topic)
        number = OWN_PARTITION if partition is None else partition
        first, stopped = 0, NO_ROOM
        while stopped != DONE:
            first, stopped = filler.fill(records, first, number, self._room(filler))
            if stopped == NO_ROOM:
                self.write_all()
                for one in self._filling.values():
                    one.filler.release()
            elif stopped != DONE:
                self._write(name, stopped)

    def add_batch(
        self, name: str, topic: StagedTopic, partition: int, accumulator: RecordAccumulator
    ) -> None:
        """Write what an accumulator holds as one batch, behind what the partition got before."""
        self._filler(name, topic)
        self._write(name, partition)
        count = accumulator.record_count
        file = self._files.file_for(
            TopicPartition(name, partition),
            count,
            accumulator.batch_bytes,
            topic.segment_bytes,
            topic.topic_id,
        )
        batch = accumulator.encoded(file.producer_id, 0, file.records)
        self._files.write(file, batch, count)
        accumulator.clear()

    def write_all(self) -> None:
        """Write every batch that holds records, full or not."""
        for name, (topic, filler) in self._filling.items():
            for partition in range(topic.partitions):
                if filler.record_count == 0:
                    break
                self._write(name, partition)

    def drop(self) -> None:
        """Forget what is held."""
        self._filling = {}

    def _write(self, name: str, partition: int) -> None:
        topic, filler = self._filling[name]
        count, batch_bytes = filler.held(partition)
        if count == 0:
            return
        file = self._files.file_for(
            TopicPartition(name, partition),
            count,
            batch_bytes,
            topic.segment_bytes,
            topic.topic_id,
        )
        with filler.finish(
            partition, producer_id=file.producer_id, producer_epoch=0, base_sequence=file.records
        ) as batch:
            self._files.write(file, batch, count)
        filler.empty(partition)

    def _room(self, filler: BatchFiller) -> int:
        """Return how much memory the batches of one topic may take, beside those of the others."""
        held = sum(one.filler.held_bytes for one in self._filling.values())
        return HELD_BYTES_MAX - held + filler.held_bytes

    def _filler(self, name: str, topic: StagedTopic) -> BatchFiller:
        """The topic's batches; new ones if it is new, or has other settings than before."""
        known = self._filling.get(name)
        if known is not None and known.topic == topic:
            return known.filler
        if known is not None:
            for partition in range(known.topic.partitions):
                self._write(name, partition)
        first = self._turn % topic.partitions
        batch_bytes = min(self._batch_bytes_max, topic.limits.message_bytes_max)
        filler = BatchFiller(topic.partitions, batch_bytes, first)
        self._filling[name] = _Filling(topic, filler)
        return filler
