"""The helper for the read-process-write loop: what it commits, when it ends, who may run it."""

from __future__ import annotations

import threading
import time

import pytest
from harness.waiting import eventually
from stores import values_of

import eoslog
from eoslog import (
    Consumer,
    Producer,
    Record,
    Store,
    TopicPartition,
    TransactionalProducer,
    errors,
    read_process_write,
)
from eoslog.producer.producer import ProducerInternals
from eoslog.store.process_loop import next_offsets
from eoslog.store.store import parts_of

GROUP = "upper"


@pytest.fixture
def topics(store: Store) -> Store:
    """A store with "in", which holds some records, and "out", of two partitions each."""
    store.create_topic("in", partitions=2)
    store.create_topic("out", partitions=2)
    fill(store, range(20))
    return store


def fill(store: Store, numbers: range) -> None:
    with store.producer() as producer:
        for number in numbers:
            producer.send("in", value=b"v%d" % number, partition=number % 2)


def upper(producer: Producer, records: list[Record]) -> None:
    for record in records:
        producer.send("out", value=(record.value or b"").upper(), partition=record.partition)


def caught_up(store: Store, **changes) -> int:
    settings = {"topics": ["in"], "group": GROUP, "until_caught_up": True, "poll_timeout_s": 0.0}
    process = changes.pop("process", upper)
    return read_process_write(store, process, **settings | changes)


def expected(numbers: range, partition: int) -> list[bytes]:
    return [b"V%d" % number for number in numbers if number % 2 == partition]


def check(store: Store, numbers: range) -> None:
    for partition in range(2):
        assert values_of(store, "out", partition) == expected(numbers, partition)


@pytest.mark.parametrize("max_records", [1, 3, 500])
def test_every_record_is_processed_once_over_several_runs(topics, max_records):
    assert caught_up(topics, max_records=max_records) == 20
    assert caught_up(topics, max_records=max_records) == 0
    fill(topics, range(20, 25))
    assert caught_up(topics, max_records=max_records) == 5
    check(topics, range(25))
    offsets = {where.partition: one.offset for where, one in topics.groups()[GROUP].items()}
    assert offsets == {0: 13, 1: 12}


def loop_that_has_sent_offsets(topics: Store) -> TransactionalProducer:
    """The producer of another loop of the group, in a transaction."""
    other = topics.producer(transactional_id="another loop")
    other.init_transactions()
    other.begin_transaction()
    where = {TopicPartition("in", 0): 10, TopicPartition("in", 1): 10}
    other.send_offsets_to_transaction(where, GROUP)
    return other


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_a_loop_is_not_caught_up_while_a_transaction_holds_its_offsets(topics, commits, share):
    other = loop_that_has_sent_offsets(topics)
    counts = []
    settings = {"share": share, "poll_timeout_s": 0.02}
    loop = threading.Thread(target=lambda: counts.append(caught_up(topics, **settings)))
    loop.start()
    loop.join(0.5)
    assert loop.is_alive()
    if commits:
        other.commit_transaction()
    else:
        other.abort_transaction()
    loop.join(60)
    assert counts == [0 if commits else 20]


@pytest.mark.parametrize("share", [True, False])
def test_a_decision_after_a_poll_without_records_ends_no_loop(topics, monkeypatch, share):
    other = loop_that_has_sent_offsets(topics)
    poll = Consumer.poll
    decided = []

    def decided_after_it(consumer, *arguments, **named):
        records = poll(consumer, *arguments, **named)
        if consumer.assignment() and not decided:
            decided.append(records)
            other.abort_transaction()
        return records

    monkeypatch.setattr(Consumer, "poll", decided_after_it)
    assert caught_up(topics, share=share) == 20
    assert decided == [[]]


def test_an_exception_ends_the_loop_and_the_records_come_again(topics):
    calls = []

    def fails_once(producer: Producer, records: list[Record]) -> None:
        upper(producer, records)
        producer.flush()
        calls.append(len(records))
        if len(calls) == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        caught_up(topics, process=fails_once, max_records=5)
    assert sum(len(values_of(topics, "out", partition)) for partition in range(2)) == 10
    assert caught_up(topics, process=fails_once, max_records=5) == 10
    check(topics, range(20))


@pytest.mark.parametrize("share", [True, False])
def test_a_loop_without_topics_is_refused_before_it_fences_another(topics, share):
    with pytest.raises(errors.InvalidRequestError, match="topics is empty"):
        caught_up(topics, topics=[], share=share)
    assert topics.transactions() == []


def test_output_and_offsets_appear_together(topics):
    def looks(producer: Producer, records: list[Record]) -> None:
        upper(producer, records)
        producer.flush()
        done = topics.groups().get(GROUP, {})
        count = sum(len(values_of(topics, "out", partition)) for partition in range(2))
        assert count == sum(one.offset for one in done.values())

    assert caught_up(topics, process=looks, max_records=3) == 20
    check(topics, range(20))


def test_records_without_output_are_done_too(topics):
    assert caught_up(topics, process=lambda producer, records: None) == 20
    assert caught_up(topics) == 0
    check(topics, range(0))


