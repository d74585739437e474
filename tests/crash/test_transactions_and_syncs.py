"""Transactions and the syncs that were really made: cuts and deaths at any call of the system.

Nothing here relies on what the store says of its own recovery points: a preloaded library notes
what each sync covered. A C compiler is needed.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crash.disk_shadow import begin_shadow, build_library, cut_power, environment
from crash.numbered import Numbered
from crash.test_killed_transactions import HERE, LANES, Said, check, make_store

import eoslog

pytestmark = pytest.mark.crash

CHILD = HERE / "kill_transactions_child.py"
DURABILITIES = ("commit", "always")
ROUNDS_MAX = 100


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


class Machine:
    """A store on a disk whose power can be cut."""

    def __init__(self, root: Path, library: Path, durability: str, seed: int) -> None:
        self.root = root
        self.library = library
        self.durability = durability
        self.noise = random.Random(seed)
        self.known = Said()
        self.store = root / "store"
        self.shadow = root / "shadow"
        root.mkdir(exist_ok=True)
        make_store(self.store, tuple(self.noise.choice((0, 32_760, 32_766)) for _ in range(LANES)))

    def run(self, seed: int, die_at: int = 0) -> bool:
        """Let a child work until it dies, or is killed; whether it said anything."""
        begin_shadow(self.store, self.shadow)
        said = self.root / "said"
        with said.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, str(CHILD), self.store, str(seed), self.durability],
                stdout=output,
                stderr=subprocess.PIPE,
                env=environment(self.library, self.store, self.shadow, die_at),
            )
        deadline_s = time.monotonic() + 10
        while said.stat().st_size == 0 and child.poll() is None:
            time.sleep(0.002)
        if die_at == 0:
            time.sleep(self.noise.random() * self.noise.choice((0.02, 0.1, 0.4)))
        else:
            while child.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.005)
        child.send_signal(signal.SIGUSR1)
        _, errors = child.communicate()
        assert child.returncode == -signal.SIGKILL, errors.decode()
        text = said.read_text()
        self.known.take(text[: text.rfind("\n") + 1])
        return bool(text)

    def look_at_cuts(self, count: int) -> None:
        """Several cuts of the same moment; the machine goes on with the last one."""
        for number in range(count):
            target = self.root / "after"
            cut_power(self.store, self.shadow, target, self.noise)
            kept = target if number < count - 1 else self.root / "kept"
            if kept is not target:
                shutil.copytree(target, kept)
            known = copy.deepcopy(self.known)
            with eoslog.open(target, durability=self.durability) as store:
                check(store, known)
            shutil.rmtree(target)
        self.known = known
        shutil.rmtree(self.store)
        kept.rename(self.store)


def cut_again_and_again(root: Path, library: Path, durability: str, seed: int, rounds: int) -> Said:
    machine = Machine(root, library, durability, seed)
    # On a slow machine a child may be killed before it got anything done: then there are more.
    for number in range(ROUNDS_MAX):
        if number >= rounds and machine.known.acks:
            break
        # Half of the deaths come at a call, so also in the middle of an opening.
        die_at = machine.noise.choice((0, machine.noise.randint(1, 60)))
        try:
            machine.run(seed * 1000 + number, die_at)
            machine.look_at_cuts(3)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}, died at call {die_at or '-'}")
            raise
    return machine.known


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_cuts_of_what_was_really_synced(tmp_path, library, durability):
    known = cut_again_and_again(tmp_path, library, durability, seed=3, rounds=4)
    assert known.acks > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_many_cuts_of_what_was_really_synced(tmp_path, library, durability):
    first = int(os.environ.get("EOSLOG_SEED", "10"))
    for seed in range(first, first + int(os.environ.get("EOSLOG_KILL_ROUNDS", "4"))):
        known = cut_again_and_again(tmp_path / str(seed), library, durability, seed, rounds=40)
        assert known.acks > 0
        shutil.rmtree(tmp_path / str(seed))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_the_process_dies_at_each_call(tmp_path, library, durability):
    """One death at each of the first calls that sync, rename or remove something."""
    machine = Machine(tmp_path, library, durability, seed=1)
    machine.run(1)
    copied = tmp_path / "copy"
    for die_at in range(1, 100):
        machine.run(die_at, die_at)
        # The next one finds what this one left.
        shutil.copytree(machine.store, copied)
        with eoslog.open(copied, durability=durability) as store, Numbered(f"call {die_at}"):
            check(store, machine.known)
        shutil.rmtree(copied)
