"""What `durable.py` compares: durable commits by a bare file, by other stores, and by eoslog.

    python benches/durable_works.py WORK FOLDER NUMBER

Commits as one of the processes of a work, numbered from 0, in the folder that they share, as the
lines of its standard input say; each answer is a line of JSON. Moments are those of
CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import lmdb
from bench_durable import SyncedFile
from bench_transactions import transactional_producer
from logs import (
    BATCH_RECORDS,
    KB,
    TOPIC,
    arrow_values,
    encoded_batches,
    random_values,
    renew_segments,
)
from process_child import wait_until

import eoslog
from eoslog.store.store import engine_of

MIB = 1 << 20
BLOCK_BYTES = 4096
FILLED_BYTES = 64 * MIB
SMALL_BYTES = 100
WIDE_PARTITIONS = 50
SEGMENT_BYTES = 64 * MIB  # About what a turn of large commits appends at most.
TURNS = 4  # Of each work in a round.
LARGE_BYTES = 256 * MIB  # What a round of large commits appends at most.
MAP_BYTES = 64 << 30
VALUES = 16
HAS_ROCKSDB = find_spec("rocksdict") is not None

Commit = Callable[[], object]


class Contender(Protocol):
    """One store or file, as one process has it open."""

    def commit_of(self, number: int) -> Commit:
        """The commit that one thread calls, of all threads of the work's processes."""

    def check(self, number: int, commit_count: int) -> None:
        """Assert that it holds what this thread committed from the beginning."""

    def renew(self, is_round_over: bool) -> None:
        """Remove what was written, after a turn of large commits."""

    def close(self) -> None: ...


def records(value_bytes: int = KB) -> Iterator[tuple[bytes, bytes]]:
    """Keys of 8 bytes that rise, and random values, without end."""
    values = [row.tobytes() for row in random_values(value_bytes, VALUES)]
    for index in itertools.count():
        yield key_of(index), values[index % VALUES]


def key_of(index: int) -> bytes:
    return index.to_bytes(8, "big")


class FilledFiles:
    """Files that were written and synced before; a commit writes to each and syncs it, in turn."""

    def __init__(self, folder: Path, *, count: int = 1, large: bool = False) -> None:
        filled_bytes = LARGE_BYTES if large else FILLED_BYTES
        self._files = [SyncedFile(folder / f"file-{one}", filled_bytes) for one in range(count)]
        self._blocks = large_batches() if large else blocks()

    def commit_of(self, number: int) -> Commit:
        files, blocks = self._files, self._blocks

        def commit() -> None:
            block = next(blocks)
            for file in files:
                file.append(block)

        return commit

    def check(self, number: int, commit_count: int) -> None:
        pass

    def renew(self, is_round_over: bool) -> None:
        pass

    def close(self) -> None:
        for file in self._files:
            file.close()


def blocks() -> Iterator[bytes]:
    """Each record on a block of its own."""
    for key, value in records():
        yield (key + value).ljust(BLOCK_BYTES, b"\0")


def large_batches() -> Iterator[bytes]:
    """The log's own bytes of 1,000 records."""
    return itertools.cycle(encoded_batches([large_column()]))


def large_column() -> Any:
    return arrow_values(random_values(KB, BATCH_RECORDS))


