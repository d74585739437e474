"""`bootstrap.checkpoint`: the metadata that a Kafka controller (KRaft) begins a new cluster with.

Kafka's own `format` writes the levels of features there. The controller takes any other record of
its metadata log as well: so topics exist, with their ids and settings, from the first start on.

The file is a snapshot of the metadata log: a control batch with its header, batches of records,
a control batch with its footer. The value of a record is a frame: the frame's version, the type of
the record, the version of that type (each a varint without a sign), and the message in Kafka's
flexible form, where lengths are varints above them by one, and each struct ends with its tagged
fields, of which there are none.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from eoslog.bindings.record_batch import BatchEncoder, crc32c
from eoslog.fs.identity_files import id_bytes

FILE_NAME = "bootstrap.checkpoint"
# The metadata version of Kafka 4.0, so that each 4.x starts: 4.0-IV3. Kafka upgrades it when it is
# asked to. The others are those that a new cluster of 4.0 has.
FEATURE_LEVELS = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}

_TOPIC_RECORD = 2
_PARTITION_RECORD = 3
_CONFIG_RECORD = 4
_FEATURE_LEVEL_RECORD = 12
_PRODUCER_IDS_RECORD = 15
_FRAME_VERSION = 1
_TOPIC_RESOURCE = 2
_NO_BROKER_EPOCH = -1
# Until the broker is there. One that led from the beginning would lose the partition when it
# registers and get it again, while its coordinators read their logs.
_NO_LEADER = -1
_SNAPSHOT_HEADER = 3
_SNAPSHOT_FOOTER = 4
_NO_TAGGED_FIELDS = b"\0"

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CONTROL_KEY = struct.Struct(">hh")
_RECORDS_PER_BATCH = 1000
_ATTRIBUTES_AT = 21
_CRC_AT = 17
_CONTROL = 0x20


@dataclass(frozen=True)
class ExportedTopic:
    """A topic as the new cluster has it; `config` are its settings, as Kafka writes them."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]


def encode_bootstrap(
    topics: Iterable[ExportedTopic],
    *,
    node_id: int,
    directory_id: str,
    leader_epoch: int,
    next_producer_id: int,
    timestamp_ms: int,
) -> bytes:
    """Return the content of the file: all partitions are on the one broker, which is to lead them.

    The leaders have an epoch above `leader_epoch`; producer ids are given out from
    `next_producer_id` on.
    """

    def records() -> Iterator[bytes]:
        for name, level in FEATURE_LEVELS.items():
            yield _framed(_FEATURE_LEVEL_RECORD, 0, _string(name), _INT16.pack(level))
        yield _framed(
            _PRODUCER_IDS_RECORD,
            0,
            _INT32.pack(node_id),
            _INT64.pack(_NO_BROKER_EPOCH),
            _INT64.pack(next_producer_id),
        )
        nodes, directories = _array([_INT32.pack(node_id)]), _array([id_bytes(directory_id)])
        for topic in topics:
            topic_id = id_bytes(topic.topic_id)
            yield _framed(_TOPIC_RECORD, 0, _string(topic.name), topic_id)
            for number in range(topic.partitions):
                yield _framed(
                    _PARTITION_RECORD,
                    1,
                    _INT32.pack(number),
                    topic_id,
                    nodes,  # Its replicas,
                    nodes,  # those in sync,
                    _array([]),  # being removed,
                    _array([]),  # being added.
                    _INT32.pack(_NO_LEADER),
                    _INT32.pack(leader_epoch),
                    _INT32.pack(0),  # The epoch of this description.
                    directories,
                )
            for name, value in sorted(topic.config.items()):
                yield _framed(
                    _CONFIG_RECORD,
                    0,
                    _INT8.pack(_TOPIC_RESOURCE),
                    _string(topic.name),
                    _string(name),
                    _string(value),
                )

    header = _INT16.pack(0) + _INT64.pack(timestamp_ms) + _NO_TAGGED_FIELDS
    footer = _INT16.pack(0) + _NO_TAGGED_FIELDS
    encoder = BatchEncoder()
    batches = [_control_batch(encoder, _SNAPSHOT_HEADER, header, timestamp_ms, 0)]
    offset = 1
    values = list(records())
    for first in range(0, len(values), _RECORDS_PER_BATCH):
        some = values[first : first + _RECORDS_PER_BATCH]
        batches.append(encoder.encode_columns(some, timestamp_ms=timestamp_ms, base_offset=offset))
        offset += len(some)
    batches.append(_control_batch(encoder, _SNAPSHOT_FOOTER, footer, timestamp_ms, offset))
    return b"".join(batches)


def _framed(record_type: int, version: int, *fields: bytes) -> bytes:
    front = _varint(_FRAME_VERSION) + _varint(record_type) + _varint(version)
    return front + b"".join(fields) + _NO_TAGGED_FIELDS


def _control_batch(
    encoder: BatchEncoder, kind: int, value: bytes, timestamp_ms: int, offset: int
) -> bytes:
    key = _CONTROL_KEY.pack(0, kind)
    batch = bytearray(
        encoder.encode_columns([value], [key], timestamp_ms=timestamp_ms, base_offset=offset)
    )
    _INT16.pack_into(batch, _ATTRIBUTES_AT, _CONTROL)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
    return bytes(batch)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded) + 1) + encoded


def _array(items: list[bytes]) -> bytes:
    return _varint(len(items) + 1) + b"".join(items)
