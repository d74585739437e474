"""Durability of a store: the three promises it can be opened with, and what survives under each."""

from typing import Literal, get_args

Durability = Literal["commit", "always", "process"]
# For `eoslog.open`: the one that the store remembers.
Remembered = Literal["remembered"]
REMEMBERED: Remembered = "remembered"
IsolationLevel = Literal["read_committed", "read_uncommitted"]


def check_durability(durability: str) -> Durability:
    """Return the durability of this name. Raises ValueError for an unknown one.

    - "commit": what `flush()` or a decision returned for survives a power cut; single appends
      survive the death of the process.
    - "always": every append is synced before it returns; threads that append at once share a sync.
    - "process": nothing waits for the disk; everything survives the death of the process.
    """
    for known in get_args(Durability):
        if durability == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(
        f"durability must be one of {', '.join(get_args(Durability))}, got {durability!r}"
    )


def is_weaker(one: Durability, other: Durability) -> bool:
    """Return True if less survives a power cut under the one than under the other."""
    rising = ("process", "commit", "always")
    return rising.index(one) < rising.index(other)


def check_isolation_level(level: str) -> IsolationLevel:
    """Return the isolation level of this name. Raises ValueError for an unknown one."""
    for known in get_args(IsolationLevel):
        if level == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(
        f"isolation_level must be one of {', '.join(get_args(IsolationLevel))}, got {level!r}"
    )
