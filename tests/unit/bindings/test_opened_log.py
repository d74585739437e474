"""What the engine asks for in the middle of a call: a producer's row, or to be reattached."""

import os
import threading

import pytest
from crash.shared_log import SharedLog

from eoslog.bindings.partition_log import PRODUCER_ROW_BYTES, empty_row, row_state
from eoslog.bindings.record_batch import iter_batches
from eoslog.errors import FellBehindError, StoreError, StoreFailedError


@pytest.fixture
def shared(tmp_path):
    return SharedLog(tmp_path / "shared")


class Rows:
    """Rows of a log's evicted producers, and its callbacks."""

    def __init__(self, log):
        self.log = log
        self.by_id = {}
        self.loaded = []
        self.reattached = 0
        log.set_callbacks(self.load, self.reattach)

    def evict_all(self):
        rows, end = self.log.dirty_producers()
        for at in range(0, len(rows), PRODUCER_ROW_BYTES):
            row = rows[at : at + PRODUCER_ROW_BYTES]
            self.by_id[row_state(row).producer_id] = row
        self.log.producers_persisted(end)
        self.log.evict_producers(0)

    def load(self, producer_id):
        self.loaded.append(producer_id)
        row = self.by_id.get(producer_id)
        if row is None:
            self.log.install_producer(empty_row(producer_id), was_evicted=False)
        else:
            self.log.install_producer(row)

    def reattach(self):
        self.reattached += 1
        self.log.reattach()
        self.log.restore_producers(None, 0)


def append(log, producer_id, sequence, count=1, **named):
    return log.append_columns(
        [b"v"] * count,
        timestamp_ms=1,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        **named,
    )


def last_sequence(log, producer_id):
    return log.producer(producer_id).last_sequence


def fall_behind(ahead):
    """Delete segments that another log of the same files has not read."""
    for _ in range(3):
        ahead.roll()
        ahead.append_columns([b"v"], timestamp_ms=1)
    ahead.take_snapshot(True)
    ahead.delete_segments(ahead.log_end_offset)


def test_an_append_waits_for_the_row_of_its_producer(shared):
    log = shared.open()
    rows = Rows(log)
    for producer_id in (1, 2):
        append(log, producer_id, 0)
    rows.evict_all()
    assert append(log, 1, 0).duplicate
    assert append(log, 3, 0).base_offset == 2
    assert append(log, 2, 1).base_offset == 3
    assert rows.loaded == [1, 3, 2]


def test_a_raw_batch_waits_for_the_row_of_its_producer(shared):
    log = shared.open()
    append(log, 7, 0)
    batch = bytearray(log.read(0))
    rows = Rows(log)
    rows.evict_all()
    assert log.append_batch(batch).duplicate
    assert rows.loaded == [7]
    assert [one.producer_id for one in iter_batches(log.read(0))] == [7]


def test_an_append_of_many_batches_goes_on_after_what_is_in(shared):
    """Whatever is evicted between two of its batches, each record is in once."""
    log = shared.open()
    rows = Rows(log)
    append(log, 1, 0)
    stop = threading.Event()

    def evict():
        while not stop.is_set():
            rows.evict_all()

    thread = threading.Thread(target=evict)
    thread.start()
    sequence, rounds = 1, 0
    try:
        while len(rows.loaded) < 20 and rounds < 200:
            result = append(log, 1, sequence, 500, batch_records_max=1)
            assert (result.record_count, result.duplicate) == (500, False)
            assert result.last_offset - result.base_offset == 499
            sequence += 500
            rounds += 1
    finally:
        stop.set()
        thread.join()
    assert rows.loaded
    assert log.log_end_offset == sequence
    rows.load(1)
    assert last_sequence(log, 1) == sequence - 1


def test_the_error_of_a_callback_is_that_of_the_call(shared):
    log = shared.open()
    append(log, 1, 0)
    Rows(log).evict_all()

    def fail(producer_id):
        raise StoreFailedError(f"no row of {producer_id}")

    log.set_callbacks(fail, fail)
    with pytest.raises(StoreFailedError, match="no row of 1") as failed:
        append(log, 1, 1)
    assert failed.value.appended_record_count == 0
    assert log.log_end_offset == 1


def test_without_callbacks_the_question_is_an_error(shared):
    log, lagging = shared.open(), shared.open()
    append(log, 1, 0)
    rows = Rows(log)
    rows.evict_all()
    log.set_callbacks(None, None)
    with pytest.raises(StoreError, match="the producer is not in memory"):
        append(log, 1, 1)
    fall_behind(log)
    with pytest.raises(FellBehindError):
        lagging.refresh()


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.log_end_offset,
        lambda log: log.last_stable_offset,
        lambda log: log.refresh(),
        lambda log: setattr(log, "own_end", 0),
        lambda log: log.flush(),
        lambda log: log.roll(),
        lambda log: log.sync_up_to(log.log_start_offset + 1),
        lambda log: log.delete_segments(0),
        lambda log: log.store_abort_files(True),
        lambda log: log.producers(),
        lambda log: log.open_transactions(),
        lambda log: log.segments(),
        lambda log: log.append_columns([b"v"], timestamp_ms=1),
        lambda log: log.append_marker(5, 0, None, True, timestamp_ms=1),
        lambda log: log.read(log.log_start_offset),
        lambda log: log.fetch_next(log.log_start_offset, 1, 1000, False),
        lambda log: log.verify(),
    ],
)
def test_a_log_that_fell_behind_is_reattached_and_the_call_goes_on(shared, call):
    log, lagging = shared.open(), shared.open()
    append(log, 1, 0)
    rows = Rows(lagging)
    assert not lagging.fell_behind
    fall_behind(log)
    call(lagging)
    lagging.refresh()
    assert rows.reattached == 1
    assert not lagging.fell_behind
    assert lagging.log_end_offset == log.log_end_offset
    assert lagging.first_base_offset == log.first_base_offset > 0
    assert last_sequence(lagging, 1) == 0


def test_a_reattaching_that_failed_is_done_again(shared):
    log, lagging = shared.open(), shared.open()
    fall_behind(log)
    assert lagging.fell_behind
    lagging.reattach()
    assert lagging.fell_behind  # Its producers are not known yet.
    rows = Rows(lagging)
    assert append(lagging, 1, 0).base_offset == log.log_end_offset - 1
    assert rows.reattached == 1


def test_a_reader_never_meets_a_log_without_segments(shared, monkeypatch):
    """Offsets that are in the log stay so while another thread reattaches it."""
    log, lagging = shared.open(), shared.open()
    fall_behind(log)
    Rows(lagging).reattach()
    found = []
    listdir = os.listdir

    def read():
        found.append(lagging.fetch_records(lagging.log_start_offset))

    def read_in_between(path):
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(10)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", read_in_between)
    lagging.reattach()
    ((records, next_offset),) = found
    assert [record.offset for record in records] == [next_offset - 1]
    assert next_offset == log.log_end_offset
