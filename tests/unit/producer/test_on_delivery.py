"""What `on_delivery` is called with, by which call, and how often: once."""

import gc
import logging
import re
import threading
import time
from contextlib import suppress

import pytest
from crash.interrupted_lines import interrupted_at, is_of_a_block
from harness.fork import in_child
from stores import values_of

import eoslog
import eoslog.aio
from eoslog import RecordMetadata, TopicPartition
from eoslog.errors import (
    ConcurrentAccessError,
    EoslogError,
    IllegalStateError,
    InvalidTxnStateError,
    LogClosedError,
    ProducerFencedError,
    StoreFailedError,
    StoreFullError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer.producer import Producer
from eoslog.producer.transaction_manager import TransactionManager
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of

LONG = {"linger.ms": 3_600_000}


@pytest.fixture
def topic(store):
    store.create_topic("t", partitions=2)
    return store


class Told:
    """Calls of a function, in order: the error's class, the place, and the thread."""

    def __init__(self):
        self.calls = []
        self.errors = []
        self.threads = set()

    def __call__(self, error, metadata):
        assert isinstance(metadata, RecordMetadata)
        self.calls.append((error and type(error), *metadata[:3]))
        self.errors.append(error)
        self.threads.add(threading.get_ident())


def ready(store, transactional_id="x"):
    producer = store.producer(transactional_id=transactional_id)
    producer.init_transactions()
    return producer


def test_a_flush_reports_each_record_with_its_place(topic):
    told = Told()
    with topic.producer(config=LONG) as producer:
        producer.append("t", 0, [b"before"])
        for number in range(4):
            producer.send("t", b"%d" % number, None, number % 2, on_delivery=told)
            producer.send("t", b"-", partition=0)  # Of these no one wants to know.
        producer.send("t", b"z", timestamp_ms=77, partition=1, on_delivery=lambda _, one: seen(one))
        times = []
        seen = times.append
        assert told.calls == times == []
        producer.flush()
        assert times == [RecordMetadata("t", 1, 2, 77)]
        assert times[0].topic_partition == TopicPartition("t", 1)
    assert told.calls == [
        (None, "t", 0, 1),
        (None, "t", 1, 0),
        (None, "t", 0, 4),
        (None, "t", 1, 1),
    ]
    assert told.threads == {threading.get_ident()}
    records, _ = engine_of(topic).partition("t", 0).fetch_records(1, 1, 1 << 20)
    assert records[0].value == b"0"


def test_batches_that_were_full_or_lingered_wait_for_the_flush(topic):
    told = Told()
    producer = topic.producer(config={"batch.size": 400, "linger.ms": 1})
    for number in range(100):
        producer.send("t", b"%03d" % number * 10, partition=0, on_delivery=told)
    while topic.partition("t", 0).log_end_offset < 100:
        pass
    assert told.calls == []
    producer.flush()
    assert told.calls == [(None, "t", 0, number) for number in range(100)]
    producer.flush()
    producer.close()
    assert len(told.calls) == 100
    assert told.threads == {threading.get_ident()}


@pytest.mark.parametrize("closes", ["producer", "store"])
def test_a_close_reports_what_no_flush_did(topic, closes):
    told = Told()
    producer = topic.producer(config=LONG)
    producer.send("t", b"0", partition=0, on_delivery=told)
    (producer if closes == "producer" else topic).close()
    producer.close()
    assert told.calls == [(None, "t", 0, 0)]


def refuse(monkeypatch, name, error, number=None, times=None):
    """Have a method of a partition raise, so often."""
    original = getattr(UnifiedLog, name)
    left = [times]

    def call(partition, *arguments, **named):
        is_one = partition.topic == "t" and number in (None, partition.partition)
        if is_one and left[0] != 0:
            left[0] = left[0] and left[0] - 1
            raise error
        return original(partition, *arguments, **named)

    monkeypatch.setattr(UnifiedLog, name, call)


def raising(error):
    """Return a method that raises."""

    def call(*_):
        raise error

    return call


def test_what_stays_gathered_after_an_error_is_reported_when_it_is_settled(topic, monkeypatch):
    told = Told()
    producer = topic.producer(config=LONG)
    for number in range(2):
        producer.send("t", b"x", partition=number, on_delivery=told)
    refuse(monkeypatch, "append_accumulated", StoreFullError("full"), number=0, times=1)
    with pytest.raises(StoreFullError):
        producer.flush()
    assert told.calls == [(None, "t", 1, 0)]
    producer.flush()
    assert told.calls == [(None, "t", 1, 0), (None, "t", 0, 0)]


def test_a_close_that_cannot_append_reports_the_error(topic, monkeypatch):
    told = Told()
    producer = topic.producer(config=LONG)
    for number in range(2):
        producer.send("t", b"x", partition=number, on_delivery=told)
    refuse(monkeypatch, "append_accumulated", StoreFullError("full"), number=0)
    with pytest.raises(StoreFullError):
        producer.close()
    assert told.calls == [(StoreFullError, "t", 0, -1), (None, "t", 1, 0)]
    assert told.errors[0].outcome == "not_appended"


def test_a_record_that_could_not_be_synced_is_in_doubt(open_store, monkeypatch):
    store = open_store("commit")
    store.create_topic("t", partitions=2)
    told = Told()
    producer = store.producer(config=LONG)
    for number in range(2):
        producer.send("t", b"x", partition=number, on_delivery=told)
    refuse(monkeypatch, "make_durable", StoreFailedError("a sync failed"), number=0, times=1)
    with pytest.raises(StoreFailedError):
        producer.flush()
    assert told.calls == [(StoreFailedError, "t", 0, -1), (None, "t", 1, 0)]
    assert told.errors[0].outcome == "unknown"


def test_a_topic_that_was_deleted_takes_its_records_with_it(topic):
    told = Told()
    producer = topic.producer(config=LONG)
    producer.send("t", b"x", partition=0, on_delivery=told)
    topic.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.flush()
    assert told.calls == [(UnknownTopicOrPartitionError, "t", 0, -1)]


def test_discarded_records_are_reported_by_the_call_that_discards_them(topic):
    told = Told()
    producer = topic.producer(config={"batch.size": 100} | LONG)
    for value in (b"0" * 60, b"1" * 60):
        producer.send("t", value, partition=0, on_delivery=told)
    assert producer.discard_gathered() == 1
    assert told.calls == [(IllegalStateError, "t", 0, -1)]
    producer.flush()
    assert told.calls[1:] == [(None, "t", 0, 0)]


def test_a_fenced_producer_reports_what_it_could_not_write(topic):
    told = Told()
    producer = topic.producer("name", config=LONG)
    producer.send("t", b"0", partition=0, on_delivery=told)
    producer.flush()
    producer.send("t", b"1", partition=0, on_delivery=told)
    topic.producer("name").append("t", 0, [b"of the successor"])
    with pytest.raises(ProducerFencedError):
        producer.flush()
    with pytest.raises(ProducerFencedError):
        producer.close()
    assert told.calls == [(None, "t", 0, 0), (ProducerFencedError, "t", 0, -1)]


@pytest.mark.parametrize("way", ["block", "calls"])
def test_a_commit_reports_what_it_committed_and_a_flush_does_not(topic, way):
    told = Told()
    producer = ready(topic)
    if way == "block":
        with producer.transaction():
            send_two(producer, told)
    else:
        producer.begin_transaction()
        send_two(producer, told)
        producer.commit_transaction()
    assert told.calls == [(None, "t", 0, 0), (None, "t", 0, 1)]
    producer.close()
    assert len(told.calls) == 2


def send_two(producer, told):
    producer.send("t", b"0", partition=0, on_delivery=told)
    producer.flush()
    producer.send("t", b"1", partition=0, on_delivery=told)
    assert told.calls == []


ABORTED = [(TransactionAbortedError, "t", 0, -1)] * 2


@pytest.mark.parametrize("way", ["block", "call", "close", "complete"])
def test_an_abort_reports_what_it_took_back(topic, way):
    told = Told()
    producer = ready(topic)
    if way == "block":
        with pytest.raises(ZeroDivisionError), producer.transaction():
            send_two(producer, told)
            raise ZeroDivisionError
    else:
        producer.begin_transaction()
        send_two(producer, told)
        if way == "call":
            producer.abort_transaction()
        elif way == "close":
            producer.close()
        else:
            producer.prepare_transaction()
            assert told.calls == []
            assert not producer.complete_transaction(None)
    assert told.calls == ABORTED
    assert values_of(topic, "t") == []


def test_a_prepared_transaction_is_settled_by_its_completion_or_not_here(topic):
    told, late = Told(), Told()
    producer = ready(topic)
    for each in (told, late):
        producer.begin_transaction()
        producer.send("t", b"x", partition=0, on_delivery=each)
        prepared = producer.prepare_transaction()
        if each is told:
            assert producer.complete_transaction(prepared)
    producer.close()
    assert told.calls == [(None, "t", 0, 0)]
    assert late.calls == [(LogClosedError, "t", 0, -1)]
    assert late.errors[0].outcome == "unknown"


@pytest.mark.parametrize("then", ["abort", "complete", "taken over"])
def test_what_another_has_decided_is_in_doubt_here(topic, then):
    told = Told()
    producer = ready(topic)
    producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)
    topic.commit_prepared([producer.prepare_transaction()])
    if then == "taken over":
        ready(topic)
    with pytest.raises((InvalidTxnStateError, ProducerFencedError)):
        if then == "abort":
            producer.abort_transaction()
        else:
            producer.complete_transaction(None)
    assert [error.outcome for error in told.errors] == ["unknown"]
    assert values_of(topic, "t") == [b"x"]


