"""A topic that is deleted and made again is another one, for writers and readers alike."""

import pytest
from harness.crew import started
from short_form import short_form

import eoslog
from eoslog import TopicPartition
from eoslog.errors import TransactionAbortableError, UnknownTopicOrPartitionError
from eoslog.producer.producer import ProducerInternals

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
    with started(code) as other:
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
@pytest.mark.parametrize("partitions", short_form([1, 2, 3], 1, 3))
@pytest.mark.parametrize(
    "look", short_form(["none", "next_sequence", "send", "append"], "none", "send")
)
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
@pytest.mark.parametrize("polled", [0, 4, 10])
@pytest.mark.parametrize("committed", [True, False])
def test_a_member_of_a_group_reads_the_new_one_from_its_beginning(
    store, make_again, polled, committed
):
    producer = store.producer()
    producer.append("rows", 0, values=[b"old %d" % number for number in range(10)])
    with store.consumer(group="readers") as consumer:
        consumer.subscribe(["rows"])
        found = consumer.poll(1, max_records=polled) if polled else []
        assert len(found) == polled
        if committed and polled:
            consumer.commit()
        make_again(store, 2)
        new = [b"new %d" % number for number in range(10)]
        producer.append("rows", 0, values=new)
        read = []
        for _ in range(20):
            try:
                read += [record.value for record in consumer.poll(0.05)]
            except UnknownTopicOrPartitionError:
                assert not read
            if len(read) >= len(new):
                break
        assert read == new
        consumer.commit()
        assert consumer.committed(TopicPartition("rows", 0)) == 10


@everywhere
def test_what_is_gathered_for_the_new_one_stays(store, make_again):
    producer = store.producer(config={"linger.ms": 60_000})
    producer.append("rows", 0, values=[b"old"])
    make_again(store, 3)
    assert producer.next_sequence("rows", 0) == 0
    producer.send("rows", b"new", partition=2)
    # As the background thread does some time after another process deleted it.
    ProducerInternals(producer).forget_topic("rows")
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


@everywhere
@named_or_not
def test_what_was_gathered_for_a_second_one_is_lost_with_it(store, make_again, name):
    producer = store.producer(name=name, config={"linger.ms": 60_000})
    producer.append("rows", 0, values=[b"first"])
    make_again(store, 2)
    producer.send("rows", b"second", partition=0)
    make_again(store, 2)
    with pytest.raises(UnknownTopicOrPartitionError, match="with 1 records"):
        producer.flush()
    producer.send("rows", b"third", partition=0)
    producer.flush()
    assert values_of(store, 0) == [b"third"]
    assert producer.next_sequence("rows", 0) == 1


@everywhere
@pytest.mark.parametrize("wrote_before", short_form([True, False], True))
@pytest.mark.parametrize("end", short_form(["commit", "flush", "append"], "commit", "append"))
def test_a_transaction_that_gathered_for_the_old_one_is_not_committed(
    store, make_again, wrote_before, end
):
    producer = store.producer(transactional_id="loop")
    producer.init_transactions()
    if wrote_before:
        with producer.transaction():
            producer.send("rows", b"before", partition=0)
    producer.begin_transaction()
    producer.send("rows", b"gathered", partition=0)
    make_again(store, 3)
    with pytest.raises((UnknownTopicOrPartitionError, TransactionAbortableError), match="deleted"):
        if end == "append":
            producer.append("rows", 0, values=[b"appended"])
        elif end == "flush":
            producer.flush()
        producer.commit_transaction()
    producer.abort_transaction()
    assert values_of(store, 0) == []
    with producer.transaction():
        producer.send("rows", b"new", partition=0)
    assert values_of(store, 0) == [b"new"]
