"""Transactions as a program uses them: Kafka's client scenarios (C) and end-to-end ones (T)."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest
from coordinated_store import CoordinatedStore
from harness.fork import in_child
from harness.waiting import eventually
from stores import values_of
from transaction_files import fill_up, full_disk

import eoslog
from eoslog import PreparedTransaction, TopicPartition, errors
from eoslog.errors import (
    ConcurrentTransactionsError,
    IllegalStateError,
    ProducerFencedError,
    StoreFullError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer.producer import ProducerInternals
from eoslog.producer.transaction_manager import TransactionManager
from eoslog.producer.transaction_states import ClientState
from eoslog.store.store import abandon, engine_of, parts_of
from eoslog.transactions.coordinator import TransactionCoordinator

Store = eoslog.Store
ID = "mover"
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture
def topics(store: Store) -> Store:
    """A store with "a" and "b" of three partitions each."""
    store.create_topic("a", partitions=3)
    store.create_topic("b", partitions=3)
    return store


def ready(store: Store, transactional_id: str = ID, **settings) -> eoslog.TransactionalProducer:
    producer = store.producer(transactional_id=transactional_id, **settings)
    producer.init_transactions()
    return producer


def all_values(store: Store, topic: str, partition: int = 0) -> list[bytes | None]:
    """With undecided and aborted ones."""
    with store.consumer(isolation_level="read_uncommitted") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[bytes | None] = []
        while records := consumer.poll(timeout=0):
            found += [record.value for record in records]
        return found


def committed(store: Store, group: str, where: TopicPartition):
    return store.groups().get(group, {}).get(where)


def log_ends(store: Store) -> dict[TopicPartition, int]:
    """How long every open partition is, internal ones too."""
    return {
        one.topic_partition: one.log_end_offset for one in parts_of(store).files.partitions.opened()
    }


CALLS = {
    "send": lambda p: p.send("a", value=b"x", partition=0),
    "append": lambda p: p.append("a", 0, [b"x"]),
    "append by key": lambda p: p.append("a", values=[b"x"], keys=[b"k"]),
    "offsets": lambda p: p.send_offsets_to_transaction({TopicPartition("a", 0): 1}, "g"),
    "commit": lambda p: p.commit_transaction(),
    "abort": lambda p: p.abort_transaction(),
    "prepare": lambda p: p.prepare_transaction(),
    "complete": lambda p: p.complete_transaction("7:0"),
    "begin": lambda p: p.begin_transaction(),
    "block": lambda p: p.transaction().__enter__(),
    "init": lambda p: p.init_transactions(),
    "flush": lambda p: p.flush(),
}


def calls_without(*names: str):
    return pytest.mark.parametrize("call", [one for one in CALLS if one not in names])


# The order of calls.


@calls_without("init", "flush")
def test_c01_nothing_goes_before_the_initialization(topics, call):
    producer = topics.producer(transactional_id=ID)
    refused = errors.InvalidTxnStateError if call == "complete" else IllegalStateError
    with pytest.raises(refused, match="init_transactions"):
        CALLS[call](producer)
    producer.init_transactions()
    with producer.transaction():
        producer.send("a", value=b"1", partition=0)
    assert values_of(topics, "a") == [b"1"]


@pytest.mark.parametrize("call", ["send", "append", "append by key", "offsets", "commit", "abort"])
def test_c01_nothing_goes_without_a_transaction(topics, call):
    producer = ready(topics)
    before = log_ends(topics)
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        CALLS[call](producer)
    assert log_ends(topics) == before
    with producer.transaction():
        producer.send("a", value=b"1", partition=0)
    with pytest.raises(IllegalStateError):
        CALLS[call](producer)
    assert values_of(topics, "a") == [b"1"]


def test_c02_init_goes_once(topics):
    producer = ready(topics)
    epoch = producer.producer_epoch
    with pytest.raises(IllegalStateError):
        producer.init_transactions()
    assert producer.producer_epoch == epoch
    producer.begin_transaction()
    with pytest.raises(IllegalStateError):
        producer.init_transactions()
    producer.send("a", value=b"1", partition=0)
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1"]


@pytest.mark.parametrize("call", ["begin", "block"])
def test_c03_begin_goes_once_and_the_first_one_is_unharmed(topics, call):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    with pytest.raises(IllegalStateError, match="is open"):
        CALLS[call](producer)
    producer.send("a", value=b"2", partition=0)
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1", b"2"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_c04_an_empty_transaction_writes_nothing(topics, end):
    producer = ready(topics)
    before, numbers = log_ends(topics), (producer.producer_id, producer.producer_epoch)
    for _ in range(3):
        producer.begin_transaction()
        CALLS[end](producer)
    with producer.transaction():
        pass
    assert log_ends(topics) == before
    assert (producer.producer_id, producer.producer_epoch) == numbers


def test_a_plain_producer_has_no_transactions(topics):
    with topics.producer() as producer:
        for call in ("init", "begin", "block", "commit", "abort", "offsets", "prepare", "complete"):
            with pytest.raises(IllegalStateError, match="transactional_id"):
                CALLS[call](producer)
        producer.send("a", value=b"1", partition=0)
    assert values_of(topics, "a") == [b"1"]


def test_c28_a_wrong_call_harms_nothing(topics):
    producer = ready(topics)
    for call in ("send", "commit", "abort", "prepare", "init"):
        with pytest.raises(IllegalStateError):
            CALLS[call](producer)
    with pytest.raises(errors.InvalidTxnStateError):
        CALLS["complete"](producer)
    producer.flush()
    producer.begin_transaction()
    for call in ("begin", "init", "prepare"):
        with pytest.raises(IllegalStateError):
            CALLS[call](producer)
    producer.send("a", value=b"1", partition=0)
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1"]


# Committing and aborting.


def test_t01_readers_see_what_is_committed(topics):
    producer = ready(topics)
    with producer.transaction():
        for topic in ("a", "b"):
            for value in (b"1", b"2"):
                producer.send(topic, value=value, partition=0)
    producer.begin_transaction()
    for topic in ("a", "b"):
        producer.send(topic, value=b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    for topic in ("a", "b"):
        assert values_of(topics, topic) == [b"1", b"2"]
        assert all_values(topics, topic) == [b"1", b"2", b"aborted"]


def test_t02_nothing_behind_an_undecided_transaction_is_seen(topics):
    open_one = ready(topics)
    open_one.begin_transaction()
    open_one.send("a", value=b"open", partition=0)
    open_one.flush()
    with topics.producer() as plain:
        plain.send("a", value=b"later", partition=0)
    assert values_of(topics, "a") == []
    assert all_values(topics, "a") == [b"open", b"later"]
    open_one.abort_transaction()
    assert values_of(topics, "a") == [b"later"]


def test_t04_interleaved_transactions_keep_to_themselves(topics):
    first, second = ready(topics, "first"), ready(topics, "second")
    first.begin_transaction()
    second.begin_transaction()
    for number in range(10):
        for producer, name in ((first, b"first"), (second, b"second")):
            producer.send("a", value=b"%s %d" % (name, number), partition=0)
            producer.flush()
    second.abort_transaction()
    assert values_of(topics, "a") == []
    first.commit_transaction()
    assert values_of(topics, "a") == [b"first %d" % number for number in range(10)]


def test_c06_the_commit_appends_what_was_gathered(topics):
    producer = ready(topics)
    producer.begin_transaction()
    for number in range(10):
        producer.send("a", value=b"%d" % number, partition=0)
    assert topics.partition("a", 0).log_end_offset == 0
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"%d" % number for number in range(10)]
    # Ten records and the marker.
    assert topics.partition("a", 0).log_end_offset == 11


def test_a_full_batch_is_appended_at_once(topics):
    producer = ready(topics, config={"batch.size": 1000})
    producer.begin_transaction()
    for number in range(100):
        producer.send("a", value=b"%03d" % number + b"x" * 50, partition=0)
    end = topics.partition("a", 0).log_end_offset
    assert 80 <= end < 100
    assert topics.partition("a", 0).open_transactions()[0].producer_id == producer.producer_id
    producer.commit_transaction()
    assert [value[:3] for value in values_of(topics, "a")] == [b"%03d" % n for n in range(100)]


def test_t13_one_transaction_on_many_partitions(topics):
    producer = ready(topics)
    for turn in range(6):
        producer.begin_transaction()
        for topic in ("a", "b"):
            for partition in range(3):
                producer.send(topic, value=b"%d" % turn, partition=partition)
        producer.commit_transaction() if turn % 2 == 0 else producer.abort_transaction()
    for topic in ("a", "b"):
        for partition in range(3):
            assert values_of(topics, topic, partition) == [b"0", b"2", b"4"]


def test_a_wide_transaction_with_batches_that_fill_up(store):
    store.create_topic("wide", partitions=40)
    producer = ready(store, config={"batch.size": 400})
    for turn in range(2):
        producer.begin_transaction()
        for number in range(2000):
            producer.send("wide", value=b"%05d" % (turn * 2000 + number), partition=number % 40)
        producer.commit_transaction()
    for partition in range(40):
        values = values_of(store, "wide", partition)
        assert values == [b"%05d" % number for number in range(partition, 4000, 40)]


def test_c21_the_epoch_rises_and_sequences_begin_anew(topics):
    producer = ready(topics)
    first = producer.producer_epoch
    for turn in range(5):
        assert producer.producer_epoch == first + turn
        with producer.transaction():
            producer.send("a", value=b"1", partition=0)
            producer.append("a", 0, [b"2", b"3"])
        state = engine_of(topics).partition("a", 0).producer(producer.producer_id)
        # The marker has the next epoch, and no sequence of that one is in yet.
        assert state.producer_epoch == first + turn + 1
    producer.begin_transaction()
    producer.append("a", 0, [b"4", b"5"])
    state = engine_of(topics).partition("a", 0).producer(producer.producer_id)
    assert (state.producer_epoch, state.last_sequence) == (first + 5, 1)
    producer.abort_transaction()


def test_the_producer_id_is_exchanged_when_its_epochs_are_used_up(topics):
    producer = ready(topics)
    old = producer.producer_id
    count = 0
    while producer.producer_id == old:
        with producer.transaction():
            producer.send("a", value=b"%d" % count, partition=0)
        count += 1
    assert producer.producer_epoch == 0
    assert count == 32_767
    producer.begin_transaction()
    producer.send("a", value=b"gone", partition=0)
    producer.abort_transaction()
    with producer.transaction():
        producer.append("a", 0, [b"%d" % count])
    assert values_of(topics, "a") == [b"%d" % number for number in range(count + 1)]


def test_columns_and_records_keep_their_order(topics):
    producer = ready(topics)
    with producer.transaction():
        producer.send("a", value=b"0", partition=1)
        answer = producer.append("a", 1, [b"1", b"2"], headers=[[("h", b"x")], []])
        assert (answer.base_offset, answer.last_offset) == (1, 2)
        producer.send("a", value=b"3", partition=1)
        placed = producer.append("b", values=[b"4", b"5", b"6"], keys=[b"k", b"l", b"m"])
        assert sum(one.record_count for one in placed.values()) == 3
    assert values_of(topics, "a", 1) == [b"0", b"1", b"2", b"3"]
    assert sorted(value for n in range(3) for value in values_of(topics, "b", n)) == [
        b"4",
        b"5",
        b"6",
    ]


# Blocks.


def test_a_block_commits_and_an_exception_in_it_aborts(topics):
    producer = ready(topics)
    with producer.transaction() as inside:
        inside.send("a", value=b"1", partition=0)
    with pytest.raises(ZeroDivisionError), producer.transaction():
        producer.send("a", value=b"2", partition=0)
        producer.flush()
        _ = 1 / 0
    with pytest.raises(KeyboardInterrupt), producer.transaction():
        producer.send("a", value=b"3", partition=0)
        raise KeyboardInterrupt
    block = producer.transaction()
    for value in (b"4", b"5"):
        with block:
            producer.send("a", value=value, partition=0)
    assert values_of(topics, "a") == [b"1", b"4", b"5"]


def test_a_block_that_ends_its_transaction_is_left_as_it_is(topics):
    producer = ready(topics)
    with producer.transaction():
        producer.send("a", value=b"1", partition=0)
        producer.commit_transaction()
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
        producer.abort_transaction()
    with producer.transaction():
        producer.send("a", value=b"3", partition=0)
        prepared = producer.prepare_transaction()
    assert values_of(topics, "a") == [b"1"]
    assert producer.complete_transaction(prepared) is True
    assert values_of(topics, "a") == [b"1", b"3"]


def test_an_exception_after_the_preparation_decides_nothing(topics):
    producer = ready(topics)
    with pytest.raises(ZeroDivisionError), producer.transaction():
        producer.send("a", value=b"1", partition=0)
        producer.prepare_transaction()
        _ = 1 / 0
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1"]


def test_a_swallowed_error_does_not_commit_a_part(topics):
    producer = ready(topics)
    with pytest.raises(TransactionAbortableError), producer.transaction():
        producer.send("a", value=b"1", partition=0)
        with suppress(errors.RecordTooLargeError):
            producer.send("a", value=b"x" * 2_000_000, partition=0)
    assert values_of(topics, "a") == []
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"2"]


# Errors in a transaction.


FAILING = {
    "a record too large": (
        errors.RecordTooLargeError,
        lambda p: p.send("a", value=b"x" * 2_000_000, partition=0),
    ),
    "columns too large": (
        errors.RecordTooLargeError,
        lambda p: p.append("a", 0, [b"x" * 2_000_000]),
    ),
    "an unknown topic": (
        errors.UnknownTopicOrPartitionError,
        lambda p: p.send("none", value=b"x"),
    ),
    "an unknown partition": (
        errors.UnknownTopicOrPartitionError,
        lambda p: p.append("a", 3, [b"x"]),
    ),
    "offsets of an unknown topic": (
        errors.UnknownTopicOrPartitionError,
        lambda p: p.send_offsets_to_transaction({TopicPartition("none", 0): 1}, "g"),
    ),
    "metadata too large": (
        errors.OffsetMetadataTooLargeError,
        lambda p: p.send_offsets_to_transaction(
            {TopicPartition("a", 0): eoslog.OffsetAndMetadata(1, "x" * 4097)}, "g"
        ),
    ),
    "C24 a generation nobody knows": (
        errors.CommitFailedError,
        lambda p: p.send_offsets_to_transaction(
            {TopicPartition("a", 0): 1}, eoslog.ConsumerGroupMetadata("g", 5, "m")
        ),
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_c11_after_a_failed_call_only_the_abort_goes_on(topics, name):
    kind, call = FAILING[name]
    producer = ready(topics)
    epoch = producer.producer_epoch
    producer.begin_transaction()
    producer.send("a", value=b"lost", partition=0)
    producer.flush()
    with pytest.raises(kind):
        call(producer)
    for other in ("send", "append", "offsets", "commit", "prepare", "begin", "flush"):
        with pytest.raises(TransactionAbortableError) as caught:
            CALLS[other](producer)
        assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert producer.producer_epoch == epoch + 1
    with producer.transaction():
        producer.send("a", value=b"kept", partition=0)
    assert values_of(topics, "a") == [b"kept"]
    assert topics.groups() == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.send("a", value="text", partition=0),
        lambda p: p.send("a", value=b"x", partition=0, timestamp_ms=-5),
        lambda p: p.send("a", value=b"x", partition=1.5),
        lambda p: p.append("a", 0, [1, 2]),
        lambda p: p.append("a", 0, []),
        lambda p: p.append("a", 0, None),
        lambda p: p.send_offsets_to_transaction([1], "g"),
        lambda p: p.send_offsets_to_transaction({TopicPartition("a", 0): -1}, "g"),
        lambda p: p.send_offsets_to_transaction({TopicPartition("a", 0): 1}, 5),
        lambda p: p.next_sequence("a", 0),
        lambda p: p.discard_gathered(),
    ],
)
def test_a_wrong_argument_leaves_the_transaction_as_it_is(topics, call):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    with pytest.raises((TypeError, ValueError, IllegalStateError)):
        call(producer)
    producer.send("a", value=b"2", partition=0)
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1", b"2"]


def test_a_batch_that_the_log_refuses_makes_the_transaction_abortable(store):
    store.create_topic("strict", config={"message.timestamp.after.max.ms": 1000})
    producer = ready(store)
    producer.begin_transaction()
    producer.send("strict", value=b"1", partition=0, timestamp_ms=4_000_000_000_000)
    with pytest.raises(errors.InvalidTimestampError):
        producer.commit_transaction()
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("strict", value=b"2", partition=0)
    assert values_of(store, "strict") == [b"2"]
    with pytest.raises(errors.InvalidTimestampError), producer.transaction():
        producer.send("strict", value=b"3", partition=0, timestamp_ms=4_000_000_000_000)
    with producer.transaction():
        producer.send("strict", value=b"4", partition=0)
    assert values_of(store, "strict") == [b"2", b"4"]


class FailingEntry:
    """An entry whose calls fail as often as is asked for; all else is the entry's."""

    def __init__(self, entry, failures: dict[str, list[Exception]]) -> None:
        self._entry = entry
        self.failures = failures

    def __getattr__(self, name: str):
        failures = self.failures.get(name)
        if failures:
            error = failures.pop(0)

            def fail(*arguments, **named):
                raise error

            return fail
        return getattr(self._entry, name)


