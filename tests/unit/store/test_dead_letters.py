"""Records of a loop that fail: tried again one by one, then moved to the dead-letter topic."""

from __future__ import annotations

import logging

import pytest
from harness.fork import Kill, dies_in_child
from stores import values_of

import eoslog
from eoslog import Producer, Record, Store, TopicPartition, errors, read_process_write
from eoslog.producer.producer import Producer as ProducerClass
from eoslog.store.process_loop import PolledWork

GROUP = "g"
DEAD = "dead"


@pytest.fixture
def topics(store: Store) -> Store:
    make_topics(store)
    return store


def make_topics(store: Store) -> None:
    """ "in" with 10 records in each of two partitions, of which two cannot be processed."""
    store.create_topic("in", partitions=2)
    store.create_topic("out", partitions=2)
    store.create_topic(DEAD)
    with store.producer() as producer:
        for number in range(20):
            producer.send("in", b"%d" % number, b"k", number % 2, [("h", b"x")], 1000 + number)


BAD = (b"4", b"17")
GOOD = [
    [b"%d" % number for number in range(start, 20, 2) if b"%d" % number not in BAD]
    for start in (0, 1)
]


class Process:
    """Copies values; raises at the bad ones, so often."""

    def __init__(self, bad: tuple[bytes, ...] = BAD, times: int = 10**9) -> None:
        self.left = dict.fromkeys(bad, times)
        self.calls: list[list[bytes | None]] = []

    def __call__(self, producer: Producer, records: list[Record]) -> None:
        self.calls.append([record.value for record in records])
        for record in records:
            producer.send("out", record.value, partition=record.partition)
        producer.flush()
        for record in records:
            if self.left.get(record.value or b"", 0) > 0:
                self.left[record.value or b""] -= 1
                raise ZeroDivisionError(f"cannot do {record.value!r}")

    def alone(self, value: bytes) -> int:
        return self.calls.count([value])


def run(store: Store, process, **changes) -> int:
    settings = {"topics": ["in"], "group": GROUP, "until_caught_up": True, "poll_timeout_s": 0.0}
    return read_process_write(store, process, **settings | changes)


def dead_of(store: Store) -> list[Record]:
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(DEAD, 0)])
        return consumer.poll(timeout=0)


def check_all_done(store: Store) -> None:
    assert [values_of(store, "out", number) for number in range(2)] == GOOD
    assert sorted(record.value or b"" for record in dead_of(store)) == sorted(BAD)
    offsets = {where.partition: one.offset for where, one in store.groups()[GROUP].items()}
    assert offsets == {0: 10, 1: 10}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("max_records", [1, 3, 500])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_what_fails_each_time_goes_to_the_topic_and_the_rest_is_done(
    topics, max_attempts, max_records, share
):
    process = Process()
    settings = {"max_records": max_records, "max_attempts": max_attempts, "share": share}
    assert run(topics, process, dead_letter=DEAD, **settings) == 20
    check_all_done(topics)
    assert [process.alone(value) for value in BAD] == [max_attempts] * 2
    assert run(topics, process, dead_letter=DEAD, **settings) == 0


def test_a_dead_letter_is_the_record_with_its_error_under_kafkas_names(topics):
    run(topics, Process((b"17",)), dead_letter=DEAD)
    (record,) = dead_of(topics)
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"17", 1017)
    assert record.headers[0] == ("h", b"x")
    found = dict(record.headers[1:])
    # Of Connect's DeadLetterQueueReporter, and of ExceptionHandlerUtils of Streams.
    connect, streams = "__connect.errors.", "__streams.errors."
    for names, value in {
        (connect + "topic", streams + "topic"): b"in",
        (connect + "partition", streams + "partition"): b"1",
        (connect + "offset", streams + "offset"): b"8",
        (connect + "exception.class.name", streams + "exception"): b"builtins.ZeroDivisionError",
        (connect + "exception.message", streams + "message"): b"cannot do b'17'",
    }.items():
        assert [found.pop(name) for name in names] == [value] * 2
    trace, same = found.pop(connect + "exception.stacktrace"), found.pop(streams + "stacktrace")
    assert trace == same
    assert b"raise ZeroDivisionError" in trace
    assert trace.endswith(b"ZeroDivisionError: cannot do b'17'\n")
    assert found == {}


