"""Any order of appends, retries, rolls, retention, evictions, kills: as the model does it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from partition_files import same_records
from property.partition_world import BASE_MS, RESTORES, WAYS, PartitionWorld, Sent
from reference_model import batch_codec as codec
from reference_model.producer_model import ModelError

from eoslog.errors import OffsetOutOfRangeError

PRODUCER_IDS = (0, 1, 7, 2**40, 2**63 - 1)
LAST = codec.MAX_SEQUENCE

values = st.none() | st.binary(max_size=90)
names = st.text("abcé", max_size=3)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
# Times go up and down within a day, so that a time index has something to get wrong.
times_ms = st.integers(0, 86_400_000).map(lambda delta: BASE_MS + delta) | st.just(BASE_MS)
producer_ids = st.sampled_from(PRODUCER_IDS)
ways = st.sampled_from(WAYS)


@st.composite
def record_lists(draw: st.DrawFn, *, count: int | None = None, count_max: int = 5):
    """Records numbered from 0; small, but not always."""
    size = draw(st.integers(1, count_max)) if count is None else count
    keyed = draw(st.booleans())
    return tuple(
        codec.ModelRecord(
            index,
            draw(times_ms),
            draw(st.binary(max_size=8)) if keyed else None,
            draw(values),
            draw(headers) if keyed else (),
        )
        for index in range(size)
    )


class PartitionMachine(RuleBasedStateMachine):
    """Rules are what callers and the store do; the comparing is in PartitionWorld."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="partition-"))
        self.sent: list[Sent] = []

    @initialize(
        segment_bytes=st.sampled_from((900, 2000, 6000)),
        index_interval=st.sampled_from((0, 150, 4096)),
        spares=st.integers(0, 2),
    )
    def begin(self, segment_bytes: int, index_interval: int, spares: int) -> None:
        self.world = PartitionWorld(
            self.root, segment_bytes=segment_bytes, index_interval=index_interval, spares=spares
        )

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_all()
            self.world.files.close(clean=False)
        shutil.rmtree(self.root)

    # -- appends ---------------------------------------------------------------------------------

    def append(self, sent: Sent, way: str) -> object:
        if sent.producer_id >= 0:
            self.sent.append(sent)
        return self.world.append(sent, way)

    @rule(records=record_lists(), way=ways)
    def append_without_a_producer(self, records, way):
        self.append(Sent(records), way)

    @rule(
        producer_id=producer_ids,
        records=record_lists(),
        way=ways,
        first=st.sampled_from((0, 3, LAST - 6, LAST - 1, LAST)),
    )
    def append_the_next(self, producer_id, records, way, first):
        """A producer that is not known may start anywhere, also close to the wrap."""
        entry = self.world.model.producer(producer_id)
        epoch, sequence = 0, first
        if entry is not None:
            epoch = entry.producer_epoch
            sequence = codec.increment_sequence(entry.last_sequence, 1)
        self.append(Sent(records, producer_id, epoch, sequence), way)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), way=ways)
    def send_again_anything_sent_before(self, data, way):
        """Retained, beyond the window, of an older epoch, or wrapped around: the model judges."""
        recent = data.draw(st.booleans())
        self.world.append(data.draw(st.sampled_from(self.sent[-6:] if recent else self.sent)), way)

    @precondition(lambda self: any(e.batches for e in self.world.model.producers.entries.values()))
    @rule(data=st.data(), way=ways)
    def other_records_with_a_retained_sequence(self, data, way):
        """A number that wraps onto a retained batch of the same length reads as a duplicate."""
        entries = self.world.model.producers.entries
        producer_id = data.draw(st.sampled_from(sorted(i for i, e in entries.items() if e.batches)))
        entry = entries[producer_id]
        batch = data.draw(st.sampled_from(entry.batches))
        count = batch.last_offset - batch.first_offset + 1
        records = data.draw(record_lists(count=count))
        sent = Sent(records, producer_id, entry.producer_epoch, batch.first_sequence)
        result = self.append(sent, way)
        assert not isinstance(result, str) and result.base_offset == batch.first_offset

    @rule(
        producer_id=producer_ids,
        records=record_lists(count_max=2),
        way=ways,
        ahead=st.integers(-4, 4),
        epoch_step=st.integers(-1, 2),
    )
    def append_at_a_sequence_or_epoch_that_may_not_follow(
        self, producer_id, records, way, ahead, epoch_step
    ):
        entry = self.world.model.producer(producer_id)
        if entry is None:
            epoch, sequence = max(epoch_step, 0), max(ahead, 0)
        else:
            epoch = max(entry.producer_epoch + epoch_step, 0)
            sequence = codec.increment_sequence(entry.last_sequence, 1 + ahead)
        self.append(Sent(records, producer_id, epoch, sequence), way)

    @rule(producer_id=producer_ids, epoch_step=st.integers(1, 3), records=record_lists(), way=ways)
    def append_with_a_new_epoch(self, producer_id, epoch_step, records, way):
        entry = self.world.model.producer(producer_id)
        epoch = epoch_step + (0 if entry is None else entry.producer_epoch)
        self.append(Sent(records, producer_id, epoch, 0), way)

    @rule(
        producer_id=st.none() | producer_ids,
        records=record_lists(count_max=20),
        batch_bytes_max=st.integers(150, 700),
    )
    def append_columns_that_are_split(self, producer_id, records, batch_bytes_max):
        if producer_id is None:
            sent = Sent(records)
        else:
            entry = self.world.model.producer(producer_id)
            epoch = 0 if entry is None else entry.producer_epoch
            last = -1 if entry is None else entry.last_sequence
            sent = Sent(records, producer_id, epoch, codec.increment_sequence(last, 1))
        self.world.append_split(sent, batch_bytes_max)

    # -- maintenance -------------------------------------------------------------------------------

    @rule()
    def roll(self):
        self.world.roll()

    @rule(with_indexes=st.booleans())
    def flush(self, with_indexes):
        self.world.flush(with_indexes)

    @rule()
    def persist_producers(self):
        self.world.persist()

    @rule(keep_max=st.integers(0, 3))
    def evict_producers(self, keep_max):
        self.world.evict(keep_max)

    @rule(age_ms=st.integers(0, 86_400_000))
    def expire_producers(self, age_ms):
        self.world.expire(BASE_MS + age_ms)

    @rule()
    def take_a_snapshot(self):
        self.world.snapshot()

    @rule(share=st.floats(0, 1))
    def delete_old_segments(self, share):
        """Retention by size or time."""
        self.world.delete_segments(int(self.world.model.log_end_offset * share))

    @rule(share=st.floats(0, 1), then_delete=st.booleans())
    def advance_the_log_start(self, share, then_delete):
        model = self.world.model
        span = model.log_end_offset - model.log_start_offset
        offset = model.log_start_offset + int(span * share)
        self.world.advance_start(offset)
        if then_delete:
            self.world.delete_segments(offset)

    @rule(share=st.floats(0.5, 1))
    def truncate(self, share):
        """Between two batches, as a replica would: no offset is left empty."""
        model = self.world.model
        span = model.log_end_offset - model.log_start_offset
        wanted = model.log_start_offset + int(span * share)
        ends = [b.last_offset + 1 for b in model.batches if b.last_offset < wanted]
        if ends and max(ends) >= model.log_start_offset:
            self.world.truncate(max(ends))

    @rule(
        clean=st.booleans(),
        kill=st.booleans(),
        restore=st.sampled_from(RESTORES),
        from_flushed=st.booleans(),
    )
    def reopen(self, clean, kill, restore, from_flushed):
        recovery_point = self.world.flushed_offset if from_flushed else 0
        self.world.reopen(clean=clean, kill=kill, restore=restore, recovery_point=recovery_point)

    # -- reads -------------------------------------------------------------------------------------

    @rule(
        share=st.floats(0, 1),
        max_records=st.integers(0, 12),
        max_bytes=st.sampled_from((0, 1, 200, 1000, 1 << 20)),
        bound_share=st.none() | st.floats(0, 1.1),
    )
    def read_with_bounds(self, share, max_records, max_bytes, bound_share):
        log, model = self.world.log, self.world.model
        start, end = model.log_start_offset, model.log_end_offset
        offset = start + int((end - start) * share)
        bound = end if bound_share is None else int(end * bound_share)
        asked = -1 if bound_share is None else bound
        known = [record for record in model.records(offset) if record.offset < bound]
        records, next_offset = log.fetch_records(offset, max_records, max_bytes, asked)
        same_records(records, known[: len(records)])
        assert len(records) <= max_records
        assert next_offset >= offset
        if known and max_records:
            assert records, "there is something to read, and nothing was"
        if records:
            assert next_offset > records[-1].offset
            assert len(records) == len(known) or next_offset <= known[len(records)].offset
        self._read_columns(offset, max_bytes, asked, max_records, known)

    def _read_columns(self, offset, max_bytes, asked, max_records, known):
        columns = self.world.log.fetch_columns(offset, max_bytes, asked, max_records)
        if columns is None:
            assert not known
            return
        count = columns.record_count
        assert count <= max_records
        expected = known[:count]
        assert columns.offsets.tolist() == [record.offset for record in expected]
        assert columns.timestamps.tolist() == [record.timestamp_ms for record in expected]
        for kind in ("key", "value"):
            cells = cells_of(columns, kind)
            assert cells == [getattr(record, kind) for record in expected]
        if columns.headers is not None:
            assert columns.headers == [record.headers for record in expected]
        else:
            assert not any(record.headers for record in expected)

    @rule(share=st.floats(0, 1), max_bytes=st.sampled_from((1, 500, 1 << 20)))
    def read_batches(self, share, max_bytes):
        log, model = self.world.log, self.world.model
        start, end = model.log_start_offset, model.log_end_offset
        offset = start + int((end - start) * share)
        data = log.read(offset, max_bytes)
        found = list(codec.iter_batches(data))
        expected = [batch.data for batch in model.batches if batch.last_offset >= offset]
        assert [batch.data for batch in found] == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert len(data) <= max_bytes or len(found) == 1
        counted = [batch for batch in model.batches if batch.last_offset >= offset]
        batch_count, record_count, next_offset = log.scan_headers(offset)
        assert batch_count == len(counted)
        assert record_count == sum(batch.record_count for batch in counted)
        assert next_offset == (counted[-1].last_offset + 1 if counted else offset)

    @rule(offset=st.sampled_from(("below", "beyond")), by=st.integers(1, 2**62))
    def read_outside_of_the_log(self, offset, by):
        log, model = self.world.log, self.world.model
        place = model.log_end_offset + by
        if offset == "below":
            place = model.log_start_offset - by
        for read in (log.read, log.fetch_records, log.fetch_columns):
            with pytest.raises(OffsetOutOfRangeError):
                read(place)
        with pytest.raises(ModelError):
            model.records(place)

    @rule(time_ms=times_ms, bound_share=st.none() | st.floats(0, 1))
    def find_a_time(self, time_ms, bound_share):
        log, model = self.world.log, self.world.model
        expected = model.offset_for_timestamp(time_ms)
        if bound_share is None:
            assert log.offset_for_timestamp(time_ms) == expected
            return
        bound = int(model.log_end_offset * bound_share)
        if expected is not None and expected[0] >= bound:
            expected = None
        assert log.offset_for_timestamp(time_ms, bound) == expected

    @rule()
    def read_everything(self):
        self.world.check_all()

    # -- what must always hold ---------------------------------------------------------------------

    @invariant()
    def bounds_and_producers_agree(self):
        if hasattr(self, "world"):
            self.world.check_bounds()
            self.world.check_producers()


def cells_of(columns, kind: str) -> list[bytes | None]:
    """One column's cells as bytes, nulls as None."""
    data = getattr(columns, f"{kind}_data").tobytes()
    offsets = getattr(columns, f"{kind}_offsets").tolist()
    validity = getattr(columns, f"{kind}_validity")
    cells: list[bytes | None] = []
    for row in range(columns.record_count):
        if validity is not None and not validity[row >> 3] >> (row & 7) & 1:
            assert offsets[row] == offsets[row + 1]
            cells.append(None)
        else:
            cells.append(data[offsets[row] : offsets[row + 1]])
    return cells


def run(max_examples: int, steps: int) -> None:
    run_state_machine_as_test(
        PartitionMachine,
        settings=settings(max_examples=max_examples, stateful_step_count=steps),
    )


def test_the_engine_does_as_the_model():
    run(max_examples=120, steps=30)


@pytest.mark.soak
def test_the_engine_does_as_the_model_for_long():
    run(max_examples=5000, steps=80)
