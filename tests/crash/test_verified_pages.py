"""What a recovery verified is written by the next sync, whatever a sync before it came to."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from partition_files import PartitionFiles
from reference_model import batch_codec as codec

pytestmark = pytest.mark.crash

BATCHES = 50
VALUE_BYTES = 2 * mmap.PAGESIZE


def made_dirty_bytes() -> int:
    """Clean pages of files that this process has made dirty, whoever has written them since."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, value = line.split()
        if name == "write_bytes:":
            return int(value)
    raise AssertionError("the kernel does not count it")


def test_what_was_verified_is_to_be_written(disk_path):
    """After a sync that failed, the kernel takes the pages for written: they are read as they
    should be, and a later sync would succeed without writing them.
    """
    files = PartitionFiles(disk_path / "log")
    log = files.open()
    for _ in range(BATCHES):
        log.append_batch(codec.simple_batch([b"x" * VALUE_BYTES]))
    log.flush()
    files.close(clean=False)
    before_bytes = made_dirty_bytes()
    log = files.open(clean=False, recovery_point=0)
    assert log.log_end_offset == BATCHES
    assert made_dirty_bytes() - before_bytes >= BATCHES * VALUE_BYTES
    log.flush()
    files.close(clean=False)
