"""`eoslog.import_file`: the records of a file in a topic, exactly once.

Each transaction holds the records of one chunk of the file and the position after them
(`file_progress`); the next import goes on there. docs/files.md has the protocol.
"""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from eoslog.columns.topic_limits import TopicLimits
from eoslog.common.arguments import check_synchronous, path_of, whole_number
from eoslog.errors import EoslogError, InvalidRequestError
from eoslog.exchange.file_formats import IMPORT_FORMATS, check_format, format_of
from eoslog.exchange.file_progress import ImportTransactions
from eoslog.exchange.text_source import TextSource, text_source
from eoslog.storage.topic_registry import partition_of
from eoslog.store.store import Store, engine_of

if TYPE_CHECKING:
    from eoslog.exchange.parquet_files import ParquetSource

    Source = TextSource | ParquetSource

Progress = Callable[[int, int | None], object]


@dataclass(frozen=True)
class FileImport:
    """Result of an import of a file.

    `records` were appended now, `already_there` by earlier imports of the name. `left_bytes` is the
    size of a last line, `left_line`, that was not taken because it has no line end.
    """

    file: str
    topic: str
    name: str
    records: int
    already_there: int
    left_bytes: int = 0
    left_line: int | None = None


def import_file(
    store: Store,
    topic: str,
    file: str | os.PathLike[str] | BinaryIO,
    *,
    format: str | None = None,
    name: str | None = None,
    partition: int | None = None,
    whole: bool = False,
    progress: Progress | None = None,
) -> FileImport:
    """Append the records of a file to a topic, each once: those that no import of it appended yet.

    A file of lines, JSON lines or CSV may grow between imports; one of Parquet may not. Each
    transaction, durable as the store's durability says, holds the records of 16 MiB of the file, or
    of one longer line. After a crash or an error the next import goes on.

    Parameters
    ----------
    store : Store
        An open store.
    topic : str
        An existing topic.
    file : str, PathLike, or binary file object
        A file object is read from where it stands, and needs a name.
    format : str, optional
        "jsonl": the envelope of an export. "csv" and "parquet": columns "value", "key", "timestamp"
        and "headers", as far as there are; of CSV without "value" each row as a JSON object of
        texts. "lines": each line is a value. By default what the file's suffix says, else "jsonl".
        gzip is unpacked, except of Parquet.
    name : str, optional
        Identity of the file: by default its path, resolved.
    partition : int, optional
        By default as `Producer.append` chooses it.
    whole : bool
        Take a last line without a line end as well. A line of JSON is taken if it is whole.
    progress : callable, optional
        Called with the bytes (of Parquet: rows) that are done, and with the total, None if that is
        not known.

    Raises
    ------
    SourceFileChangedError
        What was imported of the file has changed since. Nothing was imported.
    InvalidRecordError, RecordTooLargeError, InvalidTimestampError
        A record is refused: the records before it are in the topic, and the error says where it is.
    ProducerFencedError
        Another import of the name has begun. What this one committed is in the topic.
    MissingDependencyError
        Parquet needs pyarrow.
    UnknownTopicOrPartitionError, InvalidRequestError, StoreError, OSError, ValueError, TypeError
        An argument is wrong, or a disk refuses.
    """
    engine = engine_of(store)
    if progress is not None:
        check_synchronous(progress, "progress")
    description = engine.topic(topic)
    if partition is not None:
        partition = partition_of(description, whole_number(partition, "partition")).partition
    shown, identity = _names(file, name)
    file_format = check_format(format, IMPORT_FORMATS) if format is not None else format_of(shown)
    limits = TopicLimits.of(engine.partitions.config_of(description))
    with (
        _source(file, shown, file_format, limits, whole) as source,
        ImportTransactions(store, topic, identity) as transactions,
    ):
        start = transactions.progress(shown, file_format)
        source.begin(start)
        _append(transactions, source, topic, partition, progress)
    left = source.left_bytes
    return FileImport(
        shown,
        topic,
        identity,
        source.progress.records - start.records,
        start.records,
        left,
        source.progress.line if left else None,
    )


def _append(
    transactions: ImportTransactions,
    source: "Source",
    topic: str,
    partition: int | None,
    progress: Progress | None,
) -> None:
    """Append what the source has, a transaction for each chunk."""
    producer = transactions.producer
    committed = source.progress
    try:
        for pieces in source.chunks():
            producer.begin_transaction()
            for piece in pieces:
                producer.append(topic, partition, piece.columns)
            transactions.commit(source.progress)
            committed = source.progress
            if progress is not None:
                progress(committed.position, source.total)
        if source.error is not None:
            raise source.error
    except (EoslogError, KeyboardInterrupt) as error:
        count, rest = committed.records, ": the next import goes on after them"
        if count == 0:
            error.add_note(f"no record of the file is in {topic}")
        elif count == 1:
            error.add_note(f"the first record of the file is in {topic}{rest}")
        else:
            error.add_note(f"the first {count} records of the file are in {topic}{rest}")
        raise


def _names(file: object, name: str | None) -> tuple[str, str]:
    """Return what messages call a file, and its identity."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a str, got {type(name).__name__}")
    if isinstance(file, (str, os.PathLike)):
        path = path_of(file, "file")
        if name is None and path.exists() and not (path.is_file() or path.is_dir()):
            raise InvalidRequestError(f"{path} is a pipe or device, which needs a name")
        return str(path), name if name is not None else str(path.resolve())
    if not hasattr(file, "readinto"):
        raise TypeError(f"file must be a path or a binary file object, got {type(file).__name__}")
    if name is None:
        raise InvalidRequestError("a file object needs a name, by which it is known next time")
    return name, name


@contextmanager
def _source(
    file: str | os.PathLike[str] | BinaryIO,
    shown: str,
    file_format: str,
    limits: TopicLimits,
    is_whole: bool,
) -> "Iterator[Source]":
    if file_format == "parquet":
        if not isinstance(file, (str, os.PathLike)):
            raise InvalidRequestError("Parquet is read from a file, not from a file object")
        from eoslog.exchange.parquet_files import ParquetSource  # It needs pyarrow.

        with ParquetSource(Path(file), shown, limits) as source:
            yield source
        return
    with _stream(file) as stream, text_source(stream, shown, limits, is_whole=is_whole) as text:
        yield text


@contextmanager
def _stream(file: str | os.PathLike[str] | BinaryIO) -> Iterator[io.BufferedReader]:
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as stream:
            yield stream
    elif isinstance(file, io.BufferedReader):
        yield file
    else:
        stream = io.BufferedReader(file)  # type: ignore[arg-type]
        try:
            yield stream
        finally:
            stream.detach()  # It is the caller's.
