"""Durability of a store: the three promises it can be opened with, and what survives under each."""

from typing import Literal, get_args

Durability = Literal["commit", "always", "process"]
IsolationLevel = Literal["read_committed", "read_uncommitted"]


def check_durability(durability: str) -> Durability:
    """The durability, or ValueError if there is none of that name.

    - "commit": what `flush()` or a decision returned for survives a power cut; single appends
    survive
      the death of the process.
    - "always": every append is synced before it returns; threads that append at once share a sync.
    - "process": nothing waits for the disk; everything survives the death of the process.
    """
    for known in get_args(Durability):
        if durability == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"durability={durability!r}: one of {', '.join(get_args(Durability))}")


def check_isolation_level(level: str) -> IsolationLevel:
    """The isolation level, or ValueError if there is none of that name."""
    for known in get_args(IsolationLevel):
        if level == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"isolation_level={level!r}: one of {', '.join(get_args(IsolationLevel))}")
