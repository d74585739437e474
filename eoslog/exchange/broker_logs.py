"""The log directories of one Kafka broker: found, checked and locked, and never changed.

A broker has one or more (`log.dirs`), each with `meta.properties`. A running broker holds a lock on
the file `.lock` in each of them. As long as `BrokerLogs` is open it holds these locks with others:
no broker starts during the work.

What is there and is not imported is named, with the reason; nothing is passed over in silence but
the files that every broker has.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from eoslog.bindings.snapshot_files import SEGMENT_NAME
from eoslog.common.topic_name import check_topic_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError, InvalidTopicError, StoreError, StoreInUseError
from eoslog.fs.checkpoint_file import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_checkpoint,
)
from eoslog.fs.file_lock import shared_if_free
from eoslog.fs.identity_files import (
    META_PROPERTIES,
    STORE_VERSION_KEY,
    read_partition_metadata,
    read_properties,
)
from eoslog.fs.offline_log import base_offset_of
from eoslog.fs.os_errors import named_os_errors
from eoslog.session.paths import MARKER_NAME

LOCK_NAME = ".lock"
METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)

# What every broker may have there, and nothing is to be taken from.
_ITS_OWN = frozenset(
    {
        META_PROPERTIES,
        MARKER_NAME,
        LOCK_NAME,
        RECOVERY_POINT,
        LOG_START_OFFSET,
        HIGH_WATERMARK,
        "cleaner-offset-checkpoint",
        "bootstrap.checkpoint",
        "lost+found",
    }
)
# A topic and its number, an id, and what is being done with the directory.
_BEING_CHANGED = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")
_CHANGES = {
    "delete": "its topic was deleted",
    "future": "a copy that was not complete when the broker moved the partition to this directory",
    "stray": "the broker did not know its topic",
}
# Kafka's cleaner was killed between the removal of segments and the renaming of those that take
# their place.
_SWAP = ".log.swap"
# In each of these formats a broker's id has another name.
_ID_NAMES = {"0": "broker.id", "1": "node.id"}


class LeftOut(NamedTuple):
    """Path or name that an import leaves out, and the reason."""

    what: str
    reason: str


class BrokerPartition(NamedTuple):
    """Directory of a partition, the id of its topic, and what the broker's checkpoints say of it:
    the log start offset, and the offset below which all was synced; 0 where they say nothing.
    """

    path: Path
    topic_id: str
    log_start_offset: int
    recovery_point: int
    was_closed: bool

    def segments(self) -> list[tuple[int, Path]]:
        """The base offsets of the segments, oldest first, and their files."""
        with named_os_errors(f"reading {self.path}"):
            paths = [path for path in self.path.iterdir() if SEGMENT_NAME.fullmatch(path.name)]
        return sorted((base_offset_of(path), path) for path in paths)

    def snapshots(self) -> list[Path]:
        """The files with the producers' state at an offset."""
        with named_os_errors(f"reading {self.path}"):
            return sorted(self.path.glob("*.snapshot"))