def failing(producer, **failures: list[Exception]) -> FailingEntry:
    """Have the producer speak with its entry through something that fails."""
    manager = ProducerInternals(producer).transactions
    entry = FailingEntry(manager.entry, failures)
    manager.entry = entry
    manager.set_entry(
        entry,
        manager.owner,
        manager.state_partition,
        producer.producer_id,
        producer.producer_epoch,
    )
    return entry


def test_a_full_disk_at_the_commit_makes_the_transaction_abortable(topics):
    producer = ready(topics)
    failing(producer, commit=[StoreFullError("full")])
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    with pytest.raises(StoreFullError):
        producer.commit_transaction()
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"2"]


@pytest.mark.parametrize("next_one", ["records", "offsets", "abort", "block"])
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_what_a_commit_wrote_before_it_failed_is_never_committed(topics, refused, next_one):
    """It appends partition by partition: those before the one that is refused are in the log, and
    the coordinator knows of the transaction. The next one must not take them along.
    """
    topics.create_topic("strict", config={"message.timestamp.after.max.ms": 1000})
    producer = ready(topics)
    names = ["a", "b"]
    names.insert(refused, "strict")
    for attempt in range(3):
        producer.begin_transaction()
        for name in names:
            late_ms = time.time_ns() // 1_000_000 + (10**9 if name == "strict" else 0)
            producer.send(name, b"aborted %d" % attempt, partition=0, timestamp_ms=late_ms)
        with pytest.raises(errors.InvalidTimestampError):
            producer.commit_transaction()
        producer.abort_transaction()
    assert [one.transaction_state for one in topics.transactions()] in (
        ["CompleteAbort"],
        ["Empty"],
    )
    with suppress(ValueError if next_one == "block" else ()), producer.transaction():
        if next_one == "offsets":
            producer.send_offsets_to_transaction({TopicPartition("a", 0): 0}, "group")
        else:
            producer.send("b", b"next", partition=1)
        if next_one == "abort":
            producer.abort_transaction()
        if next_one == "block":
            raise ValueError
    for name in ("a", "b", "strict"):
        assert values_of(topics, name) == []
    assert values_of(topics, "b", 1) == ([b"next"] if next_one == "records" else [])
    with producer.transaction():
        producer.send("a", b"last", partition=0)
    assert values_of(topics, "a") == [b"last"]
    assert topics.verify() == []


