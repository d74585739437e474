"""Many topics are created with one sync of the file system: a cut leaves all of them, or none."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from power_loss import disk_trace
from power_loss.disk_model import Disk, PowerCut
from power_loss.disk_trace import ALL_SYNCED, MARK

import eoslog

pytestmark = pytest.mark.crash

TOPICS = {f"topic-{number}": 2 for number in range(30)}
STATES = 24


def test_a_cut_leaves_all_topics_or_none(tmp_path: Path, events_of):
    events = events_of("test_topics_at_once", tmp_path)
    created = next(at for at, one in enumerate(events) if one.kind == MARK)
    assert any(one.kind == ALL_SYNCED for one in events[:created])
    found = set()
    for number in range(STATES):
        noise = random.Random(number)
        # Half of them in the midst of the creation.
        moment = noise.randint(1, created) if number % 2 else created
        disk = Disk()
        for event in events[:moment]:
            disk.take(event)
        cut = PowerCut(disk, noise)
        path = tmp_path / f"cut-{number}"
        path.mkdir()
        cut.write(path, cut.draw())
        with eoslog.open(path) as store:
            topics = {name: topic.partitions for name, topic in store.topics().items()}
            assert topics in ({}, TOPICS)
            assert topics or moment < created
            assert store.verify() == []
            for name in topics:
                store.producer().append(name, partition=1, values=[b"value"])
        found.add(bool(topics))
    assert found == {True, False}


def main(root: str) -> None:
    path = Path(root, "store")
    eoslog.open(path, create=True).close()
    store = eoslog.open(path)
    disk_trace.begin(path, Path(root, "trace"))
    store.create_topics(TOPICS)
    disk_trace.mark(created=True)
    disk_trace.end()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
