"""One store in several processes: who joins, who leaves, who dies, and what they leave behind."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
from harness.crew import Member, MemberError
from harness.fork import in_child
from harness.waiting import eventually
from short_form import short_form
from stores import QUIET, values_of

import eoslog
from eoslog import TopicPartition
from eoslog.bindings import shared_page
from eoslog.bindings.control_state import control_state
from eoslog.errors import (
    ForkedProcessError,
    LogClosedError,
    StoreFailedError,
    StoreInUseError,
    UnknownTopicOrPartitionError,
)
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.parts import StoreParts
from eoslog.store.store import engine_of, parts_of

MARKER = ".kafka_cleanshutdown"
OPEN = """
def open_it(durability="process", **config):
    return eoslog.open(path, create=True, durability=durability, config={**quiet, **config})
"""


@pytest.fixture
def others(store_path):
    """Processes that can open the store: `others()` makes one."""
    made = []

    def make():
        made.append(Member())
        made[-1].run(OPEN, path=str(store_path), quiet=QUIET)
        return made[-1]

    yield make
    for one in made:
        one.dispose()


@pytest.fixture
def other(others):
    return others()


def check_whole(path, topic="t", values=None):
    """The stop was clean, and everything is in order; Kafka's marker says so too."""
    assert (path / MARKER).exists()
    with eoslog.open(path, config=QUIET) as store:
        assert parts_of(store).files.was_stopped_uncleanly is False
        assert store.metrics()["partitions_unrecovered"] == 0
        assert store.verify() == []
        if values is not None:
            assert values_of(store, topic) == values


# Joining and leaving.


def test_a_process_that_hangs_inside_a_write_of_lmdb_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_page, "LOCK_TIMEOUT_S", 0.3)
    path = str(tmp_path / "store")
    with eoslog.open(path, create=True) as store, Member() as other:
        other.run("store = eoslog.open(path, durability=None)", path=path)
        other.run("inside, go_on = threading.Event(), threading.Event()")
        other.run("def hang(_): inside.set(); go_on.wait()")
        other.run("lmdb = parts_of(store).files.lmdb")
        other.run("writer = threading.Thread(target=lambda: lmdb.write(hang))")
        other.run("writer.start(); inside.wait()")
        ours = parts_of(store).files.lmdb
        with pytest.raises(StoreInUseError, match=f"process {other.pid} has held"):
            ours.write(lambda _: None)
        ours.read(lambda _: None)
        other.run("go_on.set(); writer.join()")
        ours.write(lambda _: None)
        other.run("store.close()")


def test_processes_share_topics_and_records(store, other):
    store.create_topic("t")
    other.run("store = open_it()")
    assert other.value("list(store.topics())") == ["t"]
    store.producer().append("t", 0, [b"a"])
    other.run("store.producer().append('t', 0, [b'b'])")
    assert values_of(store, "t") == [b"a", b"b"]
    other.run("store.create_topic('u', partitions=2)")
    assert store.topics()["u"].partitions == 2
    other.run("store.close()")
    store.close()
    check_whole(store.path, values=[b"a", b"b"])


def test_every_process_is_named(store, other):
    other.run("store = open_it()")
    assert [one.process_id for one in store.processes()] == [os.getpid(), other.pid]
    assert other.value("[one.process_id for one in store.processes()]") == [other.pid, os.getpid()]
    other.run("store.close()")
    assert [one.process_id for one in store.processes()] == [os.getpid()]


@pytest.mark.parametrize("killed", [False, True])
def test_a_flush_syncs_what_any_process_appended(open_store, other, killed):
    """Also where this one has not opened the partition, and the one that did is dead."""
    store = open_store("commit")
    store.create_topic("t", partitions=4)
    store.producer().append("t", 0, [b"a"])
    other.run("store = open_it('commit')")
    other.run("p = store.producer(); p.append('t', 0, [b'b']); p.append('t', 1, [b'c'])")
    other.run("p.append('t', 2, [b'd']); engine_of(store).partition('t', 2).flush()")
    if killed:
        other.kill()

    def unsynced():
        pages = (store.path / "state" / "control").iterdir()
        states = [control_state(str(page)) for page in pages if page.name.startswith("t-")]
        return sum(state.log_end_offset > state.recovery_point for state in states)

    assert unsynced() == 2
    store.flush()
    assert unsynced() == 0
    # What is synced, or was never written, is not opened for that.
    opened = [
        parts_of(store).files.partitions.if_open(TopicPartition("t", number)) for number in range(4)
    ]
    assert [partition is not None for partition in opened] == [True, True, False, False]


