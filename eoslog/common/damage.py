"""Problems that a check of a store reports, as `Store.verify` returns them."""

from pathlib import Path

from eoslog.errors import CorruptRecordError, UnsupportedCompressionTypeError

Problem = dict[str, object]

# What a read or an opening raises where the files are not what this version can read.
UNREADABLE = (CorruptRecordError, UnsupportedCompressionTypeError)


def problem(path: Path | str, reason: str, position_bytes: int = 0) -> Problem:
    """One thing that is wrong: in which file or directory, where in it, and what."""
    return {"path": str(path), "position_bytes": position_bytes, "reason": reason}


def problem_of(error: CorruptRecordError | UnsupportedCompressionTypeError) -> Problem:
    """Return the problem for an error that keeps something from being opened or read."""
    return problem(error.path, error.reason, error.position_bytes)


def is_damage(one: Problem) -> bool:
    """True if a problem is damage of the files. An unsupported compression type is not: the batch
    is whole, and the reader lacks the codec.
    """
    return not str(one["reason"]).startswith("compressed with ")
