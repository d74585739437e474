"""Stores for the tests of the API: opened below tmp_path, closed at the end, killed on demand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eoslog
from eoslog.store.fellow_processes import FellowProcesses

# The background thread does nothing by itself: tests that want it say when.
QUIET = {
    "eoslog.checkpoint.interval.ms": 3_600_000,
    "log.flush.offset.checkpoint.interval.ms": 3_600_000,
    "log.initial.task.delay.ms": 3_600_000,
}


@pytest.fixture
def no_retries() -> Iterator[None]:
    """The background thread does not complete staged jobs that a test leaves undone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FellowProcesses, "look", lambda self: None)
        yield


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(store_path: Path) -> Iterator[Callable[..., eoslog.Store]]:
    """Open the store below `store_path`, made if need be; it is closed when the test ends."""
    opened: list[eoslog.Store] = []

    def open_it(durability: str = "process", **config: Any) -> eoslog.Store:
        settings = {**QUIET, **{name.replace("__", "."): one for name, one in config.items()}}
        opened.append(eoslog.open(store_path, create=True, durability=durability, config=settings))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., eoslog.Store]) -> eoslog.Store:
    return open_store()


def abandon(store: eoslog.Store) -> None:
    """What the death of the process leaves: nothing is flushed, written down or marked as clean."""
    store._checkpointer.stop()
    store._linger.stop()
    store._closed = True
    store._files.give_up()


def run_and_kill(path: Path, body: str) -> str:
    """Run code in a process of its own that is killed at its end; what it printed.

    `store` is the open store; `say(...)` prints.
    """
    code = (
        "import os, signal, sys\nimport eoslog\nfrom eoslog import TopicPartition\n"
        f"store = eoslog.open({str(path)!r}, create=True)\n"
        "def say(*words): print(*words, flush=True)\n"
        f"{body}\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -9, done.stderr
    return done.stdout


def values_of(store: eoslog.Store, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values of all records of a partition, in order."""
    with store.consumer() as consumer:
        consumer.assign([eoslog.TopicPartition(topic, partition)])
        found: list[bytes | None] = []
        while records := consumer.poll(timeout=0):
            found += [record.value for record in records]
        return found
