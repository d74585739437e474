"""State in LMDB: what can be rebuilt from the log, kept so that opening need not read it.

- producers: topic id, partition, producer id -> the engine's row of that producer;
- rows: topic id, partition -> the offset up to which the partition's rows are true, and how many
  rows there are;
- open: the producers, among those, that have a transaction open;
- aborts: topic id, partition -> what its .txnindex files held when the rows were written;
- state: the newest record of each key of the internal log; applied: per partition of it the offset
  up to which that is true, and up to which it may know records (some may be newer); per partition
  of an internal topic, how large what held was when it was compacted last;
- undecided: the keys, among those, of transactions, and of staged jobs, that are not complete;
- group-offsets: the offsets that groups committed, and up to where of their log that is true;
- session: the last clean close.

Every write of a partition's rows and of the offset they are true at is one LMDB transaction, and
synced, so after any crash the two agree. Every process of the store writes them; what one knows
never takes the place of what another wrote later. Nothing here is the truth: an environment that
cannot be read is dropped, and the rows come from the log again; see `LmdbEnvironment`. No
partition's lock is held inside LMDB.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import lmdb

from eoslog.common.topic_partition import TopicPartition
from eoslog.fs.identity_files import id_bytes
from eoslog.storage.lmdb_environment import CorruptRowError, LmdbEnvironment
from eoslog.storage.lmdb_environment import StateStoreDamagedError as StateStoreDamagedError

DIRECTORY_NAME = "lmdb"
ROWS_PER_TRANSACTION = 50_000
# The rows handed over have every producer that the log knows.
ALL_ROWS = -1
# How exactly it is known how much of an internal topic's partition holds.
LIVE_STEP_BYTES = 1 << 20
_NO_HEAD = -1

_KEY = struct.Struct(">16siQ")
_PREFIX = struct.Struct(">16si")
_PARTITION = struct.Struct(">i")
_PRODUCER_ID = struct.Struct(">Q")
_HEAD = struct.Struct(">qq")
_OFFSET = struct.Struct(">q")
_OFFSETS = struct.Struct(">qq")
_ABORT_FILE = struct.Struct(">qqI")
_ROW_OPEN_SINCE = struct.Struct("<16xq")  # The first offset of the open transaction, or -1.
_ROW_CHANGED_AT = struct.Struct("<24xq")  # The log's end after the row's last change.
_CHECKSUM = struct.Struct(">I")
_ROW_PRODUCER_ID = struct.Struct("<q")
_SESSION_KEY = b"clean-close"
# The databases.
_PRODUCERS = b"producers"
_OPEN = b"open"
_HEADS = b"rows"
_ABORTS = b"aborts"
_STATE = b"state"
_APPLIED = b"applied"
_UNDECIDED = b"undecided"
_SESSION = b"session"
_GROUP_OFFSETS = b"group-offsets"
_DATABASES = (
    *(_PRODUCERS, _OPEN, _HEADS, _ABORTS, _STATE),
    *(_APPLIED, _UNDECIDED, _SESSION, _GROUP_OFFSETS),
)

_Row = TypeVar("_Row")
_Result = TypeVar("_Result")


class RowsHead(NamedTuple):
    """A partition's rows: how many, and the offset up to which they are true."""

    offset: int
    row_count: int


class PartitionRows(NamedTuple):
    """Rows of a partition as of one moment, and what is known of its .txnindex files."""

    rows: list[bytes]
    abort_files: list[tuple[int, int, int]]


