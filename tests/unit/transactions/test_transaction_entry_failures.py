"""The coordinator's entry when something fails: nothing is half done, and the call may be repeated.

Files are kept from growing exactly before one of the records that a commit writes.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from crash.shared_log import SharedLog
from partition_files import all_records
from transaction_files import (
    TransactionFiles,
    batches,
    committed,
    fill_up,
    filled,
    full_disk,
    have_room,
    whole_batches,
)

from eoslog.bindings.commit_journal import HALVES, JOURNAL_ID_BYTES, CommitJournal
from eoslog.bindings.partition_log import PartitionLog, empty_row
from eoslog.bindings.transaction_entry import (
    PartitionLost,
    TransactionEntry,
    TransactionPart,
    decode_transaction_value,
)
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.errors import (
    FellBehindError,
    InvalidProducerEpochError,
    LogClosedError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    StoreError,
    StoreFullError,
)

# More than a record's size and the room an append asks for differ by.
MARGIN_BYTES = 50
# A file that may not grow any more is as a disk without space.
FULL = StoreFullError
RECORDS = ("Ongoing", "PrepareCommit", "CompleteCommit")


@pytest.fixture
def files(tmp_path):
    made = TransactionFiles(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def record_bytes(tmp_path_factory):
    """Bytes of the three records that a commit on two partitions writes, and of its data batch."""
    made = TransactionFiles(tmp_path_factory.mktemp("sizes"))
    made.initialize()
    a, b = made.part("a"), made.part("b")
    made.entry.flush(7, 0, [filled(a, b"x"), filled(b, b"x")])
    data_bytes = a.log.size_bytes
    made.entry.end(7, 0, True)
    found = [header.batch_bytes for header, _ in whole_batches(made.state)]
    made.close()
    return found[1:], data_bytes


def snapshot(files: TransactionFiles) -> tuple[object, ...]:
    entry = files.entry
    return (
        entry.state,
        entry.producer_epoch,
        entry.last_producer_epoch,
        entry.partitions,
        entry.start_ms,
        entry.last_update_ms,
        entry.record_offset,
        entry.prepare_offset,
        entry.value(),
    )


@pytest.mark.parametrize("step", range(3), ids=RECORDS)
def test_a_full_disk_before_each_record_of_a_commit(files, record_bytes, step):
    sizes, _ = record_bytes
    a, b = files.part("a"), files.part("b")
    for part in (a, b):
        have_room(part.log)
    files.initialize()
    before = snapshot(files)
    fill_up(files.state, sum(sizes[:step]) + MARGIN_BYTES)
    pairs = [filled(a, b"x"), filled(b, b"x")]
    with full_disk():
        if step < 2:
            for _ in range(2):
                with pytest.raises(FULL):
                    files.entry.commit(7, 0, pairs)
        else:
            assert files.entry.commit(7, 0, pairs) == (7, 1)
            assert isinstance(files.entry.completion_error, FULL)
            with pytest.raises(FULL):
                files.entry.complete()
    assert files.states() == ["Empty", *RECORDS[:step]]
    if step == 0:
        assert snapshot(files) == before
        assert [accumulator.record_count for accumulator, _ in pairs] == [1, 1]
        assert batches(a.log) == []
    else:
        assert files.entry.state == RECORDS[step - 1]
        assert files.entry.value() == all_records(files.state)[-1].value
    if step == 1:
        assert [accumulator.record_count for accumulator, _ in pairs] == [0, 0]
        assert committed(a.log) == []
    if step == 2:
        assert committed(a.log) == committed(b.log) == [b"x"]
        files.entry.complete()
    else:
        assert files.entry.commit(7, 0, pairs) == (7, 1)
    assert files.entry.completion_error is None
    assert files.states() == ["Empty", *RECORDS]
    for part in (a, b):
        assert batches(part.log) == [(7, 0, 0, [b"x"]), (7, 1, -1, "COMMIT")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_full_disk_at_one_partition_holds_up_its_own_marker_only(files, record_bytes, commit):
    _, data_bytes = record_bytes
    a, b = files.part("a"), files.part("b")
    files.initialize()
    fill_up(a.log, data_bytes + MARGIN_BYTES)
    files.entry.flush(7, 0, [filled(a, b"x"), filled(b, b"x")])
    with full_disk():
        assert files.entry.end(7, 0, commit) == (7, 1)
        assert isinstance(files.entry.completion_error, FULL)
        assert "a-0" in str(files.entry.completion_error)
        with pytest.raises(FULL):
            files.entry.complete()
    assert files.entry.state == ("PrepareCommit" if commit else "PrepareAbort")
    assert files.entry.prepare_offset == files.entry.record_offset == 2
    assert len(a.log.open_transactions()) == 1
    files.entry.complete()
    assert files.entry.completion_error is None
    marker = (7, 1, -1, "COMMIT" if commit else "ABORT")
    assert batches(a.log)[-1] == batches(b.log)[-1] == marker
    assert len(batches(b.log)) == 2
    assert files.entry.prepare_offset == -1


def test_a_full_disk_at_one_partition_keeps_its_records_and_those_behind(files):
    a, b, c = files.part("a"), files.part("b"), files.part("c")
    files.initialize()
    fill_up(b.log, MARGIN_BYTES)
    for part in (a, c):
        have_room(part.log)
    files.entry.add_partitions(7, 0, [a, b, c])
    pairs = [filled(a, b"x"), filled(b, b"y"), filled(c, b"z")]
    with full_disk(), pytest.raises(FULL, match="b-0"):
        files.entry.flush(7, 0, pairs)
    assert [accumulator.record_count for accumulator, _ in pairs] == [0, 1, 1]
    assert files.entry.partitions == [("a", 0), ("b", 0), ("c", 0)]
    assert files.entry.end(7, 0, False) == (7, 1)
    for accumulator, _ in pairs:
        accumulator.add(b"again")
    for log in (a.log, c.log):
        assert committed(log) == []


def test_a_record_that_is_too_large_leaves_the_transaction_as_it_was(tmp_path):
    """A list of partitions longer than max.message.bytes."""
    files = TransactionFiles(tmp_path, state_config={"max.message.bytes": 400})
    files.initialize()
    files.entry.add_partitions(7, 0, [files.part("a")])
    before = snapshot(files)
    many = [files.part("t" * 100, number) for number in range(3)]
    others = [files.part(f"{letter}" * 100) for letter in "bcde"]
    for _ in range(2):
        with pytest.raises(RecordTooLargeError):
            files.entry.add_partitions(7, 0, [*many, *others])
        with pytest.raises(RecordTooLargeError):
            files.entry.flush(7, 0, [filled(part, b"x") for part in others])
    assert snapshot(files) == before
    files.entry.add_partitions(7, 0, many)
    assert len(files.entry.partitions) == 4
    files.close()


def test_a_batch_out_of_order_is_refused_and_the_transaction_can_be_aborted(files):
    part = files.part("a")
    files.initialize()
    files.entry.flush(7, 0, [filled(part, b"x")])
    part.log.append_columns(
        [b"?"], timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=1, transactional=True
    )
    pair = filled(part, b"y", b"z")
    with pytest.raises(OutOfOrderSequenceError):
        files.entry.commit(7, 0, [pair])
    assert (pair[0].record_count, files.entry.state) == (2, "Ongoing")
    assert files.entry.end(7, 0, False) == (7, 1)
    assert files.entry.commit(7, 1, [pair]) == (7, 2)
    assert committed(part.log) == [b"y", b"z"]


# Who else writes to a partition.


def test_a_partition_that_saw_a_newer_epoch_fences(files):
    part = files.part("a")
    files.initialize()
    files.entry.flush(7, 0, [filled(part, b"x")])
    part.log.append_marker(7, 5, None, False, timestamp_ms=1)
    with pytest.raises(InvalidProducerEpochError):
        files.entry.flush(7, 0, [filled(part, b"y")])
    assert files.entry.end(7, 0, False) == (7, 1)
    assert isinstance(files.entry.completion_error, InvalidProducerEpochError)
    assert files.entry.state == "PrepareAbort"


def test_k07_no_other_coordinators_epoch_stops_this_one(files):
    part = files.part("a")
    part.log.append_marker(7, 0, 2**31 - 1, False, timestamp_ms=1)
    files.initialize()
    files.entry.commit(7, 0, [filled(part, b"x")])
    assert files.entry.completion_error is None
    assert part.log.producer(7).coordinator_epoch == 2**31 - 1
    assert committed(part.log) == [b"x"]


# Producers that are on the disk only.


class Evicted:
    """The producers of a partition, on the disk only: what its log asks for, and its answer."""

    def __init__(self, part):
        """Have the partition know nobody, and not know whether it ever knew a producer."""
        self.log = part.log
        self.asked = []
        self.error = None
        self.log.set_callbacks(self.load, None)
        self.log.install_producer(empty_row(99), was_evicted=False)
        self.log.evict_producers(0)
        assert self.log.evicted_producer_count > 0

    def load(self, producer_id):
        self.asked.append(producer_id)
        if self.error is not None:
            raise self.error
        self.log.install_producer(empty_row(producer_id), was_evicted=False)


@pytest.mark.parametrize("call", ["flush", "commit"])
def test_a_producer_is_asked_for_and_the_call_goes_on(files, call):
    parts = [files.part(topic) for topic in "abc"]
    evicted = [Evicted(part) for part in parts[1:]]
    files.initialize()
    pairs = [filled(part, part.topic.encode()) for part in parts]
    if call == "flush":
        files.entry.flush(7, 0, pairs)
        assert files.entry.end(7, 0, True) == (7, 1)
    else:
        assert files.entry.commit(7, 0, pairs) == (7, 1)
    assert [one.asked for one in evicted] == [[7], [7]]
    assert files.states() == ["Empty", *RECORDS]
    assert files.entry.completion_error is None
    for part in parts:
        data = (7, 0, 0, [part.topic.encode()])
        assert batches(part.log) == [data, (7, 1, -1, "COMMIT")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_producer_is_asked_for_by_its_marker(files, commit):
    part = files.part("a")
    evicted = Evicted(part)
    files.initialize()
    files.entry.add_partitions(7, 0, [part])
    assert files.entry.end(7, 0, commit) == (7, 1)
    assert files.entry.completion_error is None
    assert evicted.asked == [7]
    assert batches(part.log) == [(7, 1, -1, "COMMIT" if commit else "ABORT")]


def test_a_row_that_cannot_be_loaded_fails_the_append(files):
    part, other = files.part("b"), files.part("a")
    evicted = Evicted(part)
    evicted.error = StoreError("no row")
    files.initialize()
    pairs = [filled(other, b"o"), filled(part, b"x")]
    with pytest.raises(StoreError, match="no row"):
        files.entry.commit(7, 0, pairs)
    assert [accumulator.record_count for accumulator, _ in pairs] == [0, 1]
    assert files.entry.state == "Ongoing"
    evicted.error = None
    assert files.entry.commit(7, 0, pairs) == (7, 1)
    assert (committed(other.log), committed(part.log)) == ([b"o"], [b"x"])


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("error", [StoreError("no row"), LogClosedError("it was deleted")])
def test_a_row_that_cannot_be_loaded_leaves_the_decision_to_be_completed(files, commit, error):
    part = files.part("a")
    evicted = Evicted(part)
    evicted.error = error
    files.initialize()
    files.entry.add_partitions(7, 0, [part])
    assert files.entry.end(7, 0, commit) == (7, 1)
    expected = PartitionLost if isinstance(error, LogClosedError) else StoreError
    assert type(files.entry.completion_error) is expected
    assert files.entry.state == ("PrepareCommit" if commit else "PrepareAbort")
    with pytest.raises(expected):
        files.entry.complete()
    evicted.error = None
    files.entry.complete()
    assert files.entry.completion_error is None
    assert batches(part.log) == [(7, 1, -1, "COMMIT" if commit else "ABORT")]


def test_an_interrupt_of_the_row_leaves_the_decision_to_be_completed(files):
    part = files.part("a")
    evicted = Evicted(part)
    evicted.error = KeyboardInterrupt()
    files.initialize()
    files.entry.add_partitions(7, 0, [part])
    with pytest.raises(KeyboardInterrupt):
        files.entry.end(7, 0, True)
    assert files.entry.state == "PrepareCommit"
    evicted.error = None
    files.entry.complete()
    assert batches(part.log) == [(7, 1, -1, "COMMIT")]


def test_without_callbacks_what_a_log_asks_for_is_an_error(files):
    part = files.part("a")
    Evicted(part)
    part.log.set_callbacks(None, None)
    files.initialize()
    with pytest.raises(StoreError, match="the producer is not in memory"):
        files.entry.flush(7, 0, [filled(part, b"x")])


# Logs of which other processes deleted what was not read here.


class LaggingLog:
    """A log that is reattached when it has to be, and another process's view of it."""

    def __init__(self, root, journal=None):
        files = SharedLog(root)
        self.log, self.ahead = files.open(journal=journal), files.open()
        self.reattached = 0
        self.log.set_callbacks(None, self.reattach)

    def reattach(self):
        self.reattached += 1
        while True:
            self.log.reattach()
            # What goes on meanwhile may delete what is restored from.
            with suppress(FellBehindError, FileNotFoundError):
                self.log.restore_producers(None, 0)
                return

    def fall_behind(self):
        self.ahead.roll()
        self.ahead.append_columns([b"v"], timestamp_ms=1)
        self.ahead.roll()
        self.ahead.take_snapshot(True)
        self.ahead.delete_segments(self.ahead.log_end_offset)


