"""An interrupt (Ctrl-C) while a partition is opened, looked at or removed keeps nobody out of it.

The exception is kept, as a debugger or the block of an `except` does, and all that it refers to.
"""

import os
from itertools import count
from pathlib import Path

import pytest
from crash.interrupted_lines import interrupted_at
from file_locks import is_free
from harness.fork import in_child

import eoslog
from eoslog import TopicPartition
from eoslog.fs.file_lock import directory_locked, file_locked
from eoslog.store.store import parts_of

# Where a lock is taken, or what has one is on its way to whoever asked for it.
FILES = (
    "/eoslog/storage/opened_partitions.py",
    "/eoslog/storage/log_opener.py",
    "/eoslog/groups/log.py",
    "/eoslog/fs/file_lock.py",
)
WHERE = TopicPartition("rows", 0)
DESCRIPTORS = Path("/proc/self/fd")


def is_ours(frame):
    return frame.f_code.co_filename.endswith(FILES)


def at_every_line(prepare, call, check):
    """Interrupt the call before each of its lines; then what was kept out is looked at."""
    line = 0
    while True:
        line += 1
        prepared, kept = prepare(), None
        with interrupted_at(line, is_ours) as seen:
            try:
                call(prepared)
            except KeyboardInterrupt as error:
                kept = error
        check(prepared, seen[-1])
        if kept is None:
            return line


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        yield store


def locked_files_of(store, where):
    paths = parts_of(store).files.paths
    found = [paths.partition(where), paths.control(where)]
    return [path for path in found if path.exists() and not is_free(path)]


def test_an_interrupt_at_any_line_of_an_opening_leaves_the_partition_to_all(store):
    store.create_topic("rows", 250)
    producer, unopened = store.producer(), iter(range(250))

    def prepare():
        return TopicPartition("rows", next(unopened))

    def call(where):
        producer.append("rows", partition=where.partition, values=[b"one"])

    def check(where, line):
        assert not locked_files_of(store, where), line
        call(where)

    assert at_every_line(prepare, call, check) > 60


def test_an_interrupt_at_any_line_of_a_deletion_leaves_the_partition_to_all(store):
    names = (f"rows{number}" for number in count())

    def prepare():
        name = next(names)
        store.create_topic(name)
        store.producer().append(name, partition=0, values=[b"one"])
        return name

    def check(name, line):
        assert not locked_files_of(store, TopicPartition(name, 0)), line

    assert at_every_line(prepare, store.delete_topic, check) > 20


def test_an_interrupt_at_any_line_of_a_look_at_groups_leaves_them_to_all(store):
    store.create_topic("rows")
    store.producer().append("rows", partition=0, values=[b"one"])
    with store.consumer(group="readers") as consumer:
        consumer.assign([WHERE])
        consumer.poll(0)
        consumer.commit()

    def check(_, line):
        logs = parts_of(store).files.group_offsets.log.used()
        assert not [one.number for one in logs if one.lock.locked()], line
        assert store.groups()["readers"][WHERE].offset == 1

    assert at_every_line(lambda: None, lambda _: store.groups(), check) > 8


@pytest.mark.parametrize("wait", [True, False])
def test_an_interrupt_at_any_line_of_a_locked_file_leaves_it_free(tmp_path, wait):
    path = tmp_path / "lock"
    path.touch()

    def call(_):
        with file_locked(path, wait=wait) as is_locked:
            assert is_locked

    def check(_, where):
        assert is_free(path), where

    at_every_line(lambda: None, call, check)
    assert is_free(path)


def test_a_locked_file_keeps_others_out(tmp_path):
    path = tmp_path / "lock"
    with file_locked(path) as is_locked:
        assert is_locked
        assert not is_free(path)
        with file_locked(path, wait=False) as is_locked_twice:
            assert not is_locked_twice
        assert not is_free(path)
    assert is_free(path)
    with directory_locked(tmp_path) as is_locked:
        assert is_locked
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_a_file_that_cannot_be_locked_is_named(tmp_path):
    with pytest.raises(FileNotFoundError), directory_locked(tmp_path / "none"):
        pass
    with (
        pytest.raises(eoslog.errors.StoreError, match="none"),
        file_locked(tmp_path / "none" / "lock"),
    ):
        pass


def opened(path: Path) -> int:
    """How many descriptors of this process are of a file."""
    return sum(os.path.realpath(one) == str(path) for one in DESCRIPTORS.iterdir())


def test_the_child_of_a_fork_keeps_no_lock(tmp_path):
    path = tmp_path / "lock"
    with file_locked(path):
        assert opened(path) == 1
        assert in_child(lambda: opened(path)) == 0
        assert not is_free(path)
