"""What the logger "eoslog" says at DEBUG: a line for each decision."""

import logging

import pytest
from commit_journals import SMALL, journal_of, with_journal
from harness.crew import Member
from harness.waiting import eventually
from log_lines import lines_at
from staged_jobs import stage
from store_copies import copy_store

import eoslog
from eoslog import TopicPartition
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from eoslog.storage import topic_registry
from eoslog.store.store import abandon, engine_of, parts_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def said(caplog):
    return lines_at(logging.DEBUG, caplog)


def test_transactions(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=2)
        producer = store.producer(transactional_id="a")
        producer.init_transactions()
        assert said(r"this process gives out the producer ids \[\d+, \d+\)")
        number, epoch = producer.producer_id, producer.producer_epoch
        with producer.transaction():
            producer.send("t", b"x", partition=1)
            producer.send("t", b"x", partition=0)
            producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "g")
        assert said(rf"'a': a transaction of producer id {number}, epoch {epoch}, begins")
        assert said(
            rf"'a': the transaction of producer id {number}, epoch {epoch}, over "
            rf"t-1, t-0, {CONSUMER_OFFSETS_TOPIC}-\d+ is committed"
        )
        producer.begin_transaction()
        producer.append("t", 1, values=[b"x"])
        producer.abort_transaction()
        assert said(
            rf"'a': .* id {number}, epoch {epoch + 1}, over t-1 is aborted, as its producer"
        )
        producer.begin_transaction()
        producer.send("t", b"x", partition=0)
        prepared = producer.prepare_transaction()
        assert said(rf"'a': .* id {number}, epoch {epoch + 2}, over t-0 is prepared, as its")
        store.commit_prepared([prepared])
        assert said(rf"'a': .* id {number}, epoch {epoch + 2}, over t-0 is committed, as its prod")


def test_a_level_that_is_off_says_nothing(path, caplog):
    caplog.set_level(logging.INFO, logger="eoslog")
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        with store.producer(transactional_id="a") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"x")
    assert not [one for one in caplog.records if one.levelno < logging.INFO]


def test_verdicts(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        log = engine_of(store).partition("t", 0)
        numbered = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 0}
        log.append_columns([b"x"] * 3, **numbered)
        log.append_columns([b"x"] * 3, **numbered)
        assert said("t-0: producer id 5, epoch 1, sequence 0: 3 records are a duplicate of .* 2$")
        raw = bytes(store.partition("t", 0).read(0, 1 << 20))
        log.append_batch(bytes(8) + raw[8:])
        assert len(said("t-0: producer id 5, epoch 1, sequence 0: 3 records are a dup")) == 2
        with pytest.raises(InvalidProducerEpochError):
            log.append_columns([b"x"], **numbered | {"producer_epoch": 0})
        assert said("t-0: producer id 5, epoch 0, sequence 0: refused, .*epoch is older")
        with pytest.raises(OutOfOrderSequenceError):
            log.append_columns([b"x"], **numbered | {"base_sequence": 7})
        assert said(r"t-0: producer id 5, epoch 1, sequence 7: refused, .* \(got 7, expected 3\)")
        log.append_columns([b"y"], **numbered | {"base_sequence": 3})
        assert len(said("t-0: producer id 5")) == 4


def test_recovery(path, said):
    store = eoslog.open(path, create=True)
    store.create_topic("t", partitions=2)
    for name in ("open", "prepared"):
        producer = store.producer(transactional_id=name)
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("t", 0, values=[b"x"])
        producer.flush()
    producer.prepare_transaction()
    abandon(store)
    with eoslog.open(path) as store:
        assert said(
            "'open': found Ongoing, producer id .* over 1 partitions: no log lacks its data"
        )
        assert said("'prepared': found Ongoing and prepared, producer id")
        assert said("'prepared': prepared: it waits for its decision")
        assert store.partition("t", 0).log_end_offset == 3
        assert said("t-0: opened, offsets 0 to 2: verified from recovery point 0 on")
        assert said("t-0: the transaction of producer id .*, open since offset 1, is left to its")
    with eoslog.open(path) as store, Member() as other:
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        other.run("store.producer().append('t', 1, values=[b'x'])")
        assert store.partition("t", 0).log_end_offset == 3
        assert said("t-0: opened, offsets 0 to 3: it was closed cleanly")
        assert store.partition("t", 1).log_end_offset == 1
        assert said("t-1: opened, offsets 0 to 1: other processes have it open")