def test_a_flush_tries_all_partitions(open_store, monkeypatch):
    store = open_store("commit")
    store.create_topic("t", partitions=3)
    producer = store.producer()
    for number in range(3):
        producer.append("t", number, [b"v"])
    sync_up_to = UnifiedLog.sync_up_to

    def refuse(partition, offset):
        if partition.topic == "t" and partition.partition < 2:
            raise StoreFailedError(f"the disk refuses partition {partition.partition}")
        sync_up_to(partition, offset)

    with monkeypatch.context() as patched:
        patched.setattr(UnifiedLog, "sync_up_to", refuse)
        with pytest.raises(StoreFailedError, match="partition 0") as raised:
            store.flush()
    assert ["partition 1" in note for note in raised.value.__notes__] == [True]
    assert [engine_of(store).partition("t", number).recovery_point for number in range(3)] == [
        0,
        0,
        1,
    ]
    store.flush()
    store.close()
    with pytest.raises(LogClosedError):
        store.flush()


@pytest.mark.every_nth(5)
@pytest.mark.parametrize("durability", ["process", "commit", "always"])
@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_the_last_to_close_leaves_the_files_as_kafka_does(
    open_store, other, durability, first_leaves_first
):
    store = open_store(durability)
    store.create_topic("t", partitions=3)
    other.run("store = open_it(durability)", durability=durability)
    store.producer().append("t", 0, [b"a"])
    # One partition that only the other has opened, and one that nobody has.
    other.run("p = store.producer(); p.append('t', 0, [b'b']); p.append('t', 1, [b'c'])")
    if first_leaves_first:
        store.close()
        assert not (store.path / MARKER).exists()
        other.run("p.append('t', 0, [b'd'])")
        other.run("store.close()")
    else:
        other.run("p.append('t', 0, [b'd'])")
        other.run("store.close()")
        assert not (store.path / MARKER).exists()
        store.close()
    check_whole(store.path, values=[b"a", b"b", b"d"])
    for number in (0, 1):
        log = store.path / f"t-{number}" / f"{0:020d}.log"
        assert 0 < log.stat().st_size < 1000
    assert not (store.path / "state" / "session.json").exists()
    assert list((store.path / "state" / "processes").iterdir()) == []


def test_a_partition_whose_opener_has_left_is_closed_by_the_last(store, others):
    store.create_topic("t", partitions=4)
    for number in range(1, 4):
        one = others()
        one.run("store = open_it(); store.producer().append('t', n, [b'x'] * n)", n=number)
        if number == 3:
            one.kill()
        else:
            one.run("store.close()")
    assert not (store.path / MARKER).exists()
    store.close()
    check_whole(store.path)
    with eoslog.open(store.path, config=QUIET) as again:
        ends = [again.partition("t", number).log_end_offset for number in range(4)]
    assert ends == [0, 1, 2, 3]


def test_leaving_syncs_what_was_written(open_store, other):
    store = open_store("commit")
    store.create_topic("t")
    partition = engine_of(store).partition("t", 0)
    other.run("store = open_it('commit'); store.producer().append('t', 0, [b'x'] * 5)")
    assert partition.recovery_point < 5
    other.run("store.close()")
    assert partition.recovery_point == 5


def test_a_store_opens_again_and_again_while_another_has_it(store, store_path, other):
    store.create_topic("t")
    for number in range(5):
        other.run("store = open_it(); store.producer().append('t', 0, [b'%d' % n])", n=number)
        other.run("store.close()")
    assert values_of(store, "t") == [b"%d" % number for number in range(5)]
    store.close()
    check_whole(store_path)


def test_processes_that_come_and_go_at_once(store_path, others):
    team = [others() for _ in range(4)]
    team[0].run("store = open_it(); store.create_topic('t'); store.close()")
    for number, one in enumerate(team):
        one.begin(
            "for turn in range(6):\n"
            "    store = open_it()\n"
            "    store.producer().append('t', 0, [b'%d-%d' % (number, turn)])\n"
            "    store.close()\n",
            number=number,
        )
    for one in team:
        one.answer()
    check_whole(store_path)
    with eoslog.open(store_path, config=QUIET) as store:
        found = values_of(store, "t")
    assert sorted(found) == sorted(b"%d-%d" % (a, b) for a in range(4) for b in range(6))
    for number in range(4):
        mine = [value for value in found if value.startswith(b"%d-" % number)]
        assert mine == sorted(mine)


