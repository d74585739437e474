"""A store on tmpfs makes no sync, whatever its durability; the same calls on a disk make some."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
TMPFS = 0x01021994
SYNCS = "fsync,fdatasync,msync,sync_file_range,syncfs,io_submit"
# As many topics at once as sync the file system; a commit, a snapshot, a deletion, two openings.
LIFE = """
import sys
import eoslog
path, durability = sys.argv[1:]
with eoslog.open(path, create=True, durability=durability) as store:
    store.create_topics({f"t{number}": 1 for number in range(40)})
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t0", b"v")
    store.flush()
    store.delete_topic("t1")
with eoslog.open(path) as store:
    assert store.partition("t0", 0).log_end_offset == 2
    assert store.verify() == []
"""


@pytest.fixture
def memory_path() -> Iterator[Path]:
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%t", MEMORY],
        capture_output=True,
        text=True,
        check=False,
    )
    if kind.returncode != 0 or int(kind.stdout, 16) != TMPFS or not os.access(MEMORY, os.W_OK):
        pytest.skip(f"{MEMORY} is no tmpfs to write to")
    with tempfile.TemporaryDirectory(prefix="eoslog-test-", dir=MEMORY) as directory:
        yield Path(directory)


def syncs_of(store_path: Path, durability: str) -> list[str]:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace")
    trace = store_path.with_name("trace")
    command = [strace, "-f", "-qq", "-e", f"trace={SYNCS}", "-o", trace, sys.executable]
    subprocess.run([*command, "-c", LIFE, store_path, durability], check=True)
    return re.findall(r"\d+ +(\w+)\(", trace.read_text())


@pytest.mark.parametrize("durability", ["process", "commit", "always"])
def test_on_tmpfs_nothing_is_synced(memory_path, durability):
    assert syncs_of(memory_path / "store", durability) == []


def test_on_a_disk_the_durability_decides(disk_path):
    few, more = (len(syncs_of(disk_path / one, one)) for one in ("process", "always"))
    assert 0 < few < more
