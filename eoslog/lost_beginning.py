"""A log whose oldest segments are gone although nothing here deleted them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LostBeginning:
    """After a clean close the log began at `start_offset`; the oldest segment that is there begins
    at `first_offset`.
    """

    start_offset: int
    first_offset: int

    def __str__(self) -> str:
        return (
            f"the log began at offset {self.start_offset} when it was closed, and its oldest "
            f"segment begins at {self.first_offset}: what is missing was deleted by somebody "
            "else, or lost by the disk"
        )
