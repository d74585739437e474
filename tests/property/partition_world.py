"""A partition and its model side by side: each call goes to both, and the answers are compared.

The rows that a store keeps of its producers are a dict here; a kill is a copy of the files as they
stand while the log is open.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partition_files import EVER_MS, PartitionFiles, all_records, same_records
from reference_model import batch_codec as codec
from reference_model.log_model import LogModel, ModelAppend
from reference_model.producer_model import ModelError, ProducerModel, ProducerTable
from store_copies import copy_store

from eoslog.bindings.accumulator import RecordAccumulator, encoded_headers
from eoslog.bindings.partition_log import (
    PRODUCER_ROW_BYTES,
    AppendResult,
    PartitionLog,
    ProducerState,
    empty_row,
)
from eoslog.errors import EoslogError

BASE_MS = 1_790_000_000_000
WAYS = ("batch", "columns", "accumulated")
RESTORES = ("rows", "some rows", "files")


@dataclass(frozen=True)
class Sent:
    """One batch as a producer sent it; without a producer, `producer_id` is -1."""

    records: tuple[codec.ModelRecord, ...]
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1

    @property
    def data(self) -> bytes:
        return codec.encode_batch(
            list(self.records),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )


@dataclass
class Rows:
    """What a store remembers beside the log: rows that are true at an offset."""

    by_id: dict[int, bytes] = field(default_factory=dict)
    models: dict[int, ProducerModel] = field(default_factory=dict)
    offset: int | None = None
    abort_files: list[tuple[int, int, int]] | None = None


class PartitionWorld:
    """The engine's partition, the model, and the rows; every method checks one call."""

    def __init__(self, root: Path, *, segment_bytes: int, index_interval: int, spares: int) -> None:
        self._root = root
        self._kills = 0
        self.config = {
            "segment.bytes": segment_bytes,
            "index.interval.bytes": index_interval,
            "eoslog.spare.segments": spares,
        }
        self.files = PartitionFiles(root / "0", self.config)
        self.log: PartitionLog = self.files.open()
        self.log.set_callbacks(self._install, None)
        self.model = LogModel(segment_bytes=segment_bytes, index_interval_bytes=index_interval)
        self.rows = Rows()
        self.flushed_offset = 0

    # -- appends ---------------------------------------------------------------------------------

    def append(self, sent: Sent, way: str) -> ModelAppend | str:
        """Send one batch; both answer with the same offsets, or refuse with the same error."""
        end = self.log.log_end_offset
        result, refusal = None, ""
        try:
            result = self._append_by(sent, way)
        except EoslogError as error:
            refusal = type(error).__name__
            assert error.outcome == "not_appended"
            assert self.log.log_end_offset == end, "a refused append has moved the log's end"
        expected = self._model_append(sent)
        if result is None or isinstance(expected, str):
            assert refusal == expected, f"{result!r} or {refusal}, the model says {expected}"
            return refusal
        found = (result.base_offset, result.last_offset, bool(result.duplicate))
        assert found == (expected.base_offset, expected.last_offset, expected.duplicate)
        assert result.record_count == len(sent.records)
        assert self.log.log_end_offset == (end if expected.duplicate else result.last_offset + 1)
        return expected

    def _model_append(self, sent: Sent) -> ModelAppend | str:
        self.model.roll_writes_snapshot = self.log.evicted_producer_count == 0
        try:
            return self.model.append_batch(sent.data)
        except ModelError as error:
            return error.name

    def _append_by(self, sent: Sent, way: str) -> AppendResult:
        if way == "batch":
            return self.log.append_batch(sent.data)
        if way == "columns":
            return self._append_columns(sent, batch_bytes_max=0)
        return self._append_accumulated(sent)

    def _append_columns(self, sent: Sent, batch_bytes_max: int) -> AppendResult:
        return self.log.append_columns(
            [record.value for record in sent.records],
            [record.key for record in sent.records],
            [record.timestamp_ms for record in sent.records],
            [record.headers for record in sent.records],
            timestamp_ms=BASE_MS,
            producer_id=sent.producer_id,
            producer_epoch=sent.epoch,
            base_sequence=sent.sequence,
            batch_bytes_max=batch_bytes_max,
        )

    def _append_accumulated(self, sent: Sent) -> AppendResult:
        accumulator = RecordAccumulator(1 << 20)
        for record in sent.records:
            accumulator.add(
                record.value, record.key, encoded_headers(record.headers), record.timestamp_ms
            )
        try:
            return self.log.append_accumulated(
                accumulator, sent.producer_id, sent.epoch, sent.sequence
            )
        finally:
            appended = accumulator.record_count == 0
            assert appended or accumulator.record_count == len(sent.records)

    def append_split(self, sent: Sent, batch_bytes_max: int) -> None:
        """One call of columns that becomes several batches, as many bytes each as may be."""
        result = self._append_columns(sent, batch_bytes_max)
        expected = [self._model_append(part) for part in split(sent, batch_bytes_max)]
        assert result.base_offset == expected[0].base_offset
        assert result.last_offset == expected[-1].last_offset
        assert result.record_count == len(sent.records)
        assert bool(result.duplicate) == all(one.duplicate for one in expected)

    def _install(self, producer_id: int) -> None:
        """What a store does for a producer that is not in memory."""
        assert producer_id not in self.cached_ids(), "the producer is in memory"
        row = self.rows.by_id.get(producer_id)
        if row is None:
            self.log.install_producer(empty_row(producer_id), was_evicted=False)
        else:
            self.log.install_producer(row)

    # -- producers ---------------------------------------------------------------------------------

    def cached_ids(self) -> set[int]:
        return {state.producer_id for state in self.log.producers()}

    def evicted_ids(self) -> set[int]:
        return set(self.model.producers.entries) - self.cached_ids()

    def persist(self) -> None:
        rows, offset = self.log.dirty_producers()
        assert offset == self.log.log_end_offset
        assert len(rows) % PRODUCER_ROW_BYTES == 0
        for at in range(0, len(rows), PRODUCER_ROW_BYTES):
            row = rows[at : at + PRODUCER_ROW_BYTES]
            self.rows.by_id[int.from_bytes(row[:8], "little", signed=True)] = row
        self.rows.offset = offset
        self.rows.models |= copy.deepcopy(self.model.producers.entries)
        assert set(self.rows.by_id) >= set(self.rows.models), "a producer has no row"
        self.log.producers_persisted(offset)

    def evict(self, keep_max: int) -> None:
        self.persist()
        before = len(self.cached_ids())
        gone = self.log.evict_producers(keep_max)
        assert len(self.cached_ids()) == before - gone == min(before, keep_max)

    def expire(self, oldest_ms: int) -> None:
        expired = self.log.expired_producers(oldest_ms)
        entries = self.model.producers.entries
        cached = self.cached_ids() & set(entries)
        idle = {
            one
            for one in cached
            if entries[one].last_timestamp < oldest_ms and entries[one].transaction_first_offset < 0
        }
        assert set(expired) & set(entries) == idle
        self.log.drop_producers(expired)
        for producer_id in expired:
            entries.pop(producer_id, None)
            self.rows.by_id.pop(producer_id, None)
            self.rows.models.pop(producer_id, None)

    def snapshot(self) -> None:
        """A complete, synced snapshot, with the rows of producers that are not in memory."""
        evicted = b"".join(self.rows.by_id[one] for one in sorted(self.evicted_ids()))
        wrote = self.log.take_snapshot(sync=True, evicted_rows=evicted) is not None
        end = self.log.log_end_offset
        if end > 0:
            assert self.files.path(end, ".snapshot").exists(), "nothing is written down"
        if wrote:
            self.model.newest_snapshot = -1
            self.model.take_snapshot()

    # -- maintenance -------------------------------------------------------------------------------

    def roll(self) -> None:
        self.model.roll_writes_snapshot = self.log.evicted_producer_count == 0
        self.model.roll()
        assert self.log.roll() == self.model.segments[-1]

    def flush(self, with_indexes: bool) -> None:
        assert self.log.flush(with_indexes) == self.model.log_end_offset
        self.flushed_offset = self.model.log_end_offset

    def delete_segments(self, up_to_offset: int) -> None:
        """Retention: first everything is written down, then files go."""
        self.snapshot()
        self.persist()
        count = self.model.delete_segments(up_to_offset)
        assert self.log.delete_segments(up_to_offset) == count

    def advance_start(self, offset: int) -> None:
        self.model.advance_log_start(offset)
        self.log.advance_log_start(offset)

    def truncate(self, offset: int) -> None:
        """The rows go: they may know of more than what is left."""
        below_the_end = offset < self.model.log_end_offset
        self.model.truncate(offset)
        self.log.truncate(offset)
        if below_the_end:
            self.flushed_offset = min(self.flushed_offset, offset)
            self.rows = Rows()

    def reopen(self, *, clean: bool, kill: bool, restore: str, recovery_point: int) -> None:
        """Close or kill, and open again with the rows, with some of them, or the files alone."""
        evicted = bool(self.log.evicted_producer_count)
        before = self._last_sequences()
        start = self.log.log_start_offset
        if kill:
            clean = False
            self._copy_as_killed()
        else:
            self.files.close(clean=clean)
        if clean and not evicted:
            self.model.take_snapshot()
        self.open_files(clean=clean, recovery_point=recovery_point, start=start, restore=restore)
        after = self._last_sequences()
        assert {one: after.get(one) for one in before} == before, "a producer is forgotten"

    def open_files(self, *, clean: bool, recovery_point: int, start: int, restore: str) -> None:
        """Open what is closed, and restore the producers; the model does the same."""
        rows, loaded_count = self._rows_to_load(restore)
        named = {"clean": clean, "recovery_point": recovery_point, "log_start_offset": start}
        if rows is None:
            self.log = self.files.open(**named)
            self.model.reopen(clean=False)
            # The rows that were there are lost; later ones start with what the files held.
            self.rows = Rows()
        else:
            assert self.rows.offset is not None
            self.model.forget_empty_tail()
            self.log = self.files.open(
                **named,
                rows=rows,
                rows_offset=self.rows.offset,
                evicted_count=len(self.rows.by_id) - loaded_count,
                abort_files=self.rows.abort_files,
            )
            assert self.files.restored_from == "rows"
            self._model_from_rows()
        self.log.set_callbacks(self._install, None)
        self.flushed_offset = self.model.log_end_offset if clean else recovery_point

    def _last_sequences(self) -> dict[int, tuple[int, int]]:
        """What no restart may lose, whatever the model says: where each producer stands."""
        entries = self.model.producers.entries
        return {one: (entry.producer_epoch, entry.last_sequence) for one, entry in entries.items()}

    def _copy_as_killed(self) -> None:
        self._kills += 1
        killed = self._root / str(self._kills)
        copy_store(self.files.root, killed)
        self.files.close(clean=False)
        shutil.rmtree(self.files.root)
        self.files = PartitionFiles(killed, self.config)

    def _rows_to_load(self, restore: str) -> tuple[bytes | None, int]:
        if restore == "files" or self.rows.offset is None:
            return None, 0
        wanted = set(self.rows.by_id)
        if restore == "some rows":
            wanted &= self.needed_ids(self.rows.offset)
        return b"".join(self.rows.by_id[one] for one in sorted(wanted)), len(wanted)

    def needed_ids(self, offset: int) -> set[int]:
        """Producers of the batches that a replay from `offset` meets."""
        return {
            batch.producer_id
            for batch in self.model.batches
            if batch.base_offset >= offset and batch.producer_id >= 0
        }

    def _model_from_rows(self) -> None:
        assert self.rows.offset is not None
        table = ProducerTable()
        table.entries = copy.deepcopy(self.rows.models)
        for batch in self.model.batches:
            if batch.base_offset >= self.rows.offset:
                table.take(batch)
        self.model.producers = table
        self.model.newest_snapshot = -1
        self.model.remove_stray_snapshots()

    # -- what must always hold ---------------------------------------------------------------------

    def check_bounds(self) -> None:
        log, model = self.log, self.model
        assert log.log_start_offset == model.log_start_offset
        assert log.log_end_offset == model.log_end_offset
        assert log.high_watermark == log.last_stable_offset == model.log_end_offset
        assert [one["base_offset"] for one in log.segments()] == model.segments
        assert log.active_base_offset == model.segments[-1]
        assert log.recovery_point == self.flushed_offset

    def check_producers(self) -> None:
        """Those in memory are the model's; the others are in the rows, as they were."""
        entries = self.model.producers.entries
        for state in self.log.producers():
            if state.producer_epoch == -1 and state.producer_id not in entries:
                continue  # Asked for, and nothing was known of it.
            assert fields_of(state) == model_fields(entries[state.producer_id])
        for producer_id in self.evicted_ids():
            assert self.log.evicted_producer_count > 0, f"producer {producer_id} is forgotten"
            assert producer_id in self.rows.by_id, f"producer {producer_id} is in no row"

    def check_all(self) -> None:
        """Everything can be read, byte for byte, and nothing is wrong with the files."""
        same_records(all_records(self.log), self.model.records(self.model.log_start_offset))
        for index, base in enumerate(self.model.segments):
            data = self.model.file_bytes(base)
            with self.files.path(base).open("rb") as file:
                assert file.read(len(data)) == data, f"segment {index}"
        # Here producers expire at any time, and write again.
        assert self.log.verify(expiration_ms=-EVER_MS) == []