def test_a_commit_that_a_signal_handler_cuts_short_leaves_its_records_in_doubt(
    topic, caplog, monkeypatch
):
    """Its error is no error of the commit, which is decided."""
    caplog.set_level(logging.DEBUG, TransactionManager.__module__)
    monkeypatch.setattr(TransactionManager, "log_commit", raising(ZeroDivisionError))
    told = Told()
    producer = ready(topic)
    with pytest.raises(ZeroDivisionError), producer.transaction():
        producer.send("t", b"x", partition=0, on_delivery=told)
    assert [error.outcome for error in told.errors] == ["unknown"]
    assert values_of(topic, "t") == [b"x"]


def test_no_second_init_passes_over_a_commit_that_was_cut_short(topic, monkeypatch):
    """Its records would be those of the next transaction."""
    told = Told()
    producer = ready(topic)
    producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)
    with monkeypatch.context() as patch:
        patch.setattr(TransactionManager, "filled_pairs", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    with pytest.raises(IllegalStateError, match="call it again"):
        producer.init_transactions()
    producer.commit_transaction()
    assert told.calls == [(None, "t", 0, 0)]
    assert values_of(topic, "t") == [b"x"]


def test_after_a_commit_that_failed_the_abort_reports(topic, monkeypatch):
    told = Told()
    producer = ready(topic)
    producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send("none", b"x", on_delivery=told)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    assert told.calls == []
    producer.abort_transaction()
    assert told.calls == ABORTED[:1]


def test_a_producer_that_was_taken_over_reports_it(topic):
    told = Told()
    producer = ready(topic)
    producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)
    ready(topic)
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    assert told.calls == [(ProducerFencedError, "t", 0, -1)]
    producer.close()
    assert len(told.calls) == 1


