"""Writers, readers and loops on one store are killed at random, again and again, and come back.

Afterwards nothing that was acknowledged is lost, nothing is there twice, no record of an aborted
transaction was read by anybody who reads committed ones, outputs and offsets agree, and each
producer's records stand in its order. A round ends in one of two ways: all are killed and the next
opener recovers the store, or all but one are, and that one must bring everything to an end.

`EOSLOG_SEED` gives other kills, `EOSLOG_KILL_MINUTES` says for how long the soak goes on.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.crew import Crew, Member
from processes import kill_programs as programs
from processes.kill_checks import Known
from processes.kill_programs import COPIES, EVENTS, LANES, PARTITIONS, SHARES
from read_only_stores import check_reading
from stores import start_at_epoch

import eoslog

pytestmark = pytest.mark.crash

# The first two have one hash, and so share a partition of the state log.
TRANSACTIONAL_IDS = ("AaAa", "BBBB", "lane-2", "lane-3")
APPLICATION = "bulk"
LANES_OF_NUMBERS = (*TRANSACTIONAL_IDS, APPLICATION)
SILENT_MAX_S = 60.0
DECIDED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Role:
    """A place that is filled anew whenever its holder was killed."""

    name: str
    program: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    joins: bool = True
    isolation_level: str = "read_committed"


ROLES = (
    *(
        Role(name, programs.transactions, (name, number))
        for number, name in enumerate(TRANSACTIONAL_IDS)
    ),
    Role(APPLICATION, programs.loads, (APPLICATION, len(TRANSACTIONAL_IDS))),
    *(Role(f"named-{number}", programs.named, (f"named-{number}", number)) for number in range(2)),
    Role("plain", programs.plain),
    *(Role(f"copies-{number}", programs.copies, (number,)) for number in range(PARTITIONS)),
    *(Role(f"member-{number}", programs.shares, (f"member-{number}",)) for number in range(3)),
    Role("reader", programs.watches, ("read_committed",)),
    Role("dirty", programs.watches, ("read_uncommitted",), isolation_level="read_uncommitted"),
    Role("onlooker", programs.looks_on, ("read_committed",), joins=False),
    Role(
        "dirty-onlooker",
        programs.looks_on,
        ("read_uncommitted",),
        joins=False,
        isolation_level="read_uncommitted",
    ),
    Role("operator", programs.operates),
    Role("guest", programs.opens_and_closes, joins=False),
)


@dataclass
class Holder:
    """A process in a role."""

    role: Role
    member: Member
    heard_s: float = field(default_factory=time.monotonic)


class KillLoop:
    """One store's life: rounds of work and kills."""

    def __init__(self, root: Path, durability: str, seed: int) -> None:
        self.path = root / "store"
        self.durability = durability
        self.noise = random.Random(seed)
        self.known = Known(transactional={name: at for at, name in enumerate(LANES_OF_NUMBERS)})
        self.kills = 0
        self._plain = 0
        self._holders: list[Holder] = []
        with eoslog.open(self.path, create=True, durability=durability) as store:
            segment = {"segment.bytes": 1 << 15}
            store.create_topic(EVENTS, PARTITIONS, config=segment)
            store.create_topic(COPIES, PARTITIONS, config=segment)
            store.create_topic(SHARES, PARTITIONS, config=segment)
            store.create_topic(LANES, len(LANES_OF_NUMBERS))
            for transactional_id in TRANSACTIONAL_IDS:
                epoch = self.noise.choice((0, 32_700, 32_760, 32_766))
                if epoch:
                    start_at_epoch(store, transactional_id, epoch)

    def run(self, crew: Crew, rounds: int, round_s: float) -> None:
        for number in range(rounds):
            try:
                self._round(crew, round_s)
            except BaseException as error:
                error.add_note(f"in round {number}, after {self.kills} kills")
                raise

    def _round(self, crew: Crew, round_s: float) -> None:
        roles = self.noise.sample(ROLES, self.noise.randint(4, len(ROLES)))
        survivor = crew.join("survivor") if self.noise.random() < 0.5 else None
        for role in roles:
            self._fill(crew, role)
        end_s = time.monotonic() + round_s
        while time.monotonic() < end_s:
            time.sleep(self.noise.random() * self.noise.choice((0.0, 0.05, 0.2)))
            self._disturb(crew)
            self._listen()
        holders = self.noise.sample(self._holders, len(self._holders))
        for holder in holders:
            holder.member.signal(signal.SIGKILL)
        for holder in holders:
            self._kill(holder)
        if survivor is None:
            self._kill_openers(crew)
            check_reading(self.path)
            heir = crew.join("heir")
        else:
            heir = survivor
        heir.call(programs.settle_prepared, self.noise.randrange(1 << 30))
        if survivor is not None:
            wait_until_decided(heir)
        assert heir.call(programs.undecided, APPLICATION) == []
        self.known.check(heir.call(programs.everything))
        if self.noise.random() < 0.7:
            heir.leave()
            assert (self.path / ".kafka_cleanshutdown").exists()
        else:
            heir.kill()
        crew.forget_the_dead()

    def _kill_openers(self, crew: Crew) -> None:
        """Several open the store at once, and some of them die in the midst of its recovery."""
        for _ in range(self.noise.randrange(3)):
            openers = [crew.begin_to_join("opener") for _ in range(self.noise.randint(1, 3))]
            time.sleep(self.noise.random() * self.noise.choice((0.02, 0.1)))
            victims = self.noise.sample(openers, self.noise.randint(1, len(openers)))
            for member in victims:
                member.kill()
                self.kills += 1
            for member in openers:
                if member not in victims:
                    member.answer()
                    member.leave()

    def _fill(self, crew: Crew, role: Role) -> None:
        arguments = [*role.arguments, self.noise.randrange(1 << 30)]
        if not role.joins:
            member = crew.hire(role.name)
            arguments = [str(self.path), *arguments]
            if role.program is programs.opens_and_closes:
                arguments = [str(self.path), crew.options]
        else:
            member = crew.begin_to_join(role.name)
        if role.program is programs.plain:
            self._plain += 1
            partition = self.noise.randrange(PARTITIONS)
            arguments = [f"plain-{self._plain}", partition, *arguments]
        member.begin(role.program, *arguments)
        self._holders.append(Holder(role, member))

    def _disturb(self, crew: Crew) -> None:
        chance = self.noise.random()
        holder = self.noise.choice(self._holders)
        if chance < 0.75:
            self._replace(crew, [holder])
        elif chance < 0.85:
            count = self.noise.randint(2, len(self._holders))
            self._replace(crew, self.noise.sample(self._holders, count))
        elif chance < 0.93:
            # It does not run for a moment, and others may wait for a lock of it.
            holder.member.signal(signal.SIGSTOP)
            time.sleep(self.noise.random() * self.noise.choice((0.1, 0.1, 0.7)))
            holder.member.signal(signal.SIGCONT)
        elif len(self._holders) < len(ROLES) + 4:
            # A second one in the same role; one of the two is fenced, where there is a name.
            self._fill(crew, holder.role)

    def _replace(self, crew: Crew, holders: list[Holder]) -> None:
        for holder in holders:
            holder.member.signal(signal.SIGKILL)
        for holder in holders:
            self._kill(holder)
            if not any(one.role is holder.role for one in self._holders):
                self._fill(crew, holder.role)
        crew.forget_the_dead()

    def _kill(self, holder: Holder) -> None:
        holder.member.kill()
        self._holders.remove(holder)
        self._check_well(holder)
        self.known.take(holder.member, holder.role.isolation_level, holder.member.all_said)
        self.kills += 1

    def _listen(self) -> None:
        now_s = time.monotonic()
        for holder in self._holders:
            if holder.member.listen():
                holder.heard_s = now_s
            self._check_well(holder)
            if now_s - holder.heard_s > SILENT_MAX_S:
                raise AssertionError(
                    f"{holder.member} says nothing for {SILENT_MAX_S} s\n{holder.member.stacks()}"
                )

    def _check_well(self, holder: Holder) -> None:
        failed = [one for one in holder.member.all_said if one.word == "failed"]
        if failed:
            kind, text, trace = failed[0].rest
            raise AssertionError(f"{holder.member}: {kind}: {text}\n{trace}")
        if holder.member.has_ended() and holder.member.ended != -signal.SIGKILL:
            raise AssertionError(
                f"{holder.member} ended with {holder.member.ended}\n{holder.member.tail()}"
            )


