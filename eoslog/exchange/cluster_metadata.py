"""Topics and settings of a cluster, from its metadata log `__cluster_metadata-0`.

The log's beginning may be replaced by a snapshot, `<end offset>-<epoch>.checkpoint`, with records
of the state below that offset. The newest one is read, then the log from there on. A record's
value begins with the version of this frame, the record's type and the version of that, as unsigned
varints; then come the fields, in the flexible form. Control batches are the quorum's own.

What is asked for here is in a few types; the others are passed over, as their frame allows. An
unknown version of one of these few is an error: its fields could be others. Records of a
transaction count when it has ended; those of an aborted one, or of one without an end, do not.

A torn log or an incomplete snapshot is refused: a topic that is missing from the metadata would
look like a deleted one.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.record_batch import BatchHeader, decode_records, iter_batches
from eoslog.common.record_fields import FieldCursor
from eoslog.errors import CorruptRecordError
from eoslog.fs.atomic_file import read_if_there
from eoslog.fs.identity_files import id_text
from eoslog.fs.offline_log import OfflineLog
from eoslog.fs.os_errors import named_os_errors

FRAME_VERSION = 1
TOPIC_RECORD = 2
PARTITION_RECORD = 3
CONFIG_RECORD = 4
PARTITION_CHANGE_RECORD = 5
REMOVE_TOPIC_RECORD = 9
BEGIN_TRANSACTION_RECORD = 23
END_TRANSACTION_RECORD = 24
ABORT_TRANSACTION_RECORD = 25

# The kinds of what a setting is of.
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
RESOURCE_NAMES = {TOPIC_RESOURCE: "topic", BROKER_RESOURCE: "broker", 16: "client", 32: "group"}

_SNAPSHOT_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_SNAPSHOT_HEADER = 3  # Of control records.
_SNAPSHOT_FOOTER = 4
_CONTROL_KEY = struct.Struct(">hh")  # Version, type.
_REPLICAS_TAG = 2
# The newest version of each type that is read; all begin with 0.
_VERSIONS = {
    TOPIC_RECORD: 0,
    PARTITION_RECORD: 2,
    CONFIG_RECORD: 0,
    PARTITION_CHANGE_RECORD: 2,
    REMOVE_TOPIC_RECORD: 0,
    BEGIN_TRANSACTION_RECORD: 0,
    END_TRANSACTION_RECORD: 0,
    ABORT_TRANSACTION_RECORD: 0,
}


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    """A topic, its id, and the nodes that have a replica of each of its partitions."""

    name: str
    topic_id: str
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Resource(NamedTuple):
    """Owner of a setting: its kind and its name, "" for all brokers."""

    kind: int
    name: str

    def __str__(self) -> str:
        return f"{RESOURCE_NAMES.get(self.kind, f'resource {self.kind}')} {self.name or '*'}"


@dataclass
class ClusterMetadata:
    """Topics by name, and settings by what they are of."""

    topics: dict[str, MetadataTopic] = field(default_factory=dict)
    settings: dict[Resource, dict[str, str]] = field(default_factory=dict)
    _by_id: dict[str, MetadataTopic] = field(default_factory=dict)
    # Of a transaction that has not ended.
    _pending: list[bytes] | None = None

    def settings_of(self, kind: int, name: str) -> Mapping[str, str]:
        """The settings of a resource; none if there is no such resource."""
        return self.settings.get(Resource(kind, name), {})

    def replay(self, value: bytes) -> None:
        """Take in a record's value. Raises CorruptRecordError."""
        cursor, record_type = _open(value)
        if record_type == BEGIN_TRANSACTION_RECORD:
            self._begin()
        elif record_type in (END_TRANSACTION_RECORD, ABORT_TRANSACTION_RECORD):
            pending, self._pending = self._pending, None
            if pending is None:
                raise CorruptRecordError("", 0, "a transaction ends that did not begin")
            if record_type == END_TRANSACTION_RECORD:
                for one in pending:
                    self.replay(one)
        elif record_type in _APPLY:
            if self._pending is not None:
                self._pending.append(value)
            else:
                _APPLY[record_type](self, cursor)

    def _begin(self) -> None:
        if self._pending is not None:
            raise CorruptRecordError("", 0, "a transaction begins within another one")
        self._pending = []

    def _add_topic(self, cursor: FieldCursor) -> None:
        name, topic_id = cursor.compact_string("name"), id_text(cursor.uuid("topic id"))
        cursor.skip_tagged_fields()
        cursor.end()
        if name in self.topics:
            raise CorruptRecordError("", 0, f"topic {name} is there already")
        self.topics[name] = self._by_id[topic_id] = MetadataTopic(name, topic_id)

    def _remove_topic(self, cursor: FieldCursor) -> None:
        topic = self._find(cursor)
        cursor.skip_tagged_fields()
        cursor.end()
        del self.topics[topic.name], self._by_id[topic.topic_id]
        # A new topic of the name begins without them.
        self.settings.pop(Resource(TOPIC_RESOURCE, topic.name), None)

    def _add_partition(self, cursor: FieldCursor) -> None:
        number = cursor.int32("partition")
        topic = self._find(cursor)
        topic.replicas[number] = cursor.compact_int32s("replicas") or ()

    def _change_partition(self, cursor: FieldCursor) -> None:
        number = cursor.int32("partition")
        topic = self._find(cursor)
        changed = cursor.tagged_fields()
        cursor.end()
        if number not in topic.replicas:
            raise CorruptRecordError("", 0, f"{topic.name}-{number} changes, and is not there")
        if _REPLICAS_TAG in changed:
            replicas = FieldCursor(changed[_REPLICAS_TAG], "the change").compact_int32s("replicas")
            if replicas is not None:
                topic.replicas[number] = replicas

    def _set(self, cursor: FieldCursor) -> None:
        kind, resource_name = cursor.int8("resource type"), cursor.compact_string("resource name")
        name, value = cursor.compact_string("name"), cursor.compact_nullable_string("value")
        cursor.skip_tagged_fields()
        cursor.end()
        resource = Resource(kind, resource_name)
        settings = self.settings.setdefault(resource, {})
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
        if not settings:
            del self.settings[resource]

    def _find(self, cursor: FieldCursor) -> MetadataTopic:
        topic_id = id_text(cursor.uuid("topic id"))
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise CorruptRecordError("", 0, f"topic id {topic_id} is of no topic")
        return topic


