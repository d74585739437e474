"""Staged files of a task: record batches in files of its own, which no reader sees before the
decision.

Needs neither Spark nor the store to be open, takes no lock and may be killed at any moment. The
protocol, with what happens when something dies, is `docs/staged-commit.md`.

    with StagedWriter(store_path, "my-job", run_id, attempt, partitions={"orders": 4}) as writer:
        writer.append("orders", None, values, keys=keys)
    message = writer.message        # For Store.commit_staged, in the process that opens the store.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from eoslog.bindings.accumulator import RecordAccumulator
from eoslog.bindings.batch_filler import checked_records
from eoslog.bindings.columns import timestamp_column
from eoslog.bindings.plain_rows import plain_columns
from eoslog.columns.placed_rows import (
    BATCH_HEADER_BYTES,
    TopicLimits,
    check_timestamps,
    header_list,
)
from eoslog.common import clock
from eoslog.common.config import TOPIC_SETTINGS
from eoslog.common.durability import check_durability
from eoslog.common.json_text import loads_json
from eoslog.common.topic_name import INTERNAL_TOPICS, check_user_topic_name
from eoslog.errors import (
    EoslogError,
    LogClosedError,
    NotAStoreError,
    UnknownTopicOrPartitionError,
)
from eoslog.fs.atomic_file import read_if_there
from eoslog.session.store_paths import STAGING_DIRECTORY
from eoslog.staging.staged_batches import StagedBatches, StagedTopic, first_turn
from eoslog.staging.staged_file import AttemptFiles
from eoslog.staging.staged_message import StagedFile, StagedMessage
from eoslog.staging.staged_names import directory_name, run_path
from eoslog.staging.staged_source import VersionSource, version_run_id

__all__ = [
    "StagedFile",
    "StagedMessage",
    "StagedWriter",
    "VersionSource",
    "partition_counts",
    "plain_columns",
    "version_run_id",
]

META_PROPERTIES = "meta.properties"
TOPICS_FILE = Path("state") / "topics.json"
BATCH_BYTES_MAX = 1 << 20
_NO_SETTINGS: Mapping[str, int] = MappingProxyType({})


class StagedWriter:
    """Writes the rows of one task attempt; `close` hands out the message for the driver.

    `store_path` is the store's directory, on this host or shared. `app_id` and `run_id` are those
    of the job, `attempt` is unique within the run: each any text. `partitions` says how many
    partitions each topic has that may be written to. `durability` is the store's: with "commit"
    and "always" the files are on disk when `close` returns. Batches have at most
    `batch_bytes_max` bytes, and at most the topic's `max.message.bytes`; files at most its
    `segment.bytes`.

    One thread uses a writer. As a context manager it is closed at the end of the block, and
    abandoned if the block raises. Raises NotAStoreError, TypeError, ValueError.
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
            raise ValueError(f"batch_bytes_max={batch_bytes_max}: at least {BATCH_HEADER_BYTES}")
        self._identity = (app_id, run_id, attempt)
        attempt_path = run_path(path / STAGING_DIRECTORY, app_id, run_id) / directory_name(
            attempt, "attempt"
        )
        if not (path / META_PROPERTIES).is_file():
            raise NotAStoreError(f"{path} is no store: it has no {META_PROPERTIES}")
        self._path = path
        self._topics = _topics(path, partitions)
        self._files = AttemptFiles(attempt_path, path, self._sync)
        self._batches = StagedBatches(self._files, batch_bytes_max, first_turn(run_id, attempt))
        self._failure: BaseException | None = None
        self._closed_because = ""
        self._message: StagedMessage | None = None

    @property
    def message(self) -> StagedMessage:
        """The message of a writer that was closed; LogClosedError of one that was not."""
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
        """Add records, given as columns of equal length, to a partition or to where their keys go.

        `values` and `keys` are lists of bytes and None, Arrow arrays of binary or string, numpy
        arrays of bytes, or a Series of bytes of pandas or polars; `timestamps` are milliseconds (-1
        for none) or times, now if not given; `headers` are lists of (str, bytes or None) for each
        record. Without a partition, records with a key go where Kafka's partitioner puts it, others
        to one partition after the other. What is appended may be written at once or with a later
        call; the columns are read now.

        Raises TypeError, ValueError, UnknownTopicOrPartitionError, InvalidTimestampError or
        RecordTooLargeError: nothing of the call was added, and the writer goes on. After
        StoreFullError, StoreFailedError or StagedCommitError it can only be abandoned.
        """
        self._check_open()
        known = self._checked(topic, partition)
        for column in (values, keys):
            _check_buffers(column)
        moments = None if timestamps is None else timestamp_column(timestamps).copy()
        if moments is not None:
            check_timestamps(moments, known.limits)
        records = checked_records(
            values,
            keys,
            moments,
            header_list(headers),
            timestamp_ms=clock.now_ms(),
            batch_bytes_max=known.limits.message_bytes_max,
        )
        with _FailsFor(self):
            self._batches.add(topic, known, partition, records)

    def append_accumulated(
        self, topic: str, partition: int, accumulator: RecordAccumulator
    ) -> None:
        """Add what an accumulator holds as one batch, behind all that was added before; empty it.

        Raises as `append` does.
        """
        self._check_open()
        known = self._checked(topic, partition)
        known.limits.check_timestamps(*accumulator.timestamps_ms)
        with _FailsFor(self):
            self._batches.add_batch(topic, known, partition, accumulator)

    def add_topic(
        self,
        topic: str,
        partitions: int,
        config: Mapping[str, int] | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Let a topic be written to that was not among those given, or that has other settings.

        `config` are the topic's settings where the caller knows them better than the store's file,
        which has none of the store's own defaults; `topic_id` is the topic's id if the caller has
        looked it up before. Raises ValueError.
        """
        found = _topics(self._path, {topic: partitions}, config or {})
        if topic_id is not None:
            found = {name: one._replace(topic_id=topic_id) for name, one in found.items()}
        self._topics |= found

    @property
    def failed(self) -> BaseException | None:
        """The error that was the writer's last, or None."""
        return self._failure

    def close(self) -> StagedMessage:
        """Write what is left, sync as the durability says, and hand out the message.

        A second call hands out the same. Raises StoreFullError, StoreFailedError,
        StagedCommitError: then the attempt has no message, and can only be abandoned.
        """
        if self._message is None:
            self._check_open()
            with _FailsFor(self):
                self._batches.write_all()
                files = self._files.close()
            self._batches.drop()
            app_id, run_id, attempt = self._identity
            self._message = StagedMessage(app_id, run_id, attempt, files, self._sync)
            self._closed_because = "the staged writer is closed"
        return self._message

    def abandon(self) -> None:
        """Remove what was staged; after `close` the files are the driver's, and nothing happens."""
        if self._message is None:
            self._batches.drop()
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
                raise TypeError(f"partition is an int, not {type(partition).__name__}")
            if not 0 <= partition < known.partitions:
                raise UnknownTopicOrPartitionError(
                    f"no partition {partition} in topic {topic!r}, which has {known.partitions}"
                )
        return known

    def _fail(self, error: BaseException) -> None:
        self._closed_because = f"the staged writer failed: {error or type(error).__name__}"
        self._failure = error
        self._batches.drop()
        self._files.close_descriptors()


class _FailsFor:
    """An error inside the block is the writer's last: part of what it holds may be written."""

    def __init__(self, writer: StagedWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._writer._fail(error)


def _check_buffers(column: Any) -> None:
    """Raise a ValueError if the buffers of an Arrow array are too short for what it says."""
    if hasattr(column, "__arrow_c_array__") or hasattr(column, "combine_chunks"):
        validate = getattr(column, "validate", None)
        if validate is not None:
            validate()


def partition_counts(store_path: str | os.PathLike[str]) -> dict[str, int]:
    """Return the partition counts of the users' topics, as the store's file says, without opening
    it.

    Empty if there is no such file: whoever opens the store makes it again.
    """
    return {
        name: int(entry["partitions"])
        for name, entry in _known_topics(Path(store_path)).items()
        if name not in INTERNAL_TOPICS
    }


def _topics(
    store_path: Path, partitions: Mapping[str, int], settings: Mapping[str, int] = _NO_SETTINGS
) -> dict[str, StagedTopic]:
    """Return what is known of each topic that may be written to."""
    if not partitions:
        raise ValueError("partitions: say for at least one topic how many partitions it has")
    known = _known_topics(store_path)
    topics = {}
    for name, count in partitions.items():
        check_user_topic_name(name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"partitions[{name!r}]={count!r}: a whole number from 1 on")
        entry = known.get(name, {})
        if entry.get("partitions", count) != count:
            raise ValueError(f"topic {name!r} has {entry['partitions']} partitions, not {count}")
        config = {**entry.get("config", {}), **settings}
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
        # As the store has it: a batch is never larger than a segment.
        taken = TopicLimits(min(message_bytes, segment_bytes), before_ms, after_ms)
        topic_id = entry.get("topic_id", "")
        topics[name] = StagedTopic(
            count, taken, segment_bytes, topic_id if isinstance(topic_id, str) else ""
        )
    return topics


def _known_topics(store_path: Path) -> dict[str, dict[str, Any]]:
    """The store's topics as its file has them; none if it is unreadable: the driver checks too."""
    try:
        topics = loads_json(read_if_there(store_path / TOPICS_FILE) or b"")["topics"]
        return {name: entry for name, entry in topics.items() if not entry.get("deleting")}
    except (EoslogError, ValueError, KeyError, TypeError, AttributeError):
        return {}
