"""After a recovery a time is found where it was before: the time index tells of what is not scanned
again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_files import PartitionFiles, settings_named
from reference_model import batch_codec as codec

pytestmark = pytest.mark.crash

CONFIG = {"segment_bytes": 1 << 20, "index_interval_bytes": 150}
# Every third batch has an entry. The newest time stands between two of them.
TIMES = [5, 6, 7, 8, 100, 9, 10, 11, 12, 13, 14, 15]


def fill(files):
    log = files.open()
    for number, time_ms in enumerate(TIMES):
        log.append_batch(codec.simple_batch([b"%d" % number], timestamp_ms=time_ms))
    log.flush(True)
    return log


@pytest.mark.parametrize("recovery_point", range(len(TIMES) + 1))
@pytest.mark.parametrize("lost", [None, ".timeindex", ".index"])
def test_times_are_found_as_before(make_partition, recovery_point, lost):
    files = make_partition(**CONFIG)
    log = fill(files)
    before = [log.offset_for_timestamp(time_ms) for time_ms in range(101)]
    assert before[50] == (4, 100)
    assert len(files.path(0, ".timeindex").read_bytes().rstrip(b"\0")) > 12
    files.close(clean=False)
    if lost is not None:
        files.path(0, lost).unlink()
    log = files.open(clean=False, recovery_point=recovery_point)
    assert [log.offset_for_timestamp(time_ms) for time_ms in range(101)] == before
    assert log.verify() == []
    log = files.reopen()
    assert [log.offset_for_timestamp(time_ms) for time_ms in range(101)] == before
    assert log.verify() == []


def first_at(times, time_ms):
    """Where the first record at or after a time is, as Kafka answers: None if there is none."""
    return next(((at, one) for at, one in enumerate(times) if one >= time_ms), None)


def check(log, times):
    for time_ms in range(max(times, default=0) + 2):
        assert log.offset_for_timestamp(time_ms) == first_at(times, time_ms)
    assert log.verify() == []


def test_the_entry_that_is_made_again_has_the_newest_time_before_it(make_partition):
    """A clean close adds an entry for the end; the next opening makes that of its last indexed
    batch again.
    """
    files = make_partition(**CONFIG)
    log = files.open()
    # Entries are made at 3 and 6.
    times = [5, 6, 7, 8, 100, 9, 10, 11, 200]
    for number, time_ms in enumerate(times):
        log.append_batch(codec.simple_batch([b"%d" % number], timestamp_ms=time_ms))
    files.reopen()
    files.reopen()
    files.close(clean=False)
    check(files.open(clean=False, recovery_point=len(times)), times)


ROUND = st.tuples(
    st.lists(st.integers(0, 4), max_size=14),
    st.sampled_from(["closed", "closed twice", "flushed", "killed", "killed long after"]),
)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(rounds=st.lists(ROUND, min_size=1, max_size=5))
def test_times_that_come_late_are_found_whatever_happens(rounds):
    """Some records are late, as in any stream; the log is closed, synced and killed between."""
    times = []
    with tempfile.TemporaryDirectory(prefix="eoslog-times-") as folder:
        files = PartitionFiles(Path(folder) / "log", settings_named(**CONFIG))
        log = files.open()
        for late, what in [*rounds, ([], "closed twice"), ([], "killed")]:
            for one in late:
                times.append(max(0, len(times) - one))
                number = b"%d" % len(times)
                log.append_batch(codec.simple_batch([number], timestamp_ms=times[-1]))
            if what.startswith("closed"):
                for _ in what.split():
                    log = files.reopen()
            elif what == "flushed":
                log.flush(True)
            else:
                if what == "killed":
                    log.flush(True)
                files.close(clean=False)
                point = len(times) if what == "killed" else 0
                log = files.open(clean=False, recovery_point=point)
            check(log, times)
        files.close(clean=False)
