"""LMDB under several processes: growth, dead readers, rows that do not go back, damage, forks."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from harness.crew import started
from harness.fork import Fork, in_child

from eoslog.bindings.producer_state import empty_row
from eoslog.errors import ForkedProcessError
from eoslog.fs.file_lock import UpgradableLock
from eoslog.fs.identity_files import new_id
from eoslog.storage.lmdb_environment import (
    DIRECTORY_NAME,
    LOCK_SUFFIX,
    LmdbEnvironment,
    StateStoreDamagedError,
)
from eoslog.storage.producer_rows import ProducerRows, RowsHead, count_producer_rows

TOPIC = new_id()

PRELUDE = """
from pathlib import Path
import eoslog.storage.lmdb_environment as environment
from eoslog.bindings.producer_state import empty_row
from eoslog.storage.lmdb_environment import LmdbEnvironment, StateStoreDamagedError
from eoslog.storage.producer_rows import ProducerRows, count_producer_rows
path, topic = Path({path!r}), {topic!r}
def opened(path, partition=0):
    return ProducerRows(LmdbEnvironment(path / "lmdb", shared=True), topic, partition)
def write(store, ids, offset, **more):
    return store.write_rows(b"".join(map(empty_row, ids)), offset, **more)
"""


def opened(tmp_path):
    return ProducerRows(LmdbEnvironment(tmp_path / "lmdb", shared=True), TOPIC, 0)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr("eoslog.storage.lmdb_environment.MAP_BYTES_INITIAL", 1 << 18)
    store = opened(tmp_path)
    yield store
    store.environment.close()


@pytest.fixture
def other(tmp_path):
    made = []

    def start(code):
        prelude = PRELUDE.format(path=str(tmp_path), topic=TOPIC)
        made.append(started(prelude + code))
        return made[-1]

    yield start
    for one in made:
        one.dispose()


def write(store, ids, offset, **more):
    return store.write_rows(b"".join(map(empty_row, ids)), offset, **more)


def row_changed_at(producer_id, offset):
    row = bytearray(empty_row(producer_id))
    row[24:32] = offset.to_bytes(8, "little")
    return bytes(row)


def test_one_process_reads_what_another_wrote(rows, other):
    write(rows, [1, 2], 5)
    peer = other("store = opened(path)\nsay(store.read_head())\nwrite(store, [3], 9, since=5)\n")
    assert peer.hear().word == "RowsHead(offset=5, row_count=2)"
    peer.end()
    assert rows.read_head() == RowsHead(9, 3)


def test_a_map_that_another_process_made_larger(rows, other):
    write(rows, [1], 5)
    peer = other(
        "environment.MAP_BYTES_INITIAL = 1 << 18\n"
        "store = opened(path)\n"
        "write(store, range(20_000), 9)\n"
        "say(store.environment.lmdb.info()['map_size'])\n"
        "wait()\n"
        "say(count_producer_rows(store.environment))\n"
    )
    assert int(peer.hear().word) > rows.environment.lmdb.info()["map_size"] == 1 << 18
    # Reading and writing both meet it.
    assert rows.read_head() == RowsHead(9, 20_000)
    assert rows.environment.lmdb.info()["map_size"] > 1 << 18
    write(rows, range(20_000, 90_000), 11)
    peer.tell()
    peer.hear("90000")


def test_two_processes_that_both_grow_the_map(rows, other):
    body = (
        "environment.MAP_BYTES_INITIAL = 1 << 18\n"
        "store = opened(path, {partition})\n"
        "for number in range(40):\n"
        "    ids = range({first} + 500 * number, {first} + 500 * (number + 1))\n"
        "    data = b''.join(empty_row(one) for one in ids)\n"
        "    store.write_rows(data, number + 1)\n"
    )
    peers = [other(body.format(first=1_000_000 * one, partition=one)) for one in range(3)]
    for peer in peers:
        peer.end()
    for partition in range(3):
        assert ProducerRows(rows.environment, TOPIC, partition).read_head() == RowsHead(40, 20_000)
    assert count_producer_rows(rows.environment) == 60_000


def test_rows_do_not_go_back(rows, other):
    assert write(rows, [1], 10) == 10
    peer = other("store = opened(path)\nsay(write(store, [2], 30, since=10))")
    peer.hear("30")
    peer.end()
    # What this process knows is older: nothing of it goes in.
    assert write(rows, [3], 20, since=10) == 30
    assert rows.read_row(3) is None
    assert rows.read_head() == RowsHead(30, 2)
    assert write(rows, [3], 40, since=30) == 40


def test_rows_that_build_on_what_is_gone_are_refused(rows):
    write(rows, [1], 10)
    rows.delete_all()
    with pytest.raises(StateStoreDamagedError, match="before offset 10 are gone"):
        write(rows, [2], 20, since=10)
    assert rows.read_head() is None
    write(rows, [2], 5)
    with pytest.raises(StateStoreDamagedError):
        write(rows, [2], 20, since=10)
    assert rows.environment.generation == 0


def test_rows_are_read_with_the_head_they_are_true_at(rows):
    write(rows, [1, 2, 3], 10)
    head = rows.read_head()
    found = rows.read_rows(head, None)
    assert found.rows == [empty_row(one) for one in (1, 2, 3)]
    assert rows.read_rows(head, [2, 9]).rows == [empty_row(2)]
    write(rows, [1], 11)
    assert rows.read_rows(head, None) is None


def test_a_producer_that_wrote_again_is_not_forgotten(rows):
    data = row_changed_at(1, 7) + row_changed_at(2, 12)
    rows.write_rows(data, 20)
    rows.delete_producers([1, 2], changed_up_to=10)
    assert rows.read_row(1) is None
    assert rows.read_row(2) is not None
    assert rows.read_head() == RowsHead(20, 1)


def test_rows_of_dropped_producers_go_with_the_write_of_later_ones(rows):
    write(rows, [1, 2, 3], 20)
    assert write(rows, [4], 30, since=20, dropped=[1, 3, 9]) == 30
    assert rows.read_head() == RowsHead(30, 2)
    assert [producer_id for producer_id, _ in rows.rows_after(0, 10)] == [2, 4]
    # What is older than LMDB's rows takes nothing away.
    assert write(rows, [], 25, since=20, dropped=[2]) == 30
    assert rows.read_row(2) is not None


def test_the_places_of_dead_readers_are_freed(rows, other):
    write(rows, [1], 5)
    peers = [
        other(
            "store = opened(path)\n"
            "transaction = store.environment.lmdb.begin()\n"
            "say('reading')\n"
            "wait()\n"
        )
        for _ in range(3)
    ]
    for peer in peers:
        peer.hear("reading")
    assert rows.environment.free_dead_readers() == 0
    for peer in peers[1:]:
        peer.kill()
    assert rows.environment.free_dead_readers() == 2
    peers[0].kill()
    assert rows.environment.free_dead_readers() == 1
    assert rows.read_head() == RowsHead(5, 1)


def test_dead_readers_do_not_use_up_the_places(tmp_path, monkeypatch, other):
    monkeypatch.setattr("eoslog.storage.lmdb_environment.READERS_MAX", 2)
    rows = opened(tmp_path)
    write(rows, [1], 5)
    for _ in range(4):
        peer = other(
            "store = opened(path)\n"
            "transactions = [store.environment.lmdb.begin() for _ in range(1)]\n"
            "say(store.environment.lmdb.max_readers())\n"
            "wait()\n"
        )
        peer.hear("2")
        peer.kill()
        assert rows.read_head() == RowsHead(5, 1)
    rows.environment.close()


def test_a_process_killed_while_it_writes_leaves_nothing_of_it(rows, other):
    write(rows, [1], 5)
    peer = other(
        "store = opened(path)\n"
        "def work(tables):\n"
        "    tables.put(b'producers', b'x' * 30, b'y' * 3000)\n"
        "    say('writing')\n"
        "    wait()\n"
        "store.environment.write(work)\n"
    )
    peer.hear("writing")
    peer.kill()
    write(rows, [2], 6, since=5)
    assert rows.read_head() == RowsHead(6, 2)
    assert count_producer_rows(rows.environment) == 2


def test_writers_that_are_killed_again_and_again(rows, other):
    code = (
        "store = opened(path)\n"
        "say('on')\n"
        "for offset in range({first}, {first} + 1_000_000):\n"
        "    write(store, [offset % 977, offset % 977 + 1], offset)\n"
        "    say(offset)\n"
    )
    reached = 0
    for attempt in range(6):
        peer = other(code.format(first=reached + 1))
        peer.hear("on")
        for _ in range(3 + attempt):
            reached = int(peer.hear().word)
        os.kill(peer.pid, signal.SIGKILL)
        peer.kill()
        head = rows.read_head()
        # All that was said to be written is there.
        assert head.offset >= reached
        reached = head.offset
        assert len(rows.rows_after(0, 10_000)) == head.row_count


def damage(rows):
    """Spoil one row below its checksum."""

    def work(tables):
        ((key, _),) = tables.items(b"producers", b"", b"")
        tables.transaction.put(key, b"broken", db=rows.environment.databases[b"producers"])

    rows.environment.write(work)


def test_damage_is_mended_by_a_process_that_is_alone(rows):
    write(rows, [1], 5)
    damage(rows)
    with pytest.raises(StateStoreDamagedError, match="was damaged"):
        rows.read_row(1)
    assert rows.environment.generation == 1
    assert rows.read_head() is None


def test_damage_that_others_have_open_is_mended_when_they_are_gone(rows, other, tmp_path):
    write(rows, [1], 5)
    peer = other(
        "store = opened(path)\nsay('open')\nwait()\n"
        "try:\n    store.read_row(1)\n"
        "except StateStoreDamagedError as error:\n    say(error)\n"
        "wait()\n"
        "say(store.read_head())\n"
    )
    peer.hear("open")
    damage(rows)
    for _ in range(2):
        with pytest.raises(StateStoreDamagedError, match="other processes have it open"):
            rows.read_row(1)
    assert rows.environment.generation == 0
    peer.tell()
    assert "other processes have it open" in peer.hear().word
    # A third one is told so when it comes.
    third = other(
        "try:\n    opened(path)\nexcept StateStoreDamagedError as error:\n    say(error)\n"
    )
    assert "other processes have it open" in third.hear().word
    third.end()
    rows.environment.close()
    peer.tell()
    assert peer.hear().word == "RowsHead(offset=5, row_count=1)"
    peer.end()
    again = opened(tmp_path)
    assert again.environment.generation == 1
    assert again.read_head() is None
    again.environment.close()
    again = opened(tmp_path)
    assert again.environment.generation == 0
    again.environment.close()


def test_an_environment_that_was_reopened_goes_on(rows):
    write(rows, [1], 5)
    begin, failed = rows.environment.lmdb.begin, []

    class Hosed:
        def __getattr__(self, name):
            return getattr(environment, name)

        def begin(self, write):
            failed.append(write)
            import lmdb

            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")

        def close(self):
            environment.close()

    environment = rows.environment.lmdb
    rows.environment.lmdb = Hosed()
    assert rows.read_head() == RowsHead(5, 1)
    assert failed == [False]
    assert rows.environment.generation == 0
    assert begin is not rows.environment.lmdb.begin


def test_a_forked_child_leaves_the_parents_copy_and_opens_its_own(rows, tmp_path):
    write(rows, [1], 5)
    reading = threading.Event()
    stop = threading.Event()

    def read():
        while not stop.is_set():
            rows.read_head()
            reading.set()

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait()

    def work():
        with pytest.raises(ForkedProcessError):
            rows.read_head()
        own = opened(tmp_path)
        assert own.read_head().row_count >= 1
        write(own, [os.getpid()], own.read_head().offset + 1)
        own.environment.close()
        rows.environment.close()

    try:
        for _ in range(5):
            in_child(work)
    finally:
        stop.set()
        thread.join()
    assert rows.read_head() == RowsHead(10, 6)
    assert rows.environment.free_dead_readers() == 0


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path, other):
    rows = opened(tmp_path)
    write(rows, [1], 5)
    with Fork(Fork.wait):
        rows.environment.close()
        alone = UpgradableLock(tmp_path / f"{DIRECTORY_NAME}{LOCK_SUFFIX}")
        assert alone.try_alone()
        alone.close()


LIMITED = """
import resource
def limit(more_bytes):
    kib = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (kib * 1024 + more_bytes, resource.RLIM_INFINITY))
def unlimit():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
def fails(call):
    try:
        call()
    except MemoryError as error:
        assert "mapping" in str(error)
    else:
        raise AssertionError("memory was enough")
"""


@pytest.mark.parametrize("alone", [True, False])
def test_memory_that_runs_out_is_no_damage(rows, other, tmp_path, alone):
    write(rows, range(10), 5)
    data_file = tmp_path / "lmdb" / "data.mdb"
    before = data_file.stat().st_ino
    if alone:
        rows.environment.close()
    child = other(
        LIMITED
        + """
limit(1 << 16)
fails(lambda: opened(path))
unlimit()
environment.MAP_BYTES_INITIAL = 1 << 18
store = opened(path)
large = bytes(4 << 20)
limit(1 << 20)
fails(lambda: store.environment.write(lambda tables: tables.transaction.put(b"large", large)))
limit(1 << 12)
fails(lambda: write(store, [10], 6))
unlimit()
write(store, [10], 6)
say(store.read_head().row_count)
store.environment.close()
"""
    )
    child.hear("11")
    child.end()
    assert data_file.stat().st_ino == before
    assert not list(tmp_path.glob("*.damaged"))
