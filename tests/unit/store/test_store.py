"""Opening, closing and crashing of a store; what stands in its directory afterwards."""

import json
import os
import subprocess
import sys
import threading

import pytest
from harness.crew import run_and_kill
from harness.fork import Fork, in_child
from stores import values_of

import eoslog
from eoslog import TopicPartition
from eoslog.consumer.consumer import Consumer
from eoslog.consumer.fetcher import Fetcher
from eoslog.errors import (
    CorruptRecordError,
    ForkedProcessError,
    InvalidConfigError,
    LogClosedError,
    NotAStoreError,
    StoreFailedError,
    StoreFullError,
    StoreInUseError,
    StoreReadOnlyError,
    StoreVersionError,
    UnknownTopicOrPartitionError,
)
from eoslog.fs.atomic_file import write_atomically
from eoslog.fs.checkpoint_file import RECOVERY_POINT, read_checkpoint
from eoslog.producer.transaction_manager import TransactionManager
from eoslog.storage import opened_partitions
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import abandon, engine_of, parts_of

MARKER = ".kafka_cleanshutdown"


def write_some(store, topic="t", values=(b"a", b"b", b"c"), partition=0):
    with store.producer() as producer:
        producer.append(topic, partition, list(values))


# Creating.


def test_a_store_is_made_in_an_absent_directory(store_path):
    with eoslog.open(store_path / "deep" / "down", create=True) as store:
        assert store.path == store_path / "deep" / "down"
    assert (store_path / "deep" / "down" / "meta.properties").exists()


def test_a_store_is_made_in_an_empty_directory(store_path):
    store_path.mkdir()
    with eoslog.open(store_path, create=True) as store:
        assert store.topics() == {}


@pytest.mark.parametrize(
    "left", [["state"], ["state/lock"], ["meta.properties.tmp"], ["lost+found"]]
)
def test_a_creation_cut_short_is_taken_up(store_path, left):
    store_path.mkdir()
    for name in left:
        path = store_path / name
        path.parent.mkdir(exist_ok=True)
        if name in ("state", "lost+found"):
            path.mkdir()
        else:
            path.write_bytes(b"")
    eoslog.open(store_path, create=True).close()


