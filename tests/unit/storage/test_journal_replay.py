"""What a recovery makes of journals: whole, torn, stale, damaged; of topics that are gone."""

from __future__ import annotations

import errno
import logging
import os
import stat
from itertools import pairwise
from pathlib import Path

import pytest
from cli_calls import DONE, call
from commit_journals import AS_NEEDED, LARGE, SMALL, journal_of, with_journal
from partition_files import all_records
from stores import QUIET

import eoslog
from eoslog.bindings.commit_journal import BLOCK_BYTES, half_header, record_at
from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.unforked_file import UnforkedFile
from eoslog.errors import CorruptRecordError, EoslogError, StoreFailedError, StoreFullError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET
from eoslog.storage import journal_replay
from eoslog.storage.journal_replay import (
    DeadJournals,
    halves_of,
    journal_files,
    ranges_of,
    remove_journals,
    replay_journals,
)
from eoslog.storage.process_journal import ProcessJournal
from eoslog.storage.topic_registry import read_topics
from eoslog.store import files as store_files
from eoslog.store.store import abandon, engine_of, parts_of

COUNT = 6


def died(path, *, topic="t"):
    """A store whose process died; each of its records but the first is in the journal."""
    store = eoslog.open(path, create=True, durability="always", config=QUIET | LARGE)
    store.create_topic(topic)
    producer = store.producer()
    producer.append(topic, 0, [b"0"])
    with_journal(store)
    for number in range(1, COUNT):
        producer.append(topic, 0, [b"%d" % number])
    paths = parts_of(store).files.paths
    abandon(store)
    (journal,) = journal_files(paths)
    return paths, journal


def lose_the_files(paths, topic="t"):
    """The power went, and nothing of the segments behind the first record had been written."""
    for file in paths.root.glob(f"{topic}-*/*.log"):
        data = file.read_bytes()
        size = int.from_bytes(data[8:12], "big") + 12
        file.write_bytes(data[:size] + bytes(len(data) - size))


def values_after(paths, topic="t"):
    with eoslog.open(paths.root, config=QUIET | AS_NEEDED) as store:
        assert store.verify() == []
        assert not journal_files(paths)
        return [one.value for one in all_records(engine_of(store).partition(topic, 0))]


def replay(paths):
    topics = (read_topics(paths.state) or {}).values()
    return replay_journals(paths, topics, lambda _: 0)


def numbers(count):
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def dead(tmp_path):
    paths, journal = died(tmp_path / "store")
    lose_the_files(paths)
    return paths, journal


def test_all_records_are_written_back(dead):
    paths, journal = dead
    assert [one.end_offset for one in ranges_of(journal)] == list(range(2, COUNT + 1))
    assert values_after(paths) == numbers(COUNT)


@pytest.mark.parametrize("at", [0, 100, 4000])
@pytest.mark.parametrize("whole", range(COUNT - 1))
def test_the_records_before_the_first_broken_one_count(dead, whole, at):
    """A write that was cut off: what is behind it was never written."""
    paths, journal = dead
    data = bytearray(journal.read_bytes())
    first = BLOCK_BYTES * (1 + whole)
    data[first + at : len(data) // 2] = bytes(len(data) // 2 - first - at)
    journal.write_bytes(data)
    # So little of a record stands in its block that the end of it is zeros anyway.
    count = 1 + whole + (at == 4000)
    assert values_after(paths) == numbers(count)


def test_a_broken_record_before_a_whole_one_is_damage(dead):
    paths, journal = dead
    data = bytearray(journal.read_bytes())
    data[3 * BLOCK_BYTES + 60] ^= 1
    journal.write_bytes(data)
    files = {file: file.read_bytes() for file in paths.root.glob("t-*/*.log")}
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"record 3 is damaged, and record 4") as error:
            eoslog.open(paths.root, config=AS_NEEDED)
        assert error.value.path == str(journal)
        assert journal.read_bytes() == data
        assert files == {file: file.read_bytes() for file in paths.root.glob("t-*/*.log")}
    data[3 * BLOCK_BYTES + 60] ^= 1
    journal.write_bytes(data)
    assert values_after(paths) == numbers(COUNT)


