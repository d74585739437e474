"""The file with the topics of a store, which each change replaces."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from contextlib import nullcontext

import pytest
from harness.crew import started
from store_copies import copy_store

from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.shared_page import SharedPage
from eoslog.errors import CorruptRecordError, StoreFailedError, StoreFullError, StoreVersionError
from eoslog.fs import atomic_file
from eoslog.storage import topics_file
from eoslog.storage.topic_registry import TopicRegistry, new_topic, read_topics
from eoslog.storage.topics_file import read_entries

SESSION = bytes(range(16))
FILE = "topics.json"
PRELUDE = """
from pathlib import Path
from eoslog.bindings import file_descriptor
from eoslog.bindings.shared_page import SharedPage
from eoslog.fs import atomic_file
from eoslog.storage.topic_registry import TopicRegistry, new_topic
file_descriptor.is_in_memory = lambda fd: False
path = Path({path!r})
shared = SharedPage(str(path / "shared"), bytes(range(16)), create=False)
registry = TopicRegistry.load(path, path, shared)
def die():
    say("dies")
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Crash(BaseException):
    """The process dies here; nothing else of it runs."""


@pytest.fixture
def shared(tmp_path):
    return SharedPage(str(tmp_path / "shared"), SESSION, create=True)


@pytest.fixture
def registry(tmp_path, shared):
    return TopicRegistry.load(tmp_path, tmp_path, shared)


def topic(name, **config):
    return new_topic(name, 1, config)


def names(registry):
    return sorted(one.name for one in registry.all())


def names_in(path):
    return sorted(read_topics(path) or {})


def test_the_file_is_a_json_object_with_a_line_for_each_topic(registry, tmp_path, shared):
    registry.add(topic("a", **{"segment.bytes": 4096}), topic("b"))
    registry.add(topic("c"))
    registry.mark_deleting("b")
    registry.note_holes("c", 0, 7)
    registry.remove("a")
    document = json.loads((tmp_path / FILE).read_text())
    assert document["version"] == 3
    assert document["topics"] == read_entries(tmp_path)
    assert (tmp_path / FILE).read_bytes().count(b"\n") == 2 + len(document["topics"])
    again = TopicRegistry.load(tmp_path, tmp_path, shared)
    assert names(again) == ["c"]
    assert dict(again.get("c").holes_below) == {0: 7}
    assert [one.name for one in again.deleting()] == ["b"]
    assert read_entries(tmp_path)["b"]["deleting"]


def test_a_store_without_topics_has_a_file(registry, tmp_path, shared):
    assert read_entries(tmp_path) == {}
    registry.add(topic("t"))
    registry.remove("t")
    assert read_entries(tmp_path) == {}
    assert names(TopicRegistry.load(tmp_path, tmp_path, shared)) == []


def test_a_change_decodes_what_changed_alone(registry, monkeypatch, tmp_path, shared):
    registry.add(*(topic(f"t{number:03d}") for number in range(500)))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    parsed = []
    entries = reader._file.entries
    monkeypatch.setattr(
        reader._file, "entries", lambda lines: parsed.append(len(lines)) or entries(lines)
    )
    for number in range(20):
        registry.add(topic(f"u{number}"))
        assert reader.get(f"u{number}") is not None
        registry.remove(f"t{number:03d}")
        assert reader.get(f"t{number:03d}") is None
    assert parsed == [1, 0] * 20


# What is damaged.


@pytest.fixture
def content(registry, tmp_path):
    registry.add(topic("a", **{"segment.bytes": 4096}), topic("b"))
    return (tmp_path / FILE).read_bytes()


def test_a_bit_that_flips_is_noticed(content, tmp_path):
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / FILE).write_bytes(flipped)
        with pytest.raises((CorruptRecordError, StoreVersionError), match=r"topics\.json"):
            read_topics(tmp_path)


def test_a_torn_file_is_noticed(content, tmp_path):
    for length in range(len(content)):
        for rest in (b"", bytes(len(content) - length)):
            (tmp_path / FILE).write_bytes(content[:length] + rest)
            with pytest.raises(CorruptRecordError, match=r"topics\.json"):
                read_topics(tmp_path)
    (tmp_path / FILE).write_bytes(content + b"\n")
    with pytest.raises(CorruptRecordError):
        read_topics(tmp_path)


