"""Staged transactions of a plain producer: out of the log until their commit."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crash.interrupted_lines import interrupted_at
from other_process import OtherProcess
from staged_jobs import TOPIC, quick_directory, staged_files

import eoslog
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    CommitFailedError,
    EoslogError,
    IllegalStateError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTimestampError,
    LogClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    StagedCommitError,
    StoreFailedError,
    StoreFullError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from eoslog.groups.group_metadata import ConsumerGroupMetadata
from eoslog.producer import staged_transactions
from eoslog.producer.staged_producer import StagedProducer
from eoslog.staging.attempt_files import AttemptFiles
from eoslog.staging.pending_jobs import PendingJobs
from eoslog.staging.staged_commit import StagedCommits
from eoslog.staging.staged_job import VERSION_PARTITION
from eoslog.storage.partition import Partition
from eoslog.store.store import parts_of
from eoslog.transactions.compacted_log import CompactedLog
from eoslog.transactions.state_key import APPLICATION

pytestmark = pytest.mark.usefixtures("no_retries")

ID = "bulk"
PARTITIONS = 3
SOURCE = TopicPartition("source", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    with (
        quick_directory(tmp_path) as directory,
        eoslog.open(directory / "store", create=True) as opened,
    ):
        opened.create_topic(TOPIC, partitions=PARTITIONS)
        opened.create_topic("source", partitions=2)
        yield opened


@pytest.fixture
def producer(store: Any) -> Any:
    made = store.producer(transactional_id=ID, staged=True)
    made.init_transactions()
    return made


def values_in(store: Any, topic: str = TOPIC, partition: int | None = None) -> list[bytes]:
    numbers = range(store.topics()[topic].partitions) if partition is None else [partition]
    found = []
    for number in numbers:
        records, _ = store.partition(topic, number).fetch_records(0, 100_000, 1 << 26)
        found += [record.value for record in records]
    return found


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def full(*_: Any, **__: Any) -> None:
    raise StoreFullError("no room")


def abandoned_copy(store: Any) -> Path:
    """What a killed process would have left at this moment."""
    copy = Path(store.path).with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store.path, copy, symlinks=True)
    return copy


def test_what_a_block_sent_is_in_the_log_at_its_end_and_not_before(store, producer):
    with producer.transaction() as block:
        assert block is producer
        for number in range(100):
            block.send(TOPIC, value=b"sent %d" % number, key=b"%d" % number)
        block.append(TOPIC, values=[b"column %d" % number for number in range(50)])
        block.append(TOPIC, 2, [b"there"], headers=[[("h", b"x")]], timestamps=[5])
        block.send_offsets_to_transaction({SOURCE: 42}, "readers")
        block.flush()
        assert values_in(store) == []
        assert store.partition(TOPIC, 0).log_end_offset == 0
        assert len(staged_files(store.path)) == PARTITIONS
        assert store.groups() == {}
    expected = [b"sent %d" % number for number in range(100)]
    expected += [b"column %d" % number for number in range(50)] + [b"there"]
    assert sorted(values_in(store)) == sorted(expected)
    assert store.groups()["readers"][SOURCE].offset == 42
    assert store.groups()[ID][VERSION_PARTITION].offset == 0
    assert staged_files(store.path) == []


def test_it_holds_back_no_reader(store, producer):
    producer.begin_transaction()
    producer.append(TOPIC, 0, [b"late"])
    with store.producer() as plain:
        plain.append(TOPIC, 0, [b"early"])
    consumer = store.consumer()
    consumer.assign([TopicPartition(TOPIC, 0)])
    assert [record.value for record in consumer.poll(timeout=0)] == [b"early"]
    producer.commit_transaction()
    assert [record.value for record in consumer.poll(timeout=0)] == [b"late"]


def test_the_order_of_calls_is_the_order_in_a_partition(store, producer):
    with producer.transaction():
        for number in range(5):
            producer.send(TOPIC, value=b"send %d" % number, partition=1)
            producer.append(TOPIC, 1, [b"append %d" % number])
            producer.append(TOPIC, None, [b"keyed %d" % number], keys=[b"k"])
    kinds = [b"send %d", b"append %d"]
    wanted = [kind % number for number in range(5) for kind in kinds]
    assert [one for one in values_in(store, partition=1) if not one.startswith(b"keyed")] == wanted
    keyed = [one for one in values_in(store) if one.startswith(b"keyed")]
    assert keyed == [b"keyed %d" % number for number in range(5)]


def test_records_are_as_they_were_given(store, producer):
    now_ms = time.time_ns() // 1_000_000
    with producer.transaction():
        producer.send(TOPIC, b"v", b"k", 0, [("h", b"x"), ("n", None)], now_ms - 5)
        producer.send(TOPIC, None, b"tombstone", 0)
    records, _ = store.partition(TOPIC, 0).fetch_records(0, 10, 1 << 20)
    first, second = records
    assert (first.value, first.key, first.timestamp_ms) == (b"v", b"k", now_ms - 5)
    assert first.headers == (("h", b"x"), ("n", None))
    assert (second.value, second.key) == (None, b"tombstone")
    assert second.timestamp_ms >= now_ms


def test_each_commit_is_a_version_and_an_empty_one_is_none(store, producer):
    store.commit_staged(ID, 6, [])
    for number in range(3):
        with producer.transaction():
            producer.send(TOPIC, value=b"%d" % number)
        with producer.transaction():
            pass
    assert store.application(ID).version == 9
    with producer.transaction():
        producer.send_offsets_to_transaction({SOURCE: 1}, "readers")
    with producer.transaction():
        producer.send_offsets_to_transaction({}, "readers")
    assert store.application(ID).version == 10
    assert sorted(values_in(store)) == [b"0", b"1", b"2"]


def test_a_transaction_may_take_hours(store, producer):
    """Its commit asks for no age: a transactional producer's default ended it after a minute."""
    assert producer._transactions.timeout_ms == 2**31 - 1


