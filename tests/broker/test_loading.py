"""A store's partitions in a broker, and a broker's in a store: the same records and offsets."""

import pytest
from kafka import OffsetAndMetadata as KafkaOffset
from kafka import TopicPartition as KafkaPartition

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.broker


def test_a_broker_serves_the_records_and_offsets_of_a_store(make_broker, tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("orders", partitions=2)
        producer = store.producer(transactional_id="id-of-the-store")
        producer.init_transactions()
        with producer.transaction():
            producer.send("orders", b"committed", partition=0)
            producer.send_offsets_to_transaction({TopicPartition("orders", 0): 1}, "group")
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send("orders", b"aborted", partition=0)
            producer.flush()
            raise ZeroDivisionError
        with store.producer() as plain:
            plain.send("orders", b"plain", partition=1)
    broker = make_broker()
    broker.load(tmp_path / "store")
    assert [(one.offset, one.value) for one in broker.records("orders", 0)] == [(0, b"committed")]
    every = broker.records("orders", 0, isolation_level="read_uncommitted")
    assert [(one.offset, one.value) for one in every] == [(0, b"committed"), (2, b"aborted")]
    assert [one.value for one in broker.records("orders", 1)] == [b"plain"]
    assert broker.committed("group", "orders", 0) == 1


def test_a_store_serves_the_records_and_offsets_of_a_broker(make_broker, tmp_path):
    broker = make_broker()
    broker.create_topics({"orders": 2})
    with broker.producer("id-of-the-broker") as producer:
        producer.begin_transaction()
        producer.send("orders", b"committed", partition=0)
        for offset in (2, 1):  # A batch each, and all begin with sequence 0.
            offsets = {KafkaPartition("orders", 0): KafkaOffset(offset, "", -1)}
            producer.send_offsets_to_transaction(offsets, "group")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("orders", b"aborted", partition=0).get(60)
        producer.abort_transaction()
    broker.stop()
    eoslog.import_kafka(broker.logs, tmp_path / "store")
    with eoslog.open(tmp_path / "store") as store:
        assert store.verify() == []
        with store.consumer(group="group") as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            assert consumer.committed(TopicPartition("orders", 0)) == 1
            consumer.seek(TopicPartition("orders", 0), 0)
            assert [(one.offset, one.value) for one in consumer.poll(timeout=0)] == [
                (0, b"committed")
            ]
        assert store.describe_transaction("id-of-the-broker").transaction_state == "CompleteAbort"
