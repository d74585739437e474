"""LMDB behind the log: what can be rebuilt from it, kept so that opening need not read it.

- producers: topic id, partition, producer id -> the engine's row of that producer;
- rows: topic id, partition -> the offset up to which the partition's rows are true, and how many
  rows there are;
- open: the producers, among those, that have a transaction open;
- aborts: topic id, partition -> what its .txnindex files held when the rows were written;
- state: the newest record of each key of the internal log; applied: per partition of it the offset
  up to which that is true, and up to which it may tell of records (some may be newer);
- undecided: the keys, among those, of transactions that are not complete;
- group-offsets: the offsets that groups committed, and up to where of their log that is true;
- session: the last clean close.

Every write of a partition's rows and of the offset they are true at is one LMDB transaction, and
synced, so after any crash the two agree. Nothing here is the truth: an environment that cannot be
read is dropped and begun anew, and the rows come from the log again. `generation` counts these new
beginnings, so that nobody mixes what he knows of the old one with the new one. The map grows when
it is full. One thread at a time is inside LMDB, and no partition's lock is held meanwhile.
"""

import errno
import mmap
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import lmdb

from eoslog.errors import LogClosedError, StoreFailedError, StoreFullError
from eoslog.kafka_uuid import id_bytes
from eoslog.os_errors import named_os_errors

DIRECTORY_NAME = "lmdb"
MAP_BYTES_INITIAL = 16 << 20
ROWS_PER_TRANSACTION = 50_000
# With less than that left on the device, what LMDB could not write was for want of space.
_LEFT_BYTES_MIN = 64 << 10
_META_BYTES = 2 * mmap.PAGESIZE  # LMDB keeps two heads, a page each.

_KEY = struct.Struct(">16siQ")
_PREFIX = struct.Struct(">16si")
_HEAD = struct.Struct(">qq")
_OFFSET = struct.Struct(">q")
_OFFSETS = struct.Struct(">qq")
_ABORT_FILE = struct.Struct(">qqI")
_ROW_OPEN_SINCE = struct.Struct("<16xq")  # The first offset of the open transaction, or -1.
_CHECKSUM = struct.Struct(">I")
_ROW_PRODUCER_ID = struct.Struct("<q")
_SESSION_KEY = b"clean-close"

_Result = TypeVar("_Result")


class StateStoreDamagedError(StoreFailedError):
    """LMDB held something unreadable; it was begun anew, and what it held comes from the log."""


class RowsHead(NamedTuple):
    """A partition's rows: how many, and the offset below which they tell of all batches."""

    offset: int
    row_count: int