def test_a_second_object_in_one_process_is_refused(store, store_path, other):
    with pytest.raises(StoreInUseError, match=rf"process {os.getpid()} \(this process\)"):
        eoslog.open(store_path)
    other.run("store = open_it()")
    with pytest.raises(MemberError, match=rf"process {other.pid} \(this process\)"):
        other.run("open_it()")
    # It is none the worse for it.
    other.run("store.create_topic('t')")
    assert list(store.topics()) == ["t"]


# Dying.


def test_the_death_of_one_leaves_the_others_at_work(store, others):
    store.create_topic("t")
    one, two = others(), others()
    one.run("store = open_it(); store.producer().append('t', 0, [b'1'])")
    two.run("store = open_it(); store.producer().append('t', 0, [b'2'])")
    one.kill()
    two.run("store.producer().append('t', 0, [b'3'])")
    assert values_of(store, "t") == [b"1", b"2", b"3"]
    store.close()
    two.run("store.close()")
    check_whole(store.path, values=[b"1", b"2", b"3"])


def test_the_death_of_the_first_is_no_end_of_the_session(others, store_path):
    one, two = others(), others()
    one.run("store = open_it(); store.create_topic('t'); store.producer().append('t', 0, [b'1'])")
    two.run("store = open_it()")
    one.kill()
    two.run("store.producer().append('t', 0, [b'2'])")
    with eoslog.open(store_path, durability="process", config=QUIET) as store:
        assert not parts_of(store).files.session.first
        assert values_of(store, "t") == [b"1", b"2"]
    two.run("store.close()")
    check_whole(store_path, values=[b"1", b"2"])


def test_when_all_died_everything_is_recovered(others, store_path):
    one, two = others(), others()
    one.run("store = open_it(); store.create_topic('t', partitions=2)")
    one.run("store.producer().append('t', 0, [b'1'])")
    two.run("store = open_it(); store.producer().append('t', 1, [b'2'])")
    one.kill()
    two.kill()
    with eoslog.open(store_path, config=QUIET) as store:
        assert parts_of(store).files.was_stopped_uncleanly
        assert store.metrics()["partitions_unrecovered"] == 2
        assert values_of(store, "t") == [b"1"]
        assert values_of(store, "t", 1) == [b"2"]
    check_whole(store_path)