@pytest.fixture
def lagging(tmp_path):
    """A state log and a partition's log."""
    return LaggingLog(tmp_path / "state"), LaggingLog(tmp_path / "data")


def lagging_entry(lagging, durable):
    entry = TransactionEntry("my-transaction", lagging[0].log, durable)
    numbers = {"last_producer_epoch": -1, "previous_producer_id": -1, "now_ms": 1}
    entry.initialize(producer_id=7, producer_epoch=0, timeout_ms=60_000, **numbers)
    return entry, TransactionPart("t", 0, lagging[1].log)


@pytest.mark.parametrize("durable", [False, True])
def test_each_call_goes_on_with_logs_that_fell_behind(lagging, durable):
    entry, part = lagging_entry(lagging, durable)

    def behind():
        for one in lagging:
            one.fall_behind()
        return [one.reattached for one in lagging]

    def reattached(before, *places):
        after = [one.reattached for one in lagging]
        assert [two > one for one, two in zip(before, after, strict=True)] == list(places)

    before = behind()
    entry.add_partitions(7, 0, [part])
    reattached(before, True, False)
    entry.flush(7, 0, [filled(part, b"x")])
    reattached(before, True, True)
    before = behind()
    entry.prepare(7, 0)
    reattached(before, True, True)
    before = behind()
    assert entry.end(7, 0, True) == (7, 1)
    assert entry.completion_error is None
    reattached(before, True, True)
    before = behind()
    assert entry.commit(7, 1, [filled(part, b"y")]) == (7, 2)
    assert entry.completion_error is None
    reattached(before, True, True)
    entry.add_partitions(7, 2, [part])
    before = behind()
    entry.fence()
    assert (entry.state, entry.producer_epoch) == ("CompleteAbort", 3)
    reattached(before, True, True)
    before = behind()
    entry.expire()
    assert entry.state == "Dead"
    reattached(before, True, False)


