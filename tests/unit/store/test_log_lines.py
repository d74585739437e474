"""What the logger "eoslog" says at INFO: one line for each change that an operator asks about."""

import logging
import re

import pytest
from harness.crew import Member
from harness.waiting import eventually
from log_lines import lines_at

import eoslog
from eoslog import TopicPartition
from eoslog.store.store import abandon


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def said(caplog):
    return lines_at(logging.INFO, caplog)


def test_opening_and_close(path, said):
    with eoslog.open(path, create=True, durability="process"):
        pass
    (line,) = said("opened in")
    version = re.escape(eoslog.__version__)
    assert re.search(
        rf"eoslog {version}, durability process, 1 processes: with nothing to recover", line
    )
    assert said(r"closed in \d+\.\d+ s, 0 errors")
    with eoslog.open(path), Member() as other:
        other.run("import eoslog, logging; logging.basicConfig(level=logging.INFO)")
        other.run("store = eoslog.open(path)", path=str(path))
        assert other.value("len(store.processes())") == 2
        eoslog.open(path, read_only=True).close()
        assert said("opened in .*, durability process, 2 processes: only to be read, ")


def test_recovery_after_a_kill(path, said):
    store = eoslog.open(path, create=True)
    store.create_topic("t")
    store.producer().append("t", 0, values=[b"x"] * 3)
    abandon(store)
    with eoslog.open(path) as store:
        assert said("opened in .* after an unclean stop, 1 partitions are recovered when")
        assert store.partition("t", 0).log_end_offset == 3
    assert said(r"t-0: recovered after an unclean stop in .* offsets 0 to 3, 0 bytes cut off")


def test_an_opening_that_recovers_all_there_is(path, said):
    store = eoslog.open(path, create=True)
    store.create_topic("t")
    producer = store.producer(transactional_id="open")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"x")
    producer.flush()
    abandon(store)
    with eoslog.open(path):
        assert said("opened in .* after an unclean stop, all partitions are recovered")


def test_topics_and_settings(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", config={"retention.ms": 5})
        store.alter_topic("t", {"retention.ms": None, "segment.ms": 7}, partitions=2)
        store.alter_config({"log.retention.ms": 9}, durability="process")
        store.delete_topic("t")
    assert said("topic t: created, partitions=1, retention.ms=5")
    assert said("topic t: altered from partitions=1, retention.ms=5 to partitions=2, segment.ms=7")
    assert said("from durability=commit to durability=process, log.retention.ms=9")
    assert said("topic t: deleted, with 2 partitions")


def test_a_fence_names_who_and_by_whom(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        older = store.producer(transactional_id="loop")
        older.init_transactions()
        older.begin_transaction()
        older.send("t", b"x")
        older.flush()
        newer = store.producer(transactional_id="loop")
        newer.init_transactions()
        assert said(
            rf"'loop': the transaction of producer id {older.producer_id}, epoch 0, over 1 "
            r"partitions is aborted: .* initialized again, with epoch \d, by process"
        )
        assert said(rf"'loop': producer id {newer.producer_id}, epoch {newer.producer_epoch}, is")
        for _ in range(2):
            store.producer(name="till").append("t", 0, values=[b"y"])
        assert len(said("producer 'till': producer id .* is opened by process")) == 2


def test_a_dead_process_and_a_timeout(path, said):
    config = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with eoslog.open(path, create=True, config=config) as store, Member() as other:
        store.create_topic("t")
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        other.run("p = store.producer(transactional_id='gone'); p.init_transactions()")
        other.run("p.begin_transaction(); p.send('t', b'x'); p.flush()")
        other.kill()
        eventually(lambda: said("'gone': the transaction .* is aborted: .*process"))
        slow = store.producer(transactional_id="slow", transaction_timeout_ms=1)
        slow.init_transactions()
        slow.begin_transaction()
        slow.send("t", b"x")
        with pytest.raises(eoslog.errors.KafkaError):
            slow.flush()
            eventually(lambda: said("'slow': the transaction .* is aborted: "))
            slow.commit_transaction()
        assert said("'slow': the transaction .* is aborted: .*1 ms")


def test_members_and_rebalances(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=4)
        one, two = store.consumer(group="g"), store.consumer(group="g")
        for consumer in (one, two):
            consumer.subscribe(["t"])
        eventually(lambda: (one.poll(0), two.poll(0)) and len(two.assignment()) == 2)
        one.close()
        two.poll(0)
    assert len(said("group 'g': member eoslog-.* joins")) == 2
    assert said("group 'g': rebalance to generation 1: 1 members, 4 partitions: 1 joined, 0 left")
    assert said("group 'g': rebalance to .* 2 members, .*: 1 joined, 0 left")
    assert said("group 'g': rebalance to .* 2 members, 4 partitions: what members gave up is assi")
    assert said("group 'g': rebalance to .* 1 members, 4 partitions: 0 joined, 1 left")
    assert said("group 'g': rebalance to .* 0 members, 0 partitions: no member is left")


def test_a_rebalance_for_other_topics_or_partitions(path, said):
    with eoslog.open(path, create=True) as store, store.consumer(group="g") as consumer:
        for topic in ("t", "u"):
            store.create_topic(topic)
        consumer.subscribe(["t"])
        consumer.poll(0)
        store.alter_topic("t", partitions=2)
        eventually(lambda: consumer.poll(0) or len(consumer.assignment()) == 2)
        assert said("group 'g': rebalance to .*, 2 partitions: there are other partitions")
        consumer.subscribe(["t", "u"])
        consumer.poll(0)
        assert said("group 'g': rebalance to .*, 3 partitions: members read other topics")
    assert said("group 'g': member eoslog-.* is removed: it left")


def test_retention(path, said):
    config = {"log.retention.check.interval.ms": 20, "log.initial.task.delay.ms": 0}
    with eoslog.open(path, create=True, durability="process", config=config) as store:
        store.create_topic("t", config={"segment.bytes": 4096, "retention.bytes": 5000})
        producer = store.producer()
        for _ in range(10):
            producer.append("t", 0, values=[b"x" * 2000])
        eventually(lambda: said(r"t-0: retention deleted \d segments with \d+ bytes: the log beg"))
        consumer = store.consumer()
        assert consumer.beginning_offsets([TopicPartition("t", 0)])[TopicPartition("t", 0)] > 0
        store.delete_records({TopicPartition("t", 0): 9})
        assert said(r"t-0: records deleted: the log begins at offset 9, and began at \d")
