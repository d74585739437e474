"""Store.snapshot: offsets that cut no transaction in two."""

import threading

import pytest
from prompted_process import PromptedProcess

import eoslog
from eoslog import TopicPartition
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.store import consistent_snapshot


@pytest.fixture
def store(tmp_path):
    with eoslog.open(tmp_path / "store", create=True, durability="process") as opened:
        opened.create_topic("t", partitions=3)
        yield opened


def producer(store, transactional_id):
    made = store.producer(transactional_id=transactional_id)
    made.init_transactions()
    return made


def write(made, *partitions, value=b"v"):
    for number in partitions:
        made.append("t", partition=number, values=[value])


def committed_below(store, offsets):
    """The values that a read_committed reader sees below the offsets, by partition."""
    seen = {}
    for where, upper_bound in offsets.items():
        consumer = store.consumer()
        consumer.assign([where])
        values = []
        while consumer.position(where) < upper_bound:
            for record in consumer.poll(timeout=0):
                if record.offset < upper_bound:
                    values.append(record.value)
        seen[where] = values
    return seen


def test_a_quiet_store_is_cut_at_its_ends(store):
    made = producer(store, "one")
    with made.transaction():
        write(made, 0, 1)
    assert store.snapshot(["t"]) == {
        TopicPartition("t", 0): 2,
        TopicPartition("t", 1): 2,
        TopicPartition("t", 2): 0,
    }
    assert store.snapshot() == store.snapshot(["t"])


def test_a_topic_that_does_not_exist_is_named(store):
    with pytest.raises(UnknownTopicOrPartitionError, match="'nothing'"):
        store.snapshot(["nothing"])


def test_a_transaction_behind_an_open_one_is_left_out_everywhere(store):
    held, made = producer(store, "held"), producer(store, "made")
    held.begin_transaction()
    write(held, 0)
    with made.transaction():
        write(made, 0, 1, 2)
    # Partition 0 is held back in front of the committed one: it must not show in the others.
    assert set(store.snapshot(["t"]).values()) == {0}
    held.commit_transaction()
    assert store.snapshot(["t"]) == {
        TopicPartition("t", 0): 4,
        TopicPartition("t", 1): 2,
        TopicPartition("t", 2): 2,
    }


def test_leaving_one_out_leaves_out_those_that_hang_on_it(store):
    held, first, second = (producer(store, name) for name in ("held", "first", "second"))
    with second.transaction():
        write(second, 1, 2, value=b"whole")
    held.begin_transaction()
    write(held, 0)
    with first.transaction():
        write(first, 0, 1)
    with second.transaction():
        write(second, 1, 2)
    # `first` is cut out of partition 1, so `second` behind it there, and so out of partition 2.
    cuts = store.snapshot(["t"])
    assert committed_below(store, cuts) == {
        TopicPartition("t", 0): [],
        TopicPartition("t", 1): [b"whole"],
        TopicPartition("t", 2): [b"whole"],
    }
    held.abort_transaction()


def test_the_same_producer_before_and_behind_the_cut(store):
    held, made = producer(store, "held"), producer(store, "made")
    with made.transaction():
        write(made, 0, 1, value=b"before")
    held.begin_transaction()
    write(held, 0)
    with made.transaction():
        write(made, 0, 1, value=b"behind")
    cuts = store.snapshot(["t"])
    seen = committed_below(store, cuts)
    assert seen[TopicPartition("t", 0)] == seen[TopicPartition("t", 1)] == [b"before"]


def test_no_snapshot_cuts_a_transaction_while_others_commit(store):
    stop = threading.Event()
    begun = threading.Barrier(4)
    failures = []

    def work(name):
        made = producer(store, name)
        count = 0
        while not stop.is_set() and count < 2000:
            with made.transaction():
                write(made, 0, 1, 2, value=f"{name}-{count}".encode())
            count += 1
            if count == 20:
                begun.wait(timeout=60)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    try:
        begun.wait(timeout=60)
        snapshots = [store.snapshot(["t"]) for _ in range(40)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for cuts in snapshots[::8]:
        seen = [sorted(values) for values in committed_below(store, cuts).values()]
        if not seen[0] == seen[1] == seen[2]:
            failures.append(cuts)
    assert failures == []
    assert max(max(cuts.values()) for cuts in snapshots) > 0


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_another_process_deletes_meanwhile(store, named, again, monkeypatch):
    store.create_topic("u", partitions=2)
    first = store.topics()["u"]
    consistent_offsets = consistent_snapshot.consistent_offsets
    with PromptedProcess() as other:
        other.run("store = eoslog.open(path, durability=None)", path=str(store.path))

        def interfere(*arguments):
            if store.topics().get("u") == first:
                other.run("store.delete_topic('u')")
                if again:
                    other.run("store.create_topic('u')")
            return consistent_offsets(*arguments)

        monkeypatch.setattr(consistent_snapshot, "consistent_offsets", interfere)
        if named:
            with pytest.raises(UnknownTopicOrPartitionError, match="'u' was deleted meanwhile"):
                store.snapshot(["t", "u"])
        else:
            partitions = [where for where in store.snapshot() if where.topic == "u"]
            assert partitions == ([TopicPartition("u", 0)] if again else [])
