"""The files with the topics of a store: one that is replaced, and a log of many topics."""

from __future__ import annotations

import errno
import json
import os
import shutil
from itertools import pairwise

import pytest
from other_process import OtherProcess

from eoslog.bindings.shared_page import SharedPage
from eoslog.errors import CorruptRecordError, StoreFailedError, StoreFullError
from eoslog.storage import topics_file
from eoslog.storage.topic_registry import TopicRegistry, new_topic, read_topics
from eoslog.storage.topics_file import LogPosition, TopicsFile, read_entries

SESSION = bytes(range(16))
WHOLE, LOG = "topics.json", "topics.log"
PRELUDE = """
from pathlib import Path
from eoslog.bindings.shared_page import SharedPage
from eoslog.storage import topics_file
from eoslog.storage.topic_registry import TopicRegistry, new_topic
topics_file.WHOLE_BYTES_MAX = 0
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
def in_log(monkeypatch):
    """Few topics have a log too."""
    monkeypatch.setattr(topics_file, "WHOLE_BYTES_MAX", 0)


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


# Which file.


def test_few_topics_are_in_one_file_and_many_in_a_log(registry, tmp_path, shared):
    for number in range(10):
        registry.add(topic(f"t{number}"))
    assert json.loads((tmp_path / WHOLE).read_text())["version"] == 1
    assert not (tmp_path / LOG).exists()
    made = [topic(f"u{number}") for number in range(40)]
    for one in made:
        registry.add(one)
    # An older eoslog refuses any version above 1 by name.
    assert json.loads((tmp_path / WHOLE).read_text()) == {"version": 2, "topics": LOG}
    again = TopicRegistry.load(tmp_path, tmp_path, shared)
    assert names(again) == names(registry) == names_in(tmp_path)
    assert [again.get(one.name) for one in made] == made
    assert len(names(again)) == 50


def test_a_list_of_many_topics_of_an_earlier_version_goes_to_the_log_with_the_next_change(
    tmp_path, shared
):
    entries = {
        f"t{number}": {"partitions": 1, "topic_id": topic("t").topic_id, "config": {}}
        for number in range(100)
    }
    (tmp_path / WHOLE).write_text(json.dumps({"version": 1, "topics": entries}))
    registry = TopicRegistry.load(tmp_path, tmp_path, shared)
    assert json.loads((tmp_path / WHOLE).read_text())["version"] == 1
    registry.remove("t7")
    assert names_in(tmp_path) == sorted(entries.keys() - {"t7"})
    assert json.loads((tmp_path / WHOLE).read_text())["version"] == 2


def test_every_change_is_a_line(in_log, registry, tmp_path, shared):
    registry.add(topic("a", **{"segment.bytes": 4096}), topic("b"))
    registry.add(topic("c"))
    registry.mark_deleting("b")
    registry.note_holes("c", 0, 7)
    registry.remove("a")
    assert (tmp_path / LOG).read_bytes().count(b"\n") == 6
    again = TopicRegistry.load(tmp_path, tmp_path, shared)
    assert names(again) == ["c"]
    assert dict(again.get("c").holes_below) == {0: 7}
    assert [one.name for one in again.deleting()] == ["b"]
    assert read_entries(tmp_path)["b"]["deleting"]


def test_the_log_is_written_again_before_it_is_twice_as_long(in_log, monkeypatch, registry, shared):
    monkeypatch.setattr(topics_file, "LOG_BYTES_MIN", 2000)
    path = registry._file._log_path
    reader = TopicRegistry(path.parent, shared)
    lengths = []
    for number in range(300):
        registry.add(topic(f"t{number % 20}"))
        lengths.append(path.stat().st_size)
        assert names(reader) == names(registry)
    assert max(lengths) <= 2 * 20 * 150
    assert sum(now < before for before, now in pairwise(lengths)) < 30
    assert names_in(path.parent) == names(registry)


def test_a_change_writes_and_reads_as_much_among_many_topics_as_among_few(
    in_log, monkeypatch, registry, tmp_path, shared
):
    monkeypatch.setattr(topics_file, "LOG_BYTES_MIN", 1 << 30)
    parsed = []
    parse = topics_file._parse_lines
    monkeypatch.setattr(
        topics_file,
        "_parse_lines",
        lambda path, data, position: parsed.append(len(data)) or parse(path, data, position),
    )
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    for number in range(500):
        before = (tmp_path / LOG).stat().st_size
        registry.add(topic(f"t{number:03d}"))
        assert reader.get(f"t{number:03d}") is not None
        added = (tmp_path / LOG).stat().st_size - before
        assert added < 200
        assert parsed[-1] == added


# What is damaged, and what a crash left.


@pytest.fixture
def filled(in_log, registry, tmp_path):
    """The log after each of a few changes, and the topics that it then has."""
    states = []
    for change in (
        lambda: registry.add(topic("a")),
        lambda: registry.add(*(topic(f"b{number}") for number in range(3))),
        lambda: registry.remove("a"),
    ):
        change()
        states.append(((tmp_path / LOG).read_bytes(), names(registry)))
    return states


def test_a_line_that_was_cut_short_does_not_count_and_the_next_writer_cuts_it_off(
    filled, tmp_path, shared
):
    path = tmp_path / LOG
    for (before, expected), (after, _) in pairwise(filled):
        for length in range(len(before), len(after)):
            line = after[len(before) : length]
            lost = bytes(min(len(line), 9)) + line[9:]  # A page that is missing reads as zeros.
            for left in (line, lost, line[:9] + bytes(len(line) - len(line[:9]))):
                path.write_bytes(before + left)
                assert names_in(tmp_path) == expected
        line = after[len(before) :]
        path.write_bytes(before + line[:5] + bytes(len(line) - 6) + b"\n")
        assert names_in(tmp_path) == expected
        registry = TopicRegistry.load(tmp_path, tmp_path, shared)
        registry.add(topic("new"))
        assert path.read_bytes().startswith(before + b'{"new":')
        assert names_in(tmp_path) == sorted([*expected, "new"])


def test_a_bit_that_flips_is_noticed(filled, tmp_path):
    path = tmp_path / LOG
    content, _ = filled[-1]
    for bit in range(0, 8 * len(content), 3):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptRecordError, match=r"topics\.log"):
            read_topics(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\n", bytes(100), b"x" * 1000])
def test_a_log_without_its_first_line_is_damaged(filled, tmp_path, content):
    (tmp_path / LOG).write_bytes(content)
    with pytest.raises(CorruptRecordError, match=r"topics\.log"):
        read_topics(tmp_path)


@pytest.mark.parametrize("text", [b"[]", b"7", b'{"a":', b'{"a": {}}', b'{"": null}', b'{"a": 7}'])
def test_lines_that_nobody_wrote_are_named(in_log, registry, tmp_path, text):
    line = text + b"\t" + topics_file._checksum(b"", text) + b"\n"
    (tmp_path / LOG).write_bytes(line)
    if text == b'{"": null}':
        assert names_in(tmp_path) == []
        return
    with pytest.raises(CorruptRecordError, match=r"topics\.log"):
        read_topics(tmp_path)


def test_a_log_that_is_lost_is_made_again_from_the_directories(filled, tmp_path, shared):
    (tmp_path / LOG).unlink()
    assert read_topics(tmp_path) is None
    again = TopicRegistry.load(tmp_path, tmp_path, shared)
    assert names(again) == []
    again.add(topic("t"))
    assert names_in(tmp_path) == ["t"]


@pytest.mark.parametrize("what", ["pipe", "directory", "far too long"])
def test_something_else_in_the_place_of_the_log(filled, tmp_path, what):
    path = tmp_path / LOG
    if what == "far too long":
        os.truncate(path, 1 << 40)
        error = CorruptRecordError
    else:
        path.unlink()
        os.mkfifo(path) if what == "pipe" else path.mkdir()
        error = StoreFailedError
    with pytest.raises(error, match=r"topics\.log"):
        read_topics(tmp_path)


# Readers beside a writer.


def test_what_a_reader_has_read_is_checked_by_the_checksum_of_its_end(in_log, registry, tmp_path):
    registry.add(topic("aa"))
    file = TopicsFile(tmp_path)
    position = file.read(None).position
    registry.add(topic("bb"))
    found = file.read(position)
    assert (found.is_whole, list(found.entries)) == (False, ["bb"])
    # Of another log with a line that ends at the same place.
    content = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).unlink()
    (tmp_path / WHOLE).unlink()
    shared = SharedPage(str(tmp_path / "shared"), SESSION, create=True)
    other = TopicRegistry.load(tmp_path, tmp_path, shared)
    other.add(topic("cc"))
    other.add(topic("dd"))
    assert len(content) == (tmp_path / LOG).stat().st_size
    found = file.read(found.position)
    assert (found.is_whole, sorted(found.entries)) == (True, ["cc", "dd"])
    assert file.read(LogPosition(1 << 20, b"00000000", 10)).is_whole


def test_a_reader_follows_while_the_log_begins_and_begins_again(monkeypatch, tmp_path, shared):
    monkeypatch.setattr(topics_file, "LOG_BYTES_MIN", 1000)
    writer = TopicRegistry.load(tmp_path, tmp_path, shared)
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    kept = topic("kept")
    writer.add(kept)
    first = reader.get("kept")
    for number in range(100):
        writer.add(topic(f"t{number}"))
        if number % 7 == 3:
            writer.remove(f"t{number - 3}")
        if number % 3 == 0:
            assert names(reader) == names(writer)
    assert reader.get("kept") is first


def test_departures_are_counted_and_arrivals_are_not(in_log, registry, tmp_path, shared):
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


def test_a_reader_counts_a_departure_that_it_finds_in_a_log_written_again(
    in_log, monkeypatch, registry, tmp_path, shared
):
    registry.add(topic("a"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    monkeypatch.setattr(topics_file, "LOG_BYTES_MIN", 0)
    registry.remove("a")
    registry.add(topic("a"), topic("b"))
    assert (reader.departures, names(reader)) == (1, ["a", "b"])


# A writer that dies, at each of its steps.

CHANGES = {
    "first": lambda registry: registry.add(topic("new")),
    "append": lambda registry: registry.add(topic("new")),
    "again": lambda registry: registry.add(topic("new")),
}
STEPS = ("write_atomically", "sync_file", "sync_directory", "os.pwrite", "os.fdatasync")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("change", CHANGES)
def test_a_writer_that_dies_at_any_step_leaves_the_topics_before_or_after(
    monkeypatch, tmp_path, shared, change, step, after
):
    monkeypatch.setattr(topics_file, "WHOLE_BYTES_MAX", 4096 if change == "first" else 0)
    writer = TopicRegistry.load(tmp_path, tmp_path, shared)
    writer.add(topic("old"))
    # Another process, which has not appended yet.
    writer = TopicRegistry.load(tmp_path, tmp_path, shared)
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    with monkeypatch.context() as patch:
        patch.setattr(topics_file, "WHOLE_BYTES_MAX", 0)
        patch.setattr(topics_file, "LOG_BYTES_MIN", 0 if change == "again" else 1 << 16)
        count = _die_at(patch, step, after)
        try:
            CHANGES[change](writer)
        except Crash:
            pass
        else:
            assert count[0] <= step
    left = tmp_path.with_name(f"{tmp_path.name}-left")
    shutil.copytree(tmp_path, left, ignore=shutil.ignore_patterns("shared"))
    assert names_in(left) in (["old"], ["new", "old"])
    # The others of its session go on, and so does a later one.
    for path in (tmp_path, left):
        page = shared if path is tmp_path else SharedPage(str(path / "shared"), SESSION, True)
        registries = [TopicRegistry.load(path, path, page)]
        if path is tmp_path:
            registries += [reader, writer]
        for number, one in enumerate(registries):
            one.add(topic(f"t{number}"))
        for one in registries:
            found = names(one)
            assert found == names_in(path)
            assert {"old", *(f"t{number}" for number in range(len(registries)))} <= set(found)


def _die_at(patch, step, after):
    """Let the call of this number be the last one."""
    count = [0]

    def dying(call):
        def step_or_end(*given, **named):
            count[0] += 1
            if count[0] == step + 1 and not after:
                raise Crash
            answer = call(*given, **named)
            if count[0] == step + 1:
                raise Crash
            return answer

        return step_or_end

    for name in ("write_atomically", "sync_file", "sync_directory"):
        patch.setattr(topics_file, name, dying(getattr(topics_file, name)))
    for name in ("pwrite", "fdatasync", "ftruncate"):
        patch.setattr(topics_file.os, name, dying(getattr(os, name)))
    return count


@pytest.mark.parametrize(
    "death",
    [
        "os.pwrite = lambda fd, data, at: die()",
        "write = os.pwrite\nos.pwrite = lambda fd, data, at: (write(fd, data[:40], at), die())",
        "write = os.pwrite\nos.pwrite = lambda fd, data, at: (write(fd, data, at), die())",
        "os.fdatasync = lambda fd: die()",
        "topics_file.write_atomically = lambda path, content: die()\ntopics_file.LOG_BYTES_MIN = 0",
        "replace = topics_file.write_atomically\n"
        "topics_file.write_atomically = lambda *given: (replace(*given), die())\n"
        "topics_file.LOG_BYTES_MIN = 0",
    ],
)
def test_a_writer_that_is_killed_loses_nothing_of_the_others(
    in_log, registry, tmp_path, shared, death
):
    registry.add(topic("t"))
    code = PRELUDE.format(path=str(tmp_path)) + f"{death}\nregistry.add(new_topic('u', 1, {{}}))\n"
    with OtherProcess(code) as peer:
        assert peer.hear() == "dies"
        peer.kill()
    registry.add(topic("v"))
    assert names(registry) in (["t", "v"], ["t", "u", "v"])
    assert names(TopicRegistry.load(tmp_path, tmp_path, shared)) == names(registry)


def test_two_processes_append_and_write_the_log_again_by_turns(in_log, registry, tmp_path):
    body = (
        PRELUDE.format(path=str(tmp_path)) + "topics_file.LOG_BYTES_MIN = 3000\n"
        "for number in range(60):\n"
        "    registry.add(new_topic(f'NAME-{number}', 1, {}))\n"
    )
    peers = [OtherProcess(body.replace("NAME", name)) for name in ("a", "b")]
    for number in range(60):
        registry.add(topic(f"c-{number}"))
    for peer in peers:
        peer.end()
    assert len(names(registry)) == 180
    assert names_in(tmp_path) == names(registry)


# A disk that refuses.


@pytest.mark.parametrize(("call", "number"), [("pwrite", errno.ENOSPC), ("fdatasync", errno.EIO)])
def test_a_change_that_the_disk_refuses_did_not_happen(
    in_log, monkeypatch, registry, tmp_path, shared, call, number
):
    registry.add(topic("a"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)
    before = (tmp_path / LOG).read_bytes()
    write = os.pwrite

    def refuse(descriptor, *given):
        if call == "pwrite":
            write(descriptor, given[0][:10], given[1])
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(topics_file.os, call, refuse)
        with pytest.raises(StoreFullError if call == "pwrite" else StoreFailedError):
            registry.add(topic("bb"))
    assert (tmp_path / LOG).read_bytes() == before
    for one in (registry, reader):
        assert names(one) == ["a"]
    registry.add(topic("cc"))
    for one in (registry, reader):
        assert names(one) == ["a", "cc"]


def test_a_process_syncs_the_log_and_its_name_before_it_appends_for_the_first_time(
    in_log, monkeypatch, registry, tmp_path, shared
):
    registry.add(topic("a"))
    calls = []
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(topics_file, name, lambda path, name=name: calls.append(name))
    registry.add(topic("b"))
    assert calls == []
    other = TopicRegistry.load(tmp_path, tmp_path, shared)
    other.add(topic("c"))
    assert calls == ["sync_file", "sync_directory"]
    other.add(topic("d"))
    registry.add(topic("e"))
    assert calls == ["sync_file", "sync_directory"]


def test_an_interrupted_change_is_synced_and_announced_by_the_next_look(
    in_log, monkeypatch, registry, tmp_path, shared
):
    registry.add(topic("a"))
    reader = TopicRegistry.load(tmp_path, tmp_path, shared)

    def interrupted(descriptor):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(topics_file.os, "fdatasync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            registry.add(topic("b"))
    calls = []
    sync = topics_file.sync_file
    monkeypatch.setattr(topics_file, "sync_file", lambda path: (calls.append(path), sync(path)))
    assert names(reader) == ["a"]
    registry.add(topic("c"))
    assert calls == [tmp_path / LOG]
    assert names(registry) == names(reader) == ["a", "b", "c"]
