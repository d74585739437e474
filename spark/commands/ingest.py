"""Land whole files in a topic, exactly once, through Spark.

The application id makes a second run a no-op. Without one it is made of the topic and the contents
of the files: the same data is landed once in a topic, whatever its files are called and when. The
name of the run that landed it says with which row format: another one is refused.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import eoslog
from eoslog.errors import InvalidRequestError
from eoslog.spark.active_session import is_connect
from eoslog.spark.commands.input_files import (
    InputFileError,
    InputFolder,
    check_files,
    fingerprint,
    lay_out,
)
from eoslog.spark.commands.row_frame import (
    SESSION_SETTINGS,
    RowFormat,
    check_key_columns,
    fault_of,
    row_frame,
)
from eoslog.spark.failure_reason import reason_of
from eoslog.spark.partition_writer import EachTask, SparkJobFailedError, write_run
from eoslog.spark.spark_session import LOCAL_MASTER, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

DEFAULT_PARTITIONS = 1
INGEST_VERSION = 0
# Smaller than Spark's 128 MB: more tasks, so that less is done again when one is lost.
SPLIT_BYTES = 32 << 20


@dataclass(frozen=True)
class IngestResult:
    """Result of an ingestion: `committed` is False if the id was in the log already."""

    app_id: str
    topic: str
    committed: bool
    records: int
    seconds: float
    task_retries: int


def ingest(
    files: Iterable[str | os.PathLike[str]],
    *,
    topic: str,
    store: str | os.PathLike[str],
    row_format: RowFormat | None = None,
    partitions: int | None = None,
    app_id: str | None = None,
    spark: "SparkSession | None" = None,
    master: str = LOCAL_MASTER,
    log_path: str | os.PathLike[str] | None = None,
    split_bytes: int = SPLIT_BYTES,
    each_task: EachTask | None = None,
    console: "Console | None" = None,
) -> IngestResult:
    """Land every row of the files in the topic, all at once, unless `app_id` was landed before.

    The store and the topic are made where there are none, the topic with `partitions` (1). `spark`
    is started with `master` and `log_path` if it is not given, but not for files that are in the
    log already. `console` shows progress, if it is a terminal. `seconds` of the result begins when
    Spark runs. `each_task` is that of `write_partitions`.

    Raises InputFileError for files that are missing, damaged or of unknown format, for a key of
    unknown columns and for CSV rows that are broken, InvalidRequestError for an `app_id` that was
    landed with another row format, SparkJobFailedError for lines and Parquet rows that no record
    can be made of, both with their place, MissingDependencyError, JavaNotFoundError; nothing is in
    the log then.
    """
    row_format = row_format or RowFormat()
    paths = check_files((Path(file) for file in files), row_format.file_format)
    job_id = app_id or f"ingest-{topic}-{fingerprint(paths)}"
    with tempfile.TemporaryDirectory(prefix="eoslog-ingest-") as folder:
        inputs = lay_out(paths, Path(folder), row_format.file_format)
        check_key_columns(inputs, row_format)
        run_name = f"rows-{row_format.digest(inputs.file_format)}-"
        with eoslog.open(store, create=True) as log:
            done = log.application(job_id)
            if done is not None and done.version >= INGEST_VERSION:
                _check_run(job_id, done.run_id, run_name)
                return IngestResult(job_id, topic, False, 0, 0.0, 0)
            if topic not in log.topics():
                partitions = partitions or DEFAULT_PARTITIONS
            spark = spark or session("eoslog ingest", master, log_path=log_path)
            started_s = time.monotonic()
            with _progress(spark, console, f"ingest into {topic}"), _settings_kept(spark):
                with _named_errors(inputs, row_format.key):
                    frame = row_frame(spark, inputs, row_format, split_bytes)
                with _named_faults(inputs, row_format):
                    result = write_run(
                        frame,
                        log,
                        topic,
                        run_id=f"{run_name}{uuid.uuid4().hex}",
                        app_id=job_id,
                        version=INGEST_VERSION,
                        partitions=partitions,
                        each_task=each_task,
                    )
            seconds = time.monotonic() - started_s
    return IngestResult(
        job_id, topic, result.committed, result.records, seconds, result.task_retries
    )


def _check_run(job_id: str, run_id: str | None, run_name: str) -> None:
    """Raise InvalidRequestError if a job was landed with another row format, as far as is known."""
    if run_id is not None and run_id.startswith("rows-") and not run_id.startswith(run_name):
        raise InvalidRequestError(
            f"{job_id} is in already, landed with another key or format: nothing was landed now. "
            "Give the options of then, or another id (--id) to land the rows again"
        )


@contextmanager
def _progress(spark: "SparkSession", console: "Console | None", what: str) -> Iterator[None]:
    if console is None or is_connect(spark):  # Spark Connect does not say how far tasks are.
        yield
        return
    from eoslog.spark.commands.job_progress import job_progress

    with job_progress(spark, console, what):
        yield


@contextmanager
def _settings_kept(spark: "SparkSession") -> Iterator[None]:
    """Put back what `row_frame` sets in the session."""
    before = {name: spark.conf.get(name) for name in SESSION_SETTINGS}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                spark.conf.set(name, value)


@contextmanager
def _named_errors(inputs: InputFolder, key: str | None) -> Iterator[None]:
    """Turn what Spark says about the files and the key into an InputFileError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        with_key = f" with the key {key!r}" if key is not None else ""
        raise InputFileError(
            f"Spark cannot read the files{with_key}: {inputs.named(reason_of(error))}"
        ) from error


@contextmanager
def _named_faults(inputs: InputFolder, row_format: RowFormat) -> Iterator[None]:
    """Let a job's failure name the file, and the line, that no record can be made of."""
    try:
        yield
    except SparkJobFailedError as error:
        place = fault_of(inputs, row_format)
        words = inputs.named(str(error))
        raise SparkJobFailedError(f"{words} ({place})" if place else words) from error
