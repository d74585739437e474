"""Faults in the test's own process: each shows its named error, and the right state after it."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import eoslog
import eoslog.testing
from eoslog import TopicPartition
from eoslog.errors import (
    IllegalStateError,
    InvalidTxnStateError,
    ProducerFencedError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    UnknownTopicOrPartitionError,
)
from eoslog.native import log_sync
from eoslog.testing import ChildFailedError, Fault, FaultNotFiredError, Faults

durable = pytest.mark.eoslog(durability="commit")


def values(store, topic, partition=0, timeout=0.0):
    with store.consumer() as consumer:
        consumer.assign([(topic, partition)])
        found = [record.value for record in consumer.poll(timeout=timeout)]
        while records := consumer.poll(timeout=0):
            found += [record.value for record in records]
        return found


def transactional(store, name="id"):
    producer = store.producer(transactional_id=name)
    producer.init_transactions()
    return producer


# The disk.


@pytest.mark.parametrize("durability", ["commit", "always"])
def test_a_failed_sync_is_unknown_and_its_partition_refuses_writes(tmp_path, durability):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability=durability) as store, Faults(store) as faults:
        store.create_topic("orders", partitions=2)
        producer, other = store.producer(), store.producer()
        producer.append("orders", 0, [b"before"])
        producer.flush()
        fails = faults.fail_sync(("orders", 0), error=errno.ENODEV)
        raises = pytest.raises(StoreFailedError, match="No such device")
        with fails as fault, raises as failed:
            producer.append("orders", 0, [b"unknown"])
            producer.flush()
        assert failed.value.outcome == "unknown"
        assert fault.fired == 1
        with pytest.raises(StoreFailedError):
            producer.append("orders", 0, [b"refused"])
        other.append("orders", 1, [b"elsewhere"])
        other.flush()
        with pytest.raises(StoreError):
            store.close()
    with eoslog.open(path) as store:
        assert values(store, "orders") in ([b"before"], [b"before", b"unknown"])
        assert values(store, "orders", 1) == [b"elsewhere"]
        store.producer().append("orders", 0, [b"after"])
        assert store.verify() == []


@durable
def test_a_sync_fails_by_its_number_and_the_fixture_closes_what_failed(
    eoslog_store, eoslog_topic, eoslog_faults
):
    producer = eoslog_store.producer()
    producer.append(eoslog_topic, 0, [b"value"])
    producer.flush()
    with eoslog_faults.fail_sync(eoslog_topic, number=2) as fault:
        producer.append(eoslog_topic, 0, [b"value"])
        producer.flush()
        producer.append(eoslog_topic, 0, [b"value"])
        assert fault.fired == 0
        with pytest.raises(StoreFailedError):
            producer.flush()


@durable
def test_a_failed_sync_of_the_decision_leaves_the_commit_unknown(
    eoslog_store, eoslog_topic, eoslog_faults
):
    """The next opening knows."""
    producer = transactional(eoslog_store)
    with producer.transaction():
        producer.send(eoslog_topic, b"first")
    name = "__transaction_state"
    fault = Fault("sync", str(eoslog_store.path), name, error=errno.EIO)
    with pytest.raises(StoreFailedError) as failed, fault, producer.transaction():
        producer.send(eoslog_topic, b"second")
    assert fault.fired == 1
    assert failed.value.outcome == "unknown"
    path = eoslog_store.path
    with suppress(StoreError):
        eoslog_store.close()
    with eoslog.open(path) as store:
        assert values(store, eoslog_topic) in ([b"first"], [b"first", b"second"])
        assert store.describe_transaction("id").transaction_state.startswith("Complete")


@durable
def test_a_sync_takes_long(eoslog_store, eoslog_topic, eoslog_faults):
    producer = transactional(eoslog_store)
    began_s = time.monotonic()
    delay = eoslog_faults.delay_sync(0.2, TopicPartition(eoslog_topic, 0))
    with delay as fault, producer.transaction():
        producer.send(eoslog_topic, b"value")
    assert fault.fired == 1
    assert time.monotonic() - began_s >= 0.2
    assert values(eoslog_store, eoslog_topic) == [b"value"]


@durable
def test_syncs_of_a_busy_store_go_by_no_journal_while_one_is_to_fail(
    eoslog_store, eoslog_topic, eoslog_faults
):
    """A process that commits often has its commits go by one write of the commit journal."""
    producer = transactional(eoslog_store)
    for _ in range(40):
        with producer.transaction():
            producer.send(eoslog_topic, b"value")
    fails = eoslog_faults.fail_sync((eoslog_topic, 0))
    with fails, pytest.raises(StoreFailedError), producer.transaction():
        producer.send(eoslog_topic, b"value")


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_a_full_disk_refuses_and_goes_on_once_it_has_room(tmp_path, durability):
    path = tmp_path / "store"
    link = tmp_path / "link"
    link.symlink_to(path)
    path.mkdir()
    with eoslog.open(link, create=True, durability=durability) as store, Faults(store) as faults:
        store.create_topic("orders")
        producer, appended = store.producer(), 0
        with faults.fill_disk() as fault:
            with pytest.raises(StoreFullError) as full:
                while True:
                    producer.append("orders", 0, [b"%d" % appended])
                    appended += 1
            with pytest.raises(StoreFullError):
                store.create_topic("payments")
            with pytest.raises(StoreFullError):
                transactional(store)
            (tmp_path / "other").write_bytes(b"the disk of the store alone is full")
        assert full.value.outcome == "not_appended"
        assert fault.fired >= 3
        producer.append("orders", 0, [b"%d" % appended])
        store.create_topic("payments")
        assert values(store, "orders") == [b"%d" % one for one in range(appended + 1)]
        with transactional(store).transaction():
            pass


# Transactions and producers.


def test_a_fenced_producer_writes_nothing_more(eoslog_store, eoslog_topic, eoslog_faults):
    producer = transactional(eoslog_store)
    producer.begin_transaction()
    producer.send(eoslog_topic, b"fenced")
    producer.flush()
    successor = eoslog_faults.fence(producer)
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    with successor.transaction():
        successor.send(eoslog_topic, b"successor's")
    eoslog_faults.fence("id")
    with pytest.raises(ProducerFencedError), successor.transaction():
        successor.send(eoslog_topic, b"fenced")
    assert values(eoslog_store, eoslog_topic) == [b"successor's"]


def test_a_named_producer_is_fenced(eoslog_store, eoslog_topic, eoslog_faults):
    producer = eoslog_store.producer(name="import")
    producer.append(eoslog_topic, 0, [b"first"])
    successor = eoslog_faults.fence(producer)
    with pytest.raises(ProducerFencedError):
        producer.append(eoslog_topic, 0, [b"fenced"])
    successor.append(eoslog_topic, 0, [b"second"])
    assert values(eoslog_store, eoslog_topic) == [b"first", b"second"]


def test_a_transaction_times_out_at_once(eoslog_store, eoslog_topic, eoslog_faults):
    producer = transactional(eoslog_store)
    producer.begin_transaction()
    producer.send(eoslog_topic, b"late")
    eoslog_faults.time_out(producer)
    with pytest.raises(ProducerFencedError, match="after its timeout of 60000 ms"):
        producer.commit_transaction()
    assert values(eoslog_store, eoslog_topic) == []
    assert eoslog_store.describe_transaction("id").transaction_state == "CompleteAbort"


def test_nothing_times_out_where_nothing_is_open(eoslog_store, eoslog_topic, eoslog_faults):
    producer = transactional(eoslog_store)
    with pytest.raises(InvalidTxnStateError, match="'id' is Empty"):
        eoslog_faults.time_out(producer)
    producer.begin_transaction()
    producer.send(eoslog_topic, b"value")
    prepared = producer.prepare_transaction()
    with pytest.raises(InvalidTxnStateError, match="'id' is prepared"):
        eoslog_faults.time_out("id")
    eoslog_store.commit_prepared([prepared])
    assert values(eoslog_store, eoslog_topic) == [b"value"]


@pytest.mark.parametrize("ends_with", ["commit", "abort"])
def test_an_id_that_used_up_its_epochs_takes_another_producer_id(
    eoslog_store, eoslog_topic, eoslog_faults, ends_with
):
    producer = transactional(eoslog_store)
    before = producer.producer_id
    eoslog_faults.use_up_epochs(producer)
    producer.begin_transaction()
    producer.send(eoslog_topic, b"last of its id")
    producer.flush()
    (producer.commit_transaction if ends_with == "commit" else producer.abort_transaction)()
    assert producer.producer_id != before
    assert producer.producer_epoch == 0
    with producer.transaction():
        producer.send(eoslog_topic, b"first of its id")
    first = [b"last of its id"] if ends_with == "commit" else []
    assert values(eoslog_store, eoslog_topic) == [*first, b"first of its id"]


def test_epochs_are_used_up_before_an_initialization(eoslog_store, eoslog_topic, eoslog_faults):
    eoslog_faults.use_up_epochs("new")
    before = eoslog_store.describe_transaction("new").producer_id
    producer = transactional(eoslog_store, "new")
    assert producer.producer_id != before
    producer.begin_transaction()
    producer.send(eoslog_topic, b"value")
    with pytest.raises(IllegalStateError, match="nothing open"):
        eoslog_faults.use_up_epochs(producer)
    producer.commit_transaction()


# Deaths.


def commit(path, topic):
    with eoslog.open(path, durability=None) as store:
        producer = transactional(store)
        with producer.transaction():
            producer.send(topic, b"decided")


def abort(path, topic):
    with eoslog.open(path, durability=None) as store:
        producer = transactional(store)
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.flush()
        producer.abort_transaction()


def commit_staged(path, topic):
    with eoslog.open(path, durability=None) as store:
        run = store.begin_run("app")
        writer = eoslog.StagedWriter(path, "app", run, "0", partitions={topic: 1})
        writer.append(topic, 0, [b"staged"])
        store.commit_staged("app", 0, [writer.close()], run)


def commit_nothing(path):
    with eoslog.open(path, durability=None) as store:
        transactional(store)


def fail(path):
    raise KeyError("x" * 100_000)


@durable
def test_a_store_open_here_completes_what_a_killed_child_decided(
    eoslog_store, eoslog_topic, eoslog_faults
):
    eoslog_faults.kill_before_markers(lambda path: commit(path, eoslog_topic), start_method="fork")
    assert values(eoslog_store, eoslog_topic, timeout=30) == [b"decided"]


def test_the_next_opening_completes_what_a_killed_child_decided(tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=2)
        faults = Faults(store)
    for function in (commit, abort):
        faults.kill_before_markers(function, "orders", start_method="fork")
        with eoslog.open(path, read_only=True) as store:
            decided = store.describe_transaction("id").transaction_state
        assert decided.startswith("Complete")  # A reader finds what the next opening does.
        with eoslog.open(path) as store:
            assert store.describe_transaction("id").topic_partitions == ()
            assert [*values(store, "orders"), *values(store, "orders", 1)] == [b"decided"]


@durable
def test_a_staged_job_is_adopted_after_the_death_of_its_driver(
    eoslog_store, eoslog_topic, eoslog_faults
):
    eoslog_faults.kill_before_adoption(commit_staged, eoslog_topic, start_method="fork")
    assert values(eoslog_store, eoslog_topic, timeout=30) == [b"staged"]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_child_that_does_not_come_to_its_death_is_an_error(
    eoslog_store, eoslog_faults, start_method, monkeypatch
):
    # By their own names, as in any project whose tests can be imported.
    monkeypatch.syspath_prepend(Path(__file__).parent)
    import test_faults as tests

    kill = eoslog_faults.kill_before_markers
    with pytest.raises(FaultNotFiredError, match="it ended no transaction"):
        kill(tests.commit_nothing, start_method=start_method)
    if start_method == "fork":
        with pytest.raises(ChildFailedError, match="KeyError"):
            kill(tests.fail, start_method=start_method)


@pytest.mark.parametrize(
    ("function", "start_method", "said"),
    [
        (lambda path: None, "spawn", "must be a function of a module"),
        (lambda path: os._exit(3), "fork", "the child ended with 3"),
        (lambda path: os.kill(os.getpid(), signal.SIGTERM), "fork", "the child ended with -15"),
        (lambda path: sys.exit("enough"), "fork", "SystemExit: enough"),
    ],
)
def test_a_child_that_ends_otherwise_is_an_error(eoslog_faults, function, start_method, said):
    with pytest.raises(ChildFailedError, match=said):
        eoslog_faults.kill_before_markers(function, start_method=start_method)


def test_a_child_that_hangs_is_killed(eoslog_faults):
    with pytest.raises(ChildFailedError, match=r"within 0\.1 s"):
        eoslog_faults.kill_before_markers(
            lambda path: time.sleep(60), start_method="fork", timeout=0.1
        )


# The clock.


def test_time_passes(eoslog_store, eoslog_topic, eoslog_faults):
    eoslog_store.create_topic("old", config={"retention.ms": 604_800_000, "segment.bytes": 1 << 14})
    producer = eoslog_store.producer()
    for _ in range(40):
        producer.append("old", 0, [bytes(1000)])
    late = transactional(eoslog_store)
    late.begin_transaction()
    late.send(eoslog_topic, b"late")
    late.flush()
    eoslog_faults.advance_clock(8 * 86_400)
    with pytest.raises(ProducerFencedError, match="timeout"):
        late.commit_transaction()
    assert eoslog_store.partition("old", 0).log_start_offset > 0
    began_ms = time.time() * 1000
    producer.append("old", 0, [b"columns"])
    producer.send("old", b"record")
    producer.flush()
    with eoslog_store.consumer() as consumer:
        consumer.assign([("old", 0)])
        records = consumer.poll(timeout=10)[-2:]
    assert [one.value for one in records] == [b"columns", b"record"]
    assert [round((one.timestamp_ms - began_ms) / 86_400_000) for one in records] == [8, 8]
    eoslog_faults.close()
    assert abs(eoslog_store.create_topic("now").created_ms - time.time() * 1000) < 60_000


# That it had an effect, and that nothing stays.


def test_a_fault_that_did_not_act_is_an_error(eoslog_store, eoslog_topic):
    faults = Faults(eoslog_store)
    with pytest.raises(FaultNotFiredError, match="nothing needed room"), faults.fill_disk():
        pass
    with pytest.raises(FaultNotFiredError) as found, faults.fail_sync((eoslog_topic, 0)):
        eoslog_store.flush()
    assert f"{eoslog_topic}-0 had 0 syncs" in str(found.value)
    assert "open it with 'commit'" in str(found.value)
    with pytest.raises(KeyError), faults.fail_sync(number=100):
        raise KeyError
    faults.delay_sync(1)
    with pytest.raises(FaultNotFiredError) as found:
        faults.close()
    number_100, unused = str(found.value).splitlines()
    assert "number 100 was to fail" in number_100
    assert "was not used" in unused
    faults.close()


def linked_addresses() -> bytes:
    """The part of a module of the engine that has the addresses of the functions it calls."""
    lines = [
        line.split()
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(log_sync.__file__)
    ]
    found = b""
    for span, rights, *_ in lines:
        first, end = (int(part, 16) for part in span.split("-"))
        if "x" not in rights and lines.index([span, rights, *_]) >= 3:
            found += ctypes.string_at(first, end - first)
    return found


def test_no_call_stays_taken_over(eoslog_store):
    faults = Faults(eoslog_store)
    before = linked_addresses()
    outer, inner = faults.fill_disk(), faults.fail_sync()
    with pytest.raises(FaultNotFiredError), outer:
        with pytest.raises(FaultNotFiredError), inner:
            assert linked_addresses() != before
        assert linked_addresses() != before
    assert linked_addresses() == before
    with pytest.raises(RuntimeError, match="make another one"), outer:
        pass
    assert linked_addresses() == before


@durable
def test_faults_come_and_go_while_threads_write(eoslog_store, eoslog_faults):
    eoslog_store.create_topic("busy", partitions=4)
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(partition: int) -> None:
        producer = eoslog_store.producer()
        try:
            while not stop.is_set():
                producer.append("busy", partition, [b"value"])
                producer.flush()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    delays = [eoslog_faults.delay_sync(0.0001, ("busy", number % 3)) for number in range(30)]
    for number, delay in enumerate(delays):
        with delay:
            while not delay.fired:
                time.sleep(0.0005)
        if number % 10 == 0:
            eoslog_store.create_topic(f"new{number}")
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [delay.fired for delay in delays] == [1] * 30


def test_wrong_arguments_are_refused(eoslog_store, eoslog_topic):
    faults = Faults(eoslog_store)
    for error, call in [
        (ValueError, lambda: faults.fail_sync(number=0)),
        (TypeError, lambda: faults.fail_sync(number="1")),
        (ValueError, lambda: faults.fail_sync(error=-1)),
        (UnknownTopicOrPartitionError, lambda: faults.fail_sync("no such topic")),
        (UnknownTopicOrPartitionError, lambda: faults.fail_sync((eoslog_topic, 1))),
        (TypeError, lambda: faults.fail_sync(3)),
        (ValueError, lambda: faults.delay_sync(0)),
        (ValueError, lambda: faults.fence(eoslog_store.producer())),
        (TypeError, lambda: faults.fence(3)),
        (TypeError, lambda: faults.time_out(eoslog_store.producer())),
        (
            IllegalStateError,
            lambda: faults.use_up_epochs(eoslog_store.producer(transactional_id="uninitialized")),
        ),
        (TypeError, lambda: faults.kill_before_markers("no function")),
        (ValueError, lambda: faults.kill_before_markers(print, start_method="clone")),
    ]:
        with pytest.raises(error):
            call()
    faults.close()


def test_public_names_are_pinned_and_load_when_asked_for():
    assert dir(eoslog.testing) == [
        "ChildFailedError",
        "Fault",
        "FaultNotFiredError",
        "FaultUnavailableError",
        "Faults",
        "History",
        "RecordedStore",
    ]
    for name in dir(eoslog.testing):
        assert getattr(eoslog.testing, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = eoslog.testing.nonsense
    code = "import sys, eoslog.testing; print([n for n in ('lmdb', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
