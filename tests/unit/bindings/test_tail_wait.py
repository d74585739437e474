"""From an append to the records in a reader that sleeps: the short way, and what leads off it."""

import subprocess
import sys
import threading
import time

import pytest
from harness.crew import started
from harness.system_abilities import needs_call_filters

import eoslog
from eoslog import TopicPartition
from eoslog.bindings.tail_wait import next_records, wait_for_more
from eoslog.consumer.consumer import ConsumerInternals
from eoslog.consumer.fetcher import Fetcher
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.store.store import engine_of, parts_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LONG_S = 30


@pytest.fixture
def topic(store):
    store.create_topic("t", partitions=2)
    return store


@pytest.fixture
def tail(topic):
    consumer = topic.consumer()
    consumer.assign([T0])
    return consumer


def in_a_moment(call, *arguments, after_s=0.2):
    timer = threading.Timer(after_s, call, arguments)
    timer.start()
    return timer


def waited(call):
    begun_s = time.monotonic()
    found = call()
    return found, time.monotonic() - begun_s


def test_a_record_ends_the_wait_of_whoever_reads_one_partition(topic, tail):
    producer = topic.producer()
    for value in (b"a", b"b"):
        in_a_moment(producer.append, "t", 0, [value]).join(0)
        records, took_s = waited(lambda: tail.poll(timeout=LONG_S))
        assert [one.value for one in records] == [value]
        assert took_s < LONG_S / 2
    assert tail.position(T0) == 2
    assert tail.poll(timeout=0) == []


def test_a_record_ends_the_wait_of_whoever_reads_several(topic):
    consumer = topic.consumer()
    consumer.assign([T0, T1])
    in_a_moment(topic.producer().append, "t", 1, [b"a"])
    records, took_s = waited(lambda: consumer.poll(timeout=LONG_S))
    assert [(one.partition, one.value) for one in records] == [(1, b"a")]
    assert took_s < LONG_S / 2


def test_a_waiting_reader_takes_no_more_than_it_asked_for(topic, tail):
    in_a_moment(topic.producer().append, "t", 0, [b"%d" % number for number in range(5)])
    assert [one.offset for one in tail.poll(timeout=LONG_S, max_records=2)] == [0, 1]
    assert [one.offset for one in tail.poll(timeout=0)] == [2, 3, 4]


def test_undecided_records_do_not_end_a_committed_wait(topic):
    consumer = topic.consumer(isolation_level="read_committed")
    consumer.assign([T0])
    producer = topic.producer(transactional_id="x")
    producer.init_transactions()

    def abort_one_commit_one():
        for value, end in ((b"no", "abort_transaction"), (b"yes", "commit_transaction")):
            producer.begin_transaction()
            producer.append("t", 0, [value])
            time.sleep(0.1)
            getattr(producer, end)()

    in_a_moment(abort_one_commit_one)
    assert [one.value for one in consumer.poll(timeout=LONG_S)] == [b"yes"]


