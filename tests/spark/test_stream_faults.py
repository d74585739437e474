"""`df.writeStream.format("eoslog")` when tasks, commits, queries or drivers go wrong."""

import time
from itertools import product

import pytest
from exactly_once import (
    LONGEST_WAIT_S,
    assert_exactly_once,
    assert_swept,
    wait_for_the_end_of,
    wait_until_swept,
)
from read_back import numbers_in
from short_form import short_form
from spark_jobs import add_file, start_files

import eoslog

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILE_ROWS = 300
FILES = 3
ALL = range(FILES * FILE_ROWS)
WENT_WRONG = r"on purpose|exited unexpectedly|crashed"


@pytest.fixture
def query(steered_spark, tmp_path, store_path, gates):
    """Start a query that lands the files in a folder, one a micro-batch, from its checkpoint."""
    for number in range(FILES):
        add_file(tmp_path / "in", f"{number}.txt", ALL[number * FILE_ROWS :][:FILE_ROWS])
    started = []

    def start(**options):
        arguments = {
            "folder": tmp_path / "in",
            "store": store_path,
            "checkpoint": tmp_path / "checkpoint",
            "gates": gates.folder,
            **options,
        }
        started.append(start_files(steered_spark, **arguments))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def versions(store_path):
    """The newest version of each query that wrote to the store."""
    with eoslog.open(store_path) as store:
        return {
            name: store.application(name).version
            for name in store.groups()
            if name.startswith("spark-")
        }


# Attempts at a task.


@pytest.mark.parametrize("action", short_form(["raise", "kill"], "kill"))
def test_an_attempt_that_dies_is_made_again(query, store_path, gates, action):
    gates.set("write 1 of batch 1", action)
    gates.set("staged 0 of batch 2", action)
    query().awaitTermination()
    assert gates.reached("write 1 of batch 1") == gates.reached("staged 0 of batch 2") == 1
    assert_exactly_once(store_path, ALL)
    assert list(versions(store_path).values()) == [FILES - 1]
    assert_swept(store_path)


@pytest.mark.long
def test_a_task_that_writes_on_after_the_query_failed_changes_nothing(query, store_path, gates):
    """The query is started anew while the failed one's task is still writing."""
    task, other = "write 0 of batch 1", "write 1 of batch 1"
    gates.set(task, "hold")
    gates.set(other, "hold")
    failing = query(tasks=2)
    gates.wait_for(task)
    gates.set(other, "fail")
    with pytest.raises(Exception, match="on purpose"):
        failing.awaitTermination()
    gates.set(task, "slow")
    gates.wait_for(task)  # It writes on, until Spark kills its process.
    gates.open(task)
    gates.open(other)
    assert numbers_in(store_path) == list(ALL[:FILE_ROWS])
    query(tasks=3).awaitTermination()
    assert_exactly_once(store_path, ALL)
    wait_for_the_end_of(gates.process_at(task))
    assert_exactly_once(store_path, ALL)
    wait_until_swept(store_path)


# The commit.


@pytest.mark.long
@pytest.mark.parametrize(
    ("action", "step"),
    short_form(
        product(("raise", "kill"), ("commit", "decided", "committed")),
        ("kill", "decided"),
    ),
)
def test_a_commit_that_goes_wrong_is_replayed(query, store_path, gates, step, action):
    """The replay has another run id and other tasks. Spark never knew that the batch was in."""
    gates.set(f"{step} of batch 1", action)
    with pytest.raises(Exception, match=WENT_WRONG):
        query().awaitTermination()
    landed = len(numbers_in(store_path))
    assert landed in (FILE_ROWS, 2 * FILE_ROWS)
    if step != "decided":
        assert landed == (2 if step == "committed" else 1) * FILE_ROWS
    query(tasks=2).awaitTermination()
    assert_exactly_once(store_path, ALL)
    assert list(versions(store_path).values()) == [FILES - 1]
    assert_swept(store_path)


# Queries that are stopped.


@pytest.mark.long
@pytest.mark.parametrize("step", short_form(["write 0", "staged 1"], "staged 1"))
def test_a_query_stopped_while_its_tasks_write_goes_on_where_it_was(query, store_path, gates, step):
    gates.set(f"{step} of batch 1", "hold")
    stopped = query(available_now=False)
    gates.wait_for(f"{step} of batch 1")
    stopped.stop()
    assert numbers_in(store_path) == list(ALL[:FILE_ROWS])
    # From here on the stopped run's task goes on, if its process is still there.
    gates.open(f"{step} of batch 1")
    query(tasks=2).awaitTermination()
    assert_exactly_once(store_path, ALL)
    wait_for_the_end_of(gates.process_at(f"{step} of batch 1"))
    assert_exactly_once(store_path, ALL)
    wait_until_swept(store_path)


@pytest.mark.long
@pytest.mark.parametrize("step", short_form(["commit", "decided"], "decided"))
def test_a_query_stopped_in_its_commit_has_committed(query, store_path, gates, background, step):
    """Spark waits for the commit, and does not write down that it was made."""
    gates.set(f"{step} of batch 1", "hold")
    stopped = query(available_now=False)
    gates.wait_for(f"{step} of batch 1")
    stopping = background(stopped.stop)
    until_s = time.monotonic() + LONGEST_WAIT_S
    while stopped.isActive:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    time.sleep(0.5)  # Next comes the interrupt; should it be late, no batch follows all the same.
    gates.open(f"{step} of batch 1")
    stopping.result()
    assert_exactly_once(store_path, ALL[: 2 * FILE_ROWS])
    query(tasks=2).awaitTermination()
    assert_exactly_once(store_path, ALL)
    assert_swept(store_path)
