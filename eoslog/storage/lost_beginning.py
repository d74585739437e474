"""A log whose oldest segments are gone although nothing here deleted them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LostBeginning:
    """The log begins at `start_offset`; the oldest segment that is there begins at `first_offset`.

    `checkpointed` is False where other processes had it open, whose page says where it begins.
    """

    start_offset: int
    first_offset: int
    checkpointed: bool = True

    def __str__(self) -> str:
        begins = f"begins at offset {self.start_offset}"
        if self.checkpointed:
            begins += ", as its checkpoint has it"
        return (
            f"the log {begins}, and its oldest segment begins at {self.first_offset}: what is "
            "missing was deleted by somebody else, or lost by the disk"
        )
