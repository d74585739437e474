"""Land a DataFrame with `write_partitions`, and write the same rows as Parquet: rows a second.

    compare_with_parquet.py [ROWS [VALUE_BYTES [ROUNDS]]]

Both are measured in one run, one after the other in each round, by the same Spark session; the best
round of each counts. "noop" is Spark alone, making the rows and throwing them away; "counted" hands
them to Python workers as Arrow batches. eoslog syncs what it landed before it returns; Parquet's
files are left to the system to write.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions

import eoslog
from eoslog.spark import session, write_partitions

TASKS = 4
NUMBER_BYTES = 12


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def main(rows: int, value_bytes: int, rounds: int, folder: Path) -> None:
    spark = session("compare with parquet")
    # Cheap to make, so that Spark's own part is small, and another value in every row.
    number = functions.lpad(functions.col("id").cast("string"), NUMBER_BYTES, "0")
    value = functions.concat(number, functions.lit("x" * (value_bytes - NUMBER_BYTES)))
    frame = spark.range(0, rows, 1, TASKS).select(value.cast("binary").alias("value"))
    parquet = frame.write.mode("overwrite").option("compression", "none")

    with eoslog.open(folder / "store", create=True) as store:
        writers: dict[str, Callable[[], object]] = {
            "noop": frame.write.format("noop").mode("overwrite").save,
            "counted in Python": frame.mapInArrow(count_rows, "rows long").collect,
            "parquet, no codec": lambda: parquet.parquet(f"file://{folder}/parquet"),
            "eoslog": lambda: write_partitions(frame, store, "rows", partitions=TASKS),
        }
        seconds: dict[str, list[float]] = {name: [] for name in writers}
        for write in writers.values():
            write()  # Starts the workers and compiles what Spark compiles.
        for _ in range(rounds):
            for name, write in writers.items():
                started_s = time.monotonic()
                write()
                seconds[name].append(time.monotonic() - started_s)
    spark.stop()

    print(f"{rows:,} rows of {value_bytes:,} bytes, {TASKS} tasks, best of {rounds}")
    for name, found in seconds.items():
        best_s = min(found)
        mb_per_s = rows * value_bytes / best_s / 1e6
        print(f"{name:20} {best_s:7.2f} s {rows / best_s:12,.0f} rows/s {mb_per_s:9,.0f} MB/s")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    made = Path(tempfile.mkdtemp(prefix="eoslog-compare-"))
    try:
        main(*(numbers + [1_000_000, 1_000, 3][len(numbers) :]), made)  # type: ignore[arg-type]
    finally:
        shutil.rmtree(made)
