"""Each file of a store is cut, flipped, replaced or gone: it is rebuilt, or an error names it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from bad_input.small_store import (
    PARTITIONS,
    RECORDS,
    TOPIC,
    append,
    check_whole,
    make_store,
    read_values,
    value_of,
)
from store_copies import copy_store

import eoslog
from eoslog.errors import CorruptRecordError, EoslogError, NotAStoreError, StoreVersionError
from eoslog.store.store import engine_of

pytestmark = pytest.mark.forked

# What can be deleted or broken without any loss: all of it comes back from the logs.
REBUILT = {
    "index": f"{TOPIC}-*/*.index",
    "timeindex": f"{TOPIC}-*/*.timeindex",
    "snapshot": f"{TOPIC}-*/*.snapshot",
    "internal index": "__transaction_state-*/*.index",
    "internal timeindex": "__transaction_state-*/*.timeindex",
    "internal snapshot": "__transaction_state-*/*.snapshot",
    "control page": "state/control/*",
    "lmdb data": "state/lmdb/data.mdb",
    "lmdb lock": "state/lmdb/lock.mdb",
    "recovery point": "recovery-point-offset-checkpoint",
    "log start": "log-start-offset-checkpoint",
    "high watermark": "replication-offset-checkpoint",
    "lock": "state/lock",
}
WAYS = ("delete", "empty", "half", "flip", "noise", "zeros", "foreign", "longer")
FOREIGN = b"PK\x03\x04 this is a file of something else\n" * 40


def break_file(path: Path, how: str, seed: int = 0) -> None:
    noise = random.Random(f"{path.name} {how} {seed}")
    data = path.read_bytes()
    if how == "delete":
        path.unlink()
        return
    if how == "flip":
        flipped = bytearray(data)
        for _ in range(3 if data else 0):
            flipped[noise.randrange(len(data))] ^= 1 << noise.randrange(8)
        data = bytes(flipped)
    path.write_bytes(
        {
            "empty": b"",
            "half": data[: len(data) // 2],
            "flip": data,
            "noise": noise.randbytes(len(data)),
            "zeros": bytes(len(data)),
            "foreign": FOREIGN,
            "longer": data + noise.randbytes(777),
        }[how]
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Two copies of one store: closed cleanly, and as a kill leaves it."""
    root = tmp_path_factory.mktemp("stores")
    make_store(root / "clean")
    store = eoslog.open(root / "clean")
    copy_store(root / "clean", root / "unclean")
    store.close()
    return root


@pytest.fixture
def store_path(template, tmp_path):
    def copied(state: str) -> Path:
        return copy_store(template / state, tmp_path / "store")

    return copied


def chosen(path: Path, pattern: str) -> list[Path]:
    found = sorted(path.glob(pattern))
    assert found, f"no file is like {pattern}"
    return found


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", REBUILT)
def test_what_the_log_can_give_back_is_not_missed(store_path, kind, how):
    break_and_check(store_path("clean"), kind, how)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("how", ["half", "noise"])
@pytest.mark.parametrize("kind", REBUILT)
def test_nor_after_an_unclean_stop(store_path, kind, how):
    break_and_check(store_path("unclean"), kind, how)


@pytest.mark.soak
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", REBUILT)
@pytest.mark.parametrize("seed", range(8))
def test_nor_after_an_unclean_stop_and_many_kinds_of_damage(store_path, kind, how, seed):
    break_and_check(store_path("unclean"), kind, how, seed)


def break_and_check(path: Path, kind: str, how: str, seed: int = 0) -> None:
    for file in chosen(path, REBUILT[kind]):
        break_file(file, how, seed)
    with eoslog.open(path) as store:
        check_whole(store)
        for partition in range(PARTITIONS):
            append(store, partition, RECORDS, 3)
    with eoslog.open(path) as store:
        check_whole(store, RECORDS + 3)
        # A derived file that is broken may be reported; the log it belongs to is whole.
        derived = ("index", ".snapshot")
        problems = [one for one in store.verify() if not str(one["path"]).endswith(derived)]
        assert problems == []


@pytest.mark.parametrize("state", ["clean", "unclean"])
def test_everything_but_the_logs_is_gone(store_path, state):
    path = store_path(state)
    for kind in REBUILT.values():
        for file in path.glob(kind):
            file.unlink()
    for file in path.glob("*/partition.metadata"):
        assert file.exists()
    with eoslog.open(path) as store:
        check_whole(store)


@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot", "control page"])
def test_a_directory_in_place_of_a_file(store_path, kind):
    """Named, and nothing is lost: without it all is as before."""
    path = store_path("clean")
    file = chosen(path, REBUILT[kind])[0]
    file.unlink()
    file.mkdir()
    try:
        with eoslog.open(path) as store:
            check_whole(store)
    except EoslogError as error:
        assert str(file.name) in str(error) or str(file.parent.name) in str(error)
    if file.is_dir():
        file.rmdir()
    with eoslog.open(path) as store:
        check_whole(store)


LOG_WAYS = ("delete", "empty", "half", "flip", "noise", "zeros", "foreign", "longer")


