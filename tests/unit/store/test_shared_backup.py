"""Backups that share files with the store or with an earlier backup: no side sees a change of the
other.
"""

import os
import shutil

import pytest
from commit_journals import LARGE, journal_of, with_journal
from stores import values_of

import eoslog
from eoslog import TopicPartition
from eoslog.errors import NotAStoreError, StoreError
from eoslog.store.store import engine_of, parts_of

T0 = TopicPartition("t", 0)
SMALL = {"segment.bytes": 4096}


@pytest.fixture
def store(open_store):
    """Durable, so that what is sealed is synced by the flush; spares are reused."""
    store = open_store("commit", eoslog__spare__segments=2)
    store.create_topic("t", config=SMALL)
    append(store, 40)
    store.flush()
    return store


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy"


def append(store, count):
    partition = engine_of(store).partition("t", 0)
    for _ in range(count):
        partition.append_columns([b"%06d" % partition.log_end_offset + bytes(500)])
    return partition


def numbers_of(store):
    return [int(value[:6]) for value in values_of(store, "t")]


def logs_below(path):
    return {one.name: one.read_bytes() for one in sorted((path / "t-0").glob("*.log"))}


def inodes_of(path):
    return {one.name: one.stat().st_ino for one in sorted((path / "t-0").glob("*.log"))}


def shared_names(one, other):
    ours, theirs = inodes_of(one), inodes_of(other)
    return [name for name, inode in ours.items() if theirs.get(name) == inode]


def change_in_all_ways(store):
    """Append, roll, commit, compact, delete records with their files, reuse these, and close."""
    partition = append(store, 60)
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.append("t", 0, [b"%06d" % partition.log_end_offset])
    checkpointer = parts_of(store).checkpointer
    checkpointer.write_checkpoints()
    store.delete_records({T0: 30})
    partition.prepare_spare()
    partition.log.free_deleted()
    append(store, 60)
    store.alter_topic("t", {"retention.bytes": 8192})
    checkpointer.retain()
    assert partition.log.first_base_offset > 30
    append(store, 60)
    assert store.verify() == []


@pytest.mark.parametrize("kind", ["link", "earlier"])
def test_no_side_sees_what_the_other_does(store, copy, open_store, kind):
    others = {}
    if kind == "link":
        result = store.backup(copy, link=True)
        shared = shared_names(store.path, copy)
    else:
        first = copy.with_name("first")
        store.backup(first)
        result = store.backup(copy, earlier=first)
        shared = shared_names(first, copy)
        assert shared_names(store.path, copy) == []
        others[first] = logs_below(first)
    names = list(inodes_of(copy))
    assert len(shared) > 3
    assert shared == names[: len(shared)]
    assert names[-1] not in shared  # The active one.
    sizes = [(copy / "t-0" / name).stat().st_size for name in shared]
    assert result.linked_bytes == sum(sizes)
    before = logs_below(copy)
    change_in_all_ways(store)
    assert logs_below(copy) == before
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(40))
        assert of_then.verify() == []
        of_store = logs_below(store.path)
        change_in_all_ways(of_then)
        assert logs_below(store.path) == of_store
    for path, content in others.items():
        assert logs_below(path) == content
    store.close()
    assert logs_below(copy) != before
    with open_store("commit") as again:
        assert again.verify() == []


def test_commits_still_go_through_the_journal(open_store, copy):
    """A log goes by its files while its active segment has two names: that one is never shared."""
    store = with_journal(open_store("commit", **LARGE))
    store.create_topic("t", config=SMALL)
    partition = append(store, 40)
    store.flush()
    assert store.backup(copy, link=True).linked_bytes > 0
    journal = journal_of(store).journal
    records, syncs = journal.counts["records"], partition.log.sync_count
    with store.producer() as producer:
        producer.send("t", b"%06d" % 0)
        producer.flush()
    assert journal.counts["records"] == records + 1
    assert partition.log.sync_count == syncs


def test_what_is_not_synced_is_copied(open_store, copy):
    store = open_store("process")
    store.create_topic("u", config=SMALL)
    partition = engine_of(store).partition("u", 0)
    for _ in range(40):
        partition.append_columns([bytes(500)])
    assert store.backup(copy, link=True).linked_bytes == 0
    partition.flush()
    assert store.backup(copy.with_name("second"), link=True).linked_bytes > 0


def test_internal_topics_are_copied(store, copy):
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
    partition = parts_of(store).files.state_log.partition_of("x")
    partition.roll()
    store.flush()
    store.backup(copy, link=True)
    for path in copy.glob("__*/*.log"):
        assert path.stat().st_nlink == 1


def test_what_changed_since_is_copied(store, copy):
    first, second = copy.with_name("1"), copy.with_name("2")
    store.backup(first)
    sealed = list(inodes_of(first))[:-1]
    append(store, 40)
    store.backup(second, earlier=first)
    # The active segment of then was sealed since, with more in it.
    assert shared_names(first, second) == sealed
    third = store.backup(copy, earlier=second)
    assert shared_names(second, copy) == list(inodes_of(second))[:-1]
    assert third.damaged_earlier == ()
    # Without the others each is whole.
    shutil.rmtree(first)
    shutil.rmtree(second)
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(80))
        assert of_then.verify() == []


def test_another_segment_of_the_same_name_and_size_is_copied(store, copy):
    """As after a power cut that took records which an earlier backup has."""
    first = copy.with_name("first")
    store.backup(first)
    name = next(iter(inodes_of(store.path)))
    path = store.path / "t-0" / name
    os.utime(path)
    store.backup(copy, earlier=first)
    assert name not in shared_names(first, copy)
    assert shared_names(first, copy)


@pytest.mark.parametrize("where", ["batch", "end", "offset"])
def test_what_became_damaged_in_the_earlier_backup_is_copied_from_the_store(store, copy, where):
    first = copy.with_name("first")
    store.backup(first)
    path = first / "t-0" / list(inodes_of(first))[1]
    found = path.stat()
    place = {"batch": 100, "end": found.st_size - 1, "offset": 7}[where]
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 0x10]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    result = store.backup(copy, earlier=first)
    assert result.damaged_earlier == (path,)
    assert path.name not in shared_names(first, copy)
    with eoslog.open(copy) as of_then:
        assert of_then.verify() == []


def test_a_backup_of_another_store_or_none_is_refused(store, copy, tmp_path):
    with eoslog.open(tmp_path / "other", create=True):
        pass
    with pytest.raises(StoreError, match="is no backup of"):
        store.backup(copy, earlier=tmp_path / "other")
    with pytest.raises(NotAStoreError):
        store.backup(copy, earlier=tmp_path / "none")
    for wrong in (3, b"x"):
        with pytest.raises(TypeError, match="earlier"):
            store.backup(copy, earlier=wrong)
    assert not copy.exists()


def test_where_files_cannot_be_linked_they_are_copied(store, copy, monkeypatch):
    from eoslog.store import backup as module

    monkeypatch.setattr(module, "link_if_possible", lambda *_: False)
    assert store.backup(copy, link=True).linked_bytes == 0
    with eoslog.open(copy) as of_then:
        assert numbers_of(of_then) == list(range(40))
