"""The journal of a process: when it has a file, what it writes, and how its halves are retired."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commit_journals import AS_NEEDED, LARGE, SMALL, journal_of, with_journal
from harness.waiting import eventually
from partition_files import all_records
from staged_jobs import load
from stores import QUIET

import eoslog
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.common.config import NO_LIMIT
from eoslog.errors import InvalidConfigError, StoreFailedError
from eoslog.fs.file_system import Mount
from eoslog.fs.identity_files import id_bytes
from eoslog.session.paths import StorePaths
from eoslog.storage import process_journal
from eoslog.storage.journal_replay import halves_of, journal_files, ranges_of
from eoslog.storage.process_journal import HALF_BYTES_MIN, ProcessJournal
from eoslog.store import files as store_files
from eoslog.store.store import abandon, engine_of, parts_of


def opened(path, durability="always", **settings):
    config = QUIET | {name.replace("_", "."): value for name, value in settings.items()}
    return eoslog.open(path, create=True, durability=durability, config=config)


@pytest.fixture
def store(tmp_path):
    with opened(tmp_path / "store", **LARGE) as found:
        found.create_topic("t", partitions=3)
        for number in range(3):  # A first sync of the files, whose names are new.
            found.producer().append("t", number, [b"first"])
        yield with_journal(found)


def values_of(store, number=0):
    return [one.value for one in all_records(engine_of(store).partition("t", number))]


def test_an_append_is_one_record_of_the_journal_and_no_sync(store):
    producer, log = store.producer(), engine_of(store).partition("t", 0).log
    syncs, before = log.sync_count, journal_of(store).journal.counts
    for number in range(5):
        producer.append("t", 0, [b"%d" % number])
        assert log.durable_offset == log.log_end_offset == number + 2
    after = journal_of(store).journal.counts
    assert log.sync_count == syncs
    assert log.recovery_point == 1
    assert after["records"] - before["records"] == 5
    assert after["bytes"] - before["bytes"] == 5 * 4096


def test_a_small_staged_job_is_durable_by_the_journal(store):
    logs = [engine_of(store).partition("t", number).log for number in range(3)]
    syncs = [log.sync_count for log in logs]
    for number in range(3):
        store.producer().append("t", number, [b"before"])
    load(store, "job", {("t", number): [b"job"] for number in range(3)})
    assert [log.sync_count for log in logs] == syncs
    for number, log in enumerate(logs):
        assert log.durable_offset == log.log_end_offset == 3
        assert values_of(store, number) == [b"first", b"before", b"job"]


def test_that_a_transaction_is_prepared_is_written_after_its_data(store):
    """It is never taken back, and so does not name where the logs end."""
    producer = store.producer(transactional_id="prepares")
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(3):
        producer.send("t", b"x", partition=number)
    before = journal_of(store).journal.counts["records"]
    producer.prepare_transaction()
    assert journal_of(store).journal.counts["records"] == before + 2
    half = next(halves_of(journal_of(store).path))
    topic_id = id_bytes(store.topics()["t"].topic_id)
    assert [one.topic_id == topic_id for one in half.ranges[-4:]] == [True, True, True, False]
    assert [one.end_offset for one in half.ranges[-4:-1]] == [2, 2, 2]
    state = parts_of(store).files.state_log.partition_of("prepares")
    fields = decode_transaction_value(all_records(state)[-1].value)
    assert fields["prepared"] and fields["ends"] is None


def test_a_record_begins_where_the_log_was_durable(tmp_path):
    """Whoever appended it: else a replay would put what was appended here behind a hole."""
    with opened(tmp_path / "store", "commit", **LARGE) as store:
        store.create_topic("t")
        producer = store.producer()
        producer.append("t", 0, [b"a"])
        producer.flush()
        with_journal(store)
        other = store.producer()
        other.append("t", 0, [b"second", b"third"])
        producer.append("t", 0, [b"d"])
        producer.flush()
        half = next(halves_of(journal_of(store).path))
        (one,) = half.ranges
        assert one.end_offset == 4
        data = bytes(half.bytes_of(one))
        assert b"second" in data and b"third" in data


def test_a_transaction_over_many_partitions_is_one_record(store):
    with store.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for number in range(2):
            before = journal_of(store).journal.counts["records"]
            with producer.transaction():
                for partition in range(3):
                    producer.append("t", partition, [b"%d" % number])
            after = journal_of(store).journal.counts["records"]
    # The first one began a file of the state log.
    assert after - before == 1


def append_beside_others(store, threads_count, rounds):
    """Each thread appends so many records, and finds each of them durable."""
    barrier = threading.Barrier(threads_count)

    def append(number):
        producer, log = store.producer(), engine_of(store).partition("t", number % 3).log
        barrier.wait()
        for _ in range(rounds):
            result = producer.append("t", number % 3, [bytes(20_000)])
            assert log.durable_offset > result.last_offset

    threads = [threading.Thread(target=append, args=(one,)) for one in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("threads_count", [2, 8])
def test_threads_share_records(store, threads_count):
    before, rounds = journal_of(store).journal.counts, 0

    def have_shared():
        nonlocal rounds
        append_beside_others(store, threads_count, 20)
        rounds += 20
        after = journal_of(store).journal.counts
        return after["records"] - before["records"] < after["requests"] - before["requests"]

    eventually(have_shared)
    for number in range(3):
        log = engine_of(store).partition("t", number).log
        assert log.durable_offset == log.log_end_offset
    found = [len(values_of(store, number)) for number in range(3)]
    assert sum(found) == 3 + rounds * threads_count


def test_more_than_128_kib_goes_by_the_file(store):
    producer, log = store.producer(), engine_of(store).partition("t", 0).log
    before, syncs = journal_of(store).journal.counts["records"], log.sync_count
    producer.append("t", 0, [bytes(140_000)])
    assert journal_of(store).journal.counts["records"] == before
    assert log.sync_count == syncs + 1
    assert log.recovery_point == log.log_end_offset


def test_a_segment_whose_name_is_not_on_the_disk_goes_by_the_file(store):
    producer, partition = store.producer(), engine_of(store).partition("t", 0)
    producer.append("t", 0, [b"a"])
    assert partition.recovery_point == 1
    partition.roll()
    producer.append("t", 0, [b"b"])
    assert partition.recovery_point == 3
    producer.append("t", 0, [b"c"])
    assert partition.recovery_point == 3
    assert partition.log.durable_offset == 4


def test_halves_fill_up_and_are_retired(tmp_path):
    with opened(tmp_path / "store", **SMALL) as store:
        store.create_topic("t")
        producer = store.producer()
        producer.append("t", 0, [b"first"])
        journal = journal_of(with_journal(store)).journal
        assert journal.half_bytes == HALF_BYTES_MIN
        records = 10 * HALF_BYTES_MIN // 4096
        for number in range(records):
            producer.append("t", 0, [b"%d" % number])
        eventually(lambda: len(journal.full_halves()) < 2)
        assert journal.counts["records"] > HALF_BYTES_MIN // 4096
        assert engine_of(store).partition("t", 0).recovery_point > 0
        assert values_of(store) == [b"first"] + [b"%d" % number for number in range(records)]


def test_a_half_is_kept_until_the_files_hold_what_it_has(store):
    journal, producer = journal_of(store), store.producer()
    producer.append("t", 0, [b"a"])
    log = engine_of(store).partition("t", 0).log
    journal.journal.stop()
    half = journal.journal.full_halves()[0]
    assert journal.journal.logs_of(half) == [log]
    assert not journal.journal.empty(half)
    assert [one.end_offset for one in ranges_of(journal.path)] == [2]
    log.flush()
    assert journal.journal.empty(half)
    assert list(ranges_of(journal.path)) == []
    assert journal.journal.is_retired()


def test_a_half_is_retired_while_its_logs_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(ProcessJournal, "empty_all", lambda _: True)
    with opened(tmp_path / "store", **SMALL) as store:
        store.create_topic("t")
        producer, log = store.producer(), engine_of(store).partition("t", 0).log
        producer.append("t", 0, [b"first"])
        journal = journal_of(with_journal(store)).journal
        while not journal.full_halves():
            producer.append("t", 0, [b"a"])
        assert journal.full_halves() == [0]
        assert log.journaled_end(0) == log.journaled_end(1) - 1
        log.sync_up_to(log.journaled_end(0))
        producer.append("t", 0, [b"in the other half"])
        assert log.recovery_point < log.log_end_offset
        assert journal.empty(0)
        assert not journal.full_halves()
        assert len(list(ranges_of(journal_of(store).path))) == 2


def test_a_journal_takes_records_once_its_name_is_on_the_disk(tmp_path, monkeypatch):
    with opened(tmp_path / "store", **{"eoslog.journal.bytes": 0}) as store:
        found, done = journal_of(store), []
        state = parts_of(store).files.paths.state

        def noted(what):
            names = [one.suffix for one in (state / "journal").iterdir()]
            done.append((what, names, found.journal.usable))

        monkeypatch.setattr(process_journal, "sync_directory", lambda one: noted(one.name))
        monkeypatch.setattr(process_journal.os, "fsync", lambda _: noted("file"))
        found.take(HALF_BYTES_MIN)
        assert found.journal.usable
        assert done == [
            ("state", [], False),
            ("file", [".tmp"], False),
            ("journal", [""], False),
        ]


def test_a_journal_of_its_own_is_made_when_commits_come_often(tmp_path, monkeypatch):
    monkeypatch.setattr(process_journal, "IN_MEMORY", frozenset())
    monkeypatch.setattr(process_journal, "FILLED_S_MIN", float("inf"))  # However slow it is.
    last = process_journal.HALF_BYTES_FIRST * process_journal.GROWTH
    monkeypatch.setattr(process_journal, "HALF_BYTES_LAST", last)
    path = tmp_path / "store"
    config = {"eoslog.checkpoint.interval.ms": 5}
    with eoslog.open(path, create=True, durability="always", config=config) as store:
        store.create_topic("t")
        producer = store.producer()
        for number in range(5):
            producer.append("t", 0, [b"%d" % number])
        assert not journal_of(store).journal.wanted
        for number in range(5, 30):
            producer.append("t", 0, [b"%d" % number])
        assert journal_of(store).journal.wanted
        eventually(lambda: journal_of(store).journal.usable)
        assert journal_of(store).journal.half_bytes == process_journal.HALF_BYTES_FIRST
        # One that fills up soon is too small.
        for number in range(30, 700):
            producer.append("t", 0, [b"%d" % number])
        eventually(lambda: journal_of(store).journal.half_bytes == last)
        eventually(lambda: journal_of(store).journal.usable)
        eventually(lambda: journal_files(parts_of(store).files.paths) == [journal_of(store).path])
        producer.append("t", 0, [b"700"])
        *_, last_range = ranges_of(journal_of(store).path)
        assert last_range.end_offset == 701
        assert values_of(store) == [b"%d" % number for number in range(701)]
    assert not list((path / "state" / "journal").iterdir())


def test_the_eighth_wait_for_a_sync_has_a_file_made(tmp_path, monkeypatch):
    """Nobody else has to look for it."""
    monkeypatch.setattr(process_journal, "IN_MEMORY", frozenset())
    with opened(tmp_path / "store") as store:
        parts_of(store).checkpointer.stop()
        store.create_topic("t", partitions=8)
        producer = store.producer(transactional_id="x")
        producer.init_transactions()
        with producer.transaction():
            for number in range(8):
                producer.append("t", number, [b"a"])
        with_journal(store)


def test_a_close_does_not_wait_for_a_journal_in_the_making(tmp_path, monkeypatch):
    """One of 128 MiB takes a slow disk seconds."""
    path, begun, real, sizes = tmp_path / "store", threading.Event(), os.pwrite, []

    def slow_write(descriptor, data, position):
        begun.set()
        time.sleep(0.05)
        sizes.append(len(data))
        return real(descriptor, data, position)

    monkeypatch.setattr(process_journal.os, "pwrite", slow_write)
    with opened(path, **{"eoslog.journal.bytes": 64 << 20}) as store:
        assert begun.wait(60)
    assert 0 < sum(sizes) < 64 << 20
    assert not journal_of(store).journal.usable
    assert not list((path / "state" / "journal").iterdir())
    assert (path / ".kafka_cleanshutdown").exists()


def test_a_store_in_memory_has_none_unless_its_size_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(process_journal, "mount_of", lambda _: Mount("tmpfs", "", ""))
    with opened(tmp_path / "store") as store:
        store.create_topic("t")
        producer = store.producer()
        for number in range(20):
            producer.append("t", 0, [b"%d" % number])
        assert journal_of(store).journal.wanted
        journal_of(store).stop()
        assert journal_of(store).path is None
    with opened(tmp_path / "store", **SMALL) as store:
        with_journal(store)


def test_durability_process_has_none(tmp_path):
    with opened(tmp_path / "store", "process", **SMALL) as store:
        assert parts_of(store).files.journal is None


def test_zero_is_none(tmp_path):
    with opened(tmp_path / "store", **{"eoslog.journal.bytes": 0}) as store:
        store.create_topic("t")
        producer = store.producer()
        for number in range(20):
            producer.append("t", 0, [b"%d" % number])
        assert not journal_files(parts_of(store).files.paths)
        assert engine_of(store).partition("t", 0).recovery_point == 20


@pytest.mark.parametrize("size", [-2, 1 << 31, "much"])
def test_a_wrong_size_is_refused(tmp_path, size):
    with pytest.raises(InvalidConfigError, match=r"eoslog\.journal\.bytes"):
        opened(tmp_path / "store", **{"eoslog.journal.bytes": size})


def test_the_file_is_locked_while_the_process_lives(store):
    with open(journal_of(store).path, "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_clean_close_leaves_no_journal(tmp_path, monkeypatch):
    path = tmp_path / "store"
    folder, left = path / "state" / "journal", []
    write = store_files.write_clean_close

    def noted(*arguments):
        left.append(list(folder.iterdir()))
        write(*arguments)

    monkeypatch.setattr(store_files, "write_clean_close", noted)
    with opened(path, **LARGE) as store:
        store.create_topic("t")
        with_journal(store)
        for number in range(3):
            store.producer().append("t", 0, [b"%d" % number])
        assert len(list(folder.iterdir())) == 1
    assert not list(folder.iterdir())
    # It was gone before: beside the trace it would not count.
    assert left == [[]]
    assert (path / ".kafka_cleanshutdown").exists()


def test_what_only_the_journal_has_is_there_again(tmp_path):
    path = tmp_path / "store"
    store = opened(path, **LARGE)
    store.create_topic("t", partitions=2)
    producer = store.producer()
    for number in range(2):
        producer.append("t", number, [b"first"])
    with_journal(store)
    for number in range(2):
        producer.append("t", number, [b"%d" % number])
    saved = {file: file.read_bytes() for file in path.glob("t-*/*.log")}
    abandon(store)
    assert len(journal_files(parts_of(store).files.paths)) == 1
    for file, data in saved.items():  # The power went: nothing behind the sync is there.
        end = data.index(b"first") + len(b"first")
        file.write_bytes(data[: end + 1] + bytes(len(data) - end - 1))
    with opened(path, **AS_NEEDED) as store:
        for number in range(2):
            assert values_of(store, number) == [b"first", b"%d" % number]
        assert store.verify() == []
        assert not journal_files(parts_of(store).files.paths)


def leads_to(descriptor, path):
    with suppress(FileNotFoundError):  # That of the listing itself.
        return descriptor.readlink() == path


def take_no_writes(journal):
    """Have the descriptor of its file become one that takes none."""
    (writing,) = (
        int(one.name) for one in Path("/proc/self/fd").iterdir() if leads_to(one, journal.path)
    )
    read_only = os.open(journal.path, os.O_RDONLY)
    os.dup2(read_only, writing)
    os.close(read_only)


def test_a_write_that_fails_ends_the_file_and_fails_no_commit(store):
    producer, journal = store.producer(), journal_of(store)
    journal.retry_s = 3600.0
    take_no_writes(journal)
    producer.append("t", 0, [b"a"])
    assert journal.journal.failed_errno != 0
    assert not journal.journal.usable
    assert engine_of(store).partition("t", 0).recovery_point == 2
    producer.append("t", 0, [b"b"])
    assert engine_of(store).partition("t", 0).recovery_point == 3


def test_another_file_follows_one_that_takes_no_writes(store, caplog):
    producer, journal = store.producer(), journal_of(store)
    journal.retry_s = 0.001
    before = journal.path
    producer.append("t", 0, [b"in the first file"])
    take_no_writes(journal)
    producer.append("t", 0, [b"a"])
    eventually(lambda: journal.path != before and journal.journal.usable)
    with_journal(store)
    records = journal.journal.counts["records"]
    producer.append("t", 0, [b"b"])
    assert journal.journal.counts["records"] == records + 1
    eventually(lambda: not before.exists())
    (warning,) = (one.getMessage() for one in caplog.records if one.levelname == "WARNING")
    assert "commits go by the files of the logs" in warning and before.name in warning
    found = store.metrics()["journal"]
    assert found["usable"] and found["half_bytes"] == LARGE["eoslog.journal.bytes"]
    assert found["error_count"] == 1 and before.name in found["last_error"]


def is_of_a_journal(descriptor):
    return Path(f"/proc/self/fd/{descriptor}").readlink().parent.name == "journal"


def test_a_first_file_that_cannot_be_made_is_tried_again(tmp_path, monkeypatch, caplog):
    real, errors = os.posix_fallocate, [errno.EIO, errno.ENOSPC]
    monkeypatch.setattr(process_journal, "RETRY_S", 0.001)

    def failing(descriptor, *arguments):
        if errors and is_of_a_journal(descriptor):
            raise OSError(errors.pop(), "not now")
        real(descriptor, *arguments)

    monkeypatch.setattr(os, "posix_fallocate", failing)
    with opened(tmp_path / "store", **SMALL) as store:
        with_journal(store)
        assert store.metrics()["journal"]["error_count"] == 2
        assert journal_files(parts_of(store).files.paths) == [journal_of(store).path]
    # Each of them once.
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 2


@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch, kept):
    """Nor a file that was kept: each try would leave one, and the disk may be full of them."""
    monkeypatch.setattr(process_journal, "RETRY_S", 0.001)
    real, counts = os.posix_fallocate, []
    with opened(tmp_path / "store", **SMALL) as store:
        if kept:
            with_journal(store)

    def failing(descriptor, *arguments):
        if len(counts) < 3 and is_of_a_journal(descriptor):
            counts.append(len(journal_files(StorePaths(tmp_path / "store"))))
            raise OSError(errno.ENOSPC, "not now")
        real(descriptor, *arguments)

    monkeypatch.setattr(os, "posix_fallocate", failing)
    with opened(tmp_path / "store", **SMALL) as store:
        with_journal(store)
        assert counts == [1, 1, 1]
        assert journal_files(parts_of(store).files.paths) == [journal_of(store).path]


@pytest.mark.parametrize("growing", [False, True])
def test_a_log_whose_sync_failed_does_not_end_the_journal_of_the_others(
    tmp_path, monkeypatch, growing
):
    """It may be the one that both halves have something of."""
    monkeypatch.setattr(process_journal, "RETRY_S", 0.001)
    monkeypatch.setattr(process_journal, "FILLED_S_MIN", float("inf"))
    monkeypatch.setattr(process_journal, "HALF_BYTES_FIRST", HALF_BYTES_MIN)
    monkeypatch.setattr(process_journal, "IN_MEMORY", frozenset())
    settings = {"eoslog.journal.bytes": NO_LIMIT} if growing else SMALL
    store = opened(tmp_path / "store", **settings)
    store.create_topic("t", partitions=2)
    producer, failed, journal = (
        store.producer(),
        engine_of(store).partition("t", 0),
        journal_of(store),
    )
    for number in range(2):
        producer.append("t", number, [b"first"])
    journal.journal.want()
    with_journal(store)
    first = journal.path
    producer.append("t", 0, [b"in the journal"])
    shutil.rmtree(parts_of(store).files.paths.partition(failed.topic_partition))
    with pytest.raises(StoreFailedError):
        failed.flush()
    number = 0
    while journal.journal.counts["records"] < 10 * HALF_BYTES_MIN // 4096:
        producer.append("t", 1, [b"%d" % number])
        number += 1
    assert values_of(store, 1) == [b"first"] + [b"%d" % one for one in range(number)]
    # It has the only good copy.
    assert first.exists()
    with pytest.raises(StoreFailedError):
        store.close()
    assert 2 in {one.end_offset for one in ranges_of(first)}


def test_no_file_is_made_in_a_directory_that_was_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(process_journal, "IN_MEMORY", frozenset())
    path = tmp_path / "store"
    store = opened(path, **{"eoslog.journal.bytes": NO_LIMIT})
    path.rename(tmp_path / "moved")
    (path / "state").mkdir(parents=True)
    journal_of(store).journal.want()
    eventually(lambda: journal_of(store).metrics()["error_count"])
    assert not list((path / "state").iterdir())
    with pytest.raises(StoreFailedError):
        store.close()
    assert not list((path / "state").iterdir())


def test_a_log_whose_sync_failed_goes_into_no_record(tmp_path):
    store = opened(tmp_path / "store", **LARGE)
    store.create_topic("t", partitions=2)
    producer, partition = store.producer(), engine_of(store).partition("t", 0)
    for number in range(2):
        producer.append("t", number, [b"first"])
    journal = journal_of(with_journal(store))
    path = journal.path
    producer.append("t", 0, [b"in the journal"])
    shutil.rmtree(parts_of(store).files.paths.partition(partition.topic_partition))
    with pytest.raises(StoreFailedError):
        partition.flush()
    before = journal.journal.counts["records"]
    with pytest.raises(StoreFailedError):
        producer.append("t", 0, [b"a"])
    with pytest.raises(StoreFailedError):
        partition.make_durable(1)
    assert journal.journal.counts["records"] == before
    # The others go on.
    producer.append("t", 1, [b"a"])
    assert journal.journal.counts["records"] == before + 1
    with pytest.raises(StoreFailedError):
        store.close()
    # It has the only good copy.
    assert {one.end_offset for one in ranges_of(path)} == {2}


def test_what_a_log_had_when_its_sync_failed_goes_into_no_record(tmp_path):
    store = opened(tmp_path / "store", "commit", **LARGE)
    store.create_topic("t")
    producer, partition = store.producer(), engine_of(store).partition("t", 0)
    producer.append("t", 0, [b"first"])
    producer.flush()
    journal = journal_of(with_journal(store)).journal
    producer.append("t", 0, [b"not durable"])
    shutil.rmtree(parts_of(store).files.paths.partition(partition.topic_partition))
    with pytest.raises(StoreFailedError):
        partition.flush()
    before = journal.counts["records"]
    with pytest.raises(StoreFailedError):
        partition.make_durable(2)
    assert journal.counts["records"] == before
    assert partition.log.durable_offset == 1
    with pytest.raises(StoreFailedError):
        store.close()


def test_a_deleted_topic_holds_no_half(store):
    producer = store.producer()
    producer.append("t", 0, [b"a"])
    store.create_topic("other")
    producer.append("other", 0, [b"a"])
    producer.append("other", 0, [b"b"])
    journal = journal_of(store).journal
    store.delete_topic("other")
    journal.stop()
    half = journal.full_halves()[0]
    assert not journal.empty(half)
    engine_of(store).partition("t", 0).flush()
    assert journal.empty(half)
