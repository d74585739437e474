"""A name counts from 0 in a topic that was made again, whatever it was doing meanwhile."""

from __future__ import annotations

import random
import threading
import time

import pytest

from eoslog import TopicPartition
from eoslog.producer.identity import ProducerIdentity
from eoslog.store.store import engine_of, parts_of
from eoslog.transactions.named_producers import NamedProducers
from eoslog.transactions.state_key import NAMED_PRODUCER

ROUNDS = 40
VALUES = [b"%d" % number for number in range(5)]


@pytest.fixture
def topic(store):
    store.create_topic("t", partitions=2)
    with store.producer(name="n") as producer:
        producer.append("t", 0, VALUES)
    return store


def make_again(store, name="t"):
    store.delete_topic(name)
    store.create_topic(name, partitions=2)


def in_a_thread(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join()


def values_in(store):
    records, _ = engine_of(store).partition("t", 0).fetch_records(0, 1000, 1 << 20)
    return [record.value for record in records]


def goes_on_from_zero(store, producer):
    """It, and who has the name after it."""
    assert producer.next_sequence("t", 0) == 0
    producer.append("t", 0, VALUES[:2])
    assert producer.next_sequence("t", 0) == 2
    producer.close()
    with store.producer(name="n") as again:
        assert again.next_sequence("t", 0) == 2
        for value in VALUES[2:]:
            again.send("t", value, partition=0)
    assert values_in(store) == VALUES
    assert store.verify() == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_while_the_producer_is_made(topic, monkeypatch, moment):
    """It knows the name's record, and the store does not know it yet."""
    ready = ProducerIdentity.ready

    def made_again_first(identity):
        monkeypatch.undo()
        in_a_thread(make_again, topic)
        return ready(identity)

    monkeypatch.setattr(ProducerIdentity, "ready", made_again_first)
    producer = topic.producer(name="n")
    if moment == "after":
        # Another partition of the topic is written to first.
        producer.append("t", 1, [b"x"])
    goes_on_from_zero(topic, producer)


def test_while_the_name_is_opened(topic, monkeypatch):
    """The deletion waits for it, or it for the deletion."""
    succeed = NamedProducers.succeed
    threads = []

    def beside(names, older):
        monkeypatch.undo()
        threads.append(threading.Thread(target=make_again, args=(topic,)))
        threads[0].start()
        newer = succeed(names, older)
        time.sleep(0.05)
        return newer

    monkeypatch.setattr(NamedProducers, "succeed", beside)
    producer = topic.producer(name="n")
    threads[0].join()
    goes_on_from_zero(topic, producer)


def test_a_producer_that_is_not_told(topic, monkeypatch):
    """What it writes down of another topic does not bring the deleted one's count back."""
    topic.create_topic("other")
    producer = topic.producer(name="n")
    monkeypatch.setattr(parts_of(topic), "producers", list)
    make_again(topic)
    monkeypatch.undo()
    producer.append("other", 0, VALUES)
    state = parts_of(topic).files.state_log.get(NAMED_PRODUCER, "n")
    assert str(TopicPartition("t", 0)) not in state["positions"]
    goes_on_from_zero(topic, producer)


def test_a_producer_that_wrote_and_is_not_told(topic, monkeypatch):
    producer = topic.producer(name="n")
    producer.append("t", 0, VALUES)
    monkeypatch.setattr(parts_of(topic), "producers", list)
    make_again(topic)
    monkeypatch.undo()
    goes_on_from_zero(topic, producer)


def test_at_any_moment_of_its_opening(topic):
    noise = random.Random(1)
    for _ in range(ROUNDS):
        made = []

        def opened(pause_s, made=made):
            time.sleep(pause_s)
            made.append(topic.producer(name="n"))

        thread = threading.Thread(target=opened, args=(noise.random() * 0.004,))
        thread.start()
        time.sleep(noise.random() * 0.004)
        make_again(topic)
        thread.join()
        with made[0] as producer:
            assert producer.next_sequence("t", 0) == 0
            producer.append("t", 0, VALUES)
    assert values_in(topic) == VALUES
