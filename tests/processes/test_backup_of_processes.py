"""Backups beside processes and threads that write: what the copy holds of all their work."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.crew import started
from harness.fork import Fork
from staged_jobs import quick_directory
from stores import QUIET

import eoslog
from eoslog.bindings import shared_page
from eoslog.bindings.log_ends import LogEnds
from eoslog.bindings.shared_page import COUNTER_LOGS_OPENED
from eoslog.errors import StoreInUseError
from eoslog.store.store import engine_of

PARTITIONS = 3
TOPICS = ("a", "b")
CONFIG = {**QUIET, "eoslog.spare.segments": 0}
PLACES = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
CHAINS = 3
# So long a link waits for the next: more of them show no more, and take long to read.
PAUSE_S = 0.001


def create(path: Path, durability: str) -> eoslog.Store:
    store = eoslog.open(path, create=True, config=CONFIG, durability=durability)
    store.create_topics(dict.fromkeys(TOPICS, PARTITIONS), {"segment.bytes": 16384})
    return store


def values_in(store: eoslog.Store) -> list[bytes]:
    """What a `read_committed` reader finds, of all partitions."""
    with store.consumer() as consumer:
        consumer.assign([eoslog.TopicPartition(*place) for place in PLACES])
        found: list[bytes] = []
        while records := consumer.poll(timeout=0):
            found += [record.value or b"" for record in records]
        return found


# Chains: a link is appended after the one before it has returned, by another thread or process.


def add_links(fork: Fork, path: Path, reading: int, writing: int, transactional: bool) -> None:
    """Take the next number of a chain, append it, and hand the next one on; until the pipe ends."""
    with eoslog.open(path, config=CONFIG) as store:
        producer = store.producer(transactional_id=f"p{os.getpid()}" if transactional else None)
        if transactional:
            producer.init_transactions()
        fork.say("ready")
        while token := os.read(reading, 16):
            chain, number = map(int, token.split(b":"))
            value = b"chain:%d:%d" % (chain, number)
            # Each link elsewhere, in one place or in two.
            places = random.Random(f"{chain} {number}").sample(PLACES, 2 if transactional else 1)
            if transactional:
                producer.begin_transaction()
            for topic, partition in places:
                producer.append(topic, partition, [value])
            if transactional:
                producer.commit_transaction()
            time.sleep(PAUSE_S)
            with suppress(BrokenPipeError):
                os.write(writing, (b"%d:%d" % (chain, number + 1)).ljust(16))


def check_chains(values: list[bytes], copies: int) -> dict[int, int]:
    """Each chain has all its links up to the last, each so often; how many."""
    links: dict[int, list[int]] = defaultdict(list)
    for value in values:
        kind, chain, *number = value.split(b":")
        if kind == b"chain":
            links[int(chain)].append(int(number[0]))
    for chain, numbers in links.items():
        whole = [number for number in range(len(numbers) // copies) for _ in range(copies)]
        assert sorted(numbers) == whole, f"chain {chain} has a hole in it"
    return {chain: len(numbers) // copies for chain, numbers in links.items()}


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("durability", ["process", "commit"])
def test_no_record_is_there_without_those_that_came_before_it(tmp_path, transactional, durability):
    with quick_directory(tmp_path) as place:
        path = place / "store"
        store = create(path, durability)
        pipes = [os.pipe() for _ in range(CHAINS)]
        ring = [(pipes[one][0], pipes[(one + 1) % CHAINS][1], f"t{one}") for one in range(CHAINS)]

        def adds(reading: int, writing: int) -> Any:
            return lambda fork: add_links(fork, path, reading, writing, transactional)

        children = [Fork(adds(reading, writing)) for reading, writing, _ in ring]
        try:
            for child in children:
                child.hear()
            for chain in range(CHAINS):
                os.write(pipes[chain][1], (b"%d:0" % chain).ljust(16))
            lengths: dict[int, int] = {}
            for number in range(6):
                copy = place / f"copy{number}"
                store.backup(copy)
                with eoslog.open(copy, config=CONFIG) as of_then:
                    assert of_then.verify() == []
                    now = check_chains(values_in(of_then), 2 if transactional else 1)
                for chain, length in lengths.items():
                    assert now[chain] >= length
                lengths = now
            assert min(lengths.values()) > 0
        finally:
            for child in children:
                os.kill(child.pid, signal.SIGKILL)
                child.reap()
            for pair in pipes:
                for end in pair:
                    os.close(end)
        store.close()


def test_threads_of_the_same_process_go_on(tmp_path):
    with quick_directory(tmp_path) as place:
        store = create(place / "store", "process")
        is_over = threading.Event()
        turn = threading.Condition()
        appended = [0]

        def work() -> None:
            producer = store.producer()
            while not is_over.is_set():
                with turn:
                    topic, partition = PLACES[appended[0] % len(PLACES)]
                    producer.append(topic, partition, [b"chain:0:%d" % appended[0]])
                    appended[0] += 1
                time.sleep(PAUSE_S)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                before = appended[0]
                store.backup(place / f"copy{number}")
                with eoslog.open(place / f"copy{number}", config=CONFIG) as of_then:
                    assert check_chains(values_in(of_then), 1).get(0, 0) >= before
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        store.close()


# Holders of a lock that stand still, or die.

HOLDS = """
import eoslog
store = eoslog.open({path!r}, durability="process")
parts_of(store).checkpointer.stop()
partition = engine_of(store).partition("a", 0)
values = [bytes(900_000)]
partition.append_columns(values)
say("ready")
while True:
    partition.append_columns(values)
