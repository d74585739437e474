"""The coordinator's entry: every move, every refusal, and what each writes."""

import threading

import pytest
from partition_files import all_records
from transaction_files import (
    COORDINATOR_EPOCH,
    ID,
    TIMEOUT_MS,
    TransactionFiles,
    batches,
    committed,
    filled,
)

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.transaction_entry import (
    PartitionLost,
    ProducerIdNeeded,
    TransactionEntry,
    TransactionPart,
    decode_transaction_value,
)
from eoslog.errors import (
    ConcurrentTransactionsError,
    CorruptRecordError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    LogClosedError,
    ProducerFencedError,
)


@pytest.fixture
def files(tmp_path):
    made = TransactionFiles(tmp_path)
    yield made
    made.close()


# Beginnings.


def test_a_new_entry_knows_nothing(files):
    entry = files.entry
    assert (entry.transactional_id, entry.state) == (ID, "Empty")
    assert (entry.producer_id, entry.producer_epoch, entry.last_producer_epoch) == (-1, -1, -1)
    assert (entry.previous_producer_id, entry.next_producer_id) == (-1, -1)
    assert (entry.start_ms, entry.last_update_ms, entry.next_producer_epoch) == (-1, -1, -1)
    assert (entry.record_offset, entry.prepare_offset, entry.changed) == (-1, -1, False)
    assert (entry.partitions, entry.value(), entry.prepared) == ([], b"", False)
    assert (entry.completion_error, entry.coordinator_epoch) == (None, COORDINATOR_EPOCH)
    with pytest.raises(InvalidProducerIdMappingError):
        entry.add_partitions(-1, -1, [])


def test_i07_an_initialized_entry_is_empty_with_its_numbers(files):
    files.initialize(now_ms=1234)
    expected = {
        "version": 1,
        "producer_id": 7,
        "producer_epoch": 0,
        "timeout_ms": TIMEOUT_MS,
        "state": "Empty",
        "partitions": None,
        "last_update_ms": 1234,
        "start_ms": -1,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "next_producer_epoch": -1,
        "client_transaction_version": 2,
        "last_producer_epoch": -1,
        "prepared": False,
    }
    assert files.records() == [expected]
    assert files.entry.changed
    assert files.entry.record_offset == 0
    assert decode_transaction_value(files.entry.value()) == expected
    assert all_records(files.state)[0].timestamp_ms == 1234
    files.entry.mark_persisted()
    assert not files.entry.changed


@pytest.mark.parametrize(
    "numbers",
    [
        {"producer_id": -1},
        {"epoch": -1},
        {"epoch": 32767},
        {"last_producer_epoch": -2},
        {"previous_producer_id": -2},
        {"timeout_ms": 0},
        {"timeout_ms": 2**31},
    ],
)
def test_numbers_that_no_client_can_have_are_refused(files, numbers):
    with pytest.raises(ValueError, match="producer id"):
        files.initialize(**numbers)
    assert files.records() == []


def test_an_initialization_moves_the_epoch_by_one_or_rotates(files):
    files.load("CompleteCommit", epoch=5)
    for producer_id, epoch in ((7, 4), (7, 7), (8, 1), (7, 0)):
        with pytest.raises(IllegalStateError, match="epoch"):
            files.initialize(producer_id, epoch)
    files.initialize(7, 5)
    files.initialize(7, 6, last_producer_epoch=5)
    files.initialize(8, 0, previous_producer_id=7)
    entry = files.entry
    assert (entry.producer_id, entry.producer_epoch) == (8, 0)
    assert (entry.previous_producer_id, entry.last_producer_epoch) == (7, -1)
    assert files.states() == ["Empty"] * 3


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort"])
def test_what_is_open_or_undecided_cannot_be_initialized_or_expire(files, state):
    files.load(state)
    with pytest.raises(IllegalStateError, match="no such move"):
        files.initialize(7, 6)
    with pytest.raises(IllegalStateError, match="no such move"):
        files.entry.expire()
    assert files.records() == []
    assert files.entry.state == state


# Adding partitions.


def test_a06_a08_a09_partitions_begin_a_transaction_and_join_it(files):
    files.initialize()
    files.entry.add_partitions(7, 0, [files.part("a")])
    start = files.entry.start_ms
    assert start > 500
    assert files.entry.last_update_ms == start
    files.entry.add_partitions(7, 0, [files.part("b", 1), files.part("a")])
    files.entry.add_partitions(7, 0, [files.part("a"), files.part("b", 1)])
    files.entry.add_partitions(7, 0, [])
    assert files.entry.partitions == [("a", 0), ("b", 1)]
    assert files.states() == ["Empty", "Ongoing", "Ongoing"]
    last = files.records()[-1]
    assert (last["partitions"], last["start_ms"]) == ([("a", 0), ("b", 1)], start)