@pytest.mark.parametrize("transactional", [False, True])
def test_an_exception_of_a_function_is_logged_and_loses_nothing(topic, caplog, transactional):
    told = Told()

    def fails(error, metadata):
        told(error, metadata)
        raise ZeroDivisionError("in the function")

    producer = ready(topic) if transactional else topic.producer(config=LONG)
    if transactional:
        producer.begin_transaction()
    for number in range(3):
        producer.send("t", b"%d" % number, partition=0, on_delivery=told if number == 1 else fails)
    with caplog.at_level(logging.ERROR, "eoslog"):
        producer.commit_transaction() if transactional else producer.flush()
    assert told.calls == [(None, "t", 0, number) for number in range(3)]
    assert values_of(topic, "t") == [b"0", b"1", b"2"]
    assert caplog.text.count("ZeroDivisionError: in the function") == 2
    assert "on_delivery of a record of t-0 raised" in caplog.text


def test_after_an_interrupt_the_next_call_goes_on_with_the_others(topic):
    told = Told()

    def interrupted(error, metadata):
        told(error, metadata)
        raise KeyboardInterrupt

    producer = topic.producer(config=LONG)
    for each in (told, interrupted, told, told):
        producer.send("t", b"x", partition=0, on_delivery=each)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    assert len(told.calls) == 2
    producer.send("t", b"x", partition=0, on_delivery=told)
    producer.flush()
    assert told.calls == [(None, "t", 0, number) for number in range(5)]