def started_journal(path):
    half_bytes = 1 << 20
    journal, journal_id = CommitJournal(), bytes(range(JOURNAL_ID_BYTES))
    file = UnforkedFile(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.posix_fallocate(file.fileno(), 0, HALVES * half_bytes)
    CommitJournal.write_headers(file, False, journal_id, half_bytes)
    journal.take_file(file, False, journal_id, half_bytes)
    journal.start()
    return journal


def test_a_decision_goes_to_the_disk_with_a_log_that_fell_behind(tmp_path):
    """With a journal it is in the state log before the data that it names is on the disk."""
    journal = started_journal(tmp_path / "journal")
    lagging = LaggingLog(tmp_path / "state", journal), LaggingLog(tmp_path / "data", journal)
    entry, part = lagging_entry(lagging, durable=True)
    entry.flush(7, 0, [filled(part, b"x")])
    data_end = part.log.log_end_offset
    lagging[1].fall_behind()
    assert entry.end(7, 0, True) == (7, 1)
    assert entry.completion_error is None
    assert lagging[1].reattached == 1
    assert part.log.durable_offset >= data_end
    values = [decode_transaction_value(one.value) for one in all_records(lagging[0].log)]
    assert [one["state"] for one in values] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]
    assert values[2]["ends"] is not None
    journal.stop()


