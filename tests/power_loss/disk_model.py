"""A disk that knows what was synced, and the states that a power cut can leave of it.

A model below what file systems promise. Of a file, everything up to its last sync is there. Of each
write since then every sector of 512 bytes is there or not, whatever came before or after it; of its
sizes since then any, and any length between. Of a folder, the names are there as its last sync left
them; of each change since then (a file made, renamed, given a second name, removed; a folder made
or removed) all of it is there or nothing, in any order but for changes of the same name. A file's
sync is none of its name.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from power_loss.disk_trace import (
    ALL_SYNCED,
    BEGUN,
    CREATED,
    FOLDER,
    MOVED,
    REMOVED,
    RENAMED,
    SIZED,
    SYNC_BEGUN,
    SYNC_ENDED,
    SYNCED,
    WRITTEN,
    Event,
)

SECTOR_BYTES = 512
PAGE_BYTES = 4096
SHARES = (0.0, 0.1, 0.5, 0.9, 0.98, 1.0)
# Never read after the machine was started again: states that differ in these only are the same.
UNREAD = ("state/control/", "state/shared", "state/lmdb/lock.mdb", "state/processes/")


@dataclass
class Write:
    """Of a file: bytes at a place, or a new size."""

    at: int
    position: int
    data: bytes | None


@dataclass(eq=False)
class File:
    synced: bytes = b""
    since: list[Write] = field(default_factory=list)
    digest: bytes | None = None
    begun_at: int = 0  # The moment of a sync that was begun: what was written up to then is in it.

    def sync(self, upto: int | None = None) -> None:
        """Have what was written up to a moment, or all, on the disk."""
        kept = [write for write in self.since if upto is None or write.at <= upto]
        if kept:
            self.synced = _applied(self.synced, kept)
            self.since = self.since[len(kept) :]
            self.digest = None


@dataclass(eq=False)
class Folder:
    synced: dict[str, File | Folder] = field(default_factory=dict)
    names: dict[str, File | Folder] = field(default_factory=dict)


@dataclass
class Change:
    """Of names, all at once: what each stands for then (None: nothing)."""

    at: int
    entries: list[tuple[Folder, str, File | Folder | None]]

    def names(self) -> set[tuple[Folder, str]]:
        return {(folder, name) for folder, name, _ in self.entries}


def _applied(content: bytes, writes: Iterable[Write]) -> bytes:
    left = bytearray(content)
    for write in writes:
        _apply(left, write)
    return bytes(left)


def _apply(left: bytearray, write: Write) -> None:
    if write.data is None:
        if write.position < len(left):
            del left[write.position :]
        else:
            left.extend(bytes(write.position - len(left)))
        return
    end = write.position + len(write.data)
    if end > len(left):
        left.extend(bytes(end - len(left)))
    left[write.position : end] = write.data


class Disk:
    """What was done up to a moment, and how much of it was synced."""

    def __init__(self) -> None:
        self.count = 0
        self.root = Folder()
        self.changes: list[Change] = []
        self._files: dict[int, File] = {}
        self._begun = False

    def take(self, event: Event) -> None:
        """One more event."""
        self.count += 1
        if event.kind == WRITTEN or event.kind == SIZED:
            data = event.first if event.kind == WRITTEN else None
            file = self._file(event.inode)
            file.since.append(Write(self.count, event.number, data))
            if not self._begun:
                file.sync()
        elif event.kind == SYNCED:
            self._sync(event)
        elif event.kind == SYNC_BEGUN:
            self._file(event.inode).begun_at = self.count
        elif event.kind == SYNC_ENDED:
            file = self._file(event.inode)
            file.sync(file.begun_at)
        elif event.kind == ALL_SYNCED:
            for file in self._files.values():
                file.sync()
            self._keep(self.changes)
        elif event.kind == CREATED:
            self._name(event.first, self._file(event.inode))
        elif event.kind == FOLDER:
            self._name(event.first, Folder())
        elif event.kind == REMOVED:
            folder, name = self._place(event.first)
            self._change([(folder, name, None)])
        elif event.kind == RENAMED:
            file = self._file(event.inode)
            before, target = self._place(event.first), self._place(event.second)
            self._change([(*target, file), (*before, None)])
        elif event.kind == MOVED:
            before, target = self._place(event.first), self._place(event.second)
            folder, name = before
            self._change([(*target, folder.names[name]), (*before, None)])
        elif event.kind == BEGUN:
            self._begun = True

    def _file(self, inode: int) -> File:
        return self._files.setdefault(inode, File())

    def _place(self, path: bytes) -> tuple[Folder, str]:
        *folders, name = path.decode().split("/")
        folder = self.root
        for one in folders:
            found = folder.names[one]
            assert isinstance(found, Folder)
            folder = found
        return folder, name

    def _name(self, path: bytes, found: File | Folder) -> None:
        folder, name = self._place(path)
        if folder.names.get(name) is not found:
            self._change([(folder, name, found)])

    def _change(self, entries: list[tuple[Folder, str, File | Folder | None]]) -> None:
        for folder, name, found in entries:
            _enter(folder.names, name, found)
            if not self._begun:
                _enter(folder.synced, name, found)
        if self._begun:
            self.changes.append(Change(self.count, entries))

    def _sync(self, event: Event) -> None:
        if event.number == 0:
            self._file(event.inode).sync()
            return
        folder = self.root
        if event.first:
            found = self._place(event.first)[0].names[event.first.decode().rsplit("/", 1)[-1]]
            assert isinstance(found, Folder)
            folder = found
        kept = _with_earlier(
            self.changes, lambda change: any(one is folder for one, _, _ in change.entries)
        )
        self._keep(kept)

    def _keep(self, kept: list[Change]) -> None:
        """Have changes on the disk for good."""
        for change in kept:
            for one, name, entry in change.entries:
                _enter(one.synced, name, entry)
        gone = {id(change) for change in kept}
        self.changes = [change for change in self.changes if id(change) not in gone]


def _with_earlier(changes: list[Change], wanted: Callable[[Change], bool]) -> list[Change]:
    """Those that are wanted, and those that must have happened before them; in their order."""
    kept: list[Change] = []
    names: set[tuple[Folder, str]] = set()
    for change in reversed(changes):
        own = change.names()
        if wanted(change) or not names.isdisjoint(own):
            kept.append(change)
            names |= own
    return kept[::-1]


def _enter(names: dict[str, File | Folder], name: str, found: File | Folder | None) -> None:
    if found is None:
        names.pop(name, None)
    else:
        names[name] = found


class PowerCut:
    """One state that a cut can leave; which one is drawn."""

    def __init__(self, disk: Disk, noise: random.Random) -> None:
        self._disk = disk
        self._noise = noise
        how = noise.choice(("sectors", "sectors", "pages", "order", "files"))
        self._how = how
        self._share = noise.choice(SHARES)
        self._name_share = noise.choice(SHARES)
        # Of names and of data the cut is a moment of the past: all before it, nothing after.
        self._moment = noise.randint(max(0, disk.count - noise.choice((20, 100, 500))), disk.count)
        self._name_order = how == "order" or noise.random() < 0.3
        self._left: dict[File, bytes] = {}
        self.digest = b""
        self.torn = False  # Of a write some sectors are there and others are not.
        self.reordered = False  # A change of names is there, and an earlier one is not.

    def describe(self) -> str:
        return f"{self._how}, {self._share} of the data, {self._name_share} of the names"

    def draw(self) -> list[tuple[str, File | None]]:
        """All files that are left, by path; folders too (None). `content` has what is in a file."""
        names: dict[Folder, dict[str, File | Folder]] = {}
        changes = self._disk.changes
        kept = _with_earlier(changes, self._is_kept)
        self.reordered = bool(kept) and kept[-1] is not changes[len(kept) - 1]
        for change in kept:
            for folder, name, found in change.entries:
                _enter(names.setdefault(folder, dict(folder.synced)), name, found)
        found_files: list[tuple[str, File | None]] = []
        digest = hashlib.blake2b(digest_size=16)
        waiting = [("", self._disk.root)]
        while waiting:
            path, folder = waiting.pop()
            for name, found in sorted(names.get(folder, folder.synced).items()):
                child = f"{path}{name}"
                if isinstance(found, Folder):
                    found_files.append((child, None))
                    waiting.append((f"{child}/", found))
                    digest.update(child.encode() + b"/\0")
                    continue
                found_files.append((child, found))
                content = self.content(found)
                if not child.startswith(UNREAD):
                    digest.update(child.encode() + b"\0")
                    digest.update(self._digest_of(found, content))
        self.digest = digest.digest()
        return found_files

    def _is_kept(self, change: Change) -> bool:
        if self._name_order:
            return change.at <= self._moment
        return self._noise.random() < self._name_share

    def _digest_of(self, file: File, content: bytes) -> bytes:
        if file.since:
            return hashlib.blake2b(content, digest_size=16).digest()
        if file.digest is None:
            file.digest = hashlib.blake2b(content, digest_size=16).digest()
        return file.digest

    def content(self, file: File) -> bytes:
        if not file.since:
            return file.synced
        if file not in self._left:
            self._left[file] = self._drawn(file)
        return self._left[file]

    def _drawn(self, file: File) -> bytes:
        noise = self._noise
        if self._how == "order":
            return _applied(file.synced, (one for one in file.since if one.at <= self._moment))
        share = noise.choice(SHARES) if self._how == "files" else self._share
        step = PAGE_BYTES if self._how == "pages" else SECTOR_BYTES
        left = bytearray(file.synced)
        sizes = [len(left)]
        for write in file.since:
            if write.data is None:
                # What is cut off is gone; a size that grew is drawn below.
                sizes.append(write.position)
                if write.position < len(left) and noise.random() < share:
                    del left[write.position :]
                continue
            end = write.position + len(write.data)
            sizes.append(max(sizes[-1], end))
            starts = range(write.position // step * step, end, step)
            kept = [start for start in starts if noise.random() < share]
            self.torn = self.torn or 0 < len(kept) < len(starts)
            for start in kept:
                first, last = max(start, write.position), min(start + step, end)
                piece = write.data[first - write.position : last - write.position]
                _apply(left, Write(0, first, piece))
        size = noise.choice((sizes[-1], sizes[-1], sizes[0], noise.choice(sizes)))
        if noise.random() < 0.1:
            size = noise.randint(min(sizes), max(sizes))
        del left[size:]
        left.extend(bytes(size - len(left)))
        return bytes(left)

    def write(self, target: Path, files: list[tuple[str, File | None]]) -> None:
        """Lay the state down in an empty folder; a file with two names is one file."""
        written: dict[File, Path] = {}
        for name, file in files:
            path = target / name
            if file is None:
                path.mkdir()
            elif file in written:
                path.hardlink_to(written[file])
            else:
                path.write_bytes(self.content(file))
                written[file] = path
