"""The abort index is made from the log: its files may be lost or wrong in any way.

Storage scenarios S42, S62, S64 and S65 are told here too, since they are about a file's bytes.
"""

from __future__ import annotations

import pytest
from partition_files import PartitionFiles, records_and_position, same_records
from reference_model import batch_codec as codec
from reference_model.abort_model import (
    ABORT_ENTRY_BYTES,
    AbortedModel,
    decode_abort_index,
    encode_abort_index,
)
from reference_model.log_model import LogModel

from eoslog.errors import EoslogError

BASE_MS = 1_790_000_000_000
EVER = 2**63 - 1
SEGMENT_BYTES = 700
EVERY_WAY = pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])


def data_batch(model: LogModel, producer_id: int, values: list[bytes]) -> bytes:
    entry = model.producers.entry(producer_id)
    return codec.simple_batch(
        values,
        producer_id=producer_id,
        producer_epoch=max(entry.producer_epoch, 0),
        base_sequence=entry.last_sequence + 1,
        timestamp_ms=BASE_MS,
        attributes=codec.TRANSACTIONAL,
    )


def fill(files: PartitionFiles, transaction_count: int = 30) -> LogModel:
    """Interleaved transactions of three producers, every other one aborted; one stays open."""
    log = files.open()
    model = LogModel(segment_bytes=files.config.get("segment.bytes", 1 << 20))
    for number in range(transaction_count):
        producer_id = number % 3
        for part in range(2):
            data = data_batch(model, producer_id, [b"value %d.%d" % (number, part)])
            log.append_batch(data, verified=True)
            model.append_batch(data, verified=True)
        if number >= 2:
            end(log, model, (number - 2) % 3, commit=number % 2 == 0)
    assert len(model.open_transactions()) == 2
    assert len(model.aborted) * 2 >= transaction_count - 3
    return model


def end(log, model: LogModel, producer_id: int, *, commit: bool) -> None:
    epoch = model.producers.entry(producer_id).producer_epoch + 1
    log.append_marker(producer_id, epoch, 0, commit, timestamp_ms=BASE_MS)
    model.append_marker(producer_id, epoch, 0, commit, timestamp_ms=BASE_MS)


def base_of(model: LogModel, one: AbortedModel) -> int:
    return max(base for base in model.segments if base <= one.last_offset)


def expected_files(model: LogModel) -> dict[int, bytes]:
    by_base: dict[int, list[AbortedModel]] = {}
    for one in model.aborted:
        by_base.setdefault(base_of(model, one), []).append(one)
    return {base: encode_abort_index(entries) for base, entries in by_base.items()}


def check_all(files: PartitionFiles, model: LogModel) -> None:
    log = files.log
    assert log is not None
    assert aborted(log) == model.aborted
    assert log.last_stable_offset == model.last_stable_offset
    opened = [(one.producer_id, one.first_offset) for one in log.open_transactions()]
    assert opened == [(one.producer_id, one.first_offset) for one in model.open_transactions()]
    for offset in range(model.log_start_offset, model.log_end_offset + 1, 3):
        records, position = records_and_position(log, offset, committed=True)
        same_records(records, model.committed_records(offset))
        assert position == max(offset, model.last_stable_offset)
    same_records(records_and_position(log, model.log_start_offset)[0], model.records(0))


