"""A broker's logs with transactions of each version in a store: sound, and rightly gone on with."""

import pytest
from cli_calls import DONE, call
from kafka_broker import run_tool

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = (b"commit", b"abort", b"commit", b"abort", b"abort", b"commit")


def run_transactions(broker, transactional_id, ends):
    with broker.producer(transactional_id) as producer:
        for number, end in enumerate(ends):
            producer.begin_transaction()
            value = b"%s-%s-%d" % (end, transactional_id.encode(), number)
            for partition in (0, 1):
                producer.send("t", value, partition=partition).get(60)
            if end == b"commit":
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def committed(store):
    with store.consumer(isolation_level="read_committed") as consumer:
        found = []
        for where in (T0, T1):
            consumer.assign([where])
            consumer.seek(where, 0)
            found.append([one.value for one in consumer.poll(timeout=0)])
        return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_logs_with_older_transactions(make_broker, tmp_path, version, clean):
    broker = make_broker(transaction_version=version)
    broker.create_topics({"t": 2})
    run_transactions(broker, "x", ENDS)
    run_transactions(broker, "y", ENDS)
    run_transactions(broker, "x", ENDS[:2])
    with broker.producer("open") as producer:
        producer.begin_transaction()
        producer.send("t", b"never", partition=0).get(60)
        (broker.stop if clean else broker.kill)()
    broker.start()
    expected = [[one.value for one in broker.records("t", number)] for number in (0, 1)]
    assert expected[1] and b"never" not in expected[0]
    (broker.stop if clean else broker.kill)()
    path = tmp_path / "store"
    eoslog.import_kafka(broker.logs, path)
    for _ in range(2):
        with eoslog.open(path) as store:
            assert store.verify() == []
            assert committed(store) == expected
    with eoslog.open(path) as store:
        for transactional_id in ("x", "y", "open"):
            producer = store.producer(transactional_id=transactional_id)
            producer.init_transactions()
            with producer.transaction():
                for number in (0, 1):
                    producer.send("t", transactional_id.encode(), partition=number)
        added = [b"x", b"y", b"open"]
        assert committed(store) == [values + added for values in expected]
        assert store.verify() == []


def run_java_transactions(broker):
    """Some transactions of a Java client, which follows the version of the broker."""
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "t", "--num-records", "40", "--record-size", "10", "--throughput", "100"),
        *("--transactional-id", "java", "--transaction-duration-ms", "50"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap_servers}"),
    )


def test_logs_in_which_the_version_was_raised(make_broker, tmp_path):
    broker = make_broker(transaction_version=0)
    broker.create_topics({"t": 2})
    run_transactions(broker, "x", ENDS)
    run_java_transactions(broker)
    run_tool(
        "org.apache.kafka.tools.FeatureCommand",
        *("--bootstrap-server", broker.bootstrap_servers),
        *("upgrade", "--feature", "transaction.version=2"),
    )
    run_java_transactions(broker)
    run_transactions(broker, "x", ENDS)
    expected = [[one.value for one in broker.records("t", number)] for number in (0, 1)]
    assert sum(map(len, expected)) == 80 + 2 * 6
    broker.stop()
    path = tmp_path / "store"
    eoslog.import_kafka(broker.logs, path)
    answer = call("verify", "--store", path, "--repair", "--json")
    assert (answer.status, answer.json["problems"], answer.json["changes"]) == (DONE, [], [])
    with eoslog.open(path) as store:
        assert committed(store) == expected
        for transactional_id in ("x", "java"):
            producer = store.producer(transactional_id=transactional_id)
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"after", partition=0)
        assert committed(store) == [expected[0] + [b"after"] * 2, expected[1]]
        assert store.verify() == []
