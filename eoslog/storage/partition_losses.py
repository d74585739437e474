"""What of a partition's log was lost: its beginning, its end, the name of a segment.

Noted when the partition is opened, said in the log and by `verify`, and told to readers: they do
not step over what is gone.
"""

import logging
from pathlib import Path

from eoslog.bindings.partition_log import PartitionLog
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import CorruptRecordError
from eoslog.storage.lost_beginning import LostBeginning
from eoslog.storage.lost_end import LostEnd
from eoslog.storage.misnamed_segment import MisnamedSegment, misnamed_segment
from eoslog.storage.partition_offsets import PartitionOffsets
from eoslog.storage.producer_state_store import ProducerStateStore

_log = logging.getLogger(__name__)


class PartitionLosses(PartitionOffsets):
    """A partition that knows what it lost; `Partition` is made on top of it."""

    def __init__(
        self, log: PartitionLog, topic_id: str, rows: ProducerStateStore, *, shared: bool = False
    ) -> None:
        super().__init__(log, topic_id, rows, shared=shared)
        self._lost_beginning: LostBeginning | None = None
        # Where the oldest segment began that was there when the log was opened, if something was
        # missing, or other processes had it open; else 0. The log's start is raised before a file
        # goes: it is no lower, unless files were lost.
        self._first_offset = 0
        self.lost_end: LostEnd | None = None
        self.misnamed: MisnamedSegment | None = None

    @property
    def lost_beginning(self) -> LostBeginning | None:
        """What of the log was gone when it was opened; None once more of it is deleted."""
        start = self.log_start_offset
        if start < self._first_offset:
            return LostBeginning(start, self._first_offset, checkpointed=False)
        lost = self._lost_beginning
        return lost if lost is not None and lost.first_offset == start else None

    def note_lost_beginning(self, start_offset: int, first_offset: int) -> None:
        """It begins at an offset, as the checkpoint has it, and its oldest segment at another: say
        so if that is further up.

        Before segments are deleted the offset is written down at which the log begins then.
        """
        if start_offset < first_offset:
            self._first_offset = first_offset
            self._lost_beginning = LostBeginning(start_offset, first_offset)
            _log.error("%s: %s", self.topic_partition, self._lost_beginning)

    def restore_producers(self, cached_max: int) -> str:
        """As `PartitionProducers` has it. Where the log was attached to: say so if its beginning,
        as other processes have it, is gone.
        """
        restored_from = super().restore_producers(cached_max)
        if self._log.attached:
            # The segment first: the start is raised, and a deleted topic says so, before files go.
            self._first_offset = self._log.first_base_offset
            lost = self.lost_beginning
            if lost is not None:
                _log.error("%s: %s", self.topic_partition, lost)
        return restored_from

    def _check_beginning(self, offset: int) -> None:
        """Raise CorruptRecordError if what stands at an offset was lost from the log's beginning.

        Else the engine, which lists the files that are there, would step over it. An internal log
        is read from what is left of it, as when it is opened anew: the error was logged.
        """
        lost = self.lost_beginning
        if lost is not None and offset >= lost.start_offset and self.topic not in INTERNAL_TOPICS:
            raise CorruptRecordError(self._log.path, 0, str(lost))

    def note_lost_end(self, synced_offset: int) -> None:
        """It was synced up to an offset: say so if it ends below that."""
        if synced_offset > self.log_end_offset:
            self.lost_end = LostEnd(synced_offset, self.log_end_offset)
            _log.error("%s: %s", self.topic_partition, self.lost_end)

    def note_cut(self, kept: Path) -> None:
        """Recovery cut something off, which is kept there: say so if it was no torn write."""
        if self.log_end_offset == self.log_start_offset:
            self.misnamed = misnamed_segment(kept, self.log_start_offset)
        if self.misnamed is not None:
            _log.error("%s: %s", self.topic_partition, self.misnamed)