def test_single_partitions_with_an_id_each(topics):
    for partition in range(2):
        count = caught_up(
            topics,
            topics=[TopicPartition("in", partition)],
            transactional_id=f"{GROUP}-{partition}",
        )
        assert count == 10
    check(topics, range(20))


def test_only_committed_records_are_read(topics):
    producer = topics.producer(transactional_id="writer")
    producer.init_transactions()
    for commit in (False, True):
        producer.begin_transaction()
        producer.append("in", 0, [b"v%d" % (20 if commit else 99)])
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer.begin_transaction()
    producer.append("in", 1, [b"undecided"])
    assert caught_up(topics) == 21
    check(topics, range(21))
    producer.abort_transaction()
    assert caught_up(topics) == 0


def test_a_newer_loop_of_the_group_takes_over(topics):
    started, go_on = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def slow(producer: Producer, records: list[Record]) -> None:
        upper(producer, records)
        producer.flush()
        started.set()
        go_on.wait(60)

    def older() -> None:
        try:
            caught_up(topics, process=slow)
        except errors.ProducerFencedError as error:
            ended.append(error)

    thread = threading.Thread(target=older)
    thread.start()
    assert started.wait(60)
    assert caught_up(topics) == 20
    go_on.set()
    thread.join(60)
    assert len(ended) == 1
    check(topics, range(20))