def test_a_directory_with_other_files_is_left_alone(store_path):
    store_path.mkdir()
    (store_path / "letter.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match=r"letter\.txt"):
        eoslog.open(store_path, create=True)
    assert [path.name for path in store_path.iterdir()] == ["letter.txt"]


def test_a_file_is_no_store(store_path):
    store_path.write_text("a file")
    for create in (False, True):
        with pytest.raises(NotAStoreError):
            eoslog.open(store_path, create=create)


def test_a_way_that_leads_through_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        for store_path in (tmp_path / name / "store", tmp_path / name / "deep" / "store"):
            with pytest.raises(NotAStoreError, match=f"{name} is not a directory"):
                eoslog.open(store_path, create=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_nothing_is_made_without_create(store_path):
    with pytest.raises(NotAStoreError, match="no such directory"):
        eoslog.open(store_path)
    assert not store_path.exists()
    store_path.mkdir()
    with pytest.raises(NotAStoreError, match=r"meta\.properties"):
        eoslog.open(store_path)
    assert list(store_path.iterdir()) == []


def test_a_directory_of_kafkas_is_no_store(store_path):
    store_path.mkdir()
    (store_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    with pytest.raises(NotAStoreError, match=r"eoslog\.store\.version"):
        eoslog.open(store_path, create=True)


def test_a_newer_version_is_refused_and_nothing_is_touched(store_path):
    eoslog.open(store_path, create=True).close()
    meta = store_path / "meta.properties"
    meta.write_text(meta.read_text().replace("store.version=1", "store.version=2"))
    with pytest.raises(StoreVersionError, match=r"meta\.properties: store version 2"):
        eoslog.open(store_path)
    assert (store_path / MARKER).exists()


def test_a_newer_list_of_topics_is_refused_and_the_clean_marker_stays(store_path):
    eoslog.open(store_path, create=True).close()
    (store_path / "state" / "topics.json").write_text('{"version": 4, "topics": {}}')
    with pytest.raises(StoreVersionError):
        eoslog.open(store_path)
    assert (store_path / MARKER).exists()


def test_a_damaged_list_of_topics_is_refused(store_path):
    eoslog.open(store_path, create=True).close()
    (store_path / "state" / "topics.json").write_text('{"version": 1')
    with pytest.raises(CorruptRecordError, match=r"topics\.json"):
        eoslog.open(store_path)


def test_unknown_settings_and_durabilities_are_refused_before_anything_is_made(store_path):
    with pytest.raises(InvalidConfigError, match="did you mean"):
        eoslog.open(store_path, create=True, config={"log.retention.mss": 1})
    with pytest.raises(ValueError, match="commit, always, process"):
        eoslog.open(store_path, create=True, durability="none")
    assert not store_path.exists()


# One at a time.


def test_a_second_opening_says_who_has_the_store(store, store_path):
    with pytest.raises(StoreInUseError, match=f"process {os.getpid()}"):
        eoslog.open(store_path)
    store.close()
    eoslog.open(store_path).close()


def test_a_process_that_died_is_in_nobodys_way(store_path):
    code = (
        f"import eoslog, time\ns = eoslog.open({str(store_path)!r}, create=True)\n"
        "print('open', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"open\n"
        other.kill()
        other.wait()
    with eoslog.open(store_path) as store:
        assert parts_of(store).files.was_stopped_uncleanly


def test_a_failed_opening_frees_the_store(store_path, monkeypatch):
    eoslog.open(store_path, create=True).close()
    monkeypatch.setattr(
        "eoslog.store.parts.StagedJobs.roll_forward",
        lambda self: (_ for _ in ()).throw(StoreFullError("x")),
    )
    with pytest.raises(StoreFullError):
        eoslog.open(store_path)
    monkeypatch.undo()
    eoslog.open(store_path).close()


# Closing.


def test_a_clean_close_leaves_the_marker_and_trimmed_files(store, store_path):
    store.create_topic("t")
    write_some(store)
    assert not (store_path / MARKER).exists()
    store.close()
    marker = json.loads((store_path / MARKER).read_bytes())
    assert marker["version"] == 0
    assert (store_path / "t-0" / f"{0:020d}.log").stat().st_size < 1000
    assert read_checkpoint(store_path / RECOVERY_POINT)[TopicPartition("t", 0)] == 3


def test_closing_twice_and_using_a_closed_store(store):
    store.create_topic("t")
    partition, producer, consumer = (
        engine_of(store).partition("t", 0),
        store.producer(),
        store.consumer(),
    )
    store.close()
    store.close()
    assert store.closed
    for call in (
        store.topics,
        store.metrics,
        store.verify,
        store.producers,
        store.producer,
        store.consumer,
        lambda: store.partition("t", 0),
        lambda: store.create_topic("u"),
        lambda: store.delete_topic("t"),
        lambda: store.commit_staged("app", 0, []),
        lambda: store.application("app"),
        store.__enter__,
        lambda: partition.append_columns([b"x"]),
        lambda: partition.fetch_records(0, 1, 1000),
        lambda: producer.send("t", b"x"),
        lambda: producer.append("t", 0, [b"x"]),
        producer.flush,
        consumer.poll,
        lambda: consumer.assign([TopicPartition("t", 0)]),
    ):
        with pytest.raises(LogClosedError):
            call()


def test_closing_flushes_what_producers_gathered(open_store):
    store = open_store()
    store.create_topic("t")
    producer = store.producer(config={"linger.ms": 100_000})
    producer.send("t", b"gathered")
    store.close()
    assert values_of(open_store(), "t") == [b"gathered"]


def test_the_block_of_a_store_closes_it_after_an_error_too(store_path):
    with pytest.raises(RuntimeError), eoslog.open(store_path, create=True) as store:
        raise RuntimeError
    assert store.closed
    assert (store_path / MARKER).exists()


def test_a_close_that_cannot_write_leaves_no_marker_and_loses_nothing(open_store, monkeypatch):
    store = open_store()
    store.create_topic("t")
    write_some(store)

    def fail(*_arguments, **_named):
        raise StoreFullError("no space")

    monkeypatch.setattr("eoslog.storage.offset_checkpoints.write_checkpoints", fail)
    with pytest.raises(StoreFullError):
        store.close()
    monkeypatch.undo()
    assert store.closed
    assert not (store.path / MARKER).exists()
    assert values_of(open_store(), "t") == [b"a", b"b", b"c"]


def test_a_store_left_open_is_closed_when_the_interpreter_ends(store_path):
    code = (
        f"import eoslog\ns = eoslog.open({str(store_path)!r}, create=True)\ns.create_topic('t')\n"
        "s.producer(config={'linger.ms': 100000}).send('t', b'last words')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (store_path / MARKER).exists()
    with eoslog.open(store_path) as store:
        assert values_of(store, "t") == [b"last words"]


def test_a_directory_that_went_before_the_interpreter_ends_is_one_line(tmp_path):
    code = f"""
import tempfile, eoslog
with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}) as path:
    stores = [eoslog.open(path, create=True), eoslog.open({str(tmp_path / "kept")!r}, create=True)]
    for store in stores:
        store.create_topic("t")
        producer = store.producer()
        producer.append("t", 0, [b"v"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    (line,) = ended.stderr.splitlines()
    assert " as the interpreter ends: " in line
    assert (tmp_path / "kept" / MARKER).exists()


def test_a_consumer_that_is_open_as_the_interpreter_ends_says_nothing(store_path):
    code = (
        f"import eoslog\ns = eoslog.open({str(store_path)!r}, create=True)\ns.create_topic('t')\n"
        "c = s.consumer('g')\nc.subscribe(['t'])\nc.poll(timeout=0)\n"
        "cycle = [c]\ncycle.append(cycle)\n"  # Collected last.
    )
    for closing in ("", "s.close()\n"):
        ended = subprocess.run(
            [sys.executable, "-c", code + closing], capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        code = code.replace("s.create_topic('t')\n", "")


# Recovering.


def test_a_killed_process_loses_nothing_that_was_appended(store_path):
    run_and_kill(
        store_path,
        "store.create_topic('t')\n"
        "store.producer().append('t', 0, [b'%d' % i for i in range(1000)])",
    )
    with eoslog.open(store_path) as store:
        assert store.metrics()["partitions_unrecovered"] == 1
        assert values_of(store, "t") == [b"%d" % index for index in range(1000)]
        assert store.metrics()["partitions_unrecovered"] == 0


def test_a_torn_tail_is_cut_kept_and_told(open_store, store_path, caplog):
    store = open_store()
    store.create_topic("t")
    write_some(store)
    size_bytes = store.partition("t", 0).size_bytes
    abandon(store)
    log = store_path / "t-0" / f"{0:020d}.log"
    whole = log.read_bytes()[:size_bytes]
    torn = whole[:39] + b"!"
    log.write_bytes(whole + torn)
    store = open_store()
    assert values_of(store, "t") == [b"a", b"b", b"c"]
    assert store.metrics()["cut_bytes"] == 40
    assert "cut 40 bytes" in caplog.text
    kept = list((store_path / "state" / "cut" / "t-0").iterdir())
    assert [path.read_bytes() for path in kept] == [torn]


def test_a_clean_close_leaves_every_log_at_its_last_batch(open_store, store_path):
    """Kafka's tools stop at the room that a killed process had reserved behind it."""
    store = open_store()
    for name in ("t", "u"):
        store.create_topic(name, partitions=2)
        write_some(store, name)
    with store.consumer("g") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.commit({TopicPartition("t", 0): 1})
    whole = {one.path: one.size_bytes for one in parts_of(store).files.partitions.opened()}
    abandon(store)
    assert any((path / f"{0:020d}.log").stat().st_size > size for path, size in whole.items())
    open_store().close()
    for path, size_bytes in whole.items():
        assert (path / f"{0:020d}.log").stat().st_size == size_bytes, path
    assert (store_path / MARKER).exists()
    assert not (store_path / "state" / "unrecovered.json").exists()


def test_a_close_leaves_to_a_later_session_what_it_has_no_time_for(
    open_store, store_path, monkeypatch
):
    store = open_store()
    store.create_topic("t", partitions=3)
    abandon(store)
    with monkeypatch.context() as patch:
        patch.setattr(opened_partitions, "RECOVERY_AT_CLOSE_S", 0)
        open_store().close()
    assert not (store_path / MARKER).exists()
    named = json.loads((store_path / "state" / "unrecovered.json").read_bytes())
    assert named["partitions"] == ["t-0", "t-1", "t-2"]
    open_store().close()
    assert (store_path / MARKER).exists()


def test_what_a_close_cannot_recover_is_left_to_a_later_session(open_store, store_path, caplog):
    store = open_store()
    store.create_topic("t")
    store.create_topic("u")
    write_some(store)
    abandon(store)
    (store_path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: no\n")
    store = open_store()
    store.close()
    named = json.loads((store_path / "state" / "unrecovered.json").read_bytes())
    assert named["partitions"] == ["t-0"]


def test_what_nobody_opened_since_a_crash_is_recovered_in_a_later_session(
    open_store, store_path, monkeypatch
):
    monkeypatch.setattr(opened_partitions, "RECOVERY_AT_CLOSE_S", 0)
    store = open_store()
    store.create_topic("t")
    store.create_topic("u")
    write_some(store)
    write_some(store, "u")
    size_bytes = store.partition("t", 0).size_bytes
    abandon(store)
    log = store_path / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:size_bytes] + b"torn")
    for _ in range(3):
        store = open_store()
        assert values_of(store, "u") == [b"a", b"b", b"c"]
        store.close()
        assert not (store_path / MARKER).exists()
        left = json.loads((store_path / "state" / "unrecovered.json").read_bytes())
        assert left["partitions"] == ["t-0"]
    store = open_store()
    assert values_of(store, "t") == [b"a", b"b", b"c"]
    assert store.metrics()["cut_bytes"] == 4
    store.close()
    assert (store_path / MARKER).exists()
    assert not (store_path / "state" / "unrecovered.json").exists()


def test_a_damaged_list_of_unrecovered_partitions_stands_for_all(open_store, store_path):
    store = open_store()
    store.create_topic("t", partitions=3)
    store.close()
    (store_path / MARKER).unlink()
    for content in (
        b"{",
        b"{}",
        b'{"version": 9}',
        b'{"version": 1, "session": "x", "partitions": [3]}',
    ):
        (store_path / "state" / "unrecovered.json").write_bytes(content)
        store = open_store()
        assert store.metrics()["partitions_unrecovered"] == 3
        abandon(store)


def test_a_marker_by_kafka_counts(open_store, store_path):
    store = open_store()
    store.create_topic("t")
    store.producer(name="n").append("t", 0, [b"x"])
    store.close()
    (store_path / MARKER).write_text('{"version":0,"brokerEpoch":7}')
    store = open_store()
    assert store.metrics()["partitions_unrecovered"] == 0
    assert store.producer(name="n").next_sequence("t", 0) == 1


@pytest.mark.parametrize("content", [None, b"", b"9\n", b"0\n1\nt 0 nine\n"])
def test_lost_and_damaged_checkpoints_only_cost_time(open_store, store_path, content):
    store = open_store()
    store.create_topic("t")
    write_some(store)
    store.flush()
    abandon(store)
    for path in store_path.glob("*-checkpoint"):
        path.unlink()
    if content is not None:
        (store_path / RECOVERY_POINT).write_bytes(content)
    store = open_store()
    assert values_of(store, "t") == [b"a", b"b", b"c"]
    assert len(store.metrics()["damaged_files"]) == (1 if content else 0)
    store.close()
    assert read_checkpoint(store_path / RECOVERY_POINT)[TopicPartition("t", 0)] == 3


def test_without_state_everything_is_made_anew(open_store, store_path):
    store = open_store()
    store.create_topic("t", partitions=2)
    write_some(store, partition=1)
    with store.producer(name="n") as producer:
        producer.append("t", 0, [b"x"] * 5)
    store.close()
    subprocess.run(["rm", "-r", str(store_path / "state")], check=True)
    store = open_store()
    assert store.topics()["t"].partitions == 2
    assert values_of(store, "t", 1) == [b"a", b"b", b"c"]
    assert store.producer(name="n").next_sequence("t", 0) == 5
    assert parts_of(store).files.registry.get("__transaction_state").partitions == 50


def test_a_partitions_directory_that_is_gone_is_an_error_and_no_empty_log(open_store, store_path):
    store = open_store()
    store.create_topic("t", partitions=2)
    write_some(store)
    store.close()
    subprocess.run(["rm", "-r", str(store_path / "t-0")], check=True)
    store = open_store()
    with pytest.raises(CorruptRecordError, match="t-0"):
        store.partition("t", 0)
    assert store.partition("t", 1).log_end_offset == 0
    assert [problem["path"] for problem in store.verify()] == [str(store_path / "t-0")]


def test_a_directory_of_another_topic_is_refused(open_store, store_path):
    store = open_store()
    store.create_topic("t")
    store.create_topic("u")
    store.close()
    (store_path / "t-0" / "partition.metadata").write_bytes(
        (store_path / "u-0" / "partition.metadata").read_bytes()
    )
    with pytest.raises(CorruptRecordError, match="topic id"):
        open_store().partition("t", 0)


def test_lost_partition_metadata_is_written_anew(open_store, store_path):
    store = open_store()
    store.create_topic("t")
    topic_id = store.topics()["t"].topic_id
    store.close()
    (store_path / "t-0" / "partition.metadata").unlink()
    open_store().partition("t", 0)
    assert topic_id in (store_path / "t-0" / "partition.metadata").read_text()


# The trace of the last stop is gone before anything can be written.


def test_the_marker_is_removed_on_opening(open_store, store_path):
    open_store().close()
    open_store()
    assert not (store_path / MARKER).exists()


def test_a_damaged_record_of_the_internal_log_is_an_error(open_store, store_path):
    store = open_store()
    store.create_topic("t")
    store.producer(name="n")
    store.close()
    for path in store_path.glob("__transaction_state-*/*.log"):
        data = bytearray(path.read_bytes())
        if data:
            data[-3] ^= 1
            path.write_bytes(data)
    subprocess.run(["rm", "-r", str(store_path / "state" / "lmdb")], check=True)
    with pytest.raises(CorruptRecordError):
        open_store()


# Costs.


def test_opening_a_clean_store_opens_no_partition_and_reads_no_checkpoint(open_store):
    store = open_store()
    for number in range(20):
        store.create_topic(f"t{number}", partitions=5)
    store.close()
    store = open_store()
    metrics = store.metrics()
    assert (metrics["topics"], metrics["partitions"], metrics["partitions_unrecovered"]) == (
        20,
        0,
        0,
    )
    assert parts_of(store).files.checkpoints._offsets == {}
    # Its thread runs, for what dead processes leave, and opens none either.
    parts_of(store).checkpointer.peers.look()
    assert store.metrics()["partitions"] == 0


def test_no_thread_is_left_after_closing(open_store):
    before = set(threading.enumerate())
    store = open_store()
    store.create_topic("t")
    store.producer().send("t", b"x")
    store.close()
    assert set(threading.enumerate()) <= before


# Forks.


def test_a_forked_child_is_refused_everywhere(store):
    store.create_topic("t")
    write_some(store)
    partition, producer, consumer = (
        engine_of(store).partition("t", 0),
        store.producer(),
        store.consumer(),
    )
    producer.send("t", b"x")
    producer.flush()
    consumer.assign([TopicPartition("t", 0)])

    def work():
        refused = []
        for call in (
            store.topics,
            store.producer,
            store.flush,
            lambda: store.partition("t", 0),
            lambda: partition.append_columns([b"x"]),
            lambda: partition.log_end_offset,
            partition.producers,
            lambda: producer.send("t", b"x"),
            lambda: producer.append("t", 0, [b"x"]),
            producer.flush,
            consumer.poll,
        ):
            try:
                call()
                refused.append(False)
            except ForkedProcessError:
                refused.append(True)
        store.close()
        return refused

    assert in_child(work) == [True] * 11
    write_some(store)
    assert store.partition("t", 0).log_end_offset == 7


@pytest.mark.parametrize("transactional_id", [None, "pays"])
def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(
    store, monkeypatch, transactional_id
):
    """It was in a call of the producer when another thread forked."""
    store.create_topic("t")
    # The background thread leaves the record to the thread of the test.
    config = {"linger.ms": 3_600_000} if transactional_id is None else None
    producer = store.producer(transactional_id=transactional_id, config=config)
    if transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()
    producer.send("t", b"first")
    inside, done = threading.Event(), threading.Event()
    within = (UnifiedLog, "append_accumulated")
    if transactional_id is not None:
        within = (TransactionManager, "flush")
    whole = getattr(*within)

    def stay(*arguments):
        if threading.current_thread() is thread:
            inside.set()
            done.wait()
        return whole(*arguments)

    def work():
        refused = []
        for call in (lambda: producer.send("t", b"x"), producer.flush):
            with pytest.raises(ForkedProcessError):
                call()
            refused.append(True)
        producer.close()
        return refused

    monkeypatch.setattr(*within, stay)
    thread = threading.Thread(target=producer.flush)
    thread.start()
    assert inside.wait(60)
    try:
        assert in_child(work) == [True, True]
    finally:
        done.set()
        thread.join()
    if transactional_id is not None:
        producer.commit_transaction()
    producer.close()
    assert values_of(store, "t") == [b"first"]


@pytest.mark.parametrize(
    "read", [Consumer.poll, lambda consumer: next(iter(consumer))], ids=["poll", "iteration"]
)
def test_a_forked_child_is_refused_a_consumer_that_a_thread_polled(store, monkeypatch, read):
    """Its poll never ends in the child; that it is under way is not what is wrong."""
    store.create_topic("t")
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", 0)])
    inside, fetch = threading.Event(), Fetcher.records

    def noted(*arguments):
        inside.set()
        return fetch(*arguments)

    monkeypatch.setattr(Fetcher, "records", noted)
    thread = threading.Thread(target=consumer.poll, args=[60])
    thread.start()
    assert inside.wait(60)

    def work():
        with pytest.raises(ForkedProcessError):
            read(consumer)
        return "refused"

    try:
        assert in_child(work) == "refused"
    finally:
        write_some(store)
        thread.join()
    consumer.close()


def test_a_child_that_outlives_its_parents_store_does_not_keep_it_locked(store, store_path):
    with Fork(Fork.wait):
        store.close()
        eoslog.open(store_path).close()


# Disks that refuse.


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (28, StoreFullError),
        (122, StoreFullError),
        (30, StoreReadOnlyError),
        (13, StoreReadOnlyError),
        (5, StoreFailedError),
    ],
)
def test_a_refusal_of_the_system_has_a_name(store_path, monkeypatch, number, expected):
    eoslog.open(store_path, create=True).close()

    def refuse(*_arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("eoslog.fs.atomic_file.os.fsync", refuse)
    with pytest.raises(expected):
        write_atomically(store_path / "x", b"")
    with pytest.raises(expected):
        eoslog.open(store_path)
    monkeypatch.undo()
    with eoslog.open(store_path) as store:
        assert store.topics() == {}


def test_a_partition_that_does_not_exist(store):
    store.create_topic("t", partitions=2)
    for topic, number in (("t", 2), ("t", -1), ("u", 0), ("__transaction_state", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            store.partition(topic, number)
    with pytest.raises(TypeError):
        store.partition("t", "0")


def test_verify_reports_progress_and_problems(open_store, store_path):
    store = open_store()
    store.create_topic("t", partitions=2)
    write_some(store)
    store.close()
    log = store_path / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    store = open_store()
    seen = []
    problems = store.verify(lambda done, total, where: seen.append((done, total, where)))
    user = [where for _, _, where in seen if not where.topic.startswith("__")]
    assert user == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert [done for done, _, _ in seen] == list(range(seen[0][1]))
    assert [problem["path"] for problem in problems] == [str(log)]


def test_an_empty_path_is_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path is empty"):
        eoslog.open("", create=True)
    assert list(tmp_path.iterdir()) == []


def test_verify_leaves_out_a_topic_that_is_deleted_meanwhile(open_store, monkeypatch):
    store = open_store()
    store.create_topic("t", partitions=1)
    store.create_topic("u", partitions=1)
    verify = UnifiedLog.verify

    def deleted_meanwhile(self, *decided, **options):
        if self.topic_partition.topic == "t":
            store.delete_topic("t")
        return verify(self, *decided, **options)

    monkeypatch.setattr(UnifiedLog, "verify", deleted_meanwhile)
    assert store.verify() == []
    assert list(store.topics()) == ["u"]