"""


def stopped_within_an_append(store: eoslog.Store, pid: int, place: Path) -> str:
    """Stop a process until it has the lock; what the backup says then."""
    for number in range(200):
        time.sleep(random.random() * 0.01)
        os.kill(pid, signal.SIGSTOP)
        try:
            store.backup(place / f"copy{number}")
        except StoreInUseError as error:
            if "the lock of the log" in str(error):
                return str(error)
        os.kill(pid, signal.SIGCONT)
    raise AssertionError("it was never stopped within an append")


@pytest.mark.parametrize("ends", ["goes on", "dies"])
def test_a_stopped_holder_is_named_and_holds_up_nobody_else(tmp_path, monkeypatch, ends):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.2)
    with quick_directory(tmp_path) as place:
        path = place / "store"
        with eoslog.open(path, create=True, config=CONFIG, durability="process") as store:
            settings = {"segment.bytes": 4 << 20, "retention.bytes": 8 << 20}
            store.create_topics(dict.fromkeys(TOPICS, PARTITIONS), settings)
            with started(HOLDS.format(path=str(path))) as other:
                other.hear("ready")
                said = stopped_within_an_append(store, other.pid, place)
                assert f"process {other.pid} has held the lock of the log a-0" in said
                assert not list(place.glob(".*"))
                # No lock is left held.
                for topic, number in PLACES[1:]:
                    engine_of(store).partition(topic, number).append_columns([b"v"])
                store.create_topic("made")
                if ends == "goes on":
                    os.kill(other.pid, signal.SIGCONT)
                else:
                    other.kill()
                store.backup(place / "copy")
        with eoslog.open(place / "copy", config=CONFIG) as of_then:
            assert of_then.verify() == []
            assert of_then.partition("a", 0).log_end_offset > 0


def test_locks_that_are_never_free_together_are_not_tried_for_ever(tmp_path):
    """The wait for each of them ends, and the other one's writer is at it again."""
    with quick_directory(tmp_path) as place:
        path = place / "store"
        with eoslog.open(path, create=True, config=CONFIG, durability="process") as store:
            settings = {"segment.bytes": 4 << 20, "retention.bytes": 8 << 20}
            store.create_topics(dict.fromkeys(TOPICS, PARTITIONS), settings)
            shared = engine_of(store).session.shared
            said = set()
            with started(HOLDS.format(path=str(path))) as other:
                other.hear("ready")
                for _ in range(500):
                    time.sleep(random.random() * 0.01)
                    pages = [str(one) for one in (path / "state" / "control").iterdir()]
                    taking = LogEnds(pages, shared, shared.counter(COUNTER_LOGS_OPENED))
                    os.kill(other.pid, signal.SIGSTOP)
                    goes_on = threading.Timer(0.02, os.kill, (other.pid, signal.SIGCONT))
                    goes_on.start()
                    try:
                        taking.take(0.0)
                    except StoreInUseError as error:
                        said.add(str(error))
                    goes_on.join()
                    if any("were not free together for 0 s" in one for one in said):
                        break
                else:
                    raise AssertionError(f"it was always taken: {said}")
            other.kill()
