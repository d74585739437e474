"""Files of a partition that hold anything: the log is opened over them, read, and written on.

The records that a reader is given are the right ones, whatever is in the files that are made from
the log; where the log itself is broken, an error names it.
"""

from __future__ import annotations

import shutil
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path

from partition_files import CONFIG as FILE_CONFIG
from partition_files import PartitionFiles, all_records
from reference_model import batch_codec as codec

from eoslog.bindings.commit_journal import BLOCK_BYTES, HALVES
from eoslog.bindings.control_state import control_state
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES, row_state
from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.shared_page import SharedPage
from eoslog.errors import CorruptRecordError, EoslogError
from eoslog.storage.journal_replay import halves_of
from eoslog.storage.tables import CorruptRowError, checked, sealed
from fuzz.targets import folder, snapshot_with_sum, target, with_sums

CONFIG = {
    "segment.bytes": 1 << 16,
    "segment.index.bytes": 1 << 12,
    "index.interval.bytes": 100,
    "max.message.bytes": 1 << 15,
    "eoslog.fill.bytes": 4096,
}
BASE_MS = 1_790_000_000_000
COMMITTED, ABORTED = 7, 8
SESSION = b"a store's session"[:16]
HALF_MAGIC, RECORD_MAGIC = 0x32304C4148534F45, 0x3230434552534F45
# Of a control page: its fields, and the locks behind them.
_PUBLISHED_FROM, _LOCKS_FROM = 36, 112


def fresh() -> PartitionFiles:
    """An empty partition's folders."""
    root = folder() / "log"
    shutil.rmtree(root, ignore_errors=True)
    return PartitionFiles(root, CONFIG)


