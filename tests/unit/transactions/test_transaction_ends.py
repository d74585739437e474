"""Ends of transactions at the coordinator's entry: commits, aborts, fences, prepared ones."""

import pytest
from partition_files import all_records
from transaction_files import (
    TransactionFiles,
    batches,
    committed,
    filled,
    opened,
)

from eoslog.bindings.transaction_entry import ProducerIdNeeded, decode_transaction_value
from eoslog.errors import (
    ConcurrentTransactionsError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)


@pytest.fixture
def files(tmp_path):
    made = TransactionFiles(tmp_path)
    yield made
    made.close()


# Ends: the table of transaction version 2.

FENCED, INVALID = ProducerFencedError, InvalidTxnStateError
CONCURRENT = ConcurrentTransactionsError
# By state: commit repeated, commit, abort repeated, abort. The entry has epoch 5.
ENDS = {
    "Ongoing": (FENCED, "PrepareCommit", FENCED, "PrepareAbort"),
    "PrepareCommit": (CONCURRENT, FENCED, INVALID, FENCED),
    "PrepareAbort": (INVALID, FENCED, CONCURRENT, FENCED),
    "CompleteCommit": ("same", INVALID, INVALID, "PrepareAbort"),
    "CompleteAbort": (INVALID, INVALID, "same", "PrepareAbort"),
    "Empty": (FENCED, INVALID, FENCED, "PrepareAbort"),
}


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("state", ENDS)
def test_each_cell_of_the_table_of_ends(files, state, column):
    part = files.part("a")
    parts = [] if state.startswith(("Empty", "Complete")) else [part]
    files.load(state, epoch=5, parts=parts)
    commit, current = column < 2, column % 2 == 1
    expected = ENDS[state][column]
    if isinstance(expected, type):
        with pytest.raises(expected):
            files.entry.end(7, 5 if current else 4, commit)
    elif expected == "same":
        assert files.entry.end(7, 4, commit) == (7, 5)
    else:
        assert files.entry.end(7, 5, commit) == (7, 6)
        complete = expected.replace("Prepare", "Complete")
        assert files.states() == [expected, complete]
        assert files.entry.state == complete
        assert (files.entry.producer_epoch, files.entry.last_producer_epoch) == (6, 5)
        marker = "COMMIT" if commit else "ABORT"
        assert batches(part.log) == ([(7, 6, -1, marker)] if parts else [])
        return
    assert files.records() == []
    assert files.entry.state == state
    assert batches(part.log) == []


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", ENDS)
def test_an_end_by_another_producer_or_epoch_is_refused(files, state, commit):
    files.load(state, epoch=5)
    with pytest.raises(InvalidProducerIdMappingError):
        files.entry.end(8, 5, commit)
    for epoch in (0, 3, 6, 32766):
        with pytest.raises(ProducerFencedError):
            files.entry.end(7, epoch, commit)
    for producer_id, epoch in ((-1, -1), (7, -1), (7, 2**40), (2**63 - 1, 5)):
        with pytest.raises((InvalidProducerIdMappingError, ProducerFencedError)):
            files.entry.end(producer_id, epoch, commit)
    assert files.records() == []


def test_v01_v02_v04_each_commit_raises_the_epoch_and_restarts_sequences(files):
    part = files.part("a")
    files.initialize()
    for epoch in range(10):
        pairs = [filled(part, b"%d" % epoch, b"+"), filled(part, b"-")]
        assert files.entry.commit(7, epoch, pairs) == (7, epoch + 1)
        assert all(accumulator.record_count == 0 for accumulator, _ in pairs)
        assert files.entry.end(7, epoch, True) == (7, epoch + 1)
    expected = []
    for epoch in range(10):
        expected += [(7, epoch, 0, [b"%d" % epoch, b"+"]), (7, epoch, 2, [b"-"])]
        expected += [(7, epoch + 1, -1, "COMMIT")]
    assert batches(part.log) == expected
    assert len(committed(part.log)) == 30
    assert files.states() == ["Empty"] + ["Ongoing", "PrepareCommit", "CompleteCommit"] * 10
    assert files.entry.partitions == []


