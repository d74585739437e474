"""`verify` compares the abort index with the log: nothing missing, nothing else, nothing wrong.

An entry that its .txnindex file does not hold yet is no problem: the engine has it in memory.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest
from partition_files import PartitionFiles

from eoslog.store.store import engine_of

ENTRY = struct.Struct(">hqqqq")
BASE_MS = 1_790_000_000_000
FIELDS = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")


@pytest.fixture
def files(make_partition) -> PartitionFiles:
    """Two producers' interleaved transactions over several segments; nothing is stored yet."""
    files = make_partition(segment_bytes=1000)
    log = files.open()
    for number in range(12):
        for producer_id in (7, 8):
            send(log, producer_id, epoch=number)
        end(log, 7, epoch=number + 1, commit=number % 3 == 0)
        end(log, 8, epoch=number + 1, commit=number % 2 == 0)
    assert log.segment_count > 3
    return files


def send(log, producer_id: int, *, epoch: int, values: tuple[bytes, ...] = (b"one", b"two")):
    log.append_columns(
        list(values),
        timestamp_ms=BASE_MS,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )


def end(log, producer_id: int, *, epoch: int, commit: bool) -> int:
    marker = log.append_marker(producer_id, epoch, 0, commit, timestamp_ms=BASE_MS)
    return int(marker.base_offset)


def stored(files: PartitionFiles) -> list[Path]:
    """The files, written now; those with entries."""
    files.log.store_abort_files()
    return sorted(files.directory.glob("*.txnindex"))


def only_problem(files: PartitionFiles) -> dict[str, object]:
    (problem,) = files.log.verify()
    assert set(problem) == {"path", "position_bytes", "reason"}
    return problem


def test_a_sound_log_has_no_problem_stored_or_not(files):
    assert files.log.verify() == []
    assert len(stored(files)) > 2
    assert files.log.verify() == []


@pytest.mark.parametrize("clean", [True, False])
def test_nor_has_it_after_reopening(files, clean):
    stored(files)
    files.reopen(clean=clean)
    assert files.log.verify() == []


def test_a_transaction_that_is_still_open_has_no_entry(files):
    stored(files)
    send(files.log, 7, epoch=12)
    assert files.log.verify() == []


def test_an_empty_transaction_has_no_entry(files):
    end(files.log, 7, epoch=20, commit=False)
    stored(files)
    assert files.log.verify() == []


def test_an_overlapped_transaction_leaves_the_last_stable_offset_at_the_older_one(make_partition):
    files = make_partition()
    log = files.open()
    send(log, 1, epoch=0)
    send(log, 2, epoch=0)
    end(log, 2, epoch=1, commit=False)
    (path,) = stored(files)
    assert ENTRY.unpack(path.read_bytes()) == (0, 2, 2, 4, 0)
    assert log.verify() == []
    path.write_bytes(ENTRY.pack(0, 2, 2, 4, 5))
    assert only_problem(files)["reason"] == "the last stable offset was 0, not 5"


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_field_is_named_with_its_place(files, field):
    path = stored(files)[1]
    data = path.read_bytes()
    assert len(data) > ENTRY.size
    numbers = list(ENTRY.unpack_from(data, ENTRY.size))
    numbers[FIELDS.index(field)] += 1
    path.write_bytes(data[: ENTRY.size] + ENTRY.pack(*numbers) + data[2 * ENTRY.size :])
    problem = only_problem(files)
    assert (problem["path"], problem["position_bytes"]) == (str(path), ENTRY.size)
    assert str(numbers[FIELDS.index(field)]) in str(problem["reason"])


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_file_is_named(files, which):
    path = stored(files)[which]
    entry_count = path.stat().st_size // ENTRY.size
    path.unlink()
    problem = only_problem(files)
    assert (problem["path"], problem["position_bytes"]) == (str(path), 0)
    assert problem["reason"] == f"the file holds 0 of its {entry_count} entries"


@pytest.mark.parametrize("cut_bytes", range(2 * ENTRY.size))
def test_a_file_of_any_shorter_length_is_named(files, cut_bytes):
    path = stored(files)[1]
    data = path.read_bytes()
    assert len(data) >= 2 * ENTRY.size
    path.write_bytes(data[:cut_bytes])
    problem = only_problem(files)
    assert problem["path"] == str(path)
    assert problem["position_bytes"] == cut_bytes - cut_bytes % ENTRY.size