# Closed logs.


def test_a_closed_state_log_takes_nothing(files):
    part = files.part("a")
    files.initialize()
    before = snapshot(files)
    files.state.close()
    with pytest.raises(LogClosedError):
        files.entry.flush(7, 0, [filled(part, b"x")])
    assert snapshot(files) == before
    assert batches(part.log) == []


def test_a_closed_partition_takes_no_batch(files):
    part = files.part("a")
    files.initialize()
    part.log.close()
    pair = filled(part, b"x")
    with pytest.raises(LogClosedError):
        files.entry.flush(7, 0, [pair])
    assert pair[0].record_count == 1
    assert files.entry.state == "Ongoing"


def test_a_partition_lost_after_the_data_is_told_once_decided(files):
    a, b = files.part("a"), files.part("b")
    files.initialize()
    files.entry.flush(7, 0, [filled(a, b"x"), filled(b, b"y")])
    a.log.close()
    assert files.entry.end(7, 0, True) == (7, 1)
    assert isinstance(files.entry.completion_error, PartitionLost)
    files.entry.drop_partition("a", 0)
    files.entry.complete()
    assert files.entry.completion_error is None
    assert committed(b.log) == [b"y"]


# Durable decisions.


@pytest.fixture
def durable(tmp_path):
    made = TransactionFiles(tmp_path, durable=True)
    yield made
    made.close()


