"""The file that holds the entries of a store's topics, `state/topics.json`.

A line has the version and a checksum of all lines after it; each of these is the entry of a topic.
Together they are a JSON object, which an older eoslog refuses by its version.

A change replaces the file by one rename: a reader finds it as it was before or after the change.
One process writes at a time, under a lock. The others read under it too, so that a change is synced
before they see it; `read_entries` takes none. docs/crash-points.md has the steps, TL1 to TL5, and
what a crash leaves. Room for the next change is reserved: a topic is marked as deleted on a full
disk too.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eoslog.bindings.record_batch import crc32c
from eoslog.common.json_text import loads_json
from eoslog.errors import CorruptRecordError, EoslogError, StoreVersionError
from eoslog.fs.atomic_file import (
    give_room_back,
    read_if_there,
    reserve_room,
    sync_directory,
    write_atomically,
)

FILE_NAME = "topics.json"
VERSION = 3
ROOM_BYTES = 4096  # Reserved beyond the file's size: for some thirty topics.
_HEAD = '{"version": %d, "crc32c": %d, "topics": {\n'
_HEAD_FORM = re.compile(rb'\{"version": 3, "crc32c": (\d{1,10}), "topics": \{\n')
_SEPARATOR = b",\n"
_END = b"\n}}\n"

Entry = dict[str, Any]
Identity = tuple[int, int, int]


class TopicsFile:
    """Reads and writes the lines of the topics. Who writes holds the lock of the topics."""

    def __init__(self, state_path: Path) -> None:
        self.path = state_path / FILE_NAME

    def identity(self) -> Identity | None:
        """Return what is another after each change, in any process; None if there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self) -> list[bytes] | None:
        """Read the lines of all topics; None if there is no file.

        Raises CorruptRecordError, or StoreVersionError if another version wrote it.
        """
        content = read_if_there(self.path)
        if content is None:
            return None
        head = _HEAD_FORM.match(content)
        if head is None:
            raise self._other_form(content)
        if int(head[1]) != crc32c(memoryview(content)[head.end() :]):
            reason = "the topics do not match their checksum"
            raise CorruptRecordError(str(self.path), head.end(), reason)
        lines = content[head.end() : -len(_END)]
        return lines.split(_SEPARATOR) if lines else []

    def _other_form(self, content: bytes) -> EoslogError:
        try:
            version = loads_json(content)["version"]
            if isinstance(version, int) and version != VERSION:
                return StoreVersionError(f"{self.path}: version {version}, not {VERSION}")
            reason = f"version {version!r}"
        except (ValueError, KeyError, TypeError) as error:
            reason = repr(error)
        return CorruptRecordError(str(self.path), 0, f"not a list of topics: {reason}")

    def entries(self, lines: list[bytes]) -> dict[str, Entry]:
        """Parse lines, in their order. Raises CorruptRecordError."""
        try:
            entries: dict[str, Entry] = loads_json(b"{%s}" % b",".join(lines), names_once=True)
        except ValueError as error:
            reason = f"not a list of topics: {error!r}"
            raise CorruptRecordError(str(self.path), 0, reason) from error
        return entries

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the topics, durably.

        Raises StoreFullError, StoreReadOnlyError or StoreFailedError; the topics are those of
        before then. Only where the name could not be synced they may be the new ones.
        """
        body = _SEPARATOR.join(lines)
        head = _HEAD % (VERSION, crc32c(_END, crc32c(body)))
        write_atomically(self.path, b"".join((head.encode(), body, _END)))
        self.reserve()

    def reserve(self) -> None:
        """Reserve room for the next change, if there is room. The caller holds the lock."""
        _, _, size_bytes = self.identity() or (0, 0, 0)
        reserve_room(self.path, size_bytes + ROOM_BYTES)

    def end(self) -> None:
        """Give that room back: the store is being closed."""
        give_room_back(self.path)

    def sync(self) -> None:
        """Put on the disk what another process, or an interrupted call, may not have synced."""
        sync_directory(self.path.parent)


def line_of(name: str, entry: Entry) -> bytes:
    """Return the line of a topic."""
    return json.dumps({name: entry}, separators=(",", ":"))[1:-1].encode()


def read_entries(state_path: Path) -> dict[str, Entry] | None:
    """Read the entries of all topics by name, also those being deleted; None if there is no file.

    Raises CorruptRecordError or StoreVersionError.
    """
    file = TopicsFile(state_path)
    lines = file.read()
    return None if lines is None else file.entries(lines)


def write_entries(state_path: Path, entries: Mapping[str, Entry]) -> None:
    """Write the entries of all topics by name, durably."""
    TopicsFile(state_path).write(line_of(name, entry) for name, entry in entries.items())
