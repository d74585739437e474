"""The files at the top of a broker's log directory, and of each partition, that a store has
otherwise or not at all.

Nothing is synced here: the caller syncs the whole directory before it has its name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.atomic_file import write_atomically
from eoslog.fs.checkpoint_file import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from eoslog.fs.identity_files import META_PROPERTIES
from eoslog.session.paths import MARKER_NAME

LEADER_EPOCHS = "leader-epoch-checkpoint"
_FIRST_LEADER_EPOCH = 0


@dataclass(frozen=True)
class BrokerIdentity:
    """The ids in a broker's `meta.properties`."""

    cluster_id: str
    directory_id: str
    node_id: int


@dataclass(frozen=True)
class LogBounds:
    """The offsets of a partition's log."""

    log_start_offset: int
    log_end_offset: int


def write_top_files(
    path: Path, identity: BrokerIdentity, logs: Mapping[TopicPartition, LogBounds]
) -> None:
    """Write what makes a directory that of a broker which stopped cleanly, with these logs."""
    lines = [
        "#",
        f"cluster.id={identity.cluster_id}",
        f"directory.id={identity.directory_id}",
        f"node.id={identity.node_id}",
        "version=1",
    ]
    _write(path / META_PROPERTIES, lines)
    starts = {where: log.log_start_offset for where, log in logs.items()}
    ends = {where: log.log_end_offset for where, log in logs.items()}
    for name, offsets in ((RECOVERY_POINT, ends), (HIGH_WATERMARK, ends)):
        _write_checkpoint(path / name, offsets)
    # Kafka writes those that the name of the first segment does not say.
    _write_checkpoint(path / LOG_START_OFFSET, {one: at for one, at in starts.items() if at})
    marker = json.dumps({"version": 0, "brokerEpoch": -1}, separators=(",", ":"))
    write_atomically(path / MARKER_NAME, marker.encode(), sync=False)


def write_leader_epochs(directory: Path, log: LogBounds) -> None:
    """Have all of a partition's records count as those of Kafka's first leader epoch.

    A consumer asks where the epoch of the batch that it read last ended: whichever it was, the
    answer is then the end of what was exported.
    """
    epochs = []
    if log.log_start_offset < log.log_end_offset:
        epochs.append(f"{_FIRST_LEADER_EPOCH} {log.log_start_offset}")
    _write(directory / LEADER_EPOCHS, ["0", str(len(epochs)), *epochs])


def _write_checkpoint(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    rows = [f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())]
    _write(path, ["0", str(len(rows)), *rows])


def _write(path: Path, lines: list[str]) -> None:
    write_atomically(path, ("\n".join(lines) + "\n").encode(), sync=False)
