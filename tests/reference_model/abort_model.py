"""Which transactions are open or were aborted, and what a reader of decided data gets."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reference_model.batch_codec import ABORT, COMMIT, ModelBatch, ModelRecord, records_of
from reference_model.producer_model import ProducerModel

ABORT_ENTRY = struct.Struct(">hqqqq")
ABORT_ENTRY_BYTES = 34


@dataclass(frozen=True)
class OpenModel:
    """A transaction that has no marker yet."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int


@dataclass(frozen=True)
class AbortedModel:
    """One aborted transaction; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def overlaps(self, first_offset: int, upper_bound: int) -> bool:
        return self.first_offset < upper_bound and self.last_offset >= first_offset


def open_transactions(entries: Iterable[ProducerModel]) -> list[OpenModel]:
    """Those that have begun and not ended, the oldest first."""
    found = [
        OpenModel(
            entry.producer_id,
            entry.producer_epoch,
            entry.transaction_first_offset,
            entry.last_timestamp,
            entry.coordinator_epoch,
        )
        for entry in entries
        if entry.transaction_first_offset >= 0
    ]
    return sorted(found, key=lambda one: one.first_offset)


def aborted_by(marker: ModelBatch, before: Sequence[OpenModel]) -> AbortedModel | None:
    """What a marker adds to the abort index, given what was open before it."""
    if marker_kind(marker) != ABORT:
        return None
    ended = [one for one in before if one.producer_id == marker.producer_id]
    others = [one.first_offset for one in before if one.producer_id != marker.producer_id]
    if not ended:
        return None
    stable = min(others, default=marker.base_offset + 1)
    return AbortedModel(marker.producer_id, ended[0].first_offset, marker.base_offset, stable)


def marker_kind(batch: ModelBatch) -> int | None:
    """ABORT or COMMIT; None for a batch of data, an empty one, or another kind of control."""
    if not batch.is_control or batch.record_count == 0:
        return None
    key = records_of(batch.data)[0].key
    assert key is not None
    kind = struct.unpack_from(">hh", key)[1]
    return kind if kind in (ABORT, COMMIT) else None


def decisions(batches: Sequence[ModelBatch]) -> dict[int, int | None]:
    """By base offset, how each transactional batch ended: its producer's next marker says it."""
    found: dict[int, int | None] = {}
    decided: dict[int, int] = {}
    for batch in reversed(batches):
        kind = marker_kind(batch)
        if kind is not None:
            decided[batch.producer_id] = kind
        elif batch.is_transactional and not batch.is_control:
            found[batch.base_offset] = decided.get(batch.producer_id)
    return found


def committed_batches(
    batches: Sequence[ModelBatch], last_stable_offset: int
) -> Iterator[ModelBatch]:
    """Data below the last stable offset that is of no transaction, or of a committed one."""
    ended = decisions(batches)
    for batch in batches:
        # A log start inside a batch may be the last stable offset.
        if batch.last_offset >= last_stable_offset or batch.is_control:
            continue
        if ended.get(batch.base_offset, COMMIT) == COMMIT:
            yield batch


def filtered_records(
    batches: Iterable[ModelBatch], aborted: Iterable[tuple[int, int]], position: int = 0
) -> tuple[list[ModelRecord], int]:
    """A committed reader over fetched batches, with its list of (producer id, first offset).

    Returns the records and the reader's next position.
    """
    queue = sorted(aborted, key=lambda one: one[1])
    left_out: set[int] = set()
    found = []
    for batch in batches:
        while queue and queue[0][1] <= batch.last_offset:
            left_out.add(queue.pop(0)[0])
        if marker_kind(batch) == ABORT:
            left_out.discard(batch.producer_id)
        is_left_out = batch.is_transactional and batch.producer_id in left_out
        if not batch.is_control and not is_left_out:
            found += [one for one in records_of(batch.data) if one.offset >= position]
        position = max(position, batch.last_offset + 1)
    return found, position


def encode_abort_index(entries: Iterable[AbortedModel]) -> bytes:
    """The `.txnindex` file of these entries."""
    return b"".join(
        ABORT_ENTRY.pack(
            0, one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset
        )
        for one in entries
    )


def decode_abort_index(data: bytes) -> list[AbortedModel]:
    """Its entries; bytes of an entry that is not whole are no entry."""
    whole = data[: len(data) // ABORT_ENTRY_BYTES * ABORT_ENTRY_BYTES]
    found = []
    for version, *numbers in ABORT_ENTRY.iter_unpack(whole):
        assert version == 0
        found.append(AbortedModel(*numbers))
    return found
