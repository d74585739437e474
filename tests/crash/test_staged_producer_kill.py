"""Staged transactions of a producer that is killed at every step: all of one, or nothing, once.

The program does what a load would do: it asks the store which version was the last, and goes on
behind it.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kills import WITHIN, Kill, in_child
from staged_jobs import PARTITIONS, TOPIC, quick_directory, staged_files

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.producer.staged_transactions import StagedTransactions
from eoslog.staging import attempt_files, staged_commit
from eoslog.staging.attempt_files import AttemptFiles
from eoslog.staging.staged_adoption import HeldPartitions
from eoslog.staging.staged_commit import StagedCommits
from eoslog.staging.staged_job import VERSION_PARTITION
from eoslog.staging.staged_writer import StagedWriter
from eoslog.storage.partition import Partition
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import CompactedLog

pytestmark = pytest.mark.crash

ID = "load"
GROUP = "readers"
SOURCE = TopicPartition("source", 0)
CHUNK = 60


def write_half(write: Any, descriptor: int, data: bytes) -> None:
    write(descriptor, data[: len(data) // 2])


WITHIN.setdefault("write", write_half)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with quick_directory(tmp_path) as directory:
        path = directory / "store"
        with eoslog.open(path, create=True) as store:
            store.create_topic(TOPIC, partitions=PARTITIONS)
            store.create_topic("source")
            load(started(store), 0)
        yield path


def started(store: eoslog.Store) -> Any:
    producer = store.producer(transactional_id=ID, staged=True, config={"batch.size": 400})
    producer.init_transactions()
    return producer


def load(producer: Any, version: int) -> None:
    """One transaction: a chunk of numbers, half of them sent and half as columns, and an offset."""
    first = version * CHUNK
    producer.begin_transaction()
    for number in range(first, first + CHUNK // 2):
        producer.send(TOPIC, value=b"%d" % number, key=b"%d" % (number % 7))
    rest = range(first + CHUNK // 2, first + CHUNK)
    producer.append(TOPIC, None, [b"%d" % one for one in rest], [b"%d" % (one % 7) for one in rest])
    producer.send_offsets_to_transaction({SOURCE: first + CHUNK}, GROUP)
    producer.commit_transaction()


def check(store: eoslog.Store, versions: int) -> None:
    """The chunks of so many versions are in, once each, with the offsets of the last."""
    found = []
    for number in range(PARTITIONS):
        records, _ = store.partition(TOPIC, number).fetch_records(0, 1 << 20, 1 << 26)
        found += [int(record.value) for record in records]
    assert sorted(found) == list(range(versions * CHUNK))
    groups = store.groups()
    assert groups[GROUP][SOURCE].offset == versions * CHUNK
    assert groups[ID][VERSION_PARTITION].offset == versions - 1
    state = store.application(ID)
    assert (state.version, state.state) == (versions - 1, "complete")


BEFORE_DECISION = [
    *[Kill(AttemptFiles, "_make_directory", 1, when) for when in ("before", "after")],
    *[Kill(AttemptFiles, "file_for", nth, "after") for nth in (1, 3)],
    *[
        Kill(attempt_files.os, "write", nth, when)
        for nth in (1, 2, 4)
        for when in ("before", "within", "after")
    ],
    *[Kill(StagedWriter, "close", 1, when) for when in ("before", "after")],
    Kill(StagedCommits, "commit", 1, "before"),
    Kill(staged_commit, "check_job", 1, "after"),
    Kill(HeldPartitions, "hold_at_end", 1, "after"),
    Kill(CompactedLog, "append", 1, "before"),
]
AFTER_DECISION = [
    Kill(CompactedLog, "append", 1, "after"),
    *[Kill(Partition, "adopt", nth, when) for nth in (1, 3) for when in ("before", "after")],
    *[Kill(GroupOffsets, "adopt", 1, when) for when in ("before", "after")],
    *[Kill(Partition, "append_marker", 1, when) for when in ("before", "after")],
    *[Kill(HeldPartitions, "release", 1, when) for when in ("before", "after")],
    *[Kill(CompactedLog, "append", 2, when) for when in ("before", "after")],
    Kill(StagedCommits, "commit", 1, "after"),
    Kill(StagedTransactions, "commit", 1, "after"),
]


@pytest.mark.every_nth(3)
@pytest.mark.parametrize(
    ("kill", "decided"),
    [(kill, False) for kill in BEFORE_DECISION] + [(kill, True) for kill in AFTER_DECISION],
    ids=str,
)
def test_a_load_killed_anywhere_goes_on_where_it_was(path, kill, decided):
    def loader() -> None:
        producer = started(eoslog.open(path))
        kill.arm()
        load(producer, 1)
        raise AssertionError(f"the loader outlived {kill}")

    assert in_child(loader, path.parent) is None
    with eoslog.open(path) as store:
        check(store, 2 if decided else 1)
        producer = started(store)
        for version in range(store.application(ID).version + 1, 4):
            load(producer, version)
        check(store, 4)
        parts_of(store).staged.sweep()
        assert staged_files(path) == []
        assert store.verify() == []
    with eoslog.open(path) as store:
        check(store, 4)


def load_until_killed(path: Path, seed: int) -> None:
    durability = random.Random(seed).choice(["commit", "process"])
    store = eoslog.open(path, durability=durability)
    producer = started(store)
    version = store.application(ID).version
    while True:
        version += 1
        load(producer, version)


def lives_and_deaths(path: Path, rounds: int, seed: int) -> None:
    noise = random.Random(seed)
    newest = 0
    # On a slow machine they may get little done: then there are more lives, and longer ones.
    for life in range(10 * rounds):
        if life >= rounds and newest > rounds // 2:
            break
        loader = os.fork()
        if loader == 0:
            try:
                load_until_killed(path, seed * 1000 + life)
            finally:
                traceback.print_exc()
                os._exit(1)
        time.sleep(noise.uniform(0.05, 0.4) * max(1, life / rounds))
        os.kill(loader, signal.SIGKILL)
        _, status = os.waitpid(loader, 0)
        assert os.WIFSIGNALED(status), "the loader failed by itself; see its traceback"
        with eoslog.open(path) as store:
            newest = store.application(ID).version
            check(store, newest + 1)
    assert newest > rounds // 2, "the loader came nowhere"


def test_loads_killed_at_any_moment(path):
    lives_and_deaths(path, rounds=8, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_loads_killed_at_any_moment_for_long(path, seed):
    lives_and_deaths(path, rounds=60, seed=seed)