def test_the_records_of_a_commit(files):
    files.initialize()
    files.entry.commit(7, 0, [filled(files.part("b", 3), b"x"), filled(files.part("a"), b"y")])
    _, ongoing, prepare, complete = files.records()
    start = ongoing["start_ms"]
    listed = [("a", 0), ("b", 3)]
    assert [one["partitions"] for one in (ongoing, prepare, complete)] == [listed, listed, []]
    assert [one["start_ms"] for one in (prepare, complete)] == [start, start]
    assert [one["producer_epoch"] for one in (ongoing, prepare, complete)] == [0, 1, 1]
    assert [one["last_producer_epoch"] for one in (ongoing, prepare, complete)] == [-1, 0, 0]
    assert ongoing["last_update_ms"] <= prepare["last_update_ms"] <= complete["last_update_ms"]
    assert {one["client_transaction_version"] for one in (ongoing, prepare, complete)} == {2}
    assert files.entry.record_offset == 3
    assert files.entry.prepare_offset == -1
    assert decode_transaction_value(files.entry.value()) == complete
    marker = all_records(files.part("a").log)
    assert files.part("a").log.producer(7).coordinator_epoch == 0
    assert [record.value for record in marker] == [b"y"]


def test_v09_v11_an_abort_of_nothing_moves_the_epoch(files):
    files.initialize()
    assert files.entry.end(7, 0, False) == (7, 1)
    assert files.entry.end(7, 1, False) == (7, 2)
    assert files.states() == ["Empty"] + ["PrepareAbort", "CompleteAbort"] * 2
    for record in files.records()[1:]:
        assert record["partitions"] == []
        assert record["start_ms"] > 500
    prepare = files.records()[1]
    assert prepare["start_ms"] == prepare["last_update_ms"]


def test_an_abort_hides_what_was_flushed(files):
    a, b = files.part("a"), files.part("b")
    files.initialize()
    files.entry.flush(7, 0, [filled(a, b"x"), filled(b, b"y")])
    files.entry.flush(7, 0, [filled(a, b"z")])
    assert files.states() == ["Empty", "Ongoing"]
    assert files.entry.end(7, 0, False) == (7, 1)
    for part, values in ((a, [[b"x"], [b"z"]]), (b, [[b"y"]])):
        assert [one[3] for one in batches(part.log)] == [*values, "ABORT"]
        assert committed(part.log) == []
        assert part.log.open_transactions() == []
    files.entry.commit(7, 1, [filled(a, b"again")])
    assert committed(a.log) == [b"again"]


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_a16_the_next_producer_id_waits_for_the_end_of_what_was_decided(files, state):
    part = files.part("a")
    files.load(state, epoch=32767, parts=[part], last_producer_epoch=32766, next_producer_id=8)
    calls = {
        "add": lambda *own: files.entry.add_partitions(*own, [part]),
        "flush": lambda *own: files.entry.flush(*own, [filled(part, b"x")]),
        "commit": lambda *own: files.entry.commit(*own, [filled(part, b"x")]),
        "columns": lambda *own: files.entry.append_columns(*own, part, opened([b"x"])),
        "offsets": lambda *own: files.entry.append_offsets(
            *own, part, [b"x"], [b"k"], timestamp_ms=1
        ),
        "prepare": files.entry.prepare,
        "end, committed": lambda *own: files.entry.end(*own, True),
        "end, aborted": lambda *own: files.entry.end(*own, False),
    }
    assert files.entry.client_identity == (8, 0)
    for call in calls.values():
        with pytest.raises(ConcurrentTransactionsError):
            call(8, 0)
        for other in ((8, 1), (9, 0)):
            with pytest.raises(InvalidProducerIdMappingError):
                call(*other)
    assert batches(part.log) == []
    files.entry.complete()
    calls["flush"](8, 0)
    assert files.entry.end(8, 0, False) == (8, 1)


def test_v12_v14_the_end_at_the_last_epoch_rotates_the_producer_id(files):
    part = files.part("a")
    files.load("Empty", epoch=32766)
    files.entry.flush(7, 32766, [filled(part, b"x")])
    before = files.states()
    for call in (
        lambda: files.entry.end(7, 32766, True),
        lambda: files.entry.commit(7, 32766, [filled(part, b"y")]),
        lambda: files.entry.fence(),
    ):
        with pytest.raises(ProducerIdNeeded):
            call()
    assert files.states() == before
    assert files.entry.end(7, 32766, True, 8) == (8, 0)
    _, prepare, complete = files.records()
    assert (prepare["producer_id"], prepare["producer_epoch"]) == (7, 32767)
    assert (prepare["next_producer_id"], prepare["last_producer_epoch"]) == (8, 32766)
    assert (complete["producer_id"], complete["producer_epoch"]) == (8, 0)
    assert (complete["previous_producer_id"], complete["last_producer_epoch"]) == (7, 32766)
    assert (complete["next_producer_id"], complete["state"]) == (-1, "CompleteCommit")
    assert batches(part.log) == [(7, 32766, 0, [b"x"]), (7, 32767, -1, "COMMIT")]
    # The answer was lost: the client asks again with what it knows.
    assert files.entry.end(7, 32766, True) == (8, 0)
    with pytest.raises(InvalidTxnStateError):
        files.entry.end(7, 32766, False)
    with pytest.raises(InvalidProducerIdMappingError):
        files.entry.end(7, 32765, True)
    with pytest.raises(InvalidProducerIdMappingError):
        files.entry.end(6, 32766, True)
    assert files.entry.commit(8, 0, [filled(part, b"z")]) == (8, 1)
    assert committed(part.log) == [b"x", b"z"]
    with pytest.raises(InvalidProducerIdMappingError):
        files.entry.end(7, 32766, True)


