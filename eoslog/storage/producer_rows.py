"""The rows of a partition's producers in LMDB.

- producers: topic id, partition, producer id -> the engine's row of that producer;
- rows: topic id, partition -> the offset up to which the partition's rows are true, and how many
  rows there are;
- open: the producers, among those, that have a transaction open;
- aborts: topic id, partition -> what its .txnindex files held when the rows were written.

Every write of a partition's rows and of the offset they are true at is one LMDB transaction, and
synced, so after any crash the two agree. Every process of the store writes them; what one knows
never takes the place of what another wrote later.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from eoslog.bindings.producer_state import PRODUCER_ROW_BYTES
from eoslog.fs.identity_files import id_bytes
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.storage.tables import ABORTS, HEADS, OPEN, PRODUCERS, Tables

ROWS_PER_TRANSACTION = 50_000
# The rows handed over have every producer that the log knows.
ALL_ROWS = -1

_KEY = struct.Struct(">16siQ")
_PREFIX = struct.Struct(">16si")
_PRODUCER_ID = struct.Struct(">Q")
_HEAD = struct.Struct(">qq")
_ABORT_FILE = struct.Struct(">qqI")
_ROW_PRODUCER_ID = struct.Struct("<q")
_ROW_OPEN_SINCE = struct.Struct("<16xq")  # The first offset of the open transaction, or -1.
_ROW_CHANGED_AT = struct.Struct("<24xq")  # The log's end after the row's last change.


class RowsHead(NamedTuple):
    """A partition's rows: how many, and the offset up to which they are true."""

    offset: int
    row_count: int


class PartitionRows(NamedTuple):
    """Rows of a partition as of one moment, and what is known of its .txnindex files."""

    rows: list[bytes]
    abort_files: list[tuple[int, int, int]]