def test_a_record_that_succeeds_at_last_is_no_dead_letter(topics, caplog):
    process = Process((b"4",), times=3)  # Once with the others, and twice alone.
    with caplog.at_level(logging.WARNING, "eoslog"):
        assert run(topics, process, max_attempts=3, dead_letter=DEAD) == 20
    assert dead_of(topics) == []
    assert values_of(topics, "out", 0) == [b"%d" % number for number in range(0, 20, 2)]
    assert "20 records are tried again, one by one: ZeroDivisionError" in caplog.text
    assert "in-0, offset 2: attempt 2 failed" in caplog.text


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_without_a_topic_the_error_ends_the_loop_after_the_attempts(topics, max_attempts):
    process = Process((b"4",))
    with pytest.raises(ZeroDivisionError):
        run(topics, process, max_attempts=max_attempts)
    # With one attempt nothing is taken apart, as ever.
    assert process.alone(b"4") == (0 if max_attempts == 1 else 2)
    assert run(topics, Process(()), max_attempts=2) == (20 if max_attempts == 1 else 18)
    assert values_of(topics, "out", 0) == [b"%d" % number for number in range(0, 20, 2)]


@pytest.mark.parametrize(
    "error",
    [
        errors.StoreFullError("full"),
        errors.UnknownMemberIdError("of another group"),
        errors.IllegalStateError("a wrong call"),
        errors.UnknownTopicOrPartitionError("no topic 'outt'"),
        errors.ConcurrentTransactionsError("a transaction before is not complete"),
        errors.FencedInstanceIdError("of a consumer of the handler"),
        errors.OutOfOrderSequenceError("a batch is missing"),
        errors.TransactionAbortableError("for a reason that is not known"),
        MemoryError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_fault_of_a_record_ends_the_loop_at_once(topics, error):
    calls = []

    def fails(producer, records):
        calls.append(len(records))
        raise error

    with pytest.raises(type(error)):
        run(topics, fails, max_attempts=9, dead_letter=DEAD)
    assert calls == [20]
    assert dead_of(topics) == []
    assert GROUP not in topics.groups()


@pytest.mark.parametrize("cause", [errors.StoreFullError("full"), KeyError("seven")])
def test_what_caused_an_error_decides_whose_it_is(topics, cause):
    def fails(producer, records):
        raise ValueError("cannot look it up") from cause

    settings = {"dead_letter": DEAD, "max_records": 20}
    if isinstance(cause, KeyError):
        assert run(topics, fails, **settings) == 20
    else:
        with pytest.raises(ValueError, match="look it up"):
            run(topics, fails, **settings)
    assert len(dead_of(topics)) == (20 if isinstance(cause, KeyError) else 0)


@pytest.mark.parametrize("answer", [iter([1]), lambda: None])
def test_work_that_is_not_done_moves_no_record(topics, answer):
    with pytest.raises(TypeError, match="must do its work before it returns"):
        run(topics, lambda producer, records: answer, max_attempts=9, dead_letter=DEAD)
    assert dead_of(topics) == []


def test_an_output_that_the_commit_refuses_is_the_records_error(topics):
    topics.alter_topic("out", {"message.timestamp.before.max.ms": 3_600_000})

    def copies(producer, records):
        for record in records:
            is_bad = record.value in BAD
            producer.send(
                "out", record.value, partition=record.partition, timestamp_ms=0 if is_bad else None
            )

    assert run(topics, copies, dead_letter=DEAD) == 20
    check_all_done(topics)
    found = dict(dead_of(topics)[0].headers)
    assert found["__streams.errors.exception"] == b"eoslog.errors.InvalidTimestampError"


def test_a_failed_abort_is_no_attempt_of_a_record(topics, monkeypatch):
    process = Process()
    original = ProducerClass.abort_transaction
    aborts = []

    def fails(self):
        aborts.append(self)
        raise errors.StoreFullError("no room for the markers")

    monkeypatch.setattr("eoslog.producer.transaction_manager.TransactionManager.abort", fails)
    with pytest.raises(errors.EoslogError):
        run(topics, process, max_attempts=3, dead_letter=DEAD)
    assert aborts
    assert original is ProducerClass.abort_transaction
    assert process.calls == [process.calls[0]]
    monkeypatch.undo()
    assert dead_of(topics) == []
    assert run(topics, process, max_attempts=3, dead_letter=DEAD) == 20
    check_all_done(topics)


def test_stop_ends_the_loop_between_two_records(topics):
    process = Process()
    assert run(topics, process, dead_letter=DEAD, stop=lambda: len(process.calls) > 8) == 8
    assert run(topics, process, dead_letter=DEAD) == 12
    check_all_done(topics)


def test_a_stop_that_is_said_once_passes_over_no_record(topics):
    process = Process()

    def stop() -> bool:
        return len(process.calls) == 9 and asked.append(None) is None and len(asked) == 1

    asked: list[None] = []
    assert run(topics, process, dead_letter=DEAD, stop=stop, max_records=15) == 8
    assert run(topics, process, dead_letter=DEAD, stop=lambda: False) == 12
    check_all_done(topics)


def test_members_take_over_what_is_left_of_a_batch_that_failed(topics):
    process = Process()
    calls = []

    def interrupted(producer, records):
        calls.append(len(records))
        if len(calls) == 6:
            # It did not poll for too long, and another one has taken its partitions.
            (member,) = topics.describe_group(GROUP).members
            files = eoslog.store.store.parts_of(topics).files
            files.group_members.leave(GROUP, member.member_id)
            assert run(topics, process, share=True, dead_letter=DEAD) == 15 + 1
        process(producer, records)

    assert run(topics, interrupted, share=True, dead_letter=DEAD) == 4
    check_all_done(topics)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be 1 or more"),
        ({"max_attempts": 1.5}, TypeError, "max_attempts must be an int"),
        ({"dead_letter": "none"}, errors.UnknownTopicOrPartitionError, "no topic 'none'"),
        ({"dead_letter": "in"}, errors.InvalidRequestError, "one of the topics to read"),
        (
            {"dead_letter": "in", "topics": [TopicPartition("in", 0)]},
            errors.InvalidRequestError,
            "one of the topics to read",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(topics, arguments, kind, words):
    with pytest.raises(kind, match=words):
        run(topics, Process(), **arguments)
    assert topics.transactions() == []


def test_a_topic_that_takes_no_such_record_ends_the_loop_and_loses_nothing(topics):
    topics.alter_topic(DEAD, {"max.message.bytes": 200})
    with pytest.raises(errors.RecordTooLargeError):
        run(topics, Process(), dead_letter=DEAD)
    assert dead_of(topics) == []
    topics.alter_topic(DEAD, {"max.message.bytes": None})
    run(topics, Process(), dead_letter=DEAD)
    check_all_done(topics)


def test_an_error_that_is_its_own_cause_is_one_of_a_record(topics):
    def process(producer: Producer, records: list[Record]) -> None:
        error = ValueError("a circle")
        raise error from error

    assert run(topics, process, dead_letter=DEAD) == 20
    assert len(dead_of(topics)) == 20


def test_a_signal_handlers_error_after_a_commit_has_nothing_done_again(topics, monkeypatch):
    def handler(_: ProducerClass) -> None:
        raise TimeoutError

    def process(producer: Producer, records: list[Record]) -> None:
        for record in records:
            producer.send("out", record.value, on_delivery=lambda *_: None)

    with monkeypatch.context() as patch:
        patch.setattr(ProducerClass, "_report_transactions", handler)
        with pytest.raises(TimeoutError):
            run(topics, process, max_attempts=3, dead_letter=DEAD)
    assert run(topics, process, max_attempts=3, dead_letter=DEAD) == 0
    found = [value for number in range(2) for value in values_of(topics, "out", number)]
    assert sorted(found) == sorted(b"%d" % number for number in range(20))


STEPS = [
    Kill(owner, name, nth, when)
    for owner, name, calls in (
        (Process, "__call__", (1, 2, 4, 5, 7)),
        (PolledWork, "goes_on_after", (1, 2, 3, 4, 6)),
        (PolledWork, "done", (1, 2, 4, 5, 7)),
        (ProducerClass, "send_offsets_to_transaction", (1, 2, 4, 5, 7)),
    )
    for nth in calls
    for when in ("before", "after")
]


@pytest.mark.parametrize("kill", STEPS, ids=str)
def test_a_loop_that_is_killed_between_attempts_does_everything_once(store_path, kill):
    with eoslog.open(store_path, create=True) as store:
        make_topics(store)

    def work() -> None:
        kill.arm()
        with eoslog.open(store_path) as store:
            run(store, Process(), max_attempts=2, dead_letter=DEAD, max_records=7)

    assert dies_in_child(work)
    with eoslog.open(store_path) as store:
        run(store, Process(), max_attempts=2, dead_letter=DEAD, max_records=7)
        check_all_done(store)
        assert store.verify() == []