class GrowingFile:
    """A file that grows with each commit."""

    def __init__(self, folder: Path, *, large: bool = False) -> None:
        self._path = folder / "file"
        self._file = self._create()
        self._data = large_batches() if large else (key + value for key, value in records())

    def _create(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def commit_of(self, number: int) -> Commit:
        def commit() -> None:
            os.write(self._file, next(self._data))
            os.fdatasync(self._file)

        return commit

    def check(self, number: int, commit_count: int) -> None:
        pass

    def renew(self, is_round_over: bool) -> None:
        if is_round_over:
            self.close()
            self._path.unlink()
            self._file = self._create()

    def close(self) -> None:
        os.close(self._file)


class KeyValueStore:
    """A store of others: a commit puts one record, or many."""

    def __init__(self, folder: Path, *, record_count: int = 1) -> None:
        self._folder = folder / "store"
        self._record_count = record_count
        self._records = records()
        self.open(self._folder)

    def open(self, folder: Path) -> None:
        raise NotImplementedError

    def put(self, key: bytes, value: bytes) -> None:
        """Commit one record."""
        raise NotImplementedError

    def put_all(self, group: list[tuple[bytes, bytes]]) -> None:
        """Commit records together."""
        raise NotImplementedError

    def last_key(self, expected: bytes) -> bytes | None:
        """The last key, where the store is asked for one that is expected."""
        raise NotImplementedError

    def commit_of(self, number: int) -> Commit:
        if self._record_count == 1:
            return lambda: self.put(*next(self._records))
        return lambda: self.put_all(list(itertools.islice(self._records, self._record_count)))

    def check(self, number: int, commit_count: int) -> None:
        expected = key_of(commit_count * self._record_count - 1)
        assert self.last_key(expected) == expected

    def renew(self, is_round_over: bool) -> None:
        if is_round_over:
            self.close()
            shutil.rmtree(self._folder)
            self.open(self._folder)

    def close(self) -> None:
        raise NotImplementedError


class Sqlite(KeyValueStore):
    """SQLite in WAL mode with synchronous FULL; Python keeps the statement prepared."""

    INSERT = "INSERT INTO records (key, value) VALUES (?, ?)"

    def open(self, folder: Path) -> None:
        folder.mkdir()
        # No transaction that Python begins: an insert alone is one.
        self._connection = sqlite3.connect(folder / "records.db", isolation_level=None)
        assert self._connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE records (id INTEGER PRIMARY KEY, key BLOB, value BLOB)"
        )

    def put(self, key: bytes, value: bytes) -> None:
        self._connection.execute(self.INSERT, (key, value))

    def put_all(self, group: list[tuple[bytes, bytes]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(self.INSERT, group)
        self._connection.execute("COMMIT")

    def last_key(self, expected: bytes) -> bytes | None:
        return self._connection.execute(
            "SELECT key FROM records ORDER BY id DESC LIMIT 1"
        ).fetchone()[0]

    def close(self) -> None:
        self._connection.close()


class Lmdb(KeyValueStore):
    """LMDB, synced; keys are appended."""

    def open(self, folder: Path) -> None:
        self._environment = lmdb.open(str(folder), map_size=MAP_BYTES)

    def put(self, key: bytes, value: bytes) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(key, value, append=True)

    def put_all(self, group: list[tuple[bytes, bytes]]) -> None:
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(group, append=True)

    def last_key(self, expected: bytes) -> bytes | None:
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            return cursor.key() if cursor.last() else None

    def close(self) -> None:
        self._environment.close()


class RocksDB(KeyValueStore):
    """RocksDB, its log synced by each write."""

    def open(self, folder: Path) -> None:
        # Not installed everywhere.
        from rocksdict import Options, Rdict, WriteBatch, WriteOptions

        self._database = Rdict(str(folder), Options(raw_mode=True))
        synced = WriteOptions()
        synced.sync = True
        self._database.set_write_options(synced)
        self._synced = synced
        self._new_batch = partial(WriteBatch, raw_mode=True)

    def put(self, key: bytes, value: bytes) -> None:
        self._database.put(key, value)

    def put_all(self, group: list[tuple[bytes, bytes]]) -> None:
        batch = self._new_batch()
        for key, value in group:
            batch.put(key, value)
        self._database.write(batch, self._synced)

    def last_key(self, expected: bytes) -> bytes | None:
        return expected if expected in self._database else None

    def close(self) -> None:
        self._database.close()


class Log:
    """A store of eoslog with one topic."""

    def __init__(
        self,
        folder: Path,
        *,
        commit_of: Callable[[eoslog.Store, int], Commit],
        partitions: int = 1,
        durability: str = "commit",
        offsets_each: int = 2,  # With the marker.
        recycled: bool = True,
    ) -> None:
        self._store = eoslog.open(
            folder / "store",
            create=True,
            durability=durability,
            config={"eoslog.spare.segments": int(recycled)},
        )
        self._store.create_topic(TOPIC, partitions, {"segment.bytes": SEGMENT_BYTES}, exist_ok=True)
        self._commit_of = commit_of
        self._offsets_each = offsets_each
        self._recycled = recycled

    def commit_of(self, number: int) -> Commit:
        return self._commit_of(self._store, number)

    def check(self, number: int, commit_count: int) -> None:
        partition = self._store.partition(TOPIC, number)
        expected = commit_count * self._offsets_each
        assert partition.last_stable_offset == partition.log_end_offset == expected

    def renew(self, is_round_over: bool) -> None:
        partition = engine_of(self._store).partition(TOPIC, 0)
        if self._recycled:
            # At once, before the store makes a new file for the next segment.
            renew_segments(partition)
        else:
            partition.delete_segments(partition.log_end_offset)

    def close(self) -> None:
        self._store.close()


def transaction_of_one(store: eoslog.Store, number: int) -> Commit:
    """One record in a durable transaction, by an id and in a partition of its own."""
    producer = transactional_producer(store, f"bench-{number}")
    following = records()

    def commit() -> None:
        key, value = next(following)
        with producer.transaction():
            producer.send(TOPIC, value, key=key, partition=number)

    return commit


def append_of_one(store: eoslog.Store, number: int) -> Commit:
    """One record in a durable append."""
    producer = store.producer()
    following = records()

    def commit() -> None:
        key, value = next(following)
        producer.append(TOPIC, number, [value], [key])

    return commit


def wide_transaction(
    store: eoslog.Store, number: int, *, partitions: int, value_bytes: int
) -> Commit:
    """One record to each of many partitions in a durable transaction."""
    producer = transactional_producer(store)
    following = records(value_bytes)

    def commit() -> None:
        with producer.transaction():
            for partition in range(partitions):
                key, value = next(following)
                producer.send(TOPIC, value, key=key, partition=partition)

    return commit


def transaction_of_column(store: eoslog.Store, number: int) -> Commit:
    """1,000 records in a durable transaction, as a column."""
    producer = transactional_producer(store)
    column = large_column()

    def commit() -> None:
        with producer.transaction():
            producer.append(TOPIC, 0, column)

    return commit


def transaction_of_sends(store: eoslog.Store, number: int) -> Commit:
    """1,000 records in a durable transaction, one by one."""
    producer = transactional_producer(store)
    values = [row.tobytes() for row in random_values(KB, BATCH_RECORDS)]

    def commit() -> None:
        with producer.transaction():
            for value in values:
                producer.send(TOPIC, value, partition=0)

    return commit


@dataclass(frozen=True)
class Work:
    """One row of the table."""

    what: str
    make: Callable[[Path], Contender]
    beside: str = "bare"  # The work whose rate of the same round its own is divided by.
    threads: int = 1
    processes: int = 1
    commit_bytes: int = KB  # Of values.

    @property
    def commits_max(self) -> int:
        """How many commits a turn may have: large ones would fill the disk."""
        return LARGE_BYTES // TURNS // self.commit_bytes if self.is_large else sys.maxsize

    @property
    def is_large(self) -> bool:
        return self.commit_bytes == KB * BATCH_RECORDS


def committers(what: str, make: Callable[..., Contender], name: str) -> dict[str, Work]:
    """The works of one record a commit, by more and more threads and by processes."""
    works = {}
    for threads in (1, 4, 16, 32):
        said = f"{what}, {threads} thread{'s' if threads > 1 else ''}"
        made = partial(make, partitions=threads)
        works[f"{name}_{threads}"] = Work(said, made, threads=threads)
    made = partial(make, partitions=8)
    works[f"{name}_8_processes"] = Work(f"{what}, 8 processes", made, processes=8)
    return works


def wide(partitions: int, value_bytes: int) -> Work:
    said = f"{partitions} partition{'s' if partitions > 1 else ''}"
    commit_of = partial(wide_transaction, partitions=partitions, value_bytes=value_bytes)
    return Work(
        f"eoslog, transaction of {value_bytes:,} bytes to each of {said}",
        partial(Log, commit_of=commit_of, partitions=partitions),
        commit_bytes=partitions * value_bytes,
    )


def large(what: str, make: Callable[..., Contender], **options: Any) -> Work:
    """A work of 1,000 records a commit."""
    return Work(
        f"1,000 records: {what}",
        partial(make, **options),
        beside="growing_1000",
        commit_bytes=KB * BATCH_RECORDS,
    )


def large_log(what: str, commit_of: Callable[..., Commit], *, recycled: bool) -> Work:
    return large(
        f"eoslog, transaction by {what}, {'recycled' if recycled else 'new'} segments",
        Log,
        commit_of=commit_of,
        offsets_each=BATCH_RECORDS + 1,
        recycled=recycled,
    )


WORKS: dict[str, Work] = {
    "bare": Work("`pwrite` and `fdatasync` of a filled file, 4 KiB", FilledFiles),
    "two_files": Work("the same, two files in turn", partial(FilledFiles, count=2)),
    "growing": Work("`write` and `fdatasync` of a growing file", GrowingFile),
    "sqlite": Work("SQLite, WAL, FULL", Sqlite),
    "lmdb": Work("LMDB", Lmdb),
    "rocksdb": Work("RocksDB, log synced", RocksDB),
    **committers("eoslog, transaction", partial(Log, commit_of=transaction_of_one), "transaction"),
    **committers(
        "eoslog, append in `always`",
        partial(Log, commit_of=append_of_one, durability="always", offsets_each=1),
        "append",
    ),
    "wide_1": wide(1, SMALL_BYTES),
    "wide_50": wide(WIDE_PARTITIONS, SMALL_BYTES),
    "wide_50_1kb": wide(WIDE_PARTITIONS, KB),
    "growing_1000": large("`write` and `fdatasync` of a growing file", GrowingFile, large=True),
    "filled_1000": large("`pwrite` and `fdatasync` of a filled file", FilledFiles, large=True),
    "sqlite_1000": large("SQLite, WAL, FULL", Sqlite, record_count=BATCH_RECORDS),
    "lmdb_1000": large("LMDB", Lmdb, record_count=BATCH_RECORDS),
    "rocksdb_1000": large("RocksDB, log synced", RocksDB, record_count=BATCH_RECORDS),
    "column_new": large_log("a column", transaction_of_column, recycled=False),
    "column_recycled": large_log("a column", transaction_of_column, recycled=True),
    "sends_new": large_log("`send`", transaction_of_sends, recycled=False),
    "sends_recycled": large_log("`send`", transaction_of_sends, recycled=True),
}
if not HAS_ROCKSDB:
    del WORKS["rocksdb"], WORKS["rocksdb_1000"]


class Child:
    """The threads of one process of a work."""

    def __init__(self, work: Work, folder: Path, process: int) -> None:
        self.contender = work.make(folder)
        self._work = work
        first = process * work.threads
        self._numbers = range(first, first + work.threads)
        self._commits = [self.contender.commit_of(number) for number in self._numbers]
        self._counts = [0] * work.threads

    def run(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Commit between two moments: how long each commit took, and all together."""
        latencies_ns: list[list[int]] = [[] for _ in self._commits]
        arguments = [
            (commit, start_ns, end_ns, self._work.commits_max, mine)
            for commit, mine in zip(self._commits, latencies_ns, strict=True)
        ]
        if len(arguments) == 1:
            commit_until(*arguments[0])
        else:
            threads = [threading.Thread(target=commit_until, args=one) for one in arguments]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        done_ns = time.perf_counter_ns()
        for index, mine in enumerate(latencies_ns):
            self._counts[index] += len(mine)
        taken_ns = [one for mine in latencies_ns for one in mine]
        return {"seconds": (done_ns - start_ns) / 1e9, "latencies_ns": taken_ns}

    def syncs(self) -> int:
        """How many calls waited for the disk, where the counter is preloaded."""
        return int(ctypes.CDLL(None).sync_count())

    def renew(self, is_round_over: int) -> None:
        """Check what the turn left, and remove what is large."""
        for number, count in zip(self._numbers, self._counts, strict=True):
            if count > 0:
                self.contender.check(number, count)
        if self._work.is_large:
            self.contender.renew(bool(is_round_over))


def commit_until(
    commit: Commit, start_ns: int, end_ns: int, commits_max: int, latencies_ns: list[int]
) -> None:
    wait_until(start_ns)
    begun_ns = time.perf_counter_ns()
    while begun_ns < end_ns and len(latencies_ns) < commits_max:
        commit()
        done_ns = time.perf_counter_ns()
        latencies_ns.append(done_ns - begun_ns)
        begun_ns = done_ns


COMMANDS: dict[str, Callable[..., Any]] = {
    method.__name__: method for method in (Child.run, Child.syncs, Child.renew)
}


def main() -> None:
    child = Child(WORKS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]))
    with closing(child.contender):
        print("null", flush=True)
        for line in sys.stdin:
            name, *numbers = line.split()
            print(json.dumps(COMMANDS[name](child, *map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