def test_a_full_disk_at_the_abort_leaves_it_to_be_called_again(topics):
    producer = ready(topics)
    entry = failing(producer)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.flush()
    entry.failures["end"] = [StoreFullError("full")]
    with pytest.raises(StoreFullError):
        producer.abort_transaction()
    for call in ("send", "commit", "begin"):
        with pytest.raises(IllegalStateError, match="abort_transaction"):
            CALLS[call](producer)
    producer.abort_transaction()
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"2"]


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "call", ["send, flush", "append", "offsets", "commit", "prepare", "block", "full batch"]
)
def test_a_transaction_whose_predecessor_is_not_complete_can_be_tried_again(
    open_store, rotates, commit, call
):
    """A marker found no room: the decision stands, and what follows waits for it."""
    store = open_store()
    store.create_topic("a", partitions=2, config={"segment.bytes": 1 << 20})
    with ready(store, "opens the partitions") as other, other.transaction():
        other.append("a", 1, [b"opened"])
        other.send_offsets_to_transaction({TopicPartition("a", 0): 0}, "g")
    if rotates:
        at = CoordinatedStore(store)
        at.record(ID, producer_epoch=32765)
    producer = ready(store)
    before = (producer.producer_id, producer.producer_epoch)
    assert producer.producer_epoch == (32766 if rotates else 0)
    producer.begin_transaction()
    producer.append("a", 0, [b"x"])
    fill_up(engine_of(store).partition("a", 0).log, 60)
    with full_disk():
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        now = (producer.producer_id, producer.producer_epoch)
        assert (now[0] != before[0]) is rotates
        assert store.describe_transaction(ID).transaction_state.startswith("Prepare")
        for _ in range(2):
            producer.begin_transaction()
            with pytest.raises(ConcurrentTransactionsError) as raised:
                if call == "send, flush":
                    producer.send("a", b"y", partition=1)
                    producer.flush()
                elif call == "full batch":
                    for _ in range(300):
                        producer.send("a", b"y" * 1000, partition=1)
                elif call in ("commit", "block", "prepare"):
                    producer.send("a", b"y", partition=1)
                    ProducerInternals(
                        producer
                    ).transactions.leave_block() if call == "block" else CALLS[call](producer)
                else:
                    CALLS[call](producer)
            assert raised.value.retriable
            if call != "block":  # It aborts by itself.
                producer.abort_transaction()
            assert (producer.producer_id, producer.producer_epoch) == now
    with producer.transaction():
        producer.send("a", b"z", partition=1)
    assert values_of(store, "a", 1) == [b"opened", b"z"]
    found = [one for one in values_of(store, "a") if one in (b"x", b"y")]
    assert found == ([b"x"] if commit else [])
    producer.close()
    assert store.verify() == []


