"""Kafka's text checkpoints at the top of a store: one offset for each partition.

Line 1 is the version, 0; line 2 the number of entries; then `<topic> <partition> <offset>`.

The last entry is ours: the checksum of all before it and of the file's name, under a name that no
topic can have. Without it a bit that flips in a log start would hide records. Kafka never asks for
that entry, and leaves it out where it writes; a file without it is believed.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from eoslog.bindings.record_batch import crc32c
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.fs.atomic_file import read_if_there, write_each_atomically

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"

CHECKPOINT_VERSION = 0
# Whichever of its bits flips, there is a character left that no topic's name has.
SUM_NAME = "#crc32c#"


def write_checkpoints(
    checkpoints: Mapping[Path, Mapping[TopicPartition, int]], *, sync: bool = True
) -> None:
    """Replace checkpoints of one directory by these offsets; the directory is synced once."""
    contents = {path: _content(path, offsets) for path, offsets in checkpoints.items()}
    write_each_atomically(contents, sync=sync)


def _content(path: Path, offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [str(CHECKPOINT_VERSION), str(len(offsets) + 1)]
    lines += [f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())]
    summed = "".join(f"{line}\n" for line in lines)
    return f"{summed}{SUM_NAME} 0 {_sum(path, summed)}\n".encode()


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint; none if the file is missing or empty.

    Raises CorruptRecordError if the file is no checkpoint of this version, not a whole one, or not
    as it was written.
    """
    content = read_if_there(path)
    if not content:
        return {}
    try:
        text = content.decode()
        offsets = _parse(text.splitlines())
        summed, name, _ = text.rpartition(SUM_NAME)
        if name:
            _check_sum(offsets.pop(TopicPartition(SUM_NAME, 0)), _sum(path, summed))
        _check_names(offsets)
    except (ValueError, LookupError) as error:
        raise CorruptRecordError(str(path), 0, f"not a checkpoint: {error}") from error
    return offsets


def _sum(path: Path, summed: str) -> int:
    return crc32c(f"{path.name}\n{summed}".encode())


def _check_sum(written: int, computed: int) -> None:
    if written != computed:
        raise ValueError(f"its checksum is {written}, and that of its content {computed}")


def _check_names(partitions: Iterable[TopicPartition]) -> None:
    if any("#" in topic for topic, _ in partitions):
        raise ValueError("a name that no topic can have")


def _parse(lines: list[str]) -> dict[TopicPartition, int]:
    version, entry_count = int(lines[0]), int(lines[1])
    if version != CHECKPOINT_VERSION:
        raise ValueError(f"version {version}, expected {CHECKPOINT_VERSION}")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(entries) != entry_count:
        raise ValueError(f"{len(entries)} entries, expected {entry_count}")
    offsets = {TopicPartition(topic, int(number)): int(at) for topic, number, at in entries}
    if any(offset < 0 for offset in offsets.values()):
        raise ValueError("a negative offset")
    return offsets
