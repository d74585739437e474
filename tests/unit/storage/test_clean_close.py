"""The trace of a clean close goes, durably, before anything is written."""

from __future__ import annotations

import pytest

from eoslog.storage import clean_close
from eoslog.storage.clean_close import forget_last_stop


@pytest.mark.parametrize("is_there", [True, False])
def test_a_trace_that_somebody_removed_already_is_synced_all_the_same(
    tmp_path, monkeypatch, is_there
):
    """They may have died between the two steps."""
    marker, unrecovered = tmp_path / ".kafka_cleanshutdown", tmp_path / "state" / "unrecovered.json"
    unrecovered.parent.mkdir()
    if is_there:
        marker.touch()
    synced = []

    def sync(path) -> None:
        assert not marker.exists()
        synced.append(path)

    monkeypatch.setattr(clean_close, "sync_directory", sync)
    forget_last_stop(marker, unrecovered)
    assert synced == [tmp_path, tmp_path / "state"]