def test_c13_a_commit_that_was_interrupted_can_only_be_repeated(topics):
    producer = ready(topics)
    failing(producer, commit=[KeyboardInterrupt()])
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    for call in ("abort", "begin", "send", "prepare"):
        with pytest.raises(IllegalStateError, match="commit_transaction"):
            CALLS[call](producer)
    producer.commit_transaction()
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"1", b"2"]


def test_c13_a_commit_that_was_decided_before_the_interrupt_is_found_to_be(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.flush()
    entry = ProducerInternals(producer).transactions.entry
    with entry.lock:
        entry.end(producer.producer_id, producer.producer_epoch, True)
    # As if the answer had never come:
    producer.commit_transaction()
    assert producer.producer_epoch == entry.producer_epoch
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"1", b"2"]


def test_a_store_that_failed_at_the_decision_ends_the_producer(topics, monkeypatch):
    producer = ready(topics)
    failing(producer, commit=[errors.StoreFailedError("a sync failed")])
    monkeypatch.setattr(TransactionManager, "_is_decision_in_doubt", lambda self: True)
    producer.begin_transaction()
    told = []

    def on_delivery(error, metadata):
        told.append((type(error), error.outcome, metadata.offset))

    producer.send("a", value=b"1", partition=0, on_delivery=on_delivery)
    with pytest.raises(errors.StoreFailedError):
        producer.commit_transaction()
    assert told == [(errors.StoreFailedError, "unknown", -1)]
    for call in ("abort", "begin", "commit", "send", "flush"):
        with pytest.raises(errors.StoreFailedError):
            CALLS[call](producer)
    producer.close()
    assert len(told) == 1


def test_a_partition_that_failed_before_the_decision_leaves_an_abort(topics):
    producer = ready(topics)
    failing(producer, commit=[errors.StoreFailedError("a sync failed")])
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    with pytest.raises(errors.StoreFailedError):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"2"]


# Fencing.


def test_c08_the_older_producer_is_fenced_and_told_by_whom(topics):
    older = ready(topics)
    older.begin_transaction()
    older.send("a", value=b"older", partition=0)
    older.flush()
    newer = ready(topics)
    with newer.transaction():
        newer.send("a", value=b"newer", partition=0)
    for call in ("send", "append", "flush", "commit", "abort", "offsets", "begin", "prepare"):
        with pytest.raises(ProducerFencedError) as caught:
            CALLS[call](older)
        assert f"process {os.getpid()}" in str(caught.value)
        assert repr(ID) in str(caught.value)
        assert "epoch" in str(caught.value)
    older.close()
    assert values_of(topics, "a") == [b"newer"]


def test_a_refused_initialization_keeps_the_owner_that_an_interrupted_one_left(topics, monkeypatch):
    producer = topics.producer(transactional_id=ID)
    entries = parts_of(topics).files.transactions.entries
    for where, name, error in (
        (TransactionManager, "set_entry", KeyboardInterrupt),
        (TransactionCoordinator, "_move_on", StoreFullError),
    ):
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(where, name, Mock(side_effect=error("here")))
            producer.init_transactions()
        assert entries.owner_of(ID) is not None
    producer.close()
    assert entries.owner_of(ID) is None


@pytest.mark.parametrize("call", ["send", "append", "append by key", "flush", "commit", "offsets"])
@pytest.mark.parametrize("wrote", [False, True])
def test_c09_whatever_a_zombie_does_first_it_is_refused(topics, monkeypatch, call, wrote):
    # As in another process, where nobody can tell the zombie in advance.
    monkeypatch.setattr(TransactionManager, "notice_replacement", lambda self: None)
    zombie = ready(topics)
    zombie.begin_transaction()
    zombie.send("a", value=b"zombie", partition=0)
    if wrote:
        zombie.flush()
    newer = ready(topics)
    ProducerInternals(zombie).transactions.owner.fenced_because = None
    if call in ("send", "flush"):  # What is only gathered is refused when it is appended.
        zombie.send("a", value=b"zombie", partition=0)
        call = "flush"
    with pytest.raises((ProducerFencedError, errors.InvalidProducerEpochError)):
        CALLS[call](zombie)
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    with pytest.raises(ProducerFencedError):
        zombie.abort_transaction()
    zombie.close()
    with newer.transaction():
        newer.send("a", value=b"newer", partition=0)
    assert values_of(topics, "a") == [b"newer"]
    assert topics.groups() == {}


def test_t08_the_newer_one_writes_and_the_older_ones_next_send_fails(topics):
    first = ready(topics)
    first.begin_transaction()
    for value in (b"1", b"2"):
        first.send("a", value=value, partition=0)
    second = ready(topics)
    with second.transaction():
        for value in (b"3", b"4"):
            second.send("a", value=value, partition=0)
    with pytest.raises(ProducerFencedError):
        first.send("a", value=b"5", partition=0)
    first.close()
    assert values_of(topics, "a") == [b"3", b"4"]


def test_only_who_had_the_id_is_asked_when_it_is_taken_over(topics, monkeypatch):
    """With 10,000 producers alive the others would cost milliseconds."""
    others = [topics.producer(transactional_id=f"other {number}") for number in range(3)]
    for other in others:
        other.init_transactions()
    asked = []
    monkeypatch.setattr(TransactionManager, "notice_replacement", lambda self: asked.append(self))
    first = ready(topics)
    assert asked == []
    ready(topics)
    assert asked == [ProducerInternals(first).transactions]


def test_t14_ten_producers_in_a_row(topics):
    epochs = []
    for number in range(10):
        producer = ready(topics)
        epochs.append((producer.producer_id, producer.producer_epoch))
        with producer.transaction():
            producer.send("a", value=b"%d" % number, partition=0)
    assert epochs == sorted(set(epochs))
    assert len({producer_id for producer_id, _ in epochs}) == 1
    assert values_of(topics, "a") == [b"%d" % number for number in range(10)]


def test_other_ids_are_not_disturbed(topics):
    first, other = ready(topics, "first"), ready(topics, "other")
    other.begin_transaction()
    other.send("a", value=b"other", partition=0)
    ready(topics, "first")
    other.commit_transaction()
    with pytest.raises(ProducerFencedError):
        first.begin_transaction()
    assert values_of(topics, "a") == [b"other"]


LATE_MS = 40


