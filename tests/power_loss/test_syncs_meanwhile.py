"""The kernel syncs a large batch's file while the record of the rest is written to the journal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commit_journals import LARGE, journal_of, with_journal
from partition_files import TOPIC
from power_loss import disk_trace
from power_loss.disk_trace import BEGUN, SYNC_BEGUN, SYNC_ENDED, SYNCED, WRITTEN

import eoslog

pytestmark = pytest.mark.crash

COMMITS = 3
LARGE_BYTES = 200_000


def test_the_record_is_written_between_the_begin_of_the_sync_and_its_end(tmp_path: Path, events_of):
    events = events_of("test_syncs_meanwhile", tmp_path)
    events = events[[one.kind for one in events].index(BEGUN) :]
    (segment,) = {one.inode for one in events if one.kind == SYNC_BEGUN}
    (journal,) = {one.inode for one in events if one.kind == SYNCED and one.number == 0}
    order = [
        (one.kind, one.inode)
        for one in events
        if one.kind in (SYNC_BEGUN, SYNC_ENDED, SYNCED)
        or (one.kind == WRITTEN and one.inode == journal)
    ]
    # No other sync: that of the file is not made again.
    assert order == COMMITS * [
        (SYNC_BEGUN, segment),
        (WRITTEN, journal),
        (SYNCED, journal),
        (SYNC_ENDED, segment),
    ]


def commit_large_batches(root: Path) -> None:
    path = root / "store"
    with eoslog.open(path, create=True, durability="commit", config=LARGE) as store:
        store.create_topic(TOPIC, partitions=1)
        journal_of(with_journal(store))
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        for number in range(1 + COMMITS):
            if number == 1:  # The names of the segments are on the disk from now on.
                disk_trace.begin(path, root / "trace")
            with producer.transaction():
                producer.append(TOPIC, 0, [bytes(LARGE_BYTES)])
        disk_trace.end()


if __name__ == "__main__":
    commit_large_batches(Path(sys.argv[1]))
