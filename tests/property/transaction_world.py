"""A partition with transactions and its model side by side, and what must hold after each step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partition_files import records_and_position, same_records
from property.partition_world import BASE_MS, PartitionWorld, Sent
from reference_model import batch_codec as codec
from reference_model.abort_model import (
    AbortedModel,
    committed_batches,
    decode_abort_index,
    filtered_records,
)
from reference_model.log_model import ModelAppend
from reference_model.producer_model import ModelError

from eoslog.bindings.accumulator import RecordAccumulator, encoded_headers
from eoslog.bindings.partition_log import AppendResult
from eoslog.errors import EoslogError

EVER = 2**63 - 1
LOSSES = ("deleted", "cut", "longer", "garbage", "empty")


@dataclass(frozen=True)
class TransactionSent(Sent):
    """A batch of a transaction. `verified`: its coordinator knows of the partition."""

    verified: bool = True

    @property
    def data(self) -> bytes:
        return codec.encode_batch(
            list(self.records),
            attributes=codec.TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
        )


@dataclass(frozen=True)
class MarkerSent:
    """The end of a transaction as a coordinator sends it."""

    producer_id: int
    epoch: int
    coordinator_epoch: int | None  # None: the store's own coordinator.
    commit: bool
    newer_epoch: bool = True
    timestamp_ms: int = BASE_MS


class TransactionWorld(PartitionWorld):
    """Beside what the other does: transactional batches, markers, and lost files."""

    def __init__(self, root: Path, *, segment_bytes: int, index_interval: int, spares: int) -> None:
        super().__init__(
            root, segment_bytes=segment_bytes, index_interval=index_interval, spares=spares
        )
        # Once the index was made anew, it does not tell of what was deleted before.
        self.remade_from = 0
        self.files_are_its_own = True
        self.expired_ids: set[int] = set()

    # -- appends ---------------------------------------------------------------------------------

    def _model_append(self, sent: Sent) -> ModelAppend | str:
        self.model.roll_writes_snapshot = self.log.evicted_producer_count == 0
        try:
            return self.model.append_batch(
                sent.data,
                verified=getattr(sent, "verified", False),
                of_coordinator=isinstance(sent, TransactionSent) and sent.sequence < 0,
            )
        except ModelError as error:
            return error.name

    def _append_by(self, sent: Sent, way: str) -> AppendResult:
        if not isinstance(sent, TransactionSent):
            return super()._append_by(sent, way)
        if way == "batch" or not sent.verified:
            return self.log.append_batch(sent.data, verified=sent.verified)
        if way == "columns":
            return self._append_transaction_columns(sent)
        return self._append_transaction_accumulated(sent)

    def _append_transaction_columns(self, sent: TransactionSent) -> AppendResult:
        return self.log.append_columns(
            [record.value for record in sent.records],
            [record.key for record in sent.records],
            [record.timestamp_ms for record in sent.records],
            [record.headers for record in sent.records],
            timestamp_ms=BASE_MS,
            producer_id=sent.producer_id,
            producer_epoch=sent.epoch,
            base_sequence=sent.sequence,
            transactional=True,
        )

    def _append_transaction_accumulated(self, sent: TransactionSent) -> AppendResult:
        accumulator = RecordAccumulator(1 << 20)
        for record in sent.records:
            accumulator.add(
                record.value, record.key, encoded_headers(record.headers), record.timestamp_ms
            )
        return self.log.append_accumulated(
            accumulator, sent.producer_id, sent.epoch, sent.sequence, transactional=True
        )

    def mark(self, sent: MarkerSent) -> str:
        """Send a marker; "written", "known", or the name of the refusal, from both."""
        end = self.log.log_end_offset
        found = ""
        result = None
        try:
            result = self._mark(sent)
        except EoslogError as error:
            found = type(error).__name__
            assert error.outcome == "not_appended"
        expected = self._model_mark(sent)
        if result is not None:
            found = "known" if result.duplicate else "written"
        assert found == expected, f"{found}, the model says {expected}"
        assert self.log.log_end_offset == end + (found == "written")
        if result is not None and found == "written":
            assert (result.base_offset, result.last_offset, result.record_count) == (end, end, 1)
        return found

    def _mark(self, sent: MarkerSent) -> AppendResult:
        return self.log.append_marker(
            sent.producer_id,
            sent.epoch,
            sent.coordinator_epoch,
            sent.commit,
            timestamp_ms=sent.timestamp_ms,
            newer_epoch=sent.newer_epoch,
        )

    def _model_mark(self, sent: MarkerSent) -> str:
        self.model.roll_writes_snapshot = self.log.evicted_producer_count == 0
        try:
            result = self.model.append_marker(
                sent.producer_id,
                sent.epoch,
                sent.coordinator_epoch,
                sent.commit,
                timestamp_ms=sent.timestamp_ms,
                newer_epoch=sent.newer_epoch,
            )
        except ModelError as error:
            return error.name
        return "known" if result is None else "written"

    # -- producers, and what a store keeps beside the log ------------------------------------------

    def persist(self) -> None:
        """The abort indexes are written before the rows that say what they hold."""
        self.log.store_abort_files()
        super().persist()
        self.rows.abort_files = self.log.abort_files()

    def evict(self, keep_max: int) -> None:
        """Producers with an open transaction stay, however many they are."""
        self.persist()
        before = self.cached_ids()
        gone = self.log.evict_producers(keep_max)
        opened = {one.producer_id for one in self.model.open_transactions()}
        left = self.cached_ids()
        assert len(left) == len(before) - gone
        assert opened <= left
        assert len(left) <= keep_max + len(opened)

    def expire(self, oldest_ms: int) -> None:
        """Rows are deleted only once the others are true of all that the deleted ones told."""
        self.persist()
        before = set(self.model.producers.entries)
        super().expire(oldest_ms)
        self.expired_ids |= before - set(self.model.producers.entries)

    def truncate(self, offset: int) -> None:
        """The abort index is made anew from what is left."""
        below_the_end = offset < self.model.log_end_offset
        super().truncate(offset)
        if below_the_end:
            self.remade_from = self.model.segments[0]

    def needed_ids(self, offset: int) -> set[int]:
        opened = {
            producer_id
            for producer_id, entry in self.rows.models.items()
            if entry.transaction_first_offset >= 0
        }
        return super().needed_ids(offset) | opened

    def open_files(self, *, clean: bool, recovery_point: int, start: int, restore: str) -> None:
        if restore == "files" or self.rows.offset is None or self.rows.abort_files is None:
            self.remade_from = self.model.segments[0]
        super().open_files(clean=clean, recovery_point=recovery_point, start=start, restore=restore)

    # -- what is lost while the log is closed -----------------------------------------------------

    def reopen_without(self, how: str, *, clean: bool, restore: str, seed: int) -> None:
        """The abort indexes are gone or wrong."""
        start = self.log.log_start_offset
        evicted = bool(self.log.evicted_producer_count)
        self.files.close(clean=clean)
        if clean and not evicted:
            self.model.take_snapshot()
        noise = random.Random(seed)
        for path in sorted(self.files.directory.glob("*.txnindex")):
            lose(path, how, noise)
        self.remade_from = self.model.segments[0]
        self.files_are_its_own = False
        self.open_files(
            clean=clean,
            recovery_point=self.model.log_end_offset if clean else 0,
            start=start,
            restore=restore,
        )

    def reopen_with_lost_tail(self, end_offset: int, torn_bytes: int, restore: str) -> None:
        """A power cut: of what was not synced, whole batches below an offset are left."""
        start = self.log.log_start_offset
        base = self.model.segments[-1]
        self.files.close(clean=False)
        kept = b"".join(
            batch.data for batch in self.model.batches if base <= batch.base_offset < end_offset
        )
        lost = [batch for batch in self.model.batches if batch.base_offset >= end_offset]
        torn_bytes = min(torn_bytes, len(lost[0].data) - 1) if lost else 0
        path = self.files.path(base)
        rest = path.read_bytes()[len(kept) :][:torn_bytes]
        path.write_bytes(kept + rest)
        self.model.truncate(end_offset)
        if self.rows.offset is not None and self.rows.offset > end_offset:
            restore = "files"
        self.open_files(
            clean=False, recovery_point=self.flushed_offset, start=start, restore=restore
        )

    # -- what must always hold ---------------------------------------------------------------------

    def check_bounds(self) -> None:
        log, model = self.log, self.model
        assert log.log_start_offset == model.log_start_offset
        assert log.log_end_offset == log.high_watermark == model.log_end_offset
        assert [one["base_offset"] for one in log.segments()] == model.segments
        assert log.active_base_offset == model.segments[-1]
        assert log.recovery_point == self.flushed_offset

    def check_transactions(self) -> None:
        log, model = self.log, self.model
        assert log.last_stable_offset == model.last_stable_offset
        found = [
            (
                one.producer_id,
                one.producer_epoch,
                one.first_offset,
                one.last_timestamp_ms,
                one.coordinator_epoch,
            )
            for one in log.open_transactions()
        ]
        assert found == [
            (
                one.producer_id,
                one.producer_epoch,
                one.first_offset,
                one.last_timestamp_ms,
                one.coordinator_epoch,
            )
            for one in model.open_transactions()
        ]
        self.check_aborted(0, EVER)

    def check_aborted(self, first: int, upper_bound: int) -> None:
        found = [
            AbortedModel(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
            for one in self.log.aborted_transactions(first, upper_bound)
        ]
        expected = self.model.aborted_transactions(first, upper_bound)
        assert self.whole_ones(found) == self.whole_ones(expected)

    def whole_ones(self, entries: list[AbortedModel]) -> list[AbortedModel]:
        """All, until the index was made anew from a log whose beginning was deleted.

        Then only those whose first batches are there, as are those of the ones that they met: of
        others the index tells what is left of them.
        """
        if not self.remade_from:
            return entries
        whole = {
            one.last_offset for one in self.model.aborted if is_known_since(one, self.remade_from)
        }
        markers = {(one.producer_id, one.last_offset) for one in self.model.aborted}
        assert {(one.producer_id, one.last_offset) for one in entries} <= markers
        return [one for one in entries if one.last_offset in whole]

    def check_committed(self, offset: int) -> None:
        """From an offset on to the last stable one: by records, and by raw batches."""
        log, model = self.log, self.model
        records, position = records_and_position(log, offset, committed=True)
        same_records(records, model.committed_records(offset))
        stable = model.last_stable_offset
        assert position == max(offset, stable), "the reader did not come to the last stable offset"
        # As a reader of Kafka's: whole batches, and the list of aborted transactions.
        batches = [one for one in model.batches if one.last_offset >= offset]
        decided = [one for one in batches if one.last_offset < stable]
        aborted = [
            (one.producer_id, one.first_offset) for one in log.aborted_transactions(offset, EVER)
        ]
        by_filter, _ = filtered_records(decided, aborted, offset)
        same_records(by_filter, model.committed_records(offset))

    def check_files(self) -> None:
        """What a clean close leaves in the abort indexes is what the index says, no byte more."""
        if not self.files_are_its_own:
            return
        uppers = [*self.model.segments[1:], EVER]
        for base, upper in zip(self.model.segments, uppers, strict=True):
            expected = [one for one in self.model.aborted if base <= one.last_offset < upper]
            path = self.files.path(base, ".txnindex")
            data = path.read_bytes() if path.exists() else b""
            found = decode_abort_index(data)
            assert self.whole_ones(found) == self.whole_ones(expected), path.name
            assert len(data) % 34 == 0

    def committed_raw(self, offset: int) -> Sequence[codec.ModelBatch]:
        stable = self.model.last_stable_offset
        return [
            one
            for one in committed_batches(self.model.batches, stable)
            if one.last_offset >= offset
        ]


def is_known_since(one: AbortedModel, base_offset: int) -> bool:
    """All of the transaction, and of those it met, stands above the offset."""
    return one.first_offset >= base_offset and one.last_stable_offset >= base_offset


def lose(path: Path, how: str, noise: random.Random) -> None:
    """Break a file that can be made anew."""
    data = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": data[: noise.randrange(len(data) + 1)],
                "longer": data + noise.randbytes(noise.randrange(1, 100)),
                "garbage": noise.randbytes(len(data)),
                "empty": b"",
            }[how]
        )