@pytest.mark.parametrize("logs_count", [1, 33])
def test_a_record_of_another_log_of_the_same_bit_ends_no_wait(store, logs_count):
    store.create_topic("many", partitions=65)
    shared = parts_of(store).files.signal.shared
    log, other = (engine_of(store).partition("many", number).log for number in (0, 32))
    assert log.want_wakeup() == other.want_wakeup()
    # Those beyond 32 sleep on the word that all logs share.
    logs = [log] * logs_count
    producer, found, read = store.producer(), [], threading.Semaphore(0)

    def read_other():
        for position in range(100):
            while wait_for_more(shared, [other], [position], False, LONG_S) < 0:
                pass
            read.release()

    def wait():
        begun_s = time.monotonic()
        while (index := wait_for_more(shared, logs, [0] * logs_count, False, LONG_S)) < 0:
            found.append(time.monotonic() - begun_s)
        found.append(index)

    threads = [threading.Thread(target=call) for call in (read_other, wait)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        producer.append("many", 32, [b"a"])
        read.acquire()
    producer.append("many", 0, [b"a"])
    for thread in threads:
        thread.join()
    assert found.pop() == 0
    assert len(found) <= sum(found[-1:])  # No more than one a second.


def test_readers_that_are_held_back_sleep_on(topic, tail):
    partition = engine_of(topic).partition("t", 0)
    partition.hold_readers(0)
    topic.producer().append("t", 0, [b"a"])
    assert tail.poll(timeout=0.1) == []
    in_a_moment(partition.release_readers)
    assert [one.value for one in tail.poll(timeout=LONG_S)] == [b"a"]


def test_a_reader_whose_place_was_deleted_goes_on_where_the_log_begins(topic, tail):
    partition, producer = engine_of(topic).partition("t", 0), topic.producer()

    def append_roll_delete():
        producer.append("t", 0, [b"a"])
        partition.roll()
        producer.append("t", 0, [b"b"])
        partition.delete_segments(1)

    tail.seek(T0, 0)
    append_roll_delete()
    assert [one.value for one in tail.poll(timeout=LONG_S)] == [b"b"]


def test_a_close_ends_the_wait(topic, tail):
    in_a_moment(tail.close)
    begun_s = time.monotonic()
    with pytest.raises(LogClosedError, match="the consumer is closed"):
        tail.poll(timeout=LONG_S)
    assert time.monotonic() - begun_s < LONG_S / 2


def test_the_end_of_the_store_ends_the_wait(tmp_path):
    store = eoslog.open(tmp_path / "s", create=True, durability="process")
    store.create_topic("t")
    consumer = store.consumer()
    consumer.assign([T0])
    closing = in_a_moment(store.close)
    with pytest.raises(LogClosedError, match="the store"):
        consumer.poll(timeout=LONG_S)
    closing.join()


def test_a_deletion_ends_the_wait(topic, tail):
    deleting = in_a_moment(topic.delete_topic, "t")
    with pytest.raises(UnknownTopicOrPartitionError):
        tail.poll(timeout=LONG_S)
    deleting.join()


def test_what_an_interrupt_keeps_from_the_caller_is_read_again(topic, tail, monkeypatch):
    """It comes with the record, so that it is raised when all but the return is done."""
    topic.producer().append("t", 0, [b"a"])
    assert tail.position(T0) == 0

    class Interrupted(list):
        """Found, and one more look at it is interrupted."""

        def __getitem__(self, index):
            if index == 0:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    name = "eoslog.consumer.positions.next_records"
    monkeypatch.setattr(name, lambda *given: Interrupted(next_records(*given)))
    nothing = [], ConsumerInternals(tail).positions.current
    monkeypatch.setattr(Fetcher, "records", lambda *_: nothing)
    with pytest.raises(KeyboardInterrupt):
        tail.poll(timeout=LONG_S)
    monkeypatch.undo()
    assert [one.value for one in tail.poll(timeout=0)] == [b"a"]


def test_a_bad_call_is_refused(topic):
    shared, log = parts_of(topic).files.signal.shared, engine_of(topic).partition("t", 0).log
    with pytest.raises(ValueError, match="0 positions for 1 logs"):
        wait_for_more(shared, [log], [], False, 0)
    with pytest.raises(TypeError, match="expected a log, got str"):
        wait_for_more(shared, ["no"], [0], False, 0)
    assert wait_for_more(shared, [log], [0], False, 0) == -1
    assert next_records(shared, log, 0, False, 0, 1, 1) is None


def test_records_appended_and_sent_by_another_process_all_arrive(tmp_path):
    path = tmp_path / "s"
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
        reader = started(f"""
import eoslog
with eoslog.open({str(path)!r}, durability="process") as store:
    consumer = store.consumer()
    consumer.assign([eoslog.TopicPartition("t", 0)])
    say("reads")
    found = []
    while len(found) < 300:
        found += [(one.offset, one.value) for one in consumer.poll(timeout=30)]
    say([offset for offset, _ in found] == list(range(300)))
    say([value for _, value in found] == [b"%d" % number for number in range(300)])
""")
        reader.hear("reads")
        producer = store.producer()
        for number in range(300):
            if number % 2:
                producer.append("t", 0, [b"%d" % number])
            else:
                producer.send("t", b"%d" % number)
                producer.flush()
            time.sleep(0.001)
        reader.hear("True")
        reader.hear("True")
        reader.end()


# Has the kernel answer futex_waitv as one before Linux 5.16 does: no such call.
OLD_KERNEL = """
import ctypes, struct
rules = (0x20, 0, 0, 0), (0x15, 0, 1, 449), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)
deny = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
code = ctypes.create_string_buffer(deny, len(deny))
program = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program, 0, 0) == 0
import threading, time, sys, eoslog
with eoslog.open(sys.argv[1]) as store:
    consumer = store.consumer()
    consumer.assign([eoslog.TopicPartition("t", 0)])
    threading.Timer(0.3, store.producer().append, ("t", 0, [b"a"])).start()
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    found = consumer.poll(timeout=30)
    assert [one.value for one in found] == [b"a"]
    assert time.monotonic() - begun_s < 15
    assert time.process_time() - begun_cpu_s < 0.2, "it did not sleep"
"""


@needs_call_filters
def test_a_kernel_that_cannot_sleep_on_several_words(tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("t")
    command = [sys.executable, "-c", OLD_KERNEL, str(tmp_path / "store")]
    subprocess.run(command, check=True, timeout=60)
