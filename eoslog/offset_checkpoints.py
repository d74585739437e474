"""The three checkpoints at the top of a store, held together.

Invariants: a partition that is not open keeps what was read; nothing is read before the first
partition is opened, so that opening a store costs the same whatever it holds. A checkpoint that
cannot be read is left out, as if it were lost: recovery then reads more of the log.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from eoslog.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
    write_checkpoint,
)
from eoslog.errors import CorruptRecordError
from eoslog.partition import Partition
from eoslog.topic_partition import TopicPartition

_log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class LastOffsets(NamedTuple):
    """What the checkpoints say of one partition."""

    recovery_point: int
    log_start_offset: int
    high_watermark: int


def last_offsets(partition: Partition) -> LastOffsets:
    """What the checkpoints would say of an open partition now."""
    # The recovery point first: it must not be above the other two.
    recovery_point = partition.recovery_point
    return LastOffsets(recovery_point, partition.log_start_offset, partition.high_watermark)


class OffsetCheckpoints:
    """Recovery points, log start offsets and high watermarks of all partitions."""

    def __init__(self, store_path: Path) -> None:
        self._path = store_path
        self._lock = threading.Lock()
        self._offsets: dict[str, Offsets] = {}
        self.damaged: list[str] = []

    def recovery_point(self, where: TopicPartition) -> int:
        """Everything below is on disk; 0 if nothing is known."""
        return self._of(RECOVERY_POINT).get(where, 0)

    def log_start_offset(self, where: TopicPartition) -> int:
        """The oldest offset that may be read; 0 if nothing is known."""
        return self._of(LOG_START_OFFSET).get(where, 0)

    def write(self, known: Mapping[TopicPartition, LastOffsets], *, sync: bool = True) -> None:
        """Replace the checkpoints by what is known now, and by what was read of all others.

        Raises StoreFullError, StoreReadOnlyError or StoreFailedError; the old ones then stand.
        """
        if not known:
            return
        with self._lock:
            self._load()
            for where, offsets in known.items():
                self._offsets[RECOVERY_POINT][where] = offsets.recovery_point
                self._offsets[LOG_START_OFFSET][where] = offsets.log_start_offset
                self._offsets[HIGH_WATERMARK][where] = offsets.high_watermark
            for name, written in self._offsets.items():
                write_checkpoint(self._path / name, written, sync=sync)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Leave partitions out that are being deleted; durable on return."""
        with self._lock:
            self._load()
            for name, offsets in self._offsets.items():
                held = len(offsets)
                for where in partitions:
                    offsets.pop(where, None)
                if len(offsets) < held:
                    write_checkpoint(self._path / name, offsets)

    def _of(self, name: str) -> Offsets:
        with self._lock:
            self._load()
            return self._offsets[name]

    def _load(self) -> None:
        if not self._offsets:
            self._offsets = {
                name: self._read(name)
                for name in (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK)
            }

    def _read(self, name: str) -> Offsets:
        try:
            return read_checkpoint(self._path / name)
        except CorruptRecordError as error:
            self.damaged.append(str(error))
            _log.warning("%s; it is left out and written anew", error)
            return {}
