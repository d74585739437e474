"""How many syncs an opening and a closing take: what was not changed is not synced again."""

from __future__ import annotations

from pathlib import Path

import pytest

import eoslog

PARTITIONS = 30
COUNT = """
import errno, sys
from pathlib import Path
from call_faults import failing_calls
import eoslog
path, read, written = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
failing_calls.arm(path, "sync", 10**9, errno.EIO, again=False)
with eoslog.open(path, durability="process") as store:
    consumer = store.consumer()
    consumer.assign([eoslog.TopicPartition("t", number) for number in range(read)])
    found = 0
    while found < read:
        found += len(consumer.poll(0))
    for number in range(written):
        store.producer().append("t", partition=number, values=[b"more"])
print(failing_calls.disarm()[0])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            store.producer().append("t", partition=number, values=[b"one"])
    return path


@pytest.fixture
def syncs_of(path, run):
    def syncs(*, read, written=0):
        return int(run(COUNT, path, read, written))

    return syncs


def test_partitions_that_were_only_read_are_not_synced(path, syncs_of):
    few = syncs_of(read=1)
    assert syncs_of(read=PARTITIONS) == few
    # The log and its names, at least, of each that was changed.
    assert syncs_of(read=1, written=PARTITIONS) >= few + 2 * PARTITIONS
    with eoslog.open(path) as store:
        assert store.verify() == []


def test_a_store_that_is_read_again_and_again_stays_clean(path, syncs_of):
    for _ in range(2):
        syncs_of(read=PARTITIONS)
    with eoslog.open(path) as store:
        assert store.verify() == []
        ends = [store.partition("t", number).log_end_offset for number in range(PARTITIONS)]
    assert ends == [1] * PARTITIONS
