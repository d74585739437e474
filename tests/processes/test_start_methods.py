"""fork, forkserver, spawn and pickle: a store is opened where it is used, and nowhere else."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import threading

import pytest
from harness.crew import TIMEOUT_S, Crew, MemberError
from harness.fork import die, dies_in_child, in_child
from processes import store_calls
from processes.lanes import TOPIC, make_store, records_of

import eoslog
from eoslog import TopicPartition
from eoslog.errors import ForkedProcessError

METHODS = ("fork", "forkserver", "spawn")


def write_in_a_child(path, name, count):
    """What a worker of a pool does: opens the store for itself, and closes it."""
    with eoslog.open(path, durability="process") as store, store.producer(name=name) as producer:
        for number in range(count):
            producer.append(TOPIC, partition=0, values=[f"{name}:{number}".encode()])
    return os.getpid()


def use_a_pool(hand, method, workers, tasks):
    """With the store open here, and used before, meanwhile and after."""
    path = str(hand.store.path)
    context = multiprocessing.get_context(method)
    with hand.store.producer() as producer:
        producer.append(TOPIC, partition=0, values=[b"parent:0"])
        with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
            futures = [
                pool.submit(write_in_a_child, path, f"worker-{number}", 20)
                for number in range(tasks)
            ]
            producer.append(TOPIC, partition=0, values=[b"parent:1"])
            pids = {future.result(TIMEOUT_S) for future in futures}
        producer.append(TOPIC, partition=0, values=[b"parent:2"])
    assert os.getpid() not in pids
    return len(store_calls.values_of(hand, TOPIC))


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_a_pool_open_it_for_themselves(tmp_path, method):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        member, other = crew.join("parent"), crew.join("other")
        member.begin(use_a_pool, method, 2, 4)
        assert member.answer(2 * TIMEOUT_S) == 3 + 4 * 20
        assert len(other.call(store_calls.values_of, TOPIC)) == 3 + 4 * 20
        crew.all_leave()
    with eoslog.open(path) as store:
        values = [one.decode() for one in records_of(store)[0].values()]
        for number in range(4):
            name = f"worker-{number}"
            assert [one for one in values if one.startswith(f"{name}:")] == [
                f"{name}:{index}" for index in range(20)
            ]
        assert store.verify() == []


def refused_in_a_fork(hand, method_of_use):
    """Everything inherited is refused in the child, which then opens the store for itself."""
    store = hand.store
    producer, consumer = store.producer(), store.consumer(group="g")
    transactional = store.producer(transactional_id="t")
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.send(TOPIC, value=b"of the parent", partition=0)
    transactional.flush()
    consumer.assign([TopicPartition(TOPIC, 0)])
    producer.append(TOPIC, partition=0, values=[b"before"])

    def child():
        for use in (
            store.topics,
            lambda: store.create_topic("never"),
            lambda: store.partition(TOPIC, 0),
            lambda: producer.append(TOPIC, partition=0, values=[b"never"]),
            transactional.commit_transaction,
            transactional.abort_transaction,
            lambda: consumer.poll(timeout=0),
            consumer.commit,
            store.producer,
            store.consumer,
            store.flush,
            store.snapshot,
            store.groups,
            store.transactions,
        ):
            with pytest.raises(ForkedProcessError):
                use()
        store.close()
        with eoslog.open(store.path, durability="process") as own, own.producer() as mine:
            mine.append(TOPIC, partition=0, values=[b"of the child"])
            if method_of_use == "killed":
                die()

    assert dies_in_child(child) == (method_of_use == "killed")
    producer.append(TOPIC, partition=0, values=[b"after"])
    transactional.commit_transaction()
    return store_calls.values_of(hand, TOPIC)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_forked_child_opens_the_store_beside_its_parent(tmp_path, how):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        member = crew.join("parent")
        found = member.call(refused_in_a_fork, how)
        assert found == ["of the parent", "before", "of the child", "after"]
        member.leave()
    assert (path / ".kafka_cleanshutdown").exists()


def forks_of_forks(hand, depth):
    """Each opens the store while its parent has it open."""
    with hand.store.producer() as producer:
        producer.append(TOPIC, partition=0, values=[b"%d" % depth])
    if depth == 0:
        return

    def child():
        inner = type(hand)()
        inner.open(str(hand.store.path), durability="process")
        forks_of_forks(inner, depth - 1)
        inner.close()

    in_child(child)
    with hand.store.producer() as producer:
        producer.append(TOPIC, partition=0, values=[b"%d" % depth])


def test_forks_of_forks(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        member = crew.join()
        member.call(forks_of_forks, 3)
        assert member.call(store_calls.values_of, TOPIC) == ["3", "2", "1", "0", "1", "2", "3"]
        member.leave()


def fork_while_threads_write(hand, rounds):
    """Forks at any instant of other threads' appends; the child must not wait for their locks.

    Only once they append: a fork within a thread's first import leaves Python's lock of the module
    to the child, for good.
    """
    stop = False
    writing = threading.Semaphore(0)

    def write():
        with hand.store.producer() as producer:
            producer.append(TOPIC, partition=0, values=[b"x" * 100])
            writing.release()
            while not stop:
                producer.append(TOPIC, partition=0, values=[b"x" * 100])

    def child():
        with eoslog.open(hand.store.path, durability="process") as own:
            own.partition(TOPIC, 0).log_end_offset  # noqa: B018
            with own.producer() as producer:
                producer.append(TOPIC, partition=0, values=[b"child"])

    for _ in range(2):
        hand.in_thread(write)
    for _ in range(2):
        assert writing.acquire(timeout=TIMEOUT_S)
    for _ in range(rounds):
        in_child(child, seconds=60)
    stop = True
    return len([one for one in store_calls.values_of(hand, TOPIC) if one == "child"])


def test_forks_while_threads_of_the_parent_write(tmp_path):
    path = tmp_path / "store"
    make_store(path, 1, segment_bytes=1 << 20)
    with Crew(path) as crew:
        member = crew.join()
        member.begin(fork_while_threads_write, 25)
        assert member.answer(2 * TIMEOUT_S) == 25
        member.leave()


def pickled(hand, what):
    made = {
        "store": lambda: hand.store,
        "producer": hand.store.producer,
        "named": lambda: hand.store.producer(name="n"),
        "transactional": lambda: hand.store.producer(transactional_id="t"),
        "consumer": hand.store.consumer,
        "partition": lambda: hand.store.partition(TOPIC, 0),
    }[what]()
    return len(pickle.dumps(made))


@pytest.mark.parametrize(
    "what", ["store", "producer", "named", "transactional", "consumer", "partition"]
)
def test_what_is_open_cannot_be_pickled(tmp_path, what):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        member = crew.join()
        with pytest.raises(MemberError, match="TypeError"):
            member.call(pickled, what)
        member.leave()


def open_at_exit(hand, path):
    """A process that ends without closing the store: the interpreter's end closes it."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=leave_open, args=(path,))
    process.start()
    process.join(TIMEOUT_S)
    return process.exitcode


def leave_open(path):
    store = eoslog.open(path, durability="process")
    store.producer().append(TOPIC, partition=0, values=[b"left open"])


@pytest.mark.parametrize("beside", [False, True])
def test_a_store_left_open_at_exit_is_left_in_order(tmp_path, beside):
    path = tmp_path / "store"
    make_store(path, 1)
    with Crew(path) as crew:
        if beside:
            other = crew.join("other")
        starter = crew.hire("starter")
        assert starter.call(open_at_exit, str(path)) == 0
        assert (path / ".kafka_cleanshutdown").exists() is not beside
        if beside:
            assert other.call(store_calls.values_of, TOPIC) == ["left open"]
        crew.all_leave()
    assert (path / ".kafka_cleanshutdown").exists()
