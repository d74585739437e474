from typing import final

PRODUCER_ROW_BYTES: int

def empty_row(producer_id: int) -> bytes: ...
def row_state(row: bytes) -> ProducerState: ...

@final
class ProducerState:
    @property
    def producer_id(self) -> int:
        """The id."""
    @property
    def producer_epoch(self) -> int:
        """Newest epoch that was seen; -1 if none was."""
    @property
    def last_sequence(self) -> int:
        """Last sequence of its last batch; -1 if no batch is known."""
    @property
    def last_offset(self) -> int:
        """Last offset of its last batch; -1 if no batch is known."""
    @property
    def last_timestamp(self) -> int:
        """Timestamp that it was last seen with, in milliseconds since 1970."""
    @property
    def coordinator_epoch(self) -> int:
        """That of the last marker; -1 if there was none."""
    @property
    def current_txn_first_offset(self) -> int:
        """Where its open transaction begins; -1 if none is open."""
    @property
    def batches(self) -> tuple[tuple[int, int, int, int, int], ...]:
        """The window, oldest first: first and last sequence, first and last offset, timestamp."""
