"""The process dies at each numbered step of docs/crash-points.md, and comes back.

Whatever the step: all that was appended is there, once, in order; a name goes on where the log
ends; an old batch sent again is a duplicate.
"""

import contextlib
import time

import pytest
from stores import QUIET, values_of

import eoslog
from eoslog import TopicPartition
from eoslog.fs import atomic_file
from eoslog.producer.producer import Producer
from eoslog.storage import (
    log_opener,
    offset_checkpoints,
    opened_partitions,
    partition_directory,
)
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store import files as store_files
from eoslog.store import parts
from eoslog.store import topics as store_topics
from eoslog.store.retention import apply_retention
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions import named_producers

T0 = TopicPartition("t", 0)


class Crash(BaseException):
    """The process is dead from here on."""


def crash(*_arguments, **_named):
    raise Crash


def crash_after(original):
    def run(*arguments, **named):
        original(*arguments, **named)
        raise Crash

    return run


def after(target, name):
    """Crash when that function has done its work."""
    return lambda patch: patch.setattr(target, name, crash_after(getattr(target, name)))


def before(target, name):
    return lambda patch: patch.setattr(target, name, crash)


@pytest.fixture
def filled(open_store):
    """Two partitions, one open; 60 records of a name, 20 of another producer."""
    store = open_store("commit")
    store.create_topic("t", partitions=2, config={"segment.bytes": 1024})
    with store.producer(name="n") as producer:
        for number in range(20):
            producer.append("t", 0, [b"%0100d" % (3 * number + one) for one in range(3)])
    other = store.producer()
    other.append("t", 1, [b"other"] * 20)
    store.other, store.kept_open = other.producer_id, other
    return store


def check_all_there(open_store, other):
    """Open, look at everything, close cleanly, look again."""
    for _ in range(2):
        store = open_store("commit")
        assert [int(value) for value in values_of(store, "t")] == list(
            range(store.partition("t", 0).log_start_offset, 60)
        )
        assert values_of(store, "t", 1) == [b"other"] * 20
        assert store.producer(name="n").next_sequence("t", 0) == 60
        again = (
            engine_of(store)
            .partition("t", 1)
            .append_columns([b"other"] * 20, producer_id=other, producer_epoch=0, base_sequence=0)
        )
        assert (again.duplicate, again.base_offset) == (True, 0)
        assert store.verify() == []
        store.close()
        assert (store.path / ".kafka_cleanshutdown").exists()


CLOSING = {
    "C1": after(parts.Checkpointer, "stop"),
    "C2": after(Producer, "close"),
    "C3 rows": after(PartitionProducers, "persist"),
    "C3 files": after(UnifiedLog, "close"),
    "C4": after(store_files.CompactedLog, "persist"),
    "C5": before(store_files.StoreFiles, "_write_checkpoints"),
    "C6 aside": after(atomic_file, "write_aside"),
    "C6 first file": after(atomic_file, "put_in_place"),
    "C6": after(store_files.StoreFiles, "_write_checkpoints"),
    "C7": after(store_files, "write_lmdb_mark"),
    "C8": after(store_files, "write_clean_close"),
}


@pytest.mark.parametrize("step", CLOSING)
def test_a_crash_while_closing(filled, open_store, monkeypatch, step):
    with monkeypatch.context() as patch:
        CLOSING[step](patch)
        with pytest.raises(Crash):
            filled.close()
    assert (filled.path / ".kafka_cleanshutdown").exists() is (step == "C8")
    if not filled.closed or step == "C1":
        abandon(filled)
    check_all_there(open_store, filled.other)


OPENING = {
    "O1": after(store_files, "enter_store"),
    "O2": before(store_files.TopicRegistry, "load"),
    "O3": after(store_files, "read_last_stop"),
    "O4": after(store_files, "forget_last_stop"),
    "O6": after(store_files.CompactedLog, "load"),
    "O7 deletions": after(store_topics.StoreTopics, "finish_deletions"),
    "O7 jobs": after(parts.StagedJobs, "roll_forward"),
    "OP1": after(opened_partitions, "check_identity"),
    "OP2": after(log_opener.PartitionLog, "__init__"),
    "OP3": after(PartitionProducers, "restore"),
}


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("step", OPENING)
def test_a_crash_while_opening(filled, open_store, store_path, monkeypatch, step, clean):
    filled.close() if clean else abandon(filled)
    if step == "OP2":
        return_log = log_opener.PartitionLog

        def opened_then_crash(*arguments, **named):
            return_log(*arguments, **named).close(clean=False)
            raise Crash

        def patch_it(patch):
            patch.setattr(log_opener, "PartitionLog", opened_then_crash)
    else:
        patch_it = OPENING[step]
    with monkeypatch.context() as patch:
        patch_it(patch)
        store = None
        with pytest.raises(Crash):
            store = eoslog.open(store_path, config=QUIET)
            store.partition("t", 0)
    if store is not None:
        abandon(store)
    check_all_there(open_store, filled.other)


