"""Writer of a task's staged files: record batches that no reader sees before the decision.

It needs neither Spark nor an open store, takes no lock and may be killed at any moment. The
protocol, with its crash points, is in `docs/staged-commit.md`.

    with StagedWriter(store_path, "my-job", run_id, attempt, partitions={"orders": 4}) as writer:
        writer.append("orders", None, values, keys=keys)
    message = writer.message        # For Store.commit_staged, in the process that opens the store.

A record is copied once, from the caller's column into its partition's batch; a full batch is
written to its file without another copy. Records of a partition keep the order of the calls.

Invariants: no reference to a caller's column is kept after `append`; the batches take up at most
HELD_BYTES_MAX, or one batch of one record that is larger.
"""

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from eoslog.bindings.batch_filler import DONE, NO_ROOM, BatchFiller
from eoslog.bindings.column_set import ColumnSet, open_columns
from eoslog.bindings.column_stream import ColumnStream, open_column_stream
from eoslog.bindings.plain_rows import plain_columns as plain_columns  # For eoslog.spark.
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.columns.topic_limits import TopicLimits
from eoslog.common import clock
from eoslog.common.config import TOPIC_SETTINGS
from eoslog.common.durability import check_durability
from eoslog.common.topic_name import INTERNAL_TOPICS, check_user_topic_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, LogClosedError, NotAStoreError, UnknownTopicOrPartitionError
from eoslog.session.paths import STAGING_DIRECTORY, STATE_DIRECTORY
from eoslog.staging.attempt_files import AttemptFiles, OpenFile
from eoslog.staging.message import StagedMessage
from eoslog.staging.names import attempt_path
from eoslog.storage.topics_file import read_entries

META_PROPERTIES = "meta.properties"
# Of a batch besides its records.
BATCH_HEADER_BYTES = 61
BATCH_BYTES_MAX = 1 << 20
HELD_BYTES_MAX = 32 << 20
# The key of each record decides.
OWN_PARTITION = -1


class StagedTopic(NamedTuple):
    """Partition count, limits and id of a topic."""

    partitions: int
    limits: TopicLimits
    segment_bytes: int  # A staged file may become a segment of the log: it is no larger.
    topic_id: str = ""  # Unknown.


class _Filling(NamedTuple):
    topic: StagedTopic
    filler: BatchFiller