def test_large_loads_make_many_batches(store):
    producer = store.producer(config={"transactional.id": ID, "batch.size": 2000}, staged=True)
    producer.init_transactions()
    with producer.transaction():
        for number in range(5000):
            producer.send(TOPIC, value=b"%05d" % number, key=b"%d" % (number % 50))
    assert sorted(values_in(store)) == [b"%05d" % number for number in range(5000)]
    for number in range(PARTITIONS):
        found = values_in(store, partition=number)
        assert found == sorted(found)


def test_topics_may_come_in_the_middle_and_be_made_in_it(store, producer):
    with producer.transaction():
        producer.send(TOPIC, value=b"1")
        producer.flush()
        store.create_topic("new")
        producer.append("new", values=[b"2"])
        producer.send("source", value=b"3", partition=1)
    assert (values_in(store), values_in(store, "new")) == ([b"1"], [b"2"])
    assert values_in(store, "source", 1) == [b"3"]


def test_threads_share_it_and_its_transaction(store, producer):
    def send(first: int) -> None:
        for number in range(first, first + 2000):
            if number % 500 == 499:
                producer.append(TOPIC, values=[b"%d" % number])
            else:
                producer.send(TOPIC, value=b"%d" % number, key=b"%d" % number)

    with producer.transaction():
        threads = [threading.Thread(target=send, args=(2000 * one,)) for one in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(int, values_in(store))) == list(range(8000))


# Aborts.


@pytest.mark.parametrize("flushed", [False, True])
def test_an_abort_leaves_nothing(store, producer, flushed):
    producer.begin_transaction()
    producer.send(TOPIC, value=b"gone")
    producer.append(TOPIC, values=[b"gone too"])
    producer.send_offsets_to_transaction({SOURCE: 1}, "readers")
    if flushed:
        producer.flush()
    producer.abort_transaction()
    assert staged_files(store.path) == []
    assert store.application(ID).version == -1
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]
    assert "readers" not in store.groups()


