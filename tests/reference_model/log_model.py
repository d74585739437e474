"""A partition's log as a list of batches: the rules of append, read, retention and reopening."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from reference_model.abort_model import (
    AbortedModel,
    OpenModel,
    aborted_by,
    committed_batches,
    open_transactions,
)
from reference_model.batch_codec import (
    ABORT,
    COMMIT,
    CONTROL,
    LOG_APPEND_TIME,
    CodecError,
    ModelBatch,
    ModelRecord,
    decode_header,
    decode_records,
    encode_marker,
    place_batch,
    records_of,
)
from reference_model.producer_model import (
    ModelError,
    ProducerModel,
    ProducerTable,
    decode_snapshot,
    encode_snapshot,
)

OFFSET_SPAN_MAX = 2**31 - 1
EVER = 2**63 - 1


@dataclass(frozen=True)
class ModelAppend:
    """Where a batch stands, whether it was written now or before."""

    base_offset: int
    last_offset: int
    duplicate: bool


class LogModel:
    """One partition. Segments are base offsets; a batch belongs to the last one at or below it."""

    def __init__(
        self,
        *,
        segment_bytes: int = 1 << 30,
        max_message_bytes: int = 1_048_588,
        index_interval_bytes: int = 4096,
        index_bytes: int = 10_485_760,
        log_start_offset: int = 0,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.index_interval_bytes = index_interval_bytes
        self.index_entry_count_max = index_bytes // 8
        self.max_message_bytes = max_message_bytes
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_start_offset
        self.batches: list[ModelBatch] = []
        self.segments: list[int] = [log_start_offset]
        self.producers = ProducerTable()
        self.snapshots: dict[int, bytes] = {}
        # The one written or loaded last. Not known after rows were loaded instead: the next one is
        # written even where a file stands, as that may hold producers that have expired since.
        self.newest_snapshot = -1
        # By marker; each belongs to the segment that holds its marker, and goes with it.
        self.aborted: list[AbortedModel] = []
        # Not while producers are kept elsewhere: a snapshot holds all of them, or is not written.
        self.roll_writes_snapshot = True

    # -- appends ---------------------------------------------------------------------------------

    def append_batch(
        self, data: bytes, *, verified: bool = False, of_coordinator: bool = False
    ) -> ModelAppend:
        """A client's append of one batch: refused, recognised or written.

        `verified`: the transaction's coordinator knows that it has this partition. A coordinator's
        own batches have no sequence.
        """
        batch = self._validated(data, of_coordinator)
        if batch.producer_id >= 0:
            first_write = self.producers.entry(batch.producer_id).judge(
                batch.producer_epoch,
                batch.base_sequence,
                batch.record_count,
                batch.is_transactional,
                verified,
            )
            if first_write is not None:
                return ModelAppend(first_write.first_offset, first_write.last_offset, True)
        return self._write(decode_header(place_batch(data, self.log_end_offset)))

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int | None,
        commit: bool,
        *,
        timestamp_ms: int,
        newer_epoch: bool = True,
    ) -> ModelAppend | None:
        """A transaction's end: refused, written, or None where it is in the log already."""
        entry = self.producers.entry(producer_id)
        if coordinator_epoch is None:  # The store's own, which goes by the others'.
            coordinator_epoch = max(entry.coordinator_epoch, 0)
        if not entry.judge_marker(producer_epoch, coordinator_epoch, newer_epoch):
            return None
        marker = encode_marker(
            COMMIT if commit else ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            offset=self.log_end_offset,
            timestamp_ms=timestamp_ms,
        )
        return self._write(decode_header(marker))

    def replicate(self, data: bytes) -> ModelAppend:
        """A batch that carries its offsets, taken as it is: as from a copied or recovered file."""
        batch = decode_header(data)
        span = batch.last_offset - self.segments[-1]
        if batch.base_offset < self.log_end_offset or span > OFFSET_SPAN_MAX:
            raise ModelError("OffsetOutOfRangeError")
        return self._write(batch)

    def _validated(self, data: bytes, of_coordinator: bool) -> ModelBatch:
        try:
            batch = decode_header(data)
            decode_records(data)
        except CodecError as error:
            raise ModelError("CorruptRecordError") from error
        if len(batch.data) != len(data):
            raise ModelError("InvalidRecordError")
        if len(data) > self.max_message_bytes:
            raise ModelError("RecordTooLargeError")
        if len(data) > self.segment_bytes:
            raise ModelError("RecordBatchTooLargeError")
        counts = batch.last_offset_delta + 1
        if batch.base_offset != 0 or counts <= 0 or counts != batch.record_count:
            raise ModelError("InvalidRecordError")
        if batch.attributes & CONTROL:
            raise ModelError("InvalidRecordError")
        if batch.attributes & LOG_APPEND_TIME:
            raise ModelError("InvalidTimestampError")
        if batch.producer_id >= 0 and batch.base_sequence < 0 and not of_coordinator:
            raise ModelError("InvalidRecordError")
        return batch

    def _write(self, batch: ModelBatch) -> ModelAppend:
        used = self._segment_used_bytes()
        span = batch.last_offset - self.segments[-1]
        if used > 0 and (
            used + len(batch.data) > self.segment_bytes
            or span > OFFSET_SPAN_MAX
            or self._index_entry_count() >= self.index_entry_count_max
        ):
            self.roll()
        self.batches.append(batch)
        self.log_end_offset = batch.last_offset + 1
        aborted = aborted_by(batch, self.open_transactions())
        if aborted is not None:
            self.aborted.append(aborted)
        self.producers.take(batch)
        return ModelAppend(batch.base_offset, batch.last_offset, False)

    def _segment_used_bytes(self) -> int:
        return sum(len(b.data) for b in self.batches if b.base_offset >= self.segments[-1])

    def _index_entry_count(self) -> int:
        """How many offset index entries the active segment has."""
        count = since_entry = 0
        for batch in self.batches:
            if batch.base_offset >= self.segments[-1]:
                if since_entry > self.index_interval_bytes:
                    count += 1
                    since_entry = 0
                since_entry += len(batch.data)
        return count

    def roll(self) -> None:
        """Start a segment at the log end, and write down the producers there if that is not done:
        a deletion may rely on the copy that is there.
        """
        if self._segment_used_bytes() > 0:
            self.segments.append(self.log_end_offset)
            if self.roll_writes_snapshot and self.log_end_offset not in self.snapshots:
                self.newest_snapshot = -1
                self.take_snapshot()

    def take_snapshot(self) -> bool:
        """Write the producers down, unless that was done at this offset or nothing was written."""
        if self.log_end_offset in (self.newest_snapshot, 0):
            return False
        self.newest_snapshot = self.log_end_offset
        self.snapshots[self.log_end_offset] = encode_snapshot(self.producers.entries.values())
        return True

    # -- reads -----------------------------------------------------------------------------------

    def records(self, offset: int, record_count_max: int | None = None) -> list[ModelRecord]:
        """The data records at and after `offset`."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ModelError("OffsetOutOfRangeError")
        found = [
            record
            for batch in self.batches
            if batch.last_offset >= offset and not batch.is_control
            for record in records_of(batch.data)
            if record.offset >= offset
        ]
        return found if record_count_max is None else found[:record_count_max]

    def open_transactions(self) -> list[OpenModel]:
        """Transactions without a marker, by their first offset."""
        return open_transactions(self.producers.entries.values())

    @property
    def last_stable_offset(self) -> int:
        """Where decided data ends; transactions of before the log's start hold back all of it."""
        opened = self.open_transactions()
        if not opened:
            return self.log_end_offset
        return max(opened[0].first_offset, self.log_start_offset)

    def aborted_transactions(self, first_offset: int, upper_bound: int) -> list[AbortedModel]:
        """Those with data or a marker in the range, by their markers."""
        return [one for one in self.aborted if one.overlaps(first_offset, upper_bound)]

    def committed_records(self, offset: int) -> list[ModelRecord]:
        """What a reader of decided data gets from `offset` on."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ModelError("OffsetOutOfRangeError")
        return [
            record
            for batch in committed_batches(self.batches, self.last_stable_offset)
            if batch.last_offset >= offset
            for record in records_of(batch.data)
            if record.offset >= offset
        ]

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The first record at or after that time, as (offset, timestamp)."""
        for record in self.records(self.log_start_offset):
            if record.timestamp_ms >= timestamp_ms:
                return record.offset, record.timestamp_ms
        return None

    def producer(self, producer_id: int) -> ProducerModel | None:
        return self.producers.entries.get(producer_id)

    # -- retention, truncation, reopening ----------------------------------------------------------

    def delete_segments(self, up_to_offset: int) -> int:
        """Delete whole segments that end at or below `up_to_offset`; the last one stays."""
        deleted = 0
        while len(self.segments) > 1 and self.segments[1] <= up_to_offset:
            self.snapshots.pop(self.segments[0], None)
            del self.segments[0]
            deleted += 1
        self.log_start_offset = max(self.log_start_offset, self.segments[0])
        self._drop_deleted_batches()
        return deleted

    def _drop_deleted_batches(self) -> None:
        self.batches = [b for b in self.batches if b.base_offset >= self.segments[0]]
        self.aborted = [one for one in self.aborted if one.last_offset >= self.segments[0]]

    def advance_log_start(self, offset: int) -> None:
        if offset > self.log_end_offset:
            raise ModelError("OffsetOutOfRangeError")
        self.log_start_offset = max(self.log_start_offset, offset)

    def truncate(self, offset: int) -> None:
        """Drop everything at or above `offset`; a batch that straddles it goes as a whole."""
        if offset >= self.log_end_offset:
            return
        straddling = [b for b in self.batches if b.base_offset < offset <= b.last_offset]
        if straddling:
            offset = straddling[0].base_offset  # No offsets are left out between two batches.
        self.aborted = [one for one in self.aborted if one.last_offset < offset]
        if offset < self.segments[0]:
            self.segments = [offset]
            self.batches = []
            self.snapshots = {}
            self.newest_snapshot = -1
            self.log_start_offset = self.log_end_offset = offset
            self.producers = ProducerTable()
            return
        self.segments = [base for base in self.segments if base <= offset]
        self.batches = [b for b in self.batches if b.last_offset < offset]
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self._rebuild_producers()

    def reopen(self, *, clean: bool = True) -> None:
        """Close and open again with nothing but the partition's own files."""
        if clean:
            self.take_snapshot()
        self.forget_empty_tail()
        self.remove_stray_snapshots()
        self._rebuild_producers()

    def forget_empty_tail(self) -> None:
        """Offsets that a truncation inside a batch left empty at the end are not remembered."""
        end = self.batches[-1].last_offset + 1 if self.batches else 0
        self.log_end_offset = max(end, self.segments[-1], self.log_start_offset)

    def _rebuild_producers(self) -> None:
        """From the newest snapshot that can be read, else from the log's start; then replay."""
        table = ProducerTable()
        covered = self.segments[0]
        self.newest_snapshot = -1
        for offset in sorted(self.snapshots, reverse=True):
            if not self.segments[0] <= offset <= self.log_end_offset:
                del self.snapshots[offset]
                continue
            try:
                entries = decode_snapshot(self.snapshots[offset])
            except ModelError:
                del self.snapshots[offset]
                continue
            table.entries = {entry.producer_id: entry for entry in entries}
            covered = self.newest_snapshot = offset
            break
        for batch in self.batches:
            if batch.last_offset >= covered:
                table.take(batch)
        self.producers = table

    def remove_stray_snapshots(self) -> None:
        """Keep those at a segment's base, and of the others the newest that the log reaches."""
        # Below the log's start one may be all that remembers producers of deleted segments.
        within = [o for o in self.snapshots if self.segments[0] <= o <= self.log_end_offset]
        kept = {offset for offset in within if offset in self.segments} | {max(within, default=-1)}
        self.snapshots = {o: data for o, data in self.snapshots.items() if o in kept}

    def copy(self) -> LogModel:
        return copy.deepcopy(self)

    def file_bytes(self, base_offset: int) -> bytes:
        """The `.log` file of one segment."""
        index = self.segments.index(base_offset)
        upper = self.segments[index + 1] if index + 1 < len(self.segments) else EVER
        chosen: Iterable[ModelBatch] = (
            b for b in self.batches if base_offset <= b.base_offset < upper
        )
        return b"".join(b.data for b in chosen)
