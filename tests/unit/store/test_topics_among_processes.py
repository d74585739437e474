"""The list of topics and the checkpoints under several processes: who sees what, and when."""

from __future__ import annotations

import threading

import pytest
from harness.crew import started
from harness.fork import Fork

from eoslog import TopicPartition
from eoslog.bindings.shared_page import COUNTER_TOPICS, SharedPage
from eoslog.errors import CorruptRecordError
from eoslog.fs.checkpoint_file import LOG_START_OFFSET, RECOVERY_POINT, read_checkpoint
from eoslog.fs.file_lock import directory_locked, file_locked
from eoslog.storage.offset_checkpoints import LastOffsets, OffsetCheckpoints
from eoslog.storage.topic_registry import TopicRegistry, new_topic

SESSION = bytes(range(16))
T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)

PRELUDE = """
from pathlib import Path
from eoslog import TopicPartition
from eoslog.bindings.shared_page import SharedPage
from eoslog.fs.file_lock import directory_locked, file_locked
from eoslog.storage.offset_checkpoints import LastOffsets, OffsetCheckpoints
from eoslog.storage.topic_registry import TopicRegistry, new_topic
import eoslog.storage.topic_registry as topic_registry
path = Path({path!r})
shared = SharedPage(str(path / "shared"), bytes(range(16)), create=False)
"""


@pytest.fixture
def shared(tmp_path):
    return SharedPage(str(tmp_path / "shared"), SESSION, create=True)


@pytest.fixture
def registry(tmp_path, shared):
    return TopicRegistry.load(tmp_path, tmp_path, shared)


@pytest.fixture
def other(tmp_path, shared):
    made = []

    def start(code):
        made.append(started(PRELUDE.format(path=str(tmp_path)) + code))
        return made[-1]

    yield start
    for one in made:
        one.dispose()


def names(registry):
    return sorted(topic.name for topic in registry.all())


# Topics.


def test_a_topic_that_another_process_adds_is_there_at_once(registry, other):
    registry.add(new_topic("t", 2, {"segment.bytes": 4096}))
    before, generation = registry.get("t"), registry.generation
    peer = other(
        "registry = TopicRegistry.load(path, path, shared)\n"
        "say(registry.get('t').config['segment.bytes'])\n"
        "registry.add(new_topic('u', 1, {}))\nsay('added')\nwait()\n"
        "say(registry.get('u').deleting if registry.get('u') else None)\n"
        "say([one.name for one in registry.deleting()])\n"
        "registry.remove('u')\nsay('removed')\n"
    )
    peer.hear("4096")
    peer.hear("added")
    assert names(registry) == ["t", "u"]
    assert registry.generation > generation
    # What is as it was stays the same object.
    assert registry.get("t") is before
    registry.mark_deleting("u")
    assert registry.get("u") is None
    peer.tell()
    assert (peer.hear().word, peer.hear().word) == ("None", "['u']")
    peer.hear("removed")
    assert registry.deleting() == []
    assert names(registry) == ["t"]


def test_no_change_of_two_processes_is_lost(registry, other):
    body = (
        "registry = TopicRegistry.load(path, path, shared)\n"
        "for number in range(30):\n"
        "    registry.add(new_topic(f'{name}-{{number}}', 1, {{}}))\n"
    )
    peers = [other(body.format(name=name)) for name in ("a", "b")]
    for number in range(30):
        registry.add(new_topic(f"c-{number}", 1, {}))
    for peer in peers:
        peer.end()
    assert len(names(registry)) == 90


def test_an_internal_topic_is_made_once(registry, other):
    body = (
        "registry = TopicRegistry.load(path, path, shared)\n"
        "with registry.making_partition('__transaction_state', 50) as topic:\n"
        "    say(topic.topic_id)\n"
    )
    peers = [other(body) for _ in range(3)]
    with registry.making_partition("__transaction_state", 50) as topic:
        found = {topic.topic_id}
    found |= {peer.hear().word for peer in peers}
    assert len(found) == 1
    assert names(registry) == ["__transaction_state"]


@pytest.mark.parametrize("died", ["before the count", "with the lock"])
def test_what_a_process_wrote_that_died_before_it_could_say_so_is_found(registry, other, died):
    registry.add(new_topic("t", 1, {}))
    peer = other(
        "registry = TopicRegistry.load(path, path, shared)\n"
        "class Page:\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(shared, name)\n"
        "    def raise_counter(self, number):\n"
        "        say('written')\n"
        "        wait()\n"
        "registry._shared = Page()\n"
        "registry.add(new_topic('u', 1, {}))\n"
    )
    peer.hear("written")
    peer.kill()
    assert names(registry) == ["t"]
    if died == "before the count":
        registry.refresh()
        assert names(registry) == ["t", "u"]
    registry.add(new_topic("v", 1, {}))
    assert names(registry) == ["t", "u", "v"]


