"""A look at a store's metrics: of open partitions, of others, of groups; the collector."""

from __future__ import annotations

import logging

import pytest
from harness.crew import Member
from harness.waiting import eventually
from read_only_stores import unchanged

import eoslog
from eoslog import TopicPartition
from eoslog.errors import EoslogError, InvalidProducerEpochError, OutOfOrderSequenceError
from eoslog.store.metric_families import metric_families
from eoslog.store.store import abandon, engine_of, parts_of


def values(store, name):
    """The values of one metric by the values of their labels."""
    return {
        tuple(labels.values()): value
        for family in metric_families(store)
        for sample, labels, value in family.samples
        if sample == name
    }


def value(store, name):
    return values(store, name)[()]


def ends(store):
    found = values(store, "kafka_topic_partition_current_offset")
    return {labels: end for labels, end in found.items() if labels[0] == "t"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def test_of_partitions_that_another_process_has_open(path):
    with eoslog.open(path, create=True, durability="process") as store, Member() as other:
        store.create_topic("t", partitions=3)
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        other.run("store.producer().append('t', 1, values=[b'x' * 100] * 7)")
        assert ends(store) == {("t", "0"): 0, ("t", "1"): 7, ("t", "2"): 0}
        size = values(store, "eoslog_topic_bytes")["t",]
        assert size == store.partition("t", 1).size_bytes > 700
        other.run("store.producer().append('t', 1, values=[b'x'])")
        assert ends(store)["t", "1"] == 8
        assert value(store, "eoslog_processes") == 2


def test_of_partitions_that_no_process_has_open(path):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=2, config={"segment.bytes": 4096})
        for _ in range(10):
            store.producer().append("t", 0, values=[b"x" * 1000])
        store.delete_records({TopicPartition("t", 0): 3})
        size = store.partition("t", 0).size_bytes
    for _ in range(2):
        with eoslog.open(path) as store:
            assert ends(store) == {("t", "0"): 10, ("t", "1"): 0}
            assert values(store, "kafka_topic_partition_oldest_offset")["t", "0"] == 3
            assert values(store, "eoslog_topic_bytes")["t",] == size
            opened = parts_of(store).files.partitions
            assert opened.if_open(TopicPartition("t", 0)) is None
        for page in (path / "state" / "control").iterdir():
            page.unlink()  # The checkpoints have it too.


def test_what_only_a_recovery_tells_is_left_out(path):
    store = eoslog.open(path, create=True)
    store.create_topic("t", partitions=2)
    store.producer().append("t", 0, values=[b"x"])
    abandon(store)
    with unchanged(path), eoslog.open(path, read_only=True) as store:
        assert ends(store) == {("t", "0"): 1, ("t", "1"): 0}  # A recovery in memory tells.
    with eoslog.open(path) as store:
        assert ends(store) == {}
        assert value(store, "eoslog_partitions_unrecovered") == 2
        assert store.partition("t", 0).log_end_offset == 1
        assert ends(store) == {("t", "0"): 1}
        assert value(store, "eoslog_partitions_recovered_total") == 2  # The internal one too.


def test_an_open_transaction_of_another_process(path):
    with eoslog.open(path, create=True) as store, Member() as other:
        store.create_topic("t", partitions=2)
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        other.run("p = store.producer(transactional_id='a'); p.init_transactions()")
        other.run("p.begin_transaction(); p.append('t', 1, values=[b'x'] * 3); p.flush()")
        eventually(lambda: values(store, "eoslog_open_transactions")["0",] == 1)
        lag = values(store, "eoslog_partition_last_stable_offset_lag_records")
        assert (lag["t", "0"], lag["t", "1"]) == (0, 3)
        age_s = values(store, "eoslog_partition_last_stable_offset_lag_seconds")
        assert age_s["t", "0"] == 0 < age_s["t", "1"]
        assert 0 < value(store, "eoslog_oldest_transaction_seconds") < 60
        assert values(store, "eoslog_open_transactions")["60",] == 0
        other.run("p.prepare_transaction()")
        eventually(lambda: value(store, "eoslog_prepared_transactions") == 1)
        assert value(store, "eoslog_oldest_transaction_seconds") == 0


def test_members_and_lag(path):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        store.producer().append("t", 0, values=[b"x"] * 5)
        consumer = store.consumer(group="g")
        consumer.subscribe(["t"])
        consumer.poll(0)
        assert values(store, "kafka_consumergroup_members") == {("g",): 1}
        consumer.poll(1)
        consumer.commit()
        assert values(store, "kafka_consumergroup_lag") == {("g", "t", "0"): 0}
        assert value(store, "eoslog_rebalances_total") == 1
        consumer.close()
        store.delete_topic("t")
        assert values(store, "kafka_consumergroup_lag") == {}


