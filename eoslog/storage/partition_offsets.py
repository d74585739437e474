"""The offsets of a partition: where its log begins and ends, and up to where readers see it.

Invariants: they are of the whole log, whichever process wrote it; readers see nothing at or above
`visible_end`, which stands still, in all processes, while a staged job is being adopted.
"""

from eoslog.errors import FellBehindError
from eoslog.storage.partition_producers import PartitionProducers, keeping_up

NO_HOLD = -1


class PartitionOffsets(PartitionProducers):
    """A partition that knows its offsets; `PartitionLosses` is made on top of it."""

    @property
    def log_start_offset(self) -> int:
        """The oldest offset that can be read."""
        return self._log.log_start_offset

    @property
    def first_base_offset(self) -> int:
        """Where the oldest segment begins that is there; as a rule that is the log start."""
        return self._log.first_base_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        while True:
            try:
                return self._log.log_end_offset
            except FellBehindError:
                self.take_up_anew()

    @property
    def high_watermark(self) -> int:
        """Up to where a store of one copy shows its records: the log end."""
        while True:
            try:
                return self._log.high_watermark
            except FellBehindError:
                self.take_up_anew()

    @property
    def last_stable_offset(self) -> int:
        """Up to where everything is decided: the first offset of the oldest open transaction, or of
        a staged job that is being adopted, else the high watermark.
        """
        # In this order: what is adopted in between lies above the offset that is held then.
        while True:
            try:
                stable = self._log.last_stable_offset
                break
            except FellBehindError:
                self.take_up_anew()
        held = self._log.hold_offset
        return stable if held < 0 else min(held, stable)

    @property
    def visible_end(self) -> int:
        """Up to where consumers read."""
        end = self.high_watermark
        held = self._log.hold_offset
        return end if held < 0 else min(held, end)

    @property
    def recovery_point(self) -> int:
        """Everything below is synced."""
        return self._log.recovery_point

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment that takes the appends."""
        return self._log.active_base_offset

    @property
    def own_end(self) -> int:
        """Up to where this process knows the records: it appended them, without anybody else's in
        between, or was told so by setting this. Below the log's end: others appended too.
        """
        return self._log.own_end

    @own_end.setter
    @keeping_up
    def own_end(self, offset: int) -> None:
        self._log.own_end = offset

    @property
    def hold_offset(self) -> int:
        """Where readers of all processes stop while a staged job is being adopted; -1: nowhere."""
        return self._log.hold_offset

    @hold_offset.setter
    def hold_offset(self, offset: int) -> None:
        self._log.hold_offset = offset