def test_a_list_that_another_process_cannot_have_written_is_named(registry, shared, tmp_path):
    (tmp_path / "topics.json").write_text("{}")
    shared.raise_counter(COUNTER_TOPICS)
    with pytest.raises(CorruptRecordError):
        registry.get("t")


def test_one_process_at_a_time_changes_topics(registry, other):
    peer = other(
        "registry = TopicRegistry.load(path, path, shared)\n"
        "with registry.changing_topics():\n"
        "    say('in')\n    wait()\n"
        "say('out')\n"
        "wait()\n"
    )
    peer.hear("in")
    with registry.changing_topics_if_free() as free:
        assert not free
    # The registry itself is free for other changes meanwhile.
    registry.add(new_topic("__consumer_offsets", 50, {}))
    peer.tell()
    peer.hear("out")
    with registry.changing_topics_if_free() as free:
        assert free


def test_the_death_of_a_process_that_changes_topics_lets_the_next_one_in(registry, other):
    peer = other(
        "registry = TopicRegistry.load(path, path, shared)\n"
        "with registry.changing_topics():\n"
        "    say('in')\n    wait()\n"
    )
    peer.hear("in")
    killer = threading.Timer(0.2, peer.kill)
    killer.start()
    with registry.changing_topics():
        pass
    killer.join()  # One thread at a time waits for the end of a process.


# Files and directories that are locked.


def test_threads_of_one_process_keep_each_other_out(tmp_path):
    with file_locked(tmp_path / "a.lock"), file_locked(tmp_path / "a.lock", wait=False) as second:
        assert not second
    with directory_locked(tmp_path) as first:
        assert first
    with pytest.raises(FileNotFoundError), directory_locked(tmp_path / "gone"):
        pass


def test_a_forked_child_does_not_keep_a_lock(tmp_path):
    with file_locked(tmp_path / "a.lock"):
        child = Fork(Fork.wait)
    with child, file_locked(tmp_path / "a.lock", wait=False) as free:
        assert free


# Checkpoints.


def test_each_process_keeps_what_the_others_wrote(tmp_path, shared, other):
    ours = OffsetCheckpoints(tmp_path, shared)
    ours.write({T0: LastOffsets(10, 1, 12, 10)})
    peer = other(
        "theirs = OffsetCheckpoints(path, shared)\n"
        "say(theirs.recovery_point(TopicPartition('t', 0)))\n"
        "theirs.write({TopicPartition('u', 0): LastOffsets(20, 2, 22, 20)})\n"
        "say('written')\nwait()\n"
        "say(theirs.recovery_point(TopicPartition('t', 0)))\n"
        "theirs.forget([TopicPartition('t', 0)])\nsay('gone')\n"
    )
    peer.hear("10")
    peer.hear("written")
    assert ours.log_start_offset(U0) == 2
    ours.write({T0: LastOffsets(30, 3, 32, 30)})
    assert read_checkpoint(tmp_path / RECOVERY_POINT) == {T0: 30, U0: 20}
    peer.tell()
    peer.hear("30")
    peer.hear("gone")
    assert ours.recovery_point(T0) == 0
    assert read_checkpoint(tmp_path / LOG_START_OFFSET) == {U0: 2}


def test_what_is_looked_at_is_written_before_anybody_else_writes(tmp_path, shared, other):
    ours = OffsetCheckpoints(tmp_path, shared)
    peer = other(
        "theirs = OffsetCheckpoints(path, shared)\n"
        "def look():\n    say('looking')\n    wait()\n"
        "    return {TopicPartition('t', 0): LastOffsets(5, 0, 5, 5)}\n"
        "theirs.renew(look)\nsay('written')\n"
    )
    peer.hear("looking")
    written = threading.Event()

    def write():
        ours.write({T0: LastOffsets(7, 0, 7, 7)})
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.2)
    peer.tell()
    peer.hear("written")
    thread.join()
    assert read_checkpoint(tmp_path / RECOVERY_POINT) == {T0: 7}


def test_lost_files_come_back(tmp_path, shared):
    ours = OffsetCheckpoints(tmp_path, shared)
    ours.write({T0: LastOffsets(10, 1, 12, 10)})
    (tmp_path / RECOVERY_POINT).unlink()
    ours.write({U0: LastOffsets(20, 2, 22, 20)})
    assert read_checkpoint(tmp_path / RECOVERY_POINT) == {T0: 10, U0: 20}
