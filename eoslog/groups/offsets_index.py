"""Groups in LMDB: what replay of `__consumer_offsets` gave, and up to which offset.

A row is one offset, committed or pending for a producer id, or a group's members, with the offset
of its record. The head of a partition is the offset of its log up to which the rows are the whole
state; rows and head change in one transaction. A head beyond the end of the log counts records that
a power cut took: then all rows of the partition go, before those offsets are given out again.

Several processes may write. The head only goes forward: a process that has replayed less has
nothing to add.
"""

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from eoslog.groups.offsets_state import Row, RowKey, WrittenMembers, WrittenOffset
from eoslog.groups.records import (
    MembersKey,
    decode_members_key,
    decode_members_value,
    decode_offset_key,
    decode_offset_value,
    encode_key,
    encode_value,
)
from eoslog.storage.producer_state_store import ProducerStateStore, StateStoreDamagedError

_ROW_KEY = struct.Struct(">q16s")  # Producer id, digest of the record's key.
_ROW = struct.Struct(">qi")  # Offset of the record, size of its key.
_DIGEST_BYTES = 16


class KeptOffsets(NamedTuple):
    """State of a partition in LMDB: true at `offset` of its log."""

    offset: int
    rows: list[Row]


class GroupOffsetsIndex:
    """The rows of all partitions, in the LMDB environment of a store."""

    def __init__(self, rows: ProducerStateStore) -> None:
        self.rows = rows

    @property
    def generation(self) -> int:
        """Number that rises when all rows were lost."""
        return self.rows.generation

    def read(self, partition: int) -> KeptOffsets | None:
        """Read the state of a partition; None if there is none. Raises StateStoreDamagedError."""
        kept = self.rows.read_group_rows(partition, _decoded_row)
        return None if kept is None else KeptOffsets(*kept)

    def write(
        self,
        partition: int,
        offset: int,
        changes: Iterable[tuple[RowKey, WrittenOffset | WrittenMembers | None]],
        generation: int,
        since: int | None,
    ) -> bool:
        """Write changed rows (None: the row is gone); see `write_group_rows`."""
        encoded = [_encoded_row(row, written) for row, written in changes]
        return self.rows.write_group_rows(partition, offset, encoded, generation, since)


def _encoded_row(
    row: RowKey, written: WrittenOffset | WrittenMembers | None
) -> tuple[bytes, bytes | None]:
    key = encode_key(row.key)
    # Names may be longer than LMDB's keys.
    digest = hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
    place = _ROW_KEY.pack(row.producer_id, digest)
    if written is None:
        return place, None
    head = _ROW.pack(written.record_offset, len(key))
    return place, head + key + encode_value(written.value)


def _decoded_row(place: bytes, row: bytes) -> Row:
    producer_id, _ = _ROW_KEY.unpack(place)
    record_offset, key_bytes = _ROW.unpack_from(row)
    value_at = _ROW.size + key_bytes
    key = decode_offset_key(row[_ROW.size : value_at])
    if key is not None:
        value = decode_offset_value(row[value_at:])
        return RowKey(producer_id, key), WrittenOffset(value, record_offset)
    group = decode_members_key(row[_ROW.size : value_at])
    members = None if group is None else decode_members_value(row[value_at:])
    if group is None or members is None:
        raise StateStoreDamagedError("a row of a group is neither an offset's nor of members")
    return RowKey(producer_id, MembersKey(group)), WrittenMembers(members, record_offset)
