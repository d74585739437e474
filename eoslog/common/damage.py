"""What a check of a store found wrong, as `Store.verify` says it."""

from pathlib import Path

from eoslog.errors import CorruptRecordError, UnsupportedCompressionTypeError

Problem = dict[str, object]

# What a read or an opening raises where the files are not what this version can read.
UNREADABLE = (CorruptRecordError, UnsupportedCompressionTypeError)


def problem(path: Path | str, reason: str, position_bytes: int = 0) -> Problem:
    """One thing that is wrong: in which file or directory, where in it, and what."""
    return {"path": str(path), "position_bytes": position_bytes, "reason": reason}


def problem_of(error: CorruptRecordError | UnsupportedCompressionTypeError) -> Problem:
    """What keeps something from being opened or read, in the form of a problem."""
    return problem(error.path, error.reason, error.position_bytes)


def is_damage(one: Problem) -> bool:
    """Whether a problem is one of the files; a compressed batch is whole, and one of the reader."""
    return not str(one["reason"]).startswith("compressed with ")
