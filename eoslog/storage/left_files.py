"""Checksums of the files that a clean close leaves and that have none of their own.

LMDB has none for its keys and pages: a bit that flips there can make a key vanish, and a name that
is not found looks like a new one. Kafka's checkpoints are plain text: a log start that moved hides
records. What both hold comes from the log as well, so a file that does not match what was noted
with the clean close is put away, and made anew. After an unclean stop nothing is noted.
"""

import errno
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.file_descriptor import open_regular
from eoslog.bindings.record_batch import crc32c
from eoslog.fs.checkpoint_file import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.lmdb_environment import DATA_FILE_NAME, mark_damaged

# Opening is not to take longer the more a store holds: of a larger file nothing is noted.
FILE_BYTES_MAX = 64 << 20
DAMAGED_SUFFIX = ".damaged"
_PIECE_BYTES = 4 << 20

_log = logging.getLogger(__name__)


class FileSum(NamedTuple):
    """How long a file is, and its CRC-32C."""

    file_bytes: int
    crc: int


Sums = Mapping[str, FileSum]


def left_sums(store_path: Path, lmdb_path: Path) -> dict[str, FileSum]:
    """The sums of a closed store's files, by their names below the store."""
    found = {path: _sum_of(path) for path in _left_files(store_path, lmdb_path)}
    return {
        path.relative_to(store_path).as_posix(): known
        for path, known in found.items()
        if known is not None
    }


def put_away_changed(store_path: Path, lmdb_path: Path, noted: Sums) -> None:
    """Put away what is not as it was noted; nobody else has the store open. A file that is missing
    is made anew as ever.
    """
    for path in _left_files(store_path, lmdb_path):
        known = noted.get(path.relative_to(store_path).as_posix())
        if known is None or not _is_file(path) or _sum_of(path) == known:
            continue
        _log.warning(
            "%s is not as it was when the store was closed; what it held comes from the log", path
        )
        if path.parent == lmdb_path:
            mark_damaged(lmdb_path)
            continue
        with named_os_errors(f"renaming {path}"):
            path.replace(path.with_name(path.name + DAMAGED_SUFFIX))


def _left_files(store_path: Path, lmdb_path: Path) -> Iterable[Path]:
    names = (RECOVERY_POINT, LOG_START_OFFSET, HIGH_WATERMARK)
    return (lmdb_path / DATA_FILE_NAME, *(store_path / name for name in names))


def _is_file(path: Path) -> bool:
    with named_os_errors(f"looking at {path}"):
        return path.is_file()


def _sum_of(path: Path) -> FileSum | None:
    """None if the file is not there, or is a large one."""
    with named_os_errors(f"reading {path}"):
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                file_bytes = path.stat().st_size
                if file_bytes > FILE_BYTES_MAX:
                    return None
                crc = 0
                while piece := file.read(_PIECE_BYTES):
                    crc = crc32c(piece, crc)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENODEV):
                return None  # Another kind of thing in its place.
            raise
    return FileSum(file_bytes, crc)
