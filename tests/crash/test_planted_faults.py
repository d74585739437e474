"""`verify` finds what a store's files can get wrong and no checksum tells: each fault is planted.

The bytes are sound, each by itself; what they say does not fit what the log says.
"""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from noted_sums import forget_sums
from staged_jobs import APP, stage_job
from stores import QUIET

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES
from eoslog.bindings.record_batch import crc32c, iter_batches
from eoslog.bindings.transaction_record import decode_transaction_value, encode_transaction_value
from eoslog.errors import StagedJobIncompleteError, StoreFullError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, RECOVERY_POINT, write_checkpoints
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.groups.offsets_state import WrittenOffset
from eoslog.groups.records import OffsetKey
from eoslog.staging import adoption as staged_adoption
from eoslog.storage.lmdb_environment import LmdbEnvironment
from eoslog.storage.producer_rows import ProducerRows
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.state_index import StateIndex
from eoslog.transactions.state_key import state_partition_of, transaction_key

pytestmark = pytest.mark.crash

PLAIN, MOVED = TopicPartition("plain", 0), TopicPartition("moved", 0)
GROUP, ID = "readers", "mover"
CRC, ATTRIBUTES, EPOCH, SEQUENCE = 17, 21, 51, 53
MARKER_TYPE = 61 + 8  # Of a control batch's only record: behind its lengths and the key's version.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store that was closed cleanly: a numbered producer, transactions and a group's offsets."""
    path = tmp_path / "store"
    with open_store(path, create=True) as store:
        store.create_topic("plain", config={"segment.bytes": 1024, "index.interval.bytes": 100})
        store.create_topic("moved")
        now_ms = time.time_ns() // 1_000_000  # Producers that wrote long ago expire.
        with store.producer() as producer:
            for number in range(30):
                at_ms = now_ms + number
                producer.append("plain", 0, [b"x" * 60, b"y"], timestamps=[at_ms, at_ms])
        with store.producer(transactional_id=ID) as producer:
            producer.init_transactions()
            for number in range(3):
                producer.begin_transaction()
                producer.append("moved", 0, [b"%d" % number])
                producer.send_offsets_to_transaction({PLAIN: number + 1}, GROUP)
                producer.commit_transaction()
        assert store.verify() == []
    assert found(path) == []
    return path


def open_store(path: Path, *, create: bool = False) -> eoslog.Store:
    return eoslog.open(path, create=create, durability="process", config=QUIET)


def found(path: Path) -> list[dict[str, object]]:
    with open_store(path) as store:
        return store.verify()


def assert_found(path: Path, *words: str) -> None:
    """The fault is said, where no checksum gives it away: that would have it put right."""
    forget_sums(path)
    reasons = [str(one["reason"]) for one in found(path)]
    assert any(all(word in reason for word in words) for reason in reasons), reasons


def logs(path: Path, where: TopicPartition) -> list[Path]:
    return sorted((path / str(where)).glob("*.log"))


def first_filled(path: Path, suffix: str) -> Path:
    return next(one for one in sorted((path / str(PLAIN)).glob(f"*{suffix}")) if one.stat().st_size)


def rewrite(log: Path, index: int, change: Callable[[bytearray], object]) -> None:
    """Change one batch of a file, and make its checksum right again."""
    data = bytearray(log.read_bytes())
    header = list(iter_batches(bytes(data)))[index]
    batch = bytearray(data[header.position_bytes : header.position_bytes + header.batch_bytes])
    change(batch)
    struct.pack_into(">I", batch, CRC, crc32c(bytes(batch[ATTRIBUTES:])))
    data[header.position_bytes : header.position_bytes + header.batch_bytes] = batch
    log.write_bytes(data)


def put(layout: str, at: int, number: int) -> Callable[[bytearray], None]:
    return lambda batch: struct.pack_into(layout, batch, at, number)


# The log.


def test_missing_offsets(path):
    (path / RECOVERY_POINT).unlink()  # Else it says where the log ended.
    rewrite(logs(path, PLAIN)[-1], -1, put(">q", 0, 63))
    assert_found(path, "offsets 58 to 62 are missing")


@pytest.mark.parametrize("sequence", [19, 21, 2**31 - 1])
def test_a_sequence_that_does_not_follow(path, sequence):
    rewrite(logs(path, PLAIN)[-2], 0, put(">i", SEQUENCE, sequence))
    assert_found(path, f"begins with sequence {sequence}", "was to follow")


def test_an_epoch_that_does_not_begin_with_sequence_0(path):
    rewrite(logs(path, PLAIN)[-1], -1, put(">h", EPOCH, 3))
    assert_found(path, "epoch 3, begins with sequence", "0 was to follow")


def test_an_epoch_that_falls(path):
    rewrite(logs(path, PLAIN)[2], 0, put(">h", EPOCH, 5))
    assert_found(path, "with epoch 0 after epoch 5")


