"""A roll that finds no files to open, or a file no room, changes nothing: the producer goes on."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from harness.fork import die, dies_in_child, in_child

import eoslog
from eoslog import TopicPartition
from eoslog.errors import StoreError, StoreFailedError, StoreFullError
from eoslog.store.store import engine_of

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
    in_child(lambda: roll_with(spare, tmp_path / "store"))


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
    in_child(lambda: append_up_to_a_size(tmp_path / "store"))


def damage_before_a_long_tail(path: Path) -> int:
    """Have a process die whose log is damaged at its second batch; return the log's bytes."""

    def work() -> None:
        store = eoslog.open(path, create=True, config={"eoslog.journal.bytes": 0})
        store.create_topic("rows", config={"segment.bytes": 10**8})
        for number in range(20):
            engine_of(store).partition("rows", 0).append_columns(
                [b"%02d" % number + b"v" * 100_000]
            )
        die()

    assert dies_in_child(work)
    log = path / "rows-0" / f"{0:020d}.log"
    with log.open("r+b") as file:
        file.seek(150_000)
        file.write(b"damage")
    return log.stat().st_size


def recover_up_to_a_size(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is cut off is larger than a file may be: it stays, and what is sound is read."""
    kept = path / "state" / "cut" / "rows-0"
    file_bytes = damage_before_a_long_tail(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, limits[1]))
        store = eoslog.open(path)
        partition = engine_of(store).partition("rows", 0)
        records, _ = partition.fetch_records(0, 100, 1 << 20)
        assert [one.value[:2] for one in records] == [b"00"]
        with pytest.raises(StoreFailedError):
            partition.append_columns([b"later"])
        with pytest.raises(StoreError):
            store.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(kept.iterdir()) == []
        assert (path / "rows-0" / f"{0:020d}.log").stat().st_size == file_bytes
    assert "there is no room to keep what recovery has to cut off after offset 1" in caplog.text
    with eoslog.open(path) as store:
        engine_of(store).partition("rows", 0).append_columns([b"later"])
        assert store.partition("rows", 0).log_end_offset == 2
        assert store.verify() == []
    assert [one.stat().st_size > 1_500_000 for one in kept.iterdir()] == [True]


def test_recovery_without_room_for_what_it_cuts_off(tmp_path, caplog):
    in_child(lambda: recover_up_to_a_size(tmp_path / "store", caplog))
