"""Transactional producers, plain ones, readers and groups, over kills: as the model promises."""

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
from property.transactional_store_world import (
    GROUPS,
    PLACES,
    TransactionalStoreWorld,
    Writer,
)
from reference_model.transaction_model import PREPARED

WRITERS_MAX = 5

IDS = ("mirror-1", "mirror-2", "näher")

ids = st.sampled_from(IDS)
places = st.sampled_from(PLACES)
groups = st.sampled_from(GROUPS)
counts = st.integers(1, 4)
losses = st.sampled_from(
    ((), (), (".txnindex",), ("rows",), ("rows", ".txnindex"), ("rows", ".snapshot", ".txnindex"))
)


class TransactionalStoreMachine(RuleBasedStateMachine):
    """Rules are what writers, readers and operators do; the comparing is in the world."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="transactional-store-"))

    @initialize(durability=st.sampled_from(("process", "process", "process", "commit")))
    def begin(self, durability: str) -> None:
        self.world = TransactionalStoreWorld(
            self.root, segment_bytes=1 << 20, durability=durability
        )
        for transactional_id in IDS[:2]:
            self.world.new_writer(transactional_id, keep_prepared=False)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.world.store.close()
        finally:
            shutil.rmtree(self.root)

    def _writers(self, *, in_transaction: bool, prepared: bool = False) -> list[Writer]:
        found = []
        for writer in self.world.writers:
            transaction = writer.model.transaction
            is_prepared = transaction is not None and transaction.state == PREPARED
            if writer.model.in_transaction == in_transaction and is_prepared == prepared:
                found.append(writer)
        return found

    def _draw(self, data: st.DataObject, *, in_transaction: bool, prepared: bool = False):
        found = self._writers(in_transaction=in_transaction, prepared=prepared)
        return data.draw(st.sampled_from(found))

    # -- writers -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.writers) < WRITERS_MAX)
    @rule(transactional_id=ids, keep_prepared=st.booleans())
    def a_new_writer(self, transactional_id, keep_prepared):
        self.world.new_writer(transactional_id, keep_prepared=keep_prepared)

    @rule(place=places, count=counts)
    def append_plainly(self, place, count):
        self.world.append_plainly(place, count)

    @precondition(lambda self: self._writers(in_transaction=False))
    @rule(data=st.data())
    def begin_a_transaction(self, data):
        """A fenced writer hears of it here at the latest."""
        writer = self._draw(data, in_transaction=False)
        self.world.begin(writer)

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data(), place=places, count=counts)
    def send(self, data, place, count):
        writer = self._draw(data, in_transaction=True)
        self.world.send(writer, place, count)

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data(), place=places, count=counts)
    def append_columns(self, data, place, count):
        writer = self._draw(data, in_transaction=True)
        self.world.append(writer, place, count)

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data())
    def flush(self, data):
        writer = self._draw(data, in_transaction=True)
        self.world.flush(writer)

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data(), group=groups, place=places, offset=st.integers(0, 50))
    def send_offsets(self, data, group, place, offset):
        writer = self._draw(data, in_transaction=True)
        self.world.send_offsets(writer, group, place, offset)

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data(), commit=st.booleans())
    def end_a_transaction(self, data, commit):
        writer = self._draw(data, in_transaction=True)
        self.world.end(writer, commit=commit)

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data())
    def a_commit_is_refused(self, data):
        self.world.end_refused(self._draw(data, in_transaction=True))

    @precondition(lambda self: self._writers(in_transaction=True))
    @rule(data=st.data())
    def prepare_a_transaction(self, data):
        writer = self._draw(data, in_transaction=True)
        if writer.model.gathered or writer.model.transaction is not None:
            self.world.prepare(writer)

    @precondition(lambda self: self._writers(in_transaction=True, prepared=True))
    @rule(data=st.data(), commit=st.booleans())
    def end_a_prepared_transaction(self, data, commit):
        writer = self._draw(data, in_transaction=True, prepared=True)
        self.world.end(writer, commit=commit)

    @precondition(lambda self: self.world.writers)
    @rule(data=st.data())
    def close_a_writer(self, data):
        self.world.close(data.draw(st.sampled_from(self.world.writers)))

    # -- others ------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.prepared_transactions())
    @rule(data=st.data(), commit=st.booleans())
    def decide_a_prepared_transaction(self, data, commit):
        found = data.draw(st.sampled_from(self.world.prepared_transactions()))
        self.world.decide(found, commit=commit)

    @precondition(lambda self: self.world.known_ids)
    @rule(data=st.data())
    def an_operator_aborts(self, data):
        self.world.abort_as_operator(data.draw(st.sampled_from(sorted(self.world.known_ids))))

    @rule()
    def transactions_take_too_long(self):
        self.world.let_time_pass()

    @rule(data=st.data(), place=places, end=st.sampled_from(("commit", "abort", "refused")))
    def a_whole_transaction(self, data, place, end):
        writers = self._writers(in_transaction=False)
        if writers:
            writer = data.draw(st.sampled_from(writers))
            self.world.begin(writer)
            self.world.send(writer, place, 2)
            self.world.send(writer, PLACES[0], 1)
            if end == "refused":
                self.world.end_refused(writer)
            else:
                self.world.flush(writer)
                self.world.end(writer, commit=end == "commit")

    @rule(
        records=st.dictionaries(places, counts, min_size=1),
        lose_complete=st.sampled_from((False, False, True)),
    )
    def a_staged_job(self, records, lose_complete):
        self.world.load(records, lose_complete=lose_complete)
        self.world.check_snapshot()

    @rule(data=st.data(), behind=places, records=st.dictionaries(places, counts, min_size=1))
    def a_staged_job_behind_an_open_transaction(self, data, behind, records):
        writers = self._writers(in_transaction=False)
        if writers:
            writer = data.draw(st.sampled_from(writers))
            self.world.begin(writer)
            self.world.append(writer, behind, 1)
            self.world.load({behind: 1, **records}, lose_complete=False)
            self.world.check_snapshot()

    @rule(group=groups, place=places, offset=st.integers(0, 50))
    def commit_an_offset(self, group, place, offset):
        self.world.commit_offset(group, place, offset)

    @rule(lost=losses)
    def kill_the_process(self, lost):
        self.world.reopen(kill=True, lost=lost)

    @rule(lost=losses)
    def close_and_open(self, lost):
        self.world.reopen(kill=False, lost=lost)

    @rule(records_max=st.integers(1, 20))
    def a_reader_goes_on(self, records_max):
        self.world.poll_forward(records_max)

    @rule()
    def take_a_snapshot(self):
        self.world.check_snapshot()

    # -- what must always hold ---------------------------------------------------------------------

    @invariant()
    def all_agrees(self):
        if hasattr(self, "world"):
            self.world.check_reads()
            self.world.check_offsets()
            self.world.check_listing()


def run(max_examples: int, steps: int) -> None:
    run_state_machine_as_test(
        TransactionalStoreMachine,
        settings=settings(max_examples=max_examples, stateful_step_count=steps),
    )


@pytest.mark.long
def test_the_store_does_as_the_model():
    run(max_examples=25, steps=30)


@pytest.mark.soak
def test_the_store_does_as_the_model_for_long():
    run(max_examples=2000, steps=60)
