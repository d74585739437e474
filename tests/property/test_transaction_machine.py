"""Any order of transactions, markers, rolls, retention, lost tails and files: as the model does."""

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
from property.partition_world import BASE_MS, RESTORES, WAYS, Sent
from property.test_partition_machine import cells_of, record_lists
from property.transaction_world import LOSSES, MarkerSent, TransactionSent, TransactionWorld
from reference_model import batch_codec as codec

PRODUCER_IDS = (0, 1, 7, 2**40, 2**63 - 1)
LAST_EPOCH = 32767

producer_ids = st.sampled_from(PRODUCER_IDS)
ways = st.sampled_from(WAYS)
mostly = st.sampled_from((True, True, False))
batch_counts = st.integers(1, 3)
# Of two transactions: committed, aborted, or left open.
decisions = st.tuples(st.sampled_from((True, False, None)), st.sampled_from((True, False, None)))
lower_shares = st.floats(0, 0.5)
shares = st.floats(0, 1)
restores = st.sampled_from(RESTORES)


class TransactionMachine(RuleBasedStateMachine):
    """Rules are what producers, coordinators and the store do, also out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="transactions-"))
        self.sent: list[Sent] = []
        self.markers: list[MarkerSent] = []

    @initialize(
        segment_bytes=st.sampled_from((900, 2000, 1 << 20)),
        index_interval=st.sampled_from((0, 150, 4096)),
        spares=st.integers(0, 2),
        history=st.lists(
            st.tuples(producer_ids, producer_ids, batch_counts, decisions), max_size=6
        ),
    )
    def begin(self, segment_bytes: int, index_interval: int, spares: int, history: list) -> None:
        self.world = TransactionWorld(
            self.root, segment_bytes=segment_bytes, index_interval=index_interval, spares=spares
        )
        for first, second, batch_count, commits in history:
            self.two_transactions(first, second, batch_count, commits)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_all()
            self.world.files.close()
            self.world.check_files()
        shutil.rmtree(self.root)

    # -- producers ---------------------------------------------------------------------------------

    @rule(records=record_lists(), way=ways)
    def append_without_a_producer(self, records, way):
        self.world.append(Sent(records), way)

    @rule(producer_id=producer_ids, records=record_lists(), way=ways)
    def append_plainly(self, producer_id, records, way):
        """Refused inside a transaction of the same producer."""
        sent = Sent(records, producer_id, *self._next(producer_id))
        self.sent.append(sent)
        self.world.append(sent, way)

    @rule(
        producer_id=producer_ids,
        records=record_lists(),
        way=ways,
        verified=mostly,
    )
    def append_to_a_transaction(self, producer_id, records, way, verified):
        """The first one begins it, if its coordinator knows of the partition."""
        epoch, sequence = self._next(producer_id)
        sent = TransactionSent(records, producer_id, epoch, sequence, verified)
        self.sent.append(sent)
        self.world.append(sent, way)

    @rule(
        producer_id=producer_ids, records=record_lists(count_max=3), epoch_step=st.integers(-1, 1)
    )
    def append_as_a_coordinator(self, producer_id, records, epoch_step):
        """Offsets of a group: a transaction's batch without a sequence."""
        epoch, _ = self._next(producer_id)
        epoch = min(max(epoch + epoch_step, 0), LAST_EPOCH)
        self.world.append(TransactionSent(records, producer_id, epoch, -1), "columns")

    @rule(
        producer_id=producer_ids,
        records=record_lists(count_max=2),
        way=ways,
        ahead=st.integers(-3, 3),
        epoch_step=st.integers(-1, 2),
        verified=st.booleans(),
    )
    def append_what_may_not_follow(self, producer_id, records, way, ahead, epoch_step, verified):
        epoch, sequence = self._next(producer_id)
        sent = TransactionSent(
            records,
            producer_id,
            min(max(epoch + epoch_step, 0), LAST_EPOCH),
            codec.increment_sequence(sequence, ahead),
            verified,
        )
        self.sent.append(sent)
        self.world.append(sent, way)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), way=ways)
    def send_again_anything_sent_before(self, data, way):
        """Late batches of a transaction that has ended, duplicates, and wrapped ones."""
        recent = data.draw(st.booleans())
        self.world.append(data.draw(st.sampled_from(self.sent[-6:] if recent else self.sent)), way)

    @rule(first=producer_ids, second=producer_ids, batch_count=batch_counts, commits=decisions)
    def interleave_two(self, first, second, batch_count, commits):
        self.two_transactions(first, second, batch_count, commits)

    @rule(first=producer_ids, second=producer_ids, batch_count=batch_counts)
    def abort_two(self, first, second, batch_count):
        self.two_transactions(first, second, batch_count, (False, False))

    def two_transactions(self, first, second, batch_count, commits):
        """Batches of both in turns, then their ends."""
        pair = dict(zip((first, second), commits, strict=True))
        record = codec.ModelRecord(0, BASE_MS, None, b"interleaved")
        for _ in range(batch_count):
            for producer_id in pair:
                epoch, sequence = self._next(producer_id)
                sent = TransactionSent((record,), producer_id, epoch, sequence)
                self.sent.append(sent)
                self.world.append(sent, "batch")
        for producer_id, commit in pair.items():
            entry = self.world.model.producers.entry(producer_id)
            if commit is not None and entry.producer_epoch < LAST_EPOCH:
                epoch = entry.producer_epoch + 1
                self.mark(MarkerSent(producer_id, epoch, max(entry.coordinator_epoch, 0), commit))

    def _next(self, producer_id: int) -> tuple[int, int]:
        entry = self.world.model.producer(producer_id)
        if entry is None:
            return 0, 0
        return entry.producer_epoch, codec.increment_sequence(entry.last_sequence, 1)

    # -- coordinators ------------------------------------------------------------------------------

    @precondition(lambda self: self.world.model.open_transactions())
    @rule(data=st.data(), commit=st.booleans(), epoch_step=st.sampled_from((1, 1, 1, 2, 30)))
    def end_an_open_transaction(self, data, commit, epoch_step):
        one = data.draw(st.sampled_from(self.world.model.open_transactions()))
        epoch = min(one.producer_epoch + epoch_step, LAST_EPOCH)
        self.mark(MarkerSent(one.producer_id, epoch, None, commit))

    @rule(
        producer_id=producer_ids,
        commit=st.booleans(),
        epoch_step=st.integers(-1, 2),
        coordinator_step=st.sampled_from((None, 0, 0, 1, 5, -1)),
        newer_epoch=st.booleans(),
        age_ms=st.integers(0, 86_400_000),
    )
    def any_marker(self, producer_id, commit, epoch_step, coordinator_step, newer_epoch, age_ms):
        """Of an unknown producer, of no open transaction, of an old epoch or coordinator too."""
        entry = self.world.model.producers.entry(producer_id)
        epoch = min(max(entry.producer_epoch + epoch_step, 0), LAST_EPOCH)
        coordinator_epoch = None
        if coordinator_step is not None:
            coordinator_epoch = max(entry.coordinator_epoch + coordinator_step, 0)
        self.mark(
            MarkerSent(producer_id, epoch, coordinator_epoch, commit, newer_epoch, BASE_MS + age_ms)
        )

    @precondition(lambda self: self.markers)
    @rule(data=st.data())
    def repeat_a_marker(self, data):
        self.world.mark(data.draw(st.sampled_from(self.markers)))

    def mark(self, sent: MarkerSent) -> None:
        self.markers.append(sent)
        self.world.mark(sent)

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
        """Not those with an open transaction."""
        self.world.expire(BASE_MS + age_ms)

    @rule()
    def take_a_snapshot(self):
        self.world.snapshot()

    @rule(share=lower_shares)
    def delete_old_segments(self, share):
        self.world.delete_segments(int(self.world.model.log_end_offset * share))

    @rule(share=lower_shares)
    def advance_the_log_start(self, share):
        """Into the middle of transactions too."""
        model = self.world.model
        span = model.log_end_offset - model.log_start_offset
        self.world.advance_start(model.log_start_offset + int(span * share))

    @rule(share=st.floats(0.5, 1))
    def truncate(self, share):
        """Markers may go, and their transactions are open again."""
        model = self.world.model
        span = model.log_end_offset - model.log_start_offset
        wanted = model.log_start_offset + int(span * share)
        ends = [b.last_offset + 1 for b in model.batches if b.last_offset < wanted]
        if ends and max(ends) >= model.log_start_offset:
            self.world.truncate(max(ends))

    @rule(clean=st.booleans(), kill=st.booleans(), restore=restores, from_flushed=st.booleans())
    def reopen(self, clean, kill, restore, from_flushed):
        recovery_point = self.world.flushed_offset if from_flushed else 0
        self.world.reopen(clean=clean, kill=kill, restore=restore, recovery_point=recovery_point)

    @rule(
        how=st.sampled_from(LOSSES),
        clean=st.booleans(),
        restore=restores,
        seed=st.integers(0, 9),
    )
    def reopen_without_abort_indexes(self, how, clean, restore, seed):
        self.world.reopen_without(how, clean=clean, restore=restore, seed=seed)

    @rule(share=shares, torn_bytes=st.sampled_from((0, 1, 30, 77)), restore=restores)
    def reopen_with_lost_tail(self, share, torn_bytes, restore):
        model = self.world.model
        synced = max(self.world.flushed_offset, model.segments[-1], model.log_start_offset)
        ends = {model.segments[-1], *(batch.last_offset + 1 for batch in model.batches)}
        left = sorted(end for end in ends if end >= synced)
        if left:
            self.world.reopen_with_lost_tail(
                left[int((len(left) - 1) * share)], torn_bytes, restore
            )

    # -- reads -------------------------------------------------------------------------------------

    @rule(
        share=shares,
        max_records=st.integers(0, 12),
        max_bytes=st.sampled_from((0, 1, 200, 1000, 1 << 20)),
        bound_share=st.none() | st.floats(0, 1.1),
    )
    def read_committed_with_bounds(self, share, max_records, max_bytes, bound_share):
        log, model = self.world.log, self.world.model
        start, end = model.log_start_offset, model.log_end_offset
        offset = start + int((end - start) * share)
        bound = end if bound_share is None else int(end * bound_share)
        asked = -1 if bound_share is None else bound
        known = [record for record in model.committed_records(offset) if record.offset < bound]
        records, next_offset = log.fetch_records(
            offset, max_records, max_bytes, asked, committed=True
        )
        same_records(records, known[: len(records)])
        assert len(records) <= max_records
        assert offset <= next_offset <= max(offset, model.last_stable_offset)
        if len(records) < len(known):
            assert next_offset <= known[len(records)].offset
        if known and max_records and not records:
            assert next_offset > offset, "a reader would not come to what there is"
        self._read_columns(offset, max_bytes, asked, max_records, known)

    def _read_columns(self, offset, max_bytes, asked, max_records, known):
        found = []
        columns = self.world.log.fetch_columns(offset, max_bytes, asked, max_records, True)
        if columns is not None:
            assert columns.record_count <= max_records
            found = list(zip(columns.offsets.tolist(), cells_of(columns, "value"), strict=True))
        assert found == [(record.offset, record.value) for record in known[: len(found)]]

    @rule(share=shares, max_bytes=st.sampled_from((1, 500, 1 << 20)))
    def read_committed_batches(self, share, max_bytes):
        log, model = self.world.log, self.world.model
        start, end = model.log_start_offset, model.log_end_offset
        offset = start + int((end - start) * share)
        batches = list(codec.iter_batches(log.read(offset, max_bytes, committed=True)))
        found = [batch.data for batch in batches if not batch.is_control]
        expected = [batch.data for batch in self.world.committed_raw(offset)]
        assert found == expected[: len(found)]
        assert bool(batches) or not expected

    @rule(first=shares, second=shares)
    def look_up_aborted(self, first, second):
        end = self.world.model.log_end_offset
        low, high = sorted((int(end * first), int(end * second) + 1))
        self.world.check_aborted(low, high)

    @rule(share=shares)
    def read_from_somewhere(self, share):
        model = self.world.model
        span = model.log_end_offset - model.log_start_offset
        self.world.check_committed(model.log_start_offset + int(span * share))

    @rule()
    def read_everything(self):
        self.world.check_all()

    # -- what must always hold ---------------------------------------------------------------------

    @invariant()
    def all_agrees(self):
        if hasattr(self, "world"):
            self.world.check_bounds()
            self.world.check_producers()
            self.world.check_transactions()
            self.world.check_committed(self.world.model.log_start_offset)


def run(max_examples: int, steps: int) -> None:
    run_state_machine_as_test(
        TransactionMachine,
        settings=settings(max_examples=max_examples, stateful_step_count=steps),
    )


def test_the_engine_does_as_the_model():
    run(max_examples=120, steps=30)


@pytest.mark.soak
def test_the_engine_does_as_the_model_for_long():
    run(max_examples=5000, steps=80)
