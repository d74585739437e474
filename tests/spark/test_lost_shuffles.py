"""Shuffle files that are gone when tasks fetch them: Spark runs stages again, rows land once."""

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from exactly_once import LONGEST_WAIT_S, assert_exactly_once, wait_until_swept

from eoslog.spark import write_partitions

pytestmark = [pytest.mark.spark, pytest.mark.crash]

ROWS = 900
MAP_TASKS = 2
# More than run at a time: some begin when the files are gone.
TASKS = 7


class LostShuffle(NamedTuple):
    """The first task to write anything removes all shuffle files, once a job; no other one goes on
    before they are gone.
    """

    folder: str
    spark_folder: str

    def count_maps(self, rows):
        """For the tasks before the shuffle."""
        with Path(self.folder, "maps").open("a") as runs:
            runs.write("m")
        return rows

    def __call__(self, rows):
        for number, row in enumerate(rows):
            yield row
            if number == 0:
                self._lose()

    def _lose(self):
        begun, lost = Path(self.folder, "begun"), Path(self.folder, "lost")
        try:
            begun.touch(exist_ok=False)
        except FileExistsError:
            until_s = time.monotonic() + LONGEST_WAIT_S
            while not lost.exists():
                assert time.monotonic() < until_s, "nobody removes the files"
                time.sleep(0.01)
            return
        for path in Path(self.spark_folder).glob("blockmgr-*/*/shuffle_*"):
            path.unlink(missing_ok=True)
        lost.touch()

    @property
    def map_runs(self):
        return len(Path(self.folder, "maps").read_text())


@pytest.fixture
def loss(spark, tmp_path):
    folder = tmp_path / "loss"
    folder.mkdir()
    return LostShuffle(str(folder), spark.sparkContext.getConf().get("spark.local.dir"))


@pytest.fixture
def shuffled(spark, loss):
    """Rows behind a shuffle."""
    numbers = spark.range(0, ROWS, 1, MAP_TASKS).selectExpr("CAST(id AS STRING) AS value")
    return numbers.mapInArrow(loss.count_maps, "value string").repartition(TASKS)


def assert_run_again(loss, store_path):
    assert loss.map_runs > MAP_TASKS, "no stage was run again"
    assert_exactly_once(store_path, range(ROWS))
    # A task of a stage that was run again may write on.
    wait_until_swept(store_path)


@pytest.mark.long
def test_a_frame_is_written_once(shuffled, loss, store_path):
    options = {"store": store_path, "topic": "orders"}
    frame = shuffled.mapInArrow(loss, "value string")
    frame.write.format("eoslog").options(**options).mode("append").save()
    assert_run_again(loss, store_path)


@pytest.mark.long
def test_partition_writers_write_once(shuffled, loss, store_path):
    result = write_partitions(shuffled, store_path, "orders", each_task=loss)
    assert result.records == ROWS
    assert_run_again(loss, store_path)


@pytest.mark.soak
def test_an_rdd_is_written_once(spark, loss, store_path):
    rows = spark.sparkContext.parallelize([b"%d" % number for number in range(ROWS)], MAP_TASKS)
    shuffled = rows.mapPartitions(loss.count_maps).repartition(TASKS)
    result = write_partitions(shuffled, store_path, "orders", each_task=loss)
    assert result.records == ROWS
    assert_run_again(loss, store_path)
