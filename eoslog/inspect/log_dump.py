"""Walk a `.log` file batch by batch, and show what Kafka's dump shows of batches and records.

A batch with a wrong checksum is shown as not valid, and the walk goes on after it. Bytes that are
no batch end the walk: it says how many are left, and raises CorruptRecordError. The zeros behind
the last batch of a file that is still being written are no damage. The records of a compressed
batch cannot be shown: the walk goes on, and UnsupportedCompressionTypeError is raised at its end.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eoslog.bindings.record_batch import crc32c, decode_records, iter_batches
from eoslog.errors import CorruptRecordError, UnsupportedCompressionTypeError
from eoslog.fs.locked_file_reader import LockedFileReader
from eoslog.inspect.record_decoders import Decoder

Fields = dict[str, Any]

_BATCH_PREFIX = struct.Struct(">qi")  # base offset, bytes after these twelve
_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_COVERS_FROM = 21
_ZEROS_LOOK_BYTES = 1 << 20
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MARKERS = {0: "ABORT", 1: "COMMIT"}
_SEQUENCE_MODULUS = 1 << 31
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40


def dump_log(
    path: Path, file: LockedFileReader, *, deep: bool, decoder: Decoder | None
) -> Iterator[Fields]:
    """The batches of a log file, with `deep` each followed by its records.

    A decoder says what keys and values are; one that it cannot read is shown as it is.
    """
    position_bytes = 0
    unreadable: UnsupportedCompressionTypeError | None = None
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
            except UnsupportedCompressionTypeError as error:
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
    timestamp_name = "LogAppendTime" if attributes & _LOG_APPEND_TIME else "CreateTime"
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
        timestamp_name: max_timestamp,
        "size": len(batch),
        "magic": magic,
        "compresscodec": _CODECS[codec] if codec < len(_CODECS) else str(codec),
        "crc": crc,
        "isvalid": magic == 2 and crc == crc32c(batch[_CRC_COVERS_FROM:]),
    }


def _records(
    path: Path, batch: bytes, batch_fields: Fields, decoder: Decoder | None
) -> Iterator[Fields]:
    codec = batch_fields["compresscodec"]
    if codec != "none":
        raise UnsupportedCompressionTypeError(str(path), batch_fields["position"], codec)
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