def test_entries_in_another_order_are_named(files):
    path = stored(files)[1]
    data = path.read_bytes()
    path.write_bytes(data[ENTRY.size :] + data[: ENTRY.size])
    assert only_problem(files)["position_bytes"] == 0


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ((0, 7, 0, 4, 5), "7"),  # A transaction that was committed.
        ((0, 9, 0, 2, 3), "9"),  # A producer that there is not.
        ((0, 7, 10, 1 << 40, 11), str(1 << 40)),  # Beyond the log.
    ],
)
def test_an_entry_that_the_log_does_not_confirm_is_named(files, entry, word):
    paths = stored(files)
    path = paths[-1]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + ENTRY.pack(*entry))
    problem = only_problem(files)
    assert (problem["path"], problem["position_bytes"]) == (str(path), size)
    assert word in str(problem["reason"])


def test_a_file_of_a_segment_without_aborts_is_named(make_partition):
    files = make_partition()
    log = files.open()
    send(log, 1, epoch=0)
    marker = end(log, 1, epoch=1, commit=True)
    path = files.write(0, ENTRY.pack(0, 1, 0, marker, marker + 1), ".txnindex")
    problem = only_problem(files)
    assert problem == {
        "path": str(path),
        "position_bytes": 0,
        "reason": f"no transaction of producer 1 was aborted at offset {marker}",
    }


def test_bytes_behind_the_last_entry_are_named(files):
    path = stored(files)[0]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\x00\x00\x00")
    assert only_problem(files)["position_bytes"] == size


def test_one_problem_a_file(files):
    paths = stored(files)
    for path in paths:
        path.write_bytes(bytes(path.stat().st_size))
    assert [problem["path"] for problem in files.log.verify()] == [str(path) for path in paths]


def test_after_a_damaged_batch_nobody_says_what_was_aborted(files):
    paths = stored(files)
    first = files.path(0)
    data = bytearray(first.read_bytes())
    data[80] ^= 1
    first.write_bytes(data)
    for path in paths:
        path.unlink()
    assert only_problem(files)["path"] == str(first)


def test_an_index_that_is_not_whole_in_memory_is_named_stored_or_not(make_partition):
    """Readers of committed data would be given what was aborted."""
    files = make_partition()
    log = files.open()
    send(log, 7, epoch=0)
    marker = end(log, 7, epoch=1, commit=False)
    rows, offset = log.dirty_producers()
    # As if the rows had been written without what was known of the files.
    log.restore_producers(rows, offset, 0, [])
    assert log.aborted_transaction_count == 0
    problem = only_problem(files)
    assert problem["path"] == str(files.path(0, ".txnindex"))
    assert problem["reason"] == (
        f"no entry of producer 7, whose transaction was aborted at offset {marker}"
    )
    send(log, 7, epoch=1)
    end(log, 7, epoch=2, commit=False)
    assert str(only_problem(files)["reason"]).startswith("in memory: the entry is of producer 7")


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_transactions_that_began_in_a_deleted_segment(files, keep):
    stored(files)
    bases = [segment["base_offset"] for segment in files.log.segments()]
    assert files.log.delete_segments(bases[-keep]) == len(bases) - keep
    assert files.log.verify() == []
    files.reopen(clean=False)
    files.log.store_abort_files()
    assert files.log.verify() == []


def test_a_segment_whose_deletion_failed_needs_no_entries(files):
    """The log starts after it, and the index in memory is without it."""
    paths = sorted(files.directory.glob("*.log"))[:2]
    segments = {path: path.read_bytes() for path in paths}
    bases = [segment["base_offset"] for segment in files.log.segments()]
    assert files.log.delete_segments(bases[2]) == 2
    for path, data in segments.items():
        path.write_bytes(data)
    stored(files)
    start, known = files.log.log_start_offset, files.log.abort_files()
    rows, rows_offset = files.log.dirty_producers()
    files.close()
    log = files.open(log_start_offset=start, rows=rows, rows_offset=rows_offset, abort_files=known)
    assert log.segments()[0]["base_offset"] == bases[0]
    assert log.aborted_transactions(0, bases[2] - 1) == []
    assert log.verify() == []