CALLS = {
    "flush": lambda producer: producer.flush(),
    "commit": lambda producer: producer.commit_transaction(),
    "abort": lambda producer: producer.abort_transaction(),
    "close": lambda producer: producer.close(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_an_interrupt_anywhere_in_a_call_leaves_no_false_report(tmp_path, durability, call):
    """What was reported as in the log is there, what was not is not; each record once."""
    line = 0
    seen = ()
    while line == len(seen):
        line += 1
        store = eoslog.open(tmp_path / f"{line}", create=True, durability=durability)
        store.create_topic("t")
        producer = store.producer(config=LONG) if call == "flush" else ready(store)
        if call != "flush":
            producer.begin_transaction()
        told = Told()
        producer.send("t", b"0", partition=0, on_delivery=told)
        if call != "flush":
            producer.flush()
        producer.send("t", b"1", partition=0, on_delivery=told)
        with (
            suppress(KeyboardInterrupt),
            interrupted_at(line, is_of_an_end, is_passed_over) as seen,
        ):
            CALLS[call](producer)
        producer.close()
        values = values_of(store, "t", 0)
        assert len(values) in (0, 2)
        if values:
            expected = [(None, "t", 0, 0), (None, "t", 0, 1)]
            in_doubt = [one for one in told.errors if getattr(one, "outcome", "") == "unknown"]
            assert told.calls == expected or len(in_doubt) == 2, seen[-1]
        else:
            assert len(told.calls) == 2, seen[-1]
            assert None not in told.errors, seen[-1]
        store.close()
    assert line > 30


def is_of_an_end(frame):
    """True for what a call of a producer runs, but for the steps of files and locks."""
    path = frame.f_code.co_filename
    return "/eoslog/" in path and not re.search("/eoslog/(storage|session|fs|transactions)/", path)


def is_passed_over(source):
    """No signal comes between two lines without a call, nor where a function of C calls one."""
    return is_of_a_block(source) or source.startswith(("check_ran(on_delivery", "del calls"))


def test_what_another_thread_begins_before_a_commit_has_reported_is_not_of_it(topic, monkeypatch):
    told, late = Told(), Told()
    producer = ready(topic)
    original = Producer._report_transactions

    def report(one):
        monkeypatch.undo()
        producer.begin_transaction()
        producer.send("t", b"late", partition=0, on_delivery=late)
        original(one)

    producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)
    monkeypatch.setattr(Producer, "_report_transactions", report)
    producer.commit_transaction()
    assert (told.calls, late.calls) == ([(None, "t", 0, 0)], [])
    producer.abort_transaction()
    assert late.calls == ABORTED[:1]
    producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)
    monkeypatch.setattr(Producer, "_report_transactions", lambda one: None)
    producer.commit_transaction()
    monkeypatch.undo()
    with pytest.raises(IllegalStateError):
        producer.abort_transaction()  # A call too many takes nothing back.
    assert [one[0] for one in told.calls] == [None, None]


def test_a_function_may_send_flush_and_begin(topic):
    told = Told()
    producer = topic.producer(config=LONG)

    def again(error, metadata):
        told(error, metadata)
        if metadata.offset < 3:
            producer.send("t", b"again", partition=0, on_delivery=again)
            producer.flush()

    producer.send("t", b"first", partition=0, on_delivery=again)
    producer.flush()
    assert told.calls == [(None, "t", 0, number) for number in range(4)]
    transactional = ready(topic)

    def next_one(error, metadata):
        told(error, metadata)
        with transactional.transaction():
            transactional.send("t", b"next", partition=1, on_delivery=told)

    with transactional.transaction():
        transactional.send("t", b"one", partition=1, on_delivery=next_one)
        with pytest.raises(IllegalStateError):
            transactional.begin_transaction()
    assert told.calls[4:] == [(None, "t", 1, 0), (None, "t", 1, 2)]


