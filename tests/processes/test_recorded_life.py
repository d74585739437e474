"""Processes write down what they are told while they are killed, stopped and set to other times;
what they wrote is held against what a log promises.

    make soak MINUTES=10
    EOSLOG_SEED=7 EOSLOG_SOAK_MINUTES=0.5 pytest -m soak tests/processes/test_recorded_life.py

A life is half a minute of one store, with a seed of its own. When something is found, its store and
history are kept, and the failure says where, and how to repeat it: kills do not fall the same way
twice, but the same work meets the same ids, epochs and clocks.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from checking.recorded_worker import LANES
from harness.crew import BUSY, Crew, Member
from processes import recorded_programs as programs

from eoslog.checking import check

pytestmark = pytest.mark.crash

LIFE_S = 30.0
MEMBERS_COUNT = 6
# Of all members, those that look on.
WATCHING_PART = 0.15
PRODUCERS = 1_000_000
GROWN_BYTES_MAX = 64 << 20
KEPT = Path(os.environ.get("EOSLOG_SOAK_KEEP", "build/soak"))


@dataclass
class Told:
    """What all lives came to."""

    lives: int = 0
    kills: int = 0
    stops: int = 0
    rotated: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        work = ", ".join(f"{name} {count:,}" for name, count in sorted(self.done.items()))
        return (
            f"{self.lives} lives, {self.kills} kills, {self.stops} stops, {self.rotated} ids came "
            f"from their last epochs to new producer ids; {counts}; work done: {work}"
        )


class Life:
    """One store, from its beginning to the check of what was written down."""

    def __init__(self, root: Path, durability: str, seed: int, told: Told) -> None:
        self._root = root
        self._noise = random.Random(seed)
        self._seed = seed
        self._told = told
        self._durability = durability
        self._histories: list[Path] = []
        self._members: list[Member] = []

    def run(self, seconds: float) -> None:
        self._root.mkdir(parents=True)
        small = 1 << 16 if self._seed % 2 else 0
        path = self._root / "store"
        config = BUSY | {"log.retention.check.interval.ms": 3_600_000}
        with Crew(
            path, durability=self._durability, config=config, internal_segment_bytes=small
        ) as crew:
            host = crew.join("host")
            worn = host.call(programs.begin, self._seed)
            host.leave()
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                self._fill(crew)
                time.sleep(self._noise.random() * self._noise.choice((0.1, 0.5, 1.5)))
                self._disturb(crew)
            for member in list(self._members):
                self._kill(member)
            heir = crew.join("heir")
            last = self._history()
            heir.begin(programs.finish, str(last), worn)
            found = heir.answer(300)
            heir.leave(300)
        assert found["verify"] == []
        assert found["halves"] == []
        self._told.rotated += found["rotated"]
        self._judge()
        self._told.lives += 1

    def _history(self) -> Path:
        self._histories.append(self._root / f"history-{len(self._histories)}.jsonl")
        return self._histories[-1]

    def _fill(self, crew: Crew) -> None:
        while len(self._members) < MEMBERS_COUNT:
            member = crew.begin_to_join("worker")
            self._members.append(member)
            if self._noise.random() < WATCHING_PART:
                member.begin(programs.watch_index)
                continue
            lane, seed = self._noise.randrange(LANES), self._noise.randrange(1 << 30)
            member.begin(programs.work, str(self._history()), lane, seed)

    def _disturb(self, crew: Crew) -> None:
        chance = self._noise.random()
        if chance < 0.2:
            member = self._noise.choice(self._members)
            member.signal(signal.SIGSTOP)
            time.sleep(self._noise.random() * self._noise.choice((0.1, 1.0)))
            member.signal(signal.SIGCONT)
            self._told.stops += 1
            return
        # All at once: whoever comes next has the store to himself, and recovers it.
        count = len(self._members) if chance < 0.3 else self._noise.randint(1, 2)
        victims = self._noise.sample(self._members, count)
        for member in victims:
            member.signal(signal.SIGKILL)
        for member in victims:
            self._kill(member)
        crew.forget_the_dead()

    def _kill(self, member: Member) -> None:
        member.kill()
        self._members.remove(member)
        self._told.kills += 1
        for said in member.all_said:
            assert said.word != "failed", said.rest
            if said.word == "did" and said.rest[0] is not None:
                self._told.done[said.rest[0]] += 1
            elif said.word == "met":
                self._told.done[f"{said.rest[0]}: {said.rest[1]}"] += 1

    def _judge(self) -> None:
        report = check([one for one in self._histories if one.exists()], visible_within_s=30)
        assert report.clean, "\n".join(report.lines())
        assert report.counts["records_of_nobody"] == 0
        self._told.counts.update(report.counts)


@pytest.mark.long
def test_a_short_life(tmp_path):
    told = Told()
    Life(tmp_path / "life", "commit", 1, told).run(8)
    assert told.kills > 0
    assert told.counts["transactions"] > 20


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_everything_that_was_told_was_so(tmp_path):
    first = int(os.environ.get("EOSLOG_SEED", str(random.randrange(1 << 30))))
    minutes = float(os.environ.get("EOSLOG_SOAK_MINUTES", "5"))
    end_s = time.monotonic() + 60 * minutes
    told, seed = Told(), first
    while seed == first or time.monotonic() < end_s:
        root = tmp_path / f"life-{seed}"
        durability = ("process", "commit", "always")[seed % 3]
        print(f"recorded life: seed {seed}, durability {durability}", flush=True)
        try:
            Life(root, durability, seed, told).run(LIFE_S)
        except BaseException as error:
            kept = KEPT.absolute() / f"life-{seed}"
            shutil.rmtree(kept, ignore_errors=True)
            kept.parent.mkdir(parents=True, exist_ok=True)
            if root.exists():
                shutil.move(root, kept)
            error.add_note(f"the store and the history are kept in {kept}")
            error.add_note(
                f"to repeat it: EOSLOG_SEED={seed} EOSLOG_SOAK_MINUTES=0.5 pytest -m soak -s "
                "tests/processes/test_recorded_life.py"
            )
            raise
        shutil.rmtree(root)
        print(f"so far: {told}; no anomalies", flush=True)
        seed += 1
    print(f"recorded lives: first seed {first}, {told}; anomalies 0", flush=True)
    assert told.kills > 0
    assert told.counts["transactions"] > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_million_producers_in_bounded_memory(tmp_path):
    config = BUSY | {"eoslog.producers.cached.max": 10_000}
    with Crew(tmp_path / "store", durability="process", config=config) as crew:
        writer = crew.join("writer")
        writer.begin(programs.producers_in_bounded_memory, PRODUCERS, 1000)
        found = writer.answer(3000)
        print(json.dumps(found), flush=True)
        assert found["records"] == PRODUCERS
        assert found["known"] == PRODUCERS
        assert found["in_memory"] < 20_000
        assert found["grown_bytes"] < GROWN_BYTES_MAX
        writer.leave(600)