@dataclass
class BrokerLogs:
    """Log directories of a stopped broker, as a context manager that keeps it stopped.

    `unclean` are the directories with partitions that the broker did not close. Raises
    StoreInUseError if a broker runs, CorruptRecordError for a file that is damaged, and StoreError,
    which names what it is, for all else that keeps the directories from being imported.
    """

    paths: Sequence[Path]
    cluster_id: str = ""
    node_id: int = -1
    partitions: dict[TopicPartition, BrokerPartition] = field(default_factory=dict)
    metadata: Path | None = None
    unclean: list[Path] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    _locks: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with self._locks:
            _check_distinct(self.paths)
            for path in self.paths:
                self._enter(path)
            self._locks = self._locks.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._locks.close()

    def _enter(self, path: Path) -> None:
        cluster_id, node_id = _identity(path)
        self._lock(path)
        if not self.cluster_id:
            self.cluster_id, self.node_id = cluster_id, node_id
        elif (cluster_id, node_id) != (self.cluster_id, self.node_id):
            raise StoreError(
                f"{path} belongs to node {node_id} of cluster {cluster_id}, and {self.paths[0]} to "
                f"node {self.node_id} of cluster {self.cluster_id}: import one broker at a time"
            )
        was_closed = (path / MARKER_NAME).exists()
        starts = read_checkpoint(path / LOG_START_OFFSET)
        points = read_checkpoint(path / RECOVERY_POINT)
        with named_os_errors(f"reading {path}"):
            found = sorted(path.iterdir())
        for one in found:
            where = self._partition_of(one)
            if where == METADATA_PARTITION:
                if self.metadata is not None:
                    raise _there_twice(where, self.metadata, one)
                self.metadata = one
            elif where is not None:
                if where in self.partitions:
                    raise _there_twice(where, self.partitions[where].path, one)
                self.partitions[where] = BrokerPartition(
                    one, _topic_id(one), starts.get(where, 0), points.get(where, 0), was_closed
                )
                # Kafka leaves no mark in a `metadata.log.dir` of its own.
                if not was_closed and path not in self.unclean:
                    self.unclean.append(path)

    def _lock(self, path: Path) -> None:
        lock = path / LOCK_NAME
        with named_os_errors(f"locking {lock}"):
            try:
                held = shared_if_free(lock)
            except FileNotFoundError:
                return  # A copy, perhaps: a broker makes the file before all else.
        if held is None:
            raise StoreInUseError(f"a broker runs on {path}, which holds {lock}: stop it first")
        self._locks.callback(held.close)

    def _partition_of(self, path: Path) -> TopicPartition | None:
        """The partition of a directory; None for all else, which is named if it is unknown."""
        if path.name in _ITS_OWN:
            return None
        changed = _BEING_CHANGED.fullmatch(path.name)
        reason = "not a partition's directory"
        if changed is not None:
            reason = _CHANGES[changed[1]]
        elif path.is_dir():
            try:
                where = TopicPartition.parse(path.name)
                check_topic_name(where.topic)
            except (ValueError, InvalidTopicError):
                pass
            else:
                return where
        self.left_out.append(LeftOut(str(path), reason))
        return None


def _check_distinct(paths: Iterable[Path]) -> None:
    known: dict[Path, Path] = {}
    for path in paths:
        with named_os_errors(f"looking for {path}"):
            resolved = path.resolve()
        if resolved in known:
            raise StoreError(f"{path} is given twice, also as {known[resolved]}")
        known[resolved] = path


def _identity(path: Path) -> tuple[str, int]:
    """The ids of a directory's cluster and node."""
    properties = path / META_PROPERTIES
    try:
        fields = read_properties(properties)
    except UnicodeDecodeError as error:
        raise CorruptRecordError(str(properties), error.start, "not UTF-8 text") from error
    if fields is None:
        what = f"it has no {META_PROPERTIES}" if path.is_dir() else "there is no such directory"
        raise StoreError(f"{path} is no log directory of a Kafka broker: {what}")
    if STORE_VERSION_KEY in fields:
        raise StoreError(f"{path} is a store of eoslog, and no log directory of a Kafka broker")
    version = fields.get("version", "")
    id_name = _ID_NAMES.get(version)
    if id_name is None:
        known = " and ".join(_ID_NAMES)
        raise StoreError(f"{properties}: version {version!r}; known are {known}")
    try:
        return fields["cluster.id"], int(fields[id_name])
    except KeyError as error:
        raise CorruptRecordError(str(properties), 0, f"it has no {error.args[0]}") from error
    except ValueError as error:
        reason = f"{id_name}={fields[id_name]!r} is not a number"
        raise CorruptRecordError(str(properties), 0, reason) from error


def _topic_id(path: Path) -> str:
    topic_id = read_partition_metadata(path)
    if topic_id is None:
        raise StoreError(
            f"{path} has no partition.metadata, with the id of its topic: a broker from version "
            "2.8 on writes it when it starts"
        )
    with named_os_errors(f"reading {path}"):
        swapped = next((one for one in path.iterdir() if one.name.endswith(_SWAP)), None)
    if swapped is not None:
        raise StoreError(
            f"{swapped}: the broker was killed while its cleaner replaced segments; start it once, "
            "and stop it cleanly"
        )
    return topic_id


def _there_twice(where: TopicPartition, one: Path, other: Path) -> StoreError:
    return StoreError(f"{where} is there twice, as {one} and as {other}")
