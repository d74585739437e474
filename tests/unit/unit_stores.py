"""Stores of the unit tests: their settings, their values, and how a death leaves them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import eoslog

# The background thread does nothing by itself: tests that want it say when.
QUIET = {
    "eoslog.checkpoint.interval.ms": 3_600_000,
    "log.flush.offset.checkpoint.interval.ms": 3_600_000,
    "log.initial.task.delay.ms": 3_600_000,
}


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