def test_a_rotation_that_is_not_complete_answers_a_repeated_call_with_concurrent(files):
    files.load("PrepareCommit", epoch=32767, next_producer_id=8, parts=[files.part("a")])
    with pytest.raises(ConcurrentTransactionsError):
        files.entry.end(7, 32766, True)
    files.entry.complete()
    assert files.entry.end(7, 32766, True) == (8, 0)


def test_a_next_producer_id_is_given_only_when_it_is_needed_and_is_another(files):
    files.load("Empty", epoch=5)
    with pytest.raises(ValueError, match="next producer id 8"):
        files.entry.end(7, 5, False, 8)
    files.load("Empty", epoch=32766)
    for wrong in (7, -2):
        with pytest.raises(ValueError, match="next producer id"):
            files.entry.end(7, 32766, False, wrong)
    assert files.entry.end(7, 32766, False, 9) == (9, 0)


# Fences.


def test_a_fence_aborts_with_the_next_epoch(files):
    part = files.part("a")
    files.initialize()
    files.entry.flush(7, 0, [filled(part, b"x")])
    files.entry.fence()
    assert batches(part.log)[-1] == (7, 1, -1, "ABORT")
    assert (files.entry.state, files.entry.producer_epoch) == ("CompleteAbort", 1)
    with pytest.raises(ProducerFencedError):
        files.entry.flush(7, 0, [filled(part, b"y")])
    assert committed(part.log) == []


def test_v18_a_fence_at_the_last_epoch_rotates(files):
    part = files.part("a")
    files.load("Ongoing", epoch=32766, parts=[part])
    files.entry.fence(8)
    assert batches(part.log) == [(7, 32767, -1, "ABORT")]
    assert (files.entry.producer_id, files.entry.producer_epoch) == (8, 0)
    assert (files.entry.previous_producer_id, files.entry.last_producer_epoch) == (7, 32766)


def test_a_fence_beyond_the_last_epoch_goes_no_higher(files):
    part = files.part("a")
    part.log.append_columns(
        [b"x"], timestamp_ms=1, producer_id=7, producer_epoch=32767, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    files.load("Ongoing", epoch=32767, parts=[part])
    files.entry.fence(8)
    assert files.entry.completion_error is None
    assert batches(part.log)[-1] == (7, 32767, -1, "ABORT")
    assert (files.entry.producer_id, files.entry.producer_epoch) == (8, 0)


@pytest.mark.parametrize("state", ["Empty", "PrepareCommit", "PrepareAbort", "CompleteCommit"])
def test_only_an_open_transaction_is_fenced(files, state):
    files.load(state)
    with pytest.raises(IllegalStateError, match="nothing to fence"):
        files.entry.fence()


# Decisions from outside.


def test_a_prepared_transaction_waits_for_its_end(files):
    part = files.part("a")
    files.initialize()
    files.entry.flush(7, 0, [filled(part, b"x")])
    files.entry.prepare(7, 0)
    files.entry.prepare(7, 0)
    assert files.states() == ["Empty", "Ongoing", "Ongoing"]
    assert files.entry.prepared
    assert (part.log.recovery_point, files.state.recovery_point) == (1, 3)
    files.reload()
    assert (files.entry.prepared, files.entry.state) == (True, "Ongoing")
    for call in (
        lambda: files.entry.add_partitions(7, 0, [part]),
        lambda: files.entry.flush(7, 0, []),
        lambda: files.entry.commit(7, 0, [filled(part, b"y")]),
    ):
        with pytest.raises(InvalidTxnStateError, match="prepared"):
            call()
    assert files.entry.end(7, 0, True) == (7, 1)
    assert committed(part.log) == [b"x"]
    assert not files.entry.prepared
    assert not files.records()[-1]["prepared"]
    files.entry.flush(7, 1, [filled(part, b"y")])
    assert not files.entry.prepared


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_there_must_be_something_to_prepare(files, state):
    files.load(state)
    with pytest.raises(InvalidTxnStateError, match="nothing to prepare"):
        files.entry.prepare(7, 5)