def test_rolls_and_retention(path, said):
    config = {"log.retention.check.interval.ms": 20, "log.initial.task.delay.ms": 0}
    with eoslog.open(path, create=True, durability="process", config=config) as store:
        store.create_topic("t", config={"segment.bytes": 4096, "retention.bytes": 50_000})
        producer = store.producer()
        for _ in range(10):
            producer.append("t", 0, values=[b"x" * 2000])
        eventually(lambda: said(r"t-0: rolled: the active segment begins at offset \d+"))
        eventually(lambda: said("t-0: retention keeps all: the oldest segment is not due"))
        store.alter_topic("t", {"retention.bytes": 5000})
        eventually(lambda: said(r"t-0: retention.ms=-1, retention.bytes=5000 of \d+: \d segments"))


def test_compaction(path, said, monkeypatch):
    small = {"segment.bytes": 16_384, "max.message.bytes": 16_384}
    monkeypatch.setattr(topic_registry, "INTERNAL_TOPIC_CONFIG", small)
    with eoslog.open(path, create=True, durability="process") as store:
        store.create_topic("t")
        with store.producer(transactional_id="a") as producer:
            producer.init_transactions()
            for _ in range(200):
                with producer.transaction():
                    producer.send("t", b"x")
            files = parts_of(store).files
            logs = files.partitions.opened()
            eventually(
                lambda: files.compact(*logs) or said("compacted: what holds below offset [1-9]")
            )
        assert said(r"__transaction_state-\d+: compacted: what holds below offset [1-9]\d*")


def test_assignments(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=2)
        consumer = store.consumer(group="g")
        consumer.subscribe(["t"])
        consumer.poll(0)
        assert said(r"'g': generation 1: member eoslog-\S+ is assigned \['t-0', 't-1'\]")


def test_staged_jobs(path, said):
    with eoslog.open(path, create=True) as store:
        store.create_topic("orders", partitions=3)
        run = store.begin_run("app")
        store.commit_staged("app", 1, [stage(path, run, "0", range(60))], run)
        assert said("application 'app': version 1 is decided: 3 files, the offsets of 0 groups")
        assert len(said(r"orders-\d: readers are held at offset 0")) == 3
        assert len(said(r"(was copied to|became a segment of) orders-\d at offset 0")) == 3
        assert len(said(r"orders-\d: readers are released")) == 3
        assert said(r"application 'app': version 1 is complete: orders-\d 0-\d+")


def test_journals(path, said):
    store = with_journal(eoslog.open(path, create=True, config=SMALL))
    store.create_topic("t", config={"segment.bytes": 1 << 20})
    assert said("the commit journal from now on, halves of 65536 bytes")
    producer = store.producer()
    for _ in range(40):
        producer.append("t", 0, values=[b"x" * 4000])
        producer.flush()
    eventually(lambda: said(r"half \d is retired"))
    journal = journal_of(store).journal
    count = journal.counts["records"]

    def journaled():
        producer.append("t", 0, values=[b"last"])
        producer.flush()  # By the file, while both halves are full.
        return journal.counts["records"] > count

    eventually(journaled)
    left = copy_store(path, path.with_name("left"))
    store.close()
    with eoslog.open(left):
        assert said(r"a half of epoch \d+ has [1-9]\d* records with [1-9]\d* ranges")
        assert said(r"0.log: \d+ ranges up to offset 4\d are written back")
