"""A writer is killed again and again: what was acknowledged is there, in order, none twice."""

from __future__ import annotations

import json
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
from partition_files import PartitionFiles, all_records
from short_form import short_form

import eoslog

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from kill_child import (  # noqa: E402
    LANES,
    LANES_PER_PARTITION,
    PARTITIONS,
    SEGMENT_BYTES,
    TOPIC,
    value_of,
)

DURABILITIES = ("process", "commit", "always")
KILLS_MAX = 200


@dataclass
class Lane:
    """Positions: everything below `acknowledged` was, nothing at or above `attempted` ever left."""

    acknowledged: int = 0
    attempted: int = 0
    recovered: int = 0


@dataclass
class Report:
    """What the children of all rounds said."""

    lanes: list[Lane] = field(default_factory=lambda: [Lane() for _ in range(LANES)])
    duplicates: int = 0
    acks: int = 0

    def take(self, text: str) -> None:
        started: set[int] = set()
        for line in text.splitlines():
            what, *numbers = line.split()
            assert what in ("start", "try", "ack", "dup"), line
            lane = self.lanes[int(numbers[0])]
            position = int(numbers[1])
            if what == "start":
                assert lane.acknowledged <= position <= lane.attempted
                started.add(int(numbers[0]))
                continue
            end = position + int(numbers[2])
            if what == "try":
                assert int(numbers[0]) in started
                lane.attempted = max(lane.attempted, end)
            else:
                assert position <= lane.attempted
                lane.acknowledged = max(lane.acknowledged, end)
                self.acks += 1
                self.duplicates += what == "dup"


def run_and_kill(kind: str, path: Path, seed: int, durability: str, known: Report) -> None:
    """Start a child, let it work for a moment that is drawn, and kill it."""
    noise = random.Random(seed)
    positions = [lane.acknowledged for lane in known.lanes]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    arguments = [kind, str(path), str(seed), durability, json.dumps(positions)]
    said = path.with_name("said")
    with said.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, str(HERE / "kill_child.py"), *arguments],
            stdout=output,
            stderr=subprocess.PIPE,
            env=environment,
        )
    while said.stat().st_size == 0 and child.poll() is None:
        time.sleep(0.002)
    if noise.random() < 0.8:
        time.sleep(noise.random() * 0.15)
    child.send_signal(signal.SIGKILL)
    _, errors = child.communicate()
    assert child.returncode == -signal.SIGKILL, errors.decode()
    text = said.read_text()
    # A line that the kill cut in two was not said.
    known.take(text[: text.rfind("\n") + 1])


def check_recovered(values_by_partition: list[list[bytes]], known: Report) -> None:
    """Each lane's numbers stand once, in order, from 0 on, as far as was acknowledged at least."""
    found: list[list[int]] = [[] for _ in range(LANES)]
    for partition, values in enumerate(values_by_partition):
        for value in values:
            lane, position, _ = value.split(b":", 2)
            assert int(lane) % PARTITIONS == partition
            assert value == value_of(int(lane), int(position))
            found[int(lane)].append(int(position))
    for number, positions in enumerate(found):
        lane = known.lanes[number]
        assert positions == list(range(len(positions))), f"lane {number}: lost, moved or repeated"
        assert lane.acknowledged <= len(positions) <= lane.attempted, f"lane {number}"
        assert len(positions) >= lane.recovered, f"lane {number}: recovered before, gone now"
        lane.recovered = len(positions)


def partition_files(path: Path, partition: int) -> PartitionFiles:
    config = {"segment.bytes": SEGMENT_BYTES, "eoslog.spare.segments": 1}
    return PartitionFiles(path / str(partition), config)


def values_by_bindings(path: Path) -> list[list[bytes]]:
    found = []
    for partition in range(PARTITIONS):
        files = partition_files(path, partition)
        log = files.open(clean=False)
        found.append([record.value for record in all_records(log)])
        assert log.verify() == []
        files.close(clean=False)
    return found


def values_by_store(path: Path) -> list[list[bytes]]:
    found = []
    with eoslog.open(path) as store:
        assert store.verify() == []
        for number in range(PARTITIONS):
            partition = store.partition(TOPIC, number)
            offset, values = partition.log_start_offset, []
            while offset < partition.log_end_offset:
                records, offset = partition.fetch_records(offset, 10_000, 1 << 22)
                values += [record.value for record in records]
            found.append(values)
    return found


def kill_loop(kind: str, path: Path, durability: str, kills: int, seed: int) -> Report:
    """The parent looks at a copy, so that the next child finds what the kill left."""
    known = Report()
    values_of = {"bindings": values_by_bindings, "store": values_by_store}[kind]
    # On a slow machine a child may be killed before it got anything done: then there are more.
    for round_number in range(KILLS_MAX):
        if round_number >= kills and known.acks:
            break
        run_and_kill(kind, path, seed * 1000 + round_number, durability, known)
        copied = path.with_name("copy")
        shutil.copytree(path, copied)
        check_recovered(values_of(copied), known)
        shutil.rmtree(copied)
    check_recovered(values_of(path), known)
    return known


def make_store(path: Path) -> None:
    with eoslog.open(path, create=True) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": SEGMENT_BYTES})


@pytest.mark.parametrize("durability", short_form(DURABILITIES, "process"))
def test_bindings(tmp_path, durability):
    known = kill_loop("bindings", tmp_path / "killed", durability, kills=4, seed=1)
    assert known.acks > 0
    assert LANES == PARTITIONS * LANES_PER_PARTITION


@pytest.mark.parametrize("durability", short_form(DURABILITIES, "commit"))
def test_store_with_named_producers(tmp_path, durability):
    make_store(tmp_path / "killed")
    known = kill_loop("store", tmp_path / "killed", durability, kills=4, seed=2)
    assert known.acks > 0


@pytest.mark.soak
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kind", ["bindings", "store"])
def test_many_kills(tmp_path, kind, durability):
    if kind == "store":
        make_store(tmp_path / "killed")
    known = kill_loop(kind, tmp_path / "killed", durability, kills=150, seed=3)
    if kind == "bindings":
        assert known.duplicates > 0, "no answer was ever lost: the kills fall at the wrong moments"