def test_two_threads_that_flush_report_each_record_once(topic):
    told = Told()
    producer = topic.producer()

    def work():
        for number in range(300):
            producer.send("t", b"x", on_delivery=told)
            if number % 3 == 0:
                producer.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.close()
    assert {one[0] for one in told.calls} == {None}
    places = [one[2:] for one in told.calls]
    assert len(places) == len(set(places)) == 1200
    ends = [topic.partition("t", number).log_end_offset for number in range(2)]
    assert sum(ends) == 1200


@pytest.mark.parametrize("transactional", [False, True])
def test_a_collection_in_a_send_lets_no_thread_come_between(topic, transactional):
    """A finalizer may run Python code, and so another thread, wherever memory is taken."""
    told = Told()
    producer = ready(topic) if transactional else topic.producer(config=LONG)
    is_over = threading.Event()

    def end():
        while not is_over.is_set():
            if not transactional:
                producer.flush()
            else:
                try:
                    producer.commit_transaction()
                except TransactionAbortableError:  # A send came where none was open.
                    producer.abort_transaction()
                producer.begin_transaction()
            time.sleep(1e-4)

    def let_others_run(phase, _):
        time.sleep(1e-4)

    if transactional:
        producer.begin_transaction()
    thread = threading.Thread(target=end)
    before = gc.get_threshold()
    thread.start()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(1)
    sent = 0
    try:
        for _ in range(100):
            gc.collect()  # Or memory for a tuple would be at hand.
            with suppress(EoslogError):  # No transaction is open just now.
                producer.send("t", b"x", partition=0, on_delivery=told)
                sent += 1
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_others_run)
        is_over.set()
        thread.join()
    producer.close()
    assert len(told.calls) == sent > 0
    places = [one[3] for one in told.calls if one[0] is None]
    assert len(set(places)) == len(places) == len(values_of(topic, "t", 0))


@pytest.mark.parametrize("wrong", [1, "f", [print]])
def test_what_cannot_be_called_is_refused_and_the_record_not_taken(topic, wrong):
    async def sleeps(error, metadata):
        pass

    with topic.producer() as producer:
        for given in (wrong, sleeps):
            with pytest.raises(TypeError, match="on_delivery must be a"):
                producer.send("t", b"x", partition=0, on_delivery=given)
    assert values_of(topic, "t") == []


def test_a_record_that_was_not_taken_is_not_reported(topic):
    told = Told()
    with topic.producer() as producer:
        for wrong in ({"partition": 9}, {"key": "text"}, {"timestamp_ms": -5}):
            with pytest.raises((TypeError, ValueError, EoslogError)):
                producer.send("t", b"x", on_delivery=told, **wrong)
        producer.send("t", b"x", partition=0, on_delivery=told)
    assert told.calls == [(None, "t", 0, 0)]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_forked_child_reports_nothing(topic, transactional):
    told = Told()
    producer = ready(topic) if transactional else topic.producer(config=LONG)
    if transactional:
        producer.begin_transaction()
    producer.send("t", b"x", partition=0, on_delivery=told)

    def in_the_child():
        for call in (producer.flush, producer.close):
            try:
                call()
            except EoslogError:
                continue
        if transactional:
            with pytest.raises(EoslogError):
                producer.abort_transaction()
        return told.calls

    assert in_child(in_the_child) == []
    producer.commit_transaction() if transactional else producer.flush()
    assert told.calls == [(None, "t", 0, 0)]


def test_a_signal_handler_in_a_flush_reports_nothing_twice(topic, monkeypatch):
    """A call from within a call of the same thread is refused, and the outer one reports."""
    told = Told()
    producer = topic.producer(config=LONG)
    met = []
    original = UnifiedLog.append_accumulated

    def append(partition, *arguments, **named):
        try:
            producer.flush()
        except ConcurrentAccessError as error:
            met.append(error)
        return original(partition, *arguments, **named)

    monkeypatch.setattr(UnifiedLog, "append_accumulated", append)
    producer.send("t", b"x", partition=0, on_delivery=told)
    producer.flush()
    assert len(met) == 1
    assert told.calls == [(None, "t", 0, 0)]
    assert eoslog.RecordMetadata is eoslog.aio.RecordMetadata