RETAINING = {
    "RT1": after(UnifiedLog, "sync_up_to"),
    "RT2": after(PartitionProducers, "save_copies_that_fit"),
    "RT3": after(named_producers.NamedProducers, "renew"),
    "RT4a": after(offset_checkpoints.OffsetCheckpoints, "_replace"),
    "RT4b": None,
    "RT6": after(UnifiedLog, "delete_below"),
}


def retain(store):
    """All of a partition is too old; where its log begins then."""
    config = {
        **parts_of(store).files.partitions.config_of(store.topics()["t"]),
        "retention.ms": 60_000,
    }
    later_ms = int(time.time() * 1000) + 2 * config["retention.ms"]
    partition = engine_of(store).partition("t", 0)
    apply_retention(partition, parts_of(store).files.names, config, later_ms)


def delete_records(store):
    """Up to the second record of a batch, in the middle of a segment."""
    store.delete_records({T0: 31})


@pytest.mark.parametrize("lost", ["", "lmdb", "snapshots"])
@pytest.mark.parametrize("step", RETAINING)
@pytest.mark.parametrize(("delete", "start"), [(retain, 60), (delete_records, 31)])
def test_a_crash_while_retaining(
    filled, open_store, store_path, monkeypatch, delete, start, step, lost
):
    store = filled
    partition = engine_of(store).partition("t", 0)
    if step == "RT4b":
        # The start is written down and seen, and all files are there.
        write_start = partition.write_start
        monkeypatch.setattr(partition, "write_start", crash_after(write_start))
    else:
        RETAINING[step](monkeypatch)
    with pytest.raises(Crash):
        delete(store)
    monkeypatch.undo()
    is_seen = step in {"RT4b", "RT6"}
    assert partition.log_start_offset == (start if is_seen else 0)
    files = sorted(int(path.stem) for path in store_path.glob("t-0/*.log"))
    assert files[0] == (start // 6 * 6 if step == "RT6" else 0)
    abandon(store)
    if lost == "lmdb":
        (store_path / "state" / "lmdb" / "data.mdb").unlink()
    if lost == "snapshots":
        for path in store_path.glob("t-*/*.snapshot"):
            path.unlink()
    is_written = is_seen or step == "RT4a"
    with open_store("commit") as again:
        assert again.partition("t", 0).log_start_offset == (start if is_written else 0)
    check_all_there(open_store, filled.other)


DELETING = {
    "TD1": after(store_topics.TopicRegistry, "mark_deleting"),
    "TD2": after(opened_partitions.OpenedPartitions, "remove"),
    "TD2 half": after(partition_directory, "remove_tree"),
    "TD3": after(named_producers.NamedProducers, "forget_topic"),
    "TD4": after(store_topics.TopicRegistry, "remove"),
}


@pytest.mark.parametrize("step", DELETING)
def test_a_crash_while_a_topic_is_deleted(filled, open_store, store_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        DELETING[step](patch)
        with pytest.raises(Crash):
            filled.delete_topic("t")
    abandon(filled)
    store = open_store()
    assert store.topics() == {}
    assert [path.name for path in store_path.rglob("t-*")] == []
    store.create_topic("t")
    assert store.producer(name="n").next_sequence("t", 0) == 0
    assert values_of(store, "t") == []


@pytest.mark.parametrize("step", ["TC1", "TC2"])
def test_a_crash_while_topics_are_created(store, open_store, monkeypatch, step):
    counts = {f"t{number}": 1 for number in range(40)}
    with monkeypatch.context() as patch:
        (before if step == "TC1" else after)(store_topics.TopicRegistry, "add")(patch)
        with pytest.raises(Crash):
            store.create_topics(counts)
    abandon(store)
    store = open_store()
    assert list(store.topics()) == ([] if step == "TC1" else list(counts))
    store.create_topics(counts, exist_ok=True)
    store.producer().append("t39", 0, [b"x"])
    assert values_of(store, "t39") == [b"x"]
    assert store.verify() == []


@pytest.mark.parametrize("step", ["TC1", "TC2"])
def test_a_crash_while_a_topic_is_created(store, open_store, monkeypatch, step):
    registry = store_topics.TopicRegistry
    with monkeypatch.context() as patch:
        (before if step == "TC1" else after)(registry, "add")(patch)
        with pytest.raises(Crash):
            store.create_topic("t", partitions=3)
    abandon(store)
    store = open_store()
    assert list(store.topics()) == ([] if step == "TC1" else ["t"])
    with contextlib.suppress(eoslog.errors.TopicAlreadyExistsError):
        store.create_topic("t", partitions=3)
    store.producer().append("t", 2, [b"x"])
    assert values_of(store, "t", 2) == [b"x"]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_crash_while_a_name_is_opened(filled, open_store, monkeypatch, point):
    where = store_files.CompactedLog
    with monkeypatch.context() as patch:
        (before if point == "before" else after)(where, "append")(patch)
        with pytest.raises(Crash):
            filled.producer(name="n")
    abandon(filled)
    check_all_there(open_store, filled.other)
