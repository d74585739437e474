"""A roll that finds no files to open changes nothing: the same producer goes on with them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from forked import in_a_child

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreError

pytestmark = pytest.mark.crash

VALUE = b"x" * 20_000


def roll_with(spare: int, path: Path) -> None:
    """Roll where only so many more files may be open, and then with all of them."""
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("rows", config={"segment.bytes": 30_000})
        producer = store.producer()
        producer.append("rows", 0, [VALUE])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = len(list(Path("/proc/self/fd").iterdir())) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, limits[1]))
        acknowledged = 1
        try:
            producer.append("rows", 0, [VALUE])
            acknowledged += 1
        except StoreError as error:
            assert error.outcome == "not_appended", error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert store.verify() == []
        for _ in range(2):
            producer.append("rows", 0, [VALUE])
        producer.flush()
        assert store.verify() == []
        ends = store.consumer().end_offsets([TopicPartition("rows", 0)])
        assert list(ends.values()) == [acknowledged + 2]
    with eoslog.open(path) as store:
        assert store.verify() == []
        assert store.partition("rows", 0).log_end_offset == acknowledged + 2


@pytest.mark.parametrize("spare", range(6))
def test_with_so_many_files(tmp_path, spare):
    in_a_child(lambda: roll_with(spare, tmp_path / "store"))
