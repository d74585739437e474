"""A driver that is killed before its decision leaves nothing, after it everything; never a part."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from read_back import numbers_in, staged_files, values_in
from short_form import short_form

import eoslog
from eoslog.spark import commit, stage, write_partitions

pytestmark = [pytest.mark.spark, pytest.mark.crash]

CHILD = Path(__file__).with_name("driver_child.py")
ROWS = 4_000
TASKS = 4


@pytest.fixture
def killed_child(tmp_path):
    """Run a driver that kills itself. Its Java and its workers may live on until the test ends."""
    started = []

    def run(*arguments):
        # A file, as a pipe would stay open as long as any of them lives.
        printed = tmp_path / "printed by the driver"
        with open(printed, "w") as out:
            command = [sys.executable, CHILD, *map(str, arguments)]
            child = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        started.append(child)
        assert child.wait(timeout=300) == -signal.SIGKILL, printed.read_text()

    yield run
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.long
def test_a_driver_killed_while_its_tasks_write_leaves_nothing(spark, store_path, killed_child):
    """The replay has another number of tasks; the first driver's staged files are never read."""
    killed_child("write", store_path, ROWS)
    # Of its run; what its workers, which may be alive, do in there is no matter.
    assert list((store_path / "staging" / "job").iterdir()), "its tasks had not begun"
    assert values_in(store_path) == []
    frame = spark.range(0, ROWS, 1, 3).selectExpr("CAST(id AS STRING) AS value")
    for committed in (True, False):
        result = write_partitions(frame, store_path, "orders", app_id="job", version=0)
        assert result.committed is committed
    assert numbers_in(store_path) == list(range(ROWS))


@pytest.fixture
def messages_path(tmp_path, store_path):
    """What the tasks of a job told their driver."""
    messages = []
    for number in range(TASKS):
        rows = [b"%d" % row for row in range(number, ROWS, TASKS)]
        messages += stage(
            rows,
            store=store_path,
            topic="orders",
            partitions=4,
            app_id="job",
            run_id="run",
            attempt=f"{number:06d}-{number}-0",
        )
    path = tmp_path / "messages.json"
    path.write_text(json.dumps([asdict(message) for message in messages]))
    return path


def test_a_driver_killed_just_before_its_decision_can_decide_again(
    store_path, messages_path, killed_child
):
    killed_child("commit", store_path, messages_path, "before the decision")
    assert values_in(store_path) == []
    messages = json.loads(messages_path.read_text())
    assert commit(messages, store=store_path, app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(ROWS))


@pytest.mark.parametrize("step", short_form(["after the decision", "1", "3", "last"], "1"))
def test_after_the_decision_whoever_opens_the_store_finds_all_of_it(
    store_path, messages_path, killed_child, step
):
    if step == "last":
        step = len(staged_files(store_path))
    killed_child("commit", store_path, messages_path, step)
    assert numbers_in(store_path) == list(range(ROWS))
    messages = json.loads(messages_path.read_text())
    assert not commit(messages, store=store_path, app_id="job", version=0).committed
    assert numbers_in(store_path) == list(range(ROWS))
    with eoslog.open(store_path) as store:
        assert store.application("job").version == 0
        assert store.verify() == []
