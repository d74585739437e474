"""What a check of a store found wrong, as `Store.verify` says it."""

from pathlib import Path

from eoslog.errors import CorruptRecordError

Problem = dict[str, object]


def problem(path: Path | str, reason: str, position_bytes: int = 0) -> Problem:
    """One thing that is wrong: in which file or directory, where in it, and what."""
    return {"path": str(path), "position_bytes": position_bytes, "reason": reason}


def problem_of(error: CorruptRecordError) -> Problem:
    """What keeps something from being opened or read, in the form of a problem."""
    return problem(error.path, error.reason, error.position_bytes)
