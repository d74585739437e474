"""How a store was left: closed cleanly, closed with partitions that were never recovered, or not.

After a clean close the marker `.kafka_cleanshutdown` stands at the top, as Kafka leaves it, and
no partition needs a look. Kafka knows it only where every log had finished its recovery; a store
that was closed with partitions which nobody opened since an unclean stop has
`state/unrecovered.json` in its place, with their names. Both carry a mark that LMDB shares, and the
checksums of files that have none. Both are removed, durably, before an opened store writes
anything: where neither stands, the stop was unclean and every partition is to be recovered.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eoslog.common.json_text import loads_json
from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.atomic_file import read_if_there, sync_directory, write_atomically
from eoslog.fs.os_errors import named_os_errors
from eoslog.storage.left_files import FileSum, Sums

MARKER_VERSION = 0
UNRECOVERED_VERSION = 1
_SESSION_KEY = "eoslog.session"
_SUMS_KEY = "eoslog.sums"


@dataclass(frozen=True, slots=True)
class LastStop:
    """What the last process left: `session` is the mark of its close, "" if it has none.

    `unrecovered` are the partitions still to be recovered; None stands for all that there are.
    `sums` are the checksums of files that have none of their own, as far as they were noted.
    """

    session: str
    unrecovered: frozenset[TopicPartition] | None
    sums: Sums = field(default_factory=dict)


UNCLEAN = LastStop("", None)


def read_last_stop(marker: Path, unrecovered: Path) -> LastStop:
    """How the store was left. What cannot be read counts as not there."""
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
        session, sums = "", {}  # Its existence alone says that the stop was clean.
    return LastStop(str(session), frozenset(), sums)


def _noted_sums(document: Mapping[str, Any]) -> Sums:
    """What older versions did not note."""
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
    """From now on a crash is an unclean stop: durable on return."""
    for path in (marker, unrecovered):
        with named_os_errors(f"removing {path}"):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            sync_directory(path.parent)


def new_session() -> str:
    """The mark of a clean close."""
    return secrets.token_hex(16)


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