@pytest.mark.parametrize("state", ["clean", "unclean"])
@pytest.mark.parametrize("how", LOG_WAYS)
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_broken_log_gives_what_is_whole_or_names_the_place(store_path, which, how, state):
    """Never a wrong record, and the other partition is not touched by it."""
    path = store_path(state)
    files = chosen(path, f"{TOPIC}-0/*.log")
    broken = files[0 if which == "first" else -1]
    before = broken.read_bytes()
    break_file(broken, how)
    with eoslog.open(path) as store:
        expected = [value_of(1, offset) for offset in range(RECORDS)]
        assert read_values(store, 1) == expected
        read_what_is_there(store)
        try:
            problems = store.verify()
        except EoslogError as error:
            problems = [error]
        if how in ("flip", "noise") and state == "clean":
            assert problems, "verify() finds nothing"
    if broken.exists() and how == "delete":
        assert len(before) != broken.stat().st_size


def read_what_is_there(store: eoslog.Store) -> None:
    """Each record that is handed out is the one that was written there."""
    try:
        log = engine_of(store).partition(TOPIC, 0)
    except CorruptRecordError as error:
        assert f"{TOPIC}-0" in str(error)
        return
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            records, next_offset = log.fetch_records(offset, 1, 1)
        except CorruptRecordError as error:
            assert error.path and error.reason
            offset += 1
            continue
        for record in records:
            assert record.value == value_of(0, record.offset)
        offset = max(next_offset, offset + 1)


@pytest.mark.parametrize("how", LOG_WAYS)
def test_a_broken_internal_log_is_named_or_cut(store_path, how):
    """Names and positions are in it: none is ever given out with a wrong position."""
    path = store_path("unclean")
    for file in chosen(path, "__transaction_state-*/*.log"):
        break_file(file, how)
    try:
        store = eoslog.open(path)
    except EoslogError as error:
        assert "__transaction_state" in str(error) or error.__cause__ is not None
        return
    with store:
        expected = [value_of(0, offset) for offset in range(RECORDS)]
        assert read_values(store, 0) == expected


@pytest.mark.parametrize("how", ["empty", "half", "noise", "zeros", "foreign"])
def test_meta_properties_that_is_none(store_path, how):
    path = store_path("clean")
    before = snapshot_of(path)
    file = path / "meta.properties"
    whole = file.read_bytes()
    break_file(file, how)
    if how == "half":
        file.write_bytes(whole[:20])
    with pytest.raises(NotAStoreError, match="store"):
        eoslog.open(path)
    with pytest.raises(NotAStoreError):
        eoslog.open(path, create=True)
    file.write_bytes(whole)
    assert snapshot_of(path) == before, "a refused opening has changed something"
    with eoslog.open(path) as store:
        check_whole(store)


def snapshot_of(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def test_a_newer_version_is_refused_by_name(store_path):
    path = store_path("clean")
    file = path / "meta.properties"
    newer = file.read_text().replace("eoslog.store.version=1", "eoslog.store.version=2")
    assert newer != file.read_text()
    file.write_text(newer)
    before = snapshot_of(path)
    with pytest.raises(StoreVersionError, match="2"):
        eoslog.open(path)
    assert snapshot_of(path) == before


@pytest.mark.parametrize("how", ["empty", "half", "noise", "zeros", "foreign"])
def test_a_broken_list_of_topics_is_named(store_path, how):
    path = store_path("clean")
    file = path / "state" / "topics.json"
    whole = file.read_bytes()
    break_file(file, how)
    with pytest.raises(CorruptRecordError) as caught:
        eoslog.open(path)
    assert caught.value.path == str(file)
    file.write_bytes(whole)
    with eoslog.open(path) as store:
        check_whole(store)


def test_a_lost_list_of_topics_is_rebuilt(store_path):
    path = store_path("clean")
    (path / "state" / "topics.json").unlink()
    with eoslog.open(path) as store:
        assert store.topics()[TOPIC].partitions == PARTITIONS
        check_whole(store)


@pytest.mark.parametrize("how", WAYS)
def test_partition_metadata(store_path, how):
    """Another topic's directory is not taken for this one's; a lost file is written anew."""
    path = store_path("clean")
    for file in chosen(path, f"{TOPIC}-*/partition.metadata"):
        break_file(file, how)
    with eoslog.open(path) as store:
        try:
            check_whole(store)
        except EoslogError as error:
            assert "partition.metadata" in str(error)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"{", bytes(50), b'{"eoslog.session": 7}', FOREIGN]
)
def test_a_strange_mark_of_a_clean_close(store_path, content):
    path = store_path("clean")
    (path / ".kafka_cleanshutdown").write_bytes(content)
    with eoslog.open(path) as store:
        check_whole(store)


@pytest.mark.parametrize("content", [b"", b"{}", bytes(9), b'{"version": 9}', FOREIGN])
def test_a_strange_list_of_unrecovered_partitions(store_path, content):
    path = store_path("unclean")
    (path / "state" / "unrecovered.json").write_bytes(content)
    with eoslog.open(path) as store:
        check_whole(store)


def test_checkpoints_that_lie(store_path):
    """A recovery point beyond the log, a log start beyond its end: no record is lost by them."""
    path = store_path("unclean")
    lines = [f"{TOPIC} {partition} 1000000" for partition in range(PARTITIONS)]
    text = "\n".join(["0", str(len(lines)), *lines]) + "\n"
    (path / "recovery-point-offset-checkpoint").write_text(text)
    with eoslog.open(path) as store:
        check_whole(store)
