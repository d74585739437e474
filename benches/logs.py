"""Logs and stores as the benches use them, and the data that fills them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy
import pyarrow

import eoslog
from eoslog.bindings.partition_log import PartitionLog
from eoslog.bindings.record_batch import BatchEncoder

TOPIC = "bench"
BATCH_RECORDS = 1000
KB = 1024
CONFIG = {
    "segment.bytes": 1 << 30,
    "segment.ms": 604_800_000,
    "segment.index.bytes": 10_485_760,
    "index.interval.bytes": 4096,
    "max.message.bytes": 1_048_588,
    "eoslog.spare.segments": 1,
}


class Recycled(Protocol):
    """What can go on forever in the same few files: the engine's log, or a store's partition."""

    @property
    def log_end_offset(self) -> int: ...

    def delete_segments(self, up_to_offset: int) -> int: ...

    def prepare_spare(self) -> int: ...


def renew_segments(log: Recycled) -> None:
    """Give the full segments' files back and make them usable, as retention does in time."""
    log.delete_segments(log.log_end_offset)
    log.prepare_spare()


def random_values(value_bytes: int, count: int = BATCH_RECORDS, seed: int = 1) -> numpy.ndarray:
    """`count` random values as the rows of a uint8 array."""
    generator = numpy.random.default_rng(seed)
    return generator.integers(0, 256, (count, value_bytes), numpy.uint8)


def arrow_values(rows: numpy.ndarray) -> pyarrow.Array:
    """Rows of bytes as an Arrow binary column."""
    count, value_bytes = rows.shape
    offsets = numpy.arange(0, (count + 1) * value_bytes, value_bytes, numpy.int32)
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(rows.tobytes())]
    return pyarrow.Array.from_buffers(pyarrow.binary(), count, buffers)


def arrow_batches(value_bytes: int, distinct: int) -> list[pyarrow.Array]:
    """Columns of BATCH_RECORDS values each, all different."""
    return [arrow_values(random_values(value_bytes, seed=seed)) for seed in range(distinct)]


def encoded_batches(columns: list[Any]) -> list[bytes]:
    """The bytes that the log holds for each column."""
    encoder = BatchEncoder()
    return [bytes(encoder.encode_columns(column, timestamp_ms=1)) for column in columns]


@contextmanager
def engine_log(root: Path, **config: int) -> Iterator[PartitionLog]:
    """The engine's log alone, in `root`; closed without the work of a clean stop."""
    log = open_engine_log(root, **config)
    log.restore_producers(None, 0)
    yield log
    log.close(clean=False)


def open_engine_log(
    root: Path, *, clean: bool = True, recovery_point: int = 0, **config: int
) -> PartitionLog:
    """Open the engine's log in `root`; names in `config` have _ for the dots."""
    given = {name.replace("_", "."): number for name, number in config.items()}
    (root / f"{TOPIC}-0").mkdir(parents=True, exist_ok=True)
    return PartitionLog(
        str(root / f"{TOPIC}-0"),
        topic=TOPIC,
        partition=0,
        control_path=str(root / "control" / f"{TOPIC}-0"),
        spare_path=str(root / "spare"),
        cut_path=str(root / "cut"),
        config=CONFIG | given,
        clean=clean,
        recovery_point=recovery_point,
    )


@contextmanager
def open_store(
    root: Path, *, segment_bytes: int, partitions: int = 1, durability: str = "process"
) -> Iterator[Any]:
    """A new store with one topic, TOPIC."""
    with eoslog.open(root, create=True, durability=durability) as store:
        store.create_topic(TOPIC, partitions=partitions, config={"segment.bytes": segment_bytes})
        yield store


def fill(append: Callable[[Any], Any], columns: list[Any], total_bytes: int) -> int:
    """Append the columns in turn until so many bytes of values are in; how many records."""
    column_bytes = columns[0].nbytes
    count = max(1, total_bytes // column_bytes)
    for index in range(count):
        append(columns[index % len(columns)])
    return count * len(columns[0])


class PlainFile:
    """The peer of an append: write() of the log's own bytes to a new file, never synced."""

    def __init__(self, path: Path, batches: list[bytes], count: int) -> None:
        self._path = path
        self._batches = batches
        self._count = count

    def write(self) -> None:
        """Create the file and write `count` batches into it, one call each."""
        distinct = len(self._batches)
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        for index in range(self._count):
            os.write(file, self._batches[index % distinct])
        os.close(file)

    def remove(self) -> None:
        """Remove the file, and so what of it waits to be written back."""
        self._path.unlink(missing_ok=True)