def fields_of(state: ProducerState) -> tuple[object, ...]:
    return (
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_offset,
        state.last_timestamp,
        tuple(_without_sequence(batch) if batch[1] < 0 else batch for batch in state.batches),
    )


def model_fields(entry: ProducerModel) -> tuple[object, ...]:
    batches = tuple(
        (b.first_sequence, b.last_sequence, b.first_offset, b.last_offset, b.timestamp_ms)
        for b in entry.batches
    )
    return (
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_offset,
        entry.last_timestamp,
        tuple(_without_sequence(batch) if batch[1] < 0 else batch for batch in batches),
    )


def _without_sequence(batch: tuple[int, ...]) -> tuple[int, ...]:
    """A coordinator's batch: without a last sequence there is no first one either."""
    return (-1, *batch[1:])


def split(sent: Sent, batch_bytes_max: int) -> list[Sent]:
    """As many records in each batch as fit; a record alone may be larger."""
    parts: list[Sent] = []
    current: list[codec.ModelRecord] = []
    sequence = sent.sequence

    def close() -> None:
        nonlocal sequence
        parts.append(Sent(tuple(current), sent.producer_id, sent.epoch, sequence))
        if sequence >= 0:
            sequence = codec.increment_sequence(sequence, len(current))
        current.clear()

    for record in sent.records:
        if current and len(_numbered(sent, [*current, record]).data) > batch_bytes_max:
            close()
        current.append(_at(record, len(current)))
    close()
    return parts


def _numbered(sent: Sent, records: Sequence[codec.ModelRecord]) -> Sent:
    placed = tuple(_at(record, index) for index, record in enumerate(records))
    return Sent(placed, sent.producer_id, sent.epoch, max(sent.sequence, -1))


def _at(record: codec.ModelRecord, index: int) -> codec.ModelRecord:
    return codec.ModelRecord(index, record.timestamp_ms, record.key, record.value, record.headers)