@pytest.fixture
def both_halves(tmp_path, monkeypatch):
    """The first half is full of records of t-0, the second one has some of t-1. The first record of
    each went by its file.
    """
    monkeypatch.setattr(ProcessJournal, "empty_all", lambda _: True)
    store = eoslog.open(tmp_path / "store", create=True, durability="always", config=QUIET | SMALL)
    store.create_topic("t", partitions=2)
    with_journal(store)
    producer = store.producer()
    for number in range(16):
        producer.append("t", 0, [b"%d" % number])
    for number in range(4):
        producer.append("t", 1, [b"%d" % number])
    paths = parts_of(store).files.paths
    abandon(store)
    (journal,) = journal_files(paths)
    return paths, journal


def test_the_halves_know_of_each_other(both_halves):
    _, journal = both_halves
    assert [(one.end, one.other_end) for one in halves_of(journal)] == [
        ((1, 15), (1, 0)),
        ((1, 3), (1, 15)),
    ]


@pytest.mark.parametrize("record", [1, 7, 15])
def test_a_broken_record_before_the_other_half_was_begun_is_damage(both_halves, record):
    """Ends of logs would not tell: the other half may have none of that one. All that were written
    after the broken one are gone, as after a write that was cut off.
    """
    paths, journal = both_halves
    kept = journal.read_bytes()
    first = record * BLOCK_BYTES
    journal.write_bytes(kept[:first] + bytes(16 * BLOCK_BYTES - first) + kept[16 * BLOCK_BYTES :])
    lose_the_files(paths)
    match = rf"at byte {first}: record {record} is damaged, and the other half was begun after it"
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=match):
            eoslog.open(paths.root, config=AS_NEEDED)
    journal.write_bytes(kept)
    assert values_after(paths) == numbers(16)


def test_the_newest_record_of_a_journal_looks_like_a_write_that_was_cut_off(both_halves):
    """Which it may be: nothing was written after it."""
    _, journal = both_halves
    data = bytearray(journal.read_bytes())
    data[19 * BLOCK_BYTES + 80] ^= 1
    journal.write_bytes(data)
    assert [len(one.ranges) for one in halves_of(journal)] == [15, 2]


def test_a_half_that_was_retired_since_has_nothing_to_lose(both_halves):
    """Its header has the next epoch; records of it may be there or not."""
    _, journal = both_halves
    data = bytearray(journal.read_bytes())
    data[40:48] = (2).to_bytes(8, "little")  # The epoch.
    data[8:12] = crc32c(bytes(data[12:48])).to_bytes(4, "little")
    journal.write_bytes(data)
    assert [one.end for one in halves_of(journal)] == [(2, 0), (1, 3)]


def test_a_header_that_is_lost_is_damage(both_halves):
    _, journal = both_halves
    data = journal.read_bytes()
    journal.write_bytes(bytes(BLOCK_BYTES) + data[BLOCK_BYTES:])
    with pytest.raises(CorruptRecordError, match="the other half was begun after it"):
        list(halves_of(journal))


@pytest.mark.parametrize("at", [0, 8, 12, 16, 32, 40, 47])
def test_a_damaged_header_is_named(dead, at):
    paths, journal = dead
    data = bytearray(journal.read_bytes())
    data[at] ^= 1
    journal.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="header is damaged"):
        eoslog.open(paths.root, config=AS_NEEDED)
    assert journal.read_bytes() == data


def test_a_file_that_was_cut_short_is_named(dead):
    paths, journal = dead
    data = journal.read_bytes()
    journal.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptRecordError, match="its halves have"):
        eoslog.open(paths.root, config=AS_NEEDED)
    journal.write_bytes(data)
    assert values_after(paths) == numbers(COUNT)


def test_records_of_an_earlier_epoch_do_not_count(tmp_path):
    path = tmp_path / "store"
    store = eoslog.open(path, create=True, durability="always", config=QUIET | LARGE)
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"0"])
    journal = journal_of(with_journal(store))
    producer.append("t", 0, [b"1"])
    journal.journal.stop()
    engine_of(store).partition("t", 0).flush()
    for half in journal.journal.full_halves():
        assert journal.journal.empty(half)
    data = journal.path.read_bytes()
    assert half_header(data[:BLOCK_BYTES], 0)[2] == 2
    assert record_at(data, BLOCK_BYTES)[1:3] == (1, 1)
    assert list(ranges_of(journal.path)) == []
    store.close()


