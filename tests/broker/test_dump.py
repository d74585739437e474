"""`eoslog dump` of a store's files, against Kafka's tool, line by line."""

import pytest
from cli_calls import DONE, call
from kafka_broker import dump_log, partition_folders

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.broker

DECODERS = {
    "__transaction_state": "--transaction-log-decoder",
    "__consumer_offsets": "--offsets-decoder",
}


def fill(path):
    with eoslog.open(path, create=True) as store:
        store.create_topic("t", 2)
        for number in range(3):
            producer = store.producer(transactional_id="x")
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"v", key=b"k", headers=[("h", b"x")], partition=0)
            producer.send("t", None, key=b"k", partition=1)
            producer.send("t", b"v", partition=1)
            producer.send_offsets_to_transaction({TopicPartition("t", 0): number}, "g")
            producer.abort_transaction() if number == 1 else producer.commit_transaction()
        with store.producer(name="named") as producer:
            producer.send("t", b"v", partition=0)
        with store.producer(transactional_id="bulk", staged=True) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"v", partition=0)
        with store.consumer(group="members") as consumer:
            consumer.subscribe(["t"])
            consumer.poll(timeout=5)
            consumer.commit()


def test_every_line_is_kafkas(tmp_path):
    path = tmp_path / "store"
    fill(path)
    logs = [log for folder in partition_folders(path) for log in folder.glob("*.log")]
    assert len(logs) > 4
    for log in logs:
        decoder = DECODERS.get(log.parent.name.rpartition("-")[0], "--print-data-log")
        answer = call("dump", "--print-data-log", log)
        assert answer.status == DONE
        assert answer.stdout == dump_log(log, decoder), log