def test_it_waits_for_records_and_stops_when_asked(topics):
    stop = threading.Event()
    counts: list[int] = []

    def run() -> None:
        counts.append(
            read_process_write(
                topics, upper, topics=["in"], group=GROUP, stop=stop.is_set, poll_timeout_s=0.05
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    fill(topics, range(20, 30))
    eventually(
        lambda: not (sum(len(values_of(topics, "out", partition)) for partition in range(2)) < 30)
    )
    stop.set()
    thread.join(60)
    assert counts == [30]
    check(topics, range(30))


def test_wrong_arguments_leave_nothing_behind(topics):
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        caught_up(topics, topics=["none"])
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        caught_up(topics, topics=[TopicPartition("in", 2)])
    with pytest.raises(TypeError, match="a list"):
        caught_up(topics, topics="in")
    with pytest.raises(TypeError, match="a list"):
        caught_up(topics, topics=TopicPartition("in", 0))
    with pytest.raises(errors.InvalidRequestError):
        caught_up(topics, group="")
    assert topics.groups() == {}
    check(topics, range(0))


def test_next_offsets_are_behind_what_was_polled(topics):
    with topics.consumer(group=GROUP) as consumer:
        consumer.assign([TopicPartition("in", 0), TopicPartition("in", 1)])
        records = consumer.poll(timeout=0, max_records=3)
        assert next_offsets(consumer, records) == {TopicPartition("in", 0): 3}
        assert next_offsets(consumer, []) == {}


def test_it_goes_on_after_the_store_was_opened_again(open_store):
    store = open_store("commit")
    store.create_topic("in", partitions=2)
    store.create_topic("out", partitions=2)
    fill(store, range(10))
    assert caught_up(store, max_records=4) == 10
    fill(store, range(10, 20))
    store.close()
    store = open_store("commit")
    assert caught_up(store) == 10
    check(store, range(20))
    assert eoslog.read_process_write is read_process_write


# Loops that share their topics.


def test_a_loop_that_shares_is_a_member_while_it_runs(topics):
    seen = []

    def process(producer, records):
        seen.append(topics.describe_group(GROUP).members)
        upper(producer, records)

    assert caught_up(topics, process=process, share=True) == 20
    ((member,), *_) = seen
    assert len(member.partitions) == 2
    assert topics.describe_group(GROUP).members == ()
    check(topics, range(20))
    assert caught_up(topics, share=True) == 0
    # A loop by itself goes on where they were.
    fill(topics, range(20, 24))
    assert caught_up(topics) == 4
    check(topics, range(24))


def test_loops_that_share_do_everything_once(topics):
    stopped = threading.Event()
    counts, errors_met = [], []

    def loop():
        try:
            counts.append(
                read_process_write(
                    topics,
                    upper,
                    topics=["in"],
                    group=GROUP,
                    share=True,
                    max_records=2,
                    poll_timeout_s=0.05,
                    stop=stopped.is_set,
                )
            )
        except Exception as error:
            errors_met.append(error)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for first in range(20, 200, 20):
        fill(topics, range(first, first + 20))
        time.sleep(0.02)
    deadline_s = time.monotonic() + 60
    where = [TopicPartition("in", number) for number in range(2)]
    while time.monotonic() < deadline_s:
        offsets = topics.groups().get(GROUP, {})
        if sum(offsets[one].offset for one in where if one in offsets) == 200:
            break
        time.sleep(0.01)
    stopped.set()
    for thread in threads:
        thread.join(60)
    assert errors_met == []
    assert sum(counts) == 200
    check(topics, range(200))


def test_what_a_slow_loop_did_is_undone_and_done_by_another(topics):
    calls = []

    def slow(producer, records):
        upper(producer, records)
        calls.append(len(records))
        if len(calls) == 1:
            # It does not poll for too long: another has taken its partitions by now.
            (member,) = topics.describe_group(GROUP).members
            parts_of(topics).files.group_members.leave(GROUP, member.member_id)
            assert caught_up(topics, share=True) == 20

    assert caught_up(topics, process=slow, share=True) == 0
    check(topics, range(20))


@pytest.mark.parametrize("share", [True, False])
def test_a_lost_membership_of_another_consumer_ends_the_loop(topics, share):
    def fails(producer, records):
        upper(producer, records)
        raise errors.UnknownMemberIdError("the group of the handler's own consumer")

    with pytest.raises(errors.UnknownMemberIdError, match="own consumer"):
        caught_up(topics, process=fails, share=share)
    check(topics, range(0))
    assert caught_up(topics) == 20
    check(topics, range(20))


@pytest.mark.parametrize("end", ["commit", "abort", "prepare", "block", "close"])
def test_only_the_loop_ends_its_transactions(topics, end):
    def ends(producer, records):
        upper(producer, records)
        if end == "block":
            with producer.transaction():
                pytest.fail("it was begun")
        elif end == "close":
            producer.close()
        else:
            getattr(producer, f"{end}_transaction")()
            producer.begin_transaction()

    named = {"block": "a transaction is open", "close": "closed"}
    kind = errors.LogClosedError if end == "close" else errors.IllegalStateError
    for _ in range(2):
        with pytest.raises(kind, match=named.get(end, "return from process to commit")):
            caught_up(topics, process=ends)
    check(topics, range(0))
    assert caught_up(topics) == 20
    check(topics, range(20))


def test_a_call_longer_than_the_transaction_may_take_ends_the_loop_and_names_the_limit(topics):
    def slow(producer, records):
        upper(producer, records)
        while ProducerInternals(producer).transactions.late_age_ms < 0:
            time.sleep(0.001)

    with pytest.raises(errors.ProducerFencedError, match=r"timeout of 20 ms.*timeout_ms"):
        caught_up(topics, process=slow, transaction_timeout_ms=20)
    check(topics, range(0))
    assert caught_up(topics) == 20
    check(topics, range(20))


def test_what_is_shared_are_whole_topics(topics):
    with pytest.raises(TypeError, match="names, not partitions"):
        caught_up(topics, topics=[TopicPartition("in", 0)], share=True)
    with pytest.raises(errors.UnknownTopicOrPartitionError, match="'none'"):
        caught_up(topics, topics=["none"], share=True)
    with pytest.raises(TypeError, match="a list"):
        caught_up(topics, topics="in", share=True)


def ends_of_loop(store: Store, change, **changes) -> tuple[list[object], float]:
    """How a loop that shares "in" and "more" ends after a change that is made while it waits, and
    how long that took.
    """
    ends: list[object] = []
    stop = threading.Event()
    settings = {"topics": ["in", "more"], "until_caught_up": False, "poll_timeout_s": 300.0}

    def run() -> None:
        try:
            ends.append(caught_up(store, share=True, stop=stop.is_set, **settings | changes))
        except errors.EoslogError as error:
            ends.append(error)

    loop = threading.Thread(target=run)
    loop.start()
    wait_for_offsets(store, 20)
    change()
    changed_s = time.monotonic()
    loop.join(30)
    stop.set()
    assert not loop.is_alive()
    return ends, time.monotonic() - changed_s


def wait_for_offsets(store: Store, total: int) -> None:
    eventually(
        lambda: not (sum(one.offset for one in store.groups().get(GROUP, {}).values()) < total)
    )


@pytest.mark.parametrize("deleted", [["more"], ["in"], ["in", "more"]])
def test_a_loop_that_shares_ends_where_a_topic_is_deleted(topics, deleted):
    topics.create_topic("more")

    def delete() -> None:
        for name in deleted:
            topics.delete_topic(name)

    ((error,), took_s) = ends_of_loop(topics, delete)
    assert isinstance(error, errors.UnknownTopicOrPartitionError)
    assert took_s < 10
    check(topics, range(20))
    assert topics.describe_group(GROUP).members == ()


def test_a_loop_that_shares_ends_where_a_topic_is_made_anew(topics):
    topics.create_topic("more")

    def make_anew() -> None:
        topics.delete_topic("in")
        topics.create_topic("in", partitions=2)
        fill(topics, range(20, 30))

    ((error,), _) = ends_of_loop(topics, make_anew)
    assert isinstance(error, errors.UnknownTopicOrPartitionError)
    assert caught_up(topics, topics=["in", "more"], share=True) == 10
    check(topics, range(30))


def test_a_loop_that_shares_and_always_has_something_to_do_ends_too(topics):
    topics.create_topic("more")
    calls = []

    def process(producer: Producer, records: list[Record]) -> None:
        calls.append(len(records))
        if len(calls) == 2:
            topics.delete_topic("more")

    with pytest.raises(errors.UnknownTopicOrPartitionError, match="'more' was deleted"):
        caught_up(topics, topics=["in", "more"], process=process, share=True, max_records=2)
    assert len(calls) == 2
