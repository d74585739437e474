"""A store that grew up here moves into a broker, goes on there, and comes back."""

from __future__ import annotations

import pytest
from kafka import OffsetAndMetadata as KafkaOffset
from kafka import TopicPartition as KafkaPartition
from store_copies import copy_store
from whole_store import T0, fill, plain, records_of, started

import eoslog
from eoslog import TopicPartition

pytestmark = pytest.mark.broker

LEVELS = ("read_committed", "read_uncommitted")
GROUPS = {"group": T0, "group-of-transactions": T0, "group-of-a-job": TopicPartition("t", 1)}


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_store_comes_back_with_all_that_it_had_and_got(make_broker, tmp_path, end):
    path, exported = tmp_path / "store", tmp_path / "exported"
    with eoslog.open(path, create=True) as store:
        fill(store)
        if end == "killed":
            copy_store(path, exported)
        before = {level: records_of(store, level) for level in LEVELS}
        topics = {name: (one.topic_id, one.partitions) for name, one in store.topics().items()}
        producer_id = store.describe_transaction("id").producer_id
    if end == "closed":
        copy_store(path, exported)
    eoslog.export_kafka(exported, tmp_path / "logs")

    broker = make_broker(logs=tmp_path / "logs")
    with broker.producer("id") as producer:
        for number, finish in enumerate((producer.commit_transaction, producer.abort_transaction)):
            producer.begin_transaction()
            for partition in (0, 2):
                producer.send(
                    "t",
                    b"of the broker %d" % number,
                    key=b"k",
                    partition=partition,
                    headers=[("from", b"broker")],
                    timestamp_ms=1_800_000_000_000 + number,
                ).get(60)
            offsets = {KafkaPartition("t", 0): KafkaOffset(50 + number, "moved", -1)}
            producer.send_offsets_to_transaction(offsets, "group-of-transactions")
            finish()
    with broker.producer(enable_idempotence=True) as producer:
        producer.send("kept", b"of the broker", key=b"k", partition=0).get(60)
    with broker.consumer("group") as consumer:
        consumer.commit({KafkaPartition("t", 0): KafkaOffset(99, "", -1)})
    there = {
        level: {
            where: [plain(one) for one in broker.records(*where, isolation_level=level)]
            for where in before[level]
        }
        for level in LEVELS
    }
    committed = {group: broker.committed(group, *where) for group, where in GROUPS.items()}
    broker.stop()

    back = tmp_path / "back"
    done = eoslog.import_kafka(broker.logs, back)
    assert (done.unclean, done.cut, done.holes, done.missing) == ((), (), (), ())
    with eoslog.open(back) as store:
        assert store.verify() == []
        assert {
            name: (one.topic_id, one.partitions) for name, one in store.topics().items()
        } == topics
        assert {level: records_of(store, level) for level in LEVELS} == there
        for level in LEVELS:
            for where, records in before[level].items():
                assert there[level][where][: len(records)] == records
        assert [one[3] for one in there["read_committed"][T0]][-1] == b"of the broker 0"
        assert [one[3] for one in there["read_uncommitted"][T0]][-1] == b"of the broker 1"
        for group, where in GROUPS.items():
            assert store.groups()[group][where].offset == committed[group]
        assert committed == {"group": 99, "group-of-transactions": 50, "group-of-a-job": 3}
        assert store.describe_transaction("id").producer_id == producer_id
        producer = started(store, "id")
        with producer.transaction():
            producer.send("t", b"back", partition=0)
            producer.send_offsets_to_transaction({T0: 60}, "group-of-transactions")
        assert store.groups()["group-of-transactions"][T0].offset == 60
        assert records_of(store, "read_committed")[T0][-1][3] == b"back"
        with store.producer() as plain_producer:
            plain_producer.append("t", 1, [b"plain"])
        assert records_of(store, "read_committed")[TopicPartition("t", 1)][-1][3] == b"plain"
        assert store.verify() == []
