"""A recovery reads what no sync is known to have covered, whatever the length of a segment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.fork import die, dies_in_child, in_child
from page_cache import disk_read_bytes, drop_from_cache
from store_copies import copy_store
from stores import QUIET

import eoslog
from eoslog.errors import CorruptRecordError
from eoslog.storage.partition_producers import PartitionProducers
from eoslog.store import files as store_files
from eoslog.store.store import engine_of

pytestmark = pytest.mark.crash

SEGMENT_BYTES = 1 << 30
VALUES = [os.urandom(1 << 16)] * 8  # One batch.
BATCH_BYTES = 1 << 19
# After the recovery point of the page; the checkpoint knows nothing of this log.
UNCHECKED_BATCHES = 2
SYNCED_BATCHES = 40
IN_THE_SPARE = 8
ANOTHER_BOOT = bytes(range(16))
FAILED_ERRNO_AT = 104  # In the control page.


def append_and_die(path: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
    """The last segment was made ahead of need, so its file has its full length; a sync, with no
    checkpoint after it, covers all but the last batches.
    """
    store = eoslog.open(path, create=True, config=QUIET)
    store.create_topic("t", config={"segment.bytes": segment_bytes})
    producer, partition = store.producer(), engine_of(store).partition("t", 0)
    for number in range(SYNCED_BATCHES):
        if number == SYNCED_BATCHES - IN_THE_SPARE:
            partition.prepare_spare()
            partition.roll()
        producer.append("t", 0, VALUES)
    producer.flush()
    partition.producer_state.persist()  # As the background thread does: else the log is replayed.
    for _ in range(UNCHECKED_BATCHES):
        producer.append("t", 0, VALUES)
    newest = max(partition.path.glob("*.log"))
    assert newest.stat().st_size == segment_bytes
    die()


def read_by_the_next_opening(path: Path, boot_id: bytes | None = None) -> tuple[int, int, int]:
    """Bytes that it reads, the log end, the recovery point."""
    if boot_id is not None:
        store_files.boot_id_bytes = lambda: boot_id  # type: ignore[assignment]
    store = eoslog.open(path)
    before_bytes = disk_read_bytes()
    partition = engine_of(store).partition("t", 0)
    read_bytes = disk_read_bytes() - before_bytes
    found = read_bytes, partition.log_end_offset, partition.recovery_point
    store.close()
    return found


@pytest.mark.parametrize("same_boot", [True, False], ids=["killed", "power cut"])
def test_no_more_is_read_than_is_unchecked(disk_path: Path, same_boot: bool) -> None:
    path = disk_path / "store"
    assert dies_in_child(lambda: append_and_die(path))
    drop_from_cache(path / "t-0")
    boot_id = None if same_boot else ANOTHER_BOOT
    found = in_child(lambda: read_by_the_next_opening(path, boot_id))
    read_bytes, end, recovery_point = found
    batches = SYNCED_BATCHES + UNCHECKED_BATCHES
    assert end == batches * len(VALUES)
    assert recovery_point == (SYNCED_BATCHES * len(VALUES) if same_boot else 0)
    unchecked_bytes = BATCH_BYTES * (UNCHECKED_BATCHES if same_boot else batches)
    if read_bytes == 0:
        pytest.skip("the file system has no disk")
    assert unchecked_bytes <= read_bytes <= 1.2 * unchecked_bytes


SMALL_BYTES = 1 << 25


def damage(path: Path, batch: int) -> None:
    """Change a byte of a record of the second segment."""
    with max((path / "t-0").glob("*.log")).open("r+b") as file:
        file.seek(batch * BATCH_BYTES + BATCH_BYTES // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def opened_end(path: Path) -> int:
    with eoslog.open(path) as store:
        return store.partition("t", 0).log_end_offset


def of_another_boot(path: Path) -> None:
    store_files.boot_id_bytes = lambda: ANOTHER_BOOT  # type: ignore[assignment]


def without_its_boot(path: Path) -> None:
    store_files.boot_id_bytes = lambda: None  # type: ignore[assignment]


def copied(path: Path) -> None:
    """With the page: it is of another file, whose log may have gone on."""
    copy_store(path, path.with_name("copy"))
    path.rename(path.with_name("moved"))
    path.with_name("copy").rename(path)


def left_with_a_failed_sync(path: Path) -> None:
    with (path / "state" / "control" / "t-0").open("r+b") as page:
        page.seek(FAILED_ERRNO_AT)
        page.write((5).to_bytes(4, "little"))


@pytest.mark.parametrize(
    "change", [of_another_boot, without_its_boot, copied, left_with_a_failed_sync]
)
def test_all_is_verified_where_the_page_does_not_count(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "store"
    assert dies_in_child(lambda: append_and_die(path, SMALL_BYTES))
    damage(path, 1)

    def work() -> Any:
        change(path)
        return opened_end(path)

    # The first batch of the second segment is whole.
    expected = (SYNCED_BATCHES - IN_THE_SPARE + 1) * len(VALUES)
    assert in_child(work) == expected


def test_what_was_synced_is_not_verified_again(tmp_path: Path) -> None:
    """Damage to it is found where it is read, as after a clean stop."""
    path = tmp_path / "store"
    assert dies_in_child(lambda: append_and_die(path, SMALL_BYTES))
    damage(path, 1)
    with eoslog.open(path) as store:
        partition = engine_of(store).partition("t", 0)
        assert partition.log_end_offset == (SYNCED_BATCHES + UNCHECKED_BATCHES) * len(VALUES)
        offset = (SYNCED_BATCHES - IN_THE_SPARE) * len(VALUES)
        partition.fetch_records(offset, len(VALUES), BATCH_BYTES)
        with pytest.raises(CorruptRecordError):
            partition.fetch_records(offset + len(VALUES), len(VALUES), BATCH_BYTES)
        assert store.verify()


def fail_to_open(path: Path, how: str) -> None:
    """An opening that fails after the recovery, or dies there."""
    store = eoslog.open(path)

    def end_here(*_: object) -> None:
        if how == "dies":
            die()
        raise CorruptRecordError(str(path), 0, "cannot be read now")

    PartitionProducers.restore = end_here  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            store.partition("t", 0)
    store.close()


@pytest.mark.parametrize("same_boot", [True, False], ids=["killed", "power cut"])
@pytest.mark.parametrize("how", ["fails", "dies"])
def test_an_opening_after_one_that_failed_begins_where_that_did(
    tmp_path: Path, how: str, same_boot: bool
) -> None:
    path = tmp_path / "store"
    assert dies_in_child(lambda: append_and_die(path, SMALL_BYTES))
    for _ in range(2):
        assert dies_in_child(lambda: fail_to_open(path, how)) == (how == "dies")
    boot_id = None if same_boot else ANOTHER_BOOT
    _, end, recovery_point = in_child(lambda: read_by_the_next_opening(path, boot_id))
    assert end == (SYNCED_BATCHES + UNCHECKED_BATCHES) * len(VALUES)
    assert recovery_point == (SYNCED_BATCHES * len(VALUES) if same_boot else 0)
