"""A log whose oldest segments are gone although nothing here deleted them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LostBeginning:
    """The log begins at `start_offset`, or did after a clean close; the oldest segment that is
    there begins at `first_offset`.

    `was_closed` is False where other processes had it open, whose page says where it begins.
    """

    start_offset: int
    first_offset: int
    was_closed: bool = True

    def __str__(self) -> str:
        begins = (
            f"began at offset {self.start_offset} when it was closed"
            if self.was_closed
            else f"begins at offset {self.start_offset}"
        )
        return (
            f"the log {begins}, and its oldest segment begins at {self.first_offset}: what is "
            "missing was deleted by somebody else, or lost by the disk"
        )