def aborted(log, first: int = 0, upper_bound: int = EVER) -> list[AbortedModel]:
    return [
        AbortedModel(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
        for one in log.aborted_transactions(first, upper_bound)
    ]


def check_files(files: PartitionFiles, model: LogModel) -> None:
    """After a clean close: every entry in the file of its marker's segment, and nothing else."""
    found = {
        base: data
        for base in files.names(".txnindex")
        if (data := files.path(base, ".txnindex").read_bytes())
    }
    assert found == expected_files(model)


def rows_of(files: PartitionFiles) -> tuple[bytes, int, list[tuple[int, int, int]]]:
    """What a store keeps: the producers, where they are true, and what the files then hold."""
    log = files.log
    assert log is not None
    log.store_abort_files()
    rows, offset = log.dirty_producers()
    return rows, offset, log.abort_files()


def open_again(files: PartitionFiles, kept, *, clean: bool) -> None:
    log = files.open(clean=clean)
    if kept is not None:
        rows, offset, abort_files = kept
        assert log.restore_producers(rows, offset, 0, abort_files) == "rows"


@EVERY_WAY
@pytest.mark.parametrize("with_rows", [True, False])
def test_nothing_lost(with_rows, clean, make_partition):
    files = make_partition(segment_bytes=SEGMENT_BYTES)
    model = fill(files)
    check_all(files, model)
    kept = rows_of(files) if with_rows else None
    files.close(clean=clean)
    if clean:
        check_files(files, model)
    open_again(files, kept, clean=clean)
    check_all(files, model)
    end(files.log, model, 0, commit=False)
    check_all(files, model)
    files.close()
    check_files(files, model)


@pytest.mark.every_nth(5)
@EVERY_WAY
@pytest.mark.parametrize("with_rows", [True, False])
@pytest.mark.parametrize("chosen", ["all", "first", "last", "every other"])
@pytest.mark.parametrize("how", ["deleted", "empty", "garbage", "zeros", "foreign", "swapped"])
def test_lost(how, chosen, with_rows, clean, make_partition):
    files = make_partition(segment_bytes=SEGMENT_BYTES)
    model = fill(files)
    kept = rows_of(files) if with_rows else None
    files.close(clean=clean)
    paths = [files.path(base, ".txnindex") for base in files.names(".txnindex")]
    assert len(paths) > 3 or not (clean or with_rows), "the entries are in several files"
    picked = {
        "all": paths,
        "first": paths[:1],
        "last": paths[-1:],
        "every other": paths[::2],
    }[chosen]
    contents = [path.read_bytes() for path in picked]
    for path, data, other in zip(picked, contents, contents[1:] + contents[:1], strict=True):
        if how == "deleted":
            path.unlink()
            continue
        noise = bytes((index * 7919 + 13) & 0xFF for index in range(len(data)))
        path.write_bytes(
            {
                "empty": b"",
                "garbage": noise,
                "zeros": bytes(len(data)),
                "foreign": b"#!/bin/sh\necho this is no file of the log\n" * 3,
                "swapped": other,
            }[how]
        )
    open_again(files, kept, clean=clean)
    check_all(files, model)
    end(files.log, model, 0, commit=False)
    check_all(files, model)
    files.close()
    open_again(files, None, clean=True)
    check_all(files, model)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("with_rows", [True, False])
@pytest.mark.parametrize("cut_bytes", [*range(2 * ABORT_ENTRY_BYTES + 2)])
def test_cut_to_any_length(cut_bytes, with_rows, make_partition):
    files = make_partition()
    model = fill(files, 9)
    kept = rows_of(files) if with_rows else None
    files.close()
    path = files.path(0, ".txnindex")
    whole = path.read_bytes()
    assert len(whole) > 2 * ABORT_ENTRY_BYTES
    path.write_bytes(whole[:cut_bytes])
    open_again(files, kept, clean=True)
    check_all(files, model)
    end(files.log, model, 1, commit=False)
    files.close()
    check_files(files, model)


@EVERY_WAY
@pytest.mark.parametrize("with_rows", [True, False])
@pytest.mark.parametrize("flipped", range(ABORT_ENTRY_BYTES))
def test_one_byte_changed(flipped, with_rows, clean, make_partition):
    files = make_partition()
    model = fill(files, 9)
    kept = rows_of(files) if with_rows else None
    files.close()
    path = files.path(0, ".txnindex")
    data = bytearray(path.read_bytes())
    data[flipped + ABORT_ENTRY_BYTES] ^= 1
    path.write_bytes(data)
    open_again(files, kept, clean=clean)
    check_all(files, model)


@EVERY_WAY
@pytest.mark.parametrize("with_rows", [True, False])
def test_entries_of_a_longer_life(with_rows, clean, make_partition):
    """The power cut took the log's tail, and left the entries of markers that were in it.

    Their offsets are given out again, to records that are committed.
    """
    files = make_partition()
    model = fill(files, 9)
    kept = rows_of(files) if with_rows else None
    shorter = model.copy()
    size = files.path(0).stat().st_size
    for number in range(6):
        data = data_batch(model, 5, [b"later %d" % number])
        files.log.append_batch(data, verified=True)
        model.append_batch(data, verified=True)
        end(files.log, model, 5, commit=False)
    files.log.store_abort_files()
    longer = files.path(0, ".txnindex").read_bytes()
    whole = b"".join(batch.data for batch in model.batches)
    kept_bytes = sum(len(batch.data) for batch in shorter.batches)
    files.close(clean=clean)
    assert len(longer) == len(model.aborted) * ABORT_ENTRY_BYTES
    assert size >= kept_bytes
    for path in files.directory.glob("*.snapshot"):
        path.unlink()
    files.write(0, whole[:kept_bytes])
    assert files.path(0, ".txnindex").read_bytes() == longer
    open_again(files, kept, clean=clean)
    check_all(files, shorter)
    for number in range(12):
        data = data_batch(shorter, 5, [b"committed %d" % number])
        files.log.append_batch(data, verified=True)
        shorter.append_batch(data, verified=True)
    end(files.log, shorter, 5, commit=True)
    check_all(files, shorter)
    for producer_id in (1, 2):
        end(files.log, shorter, producer_id, commit=True)
    check_all(files, shorter)
    files.close()
    check_files(files, shorter)
    open_again(files, None, clean=True)
    check_all(files, shorter)


def test_a_truncation_takes_the_entries_in_the_files_too(make_partition):
    """Another reader of the files would take the offsets, given out again, for aborted."""
    files = make_partition(segment_bytes=SEGMENT_BYTES)
    model = fill(files)
    files.log.store_abort_files()
    later = (one for one in model.aborted if base_of(model, one) in model.segments[2:])
    cut = next(later).last_offset
    files.log.truncate(cut)
    model.truncate(cut)
    check_all(files, model)
    files.close()
    check_files(files, model)
    open_again(files, None, clean=True)
    check_all(files, model)


def test_entries_go_with_their_segments(make_partition):
    files = make_partition(segment_bytes=SEGMENT_BYTES)
    model = fill(files)
    files.log.store_abort_files()
    upto = model.segments[len(model.segments) // 2]
    assert files.log.delete_segments(upto) == model.delete_segments(upto)
    assert aborted(files.log) == model.aborted
    assert min(files.names(".txnindex")) >= upto
    records, _ = records_and_position(files.log, upto, committed=True)
    same_records(records, model.committed_records(upto))
    files.close()
    check_files(files, model)


@pytest.mark.parametrize("log_name", ["with its log", "without a log"])
def test_a_file_that_nothing_accounts_for(log_name, make_partition):
    """Of a segment without an abort, or of no segment: nobody is taken for aborted by it."""
    files = make_partition(segment_bytes=SEGMENT_BYTES)
    model = fill(files)
    files.close()
    without = [base for base in model.segments if base not in files.names(".txnindex")]
    base = without[0] if log_name == "with its log" else model.log_end_offset + 7
    assert without or log_name == "without a log"
    entry = AbortedModel(0, base, base + 1, base + 2)
    path = files.write(base, encode_abort_index([entry]), ".txnindex")
    open_again(files, None, clean=True)
    check_all(files, model)
    files.close()
    assert not path.exists() or path.read_bytes() == b""


# -- rows of the storage scenarios -----------------------------------------------------------------


def test_s42_an_abort_index_that_cannot_be_written(make_partition):
    """The log goes on, the index is in memory; a close says so, and the next opening mends it."""
    files = make_partition()
    model = fill(files, 4)
    obstacle = files.path(0, ".txnindex")
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    with pytest.raises((EoslogError, OSError)):
        files.log.store_abort_files()
    check_all(files, model)
    end(files.log, model, 2, commit=False)
    check_all(files, model)
    files.close(clean=False)
    obstacle.rmdir()
    open_again(files, None, clean=False)
    check_all(files, model)
    files.close()
    check_files(files, model)


S62_ENTRIES = [
    AbortedModel(0, 0, 10, 5),
    AbortedModel(1, 5, 15, 11),
    AbortedModel(2, 18, 35, 32),
    AbortedModel(3, 32, 50, 51),
]


def s62_log(files: PartitionFiles, *, base_offset: int = 0) -> None:
    """Transactions from the entries' first offsets to their markers, plain records between."""
    begins = {one.first_offset: one for one in S62_ENTRIES} | {
        11: AbortedModel(9, 11, 17, 0)  # Committed; it holds the last stable offset back.
    }
    ends = {one.last_offset: (one.producer_id, codec.ABORT) for one in S62_ENTRIES}
    ends[17] = (9, codec.COMMIT)
    batches = []
    for offset in range(51):
        if offset in begins:
            batch = codec.simple_batch(
                [b"v"],
                producer_id=begins[offset].producer_id,
                producer_epoch=0,
                base_sequence=0,
                base_offset=base_offset + offset,
                attributes=codec.TRANSACTIONAL,
            )
        elif offset in ends:
            producer_id, kind = ends[offset]
            batch = codec.encode_marker(
                kind,
                producer_id=producer_id,
                producer_epoch=1,
                coordinator_epoch=0,
                offset=base_offset + offset,
            )
        else:
            batch = codec.simple_batch([b"v"], base_offset=base_offset + offset)
        batches.append(batch)
    files.write(base_offset, b"".join(batches))


@pytest.mark.parametrize(
    ("first", "upper_bound", "found"),
    [
        (0, 100, [0, 1, 2, 3]),
        (0, 32, [0, 1, 2]),
        (0, 33, [0, 1, 2, 3]),
        (0, 5, [0]),
        (0, 18, [0, 1]),
        (10, 35, [0, 1, 2, 3]),
        (11, 35, [1, 2, 3]),
        (16, 18, []),
        (16, 19, [2]),
        (20, 41, [2, 3]),
        (36, 41, [3]),
        (50, 51, [3]),
        (51, 100, []),
    ],
)
def test_s62_ranges(first, upper_bound, found, make_partition):
    files = make_partition()
    s62_log(files)
    log = files.open(clean=False)
    assert aborted(log) == S62_ENTRIES
    assert aborted(log, first, upper_bound) == [S62_ENTRIES[index] for index in found]


@EVERY_WAY
@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 1, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_s64_entries_out_of_order_are_not_believed(order, clean, make_partition):
    files = make_partition()
    s62_log(files)
    data = encode_abort_index(S62_ENTRIES[index] for index in order)
    path = files.path(0, ".txnindex")
    path.write_bytes(data)
    log = files.open(clean=clean)
    assert aborted(log) == S62_ENTRIES
    files.close()
    assert decode_abort_index(path.read_bytes()) == S62_ENTRIES


@EVERY_WAY
def test_s65_a_file_of_another_segment_is_not_believed(clean, make_partition):
    files = make_partition()
    s62_log(files, base_offset=100)
    path = files.path(100, ".txnindex")
    path.write_bytes(encode_abort_index(S62_ENTRIES))
    log = files.open(clean=clean, log_start_offset=100)
    moved = [
        AbortedModel(
            one.producer_id,
            one.first_offset + 100,
            one.last_offset + 100,
            one.last_stable_offset + 100,
        )
        for one in S62_ENTRIES
    ]
    assert aborted(log) == moved
    files.close()
    assert decode_abort_index(path.read_bytes()) == moved