class Tables:
    """The databases of the environment within one transaction; values have a checksum there."""

    def __init__(self, transaction: lmdb.Transaction, databases: Mapping[bytes, Any]) -> None:
        self._transaction: Any = transaction  # All that it returns is bytes, and no view of them.
        self._databases = databases

    def has(self, name: bytes, key: bytes) -> bool:
        """True if a key is there, with a value or without."""
        return self._transaction.get(key, db=self._databases[name]) is not None

    def get(self, name: bytes, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no such key."""
        value = self._transaction.get(key, db=self._databases[name])
        return None if value is None else checked(value)

    def put(self, name: bytes, key: bytes, value: bytes) -> bool:
        """Put a value in; return True if the key is new."""
        return self._transaction.replace(key, sealed(value), db=self._databases[name]) is None

    def mark(self, name: bytes, key: bytes, *, is_there: bool) -> None:
        """Put a key in without a value, or take it out."""
        if is_there:
            self._transaction.put(key, b"", db=self._databases[name])
        else:
            self._transaction.delete(key, db=self._databases[name])

    def delete(self, name: bytes, key: bytes) -> bool:
        """Take a key out; return True if it was there."""
        return bool(self._transaction.delete(key, db=self._databases[name]))

    def change(self, name: bytes, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put values in; None takes a key out."""
        for key, value in changes:
            if value is None:
                self.delete(name, key)
            else:
                self.put(name, key, value)

    def clear(self, name: bytes) -> None:
        """Take all keys out."""
        self._transaction.drop(self._databases[name], delete=False)

    def count(self, name: bytes) -> int:
        """Return how many keys there are."""
        return int(self._transaction.stat(self._databases[name])["entries"])

    def keys(self, name: bytes, prefix: bytes = b"", count: int | None = None) -> list[bytes]:
        """Return keys that begin with `prefix`, up to `count` of them."""
        with self._transaction.cursor(db=self._databases[name]) as cursor:
            cursor.set_range(prefix)
            keys = cursor.iternext(keys=True, values=False)
            return list(islice(takewhile(lambda key: key.startswith(prefix), keys), count))

    def items(
        self, name: bytes, prefix: bytes, first: bytes, count: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return keys that begin with `prefix` and their values, up to `count`, from `first` on."""
        found = []
        with self._transaction.cursor(db=self._databases[name]) as cursor:
            for key, value in islice(cursor if cursor.set_range(first) else (), count):
                if not key.startswith(prefix):
                    break
                found.append((key, checked(value)))
        return found

    def last_key(self, name: bytes, upper_bound: bytes) -> bytes:
        """Return the last key below a bound; no bytes if there is none."""
        with self._transaction.cursor(db=self._databases[name]) as cursor:
            is_found = cursor.prev() if cursor.set_range(upper_bound) else cursor.last()
            return bytes(cursor.key()) if is_found else b""


class ProducerStateStore:
    """The LMDB environment of a store; with `shared` other processes may have it open too."""

    def __init__(
        self,
        state_path: Path,
        *,
        shared: bool = False,
        write_turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.path = state_path / DIRECTORY_NAME
        # The last step: an interrupt (Ctrl-C) after it would leave the environment open.
        self.environment = LmdbEnvironment(
            self.path, _DATABASES, shared=shared, write_turn=write_turn
        )

    def _read(self, work: Callable[[Tables], _Result]) -> _Result:
        databases = self.environment.databases
        return self.environment.within(lambda one: work(Tables(one, databases)), write=False)

    def _write(self, work: Callable[[Tables], _Result]) -> _Result:
        databases = self.environment.databases
        return self.environment.within(lambda one: work(Tables(one, databases)), write=True)

    @property
    def generation(self) -> int:
        """Number of times that everything was lost since this process opened it."""
        return self.environment.generation

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        self.environment.close()

    # Producers of a partition.

    def read_head(self, topic_id: str, partition: int) -> RowsHead | None:
        """Read the head of a partition's rows; None if there is none."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)
        return self._read(lambda tables: _head(tables, prefix))

    def read_row(self, topic_id: str, partition: int, producer_id: int) -> bytes | None:
        """The row of one producer, or None if it has none."""
        key = _KEY.pack(id_bytes(topic_id), partition, producer_id)
        return self._read(lambda tables: tables.get(_PRODUCERS, key))

    def rows_after(
        self, topic_id: str, partition: int, producer_id: int, count: int
    ) -> list[tuple[int, bytes]]:
        """Return up to `count` rows in the order of producer ids, starting at `producer_id`."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)
        first = _KEY.pack(id_bytes(topic_id), partition, producer_id)

        def read(tables: Tables) -> list[tuple[int, bytes]]:
            rows = tables.items(_PRODUCERS, prefix, first, count)
            return [(_KEY.unpack(key)[2], row) for key, row in rows]

        return self._read(read)

    def highest_producer_ids(self, upper_bound: int) -> dict[tuple[bytes, int], int]:
        """The highest producer id below a bound of every partition that was stored, -1 where there
        is none; by (bytes of the topic id, partition).
        """

        def read(tables: Tables) -> dict[tuple[bytes, int], int]:
            found = {}
            for prefix in tables.keys(_HEADS):
                key = tables.last_key(_PRODUCERS, prefix + _PRODUCER_ID.pack(upper_bound))
                is_its = key.startswith(prefix)
                found[_PREFIX.unpack(prefix)] = int(_KEY.unpack(key)[2]) if is_its else -1
            return found

        return self._read(read)

    def read_rows(
        self, topic_id: str, partition: int, head: RowsHead, producer_ids: Iterable[int] | None
    ) -> PartitionRows | None:
        """The rows of these producers and of all that have a transaction open, or all rows (None).

        As of one moment, at which they were true at `head`; None if the partition has another head
        by now.
        """
        identity = id_bytes(topic_id)
        prefix = _PREFIX.pack(identity, partition)
        wanted = None
        if producer_ids is not None:
            wanted = {_KEY.pack(identity, partition, one) for one in producer_ids}

        def read(tables: Tables) -> PartitionRows | None:
            if _head(tables, prefix) != head:
                return None
            if wanted is None:
                rows = [row for _, row in tables.items(_PRODUCERS, prefix, prefix)]
            else:
                keys = sorted(wanted.union(tables.keys(_OPEN, prefix)))
                found = (tables.get(_PRODUCERS, key) for key in keys)
                rows = [row for row in found if row is not None]
            aborts = tables.get(_ABORTS, prefix) or b""
            return PartitionRows(rows, list(_ABORT_FILE.iter_unpack(aborts)))

        return self._read(read)

    def write_rows(
        self,
        topic_id: str,
        partition: int,
        rows: bytes,
        row_bytes: int,
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
        identity = id_bytes(topic_id)
        keyed = [
            (
                _KEY.pack(identity, partition, _ROW_PRODUCER_ID.unpack_from(rows, at)[0]),
                rows[at : at + row_bytes],
                _ROW_OPEN_SINCE.unpack_from(rows, at)[0] >= 0,
            )
            for at in range(0, len(rows), row_bytes)
        ]

        gone = [_KEY.pack(identity, partition, producer_id) for producer_id in dropped]
        prefix = _PREFIX.pack(identity, partition)

        def write(tables: Tables) -> int:
            head = _head(tables, prefix)
            if since != ALL_ROWS and (head is None or head.offset < since):
                raise StateStoreDamagedError(
                    f"{self.path}: of partition {partition} the rows of before offset {since} are "
                    "gone; what they held comes from the log when the store is opened again"
                )
            if head is not None and head.offset >= offset:
                return head.offset
            row_count = 0 if head is None else head.row_count
            for key in gone:
                row_count -= tables.delete(_PRODUCERS, key)
                tables.delete(_OPEN, key)
            for key, row, has_open in keyed:
                row_count += tables.put(_PRODUCERS, key, row)
                tables.mark(_OPEN, key, is_there=has_open)
            tables.put(_HEADS, prefix, _HEAD.pack(offset, row_count))
            tables.put(_ABORTS, prefix, aborts)
            return offset

        return self._write(write)

    def delete_producers(
        self,
        topic_id: str,
        partition: int,
        producer_ids: Iterable[int],
        *,
        changed_up_to: int | None = None,
    ) -> None:
        """Forget producers of a partition that expired; durable.

        Those stay whose row changed after the offset `changed_up_to`: they wrote again.
        """
        identity = id_bytes(topic_id)
        keys = [_KEY.pack(identity, partition, producer_id) for producer_id in producer_ids]
        prefix = _PREFIX.pack(identity, partition)

        def write(tables: Tables) -> None:
            head = _head(tables, prefix)
            gone = 0
            for key in keys:
                row = tables.get(_PRODUCERS, key)
                if row is None or (
                    changed_up_to is not None
                    and _ROW_CHANGED_AT.unpack_from(row)[0] > changed_up_to
                ):
                    continue
                gone += tables.delete(_PRODUCERS, key)
                tables.delete(_OPEN, key)
            if head is not None and gone:  # A transaction without a change costs no sync.
                left = _HEAD.pack(head.offset, max(0, head.row_count - gone))
                tables.put(_HEADS, prefix, left)

        if keys:
            self._write(write)

    def having_row(
        self, topic_id: str, partition: int, producer_ids: Iterable[int]
    ) -> frozenset[int]:
        """Return those of the producers that have a row."""
        keys = {_KEY.pack(id_bytes(topic_id), partition, one): one for one in producer_ids}
        return self._read(
            lambda tables: frozenset(
                one for key, one in keys.items() if tables.has(_PRODUCERS, key)
            )
        )

    def delete_partition(self, topic_id: str, partition: int) -> None:
        """Forget all rows of a partition: they are untrue, or the partition is gone; durable."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)

        def forget_head(tables: Tables) -> None:
            tables.delete(_HEADS, prefix)
            tables.delete(_ABORTS, prefix)

        def forget_some(tables: Tables) -> int:
            keys = tables.keys(_PRODUCERS, prefix, ROWS_PER_TRANSACTION)
            for key in keys:
                tables.delete(_PRODUCERS, key)
                tables.delete(_OPEN, key)
            return len(keys)

        # The head first: rows without one are not believed.
        self._write(forget_head)
        while self._write(forget_some) == ROWS_PER_TRANSACTION:
            pass

    def producer_rows(self) -> int:
        """Return how many rows there are, over all partitions."""
        return self._read(lambda tables: tables.count(_PRODUCERS))

    # The index of the internal log.

    def clear_states(self) -> None:
        """Forget the whole index; durable. If there is none, nothing is written."""
        names = (_STATE, _APPLIED, _UNDECIDED)

        def write(tables: Tables) -> None:
            for name in names:
                tables.clear(name)

        if self._read(lambda tables: any(map(tables.count, names))):
            self._write(write)

    def read_state(self, key: bytes) -> bytes | None:
        """The newest value of a key of the internal log, as far as the index is true."""
        return self._read(lambda tables: tables.get(_STATE, key))

    def states_after(self, prefix: bytes, key: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return up to `count` keys that begin with `prefix`, from `key` on, and their newest
        values.
        """
        return self._read(lambda tables: tables.items(_STATE, prefix, key, count))

    def count_states(self) -> int:
        """Return how many keys of the internal log the index has."""
        return self._read(lambda tables: tables.count(_STATE))

    def read_unresolved(self, prefix: bytes) -> list[bytes]:
        """The keys of what is not complete, of a prefix, as far as the index is true."""
        return self._read(lambda tables: tables.keys(_UNDECIDED, prefix))

    def read_applied(self, partition: int) -> int | None:
        """Return up to which offset of a partition of the internal log the index is true."""
        offsets = self._applied_of(partition)
        return None if offsets is None else offsets[0]

    def read_reached(self, partition: int) -> int | None:
        """Return the offset below which the records of the index are; some may be newer than the
        offset at which it is true.
        """
        offsets = self._applied_of(partition)
        return None if offsets is None else offsets[-1]

    def _applied_of(self, partition: int) -> tuple[int, ...] | None:
        def read(tables: Tables) -> tuple[int, ...] | None:
            value = tables.get(_APPLIED, b"%d" % partition)
            if value is None:
                return None
            return _OFFSETS.unpack(value)

        return self._read(read)

    def write_states(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        applied: Iterable[tuple[int, int]],
        reached: Mapping[int, int] = MappingProxyType({}),
        unresolved: Mapping[bytes, bool] = MappingProxyType({}),
    ) -> None:
        """Put newest values in, with the offsets of the internal log they are true at; durable.

        None takes a key out. `reached` has the partitions of which newer records are among the
        changes; `unresolved` has for the key of a transaction or an application if it is.
        """
        changes = list(changes)
        offsets = [
            (b"%d" % number, _OFFSETS.pack(offset, max(offset, reached.get(number, offset))))
            for number, offset in applied
        ]

        def write(tables: Tables) -> None:
            tables.change(_STATE, changes)
            for key, is_unresolved in unresolved.items():
                tables.mark(_UNDECIDED, key, is_there=is_unresolved)
            tables.change(_APPLIED, offsets)

        self._write(write)

    # Compaction of the internal topics.

    def read_live_bytes(self, where: TopicPartition) -> int:
        """Return how many bytes of a partition held when it was compacted last, in whole steps of
        LIVE_STEP_BYTES; 0 if that is not known.
        """
        return self._read(lambda tables: _offset(tables, _APPLIED, _live_key(where), 0))

    def write_live_bytes(self, where: TopicPartition, live_bytes: int) -> None:
        """Note how many bytes held; what is less than a step costs no write."""
        steps = live_bytes // LIVE_STEP_BYTES * LIVE_STEP_BYTES
        if steps != self.read_live_bytes(where):
            self._write(lambda tables: tables.put(_APPLIED, _live_key(where), _OFFSET.pack(steps)))

    # What replay of `__consumer_offsets` gave; `GroupOffsetsIndex` knows what a row holds.

    def read_group_rows(
        self, partition: int, decode: Callable[[bytes, bytes], _Row]
    ) -> tuple[int, list[_Row]] | None:
        """Read the rows of a partition, `decode(key, value)` of each, and at which offset of its
        log they are true; None if there are none.
        """
        prefix = _PARTITION.pack(partition)

        def read(tables: Tables) -> tuple[int, list[_Row]] | None:
            offset = _group_offset(tables, prefix)
            if offset == _NO_HEAD:
                return None
            rows = tables.items(_GROUP_OFFSETS, prefix, prefix)[1:]
            return offset, [decode(key[len(prefix) :], row) for key, row in rows]

        return self._read(read)

    def write_group_rows(
        self,
        partition: int,
        offset: int,
        rows: Iterable[tuple[bytes, bytes | None]],
        generation: int,
        since: int | None,
    ) -> bool:
        """Put changed rows in (None: it is gone) and say that all are true at `offset`; durable.

        The changes are those since `since`; None: they are all that there is. False if rows were
        lost since: nothing is written then, and all of them are wanted. Raises StoreFullError, or
        StateStoreDamagedError if this is another generation by now; nothing changed then.
        """
        prefix = _PARTITION.pack(partition)
        changes = [(prefix + key, row) for key, row in rows]

        def write(tables: Tables) -> bool:
            if generation != self.generation:
                raise StateStoreDamagedError(f"{self.path} was re-created during the write")
            head = _group_offset(tables, prefix)
            if head > offset:
                return True  # Another process knows more, all of this among it.
            if since is None:
                _delete_group_rows(tables, prefix)
            elif head < since:
                return False
            tables.change(_GROUP_OFFSETS, changes)
            tables.put(_GROUP_OFFSETS, prefix, _OFFSET.pack(offset))
            return True

        return self._write(write)

    def delete_group_rows(self, partition: int) -> None:
        """Drop all rows of a partition; durable."""
        self._write(lambda tables: _delete_group_rows(tables, _PARTITION.pack(partition)))

    def delete_group_rows_beyond(self, partition: int, log_end_offset: int) -> None:
        """Drop all rows of a partition if they know more than its log holds; durable."""
        prefix = _PARTITION.pack(partition)
        with suppress(StateStoreDamagedError):  # They are gone then, with everything else.
            if self._read(lambda tables: _group_offset(tables, prefix)) > log_end_offset:
                self.delete_group_rows(partition)

    # How the last process closed the store.

    def read_session(self) -> bytes | None:
        """The mark of the last clean close that this environment knows of."""
        return self._read(lambda tables: tables.get(_SESSION, _SESSION_KEY))

    def write_session(self, session: bytes) -> None:
        """Mark a clean close; durable."""
        self._write(lambda tables: tables.put(_SESSION, _SESSION_KEY, session))


def _head(tables: Tables, prefix: bytes) -> RowsHead | None:
    value = tables.get(_HEADS, prefix)
    return None if value is None else RowsHead(*_HEAD.unpack(value))


def _offset(tables: Tables, name: bytes, key: bytes, otherwise: int) -> int:
    value = tables.get(name, key)
    return otherwise if value is None else int(_OFFSET.unpack(value)[0])


def _group_offset(tables: Tables, prefix: bytes) -> int:
    return _offset(tables, _GROUP_OFFSETS, prefix, _NO_HEAD)


def _delete_group_rows(tables: Tables, prefix: bytes) -> None:
    for key in tables.keys(_GROUP_OFFSETS, prefix):
        tables.delete(_GROUP_OFFSETS, key)


def _live_key(where: TopicPartition) -> bytes:
    return f"live {where.topic} {where.partition}".encode()


def sealed(value: bytes) -> bytes:
    """A value with its checksum before it, as it is put in."""
    return _CHECKSUM.pack(zlib.crc32(value)) + value


def checked(found: bytes) -> bytes:
    """The value that was put in. Where it does not match its checksum, all counts as damaged."""
    value = found[_CHECKSUM.size :]
    if len(found) < _CHECKSUM.size or _CHECKSUM.unpack_from(found)[0] != zlib.crc32(value):
        raise CorruptRowError("a value does not match its checksum")
    return value