def test_what_was_to_be_recovered_is_so_whoever_opens_it(others, store_path):
    one = others()
    one.run("store = open_it(); store.create_topic('t', partitions=3)")
    one.run("p = store.producer(); [p.append('t', n, [b'x']) for n in range(3)]")
    one.kill()
    first, second = others(), others()
    first.run("store = open_it()")
    assert first.value("store.metrics()['partitions_unrecovered']") == 3
    second.run("store = open_it()")
    assert second.value("store.metrics()['partitions_unrecovered']") == 3
    assert second.value("store.partition('t', 1).log_end_offset") == 1
    assert first.value("store.metrics()['partitions_unrecovered']") == 2
    assert first.value("store.partition('t', 0).log_end_offset") == 1
    first.run("store.close()")
    second.run("from eoslog.storage import opened_partitions as opened")
    second.run("opened.RECOVERY_AT_CLOSE_S = 0; store.close()")
    # The one that nobody opened is still to be recovered.
    assert not (store_path / MARKER).exists()
    with eoslog.open(store_path, config=QUIET) as store:
        assert [str(one) for one in parts_of(store).files.partitions.unrecovered] == ["t-2"]
        assert store.partition("t", 2).log_end_offset == 1
    check_whole(store_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", short_form(range(3), 1))
def test_deaths_while_coming_and_going(store_path, others, seed):
    """Killed at any moment of opening or closing; whoever comes next finds everything."""
    one = others()
    one.run("store = open_it(); store.create_topic('t'); store.producer().append('t', 0, [b'0'])")
    if seed == 0:
        one.run("store.close()")
    count = 1
    for turn in range(6):
        victim = others()
        victim.begin("while True:\n    store = open_it()\n    store.close()\n")
        time.sleep(0.02 + 0.013 * ((turn * 7 + seed * 3) % 10))
        victim.kill()
        mine = others()
        mine.run("store = open_it(); store.producer().append('t', 0, [b'%d' % n])", n=count)
        count += 1
        if turn % 2:
            mine.run("store.close()")
        else:
            mine.kill()
    if seed:
        one.run("store.close()")
    with eoslog.open(store_path, config=QUIET, durability=None) as store:
        assert values_of(store, "t") == [b"%d" % number for number in range(count)]
        assert store.verify() == []
    check_whole(store_path)


def test_a_stopped_process_that_closes_is_named(store, other, monkeypatch):
    other.run("store = open_it()")
    other.run("parts_of(store).files.session.begin_leaving()")
    other.signal(signal.SIGSTOP)
    monkeypatch.setattr(parts_of(store).files.session.lock, "timeout_s", 0.1)
    # It is left to the other to be the last, and the close is none the worse.
    store.close()
    other.signal(signal.SIGCONT)
    other.kill()


# Who may join.


def test_a_session_has_one_durability(open_store, store_path, other):
    store = open_store("process")
    with pytest.raises(MemberError, match=r"durability 'process'.*not with 'commit'"):
        other.run("open_it('commit')")
    other.run("store = open_it(None)")
    assert other.value("store.durability") == "process"
    assert store.durability == "process"
    other.run("store.close()")


def test_a_session_has_one_set_of_defaults_for_topics(open_store, other):
    store = open_store(log__segment__bytes=2048)
    with pytest.raises(MemberError, match=r"segment\.bytes=2048.*not with 4096"):
        other.run("open_it(**{'log.segment.bytes': 4096})")
    other.run("store = open_it(); store.create_topic('t')")
    for which in (parts_of(store).files.partitions, None):
        config = (
            which.config_of(store.topics()["t"])
            if which
            else other.value("parts_of(store).files.partitions.config_of(store.topics()['t'])")
        )
        assert config["segment.bytes"] == 2048


# Forks and pickles.


def test_a_forked_child_opens_the_store_anew(store, store_path):
    store.create_topic("t")
    producer = store.producer()
    producer.append("t", 0, [b"parent"])

    def work():
        try:
            store.topics()
        except ForkedProcessError:
            pass
        else:
            return "the parent's object was not refused"
        with eoslog.open(store_path, durability="process", config=QUIET) as own:
            own.producer().append("t", 0, [b"child"])
            return values_of(own, "t"), len(own.processes()), parts_of(own).files.session.first

    assert in_child(work) == ([b"parent", b"child"], 2, False)
    producer.append("t", 0, [b"parent again"])
    assert values_of(store, "t") == [b"parent", b"child", b"parent again"]
    assert len(store.processes()) == 1
    store.close()
    check_whole(store_path, values=[b"parent", b"child", b"parent again"])


def test_a_forked_child_may_outlive_its_parent_and_its_store(store_path, tmp_path, others):
    other = others()
    other.run("store = open_it(); store.create_topic('t'); store.producer().append('t', 0, [b'1'])")
    other.run(
        "reader, writer = os.pipe()\nchild = os.fork()\n"
        "if child == 0:\n    os.write(writer, b'x')\n    time.sleep(60)\n    os._exit(0)\n"
        "os.read(reader, 1)"
    )
    child = other.value("child")
    try:
        other.kill()
        # The child holds nothing: this is the first of a new session.
        with eoslog.open(store_path, config=QUIET) as store:
            assert parts_of(store).files.session.first
            assert values_of(store, "t") == [b"1"]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_fork_while_other_threads_open_and_close(store_path):
    eoslog.open(store_path, create=True, durability="process", config=QUIET).close()
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            with eoslog.open(store_path, durability="process", config=QUIET):
                pass

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(20):
            assert in_child(lambda: 1) == 1
            time.sleep(0.005)
    finally:
        done.set()
        thread.join()
    with eoslog.open(store_path, config=QUIET) as store:
        assert parts_of(store).files.was_stopped_uncleanly is False


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_open_cannot_be_pickled_or_copied(store, duplicate):
    store.create_topic("t")
    for what, said in (
        (store, "a store cannot be pickled or copied: open it where it is needed"),
        (store.producer(), "a producer cannot be pickled or copied: make one where it is needed"),
        (store.producer(name="n"), "a producer cannot be pickled"),
        (store.producer(transactional_id="x"), "a producer cannot be pickled"),
        (store.consumer(), "a consumer cannot be pickled"),
        (store.partition("t", 0), "a partition cannot be pickled or copied"),
    ):
        with pytest.raises(TypeError, match=said):
            duplicate(what)


def test_a_spawned_process_opens_it_by_its_path(store, store_path):
    store.create_topic("t")
    code = (
        "import sys, eoslog\n"
        "with eoslog.open(sys.argv[1], durability=None) as store:\n"
        "    store.producer().append('t', 0, [b'x'])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(store_path)], check=True, timeout=60)
    assert values_of(store, "t") == [b"x"]


@pytest.mark.parametrize("way", ["make it", "delete another"])
def test_a_deletion_that_was_cut_short_is_finished_with_the_next_change(store, other, way):
    """Also by a process without an open partition, in which nothing goes on in the background."""
    before = store.create_topic("t", partitions=2)
    store.create_topic("u")
    other.run("s = open_it()")
    other.run("parts_of(s).files.registry.mark_deleting('t')")
    other.kill()
    if way == "make it":
        assert store.create_topic("t", partitions=1).topic_id != before.topic_id
        return
    with pytest.raises(UnknownTopicOrPartitionError):
        store.delete_topic("t")
    store.delete_topic("u")
    assert not list(store.path.glob("t-*"))
    assert parts_of(store).files.registry.deleting() == []


# Replaced files.


def test_a_store_that_was_replaced_refuses_everything(store, store_path, tmp_path):
    store.create_topic("t")
    partition, producer, consumer = (
        engine_of(store).partition("t", 0),
        store.producer(),
        store.consumer(),
    )
    consumer.assign([TopicPartition("t", 0)])
    producer.append("t", 0, [b"x"])
    transactional = store.producer(transactional_id="id")
    transactional.init_transactions()
    transactional.begin_transaction()
    transactional.append("t", 0, [b"undecided"])
    gathering = store.producer(transactional_id="other id")
    gathering.init_transactions()
    gathering.begin_transaction()
    gathering.send("t", b"gathered", partition=0)
    engine_of(store).check_files()
    store_path.rename(tmp_path / "away")
    store_path.mkdir()
    with pytest.raises(StoreFailedError, match="another file now"):
        engine_of(store).check_files()
    for call in (
        store.topics,
        store.producer,
        store.flush,
        lambda: store.create_topic("u"),
        lambda: partition.append_columns([b"x"]),
        lambda: partition.log_end_offset,
        lambda: producer.append("t", 0, [b"x"]),
        gathering.commit_transaction,
        lambda: transactional.append("t", 0, [b"x"]),
        consumer.poll,
        lambda: store.partition("t", 0),
    ):
        with pytest.raises(StoreFailedError, match="was replaced while it was open"):
            call()
    with pytest.raises(StoreFailedError, match="was replaced while it was open"):
        store.close()
    assert list(store_path.iterdir()) == []
    with eoslog.open(tmp_path / "away", config=QUIET) as away:
        assert values_of(away, "t") == [b"x"]


def test_the_background_looks_at_the_files_while_something_is_appended(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr("eoslog.store.peer_monitor.LOOK_ALONE_S", 3600.0)
    monkeypatch.setattr(StoreParts, "_look_at_files", lambda _: looked.append(True))
    config = {"eoslog.checkpoint.interval.ms": 10}
    with eoslog.open(tmp_path / "store", create=True, config=config) as store:
        store.create_topic("t")
        producer, before = store.producer(), len(looked)
        deadline_s = time.monotonic() + 60
        while len(looked) <= before + 3:
            assert time.monotonic() < deadline_s
            producer.append("t", 0, [b"x"])
            time.sleep(0.02)


def test_the_background_thread_notices_it(open_store, store_path, tmp_path, monkeypatch):
    monkeypatch.setattr("eoslog.store.peer_monitor.LOOK_ALONE_S", 0.02)
    store = open_store()
    store.create_topic("t")
    consumer = store.consumer()
    consumer.assign([TopicPartition("t", 0)])
    store_path.rename(tmp_path / "away")
    # Whoever waits for records is told.
    with pytest.raises(StoreFailedError, match="is gone"):
        consumer.poll(timeout=30)
    with pytest.raises(StoreFailedError, match="is gone"):
        store.close()


def test_each_warning_that_the_files_are_gone_is_logged_once(
    open_store, store_path, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("eoslog.store.peer_monitor.LOOK_ALONE_S", 0.02)
    monkeypatch.setattr("eoslog.store.peer_monitor.LOOK_S", 0.02)
    store = open_store(
        **{
            "eoslog.checkpoint.interval.ms": 20,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 20,
        }
    )
    store.create_topic("t")
    store.producer(transactional_id="x").init_transactions()
    store_path.rename(tmp_path / "away")
    eventually(lambda: parts_of(store).checkpointer.metrics()["error_count"] >= 12)
    logged = [one.getMessage() for one in caplog.records]
    assert any("is gone" in one for one in logged)
    assert len(set(logged)) == len(logged)
    with pytest.raises(StoreFailedError, match="is gone"):
        store.close()
