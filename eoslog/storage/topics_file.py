"""The files that hold the entries of a store's topics.

Few topics are in `state/topics.json`, which each change replaces as a whole. Above WHOLE_BYTES_MAX
they are in `state/topics.log`, and `topics.json` has nothing but the version that says so; an older
eoslog refuses it by name. So a change costs the same however many topics there are.

A line of the log is a JSON object of entries by name (null: removed), a tab, and a checksum of
eight hex digits. The first line has all topics at the time when the file was written; a line after
it is one change, of one topic or of many. A checksum covers the one before it and so all lines up
to there: a reader that finds at its position the checksum that it had there has read all before,
else it begins again.

One process writes at a time, under a lock; readers take none. An append is one write of one line,
then one sync. A log of twice the size of its first line is written again: the new file is synced,
takes the name, and the directory is synced. Invariants, and what a crash leaves:

- The first log is whole and synced, name and all, before `topics.json` names it; until then that
  one counts, and the next change writes the log again.
- A line counts if it is whole. One that is cut short can only be the last. No reader takes it, and
  the next writer cuts it off before it appends. It has no end, or zeros where a page was lost;
  any other line that does not match its checksum is damage, and a CorruptRecordError.
- A line after it is only written when all before it are synced, and the name of the file is:
  `sync` does so after the death of a writer, and before a process appends to a file for the first
  time.
- A line that could not be written or synced is cut off again. No other process wrote after it: the
  lock is still held. The next append writes its page once more.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.bindings.file_descriptor import FileDescriptor, open_regular
from eoslog.bindings.record_batch import crc32c
from eoslog.common.json_text import loads_json
from eoslog.errors import CorruptRecordError, StoreVersionError
from eoslog.fs.atomic_file import (
    SMALL_BYTES_MAX,
    read_if_there,
    sync_directory,
    sync_file,
    write_atomically,
)
from eoslog.fs.os_errors import named_os_errors

FILE_NAME = "topics.json"
LOG_NAME = "topics.log"
WHOLE_VERSION = 1
LOG_VERSION = 2  # The topics are in the log.
# Up to here the file is replaced as a whole: some 20 topics, for which a log costs as much.
WHOLE_BYTES_MAX = 4096
LOG_BYTES_MIN = 1 << 16
_CHECKSUM_BYTES = 8

Entry = dict[str, Any]
Identity = tuple[int, int, int]


class LogPosition(NamedTuple):
    """Place in the log: the end of a whole line, the checksum of that line."""

    end_bytes: int = 0
    checksum: bytes = b""
    first_line_bytes: int = 0


class FoundEntries(NamedTuple):
    """Entries that were read: all of them, or those that changed (None: removed) since a position.

    `position` is where the log goes on; None if the topics are not in the log.
    """

    path: Path
    entries: dict[str, Entry | None]
    is_whole: bool
    position: LogPosition | None


class TopicsFile:
    """Reads and writes the entries. Who writes holds the lock of the topics."""

    def __init__(self, state_path: Path) -> None:
        self._path = state_path / FILE_NAME
        self._log_path = state_path / LOG_NAME
        # True if this process knows that all lines before its next are on the disk, and the name.
        self._is_synced = False

    def identity(self) -> tuple[Identity | None, Identity | None]:
        """Return what is another after each change, in any process."""
        return _identity_of(self._path), _identity_of(self._log_path)

    def read(self, position: LogPosition | None) -> FoundEntries | None:
        """Read what was added since a position in the log, or everything; None if nothing is there.

        Raises CorruptRecordError or StoreVersionError.
        """
        if position is None:
            content = read_if_there(self._path)
            entries = None if content is None else _parse_whole(self._path, content)
            if content is None or entries is not None:
                return None if entries is None else FoundEntries(self._path, entries, True, None)
        return self._read_log(position)

    def _read_log(self, position: LogPosition | None) -> FoundEntries | None:
        path = self._log_path
        with (
            named_os_errors(f"reading {path}"),
            suppress(FileNotFoundError),
            open(path, "rb", opener=open_regular) as file,
        ):
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > SMALL_BYTES_MAX:
                reason = f"it is {size_bytes} bytes long"
                raise CorruptRecordError(str(path), SMALL_BYTES_MAX, reason)
            if position is not None:
                last = position.checksum + b"\n"
                file.seek(position.end_bytes - len(last))
                added = file.read()
                if added.startswith(last):
                    entries, end = _parse_lines(path, added[len(last) :], position)
                    return FoundEntries(path, entries, False, end)
                file.seek(0)
            self._is_synced = False  # It is another file, or new to this process.
            entries, end = _parse_lines(path, file.read(), LogPosition())
            left = {name: entry for name, entry in entries.items() if entry is not None}
            return FoundEntries(path, {**left}, True, end)
        return None

    def write(
        self,
        changed: Mapping[str, Entry | None],
        position: LogPosition | None,
        all_entries: Callable[[], Mapping[str, Entry]],
    ) -> LogPosition | None:
        """Write changed entries, durably, after everything up to `position`, where the file ends;
        return the new end. `all_entries` returns all, with the changes.

        Raises StoreFullError, StoreReadOnlyError or StoreFailedError; the changes do not count
        then. Only where a name could not be synced they may.
        """
        if position is not None:
            line, end = _line(changed, position)
            if end.end_bytes <= max(LOG_BYTES_MIN, 2 * position.first_line_bytes):
                self._append(line, position.end_bytes)
                return end
        entries = all_entries()
        if position is None:
            document = {"version": WHOLE_VERSION, "crc32c": _sum_of(entries), "topics": entries}
            content = json.dumps(document, indent=1).encode()
            if len(content) <= WHOLE_BYTES_MAX:
                write_atomically(self._path, content)
                return None
        line, end = _line(entries, LogPosition())
        self._is_synced = False
        write_atomically(self._log_path, line)
        self._is_synced = True
        if position is None:
            document = {"version": LOG_VERSION, "topics": LOG_NAME}
            write_atomically(self._path, json.dumps(document).encode())
        return end

    def _append(self, line: bytes, at_bytes: int) -> None:
        if not self._is_synced:
            self.sync()
        with (
            named_os_errors(f"writing {self._log_path}"),
            FileDescriptor(self._log_path, os.O_RDWR) as descriptor,
        ):
            try:
                if os.fstat(descriptor).st_size > at_bytes:
                    os.ftruncate(descriptor, at_bytes)  # What a writer that was killed left.
                written = 0
                while written < len(line):
                    written += os.pwrite(descriptor, line[written:], at_bytes + written)
                os.fdatasync(descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, at_bytes)
                raise

    def sync(self) -> None:
        """Put on the disk whatever another process, or an interrupted call, wrote and may not have
        synced.
        """
        if self._log_path.exists():
            sync_file(self._log_path)
        sync_directory(self._path.parent)
        self._is_synced = True


def read_entries(state_path: Path) -> dict[str, Entry] | None:
    """Read the entries of all topics by name, also those being deleted; None if there is no file.

    Raises CorruptRecordError or StoreVersionError.
    """
    found = TopicsFile(state_path).read(None)
    if found is None:
        return None
    return {name: entry for name, entry in found.entries.items() if entry is not None}


def _identity_of(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


# The whole file.


def _sum_of(entries: object) -> int:
    """Return a checksum of the file's content, however it is laid out."""
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return crc32c(text.encode())


