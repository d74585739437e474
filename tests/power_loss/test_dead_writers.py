"""What a dead writer stored behind the end is off the disk before others append there.

A commit journal's record ends with the log: it does not reach over what is left behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from crash import shared_log
from crash.shared_log import SharedLog
from crash.test_takeover import batch, place
from power_loss import disk_trace
from power_loss.disk_model import Disk, Folder

pytestmark = pytest.mark.crash

LEFT = b"left behind" * 200


def test_what_a_dead_writer_left_does_not_come_back(tmp_path, events_of):
    disk = Disk()
    was_left = False
    for event in events_of("test_dead_writers", tmp_path):
        disk.take(event)
        was_left |= LEFT in event.first
    assert was_left
    folder = disk.root.names["t-0"]
    assert isinstance(folder, Folder)
    (segment,) = (file for name, file in folder.names.items() if name.endswith(".log"))
    assert not isinstance(segment, Folder)
    assert LEFT[:11] not in segment.synced
    assert not any(LEFT[:11] in (write.data or b"") for write in segment.since)


def main(root: str) -> None:
    """The trace ends with an append by one who was there."""
    shared_log.CONFIG["eoslog.durable"] = 1
    files = SharedLog(Path(root, "log"))
    disk_trace.begin(files.root, Path(root, "trace"))
    log, other = files.open(), files.open()
    for number in range(3):
        log.append_batch(batch(number))
    assert other.log_end_offset == 3
    with files.path(0).open("r+b") as file:
        file.seek(files.field("active_valid_bytes"))
        file.write(place(batch(3), 3) + LEFT)
    files.leave_odd()
    assert other.append_batch(batch(3)).base_offset == 3
    disk_trace.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
