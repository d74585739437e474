"""The list of topics has the bounds of logs without opening them, where the store's files agree."""

from __future__ import annotations

import os
import shutil

import pytest
from harness.crew import Member
from read_only_stores import unchanged

import eoslog
from eoslog import TopicPartition
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import CorruptRecordError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, RECOVERY_POINT
from eoslog.store.store import abandon, offset_bounds_of, parts_of

PARTITIONS = 4


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", PARTITIONS, config={"segment.bytes": 4096})
        with store.producer() as producer:
            for number in range(PARTITIONS - 1):
                for _ in range(3 * number + 1):
                    producer.append("t", number, [b"x" * 1000])
        store.delete_records({TopicPartition("t", 2): 5})
        with store.producer(transactional_id="a") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.append("t", 0, [b"x"])
        store.consumer("g").commit({TopicPartition("t", 0): 1})
    return path


def bounds_in(store):
    names = ["t", *INTERNAL_TOPICS]
    return {
        where: one for name in names for where, one in (offset_bounds_of(store, name) or {}).items()
    }


def check(path) -> int:
    """Compare what the list says with what an opening of each shows; how many it had to open."""
    with unchanged(path), eoslog.open(path, read_only=True) as store:
        partitions = parts_of(store).files.partitions
        before = len(partitions.opened())
        found = bounds_in(store)
        opened = len(partitions.opened()) - before
        for where, bounds in found.items():
            log = partitions.find_of_any_topic(where)
            assert bounds == range(log.log_start_offset, log.log_end_offset), where
        assert len([where for where in found if where.topic == "t"]) == PARTITIONS
    return opened


def test_after_a_clean_close_no_log_is_opened(path):
    assert check(path) == 0


def test_partitions_that_were_never_used_are_not_opened(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", PARTITIONS)
    assert check(path) == 0


def test_no_log_is_opened_beside_the_process_that_has_them_open(path):
    with Member() as other:
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        other.run("for n in range(3): store.producer().append('t', n, [b'x'] * (n + 1))")
        with eoslog.open(path, read_only=True) as store:
            found = bounds_in(store)
            ends = [found[TopicPartition("t", number)].stop for number in range(PARTITIONS)]
            assert ends == [1 + 2 + 1, 4 + 2, 7 + 3, 0]
            assert parts_of(store).files.partitions.opened() == []


def test_after_a_kill_the_list_is_what_a_recovery_leaves(path):
    store = eoslog.open(path)
    store.producer().append("t", 1, [b"y"] * 3)
    producer = store.producer(transactional_id="a")
    producer.init_transactions()
    producer.begin_transaction()
    producer.append("t", 0, [b"y"])
    producer.flush()
    abandon(store)
    assert check(path) > 0
    with eoslog.open(path, read_only=True) as store:
        # The transaction's record, and the marker that aborts it.
        assert bounds_in(store)[TopicPartition("t", 0)] == range(1 + 2 + 2)


def cut(path):
    os.truncate(newest_segment(path), 100)


def lose(path):
    newest_segment(path).unlink()


def grow(path):
    with newest_segment(path).open("ab") as file:
        file.write(bytes(10))


def lose_oldest(path):
    min((path / "t-2").glob("*.log")).unlink()


def newest_segment(path):
    return max((path / "t-2").glob("*.log"))


def go_back_to_an_older_page(path):
    page = path / "state" / "control" / "t-2"
    kept = page.read_bytes()
    with eoslog.open(path) as store:
        store.producer().append("t", 2, [b"x" * 1000] * 5)
    page.write_bytes(kept)


def lose_page(path):
    (path / "state" / "control" / "t-2").unlink()


def lose_recovery_points(path):
    (path / RECOVERY_POINT).unlink()


def lose_starts(path):
    (path / LOG_START_OFFSET).unlink()


@pytest.mark.parametrize(
    "change",
    [
        *(lose, lose_oldest, go_back_to_an_older_page, lose_page, lose_recovery_points),
        lose_starts,
    ],
    ids=lambda one: one.__name__,
)
def test_files_that_do_not_agree_have_the_log_opened(path, change):
    change(path)
    assert check(path) >= 1


@pytest.mark.parametrize("change", [cut, grow], ids=lambda one: one.__name__)
def test_the_error_of_an_opening_is_that_of_the_list(path, change):
    change(path)
    with pytest.raises(CorruptRecordError, match="closed cleanly"):
        check(path)


def test_a_topic_made_again_is_not_what_its_old_page_says(path):
    page = path / "state" / "control" / "t-2"
    kept = page.read_bytes()
    with eoslog.open(path) as store:
        store.delete_topic("t")
        store.create_topic("t", PARTITIONS)
    page.write_bytes(kept)
    assert check(path) == 1
    shutil.rmtree(path / "t-3")
    with pytest.raises(CorruptRecordError, match="is gone"):
        check(path)