def test_a_file_that_was_never_finished_holds_nothing(tmp_path):
    paths, journal = died(tmp_path / "store")
    journal.unlink()
    (paths.journals / "00ff-0.tmp").write_bytes(b"x" * 10_000)
    (paths.journals / "00ff-1").write_bytes(bytes(1 << 17))
    assert values_after(paths) == numbers(COUNT)


@pytest.mark.parametrize("what", ["a pipe", "a directory", "a link", "a socket", "text", "nothing"])
def test_what_is_in_the_place_of_a_journal_is_named(dead, what):
    """It never hangs, and nothing is changed."""
    paths, _ = dead
    odd = paths.journals / "00ff-0"
    put(odd, what)
    with pytest.raises(EoslogError, match=str(odd)):
        eoslog.open(paths.root, config=AS_NEEDED)
    odd.rmdir() if what == "a directory" else odd.unlink()
    assert values_after(paths) == numbers(COUNT)


@pytest.mark.parametrize("what", ["a pipe", "a directory", "a link", "a socket", "text", "nothing"])
@pytest.mark.parametrize("name", ["readme", "x.tmp", "copy of 00ff-0"])
def test_what_has_no_journals_name_is_left_alone(dead, what, name, caplog):
    paths, _ = dead
    put(paths.journals / name, what)
    assert values_after(paths) == numbers(COUNT)
    assert [one.name for one in paths.journals.iterdir()] == [name]
    assert f"{name} is no commit journal" in caplog.text


def put(path: Path, what: str) -> None:
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a directory":
        path.mkdir()
    elif what == "a link":
        path.symlink_to("/dev/zero")
    elif what == "a socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.write_bytes(b"to be kept" if what == "text" else b"")


def test_a_topic_that_is_gone_or_has_another_id_is_passed_over(tmp_path):
    path = tmp_path / "store"
    paths, journal = died(path)
    kept = journal.read_bytes()
    with eoslog.open(path, config=AS_NEEDED) as store:
        store.delete_topic("t")
        store.create_topic("t")
        store.producer().append("t", 0, [b"of the new one"])
        abandon(store)
    journal.write_bytes(kept)
    assert values_after(paths) == [b"of the new one"]


def test_a_deleted_segment_does_not_come_back(tmp_path):
    path = tmp_path / "store"
    paths, journal = died(path)
    kept = journal.read_bytes()
    store = eoslog.open(path, durability="always", config=QUIET | AS_NEEDED)
    partition = engine_of(store).partition("t", 0)
    partition.roll()
    store.producer().append("t", 0, [b"new"])
    partition.flush()
    partition.delete_segments(COUNT)
    abandon(store)
    journal.write_bytes(kept)
    with eoslog.open(path, config=AS_NEEDED) as store:
        partition = engine_of(store).partition("t", 0)
        assert partition.log_start_offset == COUNT
        assert [one.value for one in all_records(partition)] == [b"new"]
        assert store.verify() == []
    assert [one.name for one in paths.root.glob("t-0/*.log")] == [f"{COUNT:020d}.log"]


@pytest.mark.parametrize("opened", ["store", "repair"])
def test_a_deleted_segment_does_not_come_back_though_the_log_start_is_lost(tmp_path, opened):
    """The journal holds both; the newer one alone is there."""
    path = tmp_path / "store"
    store = with_journal(eoslog.open(path, create=True, durability="always", config=QUIET | LARGE))
    store.create_topic("t")
    producer, partition = store.producer(), engine_of(store).partition("t", 0)
    for number in range(COUNT):
        producer.append("t", 0, [b"%d" % number])
    partition.roll()
    partition.flush()
    for number in range(COUNT, 2 * COUNT):
        producer.append("t", 0, [b"%d" % number])
    partition.delete_segments(COUNT)
    paths = parts_of(store).files.paths
    abandon(store)
    (path / LOG_START_OFFSET).unlink()
    (journal,) = journal_files(paths)
    assert {one.base_offset for one in ranges_of(journal)} == {0, COUNT}
    if opened == "repair":
        assert call("verify", "--repair", "--store", path).status == DONE
    assert values_after(paths) == numbers(2 * COUNT)[COUNT:]
    assert [one.name for one in path.glob("t-0/*.log")] == [f"{COUNT:020d}.log"]
    assert not list(paths.cut.rglob("*.log"))


