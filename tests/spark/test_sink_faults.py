"""`df.write.format("eoslog")` when tasks, commits or the driver's Python go wrong: exactly once."""

import time
from itertools import product

import pytest
from exactly_once import (
    assert_exactly_once,
    assert_swept,
    wait_for_the_end_of,
    wait_until_swept,
)
from read_back import staged_files, values_in
from short_form import short_form
from spark_jobs import enter_thread, write_numbers

import eoslog

pytestmark = [pytest.mark.spark, pytest.mark.crash]

ROWS = 900
ALL = range(ROWS)
JOB = {"txnAppId": "job", "txnVersion": 0}


@pytest.fixture
def write(steered_spark, store_path, gates):
    """Land the rows of a range, all of them by default, as a batch job."""

    def write(rows=ALL, store=store_path, **options):
        enter_thread(steered_spark)
        write_numbers(steered_spark, store, gates.folder, rows.start, rows.stop, **options)

    return write


# Attempts at a task.


@pytest.mark.parametrize(
    ("action", "step"),
    short_form(
        product(("raise", "kill"), ("write 1", "staged 1")),
        ("kill", "staged 1"),
    ),
)
def test_an_attempt_that_dies_is_made_again(write, store_path, gates, step, action):
    gates.set(step, action)
    write()
    assert gates.reached(step) == 1
    assert_exactly_once(store_path, ALL)
    assert_swept(store_path)


def test_a_job_fails_with_its_task_and_leaves_nothing(write, store_path, gates):
    gates.set("write 1", "fail")
    with pytest.raises(Exception, match="goes wrong on purpose"):
        write(**JOB)
    assert gates.reached("write 1") == 3
    assert values_in(store_path) == []
    gates.open("write 1")
    write(**JOB, tasks=2)
    assert_exactly_once(store_path, ALL)
    # The other tasks of the job that failed may write on.
    wait_until_swept(store_path)


@pytest.mark.long
def test_a_task_that_writes_on_after_the_abort_changes_nothing(
    write, store_path, gates, background
):
    """The next job is run while the task of the failed one is still writing."""
    gates.set("write 0", "hold")
    gates.set("write 1", "hold")
    job = background(write, tasks=2, **JOB)
    gates.wait_for("write 0")
    gates.set("write 1", "fail")
    with pytest.raises(Exception, match="goes wrong on purpose"):
        job.result()
    gates.set("write 0", "slow")
    gates.wait_for("write 0")  # It writes on, until Spark kills its process.
    gates.open("write 0")
    gates.open("write 1")
    assert values_in(store_path) == []
    write(tasks=3, **JOB)
    assert_exactly_once(store_path, ALL)
    wait_for_the_end_of(gates.process_at("write 0"))
    assert_exactly_once(store_path, ALL)
    wait_until_swept(store_path, {"eoslog.staging.retention.ms": 1})


# The commit.


@pytest.mark.parametrize(
    ("action", "step"),
    short_form(
        product(("raise", "kill"), ("commit", "decided", "committed")),
        ("kill", "decided"),
    ),
)
def test_a_commit_that_goes_wrong_can_be_run_again(write, store_path, gates, step, action):
    """Spark calls abort after it, whatever the commit did. A job that is in stays in."""
    gates.set(step, action)
    with pytest.raises(Exception, match=r"on purpose|exited unexpectedly|crashed"):
        write(**JOB)
    assert gates.reached(step) == 1
    landed = len(values_in(store_path))
    assert landed in (0, ROWS)
    if step != "decided":
        assert landed == (ROWS if step == "committed" else 0)
    write(**JOB, tasks=2)
    assert_exactly_once(store_path, ALL)
    assert_swept(store_path)


def test_a_job_without_ids_that_fails_after_its_commit_is_in(write, store_path, gates):
    gates.set("committed", "raise")
    with pytest.raises(Exception, match="on purpose"):
        write()
    assert_exactly_once(store_path, ALL)
    assert_swept(store_path)


@pytest.mark.long
def test_a_job_whose_abort_dies_leaves_nothing_that_is_seen(write, store_path, gates, background):
    gates.set("write 1", "hold")
    gates.set("staged 0", "slow")
    gates.set("abort", "kill")
    job = background(write, **JOB)
    gates.wait_for("staged 0")
    gates.set("write 1", "fail")
    with pytest.raises(Exception, match="on purpose"):
        job.result()
    assert gates.reached("abort") == 1
    assert staged_files(store_path)
    gates.open("write 1")
    write(**JOB)
    assert_exactly_once(store_path, ALL)


# Several at once, and nothing at all.


@pytest.mark.long
def test_two_runs_of_one_version_at_once_land_it_once(write, store_path, gates, background):
    gates.set("commit", "hold")
    jobs = [background(write, **JOB), background(write, tasks=2, **JOB)]
    while gates.reached("commit") < 2:
        assert not all(job.done() for job in jobs)
        time.sleep(0.02)
    gates.open("commit")
    failed = [job.exception() for job in jobs]
    assert None in failed
    assert_exactly_once(store_path, ALL)


def test_jobs_at_once_on_one_store_all_land(write, store_path, background):
    """And the test's own process has the store open all the while, as an application has."""
    with eoslog.open(store_path) as store:
        jobs = [background(write, range(first, first + 300)) for first in (0, 300, 600)]
        for job in jobs:
            job.result()
        assert sum(store.snapshot(["orders"]).values()) == ROWS
    assert_exactly_once(store_path, ALL)


@pytest.mark.parametrize("tasks", [1, 3])
def test_an_empty_job_is_a_version_too(write, store_path, tasks):
    write(range(0), tasks=tasks, **JOB)
    with eoslog.open(store_path) as store:
        assert store.application("job").version == 0
    write(**JOB)
    assert_exactly_once(store_path, [])
    write(txnAppId="job", txnVersion=1)
    assert_exactly_once(store_path, ALL)


@pytest.mark.long
def test_versions_that_are_run_again_in_any_order_add_nothing(write, store_path):
    for version in (0, 1, 0, 1, 2, 1):
        write(range(version * 100, version * 100 + 100), txnAppId="job", txnVersion=version)
    assert_exactly_once(store_path, range(300))
    assert_swept(store_path)
