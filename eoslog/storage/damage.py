"""Damage to a partition's files that neither an append nor a torn write explains.

A person, another program or the disk deleted, renamed or swapped files. The damage is noted when
the partition is opened, logged as an error, and reported by `verify`. A `Problem` is one thing that
a check of a store reports.
"""

import logging
import os
from pathlib import Path
from typing import Literal, NamedTuple

from eoslog.bindings.file_descriptor import open_regular
from eoslog.bindings.record_batch import BatchHeader
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, UnsupportedCompressionTypeError
from eoslog.fs.offline_log import BATCH_FRONT, batch_at
from eoslog.fs.os_errors import named_os_errors

Problem = dict[str, object]

_log = logging.getLogger(__name__)

# What a read or an opening raises where the files are not what this version can read.
UNREADABLE = (CorruptRecordError, UnsupportedCompressionTypeError)


def problem(path: Path | str, reason: str, position_bytes: int = 0) -> Problem:
    """One thing that is wrong: in which file or directory, where in it, and what."""
    return {"path": str(path), "position_bytes": position_bytes, "reason": reason}


def problem_of(error: CorruptRecordError | UnsupportedCompressionTypeError) -> Problem:
    """Return the problem for an error that keeps something from being opened or read."""
    return problem(error.path, error.reason, error.position_bytes)


def is_damage(one: Problem) -> bool:
    """True if a problem is damage of the files. An unsupported compression type is not: the batch
    is whole, and the reader lacks the codec.
    """
    return not str(one["reason"]).startswith("compressed with ")


def with_compressed_as_one(problems: list[Problem]) -> list[Problem]:
    """Return a partition's problems, with one for all of its compressed batches: the first, and the
    count of the others.
    """
    compressed = [one for one in problems if not is_damage(one)]
    if len(compressed) > 1:
        count = len(compressed) - 1
        more = f"{count} more batch{'es' if count > 1 else ''} of the partition"
        compressed[0]["reason"] = f"{compressed[0]['reason']}; so are {more}"
    return [one for one in problems if one in compressed[:1] or is_damage(one)]


class CutTail(NamedTuple):
    """Tail that recovery cut off a partition's log, the offset where it was cut, and where it is
    kept: None if it is in its file still, as the store was only read.
    """

    topic_partition: TopicPartition
    bytes: int
    offset: int
    kept: Path | None

    def described(self) -> dict[str, object]:
        return {
            "partition": str(self.topic_partition),
            "bytes": self.bytes,
            "offset": self.offset,
            "kept": None if self.kept is None else str(self.kept),
        }


DamageKind = Literal["beginning", "end", "name", "producers"]

# So many zeros at the end of what recovery cut off may have been left out.
_ZEROS_MAX = 1 << 20


class Damage(NamedTuple):
    """Damage of a partition: what it is, in which directory or file, and a text for people."""

    kind: DamageKind
    path: str
    text: str

    def __str__(self) -> str:
        return self.text


def lost_beginning(path: str, start: int, first: int, *, checkpointed: bool) -> Damage:
    """The log starts at offset `start`, and the oldest segment that is there at `first`.

    `checkpointed` is False if other processes had it open; then their page has its start.
    """
    starts = f"begins at offset {start}" + (", as its checkpoint has it" if checkpointed else "")
    return Damage(
        "beginning",
        path,
        f"the log {starts}, and its oldest segment begins at {first}: what is missing was deleted "
        "by another program, or lost by the disk",
    )


def lost_end(path: str, synced_offset: int, end_offset: int) -> Damage | None:
    """Return the damage of a log whose records below `synced_offset` were all synced, and that ends
    at `end_offset`.

    None if that is not below it.
    """
    if synced_offset <= end_offset:
        return None
    return Damage(
        "end",
        path,
        f"all below offset {synced_offset} had been synced, and the log was found to end at "
        f"{end_offset}: what is missing was lost by the disk, or deleted by another program",
    )


