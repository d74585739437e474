"""A topic that is deleted and made again is another one: for its producers, whoever did it."""

import pytest
from other_process import OtherProcess

import eoslog
from eoslog import TopicPartition
from eoslog.errors import UnknownTopicOrPartitionError

MADE_AGAIN = """
import eoslog
with eoslog.open({path!r}, durability=None) as store:
    store.delete_topic("rows")
    store.create_topic("rows", partitions={partitions})
"""
# More than there is room for in a batch that holds something.
LARGE = bytes(20_000)


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as store:
        store.create_topic("rows", partitions=2)
        yield store


def made_again_here(store, partitions):
    store.delete_topic("rows")
    store.create_topic("rows", partitions=partitions)


def made_again_elsewhere(store, partitions):
    code = MADE_AGAIN.format(path=str(store.path), partitions=partitions)
    with OtherProcess(code) as other:
        other.end()


def values_of(store, partition):
    consumer = store.consumer()
    consumer.assign([TopicPartition("rows", partition)])
    return [record.value for record in consumer.poll(0)]


everywhere = pytest.mark.parametrize("make_again", [made_again_here, made_again_elsewhere])
named_or_not = pytest.mark.parametrize("name", ["importer", None])


@everywhere
@named_or_not
def test_the_numbers_begin_anew(store, make_again, name):
    producer = store.producer(name=name)
    producer.append("rows", 0, values=[b"old"] * 100)
    assert producer.next_sequence("rows", 0) == 100
    make_again(store, 3)
    assert [producer.next_sequence("rows", number) for number in range(3)] == [0, 0, 0]
    for number in range(producer.next_sequence("rows", 0), 3):
        producer.send("rows", b"new %d" % number, partition=0)
    producer.flush()
    assert producer.next_sequence("rows", 0) == 3
    assert values_of(store, 0) == [b"new 0", b"new 1", b"new 2"]
    producer.append("rows", 2, values=[b"new"])
    assert producer.next_sequence("rows", 2) == 1


@everywhere
@named_or_not
@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("look", ["none", "next_sequence", "send", "append"])
def test_what_was_gathered_for_the_old_one_is_lost_and_told_once(
    store, make_again, name, partitions, look
):
    producer = store.producer(name=name, config={"linger.ms": 60_000})
    producer.append("rows", 0, values=[b"old"])
    producer.send("rows", b"gathered", partition=0)
    make_again(store, partitions)
    new, told = [], []

    def call(function, *arguments, **named):
        try:
            function(*arguments, **named)
        except UnknownTopicOrPartitionError as error:
            told.append(str(error))

    if look == "next_sequence":
        assert producer.next_sequence("rows", 0) == 0
        producer.send("rows", b"new", partition=0)
        new.append(b"new")
    elif look == "append":
        producer.append("rows", 0, values=[b"new"])
        new.append(b"new")
    elif look == "send":
        # The batch is full: what is in it is to be appended first. Unless the background thread
        # has met the new topic before, it is this call that tells.
        call(producer.send, "rows", LARGE, partition=0)
        new += [] if told else [LARGE]
    call(producer.flush)
    call(producer.flush)
    assert told == ["topic 'rows' was deleted with 1 records that were gathered for it"]
    assert values_of(store, 0) == new
    assert producer.next_sequence("rows", 0) == len(new)


@everywhere
def test_what_is_gathered_for_the_new_one_stays(store, make_again):
    producer = store.producer(config={"linger.ms": 60_000})
    producer.append("rows", 0, values=[b"old"])
    make_again(store, 3)
    assert producer.next_sequence("rows", 0) == 0
    producer.send("rows", b"new", partition=2)
    # As the background thread does some time after another process deleted it.
    producer.forget_topic("rows")
    producer.flush()
    assert values_of(store, 2) == [b"new"]


@everywhere
def test_what_waited_for_linger_ms_is_told_by_the_next_flush(store, make_again):
    producer = store.producer(config={"linger.ms": 60_000})
    producer.append("rows", 0, values=[b"old"])
    producer.send("rows", b"gathered", partition=0)
    make_again(store, 1)
    assert producer._append_waiting(0) is None
    with pytest.raises(UnknownTopicOrPartitionError, match="with 1 records"):
        producer.flush()
    assert values_of(store, 0) == []
