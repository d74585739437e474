"""A snapshot of producers that finds no room is a full disk, and not one that failed."""

from __future__ import annotations

import pytest
from crash.shared_log import SharedLog
from transaction_files import full_disk

from eoslog.errors import StoreFullError


def test_a_snapshot_without_room_is_a_full_store(tmp_path):
    shared = SharedLog(tmp_path / "shared")
    log = shared.open()
    log.append_columns([b"v"], timestamp_ms=1, producer_id=7, producer_epoch=0, base_sequence=0)
    with full_disk(), pytest.raises(StoreFullError) as caught:
        log.take_snapshot(True)
    assert caught.value.retriable
    assert not list(shared.directory.glob("*.snapshot*"))
    assert log.take_snapshot(True)
    assert len(list(shared.directory.glob("*.snapshot"))) == 1