def late_transaction(store, written):
    """A producer whose transaction is older than its timeout, and nobody has looked since."""
    producer = ready(store, transaction_timeout_ms=LATE_MS)
    producer.begin_transaction()
    if written == "columns":
        producer.append("a", 0, [b"late"])
    elif written == "offsets":
        producer.send_offsets_to_transaction({TopicPartition("b", 0): 1}, "g")
    else:
        producer.send("a", b"late", partition=0)
    if written == "flushed":
        producer.flush()
    time.sleep(3 * LATE_MS / 1000)
    return producer


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("written", ["gathered", "flushed", "columns", "offsets"])
@pytest.mark.parametrize("call", ["commit", "block", "append", "offsets", "prepare", "send, flush"])
def test_a_call_that_comes_after_the_timeout_aborts_the_transaction(topics, written, call):
    producer = late_transaction(topics, written)
    with pytest.raises(ProducerFencedError, match=f"after its timeout of {LATE_MS} ms") as raised:
        if call == "block":
            ProducerInternals(producer).transactions.leave_block()
        elif call == "send, flush":
            producer.send("a", b"later", partition=1)
            producer.flush()
        else:
            CALLS[call](producer)
    assert raised.value.outcome == "not_appended"
    registered = written != "gathered"
    described = topics.describe_transaction(ID)
    assert described.transaction_state == ("CompleteAbort" if registered else "Empty")
    for later in ("commit", "begin", "send"):
        with pytest.raises(ProducerFencedError, match="after its timeout"):
            CALLS[later](producer)
    producer.close()
    assert values_of(topics, "a") == []
    assert committed(topics, "g", TopicPartition("b", 0)) is None
    with ready(topics) as successor, successor.transaction():
        successor.send("a", b"in time", partition=0)
    assert values_of(topics, "a") == [b"in time"]
    assert topics.verify() == []


def test_a_full_batch_that_comes_after_the_timeout_aborts_the_transaction(topics):
    producer = late_transaction(topics, "flushed")
    with pytest.raises(ProducerFencedError, match="after its timeout"):
        for _ in range(300):
            producer.send("a", b"x" * 1000, partition=0)
    assert topics.describe_transaction(ID).transaction_state == "CompleteAbort"


def test_an_abort_after_the_timeout_is_an_abort(topics):
    producer = late_transaction(topics, "flushed")
    producer.abort_transaction()
    with producer.transaction():
        producer.send("a", b"next", partition=0)
    assert values_of(topics, "a") == [b"next"]


def test_time_without_a_record_does_not_count(topics):
    producer = ready(topics, transaction_timeout_ms=500)
    producer.begin_transaction()
    time.sleep(0.6)
    producer.send("a", b"x", partition=0)
    producer.commit_transaction()
    producer.begin_transaction()
    time.sleep(0.6)
    producer.commit_transaction()  # An empty one.
    assert values_of(topics, "a") == [b"x"]


@pytest.mark.parametrize("way", ["commit", "complete", "store"])
def test_what_was_prepared_in_time_can_be_committed_after_the_timeout(topics, way):
    producer = ready(topics, transaction_timeout_ms=5000)
    producer.begin_transaction()
    producer.send("a", b"prepared", partition=0)
    token = producer.prepare_transaction()
    make_late(producer)
    if way == "commit":
        producer.commit_transaction()
    elif way == "complete":
        assert producer.complete_transaction(token)
    else:
        topics.commit_prepared([token])
    assert values_of(topics, "a") == [b"prepared"]


def make_late(producer):
    """Have the open transaction older than its timeout."""
    ProducerInternals(producer).transactions.timeout_ms = 1
    time.sleep(0.01)


@pytest.mark.parametrize("decided", [False, True])
def test_a_decision_is_not_turned_when_the_timeout_has_passed(topics, decided):
    """A commit was interrupted, before its decision or after it, and comes again too late."""
    producer = ready(topics, transaction_timeout_ms=5000)
    producer.begin_transaction()
    producer.append("a", 0, [b"x"])
    entry = ProducerInternals(producer).transactions.entry
    if decided:
        with entry.lock:
            entry.commit(producer.producer_id, producer.producer_epoch, [])
    ProducerInternals(producer).transactions.move(ClientState.COMMITTING_TRANSACTION)
    make_late(producer)
    if decided:
        producer.commit_transaction()
        assert values_of(topics, "a") == [b"x"]
    else:
        with pytest.raises(ProducerFencedError, match="after its timeout"):
            producer.commit_transaction()
        assert values_of(topics, "a") == []
    assert entry.state == ("CompleteCommit" if decided else "CompleteAbort")


def test_an_abort_that_finds_no_room_when_the_timeout_has_passed(topics):
    producer = late_transaction(topics, "flushed")
    fill_up(parts_of(topics).files.state_log.partition_of(ID).log, 60)
    with full_disk(), pytest.raises(StoreFullError):
        producer.commit_transaction()
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values_of(topics, "a") == []


def test_a_transaction_that_takes_too_long_is_aborted_and_its_owner_told(open_store):
    store = open_store(transaction__abort__timed__out__transaction__cleanup__interval__ms=20)
    store.create_topic("a")
    producer = ready(store, transaction_timeout_ms=30)
    producer.begin_transaction()
    producer.send("a", value=b"late", partition=0)
    producer.flush()
    eventually(lambda: not store.partition("a", 0).open_transactions())
    with pytest.raises(ProducerFencedError, match="timeout"):
        producer.commit_transaction()
    producer.close()
    newer = ready(store)
    with newer.transaction():
        newer.send("a", value=b"in time", partition=0)
    assert values_of(store, "a") == [b"in time"]


# Group offsets.


def test_t06_copied_with_offsets_and_aborted_every_third_time(topics):
    with topics.producer() as plain:
        for number in range(500):
            plain.send("a", value=b"%d" % number, partition=0)
    source = TopicPartition("a", 0)
    producer = ready(topics)
    turn = 0
    with topics.consumer(group="copy") as consumer:
        consumer.assign([source])
        while records := consumer.poll(timeout=0, max_records=10):
            turn += 1
            producer.begin_transaction()
            for record in records:
                producer.send("b", value=record.value, partition=0)
            following = records[-1].offset + 1
            producer.send_offsets_to_transaction({source: following}, consumer.group_metadata())
            if turn % 3 == 0:
                producer.abort_transaction()
                back = committed(topics, "copy", source)
                consumer.seek(source, back.offset)
            else:
                producer.commit_transaction()
    assert turn > 60
    assert values_of(topics, "b") == [b"%d" % number for number in range(500)]
    assert committed(topics, "copy", source).offset == 500


def test_t22_a_copier_that_aborts_at_random(topics):
    noise = random.Random(20_261_121)
    with topics.producer() as plain:
        for number in range(600):
            plain.send("a", value=b"%d" % number, partition=number % 3)
    sources = [TopicPartition("a", number) for number in range(3)]
    producer = ready(topics)
    with topics.consumer(group="copy") as consumer:
        consumer.assign(sources)
        while records := consumer.poll(timeout=0, max_records=noise.randrange(1, 30)):
            producer.begin_transaction()
            for record in records:
                producer.send("b", value=record.value, partition=record.partition)
            positions = {where: consumer.position(where) for where in sources}
            producer.send_offsets_to_transaction(positions, "copy")
            if noise.random() < 0.5:
                producer.commit_transaction()
                continue
            producer.abort_transaction()
            for where in sources:
                found = committed(topics, "copy", where)
                consumer.seek(where, found.offset if found else 0)
    for number in range(3):
        assert values_of(topics, "b", number) == values_of(topics, "a", number)


