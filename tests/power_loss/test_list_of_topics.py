"""The power goes at any moment of changes of the list of topics, or of its upgrade."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from power_loss import disk_trace
from power_loss.disk_model import Disk, PowerCut
from power_loss.disk_trace import MARK

from eoslog import upgrade
from eoslog.bindings.record_batch import crc32c
from eoslog.bindings.shared_page import SharedPage
from eoslog.storage.lmdb_environment import LmdbEnvironment
from eoslog.storage.topic_registry import TopicRegistry, new_topic
from eoslog.transactions.state_index import StateIndex

pytestmark = pytest.mark.crash

CUTS = 6  # Of each moment.
OLDER = [f"older-{number}" for number in range(40)]


@pytest.mark.parametrize("work", ["changes", "upgrade"])
def test_a_cut_leaves_the_list_before_or_after_a_change(tmp_path: Path, events_of, work: str):
    events = events_of("test_list_of_topics", tmp_path, work)
    states = [json.loads(event.first)["topics"] for event in events if event.kind == MARK]
    done = -1
    disk = Disk()
    found = set()
    for moment, event in enumerate(events):
        disk.take(event)
        done += event.kind == MARK
        for number in range(CUTS if done >= 0 else 0):
            cut = PowerCut(disk, random.Random(f"{moment} {number}"))
            path = tmp_path / f"cut-{moment}-{number}"
            path.mkdir()
            cut.write(path, cut.draw())
            left = sorted(upgrade.read_topics(path) or {})
            assert left in states[done : done + 2]
            found.add((done, left == states[done]))
    assert found >= {(number, True) for number in range(len(states))}
    assert work == "upgrade" or len(found) > len(states)


def main(root: str, work: str) -> None:
    path = Path(root, "state")
    path.mkdir()
    index = StateIndex(LmdbEnvironment(Path(root, "elsewhere", "lmdb")))
    shared = SharedPage(str(Path(root, "shared")), bytes(16), create=True)
    if work == "upgrade":
        write_older(path)
    else:
        TopicRegistry.load(path, path, shared)
    disk_trace.begin(path, Path(root, "trace"))
    if work == "upgrade":
        disk_trace.mark(topics=sorted(OLDER))
        upgrade.upgrade_topics(path, index)
        disk_trace.mark(topics=sorted(OLDER))
    else:
        change(TopicRegistry.load(path, path, shared))
    disk_trace.end()
    os._exit(0)


def change(registry: TopicRegistry) -> None:
    def mark() -> None:
        known = registry.all() + registry.deleting()
        disk_trace.mark(topics=sorted(topic.name for topic in known))

    mark()
    for number in range(5):
        registry.add(*(new_topic(f"t{number}-{one}", 1, {}) for one in range(8)))
        mark()
        registry.mark_deleting(f"t{number}-0")
        registry.remove(f"t{number}-0")
        mark()


def write_older(path: Path) -> None:
    """As a version before this one wrote many topics."""
    (path / "topics.json").write_text('{"version": 2, "topics": "topics.log"}')
    before = b""
    with (path / "topics.log").open("wb") as log:
        for name in OLDER:
            entry = {"partitions": 1, "topic_id": "DkLaBYPjQQOlLM5HLGoVAA", "config": {}}
            text = json.dumps({name: entry}).encode()
            before = b"%08x" % crc32c(before + text)
            log.write(text + b"\t" + before + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
