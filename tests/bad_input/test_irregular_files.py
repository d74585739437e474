"""What is no regular file, or far too long, in the place of a store's file: named, or made anew;
nothing waits for a pipe, or reads a device without an end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.snapshot_files import read_snapshot
from eoslog.errors import CorruptRecordError, EoslogError, StoreFailedError
from eoslog.fs.atomic_file import SMALL_BYTES_MAX, read_if_there

# A call that waits for ever is a failure.
pytestmark = pytest.mark.timeout(30)

WHERE = TopicPartition("rows", 0)
FILES = (
    ".kafka_cleanshutdown",
    "log-start-offset-checkpoint",
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "rows-0/00000000000000000000.index",
    "rows-0/00000000000000000000.log",
    "rows-0/00000000000000000000.timeindex",
    "rows-0/00000000000000000000.txnindex",
    "rows-0/00000000000000000002.snapshot",
    "rows-0/partition.metadata",
    "state/lmdb/data.mdb",
    "state/topics.json",
)


@pytest.fixture
def store_path(tmp_path) -> Path:
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("rows")
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.append("rows", 0, [b"x"])
            producer.abort_transaction()
    return path


def use(path: Path) -> None:
    with eoslog.open(path) as store:
        store.verify()
        consumer = store.consumer()
        consumer.assign([WHERE])
        consumer.poll(0)
        store.producer().append("rows", 0, [b"y"])


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.every_nth(4)
@pytest.mark.parametrize("make", [pipe, device, directory])
@pytest.mark.parametrize("name", FILES)
def test_something_else_in_a_files_place(store_path: Path, name: str, make: Callable) -> None:
    # Of an index, and of a transaction's, there is a file only once there is an entry.
    (store_path / name).unlink(missing_ok=True)
    make(store_path / name)
    try:
        use(store_path)
    except EoslogError as error:
        said = " ".join([str(error), *getattr(error, "__notes__", ())])
        place = Path(name)
        assert any(part in said for part in (place.name, str(WHERE), "lmdb")), said


@pytest.mark.parametrize("name", [name for name in FILES if "lmdb" not in name])
def test_a_file_that_is_far_too_long(store_path: Path, name: str) -> None:
    """Sparse, so that it takes no room; the memory of the process does not grow by it."""
    with open(store_path / name, "ab") as file:
        file.truncate(1 << 40)
    try:
        use(store_path)
    except EoslogError as error:
        said = " ".join([str(error), *getattr(error, "__notes__", ())])
        assert any(part in said for part in (Path(name).name, str(WHERE))), said


def test_a_small_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "long"
    path.touch()
    os.truncate(path, SMALL_BYTES_MAX + 1)
    with pytest.raises(CorruptRecordError, match=f"long.*{SMALL_BYTES_MAX + 1} bytes long"):
        read_if_there(path)


def test_a_pipe_is_named(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(StoreFailedError, match=r"reading .*pipe: it is not a regular file"):
        read_if_there(path)


def test_of_a_snapshot_no_more_is_read_than_its_count_says(store_path):
    path = store_path / "rows-0" / "00000000000000000002.snapshot"
    content = path.read_bytes()
    assert read_snapshot(str(path)) == content
    os.truncate(path, 1 << 40)
    assert read_snapshot(str(path)) == content + b"\0"
    path.write_bytes(content[:-1])
    assert read_snapshot(str(path)) == content[:-1]
    path.write_bytes(b"")
    assert read_snapshot(str(path)) == b""


def test_a_segment_with_a_name_above_all_offsets(store_path):
    path = store_path / "rows-0" / f"{1 << 63:020}.log"
    shutil.copy(store_path / "rows-0" / f"{0:020}.log", path)
    with eoslog.open(store_path) as store:
        (problem,) = store.verify()
        assert problem["path"] == str(path)
        with pytest.raises(CorruptRecordError, match=f"{path.name}.*no offset is so high"):
            store.partition("rows", 0)
    path.unlink()
    with eoslog.open(store_path) as store:
        assert store.verify() == []