def test_t07_metadata_is_committed_with_the_offset(topics):
    producer = ready(topics)
    where = TopicPartition("a", 1)
    with producer.transaction():
        producer.send_offsets_to_transaction(
            {where: eoslog.OffsetAndMetadata(42, "some metadata")}, "g"
        )
        assert committed(topics, "g", where) is None
    assert committed(topics, "g", where)[:2] == (42, "some metadata")
    with producer.transaction():
        producer.send_offsets_to_transaction({}, "g")
    assert committed(topics, "g", where).offset == 42


def test_g01_g02_offsets_become_visible_with_the_commit_only(topics):
    producer = ready(topics)
    where = TopicPartition("a", 0)
    producer.begin_transaction()
    producer.send_offsets_to_transaction({where: 100}, "g")
    producer.abort_transaction()
    assert committed(topics, "g", where) is None
    with producer.transaction():
        producer.send_offsets_to_transaction({where: 100}, "g")
        producer.send_offsets_to_transaction({where: 120}, "g")
    assert committed(topics, "g", where).offset == 120
    # A transaction of offsets alone raises the epoch like any other.
    assert producer.producer_epoch == 2


# Prepared transactions.


def test_c29_prepared_and_completed(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    prepared = producer.prepare_transaction()
    assert prepared == PreparedTransaction(ID, producer.producer_id, producer.producer_epoch)
    for call in ("send", "append", "begin", "offsets", "prepare", "init", "block"):
        with pytest.raises(IllegalStateError, match="prepared"):
            CALLS[call](producer)
    assert values_of(topics, "a") == []
    assert producer.complete_transaction(prepared.token) is True
    assert values_of(topics, "a") == [b"1"]
    with producer.transaction():
        producer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == [b"1", b"2"]


@pytest.mark.parametrize(
    "other", ["", "99:0", PreparedTransaction("other", 0, 0), PreparedTransaction(ID, 0, 31_000)]
)
def test_a_prepared_transaction_that_is_not_the_one_is_aborted(topics, other):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.prepare_transaction()
    assert producer.complete_transaction(other) is False
    assert values_of(topics, "a") == []
    assert all_values(topics, "a") == [b"1"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_prepared_transaction_outlives_its_store(open_store, commit):
    store = open_store()
    store.create_topic("a")
    producer = ready(store)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    prepared = producer.prepare_transaction()
    store.close()
    store = open_store()
    assert values_of(store, "a") == []
    newer = store.producer(transactional_id=ID)
    assert newer.init_transactions(keep_prepared=True) == prepared
    with pytest.raises(IllegalStateError, match="prepared"):
        newer.begin_transaction()
    newer.commit_transaction() if commit else newer.abort_transaction()
    with newer.transaction():
        newer.send("a", value=b"2", partition=0)
    assert values_of(store, "a") == ([b"1"] if commit else []) + [b"2"]


def test_an_initialization_aborts_what_was_prepared_unless_told_to_keep_it(open_store):
    store = open_store()
    store.create_topic("a")
    producer = ready(store)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.prepare_transaction()
    abandon(store)
    store = open_store()
    newer = store.producer(transactional_id=ID)
    assert newer.init_transactions() is None
    with newer.transaction():
        newer.send("a", value=b"2", partition=0)
    assert values_of(store, "a") == [b"2"]


def test_there_is_nothing_to_keep_where_nothing_was_prepared(topics):
    producer = topics.producer(transactional_id=ID)
    assert producer.init_transactions(keep_prepared=True) is None
    producer.begin_transaction()
    with pytest.raises(IllegalStateError, match="empty"):
        producer.prepare_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1"]


@pytest.mark.parametrize("given", [None, "", "7:0"])
def test_c30_nothing_is_prepared(topics, given):
    producer = ready(topics)
    with pytest.raises(errors.InvalidTxnStateError, match="no transaction is open"):
        producer.complete_transaction(given)
    producer.begin_transaction()
    producer.send("a", b"open", partition=0)
    with pytest.raises(errors.InvalidTxnStateError, match="a transaction is open"):
        producer.complete_transaction(given)
    producer.commit_transaction()
    with pytest.raises(errors.InvalidTxnStateError):
        producer.complete_transaction(given)
    with topics.producer(transactional_id="other") as other:
        with pytest.raises(errors.InvalidTxnStateError, match="init_transactions"):
            other.complete_transaction(given)
        assert other.init_transactions(keep_prepared=True) is None
        with pytest.raises(errors.InvalidTxnStateError):
            other.complete_transaction(given)
    assert values_of(topics, "a") == [b"open"]


@pytest.mark.parametrize("commit", [True, False])
def test_somebody_else_decides_while_the_producer_waits(topics, commit):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    prepared = producer.prepare_transaction()
    (topics.commit_prepared if commit else topics.abort_prepared)([prepared])
    assert values_of(topics, "a") == ([b"1"] if commit else [])
    # The same decision is found to be made; the other one can be made no more.
    other = producer.abort_transaction if commit else producer.commit_transaction
    with pytest.raises((errors.InvalidTxnStateError, ProducerFencedError)):
        other()
    producer.close()
    newer = ready(topics)
    with newer.transaction():
        newer.send("a", value=b"2", partition=0)
    assert values_of(topics, "a") == ([b"1"] if commit else []) + [b"2"]


def test_what_an_operator_terminates_is_told_to_its_owner(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.flush()
    topics.abort_transaction(ID)
    assert values_of(topics, "a") == []
    with pytest.raises(ProducerFencedError, match="terminated"):
        producer.commit_transaction()
    with pytest.raises(ProducerFencedError, match="terminated"):
        producer.begin_transaction()


# Life: closing, opening again, deleted topics, forks, threads.


def test_closing_aborts_what_is_open(topics):
    with ready(topics) as producer:
        producer.begin_transaction()
        producer.send("a", value=b"1", partition=0)
        producer.flush()
    assert topics.partition("a", 0).open_transactions() == []
    assert values_of(topics, "a") == []
    producer.close()
    for call in CALLS.values():
        with pytest.raises(errors.LogClosedError, match="the producer is closed"):
            call(producer)


@pytest.mark.parametrize("ending", ["commit_transaction", "abort_transaction"])
def test_a_block_whose_transaction_was_ended_in_it_ends_whoever_closes(topics, ending):
    producer = ready(topics)
    with producer.transaction():
        producer.append("a", 0, [b"1"])
        getattr(producer, ending)()
        producer.close()
    assert values_of(topics, "a") == ([b"1"] if ending == "commit_transaction" else [])


def test_a_block_that_prepared_its_transaction_ends_whoever_closes(topics):
    producer = ready(topics)
    with producer.transaction():
        producer.append("a", 0, [b"1"])
        prepared = producer.prepare_transaction()
        producer.close()
    topics.commit_prepared([prepared])
    assert values_of(topics, "a") == [b"1"]


@pytest.mark.parametrize("again", [False, True])
def test_a_block_whose_transaction_a_close_aborted_does_not_end_as_if_it_had_not(topics, again):
    producer = ready(topics)
    with (
        pytest.raises(errors.LogClosedError, match="the producer is closed"),
        producer.transaction(),
    ):
        producer.append("a", 0, [b"1"])
        if again:
            producer.commit_transaction()
            producer.begin_transaction()
            producer.append("a", 0, [b"2"])
        producer.close()
    assert values_of(topics, "a") == ([b"1"] if again else [])


def test_the_store_closes_its_producers(open_store):
    store = open_store()
    store.create_topic("a")
    producer = ready(store)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.flush()
    store.close()
    with pytest.raises(errors.LogClosedError):
        producer.commit_transaction()
    store = open_store()
    assert values_of(store, "a") == []
    assert store.partition("a", 0).open_transactions() == []


@pytest.mark.parametrize("durability", ["process", "commit", "always"])
@pytest.mark.parametrize("clean", [True, False])
def test_an_id_goes_on_after_opening_the_store_again(open_store, durability, clean):
    expected = []
    before = (-1, -1)
    for turn in range(4):
        store = open_store(durability)
        if turn == 0:
            store.create_topic("a", partitions=2)
        producer = ready(store)
        assert (producer.producer_id, producer.producer_epoch) > before
        with producer.transaction():
            producer.send("a", value=b"%d" % turn, partition=0)
            producer.append("a", 1, [b"%d" % turn])
        expected.append(b"%d" % turn)
        producer.begin_transaction()
        producer.send("a", value=b"never", partition=0)
        producer.append("a", 1, [b"never"])
        producer.flush()
        before = (producer.producer_id, producer.producer_epoch)
        store.close() if clean else abandon(store)
    store = open_store(durability)
    for partition in range(2):
        assert values_of(store, "a", partition) == expected
        assert store.partition("a", partition).open_transactions() == []
    assert store.verify() == []


def test_a_deleted_topic_takes_its_records_and_leaves_the_rest(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.append("b", 0, [b"2"])
    producer.flush()
    topics.delete_topic("a")
    producer.commit_transaction()
    assert values_of(topics, "b") == [b"2"]
    with producer.transaction():
        producer.send("b", value=b"3", partition=0)
    assert values_of(topics, "b") == [b"2", b"3"]


@pytest.mark.parametrize("anew", [False, True])
def test_a_deleted_topic_is_left_out_of_what_is_prepared(topics, anew):
    producer = ready(topics)
    producer.begin_transaction()
    producer.append("a", 0, [b"1"])
    producer.append("b", 0, [b"2"])
    topics.delete_topic("a")
    if anew:
        topics.create_topic("a")
    assert producer.complete_transaction(producer.prepare_transaction())
    assert values_of(topics, "b") == [b"2"]
    if anew:
        assert values_of(topics, "a") == []


def test_a_deleted_topic_with_gathered_records_makes_the_transaction_abortable(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.append("b", 0, [b"2"])
    topics.delete_topic("a")
    with pytest.raises(TransactionAbortableError, match="deleted with 1 records"):
        producer.commit_transaction()
    producer.abort_transaction()
    topics.create_topic("a")
    with producer.transaction():
        producer.send("a", value=b"3", partition=0)
    assert values_of(topics, "a") == [b"3"]
    assert values_of(topics, "b") == []


def test_an_abort_index_without_room_is_a_full_disk(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)
    producer.flush()
    producer.abort_transaction()
    partition = engine_of(topics).partition("a", 0)
    with full_disk(), pytest.raises(StoreFullError, match="abort index"):
        partition.producer_state.store_abort_files()
    partition.producer_state.store_abort_files()
    assert not partition.failed


def test_a_forked_child_is_refused(topics):
    producer = ready(topics)
    producer.begin_transaction()
    producer.send("a", value=b"1", partition=0)

    def child() -> None:
        for call in CALLS.values():
            with pytest.raises(errors.ForkedProcessError):
                call(producer)

    in_child(child)
    producer.commit_transaction()
    assert values_of(topics, "a") == [b"1"]


def test_threads_share_a_transaction(topics):
    producer = ready(topics, config={"batch.size": 500})
    go = threading.Barrier(4)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        go.wait()
        try:
            for number in range(2000):
                producer.send("a", value=b"%d:%d" % (thread, number), partition=thread % 3)
        except BaseException as error:
            failures.append(error)

    for turn in range(2):
        producer.begin_transaction()
        threads = [threading.Thread(target=work, args=(one,)) for one in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.commit_transaction() if turn == 1 else producer.abort_transaction()
    assert failures == []
    found = [value for partition in range(3) for value in values_of(topics, "a", partition)]
    assert sorted(found) == sorted(b"%d:%d" % (t, n) for t in range(4) for n in range(2000))
    for thread in range(4):
        own = [value for value in found if value.startswith(b"%d:" % thread)]
        assert own == [b"%d:%d" % (thread, number) for number in range(2000)]


def test_threads_with_an_id_each_commit_at_the_same_time(topics):
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            producer = ready(topics, f"id-{number}")
            for turn in range(300):
                block = producer.transaction()
                with suppress(ZeroDivisionError), block:
                    producer.send("a", value=b"%d:%d" % (number, turn), partition=0)
                    producer.send("b", value=b"%d:%d" % (number, turn), partition=number % 3)
                    _ = 1 / (turn % 5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    expected = [[b"%d:%d" % (n, turn) for turn in range(300) if turn % 5] for n in range(4)]
    everything = values_of(topics, "a")
    for number in range(4):
        own = [value for value in everything if value.startswith(b"%d:" % number)]
        assert own == expected[number]
    assert len(everything) == 4 * 240
    assert topics.verify() == []


def test_two_threads_that_take_the_same_id_leave_one_owner(topics):
    outcomes: list[str] = []

    def work() -> None:
        producer = topics.producer(transactional_id=ID)
        try:
            producer.init_transactions()
            for _ in range(20):
                with producer.transaction():
                    producer.send("a", value=b"x", partition=0)
            outcomes.append("done")
        except ProducerFencedError:
            outcomes.append("fenced")

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 6
    assert outcomes.count("done") >= 1
    assert topics.partition("a", 0).open_transactions() == []
    assert len(values_of(topics, "a")) >= 20


def test_a_zombie_in_the_middle_of_its_work_commits_whole_transactions_or_nothing(topics):
    """One thread after the other takes the id over while its predecessor is at full speed."""
    acknowledged: set[bytes] = set()
    failures: list[BaseException] = []

    def work(owner: int) -> None:
        try:
            producer = ready(topics)
            for turn in range(10_000):
                name = b"%d:%d" % (owner, turn)
                with producer.transaction():
                    for partition in range(3):
                        producer.send("a", value=name, partition=partition)
                    producer.append("b", 0, [name])
                acknowledged.add(name)
        except ProducerFencedError:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(owner,)) for owner in range(8)]
    for thread in threads:
        thread.start()
        time.sleep(0.03)
    last = ready(topics)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []
    with last.transaction():
        last.append("b", 0, [b"last"])
    found = [values_of(topics, "a", partition) for partition in range(3)]
    assert found[0] == found[1] == found[2]
    assert [*found[0], b"last"] == values_of(topics, "b")
    assert len(set(found[0])) == len(found[0])
    # A commit may be decided, and its owner fenced before it heard of it.
    assert acknowledged <= set(found[0])
    assert len(found[0]) - len(acknowledged) <= 8
    assert topics.verify() == []


def test_the_store_is_closed_under_working_threads(open_store):
    store = open_store()
    store.create_topic("a", partitions=3)
    acknowledged: list[bytes] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            producer = ready(store, f"id-{number}")
            for turn in range(100_000):
                name = b"%d:%d" % (number, turn)
                with producer.transaction():
                    for partition in range(3):
                        producer.send("a", value=name, partition=partition)
                acknowledged.append(name)
        except errors.LogClosedError:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    store.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []
    store = open_store()
    found = [set(values_of(store, "a", partition)) for partition in range(3)]
    assert found[0] == found[1] == found[2] >= set(acknowledged)
    assert len(found[0]) - len(acknowledged) <= 3
    assert store.verify() == []


@pytest.mark.parametrize("how", ["send", "append"])
def test_a_topic_that_is_made_again_in_a_transaction_is_named(topics, how):
    producer = ready(topics)
    producer.begin_transaction()
    producer.append("a", 0, [b"gone"])
    topics.delete_topic("a")
    topics.create_topic("a")
    with pytest.raises(UnknownTopicOrPartitionError, match="'a' was deleted in the transaction"):
        if how == "append":
            producer.append("a", 0, [b"late"])
        producer.send("a", b"late", partition=0)
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("a", b"kept", partition=0)
    assert values_of(topics, "a") == [b"kept"]


def test_topics_are_deleted_under_working_threads(topics):
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        producer = ready(topics, f"id-{number}")
        turn = 0
        while not stop.is_set():
            turn += 1
            try:
                with producer.transaction():
                    producer.send("a", value=b"%d:%d" % (number, turn), partition=0)
                    producer.send("passing", value=b"x", partition=0)
                    if turn % 3 == 0:
                        producer.flush()
            except (errors.UnknownTopicOrPartitionError, TransactionAbortableError):
                continue
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=work, args=(one,)) for one in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(7):
        topics.create_topic("passing")
        time.sleep(0.01)
        # The last time it stays until a transaction with it is through.
        if turn == 6:
            eventually(lambda: failures or values_of(topics, "a"))
        topics.delete_topic("passing")
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert failures == []
    values = values_of(topics, "a")
    assert len(values) == len(set(values)) > 0
    assert topics.partition("a", 0).open_transactions() == []


def test_producers_that_were_put_out_of_memory_go_on(open_store):
    store = open_store(eoslog__producers__cached__max=1)
    store.create_topic("a", partitions=2)
    producers = [ready(store, f"id-{number}") for number in range(4)]

    def forget() -> None:
        for partition in parts_of(store).files.partitions.opened():
            partition.producer_state.persist()

    for turn in range(3):
        for producer in producers:
            producer.begin_transaction()
            producer.send("a", value=b"%d" % turn, partition=0)
            producer.append("a", 1, [b"%d" % turn])
        forget()
        for producer in producers:
            producer.send("a", value=b"%d" % turn, partition=0)
            producer.append("a", 1, [b"%d" % turn])
            forget()
            producer.flush()
            forget()
        for number, producer in enumerate(producers):
            producer.commit_transaction() if number % 2 else producer.abort_transaction()
            forget()
    for partition in range(2):
        assert values_of(store, "a", partition) == [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4
    assert store.verify() == []


def test_a_waiting_reader_is_woken_by_the_commit(topics):
    producer = ready(topics)
    seen: list[bytes | None] = []
    waits = threading.Event()

    def read() -> None:
        with topics.consumer() as consumer:
            consumer.assign([TopicPartition("a", 0)])
            waits.set()
            seen.extend(record.value for record in consumer.poll(timeout=60))

    reader = threading.Thread(target=read)
    reader.start()
    waits.wait()
    time.sleep(0.05)
    started_s = time.monotonic()
    with producer.transaction():
        producer.send("a", value=b"1", partition=0)
    reader.join()
    assert seen == [b"1"]
    assert time.monotonic() - started_s < 20


def listen(*partitions) -> list[TopicPartition]:
    """The partitions that tell the checkpointer of a change from now on."""
    heard: list[TopicPartition] = []
    for partition in partitions:
        partition.watch_changes(lambda one: heard.append(one.topic_partition))
    return heard


@pytest.mark.parametrize(
    "use",
    [lambda p: p.send("a", value=b"1", partition=0), lambda p: p.append("a", 0, [b"2"])],
)
def test_the_checkpointer_hears_of_what_a_transaction_changed(topics, use):
    producer = ready(topics)
    changing = (
        parts_of(topics).files.state_log.partition_of(ID),
        engine_of(topics).partition("a", 0),
    )
    names = sorted(one.topic_partition for one in changing)
    parts_of(topics).checkpointer.stop()  # It would listen again itself.
    producer.begin_transaction()
    use(producer)
    producer.flush()
    # The markers come after the checkpointer heard of the batches.
    heard = listen(*changing)
    producer.commit_transaction()
    assert sorted(heard) == names
    heard = listen(*changing)
    producer.begin_transaction()
    use(producer)
    producer.commit_transaction()
    assert sorted(heard) == names


# C26: settings.


@pytest.mark.parametrize(
    "config",
    [
        {"enable.idempotence": False},
        {"acks": "1"},
        {"max.in.flight.requests.per.connection": 6},
        {"linger.ms": 5},
        {"transaction.timeout.ms": 0},
        {"transaction.timeout.ms": "soon"},
        {"nonsense": 1},
    ],
)
def test_c26_settings_that_transactions_cannot_have(topics, config):
    with pytest.raises(errors.InvalidConfigError):
        topics.producer(transactional_id=ID, config=config)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"transactional_id": ID, "name": "n"}, ValueError),
        ({"transactional_id": 5}, TypeError),
        ({"transactional_id": ""}, ValueError),
        ({"transactional_id": "x" * 40_000}, ValueError),
        ({"transactional_id": "\ud800"}, ValueError),
        ({"transactional_id": ID, "transaction_timeout_ms": 0}, ValueError),
        ({"transactional_id": ID, "transaction_timeout_ms": 900_001}, ValueError),
        ({"transactional_id": ID, "transaction_timeout_ms": "1"}, TypeError),
        ({"transactional_id": ID, "transaction_timeout_ms": 1.5}, TypeError),
    ],
)
def test_impossible_producers(topics, arguments, kind):
    with pytest.raises(kind):
        topics.producer(**arguments).init_transactions()
    with ready(topics) as producer, producer.transaction():
        producer.send("a", value=b"1", partition=0)
    assert values_of(topics, "a") == [b"1"]


def test_kafkas_own_names_of_the_settings(topics):
    config = {
        "transactional.id": ID,
        "transaction.timeout.ms": "1234",
        "enable.idempotence": "true",
        "acks": "all",
        "batch.size": 1000,
    }
    with topics.producer(config=config) as producer:
        assert producer.transactional_id == ID
        producer.init_transactions()
        assert topics.describe_transaction(ID).transaction_timeout_ms == 1234
    assert config["transactional.id"] == ID


def test_what_it_says_of_itself(topics):
    producer = topics.producer(transactional_id=ID)
    assert repr(producer) == (
        "<eoslog.TransactionalProducer 'mover', uninitialized, producer id -1, epoch -1>"
    )
    assert producer.name is None
    producer.init_transactions()
    producer.begin_transaction()
    assert "in_transaction" in repr(producer)
    producer.close()
    assert "closed" in repr(producer)