def wait_until_decided(member: Member) -> None:
    """The only one alive ends what the dead left, without being asked to."""
    deadline_s = time.monotonic() + DECIDED_WITHIN_S
    while still := member.call(programs.undecided, APPLICATION):
        assert time.monotonic() < deadline_s, f"undecided for {DECIDED_WITHIN_S} s: {still}"
        time.sleep(0.05)


def kill_loop(root: Path, durability: str, *, seed: int, rounds: int, round_s: float) -> KillLoop:
    print(f"kill loop: seed {seed}, durability {durability}", flush=True)
    root.mkdir(exist_ok=True)
    loop = KillLoop(root, durability, seed)
    try:
        # Half of the stores compact their internal topics all the time.
        small = 1 << 16 if seed % 2 else 0
        with Crew(loop.path, durability=durability, internal_segment_bytes=small) as crew:
            loop.run(crew, rounds, round_s)
    except BaseException as error:
        error.add_note(f"seed {seed}, durability {durability}, {loop.kills} kills")
        raise
    assert loop.kills > 0
    assert loop.known.counts.get("ack", 0) > 0
    print(f"kill loop: {loop.kills} kills, said {loop.known.counts}", flush=True)
    return loop


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_processes_killed_at_random(tmp_path, durability):
    seed = int(os.environ.get("EOSLOG_SEED", "20261121"))
    kill_loop(tmp_path / "life", durability, seed=seed, rounds=4, round_s=1.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("durability", ["process", "commit", "always"])
def test_processes_killed_at_random_for_minutes(tmp_path, durability):
    seed = int(os.environ.get("EOSLOG_SEED", "1"))
    end_s = time.monotonic() + 60 * float(os.environ.get("EOSLOG_KILL_MINUTES", "5"))
    kills = 0
    while time.monotonic() < end_s:
        root = tmp_path / "life"
        kills += kill_loop(root, durability, seed=seed, rounds=8, round_s=5.0).kills
        shutil.rmtree(root)
        seed += 1
    assert kills > 0
