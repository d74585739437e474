"""Read the files of a partition without a store, one by one, as Kafka's dump tool shows them.

The fields, their names and their order are those of Kafka's log dump; what is not set is None. The
zeros after the last batch or entry of a file that is still being written are no damage.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eoslog.bindings.record_batch import crc32c, decode_records, iter_batches
from eoslog.errors import CorruptRecordError, UnsupportedCompressionTypeError
from eoslog.fs.locked_file_reader import LockedFileReader, open_locked
from eoslog.inspect.record_decoders import Decoder
from eoslog.storage.damage import UNREADABLE
from eoslog.storage.partition_directory import base_offset_of

Fields = dict[str, Any]

_BATCH_PREFIX = struct.Struct(">qi")  # base offset, bytes after these twelve
_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_COVERS_FROM = 21
_ZEROS_LOOK_BYTES = 1 << 20
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
_SEQUENCE_MODULUS = 1 << 31
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
_ABORTED_TXN = struct.Struct(">hqqqq")
_SNAPSHOT_HEADER = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_CRC_FROM = 6


def dump_file(
    path: Path, *, deep: bool = False, decoder: Decoder | None = None
) -> Iterator[Fields]:
    """Return the entries of one file, in the order they stand there.

    A `.log` gives its batches, with `deep` each followed by its records, whose keys and values the
    decoder reads; `.index`, `.timeindex`, `.txnindex` and `.snapshot` give their entries. Raises
    ValueError for another kind of file and for an index whose name has no offset, at once;
    CorruptRecordError with the place for bytes that are neither, when it comes to them.
    """
    if path.suffix != ".log" and path.suffix not in _READERS:
        raise ValueError(f"{path}: not a .log, .index, .timeindex, .txnindex or .snapshot file")
    if path.suffix in (".index", ".timeindex"):
        base_offset_of(path)  # Their entries are relative to it.
    return _entries_of(path, deep, decoder)


def _entries_of(path: Path, deep: bool, decoder: Decoder | None) -> Iterator[Fields]:
    with open_locked(path) as file:
        if file.size_bytes == 0:
            return
        if path.suffix == ".log":
            yield from _batches(path, file, deep, decoder)
        else:
            yield from _READERS[path.suffix](path, file.read(0, file.size_bytes))


def _batches(
    path: Path, file: LockedFileReader, deep: bool, decoder: Decoder | None
) -> Iterator[Fields]:
    """Yield the batches of a log file, with `deep` each followed by its records.

    A batch with a wrong checksum is shown as not valid, and the walk goes on after it. Bytes that
    are no batch end the walk: it yields how many are left, and raises CorruptRecordError. Records
    that cannot be read, those of a compressed batch too, are left out: the first error is raised at
    the end. A key or value that the decoder cannot read is shown as it is.
    """
    position_bytes = 0
    unreadable: CorruptRecordError | UnsupportedCompressionTypeError | None = None
    while prefix := file.read(position_bytes, _BATCH_PREFIX.size):
        if not any(prefix) and _only_zeros(file, position_bytes):
            break
        left_bytes = len(prefix)
        if left_bytes == _BATCH_PREFIX.size:
            left_bytes = max(file.size_bytes - position_bytes, left_bytes)
        try:
            batch_bytes = _batch_bytes(path, prefix, position_bytes, left_bytes)
        except CorruptRecordError:
            yield {"invalidBytes": left_bytes}
            raise
        batch = file.read(position_bytes, batch_bytes)
        if len(batch) < batch_bytes:
            reason = f"the file was cut to {position_bytes + len(batch)} bytes, inside a batch"
            raise CorruptRecordError(str(path), position_bytes, reason)
        fields = _batch_fields(batch, position_bytes)
        yield fields
        if deep and fields["isvalid"]:
            try:
                yield from _records(path, batch, fields, decoder)
            except UNREADABLE as error:
                unreadable = unreadable or error
        position_bytes += batch_bytes
    if unreadable is not None:
        raise unreadable


def _only_zeros(file: LockedFileReader, position_bytes: int) -> bool:
    while piece := file.read(position_bytes, _ZEROS_LOOK_BYTES):
        if any(piece):
            return False
        position_bytes += len(piece)
    return True


def _batch_bytes(path: Path, prefix: bytes, position_bytes: int, left_bytes: int) -> int:
    """Return the size of the batch that starts here. Raises CorruptRecordError if none can."""
    if left_bytes < _BATCH_HEADER.size:
        reason = f"{left_bytes} bytes are left, a batch has at least {_BATCH_HEADER.size}"
        raise CorruptRecordError(str(path), position_bytes, reason)
    batch_bytes: int = _BATCH_PREFIX.unpack(prefix)[1] + _BATCH_PREFIX.size
    if not _BATCH_HEADER.size <= batch_bytes <= left_bytes:
        reason = f"a batch of {batch_bytes} bytes does not fit into the {left_bytes} that are left"
        raise CorruptRecordError(str(path), position_bytes, reason)
    return batch_bytes


def _batch_fields(batch: bytes, position_bytes: int) -> Fields:
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _BATCH_HEADER.unpack_from(batch)
    last_sequence = base_sequence
    if base_sequence >= 0:
        last_sequence = (base_sequence + last_offset_delta) % _SEQUENCE_MODULUS
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
        "isTransactional": bool(attributes & _TRANSACTIONAL),
        "isControl": bool(attributes & _CONTROL),
        # Where it is set, the first timestamp is that of when tombstones and markers may go.
        "deleteHorizonMs": base_timestamp if attributes & _DELETE_HORIZON else None,
        "position": position_bytes,
        _time_name(attributes): max_timestamp,
        "size": len(batch),
        "magic": magic,
        "compresscodec": _CODECS[codec] if codec < len(_CODECS) else str(codec),
        "crc": crc,
        "isvalid": magic == 2 and crc == crc32c(batch[_CRC_COVERS_FROM:]),
    }


def _time_name(attributes: int) -> str:
    return "LogAppendTime" if attributes & _LOG_APPEND_TIME else "CreateTime"


def _records(
    path: Path, batch: bytes, batch_fields: Fields, decoder: Decoder | None
) -> Iterator[Fields]:
    codec = batch_fields["compresscodec"]
    if codec != "none":
        raise UnsupportedCompressionTypeError(str(path), batch_fields["position"], codec)
    try:
        header, records = iter_batches(batch)[0], decode_records(batch)
    except CorruptRecordError as error:
        position_bytes = batch_fields["position"] + error.position_bytes
        raise CorruptRecordError(str(path), position_bytes, error.reason) from error
    for record in records:
        sequence = -1
        if header.base_sequence >= 0:
            delta = record.offset - header.base_offset
            sequence = (header.base_sequence + delta) % _SEQUENCE_MODULUS
        fields: Fields = {
            "offset": record.offset,
            _time_name(header.attributes): record.timestamp_ms,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
            "sequence": sequence,
            "headerKeys": [name for name, _ in record.headers],
        }
        if batch_fields["isControl"]:
            fields |= _marker(record.key or b"", record.value or b"")
        else:
            fields |= _contents(record.key, record.value, decoder)
        yield fields


def _contents(key: bytes | None, value: bytes | None, decoder: Decoder | None) -> Fields:
    if decoder is not None and key is not None:
        try:
            decoded_key, payload = decoder(key, value)
        except CorruptRecordError as error:
            return {"key": key, "payload": value, "undecodable": error.reason}
        return {"key": decoded_key, "payload": payload}
    return {"key": key, "payload": value}


def _marker(key: bytes, value: bytes) -> Fields:
    if len(key) < _MARKER_KEY.size or len(value) < _MARKER_VALUE.size:
        return {"endTxnMarker": "unknown"}
    kind = _MARKER_KEY.unpack_from(key)[1]
    epoch = _MARKER_VALUE.unpack_from(value)[1]
    return {"endTxnMarker": _MARKERS.get(kind, str(kind)), "coordinatorEpoch": epoch}


def _entries(path: Path, data: bytes, entry: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """Yield the entries, all of one size. Zeros at the end of the file are none."""
    whole_bytes = len(data) - len(data) % entry.size
    for number, fields in enumerate(entry.iter_unpack(data[:whole_bytes])):
        if number > 0 and not any(fields) and not any(data[number * entry.size :]):
            return
        yield fields
    if any(data[whole_bytes:]):
        reason = f"{len(data) - whole_bytes} bytes after the last entry of {entry.size}"
        raise CorruptRecordError(str(path), whole_bytes, reason)


def _offset_index(path: Path, data: bytes) -> Iterator[Fields]:
    """Yield positions of batches in the log file, by offset."""
    base_offset = base_offset_of(path)
    for relative_offset, position_bytes in _entries(path, data, _INDEX_ENTRY):
        yield {"offset": base_offset + relative_offset, "position": position_bytes}


def _time_index(path: Path, data: bytes) -> Iterator[Fields]:
    """Yield offsets by time."""
    base_offset = base_offset_of(path)
    for timestamp_ms, relative_offset in _entries(path, data, _TIME_INDEX_ENTRY):
        yield {"timestamp": timestamp_ms, "offset": base_offset + relative_offset}


def _abort_index(path: Path, data: bytes) -> Iterator[Fields]:
    """Yield the aborted transactions whose markers are in the segment."""
    for version, producer_id, first, last, stable in _entries(path, data, _ABORTED_TXN):
        yield {
            "version": version,
            "producerId": producer_id,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }


def _snapshot(path: Path, data: bytes) -> Iterator[Fields]:
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


_READERS = {
    ".index": _offset_index,
    ".timeindex": _time_index,
    ".txnindex": _abort_index,
    ".snapshot": _snapshot,
}
