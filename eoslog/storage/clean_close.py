"""State in which a store was left: closed cleanly, closed with partitions never recovered, or not.

After a clean close the marker `.kafka_cleanshutdown` is at the top, as Kafka leaves it, and no
partition needs recovery. Kafka writes it only if every log had finished its recovery; a store that
was closed with partitions which no process opened since an unclean stop has
`state/unrecovered.json` in its place, with their names. Both carry a mark that LMDB shares, and the
checksums of files that have none. Both are removed, durably, before an opened store writes
anything: if neither is there, the stop was unclean and every partition must be recovered.

The files without checksums of their own are LMDB's and the checkpoints. LMDB has none for its keys
and pages: a bit that flips there can make a key vanish, and a name that is not found looks like a
new one. Kafka's checkpoints are plain text: a log start that moved hides records. What both hold
comes from the log as well, so a file that does not match what was noted with the clean close is put
away, and rebuilt. After an unclean stop nothing is noted.
"""

import errno
import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from eoslog.bindings.file_descriptor import open_regular
from eoslog.bindings.record_batch import crc32c
from eoslog.common.json_text import loads_json
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.atomic_file import read_if_there, sync_directory, write_atomically
from eoslog.fs.checkpoint_file import HIGH_WATERMARK, LOG_START_OFFSET, RECOVERY_POINT
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.lmdb_environment import DATA_FILE_NAME, LmdbEnvironment, mark_damaged
from eoslog.storage.tables import SESSION

# Opening is not to take longer the more a store holds: of a larger file nothing is noted.
FILE_BYTES_MAX = 64 << 20
DAMAGED_SUFFIX = ".damaged"
_PIECE_BYTES = 256 << 10

_log = logging.getLogger(__name__)


class FileSum(NamedTuple):
    """Size of a file, and its CRC-32C."""

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
    """Put away what is not as it was noted; no other process has the store open. A missing file
    is rebuilt as always.
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
    """Return the sum of a file; None if the file is not there, or is a large one."""
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


MARKER_VERSION = 0
UNRECOVERED_VERSION = 1
_SESSION_KEY = "eoslog.session"
_SUMS_KEY = "eoslog.sums"
_LMDB_KEY = b"clean-close"


class LastStop(NamedTuple):
    """Last stop of a store: `session` is the mark of its close, "" if it has none.

    `unrecovered` are the partitions still to be recovered; None stands for all that there are.
    `sums` are the checksums of files that have none of their own, as far as they were noted.
    """

    session: str
    unrecovered: frozenset[TopicPartition] | None
    sums: Sums = MappingProxyType({})


UNCLEAN = LastStop("", None)


def read_last_stop(marker: Path, unrecovered: Path) -> LastStop:
    """Read how the store was left. A file that cannot be read counts as missing."""
    left = _read_unrecovered(unrecovered)
    if left is not None:
        return left
    content = read_if_there(marker)
    if content is None:
        return UNCLEAN
    try:
        document = loads_json(content)
        session, sums = document[_SESSION_KEY], _noted_sums(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        session, sums = "", {}  # Its existence alone proves that the stop was clean.
    return LastStop(str(session), frozenset(), sums)


def _noted_sums(document: Mapping[str, Any]) -> Sums:
    """Return the noted sums."""
    return {name: FileSum(*noted) for name, noted in document.get(_SUMS_KEY, {}).items()}


def _read_unrecovered(path: Path) -> LastStop | None:
    content = read_if_there(path)
    if content is None:
        return None
    try:
        document = loads_json(content)
        if document["version"] != UNRECOVERED_VERSION:
            return UNCLEAN
        names = frozenset(TopicPartition.parse(name) for name in document["partitions"])
        return LastStop(str(document["session"]), names, _noted_sums(document))
    except (ValueError, KeyError, TypeError, AttributeError):
        return UNCLEAN


def forget_last_stop(marker: Path, unrecovered: Path) -> None:
    """Have a crash from now on be an unclean stop: durable on return."""
    for path in (marker, unrecovered):
        with named_os_errors(f"removing {path}"):
            path.unlink(missing_ok=True)
        # Also where it is gone: who removed it may have died, or failed, before the sync.
        sync_directory(path.parent)


def new_session() -> str:
    """The mark of a clean close."""
    return os.urandom(16).hex()


def has_lmdb_mark(environment: LmdbEnvironment, session: str) -> bool:
    """True if LMDB has the mark of this clean close, which is the last that it knows of."""
    mark = environment.read(lambda tables: tables.get(SESSION, _LMDB_KEY))
    return bool(session) and mark == session.encode()


def write_lmdb_mark(environment: LmdbEnvironment, session: str) -> None:
    """Put the mark of a clean close into LMDB; durable."""
    environment.write(lambda tables: tables.put(SESSION, _LMDB_KEY, session.encode()))


def write_clean_close(
    marker: Path,
    unrecovered: Path,
    session: str,
    left: frozenset[TopicPartition],
    sums: Sums = MappingProxyType({}),
) -> None:
    """Say, durably, that everything was synced; `left` are the partitions still to be recovered,
    `sums` are the checksums of files that have none of their own.
    """
    noted = {_SUMS_KEY: sums} if sums else {}
    if left:
        names = sorted(map(str, left))
        document = {
            "version": UNRECOVERED_VERSION,
            "session": session,
            "partitions": names,
            **noted,
        }
        write_atomically(unrecovered, json.dumps(document, indent=1).encode())
        return
    content = {"version": MARKER_VERSION, "brokerEpoch": -1, _SESSION_KEY: session, **noted}
    write_atomically(marker, json.dumps(content, separators=(",", ":")).encode())
