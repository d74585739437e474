"""Formats of the files that topics are imported from and exported to."""

from collections.abc import Sequence
from pathlib import PurePath

from eoslog.errors import InvalidRequestError

IMPORT_FORMATS = ("jsonl", "csv", "parquet", "lines")
EXPORT_FORMATS = ("jsonl", "csv", "parquet")
DEFAULT_FORMAT = "jsonl"
_FORMAT_OF_SUFFIX = {".csv": "csv", ".parquet": "parquet"}
_GZIP_SUFFIX = ".gz"


def format_of(name: str) -> str:
    """Return the format that a file's name says, through .gz; JSON lines if it says none."""
    path = PurePath(name)
    if path.suffix.lower() == _GZIP_SUFFIX:
        path = path.with_suffix("")
    return _FORMAT_OF_SUFFIX.get(path.suffix.lower(), DEFAULT_FORMAT)


def check_format(given: object, formats: Sequence[str]) -> str:
    """Return the format that was asked for. Raises TypeError or InvalidRequestError."""
    if not isinstance(given, str):
        raise TypeError(f"format must be a str, got {type(given).__name__}")
    if given not in formats:
        raise InvalidRequestError(f"format must be one of {', '.join(formats)}, got {given!r}")
    return given