def test_a_marker_with_an_epoch_that_falls(path):
    rewrite(logs(path, MOVED)[0], -1, put(">h", EPOCH, 1))
    assert_found(path, "a marker of producer", "after epoch")


def test_a_marker_that_says_otherwise_than_its_coordinator(path):
    def abort(batch: bytearray) -> None:
        assert batch[MARKER_TYPE - 1 : MARKER_TYPE + 1] == b"\0\1"
        batch[MARKER_TYPE] = 0

    rewrite(logs(path, MOVED)[0], -1, abort)
    assert_found(path, "a marker aborts", "decided to commit it")


def test_a_transaction_that_is_complete_and_has_no_marker_here(path):
    (log,) = logs(path, MOVED)
    *_, last = iter_batches(log.read_bytes())
    log.write_bytes(log.read_bytes()[: last.position_bytes])
    # The opening would end it, if it were told that the log had more.
    write_checkpoints({path / RECOVERY_POINT: {PLAIN: 60, MOVED: 5}})
    shutil.rmtree(path / "state" / "control")
    assert_found(path, "is complete at its coordinator, and open here since offset 4")


def test_a_log_that_ends_below_its_start(path):
    write_checkpoints({path / LOG_START_OFFSET: {PLAIN: 70}})
    # The opening set its segments aside, and began an empty one there.
    assert_found(path, "the producers of the deleted records below offset 70 are unknown")


# What is derived from it.


@pytest.mark.parametrize("change", [("time", ">q", 0, 5), ("place", ">i", 8, 1)], ids=str)
def test_a_time_index_that_says_otherwise(path, change):
    _, layout, at, by = change
    index = next(
        one for one in sorted((path / str(PLAIN)).glob("*.timeindex")) if one.stat().st_size
    )
    data = bytearray(index.read_bytes())
    (before,) = struct.unpack_from(layout, data, at)
    struct.pack_into(layout, data, at, before + by)
    index.write_bytes(data)
    assert_found(path, "is not the greatest up to the batch")


def test_an_index_with_an_entry_twice(path):
    index = first_filled(path, ".index")
    index.write_bytes(index.read_bytes()[:8] * 2)
    assert_found(path, " follows ")


@pytest.mark.parametrize("at", [8, 10, 14], ids=["epoch", "sequence", "offset"])
def test_a_snapshot_that_says_otherwise(path, at):
    snapshot = sorted((path / str(PLAIN)).glob("*.snapshot"))[-1]
    data = bytearray(snapshot.read_bytes())
    data[10 + at + 1] ^= 1
    struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    snapshot.write_bytes(data)
    assert_found(path, "is said to have")


def test_a_snapshot_of_a_producer_that_never_was(path):
    snapshot = sorted((path / str(PLAIN)).glob("*.snapshot"))[-1]
    data = bytearray(snapshot.read_bytes())
    struct.pack_into(">q", data, 10, 999)
    struct.pack_into(">I", data, 2, crc32c(bytes(data[6:])))
    snapshot.write_bytes(data)
    assert_found(path, "producer 999 is said to have written")


@pytest.fixture
def lmdb(path: Path) -> Iterator[LmdbEnvironment]:
    """LMDB of the closed store."""
    lmdb = LmdbEnvironment(path / "state" / "lmdb")
    yield lmdb
    lmdb.close()


@pytest.mark.parametrize(
    ("at", "layout", "words"),
    [(36, "<h", "is said to have epoch"), (16, "<q", "is said to have a transaction open")],
)
def test_rows_that_say_otherwise(path, lmdb, at, layout, words):
    topic_id = json.loads((path / "state" / "topics.json").read_text())["topics"]["plain"][
        "topic_id"
    ]
    rows = ProducerRows(lmdb, topic_id, 0)
    head = rows.read_head()
    ((_, row),) = rows.rows_after(0, 10)
    assert len(row) == PRODUCER_ROW_BYTES
    changed = bytearray(row)
    struct.pack_into(layout, changed, at, 9)
    rows.delete_all()
    rows.write_rows(bytes(changed), head.offset)
    lmdb.close()
    assert_found(path, words)


def test_a_group_of_which_lmdb_says_otherwise(path, lmdb):
    index = GroupOffsetsIndex(lmdb)
    (number,) = [int(one.name.split("-")[-1]) for one in path.glob("__consumer_offsets-*")]
    kept = index.read(number)
    changes = [
        (row, WrittenOffset(written.value._replace(offset=77), written.record_offset))
        for row, written in kept.rows
        if isinstance(row.key, OffsetKey)
    ]
    assert changes
    index.write(number, kept.offset, changes, index.generation, kept.offset)
    lmdb.close()
    assert_found(path, "is kept otherwise than the log has it", GROUP)


