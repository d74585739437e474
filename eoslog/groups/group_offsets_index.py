"""Groups in LMDB: what replay of `__consumer_offsets` gave, and up to which offset.

A row is one offset, committed or pending for a producer id, or a group's members, with the offset
of its record. The head of a partition says below which offset of its log the rows are the whole
truth; rows and head change in one transaction. A head beyond the end of the log knows of records
that a power cut took: then all rows of the partition go, before those offsets are given out again.

Several processes may write. The head only goes forward: who has replayed less than it says has
nothing to add.
"""

import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from eoslog.groups.group_offsets_state import (
    MembersKey,
    Row,
    RowKey,
    WrittenMembers,
    WrittenOffset,
)
from eoslog.groups.member_records import (
    decode_members_key,
    decode_members_value,
    encode_members_key,
    encode_members_value,
)
from eoslog.groups.offset_records import (
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.storage.producer_state_store import (
    ProducerStateStore,
    StateStoreDamagedError,
    checked,
    sealed,
)

_PARTITION = struct.Struct(">i")
_ROW_KEY = struct.Struct(">iq16s")  # Partition, producer id, digest of the record's key.
_HEAD = struct.Struct(">q")
_ROW = struct.Struct(">qi")  # Offset of the record, size of its key.
_DIGEST_BYTES = 16
_NO_HEAD = -1


class KeptOffsets(NamedTuple):
    """State of a partition in LMDB: true at `offset` of its log."""

    offset: int
    rows: list[Row]


class GroupOffsetsIndex:
    """The rows of all partitions, in the LMDB environment of a store."""

    def __init__(self, store: ProducerStateStore) -> None:
        self._store = store

    @property
    def path(self) -> Path:
        """The directory of LMDB."""
        return self._store.path

    @property
    def generation(self) -> int:
        """Rises when everything that was kept was lost."""
        return self._store.generation

    def read(self, partition: int) -> KeptOffsets | None:
        """Read the state of a partition; None if there is none. Raises StateStoreDamagedError."""

        def work(transaction: Any, database: Any) -> KeptOffsets | None:
            prefix = _PARTITION.pack(partition)
            head = transaction.get(prefix, db=database)
            if head is None:
                return None
            rows = []
            with transaction.cursor(db=database) as cursor:
                cursor.set_key(prefix)
                while cursor.next() and bytes(cursor.key()).startswith(prefix):
                    _, producer_id, _ = _ROW_KEY.unpack(cursor.key())
                    rows.append(_decoded_row(producer_id, checked(cursor.value())))
            return KeptOffsets(int(_HEAD.unpack(checked(head))[0]), rows)

        return self._store.with_group_offsets(work, write=False)

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
        encoded = [_encoded_row(partition, row, written) for row, written in changes]
        prefix = _PARTITION.pack(partition)

        def work(transaction: Any, database: Any) -> bool:
            found = transaction.get(prefix, db=database)
            head = _NO_HEAD if found is None else int(_HEAD.unpack(checked(found))[0])
            if head > offset:
                return True  # Another process knows more, all of this among it.
            if since is None:
                _delete_all(transaction, database, partition)
            elif head < since:
                return False
            for key, value in encoded:
                if value is None:
                    transaction.delete(key, db=database)
                else:
                    transaction.put(key, value, db=database)
            transaction.put(prefix, sealed(_HEAD.pack(offset)), db=database)
            return True

        return self._store.with_group_offsets(work, write=True, generation=generation)

    def forget_beyond(self, partition: int, log_end_offset: int) -> None:
        """Drop all rows of a partition if they know more than its log holds; durable."""

        def look(transaction: Any, database: Any) -> bool:
            head = transaction.get(_PARTITION.pack(partition), db=database)
            return head is not None and _HEAD.unpack(checked(head))[0] > log_end_offset

        try:
            if self._store.with_group_offsets(look, write=False):
                self.forget(partition)
        except StateStoreDamagedError:
            return  # They are gone, with everything else.

    def forget(self, partition: int) -> None:
        """Drop all rows of a partition; durable."""

        def work(transaction: Any, database: Any) -> None:
            _delete_all(transaction, database, partition)

        self._store.with_group_offsets(work, write=True)


def _encoded_row(
    partition: int, row: RowKey, written: WrittenOffset | WrittenMembers | None
) -> tuple[bytes, bytes | None]:
    if isinstance(row.key, MembersKey):
        key = encode_members_key(row.key.group)
    else:
        key = encode_offset_key(row.key.group, row.key.topic_partition)
    # Names may be longer than LMDB's keys.
    digest = hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
    place = _ROW_KEY.pack(partition, row.producer_id, digest)
    if written is None:
        return place, None
    head = _ROW.pack(written.record_offset, len(key))
    if isinstance(written, WrittenMembers):
        return place, sealed(head + key + encode_members_value(written.value))
    return place, sealed(head + key + encode_offset_value(written.value))


def _decoded_row(producer_id: int, row: bytes) -> Row:
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


def _delete_all(transaction: Any, database: Any, partition: int) -> None:
    prefix = _PARTITION.pack(partition)
    with transaction.cursor(db=database) as cursor:
        cursor.set_range(prefix)
        while bytes(cursor.key()).startswith(prefix):
            cursor.delete()  # It stands on the next one then; behind the last there is no key.