def test_a_segment_whose_name_was_lost_is_made_again(tmp_path):
    path = tmp_path / "store"
    paths, _ = died(path)
    (segment,) = paths.root.glob("t-0/*.log")
    data = segment.read_bytes()
    segment.unlink()
    assert replay(paths) == COUNT - 1
    size = int.from_bytes(data[8:12], "big") + 12
    end = data.rindex(b"%d" % (COUNT - 1)) + 1
    assert segment.read_bytes()[size:end] == data[size:end]


def test_journals_beside_a_clean_stop_do_not_count(tmp_path, caplog, monkeypatch):
    """A broker ran on the directory in between, and left its trace of a clean stop."""
    path = tmp_path / "store"
    paths, journal = died(path)
    kept = journal.read_bytes()
    with eoslog.open(path, config=AS_NEEDED):
        pass
    journal.write_bytes(kept)
    forget, left = store_files.forget_last_stop, []

    def noted(*files):
        left.append(journal_files(paths))
        forget(*files)

    monkeypatch.setattr(store_files, "forget_last_stop", noted)
    with caplog.at_level(logging.ERROR), eoslog.open(path, config=AS_NEEDED) as store:
        # Without that trace they would count.
        assert left == [[]]
        assert "another program ran on the store" in caplog.text
        assert not journal_files(paths)
        assert store.verify() == []


def test_a_repair_writes_back_first_and_a_rehearsal_changes_nothing(dead):
    """What looks like a torn tail, or a lost end, is in the journal."""
    paths, _ = dead
    (segment,) = paths.root.glob("t-0/*.log")
    with segment.open("r+b") as file:
        file.seek(int.from_bytes(segment.read_bytes()[8:12], "big") + 12)
        file.write(b"torn")
    kept = (*paths.root.glob("*-*/*"), *paths.journals.iterdir())
    before = {one: one.read_bytes() for one in kept}
    rehearsed = call("verify", "--repair", "--dry-run", "--store", paths.root)
    assert rehearsed.status == DONE, rehearsed
    assert "cut" not in rehearsed.stdout
    for one, data in before.items():
        assert one.read_bytes() == data, one
    repaired = call("verify", "--repair", "--store", paths.root)
    assert repaired.status == DONE, repaired
    assert not list(paths.cut.rglob("*.log"))
    assert values_after(paths) == numbers(COUNT)


def test_a_second_replay_changes_nothing(dead):
    paths, journal = dead
    kept = journal.read_bytes()
    assert values_after(paths) == numbers(COUNT)
    (paths.root / ".kafka_cleanshutdown").unlink()
    journal.write_bytes(kept)
    assert values_after(paths) == numbers(COUNT)


def test_what_was_written_back_is_synced_before_the_journals_go(dead, monkeypatch):
    paths, journal = dead
    (segment,) = paths.root.glob("t-0/*.log")
    synced = []

    def noted(file):
        synced.append((str(Path(f"/proc/self/fd/{file}").readlink()), journal.exists()))

    monkeypatch.setattr(journal_replay.os, "fsync", noted)
    monkeypatch.setattr(
        journal_replay,
        "sync_directory",
        lambda folder: synced.append((str(folder), journal.exists())),
    )
    assert replay(paths) == COUNT - 1
    assert synced == [
        (str(segment), True),
        (str(segment.parent), True),
        (str(paths.journals), False),
    ]


