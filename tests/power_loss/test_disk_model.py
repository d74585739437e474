"""What the model of a disk keeps and loses: what was synced, whole changes of names, sectors."""

from __future__ import annotations

import random
from collections.abc import Iterable

from power_loss.disk_model import SECTOR_BYTES, Disk, PowerCut
from power_loss.disk_trace import (
    ALL_SYNCED,
    BEGUN,
    CREATED,
    MOVED,
    REMOVED,
    RENAMED,
    SYNC_BEGUN,
    SYNC_ENDED,
    SYNCED,
    WRITTEN,
    Event,
)
from power_loss.disk_trace import FOLDER as FOLDER_MADE

FILE, FOLDER = 0, 1
OLD, NEW = b"o" * 2 * SECTOR_BYTES, b"n" * 2 * SECTOR_BYTES


def created(inode: int, name: str) -> Event:
    return Event(CREATED, inode, 0, name.encode(), b"")


def written(inode: int, data: bytes) -> Event:
    return Event(WRITTEN, inode, 0, data, b"")


def synced(inode: int, kind: int, name: str = "") -> Event:
    return Event(SYNCED, inode, kind, name.encode(), b"")


BEGIN = Event(BEGUN, 0, 0, b"", b"")


def left(events: Iterable[Event], draws: int = 300) -> set[tuple[tuple[str, bytes], ...]]:
    """All that cuts left: names, each with its content."""
    found = set()
    for number in range(draws):
        disk = Disk()
        for event in events:
            disk.take(event)
        cut = PowerCut(disk, random.Random(number))
        files = cut.draw()
        found.add(tuple(sorted((name, cut.content(file)) for name, file in files if file)))
    return found


def test_what_was_synced_is_there_whatever_else_is_lost():
    events = [BEGIN, created(1, "a"), written(1, OLD), synced(1, FILE), synced(9, FOLDER)]
    assert left(events) == {(("a", OLD),)}


def test_a_sector_that_was_not_synced_is_there_or_not():
    events = [BEGIN, created(1, "a"), written(1, OLD), synced(1, FILE), synced(9, FOLDER)]
    contents = {dict(files)["a"] for files in left([*events, written(1, NEW)])}
    half = SECTOR_BYTES
    assert contents == {OLD, NEW, NEW[:half] + OLD[half:], OLD[:half] + NEW[half:]}


def test_a_sync_that_is_made_meanwhile_has_what_was_written_before_it_began():
    events = [BEGIN, created(1, "a"), synced(9, FOLDER), written(1, OLD)]
    events.append(Event(SYNC_BEGUN, 1, 0, b"", b""))
    assert (("a", b""),) in left(events), "it is not done when it is begun"
    events.append(written(1, NEW))
    events.append(Event(SYNC_ENDED, 1, 0, b"", b""))
    contents = {dict(files)["a"] for files in left(events)}
    assert {OLD, NEW} < contents and not any(b"\0" in content for content in contents)


def test_the_sync_of_a_file_is_none_of_its_name():
    events = [BEGIN, created(1, "a"), written(1, OLD), synced(1, FILE)]
    assert left(events) == {(), (("a", OLD),)}


def test_names_are_reordered_but_a_rename_is_whole():
    events = [BEGIN, created(1, "a.tmp"), created(2, "b"), synced(9, FOLDER)]
    events += [Event(RENAMED, 1, 0, b"a.tmp", b"a"), Event(REMOVED, 0, 0, b"b", b"")]
    names = {tuple(name for name, _ in files) for files in left(events)}
    assert names == {("a.tmp", "b"), ("a", "b"), ("a.tmp",), ("a",)}


def test_a_folder_is_moved_with_all_that_is_in_it():
    events = [BEGIN, Event(FOLDER_MADE, 0, 0, b"old", b""), Event(FOLDER_MADE, 0, 0, b"new", b"")]
    events += [created(1, "old/a"), synced(9, FOLDER), synced(9, FOLDER, "old")]
    events += [Event(MOVED, 0, 0, b"old", b"new/old")]
    names = {tuple(name for name, _ in files) for files in left(events)}
    assert names == {("old/a",), ("new/old/a",)}


def test_a_later_change_of_a_name_brings_the_earlier_ones():
    events = [BEGIN, created(1, "a"), Event(RENAMED, 1, 0, b"a", b"b")]
    events += [Event(RENAMED, 1, 0, b"b", b"c")]
    names = {tuple(name for name, _ in files) for files in left(events)}
    assert names == {(), ("a",), ("b",), ("c",)}


def test_a_sync_of_the_file_system_is_one_of_every_file_and_name():
    events = [BEGIN, Event(FOLDER_MADE, 0, 0, b"folder", b""), created(1, "folder/a")]
    events += [written(1, OLD), Event(ALL_SYNCED, 0, 0, b"", b"")]
    assert left(events) == {(("folder/a", OLD),)}
    contents = {dict(files)["folder/a"] for files in left([*events, written(1, NEW)])}
    assert {OLD, NEW} < contents
