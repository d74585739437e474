"""The history of a test's clients, and what its assertion finds."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import suppress

import pytest

import eoslog
import eoslog.aio
from eoslog import TopicPartition
from eoslog.checking import Recorder
from eoslog.errors import IllegalStateError, StoreError, StoreFailedError


def copy_all(store, source, target, group):
    """The code under test: it knows nothing of a history."""
    producer = store.producer(transactional_id="copy")
    producer.init_transactions()
    with store.consumer(group) as consumer:
        consumer.subscribe([source])
        while records := consumer.poll(timeout=0.5, max_records=3):
            with producer.transaction():
                for record in records:
                    producer.send(target, b"copy of " + record.value)
                next_offset = {TopicPartition(source, 0): records[-1].offset + 1}
                producer.send_offsets_to_transaction(next_offset, consumer.group_metadata())


def test_what_went_right_is_clean(eoslog_history, eoslog_topic):
    store = eoslog_history.store
    store.create_topic("copies")
    with store.producer(name="import") as producer:
        producer.append(eoslog_topic, 0, [b"%d" % number for number in range(10)])
        assert producer.next_sequence(eoslog_topic, 0) == 10
    copy_all(store, eoslog_topic, "copies", "copies")
    eoslog_history.assert_exactly_once()
    with store.consumer() as consumer:
        consumer.assign([("copies", 0)])
        for record in consumer:
            if record.value == b"copy of 9":
                assert consumer.position(TopicPartition("copies", 0)) > record.offset
                break
        assert consumer.lag(TopicPartition("copies", 0)) == 0
        consumer.unsubscribe()
        with pytest.raises(AttributeError, match="'poll_arrow' of a consumer is not recorded"):
            _ = consumer.poll_arrow
    with pytest.raises(AttributeError, match="'discard_gathered' of a producer is not recorded"):
        _ = producer.discard_gathered
    assert "RecordedStore" in repr(store)
    eoslog_history.assert_exactly_once()


def test_what_would_pass_the_history_by_refuses_its_store(eoslog_history, eoslog_topic, tmp_path):
    store = eoslog_history.store
    with pytest.raises(AttributeError, match="'scan' of a store is not recorded"):
        store.scan(eoslog_topic)
    for call in (
        lambda: eoslog.aio.wrap(store),
        lambda: eoslog.export_topic(store, eoslog_topic, tmp_path / "out.jsonl"),
        lambda: eoslog.import_file(store, eoslog_topic, tmp_path / "in.jsonl"),
    ):
        with pytest.raises(TypeError, match="store must be a Store, got RecordedStore"):
            call()


@pytest.mark.parametrize("share", [False, True])
def test_a_loop_is_recorded(eoslog_history, eoslog_topic, share):
    store = eoslog_history.store
    store.create_topics({"copies": 2, "dead": 1})
    store.producer(name="import").append(eoslog_topic, 0, [b"%d" % one for one in range(30)])
    refused = []

    def copy(producer, records):
        for record in records:
            if int(record.value) % 10 == 3:
                raise ValueError(record.value)
            producer.send("copies", b"copy of " + record.value)
        if not refused:
            with pytest.raises(IllegalStateError) as error:
                producer.commit_transaction()
            refused.append(str(error.value))

    count = eoslog.read_process_write(
        store,
        copy,
        topics=[eoslog_topic],
        group="copy",
        share=share,
        max_records=8,
        dead_letter="dead",
        until_caught_up=True,
    )
    assert count == 30
    assert refused[0].startswith("read_process_write ends its transactions itself")
    eoslog_history.assert_exactly_once()
    lines = (eoslog_history.directory / "test.jsonl").read_text().splitlines()
    calls = Counter(json.loads(line)["kind"] for line in lines)
    assert calls["send"] >= 30 and calls["commit"] >= 4 and calls["poll"] >= 4
    with store.unrecorded.producer() as producer:
        producer.send("copies", b"copy of 7")
    with pytest.raises(AssertionError, match="duplicate: record 'copy of 7'"):
        eoslog_history.assert_exactly_once()


def test_a_record_that_is_there_twice_is_named(eoslog_store, eoslog_history, eoslog_topic):
    eoslog_history.store.producer(name="import").append(eoslog_topic, 0, [b"order-1", b"order-2"])
    eoslog_store.producer().append(eoslog_topic, 0, [b"order-2"])
    with pytest.raises(AssertionError) as found:
        eoslog_history.assert_exactly_once()
    first, second, *calls = str(found.value).splitlines()
    assert first == "not exactly once: 1 anomaly"
    place = f"{eoslog_topic}-0 offset"
    assert second == f"duplicate: record 'order-2' is at {place} 1 and at {place} 2"
    assert calls[0].startswith("  send of producer 1 'import', test.jsonl line ")


def test_an_input_that_was_processed_twice_is_named(eoslog_history, eoslog_topic):
    store = eoslog_history.store
    store.create_topic("copies")
    store.producer(name="import").append(eoslog_topic, 0, [b"first", b"second"])
    producer = store.producer(transactional_id="copy")
    producer.init_transactions()
    group = store.consumer("copies")
    group.subscribe([eoslog_topic])
    for records in ([b"copy of first"], [b"copy of first again"]):
        group.poll(timeout=5, max_records=1)
        group.seek(TopicPartition(eoslog_topic, 0), 0)
        with producer.transaction(inputs=[group]):
            producer.append("copies", 0, records)
            producer.send_offsets_to_transaction({TopicPartition(eoslog_topic, 0): 1}, "copies")
    with pytest.raises(AssertionError, match="offset-output divergence"):
        eoslog_history.assert_exactly_once()


def test_a_record_that_another_process_was_promised_is_named(eoslog_history, eoslog_topic):
    eoslog_history.store.producer(name="import").append(eoslog_topic, 0, [b"here"])
    with Recorder(eoslog_history.directory / "child.jsonl") as recorder:
        send = recorder.start("child", "send", topic=eoslog_topic, partition=0, value="lost")
        send.ok(offset=1)
    with pytest.raises(AssertionError, match="lost write: record 'lost'") as found:
        eoslog_history.assert_exactly_once()
    assert "send of child, child.jsonl line 2" in str(found.value)


def test_records_may_be_known_by_their_key(eoslog_store, eoslog_history, eoslog_topic):
    eoslog_history.identify_by(lambda key, value: key.decode())
    producer = eoslog_history.store.producer()
    for key in (b"a", b"b"):
        producer.send(eoslog_topic, b"the same value", key=key)
    producer.send(eoslog_topic, None, key=b"c")
    producer.flush()
    eoslog_history.assert_exactly_once()
    with pytest.raises(TypeError, match="callable"):
        eoslog_history.identify_by("key")
    many = [b"%d" % (number % 30) for number in range(60)]
    eoslog_store.producer().append(eoslog_topic, 0, many, keys=many)
    with pytest.raises(AssertionError, match="and 20 anomalies more"):
        eoslog_history.assert_exactly_once()


@pytest.mark.eoslog(durability="commit")
def test_a_history_goes_on_in_a_store_opened_again(eoslog_store, eoslog_history, eoslog_faults):
    eoslog_store.create_topic("orders")
    producer = eoslog_history.store.producer(name="import")
    with eoslog_faults.fail_sync("orders"), pytest.raises(StoreFailedError):
        producer.append("orders", 0, [b"1"])
        producer.flush()
    with suppress(StoreError):
        eoslog_store.close()
    eoslog_history.assert_exactly_once()  # It opens the store for that.
    with eoslog.open(eoslog_store.path) as store:
        producer = eoslog_history.record(store).producer(name="import")
        for number in range(producer.next_sequence("orders", 0), 3):
            producer.append("orders", 0, [b"%d" % (number + 1)])
        producer.flush()
        eoslog_history.assert_exactly_once()


def test_threads_have_clients_of_their_own(eoslog_history):
    eoslog_history.store.create_topic("orders", partitions=2)

    def write(partition: int) -> None:
        with eoslog_history.store.producer() as producer:
            for number in range(50):
                producer.send("orders", b"%d-%d" % (partition, number), partition=partition)

    threads = [threading.Thread(target=write, args=(number % 2,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eoslog_history.assert_exactly_once()
