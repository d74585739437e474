"""Limits on the memory of Spark's Python processes: explained by name, and nothing is harmed."""

import errno
import os
import re
import subprocess
import sys

import lmdb
import pytest
from read_back import numbers_in, values_in
from spark_jobs import enter_thread

import eoslog
from eoslog.errors import StoreError
from eoslog.spark.memory_limit import PLANNER_SETTING, TASK_SETTING, MemoryLimitError, explained

# Written by a process that may map so many MB more than it has mapped when the store is known.
APPEND = """
import os, resource, sys
from pathlib import Path

import eoslog, eoslog.store.opening, eoslog.producer.producer
from eoslog.spark.memory_limit import explained

store_path, more_mb = sys.argv[1], int(sys.argv[2])
used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit_mb = used_bytes // 2**20 + more_mb
for variable in sys.argv[3:]:
    os.environ[variable] = str(limit_mb)
resource.setrlimit(resource.RLIMIT_AS, (limit_mb << 20, limit_mb << 20))
with explained(store_path), eoslog.open(store_path) as store, store.producer() as producer:
    producer.send("orders", value=b"v", partition=0)
"""


def append_under_limit(store_path, more_mb, *variables):
    command = [sys.executable, "-c", APPEND, store_path, str(more_mb), *variables]
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("PYSPARK_")
    }
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("PYSPARK_PLANNER_MEMORY_MB", f"{PLANNER_SETTING} allows this process"),
        ("PYSPARK_EXECUTOR_MEMORY_MB", f"{TASK_SETTING}, shared by an executor's tasks, allows"),
        (None, "ulimit -v allows"),
    ],
)
def test_a_segment_that_does_not_fit_names_the_setting(store_path, variable, words):
    answer = append_under_limit(store_path, 300, *filter(None, [variable]))
    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("eoslog.spark.memory_limit.MemoryLimitError: no memory for the files")
    assert words in last
    assert "segment.bytes" in last
    assert values_in(store_path) == []


@pytest.mark.long
@pytest.mark.spark
def test_a_limit_on_planning_fails_the_commit_by_name_and_harms_nothing(spark, store_path):
    from eoslog.spark import EoslogDataSource

    spark.dataSource.register(EoslogDataSource)
    rows = spark.range(0, 40, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    job = rows.write.format("eoslog").option("store", str(store_path)).option("topic", "orders")
    job = job.option("txnAppId", "job").option("txnVersion", 0).mode("append")
    enter_thread(spark)  # A call that was interrupted leaves this one with a new thread of Java's.
    spark.conf.set(PLANNER_SETTING, "600m")
    try:
        with pytest.raises(Exception, match="MemoryLimitError") as raised:
            job.save()
    finally:
        spark.conf.unset(PLANNER_SETTING)
    assert re.search(rf"MemoryLimitError.*{PLANNER_SETTING} .* 600 MB", str(raised.value))
    for _ in range(2):
        job.save()
        assert numbers_in(store_path) == list(range(40))


def test_with_room_for_a_segment_the_limit_does_no_harm(store_path):
    answer = append_under_limit(store_path, 1500)
    assert answer.returncode == 0, answer.stderr
    assert values_in(store_path) == [b"v"]


def test_a_small_segment_fits(tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("orders", partitions=1, config={"segment.bytes": 1 << 20})
    answer = append_under_limit(tmp_path / "store", 600)
    assert answer.returncode == 0, answer.stderr


def test_without_a_limit_an_error_stays_what_it_is(tmp_path):
    with pytest.raises(MemoryError, match="as it was"), explained(tmp_path):
        raise MemoryError("as it was")


def test_other_errors_stay_what_they_are_under_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("eoslog.spark.memory_limit.address_space_limit", lambda: 1 << 30)
    with pytest.raises(KeyError), explained(tmp_path):
        raise KeyError("k")
    with pytest.raises(RuntimeError, match="another one"), explained(tmp_path):
        raise RuntimeError("another one")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("t-0: a new segment file could not be made"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("_multiarray.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        lmdb.MemoryError("Cannot allocate memory"),
    ],
)
def test_want_of_memory_in_all_its_forms(tmp_path, monkeypatch, error):
    monkeypatch.setattr("eoslog.spark.memory_limit.address_space_limit", lambda: 1 << 30)
    with pytest.raises(MemoryLimitError, match="1024 MB"), explained(tmp_path):
        raise error
    with pytest.raises(MemoryLimitError, match="1024 MB"), explained(tmp_path):
        raise StoreError("opening") from error