class StagedWriter:
    """Writer of the rows of one task attempt; `close` returns the message for the driver.

    Threads may share a writer; its calls are made one after the other. As a context manager it is
    closed at the end of the block, and abandoned if the block raises. Files have at most the
    topic's `segment.bytes`.

    Parameters
    ----------
    store_path : str or PathLike
        The store's directory, on this host or shared.
    app_id, run_id : str
        Names of the application and of the job's run.
    attempt : str
        Name of the attempt, unique within the run.
    partitions : mapping of str to int
        Partition count of each topic that may be written to.
    durability : {"commit", "always", "process"}
        That of the store. With the first two the files are on disk when `close` returns.
    batch_bytes_max : int
        Largest batch, in bytes; the topic's `max.message.bytes` limits it too.

    Raises
    ------
    NotAStoreError, TypeError, ValueError
        No store is there, or an argument is wrong.
    """

    def __init__(
        self,
        store_path: str | os.PathLike[str],
        app_id: str,
        run_id: str,
        attempt: str,
        *,
        partitions: Mapping[str, int],
        durability: str = "commit",
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        path = Path(store_path).absolute()
        self._sync = check_durability(durability) != "process"
        if batch_bytes_max < BATCH_HEADER_BYTES:
            raise ValueError(
                f"batch_bytes_max must be at least {BATCH_HEADER_BYTES}, got {batch_bytes_max}"
            )
        self._identity = (app_id, run_id, attempt)
        directory = attempt_path(path / STAGING_DIRECTORY, app_id, run_id, attempt)
        if not (path / META_PROPERTIES).is_file():
            raise NotAStoreError(f"{path} is no store: it has no {META_PROPERTIES}")
        self._path = path
        self._topics = _topics(path, partitions)
        self._files = AttemptFiles(directory, path, self._sync)
        self._lock = ThreadLock()
        self._batch_bytes_max = batch_bytes_max
        self._turn = _first_turn(run_id, attempt)
        self._filling: dict[str, _Filling] = {}
        self._closed_because = ""
        self._message: StagedMessage | None = None

    def __repr__(self) -> str:
        app_id, _, attempt = self._identity
        state = self._closed_because or "open"
        return f"<eoslog.StagedWriter of {app_id!r}, attempt {attempt!r}, {state}>"

    @property
    def message(self) -> StagedMessage:
        """The message of a closed writer. Raises LogClosedError if it is not closed."""
        if self._message is None:
            raise LogClosedError(self._closed_because or "the staged writer is not closed yet")
        return self._message

    def append(
        self,
        topic: str,
        partition: int | None,
        values: object,
        keys: object = None,
        timestamps: object = None,
        headers: object = None,
    ) -> None:
        """Add columns of records, of equal length, to a partition or by their keys.

        The columns are read now, and may be written with a later call.

        Parameters
        ----------
        topic : str
            A topic of `partitions`.
        partition : int or None
            None: records with a key go where Kafka's partitioner puts it, others to one partition
            after the other.
        values, keys : column, optional
            As of `Producer.append`: alone, `values` may be a stream, or a table with its columns.
        timestamps : column, optional
            Milliseconds (-1 for none) or times; now by default.
        headers : list, optional
            For each record a list of (str, bytes or None).

        Raises
        ------
        UnknownTopicOrPartitionError, InvalidTimestampError, RecordTooLargeError
            Nothing of the call was added, and the writer goes on; after the first chunk of a stream
            it can only be abandoned.
        ArrowStreamError, TypeError, ValueError
            The same.
        StoreFullError, StoreFailedError, StagedCommitError
            The writer can only be abandoned.
        """
        with self._lock:
            self._check_open()
            known = self._checked(topic, partition)
            where = OWN_PARTITION if partition is None else partition
            if keys is None and timestamps is None and headers is None:
                stream = open_column_stream(values, clock.now_ms)
                if stream is not None:
                    self._append_stream(topic, known, where, stream)
                    return
            columns = open_columns(values, keys, timestamps, headers, clock.now_ms())
            known.limits.check(columns)
            with self._last_error():
                self._fill(topic, known, where, columns)

    def _append_stream(
        self, topic: str, known: StagedTopic, where: int, stream: ColumnStream
    ) -> None:
        """Add the chunks of a stream; after the first one an error is the writer's last."""
        with stream:
            columns = stream.next_columns()
            if columns is None:
                return
            known.limits.check(columns)
            with self._last_error():
                while columns is not None:
                    self._fill(topic, known, where, columns)
                    columns = None  # Its chunk is released before the next one is read.
                    columns = stream.next_columns()
                    if columns is not None:
                        known.limits.check(columns)

    def close(self) -> StagedMessage:
        """Write the last batches and sync as the durability says. A second call returns the same.

        Returns
        -------
        StagedMessage
            The message for `Store.commit_staged`.

        Raises
        ------
        StoreFullError, StoreFailedError, StagedCommitError
            The attempt has no message, and can only be abandoned.
        """
        with self._lock:
            if self._message is None:
                self._check_open()
                with self._last_error():
                    self._write_all()
                    files = self._files.close()
                self._filling = {}
                app_id, run_id, attempt = self._identity
                self._message = StagedMessage(app_id, run_id, attempt, files, self._sync)
                self._closed_because = "the staged writer is closed"
            return self._message

    def abandon(self) -> None:
        """Remove the staged files; after `close` they are the driver's, and stay."""
        with self._lock:
            if self._message is None:
                self._filling = {}
                self._files.remove()
                self._closed_because = "the staged writer was abandoned"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
            return
        try:
            self.close()
        except BaseException:
            self.abandon()
            raise

    def _check_open(self) -> None:
        if self._closed_because:
            raise LogClosedError(self._closed_because)

    def _checked(self, topic: str, partition: int | None) -> StagedTopic:
        known = self._topics.get(topic)
        if known is None:
            names = ", ".join(sorted(self._topics)) or "none"
            raise UnknownTopicOrPartitionError(f"no topic {topic!r} among those given: {names}")
        if partition is not None:
            if not isinstance(partition, int) or isinstance(partition, bool):
                raise TypeError(f"partition must be an int, got {type(partition).__name__}")
            if not 0 <= partition < known.partitions:
                raise UnknownTopicOrPartitionError(
                    f"no partition {partition} in topic {topic!r}, which has {known.partitions}"
                )
        return known

    @contextmanager
    def _last_error(self) -> Iterator[None]:
        """Close the writer after an error in the block: part of its records may be written."""
        try:
            yield
        except BaseException as error:
            self._closed_because = f"the staged writer failed: {str(error) or type(error).__name__}"
            self._filling = {}
            self._files.close_descriptors()
            raise

    # Batches.

    def _fill(self, name: str, topic: StagedTopic, partition: int, columns: ColumnSet) -> None:
        """Add records to a partition, or each by its key; write full batches.

        After an error part of them may be added.
        """
        filler = self._filler(name, topic)
        first, stopped = 0, NO_ROOM
        while stopped != DONE:
            first, stopped = filler.fill(columns, first, partition, self._room(filler))
            if stopped == NO_ROOM:
                self._write_all()
                for one in self._filling.values():
                    one.filler.release()
            elif stopped != DONE:
                self._write(name, stopped)

    def _room(self, filler: BatchFiller) -> int:
        """Return how many bytes the batches of one topic may take beside those of the others."""
        held = sum(one.filler.held_bytes for one in self._filling.values())
        return HELD_BYTES_MAX - held + filler.held_bytes

    def _filler(self, name: str, topic: StagedTopic) -> BatchFiller:
        """Return the topic's batches."""
        known = self._filling.get(name)
        if known is not None:
            return known.filler
        batch_bytes = min(self._batch_bytes_max, topic.limits.message_bytes_max)
        filler = BatchFiller(topic.partitions, batch_bytes, self._turn % topic.partitions)
        self._filling[name] = _Filling(topic, filler)
        return filler

    def _write_all(self) -> None:
        """Write every batch with records, full or not."""
        for name, (topic, filler) in self._filling.items():
            for partition in range(topic.partitions):
                if filler.record_count == 0:
                    break
                self._write(name, partition)

    def _write(self, name: str, partition: int) -> None:
        filler = self._filling[name].filler
        count, batch_bytes = filler.held(partition)
        if count == 0:
            return
        file = self._file_for(name, partition, count, batch_bytes)
        with filler.finish(
            partition, producer_id=file.producer_id, producer_epoch=0, base_sequence=file.records
        ) as batch:
            self._files.write(file, batch, count)
        filler.empty(partition)

    def _file_for(self, name: str, partition: int, count: int, batch_bytes: int) -> OpenFile:
        topic = self._filling[name].topic
        where = TopicPartition(name, partition)
        return self._files.file_for(where, count, batch_bytes, topic.segment_bytes, topic.topic_id)


def _first_turn(run_id: str, attempt: str) -> int:
    """Return a number that differs between tasks of a job, and between jobs.

    So the keyless records of small tasks spread over all partitions. An attempt that does not begin
    with the number of its task gets a random one.
    """
    number = re.match(r"[0-9]{1,18}", attempt)
    task = int.from_bytes(os.urandom(4), "big") if number is None else int(number[0])
    return zlib.crc32(run_id.encode(errors="surrogatepass")) + task


def partition_counts(store_path: str | os.PathLike[str]) -> dict[str, int]:
    """Return the partition counts of the users' topics in the store's file, without opening it.

    Empty if there is no such file: the next opening of the store re-creates it.
    """
    return {
        name: int(entry["partitions"])
        for name, entry in _known_topics(Path(store_path)).items()
        if name not in INTERNAL_TOPICS
    }


def _topics(store_path: Path, partitions: Mapping[str, int]) -> dict[str, StagedTopic]:
    """Return the topics that may be written to."""
    if not partitions:
        raise ValueError("partitions must have the partition count of at least one topic")
    known = _known_topics(store_path)
    topics = {}
    for name, count in partitions.items():
        check_user_topic_name(name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"partitions[{name!r}] must be an int of 1 or more, got {count!r}")
        entry = known.get(name, {})
        if entry.get("partitions", count) != count:
            raise ValueError(f"topic {name!r} has {entry['partitions']} partitions, not {count}")
        config = entry.get("config", {})
        limits = (
            config.get(setting, TOPIC_SETTINGS[setting].default)
            for setting in (
                "max.message.bytes",
                "message.timestamp.before.max.ms",
                "message.timestamp.after.max.ms",
                "segment.bytes",
            )
        )
        message_bytes, before_ms, after_ms, segment_bytes = map(int, limits)
        # As in the store, a batch is never larger than a segment.
        taken = TopicLimits(min(message_bytes, segment_bytes), before_ms, after_ms)
        topic_id = entry.get("topic_id", "")
        topics[name] = StagedTopic(
            count, taken, segment_bytes, topic_id if isinstance(topic_id, str) else ""
        )
    return topics


def _known_topics(store_path: Path) -> dict[str, dict[str, Any]]:
    """Return the topics in the store's file; none if it is unreadable: the driver checks too."""
    try:
        topics = read_entries(store_path / STATE_DIRECTORY) or {}
        return {name: entry for name, entry in topics.items() if not entry.get("deleting")}
    except (EoslogError, AttributeError):
        return {}
