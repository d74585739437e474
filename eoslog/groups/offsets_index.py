"""Groups in LMDB: what replay of `__consumer_offsets` gave, and up to which offset.

A row is one offset, committed or pending for a producer id, or a group's members, with the offset
of its record. The head of a partition is the offset of its log up to which the rows are the whole
state; rows and head change in one transaction. A head beyond the end of the log counts records that
a power cut took: then all rows of the partition go, before those offsets are given out again.

Several processes may write. The head only goes forward: a process that has replayed less has
nothing to add.
"""

import struct
from collections.abc import Iterable
from contextlib import suppress
from itertools import starmap
from typing import NamedTuple

from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
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
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.storage.tables import GROUP_OFFSETS, Tables
from eoslog.storage.unified_log import UnifiedLog

_PARTITION = struct.Struct(">i")  # Of each key; the one without more is the head's.
_HEAD = struct.Struct(">q")
_ROW_KEY = struct.Struct(">q16s")  # Producer id, digest of the record's key.
_ROW = struct.Struct(">qi")  # Offset of the record, size of its key.
_DIGEST_BYTES = 16
_NO_HEAD = -1


class KeptOffsets(NamedTuple):
    """State of a partition in LMDB: true at `offset` of its log."""

    offset: int
    rows: list[Row]


class GroupOffsetsIndex:
    """The rows of all partitions, in the LMDB environment of a store."""

    def __init__(self, environment: LmdbEnvironment) -> None:
        self.environment = environment

    @property
    def generation(self) -> int:
        """Number that rises when all rows were lost."""
        return self.environment.generation

    def read(self, partition: int) -> KeptOffsets | None:
        """Read the state of a partition; None if there is none. Raises StateStoreDamagedError."""
        prefix = _PARTITION.pack(partition)

        def read(tables: Tables) -> KeptOffsets | None:
            offset = _head(tables, prefix)
            if offset == _NO_HEAD:
                return None
            rows = tables.items(GROUP_OFFSETS, prefix, prefix)[1:]
            return KeptOffsets(offset, [_decoded_row(key[len(prefix) :], row) for key, row in rows])

        return self.environment.read(read)

    def write(
        self,
        partition: int,
        offset: int,
        changes: Iterable[tuple[RowKey, WrittenOffset | WrittenMembers | None]],
        generation: int,
        since: int | None,
    ) -> bool:
        """Put changed rows in (None: it is gone) and say that all are true at `offset`; durable.

        The changes are those since `since`; None: they are all that there is. False if rows were
        lost since: nothing is written then, and all of them are wanted. Raises StoreFullError, or
        StateStoreDamagedError if this is another generation by now; nothing changed then.
        """
        prefix = _PARTITION.pack(partition)
        encoded = [(prefix + key, row) for key, row in starmap(_encoded_row, changes)]

        def write(tables: Tables) -> bool:
            if generation != self.generation:
                raise StateStoreDamagedError(
                    f"{self.environment.path} was re-created during the write"
                )
            head = _head(tables, prefix)
            if head > offset:
                return True  # Another process knows more, all of this among it.
            if since is None:
                _delete_rows(tables, prefix)
            elif head < since:
                return False
            tables.change(GROUP_OFFSETS, encoded)
            tables.put(GROUP_OFFSETS, prefix, _HEAD.pack(offset))
            return True

        return self.environment.write(write)

    def delete(self, partition: int) -> None:
        """Drop all rows of a partition; durable."""
        self.environment.write(lambda tables: _delete_rows(tables, _PARTITION.pack(partition)))

    def delete_untrue(self, partition: UnifiedLog) -> None:
        """Drop all rows of a partition that was just opened if they know more than its log holds;
        durable.
        """
        if partition.topic == CONSUMER_OFFSETS_TOPIC:
            prefix = _PARTITION.pack(partition.partition)
            with suppress(StateStoreDamagedError):  # They are gone then, with everything else.
                head = self.environment.read(lambda tables: _head(tables, prefix))
                if head > partition.log_end_offset:
                    self.delete(partition.partition)


def _head(tables: Tables, prefix: bytes) -> int:
    value = tables.get(GROUP_OFFSETS, prefix)
    return _NO_HEAD if value is None else int(_HEAD.unpack(value)[0])


def _delete_rows(tables: Tables, prefix: bytes) -> None:
    for key in tables.keys(GROUP_OFFSETS, prefix):
        tables.delete(GROUP_OFFSETS, key)


def _encoded_row(
    row: RowKey, written: WrittenOffset | WrittenMembers | None
) -> tuple[bytes, bytes | None]:
    import hashlib  # It loads OpenSSL, which not every process needs.

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
