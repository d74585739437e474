"""Processes die in the middle of transactional work: each transaction is there once, or not at all.

A child is killed, the parent looks at what is left, and the next child goes on with it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from crash.transaction_states import check_nothing_is_open
from crash.transaction_trace import start_at_epoch
from short_form import short_form

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from kill_transactions_child import (  # noqa: E402
    GROUP,
    LANE_IDS,
    LANES,
    PARTITIONS,
    SOURCE,
    TOPIC,
    source_of,
    values_of,
)

DURABILITIES = ("process", "commit", "always")
KILLS_MAX = 100


@dataclass
class Said:
    """What the children of all rounds said."""

    acknowledged: list[int] = field(default_factory=lambda: [0] * LANES)
    tried: list[int] = field(default_factory=lambda: [0] * LANES)
    recovered: list[int] = field(default_factory=lambda: [0] * LANES)
    seen: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    acks: int = 0
    fenced: int = 0

    def take(self, text: str) -> None:
        for line in text.splitlines():
            what, *rest = line.split()
            numbers = list(map(int, rest))
            if what == "try":
                lane, number = numbers
                assert number >= self.acknowledged[lane], line
                self.tried[lane] = max(self.tried[lane], number + 1)
            elif what == "ack":
                lane, number = numbers
                self.acknowledged[lane] = number + 1
                self.acks += 1
            elif what == "saw":
                partition, offset, *record = numbers
                known = self.seen.setdefault((partition, offset), (record[0], record[1], record[2]))
                assert known == tuple(record), f"{line}: another record was there"
            elif what == "fenced":
                self.fenced += 1
            else:
                assert what == "ready", line


def make_store(path: Path, epochs: tuple[int, ...]) -> None:
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": 1 << 14})
        store.create_topic(SOURCE, partitions=LANES)
        for transactional_id, epoch in zip(LANE_IDS, epochs, strict=False):
            if epoch:
                start_at_epoch(store, transactional_id, epoch)


def start_child(path: Path, seed: int, durability: str, said: Path) -> subprocess.Popen[bytes]:
    with said.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(HERE / "kill_transactions_child.py"), path, str(seed), durability],
            stdout=output,
            stderr=subprocess.PIPE,
        )


def run_and_kill(path: Path, seed: int, durability: str, known: Said) -> None:
    """Let a child work for a moment that is drawn, and kill it."""
    noise = random.Random(seed)
    said = path.with_name("said")
    child = start_child(path, seed, durability, said)
    if noise.random() < 0.9:
        while said.stat().st_size == 0 and child.poll() is None:
            time.sleep(0.002)
        time.sleep(noise.random() * noise.choice((0.01, 0.1, 0.4)))
    else:
        time.sleep(0.1 + noise.random() * 0.3)  # While it opens the store, perhaps.
    child.send_signal(signal.SIGKILL)
    _, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors.decode()
    text = said.read_text()
    # A line that the kill cut in two was not said.
    known.take(text[: text.rfind("\n") + 1])


def committed_records(store: eoslog.Store, partition: int) -> dict[int, bytes]:
    found = {}
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(TOPIC, partition)])
        while records := consumer.poll(timeout=0, max_records=5000):
            found |= {record.offset: record.value or b"" for record in records}
    return found


def check(store: eoslog.Store, known: Said) -> None:
    """Each lane's numbers are committed once, from 0 on, as far as its group's offset says."""
    check_nothing_is_open(store)
    offsets = store.groups().get(GROUP, {})
    ends = [
        offsets[source_of(lane)].offset if source_of(lane) in offsets else 0
        for lane in range(LANES)
    ]
    for lane, end in enumerate(ends):
        assert known.acknowledged[lane] <= end <= known.tried[lane], f"lane {lane}"
        assert known.recovered[lane] <= end, f"lane {lane}: committed before, gone now"
        # What was found once is there for good.
        known.recovered[lane] = end
    for partition in range(PARTITIONS):
        records = committed_records(store, partition)
        for lane, end in enumerate(ends):
            found = [one for one in records.values() if one.startswith(b"%d:" % lane)]
            assert found == [
                value
                for number in range(end)
                for value in values_of(lane, number).get(partition, [])
            ], f"lane {lane}, partition {partition}: lost, moved or repeated"
        for (seen_at, offset), (lane, number, index) in known.seen.items():
            if seen_at == partition:
                value = records.get(offset, b"nothing")
                assert value.startswith(b"%d:%d:%d:" % (lane, number, index)), (
                    f"partition {partition}, offset {offset}: a reader saw record {index} of "
                    f"transaction {number} of lane {lane}"
                )
    assert store.verify() == []


def kill_loop(root: Path, durability: str, *, kills: int, seed: int) -> Said:
    """The parent looks at a copy, or in place; then the next child finds what the parent left."""
    noise = random.Random(seed)
    root.mkdir(exist_ok=True)
    path, copied = root / "killed", root / "copy"
    make_store(path, tuple(noise.choice((0, 32_700, 32_760, 32_766)) for _ in range(LANES)))
    known = Said()
    # On a slow machine a child may be killed before it got anything done: then there are more.
    for number in range(KILLS_MAX):
        if number >= kills and known.acks and known.seen:
            break
        try:
            run_and_kill(path, seed * 1000 + number, durability, known)
            if noise.random() < 0.2:
                with eoslog.open(path, durability=durability) as store:
                    check(store, known)
            elif noise.random() < 0.8:
                shutil.copytree(path, copied)
                with eoslog.open(copied, durability=durability) as store:
                    check(store, known)
                shutil.rmtree(copied)
        except BaseException as error:
            error.add_note(f"seed {seed}, kill {number}")
            raise
    with eoslog.open(path, durability=durability) as store:
        check(store, known)
    return known


@pytest.mark.parametrize("durability", short_form(DURABILITIES, "commit"))
def test_transactions_of_killed_processes(tmp_path, durability):
    known = kill_loop(tmp_path, durability, kills=6, seed=1)
    assert known.acks > 0
    assert known.seen


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_transactions_of_processes_killed_many_times(tmp_path, durability):
    first = int(os.environ.get("EOSLOG_SEED", "10"))
    for seed in range(first, first + int(os.environ.get("EOSLOG_KILL_ROUNDS", "4"))):
        known = kill_loop(tmp_path / str(seed), durability, kills=60, seed=seed)
        assert known.acks > 0
        assert known.fenced > 0, "nobody was ever taken over"
        shutil.rmtree(tmp_path / str(seed))
