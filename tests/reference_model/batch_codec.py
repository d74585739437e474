"""Record batch v2, encoded and decoded one field after the other."""

from __future__ import annotations

import functools
import gzip
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
CRC_FROM = 21
MAX_SEQUENCE = 2**31 - 1

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

ABORT = 0
COMMIT = 1

Header = tuple[str, bytes | None]


class CodecError(Exception):
    """These bytes are no record batch of version 2."""


@dataclass(frozen=True)
class ModelRecord:
    """One record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class ModelBatch:
    """The fields of one batch's header, and its bytes."""

    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    data: bytes
    position_bytes: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return -1
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def crc32c_bitwise(data: bytes) -> int:
    """CRC-32C by its definition: one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C, one byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def increment_sequence(sequence: int, delta: int) -> int:
    """Sequences wrap from 2**31 - 1 to 0 and are never negative."""
    return (sequence + delta) % (MAX_SEQUENCE + 1)


def decrement_sequence(sequence: int, delta: int) -> int:
    return (sequence - delta) % (MAX_SEQUENCE + 1)


def encode_varint(number: int) -> bytes:
    """Zig-zag and then seven bits a byte; Python's integers need no width."""
    zigzag = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def decode_varint(data: bytes, at: int, bytes_max: int = 10) -> tuple[int, int]:
    """Return the number at `at` and the place after it."""
    zigzag = 0
    for index in range(bytes_max):
        if at + index >= len(data):
            raise CodecError("a number is cut off")
        byte = data[at + index]
        zigzag |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            number = zigzag >> 1 if zigzag % 2 == 0 else -(zigzag + 1) >> 1
            return number, at + index + 1
    raise CodecError(f"a number of more than {bytes_max} bytes")


