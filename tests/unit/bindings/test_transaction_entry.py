"""The coordinator's entry: every move, every refusal, and what each writes."""

import threading

import pytest
from partition_files import all_records
from transaction_files import (
    ID,
    TIMEOUT_MS,
    TransactionFiles,
    batches,
    committed,
    filled,
    opened,
)

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.transaction_entry import (
    STATE_NAMES,
    PartitionLost,
    TransactionEntry,
    TransactionPart,
    decode_transaction_value,
)
from eoslog.errors import (
    ConcurrentTransactionsError,
    CorruptRecordError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
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
    assert entry.completion_error is None
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
        "owner": None,
        "ends": None,
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
        lambda: files.entry.append_columns(producer_id, epoch, part, opened([b"x"])),
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
        assert part.log.producer(7).coordinator_epoch == 0
    assert files.states() == ["CompleteCommit" if commit else "CompleteAbort"]
    assert (files.entry.producer_epoch, files.entry.partitions) == (4, [])


@pytest.mark.parametrize("state", STATE_NAMES[:6])
def test_the_epoch_of_the_data_is_below_that_of_the_decision(files, state):
    decided = state.startswith("Prepare")
    for version in (2, 1, 0):
        files.load(state, epoch=5, client_transaction_version=version, last_producer_epoch=-1)
        assert files.entry.data_epoch == (4 if decided and version == 2 else 5)
    files.load(state, epoch=32767, last_producer_epoch=32767)
    assert files.entry.data_epoch == 32767


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
    entry = files.make_entry()
    entry.load(prepare.value, prepare.offset)
    entry.attach([part])
    entry.complete()
    assert [one[3] for one in batches(part.log)] == [[b"x"], "COMMIT"]
    assert entry.state == "CompleteCommit"


@pytest.mark.parametrize("seen", ["data", "marker"])
def test_a_decision_taken_over_is_behind_a_partition_with_a_later_epoch(files, seen):
    """The power took the record that all was done, but not the batches of the next transaction."""
    part, other = files.part("a"), files.part("b")
    files.initialize()
    files.entry.commit(7, 0, [filled(part, b"x")])
    files.entry.flush(7, 1, [filled(part, b"y")])
    if seen == "marker":
        part.log.append_marker(7, 2, None, False, timestamp_ms=1)
    before = batches(part.log)
    files.load("PrepareCommit", epoch=1, parts=[part, other])
    assert (files.entry.data_epoch, files.entry.producer_epoch) == (0, 1)
    files.entry.complete()
    assert files.entry.state == "CompleteCommit"
    assert batches(part.log) == before
    assert batches(other.log) == [(7, 1, -1, "COMMIT")]


def test_an_abort_of_what_was_taken_over_asks_no_more_of_such_a_partition(files):
    """Without durability the power may take more of the state log than of the data."""
    part, other = files.part("a"), files.part("b")
    part.log.append_marker(7, 9, None, False, timestamp_ms=1)
    files.load("Ongoing", epoch=5, parts=[part, other])
    files.entry.fence()
    assert files.entry.completion_error is None
    assert (files.entry.state, files.entry.producer_epoch) == ("CompleteAbort", 6)
    assert batches(part.log) == [(7, 9, -1, "ABORT")]
    assert batches(other.log) == [(7, 6, -1, "ABORT")]
    # A commit would have to reach every partition.
    files.load("Ongoing", epoch=5, parts=[part, other], prepared=True)
    files.entry.end(7, 5, True)
    assert isinstance(files.entry.completion_error, InvalidProducerEpochError)
    assert files.entry.state == "PrepareCommit"


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
        lambda: files.entry.append_columns(7, 0, None, opened([b"x"])),
        lambda: TransactionPart("a", 0, None),
        lambda: TransactionEntry(ID, None, False),
        lambda: TransactionEntry(None, files.state, False),
        lambda: TransactionEntry.__new__(TransactionEntry),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (
        lambda: TransactionPart("", 0, files.state),
        lambda: TransactionPart("a", -1, files.state),
        lambda: TransactionEntry("", files.state, False),
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
            TransactionEntry(ID, one, False)


def test_one_accumulator_is_appended_once(files):
    pair = filled(files.part("a"), b"x")
    files.initialize()
    with pytest.raises(RuntimeError, match="two threads use one accumulator"):
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
    first = entry.append_columns(7, 0, a, opened([b"x", b"y"]))
    second = entry.append_columns(7, 0, a, opened([b"z"], [b"k"], None, [{"h": b"1"}]))
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
        (0, [b"o"]),
        (0, [None]),
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


def test_threads_with_ids_of_their_own_share_logs(files):
    part, transactions = files.part("a"), 300
    failures: list[BaseException] = []

    def write(number):
        try:
            entry = TransactionEntry(f"id-{number}", files.state, False)
            entry.initialize(
                producer_id=number, producer_epoch=0, last_producer_epoch=-1,
                previous_producer_id=-1, timeout_ms=1, now_ms=1,
            )  # fmt: skip
            for epoch in range(transactions):
                entry.flush(number, epoch, [filled(part, b"%d %d" % (number, epoch))])
                assert entry.end(number, epoch, epoch % 3 != 0) == (number, epoch + 1)
                assert entry.completion_error is None
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = committed(part.log)
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d " % number)]
        assert mine == [b"%d %d" % (number, one) for one in range(transactions) if one % 3]
    assert part.log.open_transactions() == []


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
    # Without the entry's lock a list may be met while it is made or ended, but nothing else.
    assert all(one == tuple(sorted(set(one))) and set(one) <= {0, 1, 2, 3} for one in seen)


# Among processes.

OWNER, OTHER = bytes(range(16)), bytes(range(16, 32))


def test_the_owner_stays_until_somebody_else_ends_the_transaction(files):
    files.initialize(owner=OWNER)
    assert files.entry.owner == OWNER
    files.entry.add_partitions(7, 0, [files.part("a")])
    files.entry.end(7, 0, True)
    assert [record["owner"] for record in files.records()] == [OWNER] * 4
    files.entry.add_partitions(7, 1, [files.part("a")])
    files.entry.fence()
    assert files.entry.owner is None
    assert [record["owner"] for record in files.records()[4:]] == [OWNER, None, None]
    files.initialize(epoch=3)
    assert files.entry.owner is None
    with pytest.raises(ValueError, match="owner must have 16 bytes, got 1"):
        files.initialize(epoch=4, owner=b"x")


def test_a_prepared_transaction_is_handed_over_with_its_numbers(files):
    files.initialize(owner=OWNER)
    files.entry.flush(7, 0, [filled(files.part("a"), b"one")])
    files.entry.prepare(7, 0)
    files.entry.hand_over(OTHER)
    assert (files.entry.owner, files.entry.prepared, files.entry.state) == (OTHER, True, "Ongoing")
    last, before = files.records()[-1], files.records()[-2]
    assert last | {"owner": OWNER} == before
    assert files.entry.end(7, 0, True) == (7, 1)
    assert committed(files.part("a").log) == [b"one"]


def test_a_copy_of_what_is_known_leaves_the_open_transaction_as_it_is(files):
    files.initialize()
    files.entry.flush(7, 0, [filled(files.part("a"), b"one")])
    files.entry.load(files.entry.value(), 99)
    assert (files.entry.record_offset, files.entry.prepare_offset) == (99, -1)
    # With the next sequence, to a partition that is still attached.
    files.entry.flush(7, 0, [filled(files.part("a"), b"two")])
    assert files.entry.end(7, 0, True) == (7, 1)
    assert committed(files.part("a").log) == [b"one", b"two"]


def test_an_id_that_another_process_forgot_is_dead(files):
    files.initialize()
    files.entry.add_partitions(7, 0, [files.part("a")])
    files.entry.bury()
    assert (files.entry.state, files.entry.partitions, files.entry.value()) == ("Dead", [], b"")
    for call in (
        lambda: files.entry.add_partitions(7, 0, [files.part("a")]),
        lambda: files.entry.end(7, 0, True),
    ):
        with pytest.raises(InvalidProducerIdMappingError):
            call()


def test_what_is_known_now_is_read_in_one_piece(files):
    files.initialize()
    value = files.entry.value()
    assert files.entry.read() == ("Empty", True, value, 0, -1)
    files.entry.mark_persisted()
    with files.entry.lock:
        assert files.entry.read() == ("Empty", False, value, 0, -1)