def _parse_whole(path: Path, content: bytes) -> dict[str, Entry | None] | None:
    """Return the entries; None if they are in the log."""
    try:
        return _entries_of(path, loads_json(content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(str(path), 0, f"not a list of topics: {error!r}") from error


def _entries_of(path: Path, document: dict[str, Any]) -> dict[str, Entry | None] | None:
    version = document["version"]
    if isinstance(version, int) and version > LOG_VERSION:
        raise StoreVersionError(f"{path}: version {version}, known up to {LOG_VERSION}")
    entries = document["topics"]
    if version == LOG_VERSION and entries == LOG_NAME:
        return None
    if version != WHOLE_VERSION:
        raise ValueError(f"version {version!r}")
    # Older versions wrote none.
    if document.get("crc32c", wanted := _sum_of(entries)) != wanted:
        raise ValueError(f"the topics do not match their checksum, which would be {wanted}")
    return _checked_entries(entries)


def _checked_entries(entries: object) -> dict[str, Entry | None]:
    if not isinstance(entries, dict):
        raise TypeError(f"topics {entries!r:.80}")
    return entries


# The log.


def _line(entries: Mapping[str, Entry | None], position: LogPosition) -> tuple[bytes, LogPosition]:
    """Return a line that goes to a position, and the position after it."""
    text = json.dumps(entries, separators=(",", ":")).encode()
    checksum = _checksum(position.checksum, text)
    line = b"%s\t%s\n" % (text, checksum)
    return line, _after(position, len(line), checksum)


def _after(position: LogPosition, line_bytes: int, checksum: bytes) -> LogPosition:
    end_bytes = position.end_bytes + line_bytes
    return LogPosition(end_bytes, checksum, position.first_line_bytes or line_bytes)


def _checksum(before: bytes, text: bytes) -> bytes:
    return b"%08x" % crc32c(before + text)


def _is_whole(line: bytes, before: bytes) -> bool:
    """True if a line, without its end, is as it was written."""
    text, checksum = line[: -_CHECKSUM_BYTES - 1], line[-_CHECKSUM_BYTES - 1 :]
    return checksum == b"\t" + _checksum(before, text)


def _parse_lines(
    path: Path, data: bytes, position: LogPosition
) -> tuple[dict[str, Entry | None], LogPosition]:
    """Return the entries of the whole lines after a position, the newest of each name, and where
    these lines end.
    """
    entries: dict[str, Entry | None] = {}
    begin = 0
    while (end := data.find(b"\n", begin)) >= 0:
        line = data[begin:end]
        if not _is_whole(line, position.checksum):
            break
        try:
            entries |= _checked_entries(loads_json(line[: -_CHECKSUM_BYTES - 1]))
        except (ValueError, TypeError) as error:
            reason = f"not a change of topics: {error!r}"
            raise CorruptRecordError(str(path), position.end_bytes, reason) from error
        position = _after(position, len(line) + 1, line[-_CHECKSUM_BYTES:])
        begin = end + 1
    rest = data[begin:]
    # The first line came with the file's name.
    if not position.end_bytes or (rest and not _is_cut_short(rest, position.checksum)):
        reason = "a line does not match its checksum"
        raise CorruptRecordError(str(path), position.end_bytes, reason)
    return entries, position


def _is_cut_short(rest: bytes, before: bytes) -> bool:
    """True if an append that a crash cut short may have left these bytes."""
    end = rest.find(b"\n")
    if end < 0:
        return not _is_whole(rest[:-1], before)  # Else its end is damaged.
    return end == len(rest) - 1 and b"\0" in rest
