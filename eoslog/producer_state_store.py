"""LMDB behind the log: what can be rebuilt from it, kept so that opening need not read it.

- producers: topic id, partition, producer id -> the engine's row of that producer;
- rows: topic id, partition -> the offset up to which the partition's rows are true, and how many
  rows there are;
- state: the newest record of each key of the internal log, and per partition of it the offset up
  to which that is true;
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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import lmdb

from eoslog.errors import LogClosedError, StoreFailedError, StoreFullError
from eoslog.kafka_uuid import id_bytes
from eoslog.os_errors import named_os_errors

DIRECTORY_NAME = "lmdb"
MAP_BYTES_INITIAL = 16 << 20
ROWS_PER_TRANSACTION = 50_000
_META_BYTES = 2 * mmap.PAGESIZE  # LMDB keeps two heads, a page each.

_KEY = struct.Struct(">16siQ")
_PREFIX = struct.Struct(">16si")
_HEAD = struct.Struct(">qq")
_OFFSET = struct.Struct(">q")
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
            return None if value is None else _checked(value)

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
        self, topic_id: str, partition: int, rows: bytes, row_bytes: int, offset: int
    ) -> None:
        """Put rows in, and say that all rows of the partition are true at `offset`; durable."""
        identity = id_bytes(topic_id)
        keyed = [
            (
                _KEY.pack(identity, partition, _ROW_PRODUCER_ID.unpack_from(rows, at)[0]),
                _sealed(rows[at : at + row_bytes]),
            )
            for at in range(0, len(rows), row_bytes)
        ]

        prefix = _PREFIX.pack(identity, partition)

        def write(transaction: lmdb.Transaction) -> None:
            head = self._head(transaction, prefix)
            row_count = 0 if head is None else head.row_count
            for key, value in keyed:
                if transaction.replace(key, value, db=self._producers) is None:
                    row_count += 1
            transaction.put(prefix, _sealed(_HEAD.pack(offset, row_count)), db=self._heads)

        self._within(write, write=True)

    def delete_producers(self, topic_id: str, partition: int, producer_ids: Iterable[int]) -> None:
        """Forget producers of a partition that expired; durable."""
        identity = id_bytes(topic_id)
        keys = [_KEY.pack(identity, partition, producer_id) for producer_id in producer_ids]
        prefix = _PREFIX.pack(identity, partition)

        def write(transaction: lmdb.Transaction) -> None:
            head = self._head(transaction, prefix)
            gone = sum(transaction.delete(key, db=self._producers) for key in keys)
            if head is not None and gone:  # A transaction without a change costs no sync.
                left = _HEAD.pack(head.offset, max(0, head.row_count - gone))
                transaction.put(prefix, _sealed(left), db=self._heads)

        if keys:
            self._within(write, write=True)

    def delete_partition(self, topic_id: str, partition: int) -> None:
        """Forget all rows of a partition: they are untrue, or the partition is gone; durable."""
        prefix = _PREFIX.pack(id_bytes(topic_id), partition)

        def forget_head(transaction: lmdb.Transaction) -> None:
            transaction.delete(prefix, db=self._heads)

        def forget_some(transaction: lmdb.Transaction) -> int:
            keys = self._some_keys(transaction, prefix, ROWS_PER_TRANSACTION)
            for key in keys:
                transaction.delete(key, db=self._producers)
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
            transaction.drop(self._state, delete=False)
            transaction.drop(self._applied, delete=False)

        self._within(write, write=True)

    def read_state(self, key: bytes) -> bytes | None:
        """The newest value of a key of the internal log, as far as the index is true."""

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(key, db=self._state)
            return None if value is None else _checked(value)

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
                        found.append((bytes(key), _checked(value)))
            return found

        return self._within(read, write=False)

    def read_applied(self, partition: int) -> int | None:
        """Up to which offset of a partition of the internal log the index is true."""

        def read(transaction: lmdb.Transaction) -> int | None:
            value = transaction.get(b"%d" % partition, db=self._applied)
            return None if value is None else int(_OFFSET.unpack(_checked(value))[0])

        return self._within(read, write=False)

    def write_states(
        self, changes: Iterable[tuple[bytes, bytes]], applied: Iterable[tuple[int, int]]
    ) -> None:
        """Put newest values in, with the offsets of the internal log they are true at; durable."""
        values = [(key, _sealed(value)) for key, value in changes]
        offsets = [(b"%d" % number, _sealed(_OFFSET.pack(offset))) for number, offset in applied]

        def write(transaction: lmdb.Transaction) -> None:
            for key, value in values:
                transaction.put(key, value, db=self._state)
            for key, value in offsets:
                transaction.put(key, value, db=self._applied)

        self._within(write, write=True)

    def read_session(self) -> bytes | None:
        """The mark of the last clean close that this environment knows of."""

        def read(transaction: lmdb.Transaction) -> bytes | None:
            value = transaction.get(_SESSION_KEY, db=self._session)
            return None if value is None else _checked(value)

        return self._within(read, write=False)

    def write_session(self, session: bytes) -> None:
        """Mark a clean close; durable."""

        def write(transaction: lmdb.Transaction) -> None:
            transaction.put(_SESSION_KEY, _sealed(session), db=self._session)

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
            str(self.path), map_size=map_bytes, max_dbs=8, max_readers=16, subdir=True, lock=True
        )
        self._environment = environment
        # LMDB maps the file: a page beyond its end, when touched, would kill the process.
        page_bytes = int(environment.stat()["psize"])
        if file_bytes and file_bytes < (int(environment.info()["last_pgno"]) + 1) * page_bytes:
            raise _CorruptRowError(f"the file ends at byte {file_bytes}, before its last page")
        self._producers = environment.open_db(b"producers")
        self._heads = environment.open_db(b"rows")
        self._state = environment.open_db(b"state")
        self._applied = environment.open_db(b"applied")
        self._session = environment.open_db(b"session")

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
                    self._begin_anew()
                    raise StateStoreDamagedError(
                        f"{self.path} was damaged ({error}); what it held comes from the log when "
                        "the store is opened again"
                    ) from error

    def _head(self, transaction: lmdb.Transaction, prefix: bytes) -> RowsHead | None:
        value = transaction.get(prefix, db=self._heads)
        return None if value is None else RowsHead(*_HEAD.unpack(_checked(value)))

    def _rows_of(
        self, transaction: lmdb.Transaction, prefix: bytes, first: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        with transaction.cursor(db=self._producers) as cursor:
            if not cursor.set_range(first):
                return
            for key, value in cursor:
                if not bytes(key).startswith(prefix):
                    return
                yield bytes(key), _checked(value)

    def _some_keys(self, transaction: lmdb.Transaction, prefix: bytes, count: int) -> list[bytes]:
        keys: list[bytes] = []
        with transaction.cursor(db=self._producers) as cursor:
            if cursor.set_range(prefix):
                for key in cursor.iternext(keys=True, values=False):
                    if len(keys) == count or not bytes(key).startswith(prefix):
                        break
                    keys.append(bytes(key))
        return keys


class _CorruptRowError(Exception):
    """A value does not match its checksum."""


def _sealed(value: bytes) -> bytes:
    return _CHECKSUM.pack(zlib.crc32(value)) + value


def _checked(sealed: bytes | memoryview) -> bytes:
    value = bytes(sealed[_CHECKSUM.size :])
    if len(sealed) < _CHECKSUM.size or _CHECKSUM.unpack_from(sealed)[0] != zlib.crc32(value):
        raise _CorruptRowError("a value does not match its checksum")
    return value
