"""A store under a kernel with pages of 64 KiB, as some of ARM are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from c_library import built_library
from harness.crew import run_and_kill

pytestmark = pytest.mark.crash

BATCHES = 60
# Of these sizes the batches begin anywhere in a page, and a recovery reads each by itself.
BATCH_BYTES = (9_000, 150_000, 70_001)
WRITE = f"""
store.create_topic("t")
producer = store.producer()
for number in range({BATCHES}):
    producer.append("t", 0, [bytes([number]) * {BATCH_BYTES}[number % 3]])
    if number == {BATCHES} // 3:
        store.flush()
"""
READ = """
import sys, eoslog
with eoslog.open(sys.argv[1], read_only=sys.argv[2] == "read") as store:
    if sys.argv[2] != "read":
        store.producer().append("t", 0, [b"more"])
    consumer = store.consumer()
    consumer.assign([eoslog.TopicPartition("t", 0)])
    found = []
    while len(found) < int(sys.argv[3]):
        found += [(one.value[:1], len(one.value)) for one in consumer.poll(timeout=30)]
    print(found, store.partition("t", 0).verify())
"""
EXPECTED = [(bytes([number]), BATCH_BYTES[number % 3]) for number in range(BATCHES)]


def printed_with_large_pages(library: Path, *arguments: str) -> str:
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", READ, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_store_is_read_recovered_and_written(tmp_path):
    store_path = tmp_path / "store"
    library = built_library(Path(__file__).with_name("large_pages.c"), tmp_path)
    run_and_kill(store_path, WRITE)
    read = printed_with_large_pages(library, str(store_path), "read", str(BATCHES))
    assert read == f"{EXPECTED} []\n"
    more = [*EXPECTED, (b"m", 4)]
    assert printed_with_large_pages(library, str(store_path), "write", str(len(more))) == (
        f"{more} []\n"
    )