_APPLY: dict[int, Callable[[ClusterMetadata, FieldCursor], None]] = {
    TOPIC_RECORD: ClusterMetadata._add_topic,
    PARTITION_RECORD: ClusterMetadata._add_partition,
    CONFIG_RECORD: ClusterMetadata._set,
    PARTITION_CHANGE_RECORD: ClusterMetadata._change_partition,
    REMOVE_TOPIC_RECORD: ClusterMetadata._remove_topic,
}


def read_cluster_metadata(directory: Path) -> ClusterMetadata:
    """Read the newest snapshot and the log. Raises CorruptRecordError or StoreError."""
    metadata = ClusterMetadata()
    snapshots = _snapshots(directory)
    from_offset = 0
    if snapshots:
        from_offset, _, path = snapshots[-1]
        for header, batch in _snapshot_batches(path):
            _replay(metadata, path, header, batch, 0)
    log = OfflineLog(directory)
    # Holes are the log's own affair: no batch is compacted away here, and none is counted on.
    torn = log.broken_tail(0)
    if torn is not None:
        raise CorruptRecordError(
            str(torn.path),
            torn.position_bytes,
            f"the cluster's metadata are torn: {torn.reason}; start the broker once, and stop it "
            "cleanly",
        )
    if log.first_offset > from_offset:
        reason = f"the log begins at offset {log.first_offset}, and no snapshot reaches up to it"
        raise CorruptRecordError(str(directory), 0, reason)
    for header, batch in log.batches():
        if header.last_offset >= from_offset:
            _replay(metadata, directory, header, batch, from_offset)
    return metadata


def _snapshots(directory: Path) -> list[tuple[int, int, Path]]:
    """The snapshots by end offset and epoch, oldest first."""
    with named_os_errors(f"reading {directory}"):
        names = [(_SNAPSHOT_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    return sorted((int(name[1]), int(name[2]), path) for name, path in names if name is not None)


def _snapshot_batches(path: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    data = read_if_there(path) or b""
    try:
        headers = iter_batches(data)
    except CorruptRecordError as error:
        raise CorruptRecordError(str(path), error.position_bytes, error.reason) from error
    ends = [
        type_
        for header in headers
        if header.is_control
        for type_ in _control_types(data, header)
        if type_ in (_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER)
    ]
    if ends != [_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER]:
        raise CorruptRecordError(str(path), len(data), "the snapshot is not complete")
    for header in headers:
        yield header, _bytes_of(data, header)


def _control_types(data: bytes, header: BatchHeader) -> list[int]:
    keys = [record.key or b"" for record in decode_records(_bytes_of(data, header))]
    return [_CONTROL_KEY.unpack(key)[1] for key in keys if len(key) == _CONTROL_KEY.size]


def _bytes_of(data: bytes, header: BatchHeader) -> bytes:
    return data[header.position_bytes : header.position_bytes + header.batch_bytes]


def _replay(
    metadata: ClusterMetadata, path: Path, header: BatchHeader, batch: bytes, from_offset: int
) -> None:
    if header.is_control:
        return
    for record in decode_records(batch):
        if record.offset < from_offset:
            continue
        try:
            metadata.replay(record.value or b"")
        except CorruptRecordError as error:
            reason = f"the record at offset {record.offset} of the metadata: {error.reason}"
            raise CorruptRecordError(str(path), 0, reason) from error


def _open(value: bytes) -> tuple[FieldCursor, int]:
    """Read the frame of a record; return what follows, and its type."""
    cursor = FieldCursor(value, "the record")
    frame_version = cursor.unsigned_varint("frame version")
    if frame_version != FRAME_VERSION:
        raise CorruptRecordError("", 0, f"frame version {frame_version}, known is {FRAME_VERSION}")
    record_type, version = cursor.unsigned_varint("type"), cursor.unsigned_varint("version")
    newest = _VERSIONS.get(record_type)
    if newest is not None and version > newest:
        raise CorruptRecordError(
            "", 0, f"version {version} of record type {record_type}, known up to {newest}"
        )
    return cursor, record_type