def lost_producers(path: str, first: int) -> Damage:
    """The oldest segment begins at `first`, and neither LMDB nor a snapshot has the producers of
    the records below, as they do after segments were deleted by retention.
    """
    return Damage(
        "producers",
        path,
        f"the producers of the deleted records below offset {first} are unknown: LMDB's rows and "
        "the snapshots are both gone, or older; what one of them sends again is taken for new",
    )


class LogDamage:
    """Damage that was found when a partition's log was opened; each is logged as an error."""

    def __init__(self, where: TopicPartition, path: str) -> None:
        self.found: list[Damage] = []
        # Where the oldest segment began that was there when the log was opened, if something was
        # missing, or other processes had it open; else 0. The log's start is raised before a file
        # is deleted: it is no lower, unless files were lost.
        self.first_offset = 0
        self._where = where
        self._path = path
        self._beginning: tuple[int, int] | None = None

    @property
    def has_lost_end(self) -> bool:
        """True if the log was found to end below an offset up to which it was synced."""
        return any(one.kind == "end" for one in self.found)

    def lost_range(self, start_offset: int) -> tuple[int, int] | None:
        """Return the first offset that was lost from the beginning of a log that starts at
        `start_offset` now, and the first that is there.

        None if nothing was lost, and once more of the log is deleted.
        """
        if start_offset < self.first_offset:
            return start_offset, self.first_offset
        lost = self._beginning
        return lost if lost is not None and lost[1] == start_offset else None

    def of_beginning(self, start_offset: int) -> Damage | None:
        """Return the damage of the `lost_range`."""
        lost = self.lost_range(start_offset)
        if lost is None:
            return None
        # Where other processes have the log open, its page still says where it started.
        return lost_beginning(self._path, *lost, checkpointed=start_offset == lost[1])

    def note_lost_beginning(self, start_offset: int, first_offset: int) -> None:
        """Note that the log's oldest segment begins above the log start of its checkpoint. Before
        segments are deleted the new start is written down.
        """
        if start_offset < first_offset:
            self.first_offset = first_offset
            self._beginning = (start_offset, first_offset)
            self.report(lost_beginning(self._path, start_offset, first_offset, checkpointed=True))

    def note(self, damage: Damage | None) -> None:
        """Note damage, if there is any."""
        if damage is not None:
            self.found.append(damage)
            self.report(damage)

    def report(self, damage: Damage | None) -> None:
        """Log damage, if there is any."""
        if damage is not None:
            _log.error("%s: %s", self._where, damage)


def misnamed_segment(kept: Path, base_offset: int) -> Damage | None:
    """The damage if what recovery cut off from the beginning of a segment on was never of that
    segment: its file began with a whole batch of a lower offset.

    `kept` is the directory of what was cut off. A torn write is no whole batch, and what an earlier
    life left in the file has no lower offset: no file is used for a later segment.
    """
    with named_os_errors(f"reading what was cut off in {kept}"):
        newest = max(
            kept.glob(f"{base_offset:020d}.log.0.*"),
            key=lambda path: path.stat().st_mtime_ns,
            default=None,
        )
        if newest is None:
            return None
        with open(newest, "rb", opener=open_regular) as file:
            front = file.read(BATCH_FRONT.size)
            if len(front) < BATCH_FRONT.size:
                return None
            first_offset, length = BATCH_FRONT.unpack(front)
            bytes_max = os.fstat(file.fileno()).st_size + _ZEROS_MAX
            if not (0 <= first_offset < base_offset and 0 < length < bytes_max):
                return None
            batch = front + file.read(length).ljust(length, b"\0")
    if not isinstance(batch_at(batch, 0, first_offset), BatchHeader):
        return None
    return Damage(
        "name",
        str(newest),
        f"the segment of offset {base_offset} began with the records of offset {first_offset}: its "
        "file was renamed, or put in from elsewhere, by another program; what was in it is kept as "
        f"{newest}",
    )
