"""Staging task: it writes its rows into staged files of its own, and reports them in one small
message.

Invariants:

- the whole iterator is consumed before the message is handed out, so a consumer that stops early
  (`first()`) cannot leave half a partition in a message;
- a task attempt writes files that no other attempt writes, and that are not read before the
  driver's decision names them;
- an attempt that fails gives up its files; one that is killed leaves them to be swept.

Rows come as Arrow record batches (`mapInArrow`), whose buffers go to the encoder as they are, or as
Python objects (`mapPartitions`).
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eoslog.common.json_text import loads_json
from eoslog.errors import StoreError
from eoslog.spark.rows import append_rows

if TYPE_CHECKING:
    import pyarrow

    from eoslog.staging.message import StagedMessage
    from eoslog.staging.writer import StagedWriter

    Append = Callable[[StagedWriter, Iterator[Any], str | None], None]

# The schema to give `mapInArrow`: one row for each partition that had rows.
MESSAGE_SCHEMA = "message string"
META_PROPERTIES = "meta.properties"


class StoreNotVisibleError(StoreError):
    """A Spark worker does not see the store that the driver writes to: nothing was staged.

    A store is used from one host, or staged to through a file system that all hosts share.
    """

    fatal = True


def stage(
    iterator: Iterable[Any],
    *,
    store: str | os.PathLike[str],
    topic: str | None,
    partitions: int | Mapping[str, int],
    app_id: str,
    run_id: str,
    durability: str = "commit",
    attempt: str | None = None,
    store_mark: str | None = None,
) -> "Iterator[StagedMessage | pyarrow.RecordBatch]":
    """Write all rows of the iterator into staged files, then yield one message for `commit`.

    Call it inside a task: `rdd.mapPartitions(lambda rows: stage(rows, ...)).collect()`, or
    `df.mapInArrow(lambda batches: stage(batches, ...), MESSAGE_SCHEMA).collect()`. No reader sees
    the rows before the commit.

    Parameters
    ----------
    iterator : iterable
        Rows: bytes or str (values), pairs (key, value), or dicts and Rows with Kafka's columns
        (value, and optional key, partition, headers, timestamp, topic); or record batches with
        these columns. A row without a partition goes where Kafka's partitioner puts its key.
    store : str or PathLike
        The store's path.
    topic : str or None
        Overrides a topic column.
    partitions : int or mapping of str to int
        Partition count of the topic, or of each topic; it must exist by the commit.
    app_id, run_id : str
        The same in every task of the job. A run id is used for one job only.
    durability : {"commit", "always", "process"}
        That of the store. With the first two the files are on disk when the message is yielded.
    attempt : str, optional
        Names the files; by default from Spark's task context.
    store_mark : str, optional
        `mark_of_store` on the driver: a worker whose path leads to another store then fails.

    Yields
    ------
    StagedMessage or RecordBatch
        One message; none if there are no rows.

    Raises
    ------
    StoreNotVisibleError
        The worker does not see the store.
    TypeError, ValueError
        A row is no record.
    RecordTooLargeError, StoreFullError
        A row does not fit.
    """
    path = Path(store)
    check_store_visible(path, store_mark)
    rest = iter(iterator)
    try:
        first = next(rest)
    except StopIteration:
        return
    arrow = _is_record_batch(first)
    append: Append = append_rows
    if arrow:
        from eoslog.spark.arrow_rows import append_batches as append
    message = staged(
        chain([first], rest),
        append,
        store=path,
        topic=topic,
        partitions=_partition_counts(topic, partitions),
        app_id=app_id,
        run_id=run_id,
        attempt=attempt or task_attempt(),
        durability=durability,
    )
    yield message_as_batch(message) if arrow else message


def staged(
    rows: Iterator[Any],
    append: "Append",
    *,
    store: Path,
    topic: str | None,
    partitions: Mapping[str, int],
    app_id: str,
    run_id: str,
    attempt: str,
    durability: str,
) -> "StagedMessage":
    """Write all rows into staged files of one attempt and say so; a failure leaves no files."""
    from eoslog.staging.writer import StagedWriter

    writer = StagedWriter(
        store, app_id, run_id, attempt, partitions=partitions, durability=durability
    )
    try:
        append(writer, rows, topic)
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _partition_counts(topic: str | None, partitions: int | Mapping[str, int]) -> dict[str, int]:
    if isinstance(partitions, Mapping):
        return dict(partitions)
    if topic is None:
        raise ValueError("rows of several topics need partitions={topic: count, ...}")
    return {topic: partitions}


def _is_record_batch(row: object) -> bool:
    return type(row).__name__ == "RecordBatch" and type(row).__module__.startswith("pyarrow")


def task_attempt() -> str:
    """A name for this task attempt: partition, attempt id (unique in the context), attempt number.

    It sorts by partition, so that messages sorted by it are in the order of the data.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return f"000000-{uuid.uuid4().hex}-0"
    return f"{context.partitionId():06d}-{context.taskAttemptId()}-{context.attemptNumber()}"