def test_one_whose_marker_alone_is_left_keeps_its_entry(make_partition):
    files = make_partition()
    log = files.open()
    send(log, 1, epoch=0)
    send(log, 2, epoch=0)
    log.roll()
    end(log, 2, epoch=1, commit=False)
    last = end(log, 1, epoch=1, commit=False)
    (path,) = stored(files)
    assert log.delete_segments(4) == 1
    assert log.verify() == []
    entries = [ENTRY.unpack_from(path.read_bytes(), at) for at in (0, ENTRY.size)]
    assert [entry[2] for entry in entries] == [2, 0]
    path.write_bytes(ENTRY.pack(*entries[0]) + ENTRY.pack(0, 1, 4, last, last + 1))
    problem = only_problem(files)
    assert problem["position_bytes"] == ENTRY.size
    assert problem["reason"] == "the transaction begins below offset 4, not 4"


@pytest.mark.parametrize("clean", [True, False])
def test_an_opening_cuts_the_entries_of_a_tail_that_was_lost(make_partition, clean):
    files = make_partition()
    log = files.open()
    for number in range(3):
        send(log, 7, epoch=number)
        end(log, 7, epoch=number + 1, commit=False)
    kept_bytes = int(str(log.segments()[0]["size_bytes"]))
    kept = stored(files)[0].read_bytes()
    send(log, 7, epoch=3)
    end(log, 7, epoch=4, commit=False)
    (path,) = stored(files)
    assert len(path.read_bytes()) == len(kept) + ENTRY.size
    files.close(clean=clean)
    for snapshot in files.directory.glob("*.snapshot"):
        snapshot.unlink()
    files.path(0).write_bytes(files.path(0).read_bytes()[:kept_bytes])
    log = files.open(clean=clean)
    assert path.read_bytes() == kept
    assert log.verify() == []
    # The offsets are given out again, and committed this time.
    send(log, 7, epoch=3)
    end(log, 7, epoch=4, commit=True)
    assert log.verify() == []


@pytest.mark.parametrize("left", [b"", b"\x00" * 7, ENTRY.pack(0, 7, 0, 4, 5)])
def test_an_opening_cuts_what_no_abort_accounts_for(make_partition, left):
    files = make_partition()
    log = files.open()
    send(log, 7, epoch=0)
    end(log, 7, epoch=1, commit=True)
    files.close()
    path = files.write(0, left, ".txnindex")
    assert files.open().verify() == []
    assert path.read_bytes() == b""


def test_files_that_are_written_meanwhile_are_no_problem(make_partition):
    """Aborts go on, their entries are stored, segments are sealed; verify runs beside it."""
    files = make_partition(segment_bytes=20_000)
    log = files.open()
    done = threading.Event()

    def abort_on_and_on() -> None:
        for epoch in range(3000):  # Each verify reads all that is there by then.
            if done.is_set():
                return
            for producer_id in range(3):
                send(log, producer_id, epoch=epoch)
            for producer_id in (1, 2, 0):
                end(log, producer_id, epoch=epoch + 1, commit=False)
            if epoch % 3 == 2:
                log.store_abort_files()

    writer = threading.Thread(target=abort_on_and_on)
    writer.start()
    try:
        rounds = 0
        while log.segment_count < 5 or rounds < 20:
            assert log.verify() == []
            rounds += 1
    finally:
        done.set()
        writer.join()
    assert log.aborted_transaction_count > 100
    assert log.verify() == []


def test_a_store_says_it_too(open_store):
    store = open_store()
    store.create_topic("orders")
    partition = engine_of(store).partition("orders", 0)
    partition.append_columns(
        [b"v"], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
    )
    partition.append_marker(5, 1, 0, commit=False)
    assert store.verify() == []
    path = partition.path / "00000000000000000000.txnindex"
    path.write_bytes(ENTRY.pack(0, 5, 0, 1, 1))
    (problem,) = store.verify()
    assert problem == {
        "path": str(path),
        "position_bytes": 0,
        "reason": "the last stable offset was 2, not 1",
    }
