"""The producers of a `.snapshot` file, as Kafka's dump shows them."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eoslog.bindings.record_batch import crc32c
from eoslog.errors import CorruptRecordError

Fields = dict[str, Any]

_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_CRC_FROM = 6
_SEQUENCE_MODULUS = 1 << 31


def dump_snapshot(path: Path, data: bytes) -> Iterator[Fields]:
    """Yield the fields of each producer in a snapshot, with its last batch if one was known."""
    if len(data) < _SNAPSHOT_HEADER.size:
        raise CorruptRecordError(str(path), 0, f"a snapshot of {len(data)} bytes")
    version, crc, entry_count = _SNAPSHOT_HEADER.unpack_from(data)
    if version != 1:
        raise CorruptRecordError(str(path), 0, f"snapshot version {version}, expected 1")
    found = crc32c(data[_SNAPSHOT_CRC_FROM:])
    if found != crc:
        raise CorruptRecordError(str(path), 2, f"checksum {found:#010x}, expected {crc:#010x}")
    wanted_bytes = _SNAPSHOT_HEADER.size + entry_count * _SNAPSHOT_ENTRY.size
    if wanted_bytes != len(data):
        reason = f"{entry_count} entries take {wanted_bytes} bytes, the file has {len(data)}"
        raise CorruptRecordError(str(path), _SNAPSHOT_CRC_FROM, reason)
    for entry in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEADER.size :]):
        yield _producer(*entry)


def _producer(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp_ms: int,
    coordinator_epoch: int,
    first_offset: int,
) -> Fields:
    fields: Fields = {
        "producerId": producer_id,
        "producerEpoch": producer_epoch,
        "coordinatorEpoch": coordinator_epoch,
        "currentTxnFirstOffset": first_offset if first_offset >= 0 else None,
        "lastTimestamp": timestamp_ms,
    }
    if last_offset >= 0:
        fields |= {
            # Kafka counts back from -1 too, the last sequence of a batch without sequences.
            "firstSequence": (last_sequence - offset_delta) % _SEQUENCE_MODULUS,
            "lastSequence": last_sequence,
            "lastOffset": last_offset,
            "offsetDelta": offset_delta,
            "timestamp": timestamp_ms,
        }
    return fields