def test_an_exception_in_a_block_aborts(store, producer):
    with pytest.raises(KeyError), producer.transaction():
        producer.send(TOPIC, value=b"gone")
        raise KeyError("reason")
    assert values_in(store) == []
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


def test_closing_aborts_and_leaves_no_directories(store, producer):
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    producer.begin_transaction()
    producer.append(TOPIC, values=[b"gone"])
    producer.close()
    producer.close()
    assert values_in(store) == [b"kept"]
    assert not (store.path / "staging" / ID).exists()
    with pytest.raises(LogClosedError):
        producer.begin_transaction()


def test_closing_the_store_closes_it(store, producer):
    producer.begin_transaction()
    producer.append(TOPIC, values=[b"gone"])
    store.close()
    with pytest.raises(LogClosedError):
        producer.append(TOPIC, values=[b"late"])
    with eoslog.open(store.path) as opened:
        assert values_in(opened) == []
        assert staged_files(opened.path) == []


# Wrong order, wrong arguments.


def test_calls_in_the_wrong_order_are_refused(store):
    producer = store.producer(transactional_id=ID, staged=True)
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(TOPIC, value=b"v"),
        lambda: producer.append(TOPIC, values=[b"v"]),
        lambda: producer.send_offsets_to_transaction({SOURCE: 1}, "g"),
        lambda: producer.init_transactions(keep_prepared=True),
    ):
        with pytest.raises(IllegalStateError):
            call()
    assert store.application(ID) is None
    producer.init_transactions()
    for call in (
        producer.init_transactions,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send(TOPIC, value=b"v"),
    ):
        with pytest.raises(IllegalStateError):
            call()
    producer.begin_transaction()
    for call in (producer.begin_transaction, producer.init_transactions):
        with pytest.raises(IllegalStateError):
            call()
    producer.send(TOPIC, value=b"v")
    producer.commit_transaction()
    assert values_in(store) == [b"v"]


def test_preparing_is_refused_and_harms_nothing(store, producer):
    producer.begin_transaction()
    producer.send(TOPIC, value=b"v")
    with pytest.raises(IllegalStateError, match="cannot be prepared"):
        producer.prepare_transaction()
    with pytest.raises(IllegalStateError, match="cannot be prepared"):
        producer.complete_transaction(None)
    producer.commit_transaction()
    assert values_in(store) == [b"v"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"staged": True}, ValueError),
        ({"staged": True, "name": "n"}, ValueError),
        ({"staged": True, "name": "n", "transactional_id": ID}, ValueError),
        ({"staged": True, "transactional_id": ""}, InvalidRequestError),
        ({"staged": True, "transactional_id": 3}, TypeError),
        ({"staged": True, "transactional_id": ID, "transaction_timeout_ms": 5}, ValueError),
        (
            {"staged": True, "transactional_id": ID, "config": {"transaction.timeout.ms": 5}},
            InvalidConfigError,
        ),
        ({"staged": True, "transactional_id": ID, "config": {"linger.ms": 5}}, InvalidConfigError),
        (
            {"staged": True, "transactional_id": ID, "config": {"enable.idempotence": False}},
            InvalidConfigError,
        ),
    ],
)
def test_wrong_arguments_are_refused(store, arguments, error):
    with pytest.raises(error):
        store.producer(**arguments)


def test_what_it_is(store, producer):
    assert isinstance(producer, StagedProducer)
    assert isinstance(producer, eoslog.TransactionalProducer)
    assert producer.transactional_id == ID
    assert repr(producer) == f"<eoslog.StagedProducer {ID!r}, ready>"
    assert (producer.producer_id, producer.producer_epoch) == (-1, -1)
    with pytest.raises(TypeError):
        pickle.dumps(producer)


