"""A process dies before it synced the name of a segment: the next one has the name synced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from partition_files import TOPIC, PartitionFiles
from power_loss import disk_trace
from power_loss.disk_trace import SYNCED
from reference_model import batch_codec as codec

pytestmark = pytest.mark.crash


def test_a_name_that_a_dead_process_did_not_sync_is_synced_with_the_next_records(tmp_path: Path):
    """Else a power cut takes a file whose content was synced, and with it what was promised."""
    library = disk_trace.build_library(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "power_loss.test_unsynced_names", tmp_path],
        env=os.environ | {"LD_PRELOAD": str(library)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    synced = [one.first.decode() for one in disk_trace.read(tmp_path / "trace")
              if one.kind == SYNCED and one.number == 1]  # fmt: skip
    assert synced == [f"{TOPIC}-0"]


def main(root: str) -> None:
    """The trace is that of the first flush after the recovery."""
    files = PartitionFiles(Path(root, "log"))
    log = files.open()
    log.append_batch(codec.simple_batch([b"first"]))
    log.flush()
    log.roll()
    log.append_batch(codec.simple_batch([b"second"]))
    files.close(clean=False)
    log = files.open(clean=False)
    log.append_batch(codec.simple_batch([b"third"]))
    disk_trace.begin(files.root, Path(root, "trace"))
    log.flush()
    disk_trace.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
