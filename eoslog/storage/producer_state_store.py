"""State in LMDB: what can be rebuilt from the log, kept so that opening need not read it.

- producers: topic id, partition, producer id -> the engine's row of that producer;
- rows: topic id, partition -> the offset up to which the partition's rows are true, and how many
  rows there are;
- open: the producers, among those, that have a transaction open;
- aborts: topic id, partition -> what its .txnindex files held when the rows were written;
- state: the newest record of each key of the internal log; applied: per partition of it the offset
  up to which that is true, and up to which it may know records (some may be newer); per partition
  of an internal topic, how large what held was when it was compacted last;
- undecided: the keys, among those, of transactions that are not complete;
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
from collections.abc import Callable, Iterable, Iterator, Mapping
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


class RowsHead(NamedTuple):
    """A partition's rows: how many, and the offset up to which they are true."""

    offset: int
    row_count: int


class PartitionRows(NamedTuple):
    """Rows of a partition as of one moment, and what is known of its .txnindex files."""

    rows: list[bytes]
    abort_files: list[tuple[int, int, int]]


class ProducerStateStore:
    """The LMDB environment of a store; with `shared` other processes may have it open too."""

    def __init__(self, state_path: Path, *, shared: bool = False) -> None:
        self.path = state_path / DIRECTORY_NAME
        # The last step: an interrupt (Ctrl-C) after it would leave the environment open.
        self.environment = LmdbEnvironment(self.path, _DATABASES, shared=shared)

    @property
    def _db(self) -> Mapping[bytes, Any]:
        return self.environment.databases

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
        return self.environment.within(
            lambda transaction: self._head(transaction, prefix), write=False
        )

    def read_row(self, topic_id: str, partition: int, producer_id: int) -> bytes | None:
        """The row of one producer, or None if it has none."""
        key = _KEY.pack(id_bytes(topic_id), partition, producer_id)

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(key, db=self._db[_PRODUCERS])
            return None if value is None else checked(value)

        return self.environment.within(read, write=False)

    def rows_after(
        self, topic_id: str, partition: int, producer_id: int, count: int
    ) -> list[tuple[int, bytes]]:
        """Return up to `count` rows in the order of producer ids, starting at `producer_id`."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)
        first = _KEY.pack(id_bytes(topic_id), partition, producer_id)

        def read(transaction: lmdb.Transaction) -> list[tuple[int, bytes]]:
            found = []
            for key, row in self._rows_of(transaction, prefix, first):
                found.append((_KEY.unpack(key)[2], row))
                if len(found) == count:
                    break
            return found

        return self.environment.within(read, write=False)

    def highest_producer_ids(self, upper_bound: int) -> dict[tuple[bytes, int], int]:
        """The highest producer id below a bound of every partition that was stored, -1 where there
        is none; by (bytes of the topic id, partition).
        """

        def read(transaction: lmdb.Transaction) -> dict[tuple[bytes, int], int]:
            found = {}
            with (
                transaction.cursor(db=self._db[_HEADS]) as heads,
                transaction.cursor(db=self._db[_PRODUCERS]) as cursor,
            ):
                for key in heads.iternext(keys=True, values=False):
                    prefix = bytes(key)
                    found[_PREFIX.unpack(prefix)] = _highest_id(cursor, prefix, upper_bound)
            return found

        return self.environment.within(read, write=False)

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

        def read(transaction: lmdb.Transaction) -> PartitionRows | None:
            if self._head(transaction, prefix) != head:
                return None
            if wanted is None:
                rows = [row for _, row in self._rows_of(transaction, prefix, prefix)]
            else:
                opened = self._some_keys(transaction, self._db[_OPEN], prefix, None)
                keys, database = sorted(wanted.union(opened)), self._db[_PRODUCERS]
                found = (transaction.get(key, db=database) for key in keys)
                rows = [checked(row) for row in found if row is not None]
            return PartitionRows(rows, self._abort_files(transaction, prefix))

        return self.environment.within(read, write=False)

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

        Raises StateStoreDamagedError if the rows went back meanwhile, or are gone; nothing was
        written then.
        """
        aborts = b"".join(_ABORT_FILE.pack(*one) for one in abort_files)
        identity = id_bytes(topic_id)
        keyed = [
            (
                _KEY.pack(identity, partition, _ROW_PRODUCER_ID.unpack_from(rows, at)[0]),
                sealed(rows[at : at + row_bytes]),
                _ROW_OPEN_SINCE.unpack_from(rows, at)[0] >= 0,
            )
            for at in range(0, len(rows), row_bytes)
        ]

        gone = [_KEY.pack(identity, partition, producer_id) for producer_id in dropped]
        prefix = _PREFIX.pack(identity, partition)

        def write(transaction: lmdb.Transaction) -> int:
            head = self._head(transaction, prefix)
            if since != ALL_ROWS and (head is None or head.offset < since):
                raise StateStoreDamagedError(
                    f"{self.path}: of partition {partition} the rows of before offset {since} are "
                    "gone; what they held comes from the log when the store is opened again"
                )
            if head is not None and head.offset >= offset:
                return head.offset
            row_count = 0 if head is None else head.row_count
            producers, opened = self._db[_PRODUCERS], self._db[_OPEN]
            for key in gone:
                row_count -= transaction.delete(key, db=producers)
                transaction.delete(key, db=opened)
            for key, value, has_open in keyed:
                if transaction.replace(key, value, db=producers) is None:
                    row_count += 1
                if has_open:
                    transaction.put(key, b"", db=opened)
                else:
                    transaction.delete(key, db=opened)
            transaction.put(prefix, sealed(_HEAD.pack(offset, row_count)), db=self._db[_HEADS])
            transaction.put(prefix, sealed(aborts), db=self._db[_ABORTS])
            return offset

        return self.environment.within(write, write=True)

    def delete_producers(
        self,
        topic_id: str,
        partition: int,
        producer_ids: Iterable[int],
        *,
        changed_up_to: int | None = None,
    ) -> None:
        """Forget producers of a partition that expired; durable.

        Those stay whose row changed after the offset `changed_up_to`: they wrote again meanwhile.
        """
        identity = id_bytes(topic_id)
        keys = [_KEY.pack(identity, partition, producer_id) for producer_id in producer_ids]
        prefix = _PREFIX.pack(identity, partition)

        def write(transaction: lmdb.Transaction) -> None:
            head = self._head(transaction, prefix)
            gone = 0
            for key in keys:
                row = transaction.get(key, db=self._db[_PRODUCERS])
                if row is None or (
                    changed_up_to is not None
                    and _ROW_CHANGED_AT.unpack_from(checked(row))[0] > changed_up_to
                ):
                    continue
                gone += transaction.delete(key, db=self._db[_PRODUCERS])
                transaction.delete(key, db=self._db[_OPEN])
            if head is not None and gone:  # A transaction without a change costs no sync.
                left = _HEAD.pack(head.offset, max(0, head.row_count - gone))
                transaction.put(prefix, sealed(left), db=self._db[_HEADS])

        if keys:
            self.environment.within(write, write=True)

    def having_row(
        self, topic_id: str, partition: int, producer_ids: Iterable[int]
    ) -> frozenset[int]:
        """Return those of the producers that have a row."""
        keys = {_KEY.pack(id_bytes(topic_id), partition, one): one for one in producer_ids}

        def read(transaction: lmdb.Transaction) -> frozenset[int]:
            get, rows = transaction.get, self._db[_PRODUCERS]
            return frozenset(one for key, one in keys.items() if get(key, db=rows) is not None)

        return self.environment.within(read, write=False)

    def delete_partition(self, topic_id: str, partition: int) -> None:
        """Forget all rows of a partition: they are untrue, or the partition is gone; durable."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)

        def forget_head(transaction: lmdb.Transaction) -> None:
            transaction.delete(prefix, db=self._db[_HEADS])
            transaction.delete(prefix, db=self._db[_ABORTS])

        def forget_some(transaction: lmdb.Transaction) -> int:
            keys = self._some_keys(transaction, self._db[_PRODUCERS], prefix, ROWS_PER_TRANSACTION)
            for key in keys:
                transaction.delete(key, db=self._db[_PRODUCERS])
                transaction.delete(key, db=self._db[_OPEN])
            return len(keys)

        # The head first: rows without one are not believed.
        self.environment.within(forget_head, write=True)
        while self.environment.within(forget_some, write=True) == ROWS_PER_TRANSACTION:
            pass

    def producer_rows(self) -> int:
        """Return how many rows there are, over all partitions."""

        def count(transaction: lmdb.Transaction) -> int:
            return int(transaction.stat(self._db[_PRODUCERS])["entries"])

        return self.environment.within(count, write=False)

    # The index of the internal log.

    def clear_states(self) -> None:
        """Forget the whole index; durable."""

        def write(transaction: lmdb.Transaction) -> None:
            for database in (self._db[_STATE], self._db[_APPLIED], self._db[_UNDECIDED]):
                transaction.drop(database, delete=False)

        self.environment.within(write, write=True)

    def read_state(self, key: bytes) -> bytes | None:
        """The newest value of a key of the internal log, as far as the index is true."""

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(key, db=self._db[_STATE])
            return None if value is None else checked(value)

        return self.environment.within(read, write=False)

    def states_after(self, prefix: bytes, key: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return up to `count` keys that begin with `prefix`, from `key` on, and their newest
        values.
        """

        def read(transaction: lmdb.Transaction) -> list[tuple[bytes, bytes]]:
            found: list[tuple[bytes, bytes]] = []
            with transaction.cursor(db=self._db[_STATE]) as cursor:
                if cursor.set_range(key):
                    for one, value in cursor:
                        if len(found) == count or not bytes(one).startswith(prefix):
                            break
                        found.append((bytes(one), checked(value)))
            return found

        return self.environment.within(read, write=False)

    def count_states(self) -> int:
        """Return how many keys of the internal log the index has."""

        def count(transaction: lmdb.Transaction) -> int:
            return int(transaction.stat(self._db[_STATE])["entries"])

        return self.environment.within(count, write=False)

    def read_undecided(self) -> list[bytes]:
        """The keys of the transactions that are not complete, as far as the index is true."""

        def read(transaction: lmdb.Transaction) -> list[bytes]:
            return self._some_keys(transaction, self._db[_UNDECIDED], b"", None)

        return self.environment.within(read, write=False)

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
        def read(transaction: lmdb.Transaction) -> tuple[int, ...] | None:
            value = transaction.get(b"%d" % partition, db=self._db[_APPLIED])
            if value is None:
                return None
            content = checked(value)
            # Older versions wrote one offset, which was both.
            layout = _OFFSETS if len(content) == _OFFSETS.size else _OFFSET
            return layout.unpack(content)

        return self.environment.within(read, write=False)

    def write_states(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        applied: Iterable[tuple[int, int]],
        reached: Mapping[int, int] = MappingProxyType({}),
        undecided: Mapping[bytes, bool] = MappingProxyType({}),
    ) -> None:
        """Put newest values in, with the offsets of the internal log they are true at; durable.

        None takes a key out. `reached` has the partitions of which newer records are among the
        changes; `undecided` has for a transaction's key if it is.
        """
        values = [(key, None if value is None else sealed(value)) for key, value in changes]
        offsets = [
            (
                b"%d" % number,
                sealed(_OFFSETS.pack(offset, max(offset, reached.get(number, offset)))),
            )
            for number, offset in applied
        ]

        def write(transaction: lmdb.Transaction) -> None:
            for key, value in values:
                if value is None:
                    transaction.delete(key, db=self._db[_STATE])
                else:
                    transaction.put(key, value, db=self._db[_STATE])
            for key, is_undecided in undecided.items():
                if is_undecided:
                    transaction.put(key, b"", db=self._db[_UNDECIDED])
                else:
                    transaction.delete(key, db=self._db[_UNDECIDED])
            for key, value in offsets:
                transaction.put(key, value, db=self._db[_APPLIED])

        self.environment.within(write, write=True)

    # Compaction of the internal topics.

    def read_live_bytes(self, where: TopicPartition) -> int:
        """Return how many bytes of a partition held when it was compacted last, in whole steps of
        LIVE_STEP_BYTES; 0 if that is not known.
        """

        def read(transaction: lmdb.Transaction) -> int:
            value = transaction.get(_live_key(where), db=self._db[_APPLIED])
            return 0 if value is None else int(_OFFSET.unpack(checked(value))[0])

        return self.environment.within(read, write=False)

    def write_live_bytes(self, where: TopicPartition, live_bytes: int) -> None:
        """Note how many bytes held; what is less than a step costs no write."""
        steps = live_bytes // LIVE_STEP_BYTES * LIVE_STEP_BYTES

        def write(transaction: lmdb.Transaction) -> None:
            transaction.put(_live_key(where), sealed(_OFFSET.pack(steps)), db=self._db[_APPLIED])

        if steps != self.read_live_bytes(where):
            self.environment.within(write, write=True)

    # What replay of `__consumer_offsets` gave; `GroupOffsetsIndex` knows what a row holds.

    def read_group_rows(
        self, partition: int, decode: Callable[[bytes, bytes], _Row]
    ) -> tuple[int, list[_Row]] | None:
        """Read the rows of a partition, `decode(key, value)` of each, and at which offset of its
        log they are true; None if there are none.
        """
        prefix = _PARTITION.pack(partition)

        def read(transaction: lmdb.Transaction) -> tuple[int, list[_Row]] | None:
            offset = self._group_offset(transaction, prefix)
            if offset == _NO_HEAD:
                return None
            rows = []
            with transaction.cursor(db=self._db[_GROUP_OFFSETS]) as cursor:
                cursor.set_key(prefix)
                while cursor.next() and bytes(cursor.key()).startswith(prefix):
                    key = bytes(cursor.key())[len(prefix) :]
                    rows.append(decode(key, checked(cursor.value())))
            return offset, rows

        return self.environment.within(read, write=False)

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
        changes = [(prefix + key, None if row is None else sealed(row)) for key, row in rows]

        def write(transaction: lmdb.Transaction) -> bool:
            if generation != self.generation:
                raise StateStoreDamagedError(f"{self.path} was re-created meanwhile")
            head = self._group_offset(transaction, prefix)
            if head > offset:
                return True  # Another process knows more, all of this among it.
            if since is None:
                self._delete_group_rows(transaction, prefix)
            elif head < since:
                return False
            for key, value in changes:
                if value is None:
                    transaction.delete(key, db=self._db[_GROUP_OFFSETS])
                else:
                    transaction.put(key, value, db=self._db[_GROUP_OFFSETS])
            transaction.put(prefix, sealed(_OFFSET.pack(offset)), db=self._db[_GROUP_OFFSETS])
            return True

        return self.environment.within(write, write=True)

    def delete_group_rows(self, partition: int) -> None:
        """Drop all rows of a partition; durable."""
        prefix = _PARTITION.pack(partition)
        self.environment.within(
            lambda transaction: self._delete_group_rows(transaction, prefix), write=True
        )

    def delete_group_rows_beyond(self, partition: int, log_end_offset: int) -> None:
        """Drop all rows of a partition if they know more than its log holds; durable."""
        prefix = _PARTITION.pack(partition)
        try:
            head = self.environment.within(
                lambda transaction: self._group_offset(transaction, prefix), write=False
            )
            if head > log_end_offset:
                self.delete_group_rows(partition)
        except StateStoreDamagedError:
            return  # They are gone, with everything else.

    def _group_offset(self, transaction: lmdb.Transaction, prefix: bytes) -> int:
        head = transaction.get(prefix, db=self._db[_GROUP_OFFSETS])
        return _NO_HEAD if head is None else int(_OFFSET.unpack(checked(head))[0])

    def _delete_group_rows(self, transaction: lmdb.Transaction, prefix: bytes) -> None:
        with transaction.cursor(db=self._db[_GROUP_OFFSETS]) as cursor:
            cursor.set_range(prefix)
            while bytes(cursor.key()).startswith(prefix):
                cursor.delete()  # It stands on the next one then; after the last there is no key.

    # How the last process closed the store.

    def read_session(self) -> bytes | None:
        """The mark of the last clean close that this environment knows of."""

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(_SESSION_KEY, db=self._db[_SESSION])
            return None if value is None else checked(value)

        return self.environment.within(read, write=False)

    def write_session(self, session: bytes) -> None:
        """Mark a clean close; durable."""

        def write(transaction: lmdb.Transaction) -> None:
            transaction.put(_SESSION_KEY, sealed(session), db=self._db[_SESSION])

        self.environment.within(write, write=True)

    def _head(self, transaction: lmdb.Transaction, prefix: bytes) -> RowsHead | None:
        value = transaction.get(prefix, db=self._db[_HEADS])
        return None if value is None else RowsHead(*_HEAD.unpack(checked(value)))

    def _abort_files(
        self, transaction: lmdb.Transaction, prefix: bytes
    ) -> list[tuple[int, int, int]]:
        value = transaction.get(prefix, db=self._db[_ABORTS])
        return [] if value is None else list(_ABORT_FILE.iter_unpack(checked(value)))

    def _rows_of(
        self, transaction: lmdb.Transaction, prefix: bytes, first: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        with transaction.cursor(db=self._db[_PRODUCERS]) as cursor:
            if not cursor.set_range(first):
                return
            for key, value in cursor:
                if not bytes(key).startswith(prefix):
                    return
                yield bytes(key), checked(value)

    def _some_keys(
        self, transaction: lmdb.Transaction, database: Any, prefix: bytes, count: int | None
    ) -> list[bytes]:
        keys: list[bytes] = []
        with transaction.cursor(db=database) as cursor:
            if cursor.set_range(prefix):
                for key in cursor.iternext(keys=True, values=False):
                    if len(keys) == count or not bytes(key).startswith(prefix):
                        break
                    keys.append(bytes(key))
        return keys


def _highest_id(cursor: lmdb.Cursor, prefix: bytes, upper_bound: int) -> int:
    """The producer id of the last key of a partition below a bound, -1 if there is none."""
    is_behind = cursor.set_range(prefix + _PRODUCER_ID.pack(upper_bound))
    if not (cursor.prev() if is_behind else cursor.last()):
        return -1
    key = bytes(cursor.key())
    return int(_KEY.unpack(key)[2]) if key.startswith(prefix) else -1


def _live_key(where: TopicPartition) -> bytes:
    return f"live {where.topic} {where.partition}".encode()


def sealed(value: bytes) -> bytes:
    """A value with its checksum before it, as it is put in."""
    return _CHECKSUM.pack(zlib.crc32(value)) + value


def checked(found: bytes | memoryview) -> bytes:
    """The value that was put in. Where it does not match its checksum, all counts as damaged."""
    value = bytes(found[_CHECKSUM.size :])
    if len(found) < _CHECKSUM.size or _CHECKSUM.unpack_from(found)[0] != zlib.crc32(value):
        raise CorruptRowError("a value does not match its checksum")
    return value