def test_a_transaction_of_which_the_index_says_otherwise(path, lmdb):
    key, number = transaction_key(ID), state_partition_of(ID)
    index = StateIndex(lmdb)
    value = index.read_state(key)
    changed = value[:8] + value[8:-1] + bytes([value[-1] ^ 1])
    index.write_states([(key, changed)], [(number, index.read_applied(number))])
    lmdb.close()
    assert_found(path, "it has another record", ID)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"producer_epoch": 0}, "the epoch of 'mover' falls from 3 to 0"),
        ({"state": "PrepareAbort"}, "is decided a second time, and otherwise"),
    ],
)
def test_a_state_log_that_cannot_be(path, change, words):
    with open_store(path) as store:
        partition = parts_of(store).files.partitions.state_partition(state_partition_of(ID))
        records, _ = partition.fetch_records(0, 1000, 1 << 20)
        last = [one for one in records if one.key == transaction_key(ID)][-1]
        state = decode_transaction_value(last.value)
        fields = {
            name: state[name]
            for name in ("producer_id", "producer_epoch", "timeout_ms", "last_update_ms")
        }
        fields |= {"state": state["state"], "start_ms": state["last_update_ms"]}
        fields |= {"partitions": [("moved", 0)], "client_transaction_version": 2} | change
        partition.append_columns([encode_transaction_value(**fields)], [transaction_key(ID)])
        reasons = [str(one["reason"]) for one in store.verify()]
        assert any(words in reason for reason in reasons), reasons


def test_a_checkpoint_beyond_the_log(path):
    write_checkpoints({path / RECOVERY_POINT: {PLAIN: 60, MOVED: 7}})
    assert_found(path, "moved-0 has offset 7 here, and ends at 6")


def test_a_checkpoint_that_is_none(path):
    (path / RECOVERY_POINT).write_text("0\n3\nplain 0 1\n")
    assert_found(path, "not a checkpoint")


# Directories.


def test_files_that_belong_to_no_topic(path):
    stray = path / "lost-7"
    stray.mkdir()
    assert found(path) == []
    (stray / "00000000000000000000.log").write_bytes(b"")
    assert_found(path, "it belongs to no topic and holds 1 files")


def test_a_partition_beyond_those_of_its_topic(path):
    (path / "plain-1").mkdir()
    (path / "plain-1" / "00000000000000000000.log").write_bytes(b"")
    assert_found(path, "it belongs to no partition of plain")


@pytest.mark.parametrize("what", ["spare", "cut"])
def test_spare_files_of_no_topic(path, what):
    stray = path / "state" / what / "lost-7"
    stray.mkdir(parents=True)
    (stray / "spare").write_bytes(b"")
    assert_found(path, "lost-7 is not there any more, but has files here")


# Staged jobs.


def test_a_job_that_is_half_there_and_not_held(path, monkeypatch):
    with open_store(path) as store:
        store.create_topic("orders", 3)
        run_id = store.begin_run(APP)
        messages = stage_job(path, run_id, range(60))
        adopt, calls = staged_adoption.adopt_file, []

        def no_room_for_more(*arguments):
            calls.append(arguments)
            if len(calls) > 3:
                raise StoreFullError("no room")
            return adopt(*arguments)

        monkeypatch.setattr(staged_adoption, "adopt_file", no_room_for_more)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged(APP, 1, messages, run_id)
        assert store.verify() == []
        for number in range(3):
            engine_of(store).partition("orders", number).release_readers()
        reasons = [str(one["reason"]) for one in store.verify()]
        assert any("is half in the log, and readers of orders-" in one for one in reasons), reasons
        monkeypatch.undo()


def test_a_file_of_a_decided_job_that_is_gone(path, monkeypatch):
    with open_store(path) as store:
        store.create_topic("orders", 3)
        run_id = store.begin_run(APP)
        messages = stage_job(path, run_id, range(60))

        def no_room(*arguments):
            raise StoreFullError("no room")

        monkeypatch.setattr(staged_adoption, "adopt_file", no_room)
        with pytest.raises(StagedJobIncompleteError):
            store.commit_staged(APP, 1, messages, run_id)
        assert store.verify() == []
        files = [one for one in sorted((path / "staging").rglob("*")) if one.suffix == ".batches"]
        files = files or [one for one in sorted((path / "staging").rglob("*")) if one.is_file()]
        files[0].unlink()
        reasons = [str(one["reason"]) for one in store.verify()]
        assert any("this file of it is gone" in one for one in reasons), reasons
        monkeypatch.undo()


def test_a_transaction_whose_beginning_was_deleted_is_no_fault(tmp_path):
    with open_store(tmp_path / "store", create=True) as store:
        store.create_topic("plain", config={"segment.bytes": 1024, "retention.bytes": 4096})
        with store.producer(transactional_id=ID) as producer, store.producer() as other:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(8):
                other.append("plain", 0, [b"x" * 700])
                if number in (0, 5):
                    producer.append("plain", 0, [b"of the transaction"])
            producer.commit_transaction()
        parts_of(store).checkpointer.retain()
        # Snapshots from before the commit are left, in the middle of the transaction.
        start = store.consumer().beginning_offsets([PLAIN])[PLAIN]
        assert 1 < start < 7
        assert store.verify() == []
    assert found(tmp_path / "store") == []
