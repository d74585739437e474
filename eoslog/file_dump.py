"""Read the files of a partition without a store, one by one, as Kafka's dump tool shows them.

The fields, their names and their order are those of Kafka's log dump. A `.log` file is walked batch
by batch; a batch with a wrong checksum is shown as not valid, and the walk goes on after it. Bytes
that are no batch end the walk with CorruptRecordError. The zeros behind the last batch or entry of
a file that is still being written are no damage.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eoslog.bindings.record_batch import crc32c, decode_records, iter_batches
from eoslog.errors import CorruptRecordError

Fields = dict[str, Any]

_BATCH_PREFIX = struct.Struct(">qi")  # base offset, bytes after these twelve
_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_COVERS_FROM = 21
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
_ABORTED_TXN = struct.Struct(">hqqqq")
_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_CRC_FROM = 6
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_SEQUENCE_MODULUS = 1 << 31


def dump_file(path: Path, *, deep: bool = False) -> Iterator[Fields]:
    """The entries of one file, in the order they stand there.

    A `.log` gives its batches, with `deep` each followed by its records; `.index`, `.timeindex`,
    `.txnindex` and `.snapshot` give their entries. Raises ValueError for another kind of file,
    CorruptRecordError with the place for bytes that are neither.
    """
    readers = {
        ".index": _offset_index,
        ".timeindex": _time_index,
        ".txnindex": _aborted_transactions,
        ".snapshot": _snapshot,
    }
    if path.suffix != ".log" and path.suffix not in readers:
        raise ValueError(f"{path}: not a .log, .index, .timeindex, .txnindex or .snapshot file")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if path.suffix == ".log":
                yield from _log(path, mapped, deep)
            else:
                yield from readers[path.suffix](path, bytes(mapped))


def base_offset_of(path: Path) -> int:
    """The offset in a file's name; ValueError if it has none."""
    digits = path.name.partition(".")[0]
    if not digits.isdigit():
        raise ValueError(f"{path}: the name does not begin with an offset")
    return int(digits)


def _log(path: Path, mapped: mmap.mmap, deep: bool) -> Iterator[Fields]:
    position_bytes = 0
    size_bytes = len(mapped)
    while position_bytes < size_bytes:
        left_bytes = size_bytes - position_bytes
        prefix = mapped[position_bytes : position_bytes + _BATCH_PREFIX.size]
        if not any(prefix) and _only_zeros(mapped, position_bytes):
            return
        batch_bytes = _batch_bytes(path, prefix, position_bytes, left_bytes)
        batch = mapped[position_bytes : position_bytes + batch_bytes]
        fields = _batch_fields(batch, position_bytes)
        yield fields
        if deep and fields["isvalid"]:
            yield from _records(path, batch, fields)
        position_bytes += batch_bytes


def _only_zeros(mapped: mmap.mmap, position_bytes: int) -> bool:
    step_bytes = 1 << 20
    return not any(
        any(mapped[at : at + step_bytes]) for at in range(position_bytes, len(mapped), step_bytes)
    )


def _batch_bytes(path: Path, prefix: bytes, position_bytes: int, left_bytes: int) -> int:
    """The size of the batch that starts here. Raises CorruptRecordError if none can."""
    if left_bytes < _BATCH_HEADER.size:
        reason = f"{left_bytes} bytes are left, a batch has at least {_BATCH_HEADER.size}"
        raise CorruptRecordError(str(path), position_bytes, reason)
    batch_bytes: int = _BATCH_PREFIX.unpack(prefix)[1] + _BATCH_PREFIX.size
    if not _BATCH_HEADER.size <= batch_bytes <= left_bytes:
        reason = f"a batch of {batch_bytes} bytes does not fit into the {left_bytes} that are left"
        raise CorruptRecordError(str(path), position_bytes, reason)
    return batch_bytes


