"""The power goes while staged files become segments: each job is in once, or it is not.

What was committed with a durability that syncs stays. What a cut leaves is drawn from what was
really synced; a file with two names is one file.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash.adopt_jobs_child import numbers_of
from crash.disk_shadow import begin_shadow, build_library, cut_power, environment
from staged_jobs import APP, PARTITIONS, TOPIC, expected_numbers, stage_job, visible_numbers

import eoslog
from eoslog.staging import staged_job
from eoslog.store.store import parts_of

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("adopt_jobs_child.py")
CALLS_OF_TWO_JOBS = 300


class Machine:
    """A store on a disk whose power can be cut."""

    def __init__(self, root: Path, library: Path, durability: str, seed: int) -> None:
        root.mkdir(exist_ok=True)
        self.store, self.shadow, self.after = root / "store", root / "shadow", root / "after"
        self.said = root / "said"
        self.library, self.durability = library, durability
        self.noise = random.Random(seed)
        self.versions = 0  # How many are in for certain.
        with eoslog.open(self.store, create=True) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)

    def run(self, die_at: int) -> None:
        """Let a child commit jobs until it dies."""
        begin_shadow(self.store, self.shadow)
        with self.said.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), self.store, self.durability, str(self.versions)],
                stdout=output,
                stderr=subprocess.PIPE,
                env=environment(self.library, self.store, self.shadow, die_at),
            )
        deadline_s = time.monotonic() + 20
        while child.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.005)
        child.send_signal(signal.SIGUSR1)
        _, errors = child.communicate()
        assert child.returncode == -signal.SIGKILL, errors.decode()
        self.committed = [int(line) for line in self.said.read_text().split("\n")[1:-1]]

    def look_at_cuts(self, count: int) -> None:
        """Several cuts of the same moment; the machine goes on with the last one."""
        for _ in range(count):
            shutil.rmtree(self.after, ignore_errors=True)
            cut_power(self.store, self.shadow, self.after, self.noise)
            found = self.check(self.after)
        self.versions = found
        shutil.rmtree(self.store)
        self.after.rename(self.store)

    def check(self, path: Path) -> int:
        """How many versions are in; then the next one is committed, once."""
        with eoslog.open(path, durability=self.durability) as store:
            state = store.application(APP)
            count = 0 if state is None else state.version + 1
            promised = max(self.committed, default=self.versions - 1) + 1
            assert promised <= count <= promised + 1
            assert state is None or state.state == "complete"
            assert visible_numbers(store) == expected_numbers(*map(numbers_of, range(count)))
            assert store.verify() == []
            run_id = store.begin_run(APP)
            for version in (count - 1, count):
                if version >= 0:
                    messages = stage_job(path, run_id, numbers_of(version), name=f"{version}-")
                    done = store.commit_staged(APP, version, messages, run_id)
                    assert done.committed == (version == count)
            parts_of(store).staged.sweep()
        with eoslog.open(path, durability=self.durability) as store:
            assert visible_numbers(store) == expected_numbers(*map(numbers_of, range(count + 1)))
            assert store.verify() == []
        for file in path.glob(f"{TOPIC}-*/*"):
            assert file.stat().st_nlink == 1
        return count + 1


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


def cut_again_and_again(root: Path, library: Path, durability: str, seed: int, rounds: int) -> int:
    machine = Machine(root, library, durability, seed)
    for number in range(rounds):
        die_at = machine.noise.randint(1, CALLS_OF_TWO_JOBS)
        try:
            machine.run(die_at)
            machine.look_at_cuts(3)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}, died at call {die_at}")
            raise
    return machine.versions


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of every size become segments."""
    monkeypatch.setattr(staged_job, "WHOLE_FILE_BYTES_MIN", 0)


@pytest.mark.long
@pytest.mark.every_nth(2)
@pytest.mark.parametrize("durability", ["commit", "always"])
def test_cuts_while_files_become_segments(tmp_path, library, durability):
    assert cut_again_and_again(tmp_path, library, durability, seed=5, rounds=4) >= 4


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["commit", "always"])
def test_many_cuts_while_files_become_segments(tmp_path, library, durability):
    for seed in range(10, 18):
        cut_again_and_again(tmp_path / str(seed), library, durability, seed, rounds=25)
        shutil.rmtree(tmp_path / str(seed))
