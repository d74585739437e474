"""What Spark is given beside eoslog: sinks and sources in Python that do the least there is to do.

Spark's workers import this module by its name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from eoslog.spark.data_source import EoslogDataSource


@dataclass
class Counted(WriterCommitMessage):
    """What a task has seen."""

    rows: int
    value_bytes: int


def counted(batches: Iterator[pyarrow.RecordBatch]) -> Counted:
    rows = value_bytes = 0
    for batch in batches:
        rows += batch.num_rows
        value_bytes += batch.column("value").nbytes
    return Counted(rows, value_bytes)


class CountingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return counted(iterator)


class CountingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return counted(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """There is nothing to decide."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """There is nothing to take back."""


class CountingSink(DataSource):
    """Counts what it is given, and keeps nothing."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return CountingStreamWriter()


class PlainWriter(DataSourceArrowWriter):
    """Writes the values of a task to a file of its own, as they come."""

    def __init__(self, folder: str, sync: bool) -> None:
        self._folder = folder
        self._sync = sync

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return write_values(self._folder, self._sync, iterator)


def write_values(folder: str, sync: bool, batches: Iterator[pyarrow.RecordBatch]) -> Counted:
    """Write the values into a new file of the folder."""
    rows = value_bytes = 0
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0, delete=False) as file:
        for batch in batches:
            _, _, values = batch.column("value").buffers()
            value_bytes += file.write(values)
            rows += batch.num_rows
        if sync:
            os.fsync(file.fileno())
    return Counted(rows, value_bytes)


class PlainStreamWriter(DataSourceStreamArrowWriter):
    """The least a sink can do that keeps a batch as a whole.

    Each task syncs a file of its own and the folder that names it; the driver syncs a record that
    says the batch is in.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._decisions = Path(folder, "decisions")

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        message = write_values(self._folder, True, iterator)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with self._decisions.open("ab", buffering=0) as decisions:
            decisions.write(b"%d\n" % batchId)
            os.fdatasync(decisions.fileno())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """There is nothing to take back."""


class PlainSink(DataSource):
    """Keeps the bytes of the values and nothing else; with the option `sync` they are on disk."""

    @classmethod
    def name(cls) -> str:
        return "plain_files"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return PlainWriter(self.options["folder"], "sync" in self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return PlainStreamWriter(self.options["folder"])


class UndecidedWriter(DataSourceArrowWriter):
    """eoslog's writer without its last step."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._writer.write(iterator)
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Left out: what the tasks staged stays staged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


class UndecidedSink(EoslogDataSource):
    """eoslog without the decision of the driver."""

    @classmethod
    def name(cls) -> str:
        return "undecided"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return UndecidedWriter(super().writer(schema, overwrite))


@dataclass
class Repeats(InputPartition):
    """How often the batch is to be yielded."""

    count: int


class MemoryReader(DataSourceReader):
    """Yields one record batch again and again."""

    def __init__(self, path: str, partitions: int, repeats: int) -> None:
        self._path = path
        self._partitions = partitions
        self._repeats = repeats

    def partitions(self) -> list[InputPartition]:
        return [Repeats(self._repeats) for _ in range(self._partitions)]

    def read(self, partition: Any) -> Iterator[pyarrow.RecordBatch]:
        with pyarrow.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        for _ in range(partition.count):
            yield batch


class MemorySource(DataSource):
    """The record batch of the file `batch`, `repeats` times in each of `partitions`."""

    @classmethod
    def name(cls) -> str:
        return "memory_batches"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset bigint, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(
            self.options["batch"], int(self.options["partitions"]), int(self.options["repeats"])
        )


SOURCES = (CountingSink, PlainSink, UndecidedSink, MemorySource)
