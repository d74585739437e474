"""Transactional ids and producer ids that a store and a broker use in turns, in the same files."""

import pytest
from kafka_broker import wait_until

import eoslog

pytestmark = pytest.mark.broker


def commit_once(path, transactional_id, value):
    with eoslog.open(path) as store:
        producer = store.producer(transactional_id=transactional_id)
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", value, partition=0)


def values_of(path):
    with eoslog.open(path) as store, store.consumer(isolation_level="read_committed") as consumer:
        consumer.assign([eoslog.TopicPartition("t", 0)])
        assert not store.verify()
        return [one.value for one in consumer.poll(timeout=0)]


def commit_in_broker(broker, transactional_id, value):
    with broker.producer(transactional_id) as producer:
        producer.begin_transaction()
        producer.send("t", value, partition=0).get(60)
        producer.commit_transaction()


def test_the_coordinator_of_a_broker_goes_on_with_an_id_of_a_store(make_broker, tmp_path):
    with eoslog.open(tmp_path / "store", create=True) as store:
        store.create_topic("t", partitions=1)
    for number in range(30):
        commit_once(tmp_path / "store", "x", b"store-%d" % number)
    broker = make_broker()
    broker.load(tmp_path / "store")
    commit_in_broker(broker, "x", b"broker")
    expected = [b"store-%d" % number for number in range(30)] + [b"broker"]
    assert [one.value for one in broker.records("t")] == expected
    wait_until(
        "the markers are written",
        lambda: "CompleteCommit" in broker.transactions("describe", "--transactional-id", "x"),
    )


def test_a_store_goes_on_with_an_id_of_a_broker(make_broker, tmp_path):
    broker = make_broker()
    broker.create_topics({"t": 1})
    for number in range(3):  # Each start of the broker raises the coordinator's epoch.
        commit_in_broker(broker, "x", b"broker-%d" % number)
        broker.stop()
        if number < 2:
            broker.start()
    path = tmp_path / "store"
    eoslog.import_kafka(broker.logs, path)
    with eoslog.open(path) as store:
        state = store.partition("t", 0).producers()[0]
        assert state.coordinator_epoch > 0
    commit_once(path, "x", b"store")
    assert values_of(path) == [b"broker-0", b"broker-1", b"broker-2", b"store"]
    with eoslog.open(path) as store:
        [after] = store.partition("t", 0).producers()
        assert after.coordinator_epoch == state.coordinator_epoch


def test_no_client_of_a_broker_is_taken_for_a_producer_of_a_store(make_broker, tmp_path):
    path = tmp_path / "store"
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", partitions=1)
        for number in range(300):
            store.producer().append("t", 0, [b"store-%d" % number])
    commit_once(path, "x", b"of x")
    broker = make_broker()
    broker.load(path)
    for number in range(3):
        with broker.producer(enable_idempotence=True) as producer:
            metadata = producer.send("t", b"broker-%d" % number, partition=0).get(60)
            assert metadata.offset == 302 + number  # After the marker.
    commit_in_broker(broker, "new", b"of new")
    expected = [b"store-%d" % number for number in range(300)]
    expected += [b"of x", b"broker-0", b"broker-1", b"broker-2", b"of new"]
    assert [one.value for one in broker.records("t")] == expected


def test_no_producer_of_a_store_is_taken_for_a_client_of_a_broker(make_broker, tmp_path):
    broker = make_broker()
    broker.create_topics({"t": 1})
    expected = []
    for number in range(5):
        with broker.producer(enable_idempotence=True) as producer:
            for part in range(2):
                expected.append(b"broker-%d-%d" % (number, part))
                producer.send("t", expected[-1], partition=0).get(60)
    commit_in_broker(broker, "x", b"of x")
    broker.stop()
    path = tmp_path / "store"
    eoslog.import_kafka(broker.logs, path)
    with eoslog.open(path) as store, store.producer() as producer, store.producer("name") as named:
        producer.append("t", 0, [b"anonymous"])
        named.append("t", 0, [b"named"])
        assert min(producer.producer_id, named.producer_id) >= 2**40
    commit_once(path, "new", b"of new")
    assert values_of(path) == [*expected, b"of x", b"anonymous", b"named", b"of new"]