def test_each_event_has_its_counter(path):
    config = {"eoslog.producers.cached.max": 1, "log.initial.task.delay.ms": 0}
    config |= {"eoslog.checkpoint.interval.ms": 20, "log.retention.check.interval.ms": 20}
    with eoslog.open(path, create=True, config=config) as store:
        store.create_topic("t", config={"segment.bytes": 4096, "retention.bytes": 5000})
        for _ in range(10):
            store.producer().append("t", 0, values=[b"x" * 2000])
        names = ("segments", "bytes", "records")
        deleted = [f"eoslog_retention_deleted_{name}_total" for name in names]
        eventually(lambda: value(store, deleted[0]) >= 7)
        assert value(store, deleted[2]) == store.partition("t", 0).log_start_offset
        assert value(store, deleted[1]) > 2000 * value(store, deleted[2])
        eventually(lambda: value(store, "eoslog_producers_evicted_total") > 0)
        store.flush()
        syncs = values(store, "eoslog_sync_duration_seconds_count")
        assert syncs["log",] > 0
        bucket = values(store, "eoslog_sync_duration_seconds_bucket")
        assert bucket["log", "+Inf"] >= syncs["log",]
        assert values(store, "eoslog_sync_duration_seconds_sum")["log",] > 0
        producer = store.producer(transactional_id="a")
        producer.init_transactions()
        producer.begin_transaction()
        producer.append("t", 0, values=[b"x"])
        store.abort_transaction("a")
        reasons = values(store, "eoslog_transactions_aborted_by_store_total")
        assert reasons["admin",] == 1
        with pytest.raises(EoslogError):
            producer.commit_transaction()


def test_what_a_log_refuses_and_drops(path):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        log = engine_of(store).partition("t", 0)
        numbered = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 0}
        log.append_columns([b"x"] * 3, **numbered)
        assert log.append_columns([b"x"] * 3, **numbered).duplicate
        with pytest.raises(InvalidProducerEpochError):
            log.append_columns([b"x"], **numbered | {"producer_epoch": 0})
        for sequence in (7, 8):
            with pytest.raises(OutOfOrderSequenceError):
                log.append_columns([b"x"], **numbered | {"base_sequence": sequence})
        assert value(store, "eoslog_duplicate_batches_total") == 1
        assert value(store, "eoslog_duplicate_records_total") == 3
        refused = values(store, "eoslog_refused_requests_total")
        assert refused == {("epoch",): 1, ("sequence",): 2}


def test_a_collector_in_a_registry(path):
    client = pytest.importorskip("prometheus_client")
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        collector = eoslog.StoreCollector(store)
        registry = client.CollectorRegistry()
        registry.register(collector)
        store.producer().append("t", 0, values=[b"x"] * 4)
        labels = {"topic": "t", "partition": "0"}
        name = "kafka_topic_partition_current_offset"
        assert registry.get_sample_value(name, labels) == 4
        assert registry.get_sample_value("eoslog_duplicate_records_total") == 0
        with pytest.raises(TypeError, match="store must be a Store, got str"):
            eoslog.StoreCollector("data")
    assert list(collector.collect()) == []
    assert registry.get_sample_value(name, labels) is None


def test_of_a_store_that_is_only_read(path, caplog):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t")
        with store.producer(transactional_id="a") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"x")
            producer.commit_transaction()
    caplog.set_level(logging.INFO)
    with unchanged(path), eoslog.open(path, read_only=True) as store:
        assert ends(store) == {("t", "0"): 2}
        assert values(store, "eoslog_transactions_total") == {("committed",): 1, ("aborted",): 0}
        assert store.metrics()["counts"]["transactions_committed"] == 1
        assert "counts begin" not in caplog.text
        assert value(store, "eoslog_processes") == 0


def test_of_a_store_that_is_only_read_beside_its_writer(path):
    names = ("kafka_topic_partition_current_offset", "eoslog_topic_bytes", "eoslog_processes")
    with eoslog.open(path, create=True) as writer:
        writer.create_topic("t", partitions=3)
        with writer.producer() as producer:
            producer.append("t", 1, values=[b"x"] * 3)
            with eoslog.open(path, read_only=True) as store:
                for count in (3, 8):
                    assert ends(store)["t", "1"] == count
                    assert [values(store, name) for name in names] == [
                        values(writer, name) for name in names
                    ]
                    producer.append("t", 1, values=[b"y"] * 5)