def test_partitions_of_a_topic_stand_together_in_a_record(files):
    files.initialize()
    added = [("b", 2), ("a", 1), ("aa", 0), ("b", 0), ("a", 10), ("a", 2), ("b", 2)]
    files.entry.add_partitions(7, 0, [files.part(*one) for one in added])
    assert files.entry.partitions == sorted(set(added))
    assert files.records()[-1]["partitions"] == sorted(set(added))


def test_nothing_begins_without_a_partition(files):
    files.initialize()
    files.entry.add_partitions(7, 0, [])
    files.entry.flush(7, 0, [])
    files.entry.flush(7, 0, [filled(files.part("a"))])
    assert files.states() == ["Empty"]


@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"),
    [
        (8, 5, InvalidProducerIdMappingError),
        (8, 4, InvalidProducerIdMappingError),
        (7, 4, ProducerFencedError),
        (7, 6, ProducerFencedError),
        (7, 2**40, ProducerFencedError),
        (7, -1, ProducerFencedError),
    ],
)
@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "CompleteAbort"])
def test_a03_a04_another_producer_or_epoch_adds_nothing(files, state, producer_id, epoch, error):
    part = files.part("a")
    files.load(state)
    for call in (
        lambda: files.entry.add_partitions(producer_id, epoch, [part]),
        lambda: files.entry.flush(producer_id, epoch, [filled(part, b"x")]),
        lambda: files.entry.commit(producer_id, epoch, [filled(part, b"x")]),
        lambda: files.entry.append_columns(producer_id, epoch, part, [b"x"], timestamp_ms=1),
        lambda: files.entry.append_offsets(
            producer_id, epoch, part, [b"x"], [b"k"], timestamp_ms=1
        ),
        lambda: files.entry.prepare(producer_id, epoch),
    ):
        with pytest.raises(error):
            call()
    assert files.records() == []
    assert batches(part.log) == []


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_a11_nothing_is_added_while_a_decision_is_carried_out(files, state):
    part = files.part("a")
    files.load(state)
    with pytest.raises(ConcurrentTransactionsError):
        files.entry.add_partitions(7, 5, [part])
    with pytest.raises(ConcurrentTransactionsError):
        files.entry.commit(7, 5, [filled(part, b"x")])
    assert batches(part.log) == []


def test_a17_a_clock_that_went_back_does_not_matter(files):
    files.initialize(now_ms=2**62)
    files.entry.add_partitions(7, 0, [files.part("a")])
    assert files.entry.start_ms < 2**62
    assert files.entry.end(7, 0, True) == (7, 1)


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
    assert files.part("a").log.producer(7).coordinator_epoch == COORDINATOR_EPOCH
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


# Taken over from the log.


def test_every_record_of_a_history_is_taken_over(files):
    part = files.part("a")
    files.initialize()
    files.entry.commit(7, 0, [filled(part, b"x")])
    files.entry.flush(7, 1, [filled(part, b"y")])
    for record in all_records(files.state):
        entry = files.make_entry()
        entry.load(record.value, record.offset)
        fields = decode_transaction_value(record.value)
        assert (entry.state, entry.producer_id) == (fields["state"], fields["producer_id"])
        assert (entry.producer_epoch, entry.start_ms) == (
            fields["producer_epoch"],
            fields["start_ms"],
        )
        assert entry.partitions == (fields["partitions"] or [])
        assert (entry.value(), entry.record_offset) == (record.value, record.offset)
        prepare = record.offset if entry.state.startswith("Prepare") else -1
        assert (entry.prepare_offset, entry.changed) == (prepare, False)


@pytest.mark.parametrize("commit", [True, False])
def test_s04_a_decision_is_carried_out_by_the_next_coordinator(files, commit):
    parts = [files.part("a"), files.part("b", 1)]
    files.load("PrepareCommit" if commit else "PrepareAbort", epoch=4, parts=parts)
    assert files.entry.partitions == [("a", 0), ("b", 1)]
    files.entry.complete()
    files.entry.complete()
    for part in parts:
        assert batches(part.log) == [(7, 4, -1, "COMMIT" if commit else "ABORT")]
        assert part.log.producer(7).coordinator_epoch == COORDINATOR_EPOCH
    assert files.states() == ["CompleteCommit" if commit else "CompleteAbort"]
    assert (files.entry.producer_epoch, files.entry.partitions) == (4, [])


