"""The read-process-write loop is killed at moments that are drawn, and started again.

After each kill the sink holds exactly what the source's records below the committed offsets become:
in order, once each. At the end it holds that of all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from read_process_write_child import (  # noqa: E402
    GROUP,
    PARTITIONS,
    RECORDS,
    SINK,
    SOURCE,
    outputs_of,
)

# How many batches a child may begin that its parent has not heard of.
AHEAD = 5


def make_store(path: Path) -> None:
    """A source with committed, aborted and plain records, so that offsets are no counts."""
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic(SOURCE, partitions=PARTITIONS)
        store.create_topic(SINK, partitions=PARTITIONS, config={"segment.bytes": 1 << 16})
        with store.producer(transactional_id="filler") as filler, store.producer() as plain:
            filler.init_transactions()
            for first in range(0, RECORDS, 50):
                filler.begin_transaction()
                for number in range(first, first + 50):
                    filler.send(SOURCE, value=b"%d" % number, partition=number % PARTITIONS)
                if first % 200 == 150:
                    filler.abort_transaction()
                else:
                    filler.commit_transaction()
                plain.send(SOURCE, value=b"plain %d" % first, partition=first % PARTITIONS)
                plain.flush()


def values_below(store: eoslog.Store, topic: str, partition: int, end: int) -> list[bytes]:
    """The committed values of a partition at offsets below `end`."""
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[bytes] = []
        while records := consumer.poll(timeout=0, max_records=5000):
            found += [record.value or b"" for record in records if record.offset < end]
        return found


def check(path: Path) -> int:
    """Compare the sink with the offsets; how many of the source's records are done."""
    done = 0
    with eoslog.open(path) as store:
        offsets = store.groups().get(GROUP, {})
        for number in range(PARTITIONS):
            # Nothing stays undecided once the store was opened.
            for topic in (SOURCE, SINK):
                assert store.partition(topic, number).open_transactions() == []
            committed = offsets.get(TopicPartition(SOURCE, number))
            processed = values_below(store, SOURCE, number, committed.offset if committed else 0)
            expected = [output for value in processed for output in outputs_of(value)]
            assert values_below(store, SINK, number, 1 << 60) == expected, f"partition {number}"
            done += len(processed)
        assert store.verify() == []
    return done


def start(path: Path, seed: int, durability: str) -> subprocess.Popen[bytes]:
    child = HERE / "read_process_write_child.py"
    arguments = [sys.executable, str(child), str(path), str(seed), durability]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)


def run_and_kill(path: Path, seed: int, durability: str) -> None:
    """Let a child work for a few batches, and kill it in the middle of one."""
    noise = random.Random(seed)
    child = start(path, seed, durability)
    assert child.stdin is not None
    assert child.stdout is not None
    batches = noise.randrange(1, 30)
    child.stdin.write(bytes(batches + AHEAD))
    for _ in range(batches):
        if not child.stdout.readline():
            break  # It had done all.
    time.sleep(noise.random() * noise.choice((0, 0.0005, 0.005)))
    child.send_signal(signal.SIGKILL)
    _, errors = child.communicate()
    assert child.returncode in (0, -signal.SIGKILL), errors.decode()


def kill_loop(path: Path, durability: str, kills: int, seed: int) -> int:
    """Kill and look, again and again; at how many kills the loop was in the middle of its work.

    The parent looks at a copy, so that the next child finds what the kill left.
    """
    progress = [0]
    for number in range(kills):
        run_and_kill(path, seed * 1000 + number, durability)
        copied = path.with_name("copy")
        shutil.copytree(path, copied)
        progress.append(check(copied))
        assert progress[-1] >= progress[-2], "what was done is not done any more"
        shutil.rmtree(copied)
    child = start(path, seed, durability)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors.decode()
    whole = check(path)
    with eoslog.open(path) as store:
        counts = [len(values_below(store, SOURCE, one, 1 << 60)) for one in range(PARTITIONS)]
    assert whole == sum(counts)
    return len({one for one in progress if 0 < one < whole})


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_a_killed_loop_does_everything_once(tmp_path, durability):
    path = tmp_path / "store"
    make_store(path)
    caught = kill_loop(path, durability, kills=6, seed=20_261_121)
    assert caught >= 3, "few kills came in the middle of the work: draw fewer batches"


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["process", "commit", "always"])
@pytest.mark.timeout(3600)
def test_a_loop_killed_again_and_again_does_everything_once(tmp_path, durability):
    seed = int(os.environ.get("EOSLOG_SEED", "1"))
    rounds = int(os.environ.get("EOSLOG_KILL_ROUNDS", "10"))
    for number in range(rounds):
        path = tmp_path / f"store-{number}"
        make_store(path)
        kill_loop(path, durability, kills=20, seed=seed + number)
        shutil.rmtree(path)
