"""After a recovery a time is found where it was before: the time index tells of what is not scanned
again.
"""

from __future__ import annotations

import pytest
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