def test_a_decision_of_an_older_protocol_has_the_epoch_of_its_data(files):
    part = files.part("a")
    part.log.append_columns(
        [b"x"], timestamp_ms=1, producer_id=7, producer_epoch=4, base_sequence=0,
        transactional=True,
    )  # fmt: skip
    files.load(
        "PrepareCommit", epoch=4, parts=[part], client_transaction_version=0, last_producer_epoch=-1
    )
    files.entry.complete()
    assert committed(part.log) == [b"x"]


def test_markers_that_stand_already_are_not_written_again(files):
    part = files.part("a")
    files.initialize()
    files.entry.commit(7, 0, [filled(part, b"x")])
    prepare = all_records(files.state)[2]
    entry = files.make_entry(COORDINATOR_EPOCH + 1)
    entry.load(prepare.value, prepare.offset)
    entry.attach([part])
    entry.complete()
    assert [one[3] for one in batches(part.log)] == [[b"x"], "COMMIT"]
    assert entry.state == "CompleteCommit"


def test_a_broken_record_changes_nothing(files):
    files.initialize()
    value = files.entry.value()
    for broken in (b"", value[:-1], value + b"\0"):
        with pytest.raises(CorruptRecordError):
            files.entry.load(broken, 5)
    assert (files.entry.value(), files.entry.record_offset) == (value, 0)


def test_only_an_undecided_transaction_lists_partitions(files):
    files.load("CompleteCommit", partitions=[("a", 0)])
    assert files.entry.partitions == []
    assert files.entry.end(7, 5, False) == (7, 6)
    assert files.records()[0]["partitions"] == []


def test_nothing_is_completed_that_is_not_decided(files):
    for state in ("Empty", "Ongoing"):
        files.load(state)
        with pytest.raises(IllegalStateError, match="nothing is decided"):
            files.entry.complete()


def test_k03_a_deleted_partition_is_dropped(files):
    a, b = files.part("a"), files.part("b", 1)
    files.load("PrepareCommit", epoch=4, parts=[a, b])
    a.log.close()
    for _ in range(2):
        with pytest.raises(PartitionLost) as lost:
            files.entry.complete()
        assert (lost.value.topic, lost.value.partition) == ("a", 0)
    assert [one[3] for one in batches(b.log)] == ["COMMIT"]
    files.entry.drop_partition("nowhere", 0)
    files.entry.drop_partition("a", 1)
    files.entry.drop_partition("a", 0)
    assert files.entry.partitions == [("b", 1)]
    files.entry.complete()
    assert files.states() == ["CompleteCommit"]
    assert [one[3] for one in batches(b.log)] == ["COMMIT"]


def test_a_partition_without_a_log_is_asked_for(files):
    part = files.part("a")
    files.load("PrepareAbort", partitions=[("a", 0)])
    with pytest.raises(PartitionLost):
        files.entry.complete()
    files.entry.attach([files.part("z"), part])
    assert files.entry.partitions == [("a", 0)]
    files.entry.complete()
    assert [one[3] for one in batches(part.log)] == ["ABORT"]


def test_a_dropped_partition_leaves_an_open_transaction(files):
    a, b = files.part("a"), files.part("b")
    files.initialize()
    files.entry.flush(7, 0, [filled(a, b"x"), filled(b, b"y")])
    files.entry.drop_partition("a", 0)
    assert files.entry.end(7, 0, True) == (7, 1)
    assert files.records()[2]["partitions"] == [("b", 0)]
    assert len(a.log.open_transactions()) == 1
    assert committed(b.log) == [b"y"]


# Expiry.


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort"])
def test_an_expired_id_is_a_tombstone(files, state):
    files.load(state)
    files.entry.expire()
    assert files.records() == [None]
    assert (files.entry.state, files.entry.value()) == ("Dead", b"")
    for call in (
        lambda: files.entry.end(7, 5, False),
        lambda: files.entry.add_partitions(7, 5, [files.part("a")]),
    ):
        with pytest.raises(InvalidProducerIdMappingError):
            call()
    with pytest.raises(IllegalStateError):
        files.initialize(7, 6)
    with pytest.raises(IllegalStateError):
        files.entry.expire()


