"""A log dies in a roll: the next file is there, the older one is not cut to its batches."""

from __future__ import annotations

import pytest
from partition_files import PartitionFiles, all_records, segment_name
from reference_model import batch_codec as codec
from store_copies import copy_store

pytestmark = pytest.mark.crash

CONFIG = {"segment.bytes": 6000, "index.interval.bytes": 500}


@pytest.mark.parametrize("next_bytes", [0, 6000], ids=["empty", "reserved"])
@pytest.mark.parametrize("synced", [0, 3, 5])
def test_a_segment_that_was_not_cut_is_cut_by_recovery(tmp_path, synced, next_bytes):
    """Also where everything in it was synced before the roll, and so need not be verified."""
    live = PartitionFiles(tmp_path / "live", CONFIG)
    log = live.open()
    values = [b"%d:" % number + b"v" * 200 for number in range(5)]
    for number, value in enumerate(values):
        log.append_batch(
            codec.simple_batch(
                [value], producer_id=1, producer_epoch=0, base_sequence=number, timestamp_ms=1000
            )
        )
    log.flush(True)
    assert live.path(0).stat().st_size > log.size_bytes
    copy_store(live.root, tmp_path / "after")
    live.close()
    after = PartitionFiles(tmp_path / "after", CONFIG)
    (after.directory / segment_name(5)).write_bytes(bytes(next_bytes))
    log = after.open(clean=False, recovery_point=synced)
    assert [record.value for record in all_records(log)] == values
    assert log.verify() == []
    log.append_batch(
        codec.simple_batch(
            [b"next"], producer_id=1, producer_epoch=0, base_sequence=5, timestamp_ms=1000
        )
    )
    assert [record.value for record in all_records(log)] == [*values, b"next"]
    after.close()
    log = after.open()
    assert [record.value for record in all_records(log)] == [*values, b"next"]
    assert log.verify() == []
    after.close()