def attempt_number(attempt: str) -> int:
    """Return the number of the task's attempt that wrote a message: 0 is the first."""
    number = attempt.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def mark_of_store(path: str | os.PathLike[str]) -> str:
    """A short text that is the same wherever this very store is seen, and differs for others."""
    return hashlib.sha256((Path(path) / META_PROPERTIES).read_bytes()).hexdigest()[:16]


def check_store_visible(path: Path, mark: str | None) -> None:
    """Raise StoreNotVisibleError unless the path leads to a store, the one of the mark if given."""
    host = os.uname().nodename
    hint = "run Spark on the store's host (master local[N,M]), or put the store on a shared path"
    try:
        found = mark_of_store(path)
    except OSError as error:
        raise StoreNotVisibleError(
            f"the Spark worker on host {host} sees no store at {path} ({error.strerror}): {hint}"
        ) from error
    if mark is not None and mark != found:
        raise StoreNotVisibleError(
            f"the Spark worker on host {host} sees another store at {path} than the driver: {hint}"
        )


def message_as_batch(message: "StagedMessage") -> "pyarrow.RecordBatch":
    """The message as one row of MESSAGE_SCHEMA, for `mapInArrow`."""
    import pyarrow as pa

    text = json.dumps(asdict(message), separators=(",", ":"))
    return pa.RecordBatch.from_pydict({"message": [text]})


def as_messages(messages: Iterable[Any]) -> "list[StagedMessage]":
    """Take messages as `stage` handed them out or as Spark collected them, in the data's order.

    Raises ValueError if one was given twice, or is no JSON, TypeError for anything else than
    messages.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise TypeError(
            f"messages must be a list of what stage() yielded, got {type(messages).__name__}"
        )
    found = [_as_message(message) for message in messages]
    found.sort(key=lambda message: message.attempt)
    for before, message in pairwise(found):
        if (before.run_id, before.attempt) == (message.run_id, message.attempt):
            raise ValueError(f"the message of attempt {message.attempt} was given twice")
    return found


def _as_message(message: Any) -> "StagedMessage":
    from eoslog.staging.message import StagedMessage

    if isinstance(message, StagedMessage):
        return message
    if isinstance(message, Sequence) and len(message) == 1 and not isinstance(message, str):
        message = message[0]  # A Row of MESSAGE_SCHEMA.
    if isinstance(message, str):
        try:
            message = loads_json(message)
        except ValueError as error:
            raise ValueError(f"{message!r:.80} is no message of stage(): {error}") from None
    if isinstance(message, Mapping):
        try:
            return StagedMessage(**message)
        except TypeError as error:
            raise TypeError(f"{message!r:.80} is no message of stage(): {error}") from None
    raise TypeError(f"expected a message of stage(), got {type(message).__name__}")