# Calls.


def test_arguments_are_checked(files):
    part = files.part("a")
    files.initialize()
    for call in (
        lambda: files.entry.add_partitions(7, 0, [part, "a-0"]),
        lambda: files.entry.flush(7, 0, [("accumulator", part)]),
        lambda: files.entry.flush(7, 0, [filled(part, b"x"), None]),
        lambda: files.entry.commit(7, 0, [(part, part)]),
        lambda: files.entry.attach([None]),
        lambda: files.entry.append_columns(7, 0, None, [b"x"], timestamp_ms=1),
        lambda: TransactionPart("a", 0, None),
        lambda: TransactionEntry(ID, None, 0, False),
        lambda: TransactionEntry(None, files.state, 0, False),
        lambda: TransactionEntry.__new__(TransactionEntry),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: TransactionPart("", 0, files.state),
        lambda: TransactionPart("a", -1, files.state),
        lambda: TransactionEntry("", files.state, 0, False),
        lambda: TransactionEntry(ID, files.state, -1, False),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            call()
    assert files.states() == ["Empty"]
    assert files.entry.partitions == []


def test_a_log_that_is_not_open_is_refused(files):
    log = files.part("a").log
    log.close()
    unmade = PartitionLog.__new__(PartitionLog)
    for one in (log, unmade):
        with pytest.raises(LogClosedError):
            TransactionPart("a", 0, one)
        with pytest.raises(LogClosedError):
            TransactionEntry(ID, one, 0, False)


def test_one_accumulator_is_appended_once(files):
    pair = filled(files.part("a"), b"x")
    files.initialize()
    with pytest.raises(RuntimeError, match="another thread"):
        files.entry.flush(7, 0, [pair, pair])
    assert pair[0].record_count == 1
    assert files.states() == ["Empty"]
    pair[0].clear()


def test_many_partitions_in_one_commit(files):
    parts = [files.part("t", number) for number in range(20)]
    files.initialize()
    pairs = [filled(part, b"%d" % part.partition) for part in parts]
    pairs.insert(7, (RecordAccumulator(100), parts[0]))
    assert files.entry.commit(7, 0, tuple(pairs)) == (7, 1)
    for part in parts:
        assert committed(part.log) == [b"%d" % part.partition]
    assert files.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_columns_and_offsets_are_part_of_the_transaction(files):
    a, offsets = files.part("a"), files.part("offsets")
    files.initialize()
    entry = files.entry
    first = entry.append_columns(7, 0, a, [b"x", b"y"], timestamp_ms=1)
    second = entry.append_columns(7, 0, a, [b"z"], [b"k"], None, [{"h": b"1"}], timestamp_ms=1)
    entry.flush(7, 0, [filled(a, b"w")])
    entry.append_offsets(7, 0, offsets, [b"o"], [b"k"], timestamp_ms=1)
    entry.append_offsets(7, 0, offsets, [None], [b"k"], timestamp_ms=1)
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert entry.end(7, 0, True) == (7, 1)
    assert [one[2:] for one in batches(a.log)] == [
        (0, [b"x", b"y"]),
        (2, [b"z"]),
        (3, [b"w"]),
        (-1, "COMMIT"),
    ]
    assert [one[2:] for one in batches(offsets.log)] == [
        (-1, [b"o"]),
        (-1, [None]),
        (-1, "COMMIT"),
    ]
    assert files.states() == ["Empty", "Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_a_partition_may_come_in_another_object(files):
    part = files.part("a")
    files.initialize()
    for _ in range(3):
        again = TransactionPart("".join(["a"]), 0, part.log)
        files.entry.flush(7, 0, [filled(again, b"x")])
        del again
    assert files.entry.partitions == [("a", 0)]
    files.entry.end(7, 0, True)
    assert [one[2] for one in batches(part.log)] == [0, 1, 2, -1]


def test_properties_may_be_read_while_another_thread_commits(files):
    parts = [files.part("t", number) for number in range(4)]
    files.initialize()
    seen: set[tuple[int, ...]] = set()
    done = threading.Event()

    def watch():
        while not done.is_set():
            seen.add(tuple(number for _, number in files.entry.partitions))
            assert files.entry.state in ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for epoch in range(2000):
            files.entry.commit(7, epoch, [filled(part, b"x") for part in parts])
    finally:
        done.set()
        watcher.join()
    assert seen <= {(), (0, 1, 2, 3)}
