"""A roll that finds no files to open, or a file no room, changes nothing: the producer goes on."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from forked import in_a_child

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreError, StoreFullError

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


def append_up_to_a_size(path: Path) -> None:
    """Files may not be larger: as on a full disk, and the producer goes on when they may."""
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("rows", config={"segment.bytes": 10**8})
        producer = store.producer()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, limits[1]))
        acknowledged = 0
        with pytest.raises(StoreFullError) as caught:
            while acknowledged < 1000:
                producer.append("rows", 0, [b"y" * 5000])
                acknowledged += 1
        assert caught.value.outcome == "not_appended"
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        producer.append("rows", 0, [b"z"])
        assert store.partition("rows", 0).log_end_offset == acknowledged + 1


def test_a_limit_of_sizes_is_a_full_disk(tmp_path):
    in_a_child(lambda: append_up_to_a_size(tmp_path / "store"))
