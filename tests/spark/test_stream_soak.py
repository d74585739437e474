"""Queries whose tasks, commits and drivers die at random, again and again, on one checkpoint.

`EOSLOG_SEED` gives other deaths, `EOSLOG_KILL_MINUTES` says for how long it goes on.
"""

import contextlib
import os
import random
import time

import pytest
from exactly_once import assert_exactly_once, wait_until_swept
from remote_driver import RemoteDriver
from spark_jobs import add_file, start_files

import eoslog

pytestmark = [pytest.mark.spark, pytest.mark.soak]

MASTER = "local[4,2]"
TASK_STEPS = ("write 0", "write 1", "staged 0", "staged 1")
COMMIT_STEPS = ("commit", "decided", "committed", "abort")
ROUND_S = 12.0


class Rounds:
    """A folder of files that grows, and drivers that land it, of which each is killed."""

    def __init__(self, path, store_path, gates, seed):
        self.noise = random.Random(seed)
        self.path = path
        self.store = store_path
        self.gates = gates
        self.rows = 0
        self.started = 0
        self.deaths = 0
        self.faults = 0

    def run(self):
        """One driver, at times two, and its death."""
        drivers = [self.driver() for _ in range(self.noise.choice((1, 1, 1, 2)))]
        try:
            for driver in drivers:
                driver.wait_until_up()
            # They are at work before anything goes wrong.
            self.gates.set("commit", "slow")
            self.add()
            runs = [self.begin(driver) for driver in drivers]
            self.gates.wait_for("commit")
            self.gates.open("commit")
            until_s = time.monotonic() + self.noise.uniform(1.0, ROUND_S)
            while time.monotonic() < until_s:
                self.add()
                step, action = self.fault()
                self.gates.set(step, action)
                time.sleep(self.noise.uniform(0.1, 0.6))
                self.faults += self.gates.reached(step)
                for number, driver in enumerate(drivers):
                    if self.is_over(driver, runs[number]):
                        runs[number] = self.begin(driver)
        finally:
            for driver in drivers:
                driver.kill()
                self.deaths += 1

    def driver(self):
        self.started += 1
        return RemoteDriver(self.path / f"driver-{self.started}.log", MASTER)

    def begin(self, driver):
        return driver.begin(
            "stream_files",
            **self.query,
            tasks=self.noise.randint(1, 4),
            available_now=self.noise.random() < 0.3,
        )

    def is_over(self, driver, run):
        """Whether a run has ended; a failure is what these runs are for."""
        with contextlib.suppress(RuntimeError):
            return driver.has_ended(run)
        return True

    def fault(self):
        if self.noise.random() < 0.5:
            return self.noise.choice(TASK_STEPS), self.noise.choice(("raise", "kill", "slow"))
        return self.noise.choice(COMMIT_STEPS), self.noise.choice(("raise", "kill"))

    def add(self):
        count = self.noise.randint(1, 300)
        rows = range(self.rows, self.rows + count)
        add_file(self.path / "in", f"{self.rows:09d}.txt", rows)
        self.rows += count

    def open_all(self):
        for step in TASK_STEPS + COMMIT_STEPS:
            self.gates.open(step)

    @property
    def query(self):
        return {
            "folder": self.path / "in",
            "store": self.store,
            "checkpoint": self.path / "checkpoint",
            "gates": self.gates.folder,
        }


@pytest.mark.timeout(3600)
def test_a_query_lands_each_row_once_whatever_dies(steered_spark, tmp_path, store_path, gates):
    seed = int(os.environ.get("EOSLOG_SEED", "1"))
    end_s = time.monotonic() + 60 * float(os.environ.get("EOSLOG_KILL_MINUTES", "5"))
    rounds = Rounds(tmp_path, store_path, gates, seed)
    rounds.add()
    while time.monotonic() < end_s:
        rounds.run()
        rounds.open_all()
        # Readers, and a process that opens the store, must find it whole after each death.
        with eoslog.open(store_path) as store:
            assert store.verify() == []
        start_files(steered_spark, **rounds.query).awaitTermination()
        assert_exactly_once(store_path, range(rounds.rows))
    assert rounds.deaths
    assert rounds.faults
    wait_until_swept(store_path)