def _batch_fields(batch: bytes, position_bytes: int) -> Fields:
    """Names as in Kafka's dump."""
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        _,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _BATCH_HEADER.unpack_from(batch)
    last_sequence = base_sequence
    if base_sequence >= 0:
        last_sequence = (base_sequence + last_offset_delta) % _SEQUENCE_MODULUS
    timestamp_name = "LogAppendTime" if attributes & 0x08 else "CreateTime"
    codec = attributes & 0x07
    return {
        "baseOffset": base_offset,
        "lastOffset": base_offset + last_offset_delta,
        "count": record_count,
        "baseSequence": base_sequence,
        "lastSequence": last_sequence,
        "producerId": producer_id,
        "producerEpoch": producer_epoch,
        "partitionLeaderEpoch": leader_epoch,
        "isTransactional": bool(attributes & 0x10),
        "isControl": bool(attributes & 0x20),
        "position": position_bytes,
        timestamp_name: max_timestamp,
        "size": len(batch),
        "magic": magic,
        "compresscodec": _CODECS[codec] if codec < len(_CODECS) else str(codec),
        "crc": crc,
        "isvalid": magic == 2 and crc == crc32c(batch[_CRC_COVERS_FROM:]),
    }


def _records(path: Path, batch: bytes, batch_fields: Fields) -> Iterator[Fields]:
    if batch_fields["compresscodec"] != "none":
        reason = f"records compressed with {batch_fields['compresscodec']} cannot be shown"
        raise CorruptRecordError(str(path), batch_fields["position"], reason)
    header = iter_batches(batch)[0]
    for record in decode_records(batch):
        sequence = -1
        if header.base_sequence >= 0:
            delta = record.offset - header.base_offset
            sequence = (header.base_sequence + delta) % _SEQUENCE_MODULUS
        fields: Fields = {
            "offset": record.offset,
            "CreateTime": record.timestamp_ms,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": sequence,
            "headerKeys": [name for name, _ in record.headers],
        }
        if batch_fields["isControl"]:
            fields |= _marker(record.key or b"", record.value or b"")
        else:
            fields |= {"key": record.key, "payload": record.value}
        yield fields


def _marker(key: bytes, value: bytes) -> Fields:
    if len(key) < _MARKER_KEY.size or len(value) < _MARKER_VALUE.size:
        return {"endTxnMarker": "unknown"}
    kind = _MARKER_KEY.unpack_from(key)[1]
    epoch = _MARKER_VALUE.unpack_from(value)[1]
    return {"endTxnMarker": _MARKERS.get(kind, str(kind)), "coordinatorEpoch": epoch}


def _entries(path: Path, data: bytes, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Entries of one size. A file that is still being written ends in zeros, which are none."""
    whole_bytes = len(data) - len(data) % entry.size
    for number, fields in enumerate(entry.iter_unpack(data[:whole_bytes])):
        if number > 0 and not any(fields) and not any(data[number * entry.size :]):
            return
        yield fields
    if any(data[whole_bytes:]):
        reason = f"{len(data) - whole_bytes} bytes after the last entry of {entry.size}"
        raise CorruptRecordError(str(path), whole_bytes, reason)


def _offset_index(path: Path, data: bytes) -> Iterator[Fields]:
    base_offset = base_offset_of(path)
    for relative_offset, position_bytes in _entries(path, data, _INDEX_ENTRY):
        yield {"offset": base_offset + relative_offset, "position": position_bytes}


def _time_index(path: Path, data: bytes) -> Iterator[Fields]:
    base_offset = base_offset_of(path)
    for timestamp_ms, relative_offset in _entries(path, data, _TIME_INDEX_ENTRY):
        yield {"timestamp": timestamp_ms, "offset": base_offset + relative_offset}


def _aborted_transactions(path: Path, data: bytes) -> Iterator[Fields]:
    for version, producer_id, first, last, stable in _entries(path, data, _ABORTED_TXN):
        yield {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }


def _snapshot(path: Path, data: bytes) -> Iterator[Fields]:
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
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, txn = (
            entry
        )
        first_sequence = last_sequence
        if last_sequence >= 0:
            first_sequence = (last_sequence - delta) % _SEQUENCE_MODULUS
        yield {
            "producerId": producer_id,
            "producerEpoch": epoch,
            "coordinatorEpoch": coordinator,
            "currentTxnFirstOffset": txn,
            "lastTimestamp": timestamp_ms,
            "firstSequence": first_sequence,
            "lastSequence": last_sequence,
            "lastOffset": last_offset,
            "offsetDelta": delta,
            "timestamp": timestamp_ms,
        }
