"""The offsets of a partition: where its log begins and ends, and up to where readers see it.

Invariants: they are of the whole log, whichever process wrote it; readers see nothing at or above
`visible_end`, which stands still, in all processes, while a staged job is being adopted.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from eoslog.bindings.partition_log import PartitionLog
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import CorruptRecordError, OffsetOutOfRangeError
from eoslog.storage.damage import Damage, lost_beginning, lost_end, misnamed_segment
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.storage.producer_state_store import ProducerStateStore

NO_HOLD = -1

T = TypeVar("T")

_log = logging.getLogger(__name__)


class PartitionOffsets(PartitionProducers):
    """A partition that knows its offsets; `Partition` is made on top of it."""

    def __init__(
        self, log: PartitionLog, topic_id: str, rows: ProducerStateStore, *, shared: bool = False
    ) -> None:
        super().__init__(log, topic_id, rows, shared=shared)
        self._lost_beginning: tuple[int, int] | None = None
        # Where the oldest segment began that was there when the log was opened, if something was
        # missing, or other processes had it open; else 0. The log's start is raised before a file
        # goes: it is no lower, unless files were lost.
        self._first_offset = 0

    @property
    def log_start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._log.log_start_offset

    @property
    def first_base_offset(self) -> int:
        """Base offset of the oldest segment that is there; as a rule that is the log start."""
        return self._log.first_base_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End of the records that a store of one copy shows: the log end."""
        return self._log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of decided data: the first offset of the oldest open transaction, or of a staged job
        that is being adopted, else the high watermark.
        """
        # In this order: what is adopted in between lies above the offset that is held then.
        stable = self._log.last_stable_offset
        held = self._log.hold_offset
        return stable if held < 0 else min(held, stable)

    @property
    def visible_end(self) -> int:
        """End of what consumers read."""
        end = self.high_watermark
        held = self._log.hold_offset
        return end if held < 0 else min(held, end)

    @property
    def recovery_point(self) -> int:
        """Offset below which everything is synced."""
        return self._log.recovery_point

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment that takes the appends."""
        return self._log.active_base_offset

    @property
    def own_end(self) -> int:
        """End of the records that this process knows: it appended them, with no other process in
        between, or was told so by setting this. Below the log's end: others appended too.
        """
        return self._log.own_end

    @own_end.setter
    def own_end(self, offset: int) -> None:
        self._log.own_end = offset

    @property
    def hold_offset(self) -> int:
        """Offset where readers of all processes stop while a staged job is being adopted; -1:
        nowhere.
        """
        return self._log.hold_offset

    @hold_offset.setter
    def hold_offset(self, offset: int) -> None:
        self._log.hold_offset = offset

    # Damage.

    @property
    def lost_range(self) -> tuple[int, int] | None:
        """The first offset that was lost from the log's beginning, and the first that is there.

        None if nothing was lost, and once more of the log is deleted.
        """
        start = self.log_start_offset
        if start < self._first_offset:
            return start, self._first_offset
        lost = self._lost_beginning
        return lost if lost is not None and lost[1] == start else None

    def all_damage(self) -> list[Damage]:
        """The damage that was found when the partition was opened."""
        beginning = self._damage_of_beginning()
        return self.damage if beginning is None else [beginning, *self.damage]

    def note_lost_beginning(self, start_offset: int, first_offset: int) -> None:
        """Note and log that the log's oldest segment begins above where its checkpoint says that
        the log does. Before segments are deleted the new start is written down.
        """
        if start_offset < first_offset:
            self._first_offset = first_offset
            self._lost_beginning = (start_offset, first_offset)
            lost = lost_beginning(self._log.path, start_offset, first_offset, checkpointed=True)
            _log.error("%s: %s", self.topic_partition, lost)

    def note_lost_end(self, synced_offset: int) -> None:
        """Note and log that the log ends below an offset up to which it was synced."""
        self._note(lost_end(self._log.path, synced_offset, self.log_end_offset))

    def note_cut(self, kept: Path) -> None:
        """Note and log that what recovery cut off, which is in `kept`, was no torn write."""
        if self.log_end_offset == self.log_start_offset:
            self._note(misnamed_segment(kept, self.log_start_offset))

    def _restore(self, cached_max: int) -> str:
        """Restore the producers; log the damage if the beginning of a log that other processes
        have open is gone.
        """
        restored_from = super()._restore(cached_max)
        if self._log.attached:
            # The segment first: the start is raised, and a deleted topic says so, before files go.
            self._first_offset = self._log.first_base_offset
            lost = self._damage_of_beginning()
            if lost is not None:
                _log.error("%s: %s", self.topic_partition, lost)
        return restored_from

    def _check_beginning(self, offset: int) -> None:
        """Raise CorruptRecordError if what stands at an offset was lost from the log's beginning.

        Else the engine, which lists the files that are there, would step over it. A read calls this
        before and after: that the log is reattached within it may show the loss. An internal log is
        read from what is left of it, as when it is opened again: the error was logged.
        """
        if offset >= self._first_offset:
            return
        lost = self.lost_range
        if lost is not None and offset >= lost[0] and self.topic not in INTERNAL_TOPICS:
            raise CorruptRecordError(self._log.path, 0, str(self._damage_of_beginning()))

    def _damage_of_beginning(self) -> Damage | None:
        lost = self.lost_range
        if lost is None:
            return None
        # Where other processes have the log open, its page still says where it started.
        checkpointed = self.log_start_offset == lost[1]
        return lost_beginning(self._log.path, *lost, checkpointed=checkpointed)


def from_what_is_left(partition: PartitionOffsets, first: int, read: Callable[[int], T]) -> T:
    """Return what `read` returns for an offset, or for the log's start if that is higher.

    It is called again if retention deleted what stands there meanwhile.
    """
    while True:
        offset = max(first, partition.log_start_offset)
        try:
            return read(offset)
        except OffsetOutOfRangeError:
            if partition.log_start_offset <= offset:
                raise
