"""Kafka's text checkpoints at the top of a store: one offset for each partition.

Line 1 is the version, 0; line 2 the number of entries; then `<topic> <partition> <offset>`.
"""

from collections.abc import Mapping
from pathlib import Path

from eoslog.atomic_file import read_if_there, write_atomically
from eoslog.errors import CorruptRecordError
from eoslog.topic_partition import TopicPartition

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"

CHECKPOINT_VERSION = 0


def write_checkpoint(
    path: Path, offsets: Mapping[TopicPartition, int], *, sync: bool = True
) -> None:
    """Replace the checkpoint by these offsets, sorted by topic and partition."""
    lines = [str(CHECKPOINT_VERSION), str(len(offsets))]
    lines += [f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())]
    write_atomically(path, ("\n".join(lines) + "\n").encode(), sync=sync)


def read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint; none if the file is missing or empty.

    Raises CorruptRecordError if the file is no checkpoint of this version, or not a whole one.
    """
    content = read_if_there(path)
    if not content:
        return {}
    try:
        return _parse(content.decode().splitlines())
    except (ValueError, IndexError) as error:
        raise CorruptRecordError(str(path), 0, f"not a checkpoint: {error}") from error


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