class ProducerRows:
    """The rows of one partition's producers."""

    def __init__(self, environment: LmdbEnvironment, topic_id: str, partition: int) -> None:
        self.environment = environment
        self._partition = partition
        self._prefix = _PREFIX.pack(id_bytes(topic_id), partition)

    def _key(self, producer_id: int) -> bytes:
        return self._prefix + _PRODUCER_ID.pack(producer_id)

    def read_head(self) -> RowsHead | None:
        """Read the head of the rows; None if there is none."""
        return self.environment.read(self._head)

    def _head(self, tables: Tables) -> RowsHead | None:
        value = tables.get(HEADS, self._prefix)
        return None if value is None else RowsHead(*_HEAD.unpack(value))

    def read_row(self, producer_id: int) -> bytes | None:
        """Read the row of one producer; None if it has none."""
        key = self._key(producer_id)
        return self.environment.read(lambda tables: tables.get(PRODUCERS, key))

    def rows_after(self, producer_id: int, count: int) -> list[tuple[int, bytes]]:
        """Return up to `count` rows in the order of producer ids, starting at `producer_id`."""
        first = self._key(producer_id)

        def read(tables: Tables) -> list[tuple[int, bytes]]:
            rows = tables.items(PRODUCERS, self._prefix, first, count)
            return [(_KEY.unpack(key)[2], row) for key, row in rows]

        return self.environment.read(read)

    def read_rows(self, head: RowsHead, producer_ids: Iterable[int] | None) -> PartitionRows | None:
        """The rows of these producers and of all that have a transaction open, or all rows (None).

        As of one moment, at which they were true at `head`; None if the partition has another head
        by now.
        """
        prefix = self._prefix
        wanted = None if producer_ids is None else set(map(self._key, producer_ids))

        def read(tables: Tables) -> PartitionRows | None:
            if self._head(tables) != head:
                return None
            if wanted is None:
                rows = [row for _, row in tables.items(PRODUCERS, prefix, prefix)]
            else:
                keys = sorted(wanted.union(tables.keys(OPEN, prefix)))
                found = (tables.get(PRODUCERS, key) for key in keys)
                rows = [row for row in found if row is not None]
            aborts = tables.get(ABORTS, prefix) or b""
            return PartitionRows(rows, list(_ABORT_FILE.iter_unpack(aborts)))

        return self.environment.read(read)

    def write_rows(
        self,
        rows: bytes,
        offset: int,
        abort_files: Iterable[tuple[int, int, int]] = (),
        *,
        since: int = ALL_ROWS,
        dropped: Iterable[int] = (),
    ) -> int:
        """Put rows in, and note that all rows of the partition are true at `offset`; durable.

        `since`: the rows are those of all producers that changed from that offset on, up to which
        the rows in LMDB were seen to be true, but for `dropped` ones: no row of theirs is left.
        `abort_files` has the partition's .txnindex files: (base offset, entries, checksum). Nothing
        is written if another process wrote rows that are true at `offset` or later. Returns the
        offset at which the rows are true now.

        Raises StateStoreDamagedError if the rows went back since, or are gone; nothing was
        written then.
        """
        aborts = b"".join(_ABORT_FILE.pack(*one) for one in abort_files)
        keyed = [
            (
                self._key(_ROW_PRODUCER_ID.unpack_from(rows, at)[0]),
                rows[at : at + PRODUCER_ROW_BYTES],
                _ROW_OPEN_SINCE.unpack_from(rows, at)[0] >= 0,
            )
            for at in range(0, len(rows), PRODUCER_ROW_BYTES)
        ]
        gone = [self._key(producer_id) for producer_id in dropped]

        def write(tables: Tables) -> int:
            head = self._head(tables)
            if since != ALL_ROWS and (head is None or head.offset < since):
                raise StateStoreDamagedError(
                    f"{self.environment.path}: of partition {self._partition} the rows of before "
                    f"offset {since} are gone; what they held comes from the log when the store is "
                    "opened again"
                )
            if head is not None and head.offset >= offset:
                return head.offset
            row_count = 0 if head is None else head.row_count
            for key in gone:
                row_count -= _delete_row(tables, key)
            for key, row, has_open in keyed:
                row_count += tables.put(PRODUCERS, key, row)
                tables.mark(OPEN, key, is_there=has_open)
            tables.put(HEADS, self._prefix, _HEAD.pack(offset, row_count))
            tables.put(ABORTS, self._prefix, aborts)
            return offset

        return self.environment.write(write)

    def delete_producers(
        self, producer_ids: Iterable[int], *, changed_up_to: int | None = None
    ) -> None:
        """Forget producers that expired; durable.

        Those stay whose row changed after the offset `changed_up_to`: they wrote again.
        """
        keys = list(map(self._key, producer_ids))

        def write(tables: Tables) -> None:
            head = self._head(tables)
            gone = 0
            for key in keys:
                row = tables.get(PRODUCERS, key)
                if row is None or (
                    changed_up_to is not None
                    and _ROW_CHANGED_AT.unpack_from(row)[0] > changed_up_to
                ):
                    continue
                gone += _delete_row(tables, key)
            if head is not None and gone:  # A transaction without a change costs no sync.
                left = _HEAD.pack(head.offset, max(0, head.row_count - gone))
                tables.put(HEADS, self._prefix, left)

        if keys:
            self.environment.write(write)

    def having_row(self, producer_ids: Iterable[int]) -> frozenset[int]:
        """Return those of the producers that have a row."""
        keys = {self._key(one): one for one in producer_ids}
        return self.environment.read(
            lambda tables: frozenset(one for key, one in keys.items() if tables.has(PRODUCERS, key))
        )

    def delete_all(self) -> None:
        """Forget all rows: they are untrue, or the partition is gone; durable."""

        def forget_head(tables: Tables) -> None:
            tables.delete(HEADS, self._prefix)
            tables.delete(ABORTS, self._prefix)

        def forget_some(tables: Tables) -> int:
            keys = tables.keys(PRODUCERS, self._prefix, ROWS_PER_TRANSACTION)
            for key in keys:
                _delete_row(tables, key)
            return len(keys)

        # The head first: rows without one are not believed.
        self.environment.write(forget_head)
        while self.environment.write(forget_some) == ROWS_PER_TRANSACTION:
            pass


def _delete_row(tables: Tables, key: bytes) -> bool:
    tables.delete(OPEN, key)
    return tables.delete(PRODUCERS, key)


def highest_producer_ids(
    environment: LmdbEnvironment, upper_bound: int
) -> dict[tuple[bytes, int], int]:
    """The highest producer id below a bound of every partition that was stored, -1 where there is
    none; by (bytes of the topic id, partition).
    """

    def read(tables: Tables) -> dict[tuple[bytes, int], int]:
        found = {}
        for prefix in tables.keys(HEADS):
            key = tables.last_key(PRODUCERS, prefix + _PRODUCER_ID.pack(upper_bound))
            is_its = key.startswith(prefix)
            found[_PREFIX.unpack(prefix)] = int(_KEY.unpack(key)[2]) if is_its else -1
        return found

    return environment.read(read)


def count_producer_rows(environment: LmdbEnvironment) -> int:
    """Return how many rows there are, over all partitions."""
    return environment.read(lambda tables: tables.count(PRODUCERS))
