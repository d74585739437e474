"""A log whose newest records are gone although they had been synced."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LostEnd:
    """All below `synced_offset` had been synced; the log was found to end at `end_offset`."""

    synced_offset: int
    end_offset: int

    def __str__(self) -> str:
        return (
            f"all below offset {self.synced_offset} had been synced, and the log was found to end "
            f"at {self.end_offset}: what is missing was lost by the disk, or deleted by somebody "
            "else"
        )