@cache
def template() -> tuple[dict[str, bytes], list, list, list]:
    """The files of a sound log, its records, those that are committed, and its producers' rows.

    One producer commits and one aborts, in two segments.
    """
    files = fresh()
    log = files.open()
    for number in range(6):
        for producer_id in (COMMITTED, ABORTED):
            batch = codec.simple_batch(
                [b"%d of %d" % (number, producer_id)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number,
                timestamp_ms=BASE_MS + number,
                attributes=codec.TRANSACTIONAL,
            )
            log.append_batch(batch, verified=True)
        if number == 3:
            log.roll()
    log.append_marker(ABORTED, 1, 0, False, timestamp_ms=BASE_MS)
    log.append_marker(COMMITTED, 1, 0, True, timestamp_ms=BASE_MS)
    log.append_batch(codec.simple_batch([b"plain"], timestamp_ms=BASE_MS + 9))
    log.roll()
    log.append_batch(codec.simple_batch([b"last"], timestamp_ms=BASE_MS + 10))
    log.store_abort_files()
    log.take_snapshot()
    found, committed = all_records(log), committed_records(log)
    assert len(found) > len(committed) > 0
    rows = log.dirty_producers()
    files.close()
    names = {path.name: path.read_bytes() for path in files.directory.iterdir() if path.is_file()}
    return names, found, committed, [*rows]


def committed_records(log) -> list:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        records, next_offset = log.fetch_records(offset, 1000, 1 << 20, committed=True)
        if next_offset == offset:
            break
        found += records
        offset = next_offset
    return found


def check_with(suffix: str, data: bytes, *, rows: bytes | None = None) -> None:
    """Open the sound log with one kind of its files holding something else."""
    names, found, committed, _ = template()
    for clean in (True, False):
        files = fresh()
        for name, content in names.items():
            (files.directory / name).write_bytes(data if name.endswith(suffix) else content)
        log = files.open(clean=clean)
        try:
            assert all_records(log) == found
            assert committed_records(log) == committed
            log.offset_for_timestamp(BASE_MS + 4)
            for record in found[::3]:
                assert log.fetch_records(record.offset, 1, 1)[0] == [record]
            repr((log.producers(), log.open_transactions(), log.verify()))
            log.append_batch(codec.simple_batch([b"more"]))
        finally:
            files.close()


@target()
def offset_index(data: bytes) -> None:
    check_with(".index", data)


@target()
def time_index(data: bytes) -> None:
    check_with(".timeindex", data)


@target()
def abort_index(data: bytes) -> None:
    check_with(".txnindex", data)


@target()
def snapshot(data: bytes) -> None:
    """A snapshot, as it is and with its checksum made right.

    One whose checksum is right is believed: its producers are what it says.
    """
    if snapshot_with_sum(data) != data:
        check_with(".snapshot", data)
    names, _, _, _ = template()
    files = fresh()
    for name, content in names.items():
        believed = name.endswith(".snapshot")
        (files.directory / name).write_bytes(snapshot_with_sum(data) if believed else content)
    log = files.open()
    try:
        repr((log.producers(), log.open_transactions(), log.last_stable_offset, log.verify()))
        all_records(log)
        log.append_batch(codec.simple_batch([b"more"]))
        log.take_snapshot()
    finally:
        files.close()


@target(ValueError)
def producer_rows(data: bytes) -> None:
    """Rows of producers as LMDB hands them over; ValueError: they are dropped, the log has them."""
    data = data[: len(data) - len(data) % PRODUCER_ROW_BYTES]
    for at in range(0, len(data), PRODUCER_ROW_BYTES):
        repr(row_state(data[at : at + PRODUCER_ROW_BYTES]))
    files = with_template()
    found = template()[1]
    try:
        log = files.open(rows=data, rows_offset=found[-1].offset, abort_files=[])
        repr((log.producers(), log.open_transactions(), log.dirty_producers()))
        assert all_records(log) == found
    finally:
        files.close()


@target(ValueError)
def log_recovered(data: bytes) -> None:
    """A log file after an unclean stop: what is kept is sound, and takes more records."""
    check_recovered(data)


@target(ValueError)
def log_recovered_with_sums(data: bytes) -> None:
    check_recovered(with_sums(data))


def check_recovered(data: bytes) -> None:
    files = fresh()
    files.write(0, data)
    try:
        log = files.open(clean=False)
        found = readable_records(log)
        committed = committed_records(log)
        assert len(committed) <= len(found)
        end = log.log_end_offset
        appended = log.append_batch(codec.simple_batch([b"more"], timestamp_ms=BASE_MS))
        assert appended.base_offset == end
        log = files.reopen(clean=True)
        assert readable_records(log)[: len(found)] == found
        (more,) = log.fetch_records(end, 1, 1)[0]
        assert (more.offset, more.value) == (end, b"more")
    finally:
        files.close()


def readable_records(log) -> list:
    """All records; a compressed batch is an error that names it, and is passed over."""
    found, offset, errors = [], log.log_start_offset, 0
    while offset < log.log_end_offset:
        try:
            records, next_offset = log.fetch_records(offset, 1000, 1 << 20)
        except CorruptRecordError as error:
            assert error.path and error.reason
            next_offset = offset + 1
            records = []
            errors += 1
            if errors > 5000:
                break
        if next_offset == offset:
            break
        found += records
        offset = next_offset
    return found


@target(ValueError)
def log_of_a_clean_close(data: bytes) -> None:
    """Then only headers are looked at, until somebody reads."""
    for one in (data, with_sums(data)):
        files = fresh()
        files.write(0, one)
        try:
            log = files.open(clean=True)
            readable_records(log)
            repr((log.verify(), log.producers()))
            for header in log.scan_headers():
                repr(header)
            log.fetch_columns(log.log_start_offset, 1 << 20)
        except EoslogError:
            continue
        finally:
            files.close()


# What the processes of a store share.


@target()
def control_page(data: bytes) -> None:
    """A file that may be anything in the place of a partition's page: who opens makes it anew."""
    files = with_template()
    files.control.write_bytes(data)
    repr(control_state(str(files.control)))
    log = files.open(clean=True)
    assert all_records(log) == template()[1]
    files.close()


def journal_file(data: bytes) -> Path:
    path = folder() / "journal"
    path.write_bytes(data + bytes(-len(data) % (HALVES * BLOCK_BYTES)))
    return path


@target()
def commit_journal(data: bytes) -> None:
    """A file that may be anything in the place of a journal."""
    read_journal(journal_file(data))


def read_journal(path: Path) -> None:
    for half in halves_of(path):
        for one in half.ranges:
            bytes(half.bytes_of(one))


@target()
def commit_journal_with_sums(data: bytes) -> None:
    """Headers whose checksums are right, and records that say anything of themselves."""
    header = struct.pack("<I16sQQ", 0, bytes(16), 4 * BLOCK_BYTES, 1)
    block = struct.pack("<QI", HALF_MAGIC, crc32c(header)) + header
    record = data[:4] + bytes(16) + struct.pack("<QQQQ", 1, 1, 1, 0) + data[4:]
    half = block.ljust(BLOCK_BYTES, b"\0")
    half += struct.pack("<QI", RECORD_MAGIC, crc32c(record)) + record
    half = half[: 4 * BLOCK_BYTES].ljust(4 * BLOCK_BYTES, b"\0")
    read_journal(journal_file(half + bytes(len(half))))


@target()
def attached_page(data: bytes) -> None:
    """A page of this session whose fields say anything: what the others published is not believed.

    The locks behind the fields stay what they are: with bytes in their place a process could only
    wait.
    """
    files = with_template()
    first = opened_in_session(files)
    try:
        with files.control.open("r+b") as file:
            file.seek(_PUBLISHED_FROM)
            file.write(data[: _LOCKS_FROM - _PUBLISHED_FROM])
        second = opened_in_session(files)
        try:
            for log in (second, first):
                for record in readable_records(log):
                    assert record in template()[1] or record.value == b"more"
                repr((log.log_start_offset, log.last_stable_offset, log.high_watermark))
                log.append_batch(codec.simple_batch([b"more"]))
        finally:
            second.detach()
    finally:
        first.close(clean=False)


def opened_in_session(files: PartitionFiles) -> PartitionLog:
    log = PartitionLog(
        str(files.directory),
        topic="orders",
        partition=0,
        control_path=str(files.control),
        spare_path=str(files.spare),
        cut_path=str(files.cut),
        config=FILE_CONFIG | CONFIG,
        clean=True,
        session=SESSION,
    )
    log.restore_producers(None, 0, 0, None)
    return log


def with_template() -> PartitionFiles:
    files = fresh()
    for name, content in template()[0].items():
        (files.directory / name).write_bytes(content)
    return files


@target(OSError)
def shared_page(data: bytes) -> None:
    """The page of a store's processes; what is no page of the session is refused."""
    path = str(folder() / "shared")
    with open(path, "wb") as file:
        file.write(data)
    session = SharedPage.read_session(path)
    for one in (SESSION, session):
        if one is not None:
            try:
                page = SharedPage(path, one, False)
            except EoslogError:
                continue
            page.counter(0)
            page.close()


@target()
def state_row(data: bytes) -> None:
    """A value of LMDB with its checksum."""
    with suppress(CorruptRowError):
        checked(data)
    assert checked(sealed(data)) == data