@pytest.mark.parametrize("call", ["pwritev", "fsync"])
def test_a_full_disk_keeps_the_journals(dead, monkeypatch, call):
    """What was written back of the first ones stands there; the next opening writes all again."""
    paths, journal = dead
    kept = journal.read_bytes()
    real, calls = getattr(os, call), []

    def refused(*arguments):
        calls.append(arguments)
        if call == "fsync" or len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        descriptor, pieces, position = arguments
        return real(descriptor, [pieces[0][:100]], position)

    with monkeypatch.context() as patched:
        patched.setattr(journal_replay.os, call, refused)
        for _ in range(2):
            with pytest.raises(StoreFullError):
                replay(paths)
    assert calls
    assert journal.read_bytes() == kept
    assert values_after(paths) == numbers(COUNT)


def test_removing_none_is_nothing(tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        remove_journals(parts_of(store).files.paths)


def test_a_clean_close_has_no_journal_come_back(tmp_path, monkeypatch):
    """One that another process removed too: it would stand beside the trace of a clean stop."""
    path = tmp_path / "store"
    store = with_journal(eoslog.open(path, create=True, config=QUIET | LARGE))
    paths = parts_of(store).files.paths
    remove_journals(paths)
    synced = []
    monkeypatch.setattr(journal_replay, "sync_directory", synced.append)
    store.close()
    assert synced == [paths.journals]


def test_a_process_that_died_has_its_journal_retired_by_another(tmp_path):
    """Simulated by its file: the lock is free, and what it holds was not synced."""
    path = tmp_path / "store"
    _, journal = died(path)
    kept = journal.read_bytes()
    with eoslog.open(path, durability="always", config=QUIET | AS_NEEDED) as store:
        store.producer().append("t", 0, [b"more"])
        journal.write_bytes(kept)
        parts_of(store).checkpointer.peers.dead_journals.retire()
        assert not journal.exists()
        assert engine_of(store).partition("t", 0).recovery_point >= COUNT


def test_a_journal_that_its_process_removed_meanwhile_is_none_of_a_dead_one(tmp_path, monkeypatch):
    path = tmp_path / "store"
    _, journal = died(path)
    kept = journal.read_bytes()

    class Closing(UnforkedFile):
        def lock(self, **how):
            journal.unlink()
            return super().lock(**how)

    with eoslog.open(path, durability="always", config=QUIET | AS_NEEDED) as store:
        journal.write_bytes(kept)
        monkeypatch.setattr(journal_replay, "UnforkedFile", Closing)
        parts_of(store).checkpointer.peers.dead_journals.retire()
        assert not journal.exists()


class BrokenPartition:
    """One whose sync failed: what a journal has of it stays."""

    log_end_offset = COUNT

    def __init__(self) -> None:
        self.calls = 0

    def sync_up_to(self, offset):
        self.calls += 1
        raise StoreFailedError("a sync failed")


def test_a_journal_that_cannot_be_retired_keeps_no_other_one(tmp_path, monkeypatch):
    paths, journal = died(tmp_path / "store")
    journal = journal.rename(paths.journals / "77-0")
    broken = BrokenPartition()
    now_s = [100.0]
    monkeypatch.setattr(journal_replay.time, "monotonic", lambda: now_s[0])
    # In this order: one before the broken one, and two after it.
    (paths.journals / "00-0.tmp").touch()
    for name in ("ff-0", "ff-1.tmp"):
        (paths.journals / name).write_bytes(journal.read_bytes() if name == "ff-0" else b"")
    topics = (read_topics(paths.state) or {}).values()
    dead = DeadJournals(
        paths, lambda _: False, lambda: topics if broken.calls < 1 else (), lambda _: broken
    )
    with pytest.raises(StoreFailedError):
        dead.retire()
    assert journal_files(paths) == [journal]
    # Each time it is left alone for twice as long, a minute at most.
    dead = DeadJournals(paths, lambda _: False, lambda: topics, lambda _: broken)
    broken.calls = 0
    tried_s = []
    for _ in range(200):
        calls = broken.calls
        try:
            dead.retire()
        except StoreFailedError:
            assert broken.calls == calls + 1
            tried_s.append(now_s[0])
        now_s[0] += 1
    assert [b - a for a, b in pairwise(tried_s)] == [1, 2, 4, 8, 16, 32, 60, 60]
    dead = DeadJournals(paths, lambda _: False, lambda: (), lambda _: broken)
    assert dead.retire() == 1
    assert journal_files(paths) == []
