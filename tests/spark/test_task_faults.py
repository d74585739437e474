"""Tasks that fail, are killed, run twice, or write on when the job is over: exactly once."""

import time
from itertools import product
from pathlib import Path

import pytest
from faults import FailWhileAnotherWrites, Fault
from read_back import numbers_in, staged_files, values_in
from short_form import short_form

import eoslog
from eoslog.errors import StagedCommitError, StagedRunFencedError
from eoslog.spark import MESSAGE_SCHEMA, SparkJobFailedError, commit, stage, write_partitions
from eoslog.staging.writer import StagedWriter

pytestmark = [pytest.mark.spark, pytest.mark.crash]

ROWS = 3_000
TASKS = 3


@pytest.fixture
def frame(spark):
    return spark.range(0, ROWS, 1, TASKS).selectExpr("CAST(id AS STRING) AS value")


@pytest.fixture
def small_batches(spark):
    """Ten Arrow batches a task, so that a fault can come between two."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, str(ROWS // TASKS // 10))
    yield
    spark.conf.set(name, before)


# Attempts that do not make it.


# At once, half-way, and at the end.
@pytest.mark.parametrize(
    ("kind", "after"),
    short_form(product(("raise", "kill"), (0, 1, 10)), ("kill", 1), ("raise", 10)),
)
def test_a_task_that_dies_is_tried_again(small_batches, frame, store_path, kind, after):
    fault = Fault(kind, partition=1, after=after)
    result = write_partitions(frame, store_path, "orders", each_task=fault)
    assert numbers_in(store_path) == list(range(ROWS))
    assert (result.records, result.task_retries) == (ROWS, 1)
    assert staged_files(store_path) == []


@pytest.mark.parametrize("kind", short_form(["raise", "kill"], "raise"))
def test_a_task_of_an_rdd_that_dies_is_tried_again(spark, store_path, kind):
    rows = spark.sparkContext.parallelize([b"%d" % number for number in range(ROWS)], TASKS)
    fault = Fault(kind, partition=2, after=500)
    result = write_partitions(rows, store_path, "orders", each_task=fault)
    assert numbers_in(store_path) == list(range(ROWS))
    assert result.task_retries == 1


def test_a_task_may_die_twice(small_batches, frame, store_path):
    fault = Fault("kill", partition=0, attempts=2, after=4)
    result = write_partitions(frame, store_path, "orders", each_task=fault)
    assert numbers_in(store_path) == list(range(ROWS))
    assert result.task_retries == 1


@pytest.mark.parametrize(
    ("kind", "words"),
    short_form(
        [("raise", "goes wrong on purpose"), ("kill", "Python worker exited unexpectedly")],
        ("kill", "Python worker exited unexpectedly"),
    ),
)
def test_a_task_that_dies_every_time_fails_the_job(small_batches, frame, store_path, kind, words):
    fault = Fault(kind, partition=1, attempts=99, after=5)
    with pytest.raises(SparkJobFailedError, match=words) as caught:
        write_partitions(frame, store_path, "orders", app_id="job", version=0, each_task=fault)
    assert caught.value.retriable
    assert values_in(store_path) == []
    assert write_partitions(frame, store_path, "orders", app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(ROWS))


def test_a_task_that_writes_on_after_the_job_has_failed_changes_nothing(
    spark, store_path, tmp_path
):
    zombie = FailWhileAnotherWrites(str(tmp_path))
    rows = spark.sparkContext.parallelize([b"%d" % number for number in range(60)], 2)
    with pytest.raises(SparkJobFailedError, match="fails for good"):
        write_partitions(rows, store_path, "orders", app_id="job", version=0, each_task=zombie)
    at_failure = rows_written(tmp_path)
    # The job is run again while the task of the first run may still be writing.
    assert write_partitions(rows, store_path, "orders", app_id="job", version=0).committed
    assert rows_written(tmp_path) >= at_failure > 0
    assert numbers_in(store_path) == list(range(60))
    wait_until_it_stands_still(tmp_path)
    assert numbers_in(store_path) == list(range(60))


def rows_written(folder: Path) -> int:
    return int((folder / "written").read_text())


def wait_until_it_stands_still(folder: Path) -> None:
    before = -1
    while (now := rows_written(folder)) != before:
        before = now
        time.sleep(0.3)


# The two halves by themselves, as a user's own code has them.


def staged(frame, store_path, run_id="run", app_id="job"):
    """Run the tasks of a job and return their messages."""
    path = str(store_path)

    def tasks(batches):
        return stage(
            batches, store=path, topic="orders", partitions=4, app_id=app_id, run_id=run_id
        )

    return frame.mapInArrow(tasks, MESSAGE_SCHEMA).collect()


def test_nothing_is_visible_before_the_decision(frame, store_path):
    messages = staged(frame, store_path)
    assert len(messages) == TASKS
    assert values_in(store_path) == []
    result = commit(messages, store=store_path, app_id="job", version=0)
    assert (result.committed, result.records) == (True, ROWS)
    assert numbers_in(store_path) == list(range(ROWS))


def test_stage_in_a_map_partitions_of_the_user(spark, store_path):
    path = str(store_path)
    rows = spark.sparkContext.parallelize([(b"k%d" % n, b"%d" % n) for n in range(100)], 4)
    messages = rows.mapPartitions(
        lambda pairs: stage(
            pairs, store=path, topic="orders", partitions=4, app_id="job", run_id="run"
        )
    ).collect()
    with eoslog.open(store_path) as store:
        assert commit(messages, store=store, app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(100))


def test_an_action_that_takes_only_some_messages_lands_whole_partitions(spark, store_path):
    path = str(store_path)
    rows = spark.sparkContext.parallelize([b"%d" % number for number in range(90)], 3)
    first = rows.mapPartitions(
        lambda values: stage(
            values, store=path, topic="orders", partitions=4, app_id="job", run_id="run"
        )
    ).first()
    commit([first], store=store_path, app_id="job", version=0)
    assert numbers_in(store_path) == list(range(30))


def test_two_attempts_at_every_task_and_one_decision(frame, store_path):
    """What speculation does: both attempts stage all their rows, the driver takes one."""
    winners, losers = staged(frame, store_path), staged(frame, store_path)
    assert commit(winners, store=store_path, app_id="job", version=0).committed
    assert not commit(losers, store=store_path, app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(ROWS))
    assert staged_files(store_path) == []


def test_an_attempt_that_goes_on_after_the_decision_changes_nothing(frame, store_path):
    counts = {"orders": 4}
    zombie = StagedWriter(store_path, "job", "run", "000000-zombie-0", partitions=counts)
    zombie.append("orders", 0, [b"-7"] * 10)
    assert commit(staged(frame, store_path), store=store_path, app_id="job", version=0).committed
    zombie.append("orders", 0, [b"-8"] * 10)
    try:
        message = zombie.close()
    except StagedCommitError:
        pass  # Its directory was swept under it.
    else:
        assert not commit([message], store=store_path, app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(ROWS))


def test_a_message_that_was_handed_in_twice_is_refused(frame, store_path):
    messages = staged(frame, store_path)
    with pytest.raises(ValueError, match="given twice"):
        commit([*messages, messages[0]], store=store_path, app_id="job", version=0)
    assert values_in(store_path) == []
    assert commit(messages, store=store_path, app_id="job", version=0).committed


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "longer"])
def test_a_staged_file_that_is_not_what_its_message_says_is_refused(frame, store_path, damage):
    messages = staged(frame, store_path)
    victim = staged_files(store_path)[0]
    data = bytearray(victim.read_bytes())
    if damage == "gone":
        victim.unlink()
    else:
        if damage == "cut":
            del data[-1]
        elif damage == "flipped":
            data[len(data) // 2] ^= 1
        else:
            data += b"\0"
        victim.write_bytes(data)
    with pytest.raises(StagedCommitError):
        commit(messages, store=store_path, app_id="job", version=0)
    assert values_in(store_path) == []


def test_a_run_that_was_overtaken_is_fenced(frame, store_path):
    with eoslog.open(store_path) as store:
        older = store.begin_run("job")
        newer = store.begin_run("job")
    from_older = staged(frame, store_path, older)
    with pytest.raises(StagedRunFencedError):
        commit(from_older, store=store_path, app_id="job", version=0)
    assert values_in(store_path) == []
    from_newer = staged(frame, store_path, newer)
    assert commit(from_newer, store=store_path, app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(ROWS))


def test_messages_of_several_runs_are_refused(frame, store_path):
    messages = staged(frame, store_path, "one") + staged(frame, store_path, "two")
    with pytest.raises(StagedCommitError):
        commit(messages, store=store_path, app_id="job", version=0)
    assert values_in(store_path) == []


@pytest.mark.parametrize("wrong", [None, 3, ("a", "b"), "[]"])
def test_what_is_no_message_is_refused(store_path, wrong):
    with pytest.raises(TypeError, match="message of stage"):
        commit([wrong], store=store_path, app_id="job", version=0)