def _nullable(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def encode_record(record: ModelRecord, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\x00" + encode_varint(record.timestamp_ms - base_timestamp)
    body += encode_varint(record.offset - base_offset)
    body += _nullable(record.key) + _nullable(record.value)
    body += encode_varint(len(record.headers))
    for name, value in record.headers:
        body += _nullable(name.encode()) + _nullable(value)
    return encode_varint(len(body)) + body


def seal(data: bytes) -> bytes:
    """Give the batch its length and its checksum."""
    sized = data[:8] + struct.pack(">i", len(data) - 12) + data[12:]
    return sized[:17] + struct.pack(">I", crc32c(sized[CRC_FROM:])) + sized[CRC_FROM:]


def encode_batch(
    records: Sequence[ModelRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int | None = None,
) -> bytes:
    """Encode records whose offsets are absolute (`base_offset` and on)."""
    timestamps = [record.timestamp_ms for record in records]
    if base_timestamp is None:
        base_timestamp = timestamps[0] if timestamps else -1
    if max_timestamp is None:
        max_timestamp = max(timestamps, default=-1)
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset
    header = HEADER.pack(
        base_offset,
        0,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records) if record_count is None else record_count,
    )
    return seal(header + b"".join(encode_record(r, base_offset, base_timestamp) for r in records))


def simple_batch(
    values: Sequence[bytes | None],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    attributes: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """A batch of values without keys, all with one timestamp."""
    records = [
        ModelRecord(base_offset + index, timestamp_ms, None, value)
        for index, value in enumerate(values)
    ]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def encode_marker(
    kind: int,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    offset: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    leader_epoch: int = 0,
) -> bytes:
    """A transaction marker: one control record, always 78 bytes."""
    record = ModelRecord(
        offset, timestamp_ms, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch)
    )
    return encode_batch(
        [record],
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
    )


def compress_batch(batch: bytes, codec: int) -> bytes:
    """The batch with its records compressed: true gzip for 1, and bytes that nobody decodes for
    other codecs.
    """
    packed = gzip.compress(batch[HEADER_BYTES:], mtime=0)
    if codec != 1:
        packed = bytes(byte ^ 0x5A for byte in packed)
    attributes = struct.unpack_from(">h", batch, CRC_FROM)[0] | codec
    header = batch[:CRC_FROM] + struct.pack(">h", attributes) + batch[CRC_FROM + 2 : HEADER_BYTES]
    return seal(header + packed)


def place_batch(batch: bytes, base_offset: int, leader_epoch: int = 0) -> bytes:
    """What an appender does to a producer's batch: both fields lie outside the checksum."""
    return (
        struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", leader_epoch) + batch[16:]
    )


def decode_header(data: bytes, position_bytes: int = 0) -> ModelBatch:
    """The batch at the start of `data`, its size and checksum checked."""
    if len(data) < HEADER_BYTES:
        raise CodecError(f"{len(data)} bytes are less than a header")
    fields = HEADER.unpack_from(data)
    if fields[3] != 2:
        raise CodecError(f"magic {fields[3]}")
    batch_bytes = fields[1] + 12
    if batch_bytes < HEADER_BYTES or batch_bytes > len(data):
        raise CodecError(f"a batch of {batch_bytes} bytes in {len(data)}")
    whole = bytes(data[:batch_bytes])
    if crc32c(whole[CRC_FROM:]) != fields[4]:
        raise CodecError("the checksum differs")
    return ModelBatch(
        fields[0], fields[2], fields[4], *fields[5:], data=whole, position_bytes=position_bytes
    )


def decode_records(data: bytes) -> list[ModelRecord]:
    """All records of one batch."""
    batch = decode_header(data)
    at = HEADER_BYTES
    records = []
    for _ in range(batch.record_count):
        record, at = _decode_record(batch, at)
        records.append(record)
    if at != len(batch.data):
        raise CodecError(f"{len(batch.data) - at} bytes after the last record")
    return records


@functools.lru_cache(maxsize=4096)
def records_of(data: bytes) -> tuple[ModelRecord, ...]:
    """The same, for who asks of one batch again and again."""
    return tuple(decode_records(data))


def _decode_record(batch: ModelBatch, at: int) -> tuple[ModelRecord, int]:
    data = batch.data
    body_bytes, at = decode_varint(data, at, 5)
    end = at + body_bytes
    if body_bytes < 0 or end > len(data):
        raise CodecError(f"a record of {body_bytes} bytes")
    timestamp_delta, at = decode_varint(data, at + 1)
    offset_delta, at = decode_varint(data, at, 5)
    key, at = _decode_nullable(data, at)
    value, at = _decode_nullable(data, at)
    header_count, at = decode_varint(data, at, 5)
    headers = []
    for _ in range(header_count):
        name, at = _decode_nullable(data, at)
        if name is None:
            raise CodecError("a header without a name")
        header_value, at = _decode_nullable(data, at)
        headers.append((name.decode(), header_value))
    if at != end:
        raise CodecError(f"a record ends at {at}, its length says {end}")
    timestamp_ms = batch.base_timestamp + timestamp_delta
    if batch.attributes & LOG_APPEND_TIME:
        timestamp_ms = batch.max_timestamp
    record = ModelRecord(batch.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers))
    return record, at


def _decode_nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(data, at, 5)
    if size == -1:
        return None, at
    if size < 0 or at + size > len(data):
        raise CodecError(f"a field of {size} bytes")
    return data[at : at + size], at + size


def iter_batches(data: bytes) -> Iterator[ModelBatch]:
    """Batches back to back; an incomplete one at the end is an error."""
    at = 0
    while at < len(data):
        batch = replace(decode_header(data[at:]), position_bytes=at)
        yield batch
        at += len(batch.data)


def whole_batches(data: bytes) -> list[ModelBatch]:
    """The batches that a recovery keeps: all before the first that is not sound."""
    batches = []
    try:
        for batch in iter_batches(data):
            batches.append(batch)
    except CodecError:
        pass
    return batches