@pytest.mark.parametrize(
    "lines",
    [b"7", b'"a":', b'"a":{}', b'"":{}', b'"a":7', b'"a":null', b'"a":{},\n"a":{}', b"{}", b"\xff"],
)
def test_lines_that_nobody_wrote_are_named(tmp_path, lines):
    body = lines + b"\n}}\n"
    head = b'{"version": 3, "crc32c": %d, "topics": {\n' % crc32c(body)
    (tmp_path / FILE).write_bytes(head + body)
    with pytest.raises(CorruptRecordError, match=r"topics\.json"):
        read_topics(tmp_path)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_another_version_is_refused_by_name(tmp_path, version):
    """Older ones are upgraded before the file is read."""
    (tmp_path / FILE).write_text(json.dumps({"version": version, "crc32c": 0, "topics": {}}))
    with pytest.raises(StoreVersionError, match=f"version {version}"):
        read_topics(tmp_path)


@pytest.mark.parametrize("what", ["pipe", "directory", "far too long"])
def test_something_else_in_the_place_of_the_file(content, tmp_path, what):
    path = tmp_path / FILE
    if what == "far too long":
        os.truncate(path, 1 << 40)
        error = CorruptRecordError
    else:
        path.unlink()
        os.mkfifo(path) if what == "pipe" else path.mkdir()
        error = StoreFailedError
    with pytest.raises(error, match=r"topics\.json"):
        read_topics(tmp_path)


# Readers beside a writer.


def test_a_topic_that_did_not_change_stays_the_same_object(registry, tmp_path, shared):
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    registry.add(topic("kept"))
    first = reader.get("kept")
    for number in range(100):
        registry.add(topic(f"t{number}"))
        if number % 7 == 3:
            registry.remove(f"t{number - 3}")
        if number % 3 == 0:
            assert names(reader) == names(registry)
    assert reader.get("kept") is first


def test_departures_are_counted_and_arrivals_are_not(registry, tmp_path, shared):
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    registry.add(topic("a"), topic("b"))
    registry.note_holes("a", 0, 5)
    for one in (registry, reader):
        assert one.departures == 0
    registry.mark_deleting("a")
    assert [one.departures for one in (registry, reader)] == [1, 1]
    registry.remove("a")
    registry.add(topic("a"))
    assert [one.departures for one in (registry, reader)] == [1, 1]
    registry.add(topic("b"))  # Another one of its name.
    assert [one.departures for one in (registry, reader)] == [2, 2]