# Errors in a transaction.


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda one: one.send("nowhere", value=b"v"), UnknownTopicOrPartitionError),
        (lambda one: one.send(TOPIC, value=b"v", partition=9), UnknownTopicOrPartitionError),
        (lambda one: one.append("nowhere", values=[b"v"]), UnknownTopicOrPartitionError),
        (lambda one: one.append(TOPIC, 9, [b"v"]), UnknownTopicOrPartitionError),
        (lambda one: one.send("small", value=b"v" * 500), RecordTooLargeError),
        (lambda one: one.append("small", values=[b"v" * 500]), RecordTooLargeError),
        (lambda one: (one.send("small", b"v", timestamp_ms=1), one.flush()), InvalidTimestampError),
        (lambda one: one.append("small", values=[b"v"], timestamps=[1]), InvalidTimestampError),
        (
            lambda one: one.send_offsets_to_transaction({TopicPartition("x", 0): 1}, "g"),
            UnknownTopicOrPartitionError,
        ),
        (
            lambda one: one.send_offsets_to_transaction(
                {SOURCE: 1}, ConsumerGroupMetadata("unknown", 3)
            ),
            CommitFailedError,
        ),
    ],
)
def test_after_an_error_only_an_abort_goes_on(store, producer, call, error):
    config = {"max.message.bytes": 300, "message.timestamp.before.max.ms": 60_000}
    store.create_topic("small", config=config)
    producer.begin_transaction()
    producer.send(TOPIC, value=b"gone")
    with pytest.raises(error):
        call(producer)
    for refused in (
        lambda: producer.send(TOPIC, value=b"v"),
        lambda: producer.append(TOPIC, values=[b"v"]),
        producer.flush,
        producer.commit_transaction,
    ):
        with pytest.raises(TransactionAbortableError):
            refused()
    producer.abort_transaction()
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


