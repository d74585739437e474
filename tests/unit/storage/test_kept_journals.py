"""Files of journals that a closed store keeps: taken by the next opening, and never replayed."""

from __future__ import annotations

import os

import pytest
from commit_journals import LARGE, SMALL, journal_of, with_journal
from partition_files import all_records
from stores import QUIET

import eoslog
from eoslog.common.config import NO_LIMIT
from eoslog.session.paths import StorePaths
from eoslog.storage import kept_journals, process_journal
from eoslog.storage.journal_replay import journal_files, ranges_of
from eoslog.storage.kept_journals import KEPT_MAX, keep_journal, take_kept_journal
from eoslog.store.store import abandon, engine_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def paths(path):
    return StorePaths(path)


def opened(path, **settings):
    store = eoslog.open(path, create=True, durability="always", config=QUIET | settings)
    if "t" not in store.topics():
        store.create_topic("t")
        store.producer().append("t", 0, [b"first"])  # A sync of the file, whose name is new.
    return store


def kept_in(paths):
    return sorted(paths.kept_journals.glob("*"))


def values_of(store):
    return [one.value for one in all_records(engine_of(store).partition("t", 0))]


def closed_with_a_journal(path, settings=SMALL):
    """A store that was closed; it had a journal with records."""
    with with_journal(opened(path, **settings)) as store:
        store.producer().append("t", 0, [b"second"])


def test_the_next_opening_takes_the_file_of_a_clean_close(path, paths):
    closed_with_a_journal(path)
    (kept,) = kept_in(paths)
    inode = kept.stat().st_ino
    assert [one.end_offset for one in ranges_of(kept)] == [2]
    with with_journal(opened(path, **SMALL)) as store:
        assert journal_of(store).path.stat().st_ino == inode
        assert kept_in(paths) == []
        # What the file had is still in it, and counts no more.
        assert list(ranges_of(journal_of(store).path)) == []
        store.producer().append("t", 0, [b"third"])
        *_, newest = ranges_of(journal_of(store).path)
        assert newest.end_offset == 3
    assert [one.stat().st_ino for one in kept_in(paths)] == [inode]
    with opened(path) as store:
        assert values_of(store) == [b"first", b"second", b"third"]
        assert store.verify() == []


def test_without_a_size_the_largest_is_taken(path, paths, monkeypatch):
    monkeypatch.setattr(process_journal, "IN_MEMORY", frozenset())
    monkeypatch.setattr(process_journal, "HALF_BYTES_FIRST", process_journal.HALF_BYTES_MIN)
    closed_with_a_journal(path, LARGE)
    with opened(path, **{"eoslog.journal.bytes": NO_LIMIT}) as store:
        journal_of(store).journal.want()
        with_journal(store)
        assert journal_of(store).journal.half_bytes == LARGE["eoslog.journal.bytes"]
        assert kept_in(paths) == []


def test_a_file_of_another_size_is_left(path, paths):
    closed_with_a_journal(path, LARGE)
    (kept,) = kept_in(paths)
    with with_journal(opened(path, **SMALL)) as store:
        assert journal_of(store).journal.half_bytes == process_journal.HALF_BYTES_MIN
        assert kept_in(paths) == [kept]


def test_a_file_that_a_copy_of_the_store_has_too_is_not_written_to(path, paths, tmp_path):
    closed_with_a_journal(path)
    (kept,) = kept_in(paths)
    before = kept.read_bytes()
    os.link(kept, tmp_path / "copy")
    with with_journal(opened(path, **SMALL)) as store:
        store.producer().append("t", 0, [b"third"])
    assert (tmp_path / "copy").read_bytes() == before


def test_so_many_are_kept_and_the_smallest_make_way(path, paths, monkeypatch):
    monkeypatch.setattr(kept_journals, "FILE_BYTES_MAX", 100)

    def keep(size_bytes):
        one = path.with_name("journal")
        one.write_bytes(bytes(size_bytes))
        keep_journal(paths, one)
        assert not one.exists()
        return sorted(one.stat().st_size for one in kept_in(paths))

    paths.state.mkdir(parents=True)
    for number in range(KEPT_MAX):
        assert keep(10 + number) == list(range(10, 11 + number))
    assert keep(9) == [10, 11, 12, 13]
    assert keep(20) == [11, 12, 13, 20]
    assert keep(101) == [11, 12, 13, 20]
    target = path.with_name("taken")
    assert take_kept_journal(paths, 12, 19, target) == 13 == target.stat().st_size
    assert take_kept_journal(paths, 14, 19, target) is None


def test_each_process_that_closes_keeps_its_file(path, paths):
    closed_with_a_journal(path)
    with opened(path, **SMALL) as one:
        with_journal(one)
        made = path.with_name("of another process")
        made.write_bytes(journal_of(one).path.read_bytes())
        keep_journal(paths, made)
        assert len(kept_in(paths)) == 1
    assert len(kept_in(paths)) == 2


def test_after_an_unclean_stop_none_is_left(path, paths):
    """A power cut may leave two names of one file, and another one its records in it."""
    store = with_journal(opened(path, **SMALL))
    store.producer().append("t", 0, [b"second"])
    journal = journal_of(store).path
    (log,) = path.glob("t-0/*.log")
    saved = log.read_bytes()
    abandon(store)
    end = saved.index(b"first") + len(b"first")
    log.write_bytes(saved[: end + 1] + bytes(len(saved) - end - 1))
    paths.kept_journals.mkdir()
    os.link(journal, paths.kept_journals / "0")
    with opened(path, **{"eoslog.journal.bytes": 0}) as store:
        assert values_of(store) == [b"first", b"second"]
        assert kept_in(paths) == journal_files(paths) == []


@pytest.mark.parametrize("names", [("kept", "unfinished"), ("unfinished",), ("kept",)])
def test_a_file_that_was_being_taken_does_not_count(path, paths, names):
    closed_with_a_journal(path)
    (kept,) = kept_in(paths)
    store = opened(path, **{"eoslog.journal.bytes": 0})
    abandon(store)
    paths.journals.mkdir(exist_ok=True)
    if "unfinished" in names:
        os.link(kept, paths.journals / f"{'0' * 16}-{'0' * 8}.tmp")
        assert journal_files(paths)
    if "kept" not in names:
        kept.unlink()
    with opened(path, **{"eoslog.journal.bytes": 0}) as store:
        assert kept_in(paths) == journal_files(paths) == []
        assert values_of(store) == [b"first", b"second"]
