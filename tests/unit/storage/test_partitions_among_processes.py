"""Partitions that several processes have open: their producers, deletion, recovery, background."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest
from harness.crew import Member, MemberError, run_and_kill
from harness.waiting import eventually
from short_form import short_form
from stores import QUIET

from eoslog import TopicPartition
from eoslog.errors import LogClosedError, OutOfOrderSequenceError, UnknownTopicOrPartitionError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, read_checkpoint
from eoslog.store.peer_monitor import PeerMonitor
from eoslog.store.store import engine_of, parts_of

T0 = TopicPartition("t", 0)
SMALL = {"eoslog.spare.segments": 0}


@pytest.fixture
def other(store_path):
    """Start another process that opens the store."""
    started = []

    def start(**config):
        started.append(Member())
        settings = {**QUIET, **SMALL, **{name.replace("__", "."): n for name, n in config.items()}}
        started[-1].run(
            "store = eoslog.open(path, config=config, durability='process')",
            path=str(store_path),
            config=settings,
        )
        return started[-1]

    yield start
    for one in started:
        one.dispose()


# Producers.


@pytest.mark.parametrize("cached_max", [1, 100])
def test_the_ids_of_another_process_that_lives_do_not_expire(open_store, other, cached_max):
    store = open_store(eoslog__producers__cached__max=cached_max)
    store.create_topic("t")
    peer = other()
    peer.run(
        "live = [store.producer() for _ in range(3)]\n"
        "for one in live:\n"
        "    one.append('t', 0, [b'x'], timestamps=[1])"
    )
    partition = engine_of(store).partition("t", 0)
    partition.producer_state.persist()
    with store.producer() as own:
        own.append("t", 0, [b"x"], timestamps=[1])
    find_exempt = parts_of(store).checkpointer.unexpiring_producer_ids
    del own
    ids = peer.value("[one.producer_id for one in live]")
    assert partition.producer_state.expire(10**15, find_exempt) == 1
    assert [one.producer_id for one in partition.producers()] == ids
    peer.kill()
    assert partition.producer_state.expire(10**15, find_exempt) == 3
    assert partition.producers() == []


class Numbers:
    """What a partition must know of producers: sequences, and the offsets of their last batches."""

    def __init__(self):
        self.end = 0
        self.next_sequence = {}
        self.last = {}

    def append(self, append, producer_id, count):
        sequence = self.next_sequence.get(producer_id, 0)
        offset, duplicate = append(producer_id, sequence, count)
        assert (offset, duplicate) == (self.end, False), f"producer {producer_id}"
        self.last.setdefault(producer_id, []).append((sequence, count, offset))
        self.next_sequence[producer_id] = sequence + count
        self.end += count

    def repeat(self, append, producer_id, back):
        batches = self.last.get(producer_id, [])[-5:]
        if len(batches) > back:
            sequence, count, offset = batches[-1 - back]
            assert append(producer_id, sequence, count) == (offset, True), f"{producer_id}: {back}"


APPEND = """
from eoslog.store.store import engine_of
def append(producer_id, sequence, count):
    result = engine_of(store).partition(topic, 0).append_columns(
        [b"x"] * count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    return result.base_offset, result.duplicate
"""


def appending(store, topic="t"):
    names = {"store": store, "topic": topic}
    exec(APPEND, names)
    return names["append"]


def appending_there(other, topic="t"):
    other.run(APPEND, topic=topic)
    return lambda *what: tuple(other.value("append(*what)", what=what))


# By seed 1 a process keeps no more than one producer in memory.
@pytest.mark.parametrize("seed", short_form(range(4), 1))
def test_producers_that_are_evicted_in_one_process_and_write_in_another(open_store, other, seed):
    noise = random.Random(seed)
    cached_max = noise.choice((1, 3, 8))
    store = open_store(eoslog__producers__cached__max=cached_max, **{"eoslog.spare.segments": 0})
    store.create_topic("t", config={"segment.bytes": 4096})
    model = Numbers()
    peers = [other(eoslog__producers__cached__max=cached_max) for _ in range(2)]
    ways = [appending(store), *map(appending_there, peers)]

    def persist(which):
        if which == 0:
            engine_of(store).partition("t", 0).producer_state.persist()
        else:
            peers[which - 1].run("engine_of(store).partition('t', 0).producer_state.persist()")

    for _ in range(250):
        which = noise.randrange(3)
        what = noise.random()
        producer_id = noise.randrange(12)
        if what < 0.5:
            model.append(ways[which], producer_id, noise.randint(1, 3))
        elif what < 0.8:
            model.repeat(ways[which], producer_id, noise.randrange(5))
        elif what < 0.95:
            persist(which)
        else:
            states = store.partition("t", 0).producers()
            assert {one.producer_id: one.last_sequence + 1 for one in states} == (
                model.next_sequence
            )
            assert all(
                len(one.batches) == min(5, len(model.last[one.producer_id])) for one in states
            )
    assert engine_of(store).partition("t", 0).log.evicted_producer_count
    for peer in peers:
        peer.run("store.close()")
        peer.leave()
    store.close()
    store = open_store(eoslog__producers__cached__max=cached_max)
    partition = engine_of(store).partition("t", 0)
    assert partition.producer_state.restored_from == "rows"
    for producer_id in range(12):
        for back in range(5):
            model.repeat(appending(store), producer_id, back)
        model.append(appending(store), producer_id, 1)


def test_rows_that_another_process_stored_are_enough(store, other):
    store.create_topic("t")
    peer = other()
    append, there = appending(store), appending_there(peer)
    partition = engine_of(store).partition("t", 0)
    append(1, 0, 3)
    partition.producer_state.persist()
    there(2, 0, 3)
    peer.run("engine_of(store).partition('t', 0).producer_state.persist()")
    append(3, 0, 1)
    # Only a record behind: that is left as it is, and what is stored is known.
    partition.producer_state.persist(behind_max=10)
    assert partition.producer_state.persisted_offset == 6
    assert partition.producer_state.rows.read_head().offset == 6
    partition.producer_state.persist()
    assert partition.producer_state.rows.read_head() == (7, 3)
    peer.run("engine_of(store).partition('t', 0).producer_state.persist()")
    assert peer.value("engine_of(store).partition('t', 0).producer_state.persisted_offset") == 7


def test_a_process_that_joins_knows_what_was_never_written_down(store, other):
    store.create_topic("t")
    append = appending(store)
    append(1, 0, 3)
    engine_of(store).partition("t", 0).producer_state.persist()
    append(1, 3, 2)
    append(2, 0, 1)
    peer = other()
    there = appending_there(peer)
    assert peer.value("engine_of(store).partition('t', 0).attached")
    assert peer.value("engine_of(store).partition('t', 0).producer_state.restored_from") == "rows"
    assert there(1, 3, 2) == (3, True)
    assert there(1, 0, 3) == (0, True)
    assert there(2, 1, 1) == (6, False)
    with pytest.raises(OutOfOrderSequenceError):
        append(2, 5, 1)
    assert append(2, 1, 1) == (6, True)


def test_rows_are_stored_for_a_process_that_died(open_store, other):
    store = open_store(eoslog__checkpoint__interval__ms=20)
    store.create_topic("t")
    producers = engine_of(store).partition("t", 0).producer_state
    eventually(lambda: producers.persisted_offset == 0)  # The opening of the partition is over.
    peer = other()
    appending_there(peer)(1, 0, 3)
    time.sleep(0.2)
    assert producers.persisted_offset == 0
    peer.kill()
    eventually(lambda: producers.persisted_offset == 3)


def test_a_process_that_only_reads_keeps_few_producers(open_store, other):
    store = open_store(eoslog__producers__cached__max=10)
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    peer = other()
    there = appending_there(peer)
    for producer_id in range(100):
        there(producer_id, 0, 1)
    peer.run("engine_of(store).partition('t', 0).producer_state.persist()")
    eventually(lambda: partition.log.producer_count <= 10 and partition.log_end_offset == 100)
    assert len(partition.producers()) == 100


# Topics.


def test_a_deleted_topic_is_let_go_of_by_all(store, other, store_path):
    store.create_topic("t", partitions=2)
    store.create_topic("u")
    partition, keeps = engine_of(store).partition("t", 0), engine_of(store).partition("u", 0)
    appending(store)(1, 0, 3)
    peer = other()
    appending_there(peer)(1, 3, 1)
    peer.run("store.delete_topic('t')")
    with pytest.raises(LogClosedError):
        partition.append_columns([b"x"])
    with pytest.raises(LogClosedError):
        _ = partition.log_end_offset
    with pytest.raises(UnknownTopicOrPartitionError):
        store.partition("t", 0)
    assert engine_of(store).partition("u", 0) is keeps
    for name in ("t-0", "state/control/t-0", "state/spare/t-0"):
        assert not (store_path / name).exists()
    peer.run("store.create_topic('t')")
    assert store.partition("t", 0).log_end_offset == 0
    assert appending(store)(1, 7, 1) == (0, False)
    assert appending_there(peer)(1, 7, 1) == (0, True)


def test_a_deletion_that_a_process_left_is_finished_by_another(store, other, store_path):
    store.create_topic("t")
    appending(store)(1, 0, 3)
    peer = other()
    appending_there(peer)(1, 3, 1)
    peer.run(
        "reached = threading.Event()\n"
        "def stop(topic):\n    reached.set()\n    time.sleep(60)\n"
        "parts_of(store).files.partitions.remove = stop\n"
        "threading.Thread(target=store.delete_topic, args=('t',), daemon=True).start()\n"
        "reached.wait()\n"
    )
    assert "t" not in store.topics()
    assert (store_path / "t-0").exists()
    peer.kill()
    eventually(
        lambda: not (store_path / "t-0").exists() and not parts_of(store).files.registry.deleting()
    )
    store.create_topic("t")
    assert store.partition("t", 0).log_end_offset == 0


def test_partitions_are_opened_while_their_topic_is_deleted_and_made_again(open_store, other):
    store = open_store(**{"eoslog.spare.segments": 0})
    peer = other()
    peer.run(
        "stop = threading.Event()\ncounts = [0]\n"
        "def look():\n"
        "    while not stop.is_set():\n"
        "        try:\n"
        "            engine_of(store).partition('t', 0).append_columns([b'x'])\n"
        "            counts[0] += 1\n"
        "        except (errors.UnknownTopicOrPartitionError, errors.LogClosedError):\n"
        "            pass\n"
        "        except BaseException as error:\n"
        "            counts.append(repr(error))\n"
        "thread = threading.Thread(target=look)\nthread.start()\n"
    )

    def come_and_go():
        store.create_topic("t")
        time.sleep(random.random() * 0.01)
        store.delete_topic("t")

    for _ in range(25):
        come_and_go()
    # The other process may have stood still all that time.
    eventually(lambda: peer.value("counts[0]") > 0 or come_and_go())
    peer.run("stop.set(); thread.join()")
    counts = peer.value("counts")
    assert counts[0] > 0
    assert counts[1:] == []
    store.create_topic("t")
    assert store.partition("t", 0).log_end_offset == 0


def test_internal_partitions_are_made_by_several_at_once(store, store_path):
    peers = [Member() for _ in range(3)]
    try:
        for peer in peers:
            peer.run("store = eoslog.open(path, durability='process')", path=str(store_path))
        for topic in ("__transaction_state", "__consumer_offsets"):
            for peer in peers:
                peer.begin(
                    "partitions = parts_of(store).files.partitions\n"
                    f"for one in range(8): partitions.internal_partition({topic!r}, one)"
                )
            for one in range(8):
                parts_of(store).files.partitions.internal_partition(topic, one)
            for peer in peers:
                peer.answer()
            assert parts_of(store).files.partitions.existing_internal_partitions(topic) == list(
                range(8)
            )
            ids = {parts_of(store).files.registry.get(topic).topic_id}
            ids |= {
                p.value(f"parts_of(store).files.registry.get({topic!r}).topic_id") for p in peers
            }
            assert len(ids) == 1
    finally:
        for peer in peers:
            peer.dispose()


# Opening and closing.


def test_what_nobody_recovered_is_recovered_by_whoever_opens_it(open_store, other, store_path):
    run_and_kill(
        store_path,
        "for name in ('t', 'u', 'v'):\n"
        "    store.create_topic(name)\n"
        "    engine_of(store).partition(name, 0).append_columns([b'x'] * 3)\n"
        "    engine_of(store).partition(name, 0).flush()\n",
    )
    for name in ("t", "u"):
        with open(next((store_path / f"{name}-0").glob("*.log")), "r+b") as file:
            file.seek(12 + int.from_bytes(file.read(12)[8:], "big"))
            file.write(b"torn")
    store = open_store()
    assert parts_of(store).files.partitions.unrecovered >= {
        T0,
        TopicPartition("u", 0),
        TopicPartition("v", 0),
    }
    peer = other()
    assert peer.value("store.partition('t', 0).log_end_offset") == 3
    assert not peer.value("engine_of(store).partition('t', 0).attached")
    assert T0 not in parts_of(store).files.partitions.unrecovered
    assert engine_of(store).partition("t", 0).attached
    assert store.partition("u", 0).log_end_offset == 3
    assert not peer.value(
        "eoslog.TopicPartition('u', 0) in parts_of(store).files.partitions.unrecovered"
    )
    store.close()
    peer.run("from eoslog.storage import opened_partitions as opened")
    peer.run("opened.RECOVERY_AT_CLOSE_S = 0; store.close()")
    assert not (store_path / ".kafka_cleanshutdown").exists()
    store = open_store()
    assert parts_of(store).files.partitions.unrecovered == {TopicPartition("v", 0)}
    assert engine_of(store).partition("t", 0).cut_bytes == 0


def test_the_last_one_closes_what_the_others_opened(open_store, other, store_path):
    store = open_store()
    store.create_topic("t", partitions=3)
    peers = [other(), other()]
    for number, peer in enumerate(peers):
        peer.run(
            "engine_of(store).partition('t', number).append_columns([b'x'] * 3)", number=number
        )
    peers[0].run("store.close()")
    assert parts_of(store).files.partitions.if_open(T0) is None
    peers[1].kill()
    store.close()
    assert (store_path / ".kafka_cleanshutdown").exists()
    store = open_store()
    for number in range(3):
        partition = engine_of(store).partition("t", number)
        assert partition.log_end_offset == (3 if number < 2 else 0)
        assert partition.recovery_point == partition.log_end_offset
    assert store.verify() == []


def test_another_process_attaches_while_one_appends(store, other):
    store.create_topic("t", config={"segment.bytes": 8192})
    stop = threading.Event()
    partition = engine_of(store).partition("t", 0)

    def write():
        while not stop.is_set():
            partition.append_columns([bytes(200)] * 3)

    thread = threading.Thread(target=write)
    # Both have started before the log grows: there is less to verify then.
    with Member() as first, Member() as second:
        for peer in (first, second):
            peer.run("path = given", given=str(store.path))
        thread.start()
        try:
            for peer in (first, second, first, second):
                peer.run("store = eoslog.open(path, durability='process')")
                before = partition.log_end_offset
                assert peer.value("store.partition('t', 0).log_end_offset") >= before
                peer.run("engine_of(store).partition('t', 0).append_columns([b'x'])")
                peer.run("store.close()")
        finally:
            stop.set()
            thread.join()
    assert store.verify() == []


# In the background.


def test_one_process_does_what_is_for_all_and_another_goes_on_when_it_dies(open_store, other):
    busy = {"log__retention__check__interval__ms": 50, "log__initial__task__delay__ms": 50}
    # The first one that has the store open leads.
    open_store().close()
    leader = other(**busy)
    leader.run("store.create_topic('t', config={'segment.bytes': 4096, 'retention.bytes': 8192})")
    eventually(lambda: leader.value("parts_of(store).checkpointer.peers._leads"))
    store = open_store(**busy, **{"eoslog.spare.segments": 0})
    for _ in range(20):
        leader.run("engine_of(store).partition('t', 0).append_columns([bytes(1000)])")
    eventually(lambda: leader.value("store.metrics()['checkpointer']['segments_deleted']"))
    partition = engine_of(store).partition("t", 0)
    start = partition.log_start_offset
    assert start > 0
    for _ in range(20):
        partition.append_columns([bytes(1000)])
    eventually(lambda: partition.log_start_offset > start)
    assert store.metrics()["checkpointer"]["segments_deleted"] == 0
    leader.kill()
    for _ in range(20):
        partition.append_columns([bytes(1000)])
    eventually(lambda: store.metrics()["checkpointer"]["segments_deleted"])


def test_an_idle_process_looks_at_partitions_only_after_a_change(open_store, other, monkeypatch):
    looks, followed = [], []

    def count(name, kept):
        whole = getattr(PeerMonitor, name)

        def counted(*arguments):
            whole(*arguments)
            kept.append(arguments)

        monkeypatch.setattr(PeerMonitor, name, counted)

    count("look", looks)
    count("_follow", followed)
    monkeypatch.setattr("eoslog.store.peer_monitor.LOOK_S", 0.02)
    store = open_store()
    store.create_topic("t", partitions=8)
    for number in range(8):
        engine_of(store).partition("t", number).append_columns([b"x"])
    peer = other(**{"eoslog.checkpoint.interval.ms": 50})

    def is_quiet():
        before, looks_before = len(followed), len(looks)
        eventually(lambda: len(looks) > looks_before + 20)
        return len(followed) == before

    def is_followed():
        known = len(followed)
        return lambda: len(followed) >= known + 8

    for change in (
        "engine_of(store).partition('t', 3).append_columns([b'x'])",
        "for _ in range(20): engine_of(store).partition('t', 4).append_columns([b'x'])",
        "log = engine_of(store).partition('t', 3); log.roll(); log.delete_segments(2)",
    ):
        eventually(is_quiet)
        met = is_followed()
        peer.run(change)
        eventually(met)
    eventually(is_quiet)
    assert store.partition("t", 4).log_end_offset == 21


def test_a_spare_file_is_made_by_one_at_a_time(open_store, store_path):
    store = open_store(**{"eoslog.spare.segments": 1})
    store.create_topic("t", config={"segment.bytes": 1 << 20})
    partition = engine_of(store).partition("t", 0)
    with Member() as peer:
        peer.run("store = eoslog.open(path, durability='process')", path=str(store_path))
        spare = store_path / "state" / "spare" / "t-0"
        for _ in range(5):
            peer.begin("made = engine_of(store).partition('t', 0).prepare_spare()")
            made = partition.prepare_spare()
            peer.answer()
            made += peer.value("made")
            assert made <= 1
            assert [one.name for one in spare.iterdir()] == ["0.spare"]
            (spare / "0.spare").unlink()


def test_errors_of_a_background_thread_are_few(open_store, other):
    store = open_store()
    store.create_topic("t")
    peer = other()
    appending_there(peer)(1, 0, 3)
    appending(store)(2, 0, 3)
    time.sleep(2.5)
    assert store.metrics()["checkpointer"]["errors"] == []
    assert peer.value("store.metrics()['checkpointer']['errors']") == []
    with pytest.raises(MemberError, match="UnknownTopic"):
        peer.run("store.partition('nope', 0)")


# What a process does first with a log that it fell behind of; `close` ends all of it.
FIRST = {
    "append": "append(3, 0, 1) == [end, False] or True",
    "end": "partition.log_end_offset == end",
    "read": "partition.fetch_records(start, 100, 1 << 20)[1] == end",
    "stable": "partition.last_stable_offset == end",
    "flush": "partition.flush() == end",
    "producers": "[one.producer_id for one in partition.producers()] == [1, 2]",
    "close": "store.close() is None",
}


def test_a_process_that_fell_behind_takes_the_log_up_anew(open_store, other):
    """One process falls behind in a topic for each thing that it may do first."""
    store = open_store(**SMALL)
    peer = other()
    behind = {}
    for first in FIRST:
        store.create_topic(first, config={"segment.bytes": 4096})
        append, there = appending(store, first), appending_there(peer, first)
        assert there(1, 0, 3) == (0, False)
        behind[first] = append
    # Its own thread would catch up before what it is to do first, or be stopped with a lock held.
    peer.run("parts_of(store).checkpointer.stop()")
    peer.signal(signal.SIGSTOP)
    ends = {}
    try:
        for first, append in behind.items():
            partition = engine_of(store).partition(first, 0)
            for number in range(20):
                partition.append_columns(
                    [bytes(1000)], producer_id=2, producer_epoch=0, base_sequence=number
                )
            append(1, 3, 2)
            partition.producer_state.save_copies()
            assert partition.delete_segments(partition.log_end_offset) > 3
            ends[first] = (partition.log_start_offset, partition.log_end_offset)
    finally:
        peer.signal(signal.SIGCONT)
    for first, append in behind.items():
        start, end = ends[first]
        there = appending_there(peer, first)
        peer.run("partition = engine_of(store).partition(topic, 0)", topic=first)
        assert peer.value(FIRST[first], start=start, end=end), first
        if first == "close":
            assert append(1, 3, 2) == (end - 2, True)
            continue
        assert there(1, 3, 2) == (end - 2, True), first
        offset, duplicate = there(1, 5, 1)
        assert (offset >= end, duplicate) == (True, False), first
        assert append(1, 5, 1) == (offset, True), first
    assert store.verify() == []


def test_readers_know_the_end_while_another_thread_takes_the_log_up_again(open_store, other):
    """Until it is done that thread keeps the last stable offset at the log start."""
    store = open_store(**SMALL)
    store.create_topic("t", config={"segment.bytes": 4096})
    partition = engine_of(store).partition("t", 0)
    partition.append_columns([b"before"])
    peer = other()
    peer.run(
        "from eoslog.storage.partition_producers import PartitionProducers\n"
        "parts_of(store).checkpointer.stop()\n"
        "partition = engine_of(store).partition('t', 0)\n"
        "restore = PartitionProducers._restore\n"
        "inside, goes_on = threading.Event(), threading.Event()\n"
        "def gated(producers):\n"
        "    if threading.current_thread() is thread:\n"
        "        inside.set()\n"
        "        goes_on.wait()\n"
        "    return restore(producers)\n"
        "PartitionProducers._restore = gated\n"
        "thread = threading.Thread(target=partition.refresh)\n"
    )
    for _ in range(20):
        partition.append_columns([bytes(1000)])
    partition.producer_state.save_copies()
    assert partition.delete_segments(partition.log_end_offset) > 3
    peer.run(
        "found = []\n"
        "reader = threading.Thread(target=lambda: found.append(partition.last_stable_offset))\n"
        "thread.start(); inside.wait(); reader.start()\n"
        "reader.join(0.2)  # It waits; one that does not is through by then.\n"
        "goes_on.set(); reader.join(); thread.join()"
    )
    assert peer.value("found") == [partition.log_end_offset]


def test_threads_go_on_while_the_log_is_taken_up_anew(open_store, other):
    store = open_store(**SMALL)
    store.create_topic("t", config={"segment.bytes": 4096})
    partition = engine_of(store).partition("t", 0)
    peer = other()
    peer.run(
        "wrong, next_sequence = [], {}\n"
        "def write(producer_id):\n"
        "    for _ in range(20):\n"
        "        for wanted in (False, True):\n"
        "            result = engine_of(store).partition('t', 0).append_columns(\n"
        "                [bytes(100)], producer_id=producer_id, producer_epoch=0,\n"
        "                base_sequence=next_sequence.setdefault(producer_id, 0))\n"
        "            if result.duplicate is not wanted:\n"
        "                wrong.append((producer_id, next_sequence, wanted))\n"
        "        next_sequence[producer_id] += 1\n"
        "def guarded(producer_id):\n"
        "    try:\n        write(producer_id)\n"
        "    except BaseException as error:\n        wrong.append(repr(error))\n"
        "def all_write():\n"
        "    threads = [threading.Thread(target=guarded, args=(one,)) for one in (1, 2, 3, 4)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
    )
    for _ in range(12):
        for _ in range(10):
            partition.append_columns([bytes(1000)])
        partition.producer_state.save_copies()
        partition.delete_segments(partition.log_end_offset)
        peer.run("all_write()")
    assert peer.value("wrong") == []
    assert store.verify() == []


def test_no_segment_goes_above_the_start_that_was_written_down(open_store, other, store_path):
    """Another process rolled the log, and this one learns of it within the deletion."""
    store = open_store(**SMALL)
    store.create_topic("t", config={"segment.bytes": 4096})
    append, there = appending(store), appending_there(other())
    for number in range(100):
        append(7, 5 * number, 5)
    partition = engine_of(store).partition("t", 0)
    assert partition.segment_count > 2
    for number in range(100, 200):
        there(7, 5 * number, 5)
    for _ in range(2):
        partition.delete_segments(1000)
        first = int(min(one.name for one in (store_path / "t-0").glob("*.log"))[:20])
        assert 0 < first <= read_checkpoint(store_path / LOG_START_OFFSET)[T0]
        partition.refresh()
    assert first > 500