def test_wrong_types_leave_the_transaction_as_it_was(store, producer):
    with producer.transaction():
        for call in (
            lambda: producer.send(TOPIC, value="text"),
            lambda: producer.send(TOPIC, value=b"v", timestamp_ms=-1),
            lambda: producer.append(TOPIC, values=None),
            lambda: producer.append(TOPIC, values=[b"v"], keys=[b"k", b"k"]),
            lambda: producer.append(TOPIC, "0", [b"v"]),
            lambda: producer.send_offsets_to_transaction([SOURCE], "g"),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


def test_a_deleted_topic_makes_the_transaction_one_to_abort(store, producer):
    for staged in (False, True):
        store.create_topic("passing")
        producer.begin_transaction()
        producer.send("passing", value=b"gone")
        producer.send(TOPIC, value=b"gone too")
        if staged:
            producer.flush()
        store.delete_topic("passing")
        with pytest.raises(TransactionAbortableError, match="was deleted"):
            producer.commit_transaction()
        producer.abort_transaction()
    assert values_in(store) == []
    assert staged_files(store.path) == []
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


def test_records_do_not_get_into_a_topic_that_was_made_after_they_were_staged(
    store, producer, monkeypatch
):
    """Another process deletes it: this one hears of that later."""
    store.create_topic("passing")
    monkeypatch.setattr(StagedProducer, "forget_topic", lambda self, topic: None)
    producer.begin_transaction()
    producer.append("passing", 0, [b"old"])
    store.delete_topic("passing")
    store.create_topic("passing")
    with pytest.raises(StagedCommitError, match="topic 'passing' that was deleted"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values_in(store, "passing") == []


@pytest.mark.parametrize("made_again", [True, False])
def test_offsets_of_a_topic_that_was_deleted_since_are_left_out(store, producer, made_again):
    store.create_topic("passing")
    gone = TopicPartition("passing", 0)
    with producer.transaction() as block:
        block.append(TOPIC, 0, [b"kept"])
        block.send_offsets_to_transaction({gone: 5, SOURCE: 6}, "readers")
        block.send_offsets_to_transaction({gone: 5}, "others")
        store.delete_topic("passing")
        if made_again:
            store.create_topic("passing")
    assert values_in(store) == [b"kept"]
    groups = store.groups()
    assert {where: one.offset for where, one in groups["readers"].items()} == {SOURCE: 6}
    assert "others" not in groups


@pytest.mark.parametrize("call", ["file_for", "write", "close"])
def test_a_full_disk_while_staging_can_be_aborted(store, producer, monkeypatch, call):
    producer.begin_transaction()
    producer.send(TOPIC, value=b"gone")
    monkeypatch.setattr(AttemptFiles, call, full)
    with pytest.raises(StoreFullError):
        producer.commit_transaction()
    monkeypatch.undo()
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert staged_files(store.path) == []
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


def test_a_failed_sync_of_staged_files_decides_nothing(store, producer, monkeypatch):
    def fail(*_: Any, **__: Any) -> Any:
        raise StoreFailedError("a sync failed")

    monkeypatch.setattr(AttemptFiles, "close", fail)
    with pytest.raises(StoreFailedError), producer.transaction():
        producer.send(TOPIC, value=b"gone")
    monkeypatch.undo()
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


def test_a_file_that_was_damaged_is_noticed_before_the_decision(store, producer):
    producer.begin_transaction()
    producer.append(TOPIC, 0, [b"gone"] * 100_000)
    producer.flush()
    producer.append(TOPIC, 1, [b"gone"])
    for name in staged_files(store.path):
        (store.path / "staging" / name).write_bytes(b"")
    with pytest.raises(StagedCommitError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values_in(store) == []


def test_a_decision_that_cannot_be_completed_now_is_a_commit(store, producer, monkeypatch):
    monkeypatch.setattr(Partition, "adopt", full)
    with producer.transaction():
        producer.send(TOPIC, value=b"first")
    assert store.application(ID).state == "prepared"
    assert values_in(store) == []
    producer.begin_transaction()
    producer.send(TOPIC, value=b"second")
    with pytest.raises(StagedCommitError, match="can be committed again") as told:
        producer.commit_transaction()
    assert told.value.outcome == "not_appended"
    producer.abort_transaction()
    monkeypatch.undo()
    with producer.transaction():
        producer.send(TOPIC, value=b"third")
    assert sorted(values_in(store)) == [b"first", b"third"]
    assert store.application(ID).version == 1


def test_a_decision_in_doubt_ends_the_producer(store, producer, monkeypatch):
    """The record may be on disk or not: only recovery can say."""
    real = Partition.make_durable

    def fail(partition: Partition, offset: int) -> None:
        if partition.topic == "__transaction_state":
            raise StoreFailedError("a sync failed")
        real(partition, offset)

    monkeypatch.setattr(Partition, "make_durable", fail)
    monkeypatch.setattr(type(producer._transactions), "_is_decision_in_doubt", lambda _: True)
    producer.begin_transaction()
    producer.send(TOPIC, value=b"in doubt")
    with pytest.raises(StoreFailedError):
        producer.commit_transaction()
    for call in (producer.abort_transaction, producer.begin_transaction):
        with pytest.raises(StoreFailedError):
            call()
    copy = abandoned_copy(store)
    monkeypatch.undo()
    with eoslog.open(copy) as opened:
        assert values_in(opened) == [b"in doubt"], "the record was in the log"
        assert opened.application(ID).state == "complete"


def test_an_interrupted_commit_can_be_called_again(store, producer, monkeypatch):
    append = CompactedLog.append

    def interrupt(log: CompactedLog, record_type: int, *rest: Any, **options: Any) -> None:
        append(log, record_type, *rest, **options)
        if record_type == APPLICATION:
            raise KeyboardInterrupt

    producer.begin_transaction()
    producer.send(TOPIC, value=b"once")
    monkeypatch.setattr(CompactedLog, "append", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    monkeypatch.undo()
    producer.commit_transaction()
    with producer.transaction():
        producer.send(TOPIC, value=b"next")
    assert sorted(values_in(store)) == [b"next", b"once"]
    assert store.application(ID).version == 1


def test_an_interrupt_while_staging_leaves_no_half_behind_a_commit(store, producer, monkeypatch):
    write = AttemptFiles.write

    def interrupt(*arguments: Any) -> None:
        write(*arguments)
        raise KeyboardInterrupt

    producer.begin_transaction()
    producer.send(TOPIC, value=b"gone")
    monkeypatch.setattr(AttemptFiles, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    monkeypatch.undo()
    with pytest.raises(StagedCommitError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]


# Fencing.


def test_a_successor_fences_the_one_before_it(store, producer):
    producer.begin_transaction()
    producer.append(TOPIC, values=[b"gone"])
    successor = store.producer(transactional_id=ID, staged=True)
    successor.init_transactions()
    for call in (
        lambda: producer.send(TOPIC, value=b"v"),
        lambda: producer.append(TOPIC, values=[b"v"]),
        lambda: producer.send_offsets_to_transaction({SOURCE: 1}, "g"),
        producer.flush,
        producer.commit_transaction,
        producer.abort_transaction,
        producer.begin_transaction,
    ):
        with pytest.raises(ProducerFencedError) as caught:
            call()
        text = str(caught.value)
        assert f"process {os.getpid()}" in text
        assert "thread 'MainThread'" in text
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d", text)
    producer.close()
    with successor.transaction():
        successor.send(TOPIC, value=b"kept")
    assert values_in(store) == [b"kept"]
    parts_of(store).staged.sweep()
    assert staged_files(store.path) == []


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("moment", ["before the next file", "before the close", "within its sync"])
def test_a_producer_whose_files_were_swept_is_fenced(store, producer, monkeypatch, moment, told):
    """Another process took it over: then this one finds its files gone, and looks why."""
    sync_all = AttemptFiles._sync_all

    def overtake() -> None:
        if not told:
            parts_of(store).staged._owners.clear()
        store.begin_run(ID)
        parts_of(store).staged.sweep()
        assert staged_files(store.path) == []

    def overtaken(files: AttemptFiles) -> None:
        overtake()
        sync_all(files)

    producer.begin_transaction()
    producer.append(TOPIC, 0, [b"gone"])
    producer.flush()
    if moment == "within its sync":
        monkeypatch.setattr(AttemptFiles, "_sync_all", overtaken)
    else:
        producer._transactions.staged._writer._write_all()
        overtake()
    with pytest.raises(ProducerFencedError):
        if moment == "before the next file":
            producer.append(TOPIC, 1, [b"gone"])
        producer.commit_transaction()
    monkeypatch.undo()
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    producer.close()
    assert values_in(store) == []


def test_files_that_are_gone_without_a_successor(store, producer):
    producer.begin_transaction()
    producer.append(TOPIC, 0, [b"gone"])
    producer._transactions.staged._writer._write_all()
    shutil.rmtree(store.path / "staging")
    with pytest.raises(StagedCommitError, match="removed"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.append(TOPIC, 0, [b"kept"])
    assert values_in(store) == [b"kept"]


def test_a_successor_in_another_process_is_noticed_when_a_transaction_begins(store, producer):
    with producer.transaction():
        producer.append(TOPIC, 0, [b"kept"])
    code = "import eoslog\nwith eoslog.open({!r}) as store: say(store.begin_run({!r}))\n"
    with OtherProcess(code.format(str(store.path), ID)) as other:
        run = other.hear()
        other.end()
    with pytest.raises(ProducerFencedError, match=run) as caught:
        producer.begin_transaction()
    assert caught.value.fatal
    with pytest.raises(ProducerFencedError):
        producer.append(TOPIC, 0, [b"gone"])
    assert values_in(store) == [b"kept"]


SUCCESSOR = """
import eoslog
from eoslog.errors import StoreFullError
from eoslog.storage.partition import Partition
def full(*_):
    raise StoreFullError("no room")
if {is_full}:
    Partition.adopt = full
with eoslog.open({path!r}) as store:
    producer = store.producer(transactional_id={app_id!r}, staged=True)
    producer.init_transactions()
    with producer.transaction():
        producer.send({topic!r}, value=b"the successor's", partition=0)
    say(store.application({app_id!r}).version)
    wait()
"""


@pytest.mark.parametrize("is_full", [False, True])
def test_a_version_that_a_successor_decided_is_not_the_interrupted_commits(
    store, producer, monkeypatch, is_full
):
    """It is of the same number; a full disk may keep it from being completed."""

    producer.begin_transaction()
    producer.send(TOPIC, value=b"gone", partition=0)
    with monkeypatch.context() as patch:
        patch.setattr(StagedCommits, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    names = {"path": str(store.path), "app_id": ID, "topic": TOPIC}
    with OtherProcess(SUCCESSOR.format(is_full=is_full, **names)) as other:
        assert int(other.hear()) == producer._transactions.staged._version
        with monkeypatch.context() as patch:
            if is_full:
                patch.setattr(Partition, "adopt", full)
            with pytest.raises(ProducerFencedError):
                producer.commit_transaction()
        other.tell()
        other.end()
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    parts_of(store).staged.roll_forward()
    assert values_in(store) == [b"the successor's"]
    assert store.application(ID).version == 0


@pytest.mark.parametrize("is_full", [False, True])
def test_a_version_that_was_committed_without_a_run_is_not_the_interrupted_commits(
    store, producer, monkeypatch, is_full
):
    """Offsets alone count for the newest run, which is the producer's."""

    producer.begin_transaction()
    producer.send(TOPIC, value=b"again", partition=0)
    with monkeypatch.context() as patch:
        patch.setattr(StagedCommits, "commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    with monkeypatch.context() as patch:
        if is_full:
            patch.setattr(PendingJobs, "ensure_group", full)
        with suppress(EoslogError):
            store.commit_staged(ID, 0, [], offsets={"g": {SOURCE: 1}})
    with pytest.raises(StagedCommitError, match="without a run") as caught:
        producer.commit_transaction()
    assert caught.value.outcome == "not_appended"
    assert values_in(store) == []
    producer.abort_transaction()
    with producer.transaction():
        producer.send(TOPIC, value=b"again")
    assert values_in(store) == [b"again"]
    assert store.application(ID).version == 1


def test_a_refused_commit_can_be_aborted_though_its_version_was_committed_without_a_run(
    store, producer
):
    producer.begin_transaction()
    producer.append(TOPIC, 0, [b"no"] * 100_000)
    producer.flush()
    producer.append(TOPIC, 1, [b"no"])
    for name in staged_files(store.path):
        (store.path / "staging" / name).write_bytes(b"")
    with pytest.raises(StagedCommitError):
        producer.commit_transaction()
    store.commit_staged(ID, 0, [], offsets={"g": {SOURCE: 1}})
    producer.abort_transaction()
    assert values_in(store) == []


def test_a_commit_is_known_again_behind_one_without_a_run(store, producer, monkeypatch):
    producer.begin_transaction()
    producer.send(TOPIC, value=b"once")
    with monkeypatch.context() as patch:
        patch.setattr(PendingJobs, "ensure_group", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    store.commit_staged(ID, 1, [], offsets={"g": {SOURCE: 1}})
    producer.commit_transaction()
    assert values_in(store) == [b"once"]
    assert store.application(ID).version == 1


@pytest.mark.parametrize("overtake", ["begin_run", "commit_staged"])
def test_any_newer_run_of_the_application_fences_it(store, producer, overtake):
    producer.begin_transaction()
    producer.send(TOPIC, value=b"gone")
    if overtake == "begin_run":
        run = store.begin_run(ID)
    else:
        run = "a run of its own"
        store.commit_staged(ID, 5, [], run)
    with pytest.raises(ProducerFencedError, match=run):
        producer.commit_transaction()
    with pytest.raises(ProducerFencedError):
        producer.begin_transaction()
    assert values_in(store) == []


def test_other_ids_and_other_kinds_of_producers_do_not_fence_it(store, producer):
    other = store.producer(transactional_id="other", staged=True)
    other.init_transactions()
    logged = store.producer(transactional_id=ID)
    logged.init_transactions()
    for number, one in enumerate((producer, other, logged)):
        with one.transaction():
            one.send(TOPIC, value=b"%d" % number)
    assert sorted(values_in(store)) == [b"0", b"1", b"2"]


def test_a_version_that_somebody_else_committed_loses_nothing(store, producer):
    producer.begin_transaction()
    producer.send(TOPIC, value=b"kept")
    store.commit_staged(ID, 0, [])
    store.commit_staged(ID, 1, [])
    producer.commit_transaction()
    assert values_in(store) == [b"kept"]
    assert store.application(ID).version == 2


# Crashes; the kills at every step are in tests/crash.


@pytest.mark.parametrize("durability", ["commit", "always", "process"])
def test_a_process_that_ends_before_the_decision_leaves_nothing(tmp_path, durability):
    with eoslog.open(tmp_path / "store", create=True, durability=durability) as store:
        store.create_topic(TOPIC, partitions=PARTITIONS)
        producer = store.producer(transactional_id=ID, staged=True)
        producer.init_transactions()
        with producer.transaction():
            producer.send(TOPIC, value=b"kept")
        producer.begin_transaction()
        producer.append(TOPIC, 0, [b"gone"] * 10)
        producer.flush()
        copy = abandoned_copy(store)
    with eoslog.open(copy, durability=durability) as store:
        assert values_in(store) == [b"kept"]
        assert store.application(ID).version == 0
        successor = store.producer(transactional_id=ID, staged=True)
        successor.init_transactions()
        parts_of(store).staged.sweep()
        assert staged_files(store.path) == []
        with successor.transaction():
            successor.send(TOPIC, value=b"after")
        assert sorted(values_in(store)) == [b"after", b"kept"]
        assert store.application(ID).version == 1


def test_errors_that_it_raises_tell_the_outcome(store, producer):
    producer.begin_transaction()
    with pytest.raises(EoslogError) as caught:
        producer.send("nowhere", value=b"v")
    assert caught.value.outcome == "not_appended"


def test_a_topic_that_is_made_again_with_other_partitions_just_now(store, producer, monkeypatch):
    """The producer knows it as it was, and the writer of files as it is."""
    known = {TOPIC: {"partitions": 99}}
    monkeypatch.setattr("eoslog.staging.staged_writer._known_topics", lambda _: known)
    producer.begin_transaction()
    with pytest.raises(UnknownTopicOrPartitionError, match="has 99 partitions, not"):
        producer.append(TOPIC, 0, [b"x"])
    producer.abort_transaction()
    monkeypatch.undo()
    with producer.transaction():
        producer.append(TOPIC, 0, [b"x"])


def test_an_interrupt_of_the_sending_of_offsets_leaves_all_or_none(store, producer):
    """At each line of it: the commit that follows knows of which topic each offset is."""
    code = staged_transactions.StagedTransactions.add_offsets.__code__
    line, interrupted = 0, True
    while interrupted:
        line += 1
        producer.begin_transaction()
        producer.append(TOPIC, 0, [b"x"])
        with (
            suppress(KeyboardInterrupt),
            interrupted_at(line, lambda frame: frame.f_code is code) as seen,
        ):
            producer.send_offsets_to_transaction({SOURCE: line}, "readers")
        interrupted = len(seen) == line
        producer.commit_transaction()
        found = store.groups().get("readers", {})
        assert SOURCE not in found or found[SOURCE].offset <= line
    assert found[SOURCE].offset == line
    assert line > 5
