"""Producers that nothing tells of any more: their batches were deleted, and both copies as well."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LostProducers:
    """The oldest segment begins at `first_offset`, and neither LMDB's rows nor a snapshot tell of
    the producers below, as they do once segments were deleted here.
    """

    first_offset: int

    def __str__(self) -> str:
        return (
            f"nothing tells which producers wrote the records below offset {self.first_offset}, "
            "which were deleted: LMDB's rows and the snapshots are both gone, or older; what one "
            "of them sends again is taken for new"
        )