def test_a_reader_counts_a_departure_between_its_looks(registry, tmp_path, shared):
    registry.add(topic("a"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    registry.remove("a")
    registry.add(topic("a"), topic("b"))
    assert (reader.departures, names(reader)) == (1, ["a", "b"])


# A writer that dies, at each of its steps.

CHANGES = {
    "added": lambda registry: registry.add(topic("new")),
    "marked": lambda registry: registry.mark_deleting("old"),
    "removed": lambda registry: registry.remove("old"),
}


class DyingPage:
    """A shared page that the process may not live to raise a counter of, or to go on after."""

    def __init__(self, page):
        self._page = page

    def raise_counter(self, number):
        return self._page.raise_counter(number)

    def __getattr__(self, name):
        return getattr(self._page, name)


# What the steps of a change call, in their order; the last one reserves room for the next change.
CALLS = (
    (atomic_file.os, "write"),
    (atomic_file.os, "fsync"),
    (atomic_file, "put_in_place"),
    (atomic_file, "sync_directory"),
    (DyingPage, "raise_counter"),
    (atomic_file.os, "posix_fallocate"),
)


def die_at(patch, call, *, after):
    owner, name = call
    done = getattr(owner, name)

    def last(*given, **named):
        if after:
            done(*given, **named)
        elif name == "write":
            done(given[0], given[1][:40])  # A part of it.
        raise Crash

    patch.setattr(owner, name, last)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[1])
@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_that_dies_at_any_step_leaves_the_topics_before_or_after(
    monkeypatch, tmp_path, shared, change, call, after
):
    writer = TopicRegistry.load(tmp_path, tmp_path, DyingPage(shared))
    writer.add(topic("old"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    before = read_entries(tmp_path)
    with monkeypatch.context() as patch:
        die_at(patch, call, after=after)
        with pytest.raises(Crash):
            CHANGES[change](writer)
    done = CALLS.index(call) + after > 2
    left = tmp_path.with_name(f"{tmp_path.name}-left")
    copy_store(tmp_path, left, ignore=shutil.ignore_patterns("shared"))
    assert (read_entries(left) != before) is done
    # The others of its session go on, and so does a later one.
    for path in (tmp_path, left):
        page = shared if path is tmp_path else SharedPage(str(path / "shared"), SESSION, True)
        registries = [TopicRegistry.load(path, path, page)]
        if path is tmp_path:
            registries += [reader, writer]
        for number, one in enumerate(registries):
            one.add(topic(f"t{number}"))
        added = {f"t{number}" for number in range(len(registries))}
        kept = ({"old", "new"} if change == "added" else set()) if done else {"old"}
        for one in registries:
            assert set(names(one)) == added | kept


@pytest.mark.parametrize(
    "death",
    [
        "os.fsync = lambda fd: die()",
        "atomic_file.put_in_place = lambda path: die()",
        "atomic_file.sync_directory = lambda path: die()",
        "os.posix_fallocate = lambda *given: die()",
    ],
)
def test_a_writer_that_is_killed_loses_nothing_of_the_others(registry, tmp_path, shared, death):
    registry.add(topic("t"))
    code = PRELUDE.format(path=str(tmp_path)) + f"{death}\nregistry.add(new_topic('u', 1, {{}}))\n"
    with started(code) as peer:
        peer.hear("dies")
        peer.kill()
    registry.add(topic("v"))
    is_renamed = "sync_directory" in death or "fallocate" in death
    assert names(registry) == (["t", "u", "v"] if is_renamed else ["t", "v"])
    assert names(TopicRegistry.load(tmp_path, tmp_path, shared)) == names(registry)


def test_two_processes_change_the_topics_by_turns(registry, tmp_path):
    body = (
        PRELUDE.format(path=str(tmp_path)) + "for number in range(60):\n"
        "    registry.add(new_topic(f'NAME-{number}', 1, {}))\n"
    )
    peers = [started(body.replace("NAME", name)) for name in ("a", "b")]
    for number in range(60):
        registry.add(topic(f"c-{number}"))
    for peer in peers:
        peer.end()
    assert len(names(registry)) == 180
    assert names_in(tmp_path) == names(registry)


# A disk that refuses.


@pytest.mark.parametrize(("call", "number"), [("write", errno.ENOSPC), ("fsync", errno.EIO)])
def test_a_change_that_the_disk_refuses_did_not_happen(
    monkeypatch, registry, tmp_path, shared, call, number
):
    registry.add(topic("a"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    before = (tmp_path / FILE).read_bytes()

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file.os, call, refuse)
        with pytest.raises(StoreFullError if call == "write" else StoreFailedError):
            registry.add(topic("bb"))
    assert (tmp_path / FILE).read_bytes() == before
    for one in (registry, reader):
        assert names(one) == ["a"]
    registry.add(topic("cc"))
    for one in (registry, reader):
        assert names(one) == ["a", "cc"]


class AskedPage:
    """A shared page that notes when somebody asks for a lock of it."""

    def __init__(self, page, asked):
        self._page, self._asked = page, asked

    def held(self, *given):
        self._asked.set()
        return self._page.held(*given)

    def __getattr__(self, name):
        return getattr(self._page, name)


@pytest.mark.parametrize("look", ["a look that knows of an earlier change", "a regular look"])
@pytest.mark.parametrize("fails", [False, True])
def test_no_other_process_sees_a_topic_before_its_sync(
    monkeypatch, registry, tmp_path, shared, look, fails
):
    """A power cut would take it away."""
    registry.add(topic("a"))
    asked = threading.Event()
    page = SharedPage(str(tmp_path / "shared"), SESSION, create=False)
    reader = TopicRegistry.load(tmp_path, tmp_path, AskedPage(page, asked))
    registry.add(topic("b"))
    if look == "a regular look":
        assert names(reader) == ["a", "b"]
    asked.clear()
    seen = []

    def looks():
        if look == "a regular look":
            reader.refresh()
        seen.append(names(reader))
        asked.set()

    thread = threading.Thread(target=looks)
    sync = atomic_file.sync_directory

    def slow(what):
        monkeypatch.setattr(atomic_file, "sync_directory", sync)
        thread.start()
        assert asked.wait(30)
        assert seen in ([], [["a", "b"]])
        if fails:
            raise StoreFailedError("no")
        sync(what)

    monkeypatch.setattr(atomic_file, "sync_directory", slow)
    with pytest.raises(StoreFailedError) if fails else nullcontext():
        registry.add(topic("c"))
    thread.join()
    # A file that took its name may count, though the name could not be synced.
    assert names(reader) == names_in(tmp_path) == [*"abc"]


@pytest.mark.parametrize("call", ["put_in_place", "sync_directory"])
def test_an_interrupted_change_is_synced_and_announced_by_the_next_look(
    monkeypatch, registry, tmp_path, shared, call
):
    registry.add(topic("a"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    done = getattr(atomic_file, call)

    def interrupted(path):
        done(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            registry.add(topic("b"))
    calls = []
    sync = topics_file.sync_directory
    monkeypatch.setattr(topics_file, "sync_directory", lambda at: (calls.append(at), sync(at)))
    assert names(reader) == ["a"]
    registry.add(topic("c"))
    assert calls == [tmp_path]
    assert names(registry) == names(reader) == ["a", "b", "c"]
