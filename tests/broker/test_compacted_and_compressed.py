"""Logs that a broker compacted or compressed, moved into a store."""

import random
import time

import pytest
from cli_calls import FAILED, call
from kafka import OffsetAndMetadata as KafkaOffset
from kafka import TopicPartition as KafkaPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka_broker import INTERNAL_TOPICS, dump_log, wait_until

import eoslog
from eoslog import TopicPartition
from eoslog.errors import UnsupportedCompressionTypeError
from eoslog.store.store import engine_of

pytestmark = pytest.mark.broker

# The cleaner looks all the time, and has something to do with each new segment.
QUICK_CLEANER = {"log.cleaner.backoff.ms": 50}
COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "delete.retention.ms": "100",
}
GROUPS = ("group-0", "group-1", "of-transactions")
WHERE = TopicPartition("keyed", 0)
LEVELS = ("read_committed", "read_uncommitted")


@pytest.fixture(scope="module")
def compacted(tmp_path_factory):
    """The log directory of a broker whose topics were compacted, and what its clients saw."""
    from kafka_broker import Broker

    broker = Broker(tmp_path_factory.mktemp("compacted") / "broker", config=QUICK_CLEANER)
    broker.start()
    try:
        broker.create_topics({"keyed": 1}, config=COMPACT)
        broker.create_internal_topics()
        with broker.admin() as admin:
            admin.alter_configs(
                [
                    ConfigResource(ConfigResourceType.TOPIC, name, configs=dict(COMPACT))
                    for name in INTERNAL_TOPICS
                ]
            )
        fill(broker)
        wait_until("the topic was compacted", lambda: is_compacted(broker))
        seen = {level: broker.records("keyed", 0, isolation_level=level) for level in LEVELS}
        committed = {group: broker.committed(group, "keyed") for group in GROUPS}
        broker.stop()
        yield broker.logs, seen, committed
    finally:
        broker.kill()


def fill(broker):
    choose = random.Random(1)
    with broker.producer(enable_idempotence=True) as producer:
        for number in range(1500):
            value = None if number % 17 == 0 else b"v%d" % number
            producer.send("keyed", key=b"k%d" % choose.randrange(200), value=value)
            if number % 300 == 299:
                producer.flush()
                time.sleep(0.25)  # The next batch begins a segment.
    with broker.producer("id") as producer:
        for number in range(24):
            producer.begin_transaction()
            for _ in range(5):
                key = b"t%d" % choose.randrange(20)
                producer.send("keyed", key=key, value=b"w%d" % number)
            offsets = {KafkaPartition("keyed", 0): KafkaOffset(number, "", -1)}
            producer.send_offsets_to_transaction(offsets, "of-transactions")
            if number % 4 == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
            if number % 8 == 7:
                time.sleep(0.25)
    for group in GROUPS[:2]:
        with broker.consumer(group) as consumer:
            for number in range(40):
                consumer.commit({KafkaPartition("keyed", 0): KafkaOffset(number, "", -1)})


def is_compacted(broker):
    """Whether most of the batches are gone; another record begins another segment."""
    with broker.producer(enable_idempotence=True) as producer:
        producer.send("keyed", key=b"last", value=b"last").get(60)
    with broker.consumer("group-0") as consumer:
        consumer.commit({KafkaPartition("keyed", 0): KafkaOffset(777, "", -1)})
    time.sleep(0.25)
    folder = broker.logs / "keyed-0"
    return sum(path.stat().st_size for path in folder.glob("*.log")) < 12_000


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_store_reads_what_the_broker_reads(compacted, tmp_path, policy):
    logs, seen, committed = compacted
    policies = {"keyed": {"cleanup.policy": policy}}
    eoslog.import_kafka(logs, tmp_path / "store", topic_config=policies)
    assert call("verify", "--repair", "--dry-run", "--store", tmp_path / "store").status == 0
    for _ in range(2):
        with eoslog.open(tmp_path / "store") as store:
            partition = engine_of(store).partition(*WHERE)
            assert partition.log.holes(1).hole_count > 1
            for level in LEVELS:
                with store.consumer(isolation_level=level) as consumer:
                    consumer.assign([WHERE])
                    found = []
                    while records := consumer.poll(timeout=0):
                        found += records
                    assert consumer.position(WHERE) == partition.log_end_offset
                assert [(one.offset, one.timestamp_ms, one.key, one.value) for one in found] == [
                    (one.offset, one.timestamp, one.key, one.value) for one in seen[level]
                ]
            for group in GROUPS:
                with store.consumer(group=group) as consumer:
                    consumer.assign([WHERE])
                    assert consumer.committed(WHERE) == committed[group]
            assert store.describe_transaction("id").transaction_state.startswith("Complete")
            assert partition.verify() == []
    with eoslog.open(tmp_path / "store") as store:
        producer = store.producer(transactional_id="id")
        producer.init_transactions()
        with producer.transaction():
            producer.send("keyed", b"new", key=b"new", partition=0)
            producer.send_offsets_to_transaction({WHERE: 1234}, "of-transactions")
        with store.consumer(group="of-transactions") as consumer:
            consumer.assign([WHERE])
            assert consumer.committed(WHERE) == 1234
        assert store.partition(*WHERE).verify() == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_that_a_broker_compressed_are_named(broker, tmp_path, codec):
    topic = f"compressed-{codec}"
    broker.create_topics({topic: 1}, config={"compression.type": codec})
    with broker.producer() as producer:
        for _ in range(3):
            producer.send(topic, b"x" * 500).get(60)
    path = broker.logs / f"{topic}-0" / f"{0:020d}.log"
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic(topic)
    data = path.read_bytes()
    moved = tmp_path / "store" / f"{topic}-0" / path.name
    moved.write_bytes(data)
    (tmp_path / "store" / ".kafka_cleanshutdown").unlink()
    said = f"compressed with {codec}: this version cannot read it"
    with eoslog.open(tmp_path / "store") as store, store.consumer() as consumer:
        assert [one["reason"] for one in store.verify()] == [
            f"{said}; so are 2 more batches of the partition"
        ]
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(UnsupportedCompressionTypeError, match=said):
            consumer.poll(timeout=0)
        assert store.partition(topic, 0).log_end_offset == 3
    assert moved.read_bytes() == data
    assert call("verify", "--store", tmp_path / "store").status == FAILED
    ours = [line for line in call("dump", moved).stdout.splitlines() if "baseOffset" in line]
    kafkas = [line for line in dump_log(moved).splitlines() if "baseOffset" in line]
    assert ours == kafkas
    assert f"compresscodec: {codec}" in ours[0]