class ProducerStateStore:
    """The LMDB environment of a store."""

    def __init__(self, state_path: Path) -> None:
        self.path = state_path / DIRECTORY_NAME
        self.generation = 0
        self._lock = threading.Lock()
        self._environment: lmdb.Environment | None = None
        self._open()

    # Producers of a partition.

    def read_head(self, topic_id: str, partition: int) -> RowsHead | None:
        """What there is of a partition; None if nothing."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)
        return self._within(lambda transaction: self._head(transaction, prefix), write=False)

    def read_row(self, topic_id: str, partition: int, producer_id: int) -> bytes | None:
        """The row of one producer, or None if it has none."""
        key = _KEY.pack(id_bytes(topic_id), partition, producer_id)

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(key, db=self._producers)
            return None if value is None else checked(value)

        return self._within(read, write=False)

    def rows_after(
        self, topic_id: str, partition: int, producer_id: int, count: int
    ) -> list[tuple[int, bytes]]:
        """Up to `count` rows in the order of producer ids, starting at `producer_id`."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)
        first = _KEY.pack(id_bytes(topic_id), partition, producer_id)

        def read(transaction: lmdb.Transaction) -> list[tuple[int, bytes]]:
            found = []
            for key, row in self._rows_of(transaction, prefix, first):
                found.append((_KEY.unpack(key)[2], row))
                if len(found) == count:
                    break
            return found

        return self._within(read, write=False)

    def write_rows(
        self,
        topic_id: str,
        partition: int,
        rows: bytes,
        row_bytes: int,
        offset: int,
        abort_files: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        """Put rows in, and say that all rows of the partition are true at `offset`; durable.

        `abort_files` tells of the partition's .txnindex files: (base offset, entries, checksum).
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

        prefix = _PREFIX.pack(identity, partition)

        def write(transaction: lmdb.Transaction) -> None:
            head = self._head(transaction, prefix)
            row_count = 0 if head is None else head.row_count
            for key, value, has_open in keyed:
                if transaction.replace(key, value, db=self._producers) is None:
                    row_count += 1
                if has_open:
                    transaction.put(key, b"", db=self._producers_open)
                else:
                    transaction.delete(key, db=self._producers_open)
            transaction.put(prefix, sealed(_HEAD.pack(offset, row_count)), db=self._heads)
            transaction.put(prefix, sealed(aborts), db=self._aborts)

        self._within(write, write=True)

    def read_abort_files(self, topic_id: str, partition: int) -> list[tuple[int, int, int]]:
        """What write_rows was last told of the partition's .txnindex files."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)

        def read(transaction: lmdb.Transaction) -> list[tuple[int, int, int]]:
            value = transaction.get(prefix, db=self._aborts)
            return [] if value is None else list(_ABORT_FILE.iter_unpack(checked(value)))

        return self._within(read, write=False)

    def open_producer_ids(self, topic_id: str, partition: int) -> list[int]:
        """The producers of a partition whose rows have an open transaction."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)

        def read(transaction: lmdb.Transaction) -> list[int]:
            keys = self._some_keys(transaction, self._producers_open, prefix, None)
            return [_KEY.unpack(key)[2] for key in keys]

        return self._within(read, write=False)

    def delete_producers(self, topic_id: str, partition: int, producer_ids: Iterable[int]) -> None:
        """Forget producers of a partition that expired; durable."""
        identity = id_bytes(topic_id)
        keys = [_KEY.pack(identity, partition, producer_id) for producer_id in producer_ids]
        prefix = _PREFIX.pack(identity, partition)

        def write(transaction: lmdb.Transaction) -> None:
            head = self._head(transaction, prefix)
            gone = 0
            for key in keys:
                gone += transaction.delete(key, db=self._producers)
                transaction.delete(key, db=self._producers_open)
            if head is not None and gone:  # A transaction without a change costs no sync.
                left = _HEAD.pack(head.offset, max(0, head.row_count - gone))
                transaction.put(prefix, sealed(left), db=self._heads)

        if keys:
            self._within(write, write=True)

    def delete_partition(self, topic_id: str, partition: int) -> None:
        """Forget all rows of a partition: they are untrue, or the partition is gone; durable."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)

        def forget_head(transaction: lmdb.Transaction) -> None:
            transaction.delete(prefix, db=self._heads)
            transaction.delete(prefix, db=self._aborts)

        def forget_some(transaction: lmdb.Transaction) -> int:
            keys = self._some_keys(transaction, self._producers, prefix, ROWS_PER_TRANSACTION)
            for key in keys:
                transaction.delete(key, db=self._producers)
                transaction.delete(key, db=self._producers_open)
            return len(keys)

        # The head first: rows without one are not believed.
        self._within(forget_head, write=True)
        while self._within(forget_some, write=True) == ROWS_PER_TRANSACTION:
            pass

    def producer_rows(self) -> int:
        """How many rows there are, over all partitions."""

        def count(transaction: lmdb.Transaction) -> int:
            return int(transaction.stat(self._producers)["entries"])

        return self._within(count, write=False)

    # The index of the internal log.

    def clear_states(self) -> None:
        """Forget the whole index; durable."""

        def write(transaction: lmdb.Transaction) -> None:
            for database in (self._state, self._applied, self._undecided):
                transaction.drop(database, delete=False)

        self._within(write, write=True)

    def read_state(self, key: bytes) -> bytes | None:
        """The newest value of a key of the internal log, as far as the index is true."""

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(key, db=self._state)
            return None if value is None else checked(value)

        return self._within(read, write=False)

    def read_states(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All keys that begin with `prefix`, and their newest values."""

        def read(transaction: lmdb.Transaction) -> list[tuple[bytes, bytes]]:
            found = []
            with transaction.cursor(db=self._state) as cursor:
                if cursor.set_range(prefix):
                    for key, value in cursor:
                        if not bytes(key).startswith(prefix):
                            break
                        found.append((bytes(key), checked(value)))
            return found

        return self._within(read, write=False)

    def states_after(self, prefix: bytes, key: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Up to `count` keys that begin with `prefix`, from `key` on, and their newest values."""

        def read(transaction: lmdb.Transaction) -> list[tuple[bytes, bytes]]:
            found: list[tuple[bytes, bytes]] = []
            with transaction.cursor(db=self._state) as cursor:
                if cursor.set_range(key):
                    for one, value in cursor:
                        if len(found) == count or not bytes(one).startswith(prefix):
                            break
                        found.append((bytes(one), checked(value)))
            return found

        return self._within(read, write=False)

    def read_undecided(self) -> list[bytes]:
        """The keys of the transactions that are not complete, as far as the index is true."""

        def read(transaction: lmdb.Transaction) -> list[bytes]:
            return self._some_keys(transaction, self._undecided, b"", None)

        return self._within(read, write=False)

    def read_applied(self, partition: int) -> int | None:
        """Up to which offset of a partition of the internal log the index is true."""
        offsets = self._applied_of(partition)
        return None if offsets is None else offsets[0]

    def read_reached(self, partition: int) -> int | None:
        """Below which offset the records are that the index tells of; some may be newer than what
        it is true at.
        """
        offsets = self._applied_of(partition)
        return None if offsets is None else offsets[-1]

    def _applied_of(self, partition: int) -> tuple[int, ...] | None:
        def read(transaction: lmdb.Transaction) -> tuple[int, ...] | None:
            value = transaction.get(b"%d" % partition, db=self._applied)
            if value is None:
                return None
            content = checked(value)
            # Older versions wrote one offset, which was both.
            layout = _OFFSETS if len(content) == _OFFSETS.size else _OFFSET
            return layout.unpack(content)

        return self._within(read, write=False)

    def write_states(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        applied: Iterable[tuple[int, int]],
        reached: Mapping[int, int] = MappingProxyType({}),
        undecided: Mapping[bytes, bool] = MappingProxyType({}),
    ) -> None:
        """Put newest values in, with the offsets of the internal log they are true at; durable.

        None takes a key out. `reached` has the partitions of which newer records are among the
        changes; `undecided` says of a transaction's key whether it is.
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
                    transaction.delete(key, db=self._state)
                else:
                    transaction.put(key, value, db=self._state)
            for key, is_undecided in undecided.items():
                if is_undecided:
                    transaction.put(key, b"", db=self._undecided)
                else:
                    transaction.delete(key, db=self._undecided)
            for key, value in offsets:
                transaction.put(key, value, db=self._applied)

        self._within(write, write=True)

    # The state of groups' offsets; see `GroupOffsetsIndex`.

    def with_group_offsets(
        self,
        work: Callable[[lmdb.Transaction, Any], _Result],
        *,
        write: bool,
        generation: int | None = None,
    ) -> _Result:
        """Do something in one transaction: `work(transaction, database)`; durable.

        With a `generation` only in that one: else StateStoreDamagedError, as if it were lost now.
        """

        def checked_work(transaction: lmdb.Transaction) -> _Result:
            if generation is not None and generation != self.generation:
                raise StateStoreDamagedError(f"{self.path} was begun anew meanwhile")
            return work(transaction, self._group_offsets)

        return self._within(checked_work, write=write)

    # How the last process closed the store.

    def read_session(self) -> bytes | None:
        """The mark of the last clean close that this environment knows of."""

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(_SESSION_KEY, db=self._session)
            return None if value is None else checked(value)

        return self._within(read, write=False)

    def write_session(self, session: bytes) -> None:
        """Mark a clean close; durable."""

        def write(transaction: lmdb.Transaction) -> None:
            transaction.put(_SESSION_KEY, sealed(session), db=self._session)

        self._within(write, write=True)

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        with self._lock:
            if self._environment is not None:
                self._environment.close()
                self._environment = None

    # The environment.

    def _open(self) -> None:
        try:
            with named_os_errors(f"opening {self.path}"):
                if self.path.exists() and not self.path.is_dir():
                    self.path.unlink()
                self._open_environment()
        except lmdb.DiskError as error:
            full = os.strerror(errno.ENOSPC) in str(error)
            kind = StoreFullError if full else StoreFailedError
            raise kind(f"opening {self.path}: {error}") from error
        except (lmdb.Error, _CorruptRowError):
            self._begin_anew()

    def _open_environment(self) -> None:
        existing = self.path / "data.mdb"
        file_bytes = existing.stat().st_size if existing.exists() else 0
        if 0 < file_bytes < _META_BYTES:
            raise _CorruptRowError(f"the file ends at byte {file_bytes}, within its head")
        map_bytes = max(MAP_BYTES_INITIAL, file_bytes)
        self.path.mkdir(parents=True, exist_ok=True)
        environment = lmdb.open(
            str(self.path), map_size=map_bytes, max_dbs=16, max_readers=16, subdir=True, lock=True
        )
        self._environment = environment
        # LMDB maps the file: a page beyond its end, when touched, would kill the process.
        page_bytes = int(environment.stat()["psize"])
        if file_bytes and file_bytes < (int(environment.info()["last_pgno"]) + 1) * page_bytes:
            raise _CorruptRowError(f"the file ends at byte {file_bytes}, before its last page")
        self._producers = environment.open_db(b"producers")
        self._producers_open = environment.open_db(b"open")
        self._heads = environment.open_db(b"rows")
        self._aborts = environment.open_db(b"aborts")
        self._state = environment.open_db(b"state")
        self._applied = environment.open_db(b"applied")
        self._undecided = environment.open_db(b"undecided")
        self._session = environment.open_db(b"session")
        self._group_offsets = environment.open_db(b"group-offsets")

    def _begin_anew(self) -> None:
        """Drop an environment that cannot be read: the log still has all that it held."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None
        with named_os_errors(f"replacing {self.path}"):
            if self.path.is_dir() and not self.path.is_symlink():
                shutil.rmtree(self.path)
            elif self.path.exists() or self.path.is_symlink():
                self.path.unlink()
        self.generation += 1
        self._open_environment()

    def _within(self, work: Callable[[lmdb.Transaction], _Result], *, write: bool) -> _Result:
        with self._lock:
            while True:
                environment = self._environment
                if environment is None:
                    raise LogClosedError(f"{self.path} is closed")
                try:
                    with environment.begin(write=write) as transaction:
                        return work(transaction)
                except lmdb.MapFullError:
                    environment.set_mapsize(2 * int(environment.info()["map_size"]))
                except lmdb.MapResizedError:
                    environment.set_mapsize(0)
                except lmdb.DiskError as error:
                    raise StoreFullError(f"writing {self.path}: {error}") from error
                except (lmdb.Error, _CorruptRowError) as error:
                    if isinstance(error, lmdb.Error) and self._disk_is_full():
                        # LMDB takes a page that was written in part for damage.
                        raise StoreFullError(f"writing {self.path}: {error}") from error
                    self._begin_anew()
                    raise StateStoreDamagedError(
                        f"{self.path} was damaged ({error}); what it held comes from the log when "
                        "the store is opened again"
                    ) from error

    def _disk_is_full(self) -> bool:
        try:
            left = os.statvfs(self.path)
        except OSError:
            return False
        return left.f_bavail * left.f_frsize < _LEFT_BYTES_MIN

    def _head(self, transaction: lmdb.Transaction, prefix: bytes) -> RowsHead | None:
        value = transaction.get(prefix, db=self._heads)
        return None if value is None else RowsHead(*_HEAD.unpack(checked(value)))

    def _rows_of(
        self, transaction: lmdb.Transaction, prefix: bytes, first: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        with transaction.cursor(db=self._producers) as cursor:
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


class _CorruptRowError(Exception):
    """A value does not match its checksum."""


def sealed(value: bytes) -> bytes:
    """A value with its checksum before it, as it is put in."""
    return _CHECKSUM.pack(zlib.crc32(value)) + value


def checked(found: bytes | memoryview) -> bytes:
    """The value that was put in. Where it does not match its checksum, all counts as damaged."""
    value = bytes(found[_CHECKSUM.size :])
    if len(found) < _CHECKSUM.size or _CHECKSUM.unpack_from(found)[0] != zlib.crc32(value):
        raise _CorruptRowError("a value does not match its checksum")
    return value
