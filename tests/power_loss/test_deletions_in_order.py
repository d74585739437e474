"""Segments go one after the other on disk too: a cut in between leaves the log whole.

Were the names of an older and a newer one on disk, and not the one between them, a recovery would
cut the log there, and what was promised behind it would be gone.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from partition_files import TOPIC, PartitionFiles
from power_loss import disk_trace
from power_loss.disk_trace import BEGUN, REMOVED, RENAMED, SYNCED, WRITTEN, Event
from reference_model import batch_codec as codec

from eoslog.bindings.partition_log import PartitionLog
from eoslog.errors import EoslogError

pytestmark = pytest.mark.crash

SEGMENTS = 6
FOLDER = f"{TOPIC}-0"
GOES = "a segment's file goes"
IS_SYNCED = "its folder is synced"
IS_SPOILED = "the bytes of one that went were changed"


@pytest.mark.parametrize("spares", [0, 2], ids=["removed", "recycled"])
def test_the_name_of_each_is_gone_on_disk_before_the_next_goes(events_of, tmp_path, spares):
    steps = steps_of_a_deletion(events_of, tmp_path, spares)
    assert steps.count(GOES) == SEGMENTS - 1
    gone = [number for number, step in enumerate(steps) if step == GOES]
    for one, following in pairwise(gone):
        assert IS_SYNCED in steps[one:following]


def test_the_bytes_of_a_recycled_one_change_only_when_its_name_is_gone_on_disk(events_of, tmp_path):
    """With its old name back it would be a segment that was torn."""
    steps = steps_of_a_deletion(events_of, tmp_path, 2)
    assert steps.count(IS_SPOILED) == 2
    last_gone = max(number for number, step in enumerate(steps) if step == GOES)
    assert IS_SYNCED in steps[last_gone : steps.index(IS_SPOILED)]


def test_none_goes_before_an_older_one_that_could_not_be_removed(tmp_path):
    """It would be left in front of a hole; once it can be removed the others follow."""
    files = PartitionFiles(tmp_path / "log")
    log = in_segments(files)
    assert log.delete_segments(2) == 2
    # A folder of its name is what no one can unlink, by whatever right.
    left = files.path(1)
    left.mkdir()
    with pytest.raises(EoslogError, match="file of a deleted segment could not be removed"):
        log.delete_segments(SEGMENTS)
    assert log.log_start_offset == 2
    assert segment_names(files) == {1, 2, 3, 4, 5}
    left.rmdir()
    assert log.delete_segments(SEGMENTS) == 3
    assert segment_names(files) == {5}
    assert log.verify() == []


def segment_names(files: PartitionFiles) -> set[int]:
    return {int(path.stem) for path in files.directory.glob("*.log")}


def steps_of_a_deletion(events_of, folder: Path, spares: int) -> list[str]:
    events = events_of("test_deletions_in_order", folder, spares)
    begun = next(at for at, event in enumerate(events) if event.kind == BEGUN)
    return [step for event in events[begun:] if (step := step_of(event))]


def step_of(event: Event, folder: bytes = FOLDER.encode()) -> str:
    if event.kind == SYNCED:
        return IS_SYNCED if event.first == folder else ""
    if event.kind == WRITTEN:
        return IS_SPOILED
    is_gone = event.kind in (REMOVED, RENAMED) and event.first.startswith(folder)
    return GOES if is_gone and event.first.endswith(b".log") else ""


def in_segments(files: PartitionFiles) -> PartitionLog:
    """A log of a record a segment."""
    log = files.open()
    for number in range(SEGMENTS):
        log.append_batch(codec.simple_batch([b"%d" % number]))
        if number < SEGMENTS - 1:
            log.roll()
    return log


def main(root: str, spares: str) -> None:
    """The trace is that of the deletion and of the making of spare files."""
    files = PartitionFiles(Path(root, "log"), {"eoslog.spare.segments": int(spares)})
    log = in_segments(files)
    log.flush()
    disk_trace.begin(files.root, Path(root, "trace"))
    assert log.delete_segments(SEGMENTS) == SEGMENTS - 1
    log.prepare_spare(int(spares))
    disk_trace.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