def test_a_durable_commit_syncs_the_data_and_the_decision(durable):
    a, b = durable.part("a"), durable.part("b")
    durable.initialize()
    assert durable.state.recovery_point == 1
    durable.entry.flush(7, 0, [filled(a, b"x")])
    assert durable.state.recovery_point == 1
    assert durable.entry.commit(7, 0, [filled(b, b"y")]) == (7, 1)
    # The markers and the last record may be lost: they follow from the decision.
    assert (a.log.recovery_point, b.log.recovery_point) == (1, 1)
    assert durable.states() == ["Empty", "Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert durable.state.recovery_point == 4


def test_a_durable_abort_syncs_its_decision_and_no_data(durable):
    part = durable.part("a")
    durable.initialize()
    durable.entry.flush(7, 0, [filled(part, b"x")])
    durable.entry.end(7, 0, False)
    assert part.log.recovery_point == 0
    assert durable.state.recovery_point == 3
    durable.entry.end(7, 1, False)
    assert durable.state.recovery_point == 5


def test_without_durability_nothing_is_synced(files):
    part = files.part("a")
    files.initialize()
    files.entry.commit(7, 0, [filled(part, b"x")])
    files.entry.end(7, 1, False)
    assert (part.log.recovery_point, files.state.recovery_point) == (0, 0)


def test_a_decision_taken_over_is_synced_before_its_markers(durable):
    part = durable.part("a")
    durable.load("PrepareCommit", epoch=4, parts=[part])
    value = durable.entry.value()
    key = b"\0\0\0\x0emy-transaction"
    durable.state.append_columns([value], [key], timestamp_ms=1)
    assert durable.state.recovery_point == 0
    durable.entry.complete()
    assert durable.state.recovery_point == 1


def test_a_durable_commit_with_a_lost_partition_is_not_decided(durable):
    a, b = durable.part("a"), durable.part("b")
    durable.initialize()
    durable.entry.flush(7, 0, [filled(a, b"x"), filled(b, b"y")])
    a.log.close(clean=False)
    for _ in range(2):
        with pytest.raises(PartitionLost) as lost:
            durable.entry.end(7, 0, True)
    assert (lost.value.topic, lost.value.partition) == ("a", 0)
    assert durable.entry.state == "Ongoing"
    durable.entry.drop_partition("a", 0)
    assert durable.entry.end(7, 0, True) == (7, 1)
    assert committed(b.log) == [b"y"]


def delete_as_another_process(log: PartitionLog, after_s: float) -> None:
    time.sleep(after_s)
    log.mark_deleted()
    for file in Path(log.path).glob("*.log"):
        file.unlink(missing_ok=True)


def test_files_that_go_in_the_middle_of_an_append_go_with_their_topic(tmp_path):
    """Nothing says that the store has failed, wherever in appends that make files it comes in."""
    files = TransactionFiles(tmp_path, data_config={"segment.bytes": 1024})
    files.initialize()
    told = set()
    for number in range(150):
        part = files.part(f"t{number}")
        batch = filled(part, bytes(900))
        delay = number % 30 * 20e-6
        deleting = threading.Thread(target=delete_as_another_process, args=(part.log, delay))
        deleting.start()
        try:
            while True:
                files.entry.flush(7, 0, [batch])
                batch = filled(part, bytes(900))
        except StoreError as error:
            told.add((type(error), str(error).partition(": ")[2]))
        deleting.join()
        files.entry.drop_partition(part.topic, 0)
        part.log.close(clean=False)
    assert told == {(LogClosedError, "the topic was deleted")}
    assert files.entry.end(7, 0, True) == (7, 1)
    files.close()
