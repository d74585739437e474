"""`eoslog consume --follow`: each record is out at once, and its user or reader ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from cli_calls import DONE, FAILED, WRONG_USE, assert_mistake, call
from harness.waiting import SECONDS_MAX, eventually

import eoslog
from eoslog.cli.records.topic_reader import TopicReader, WantedPartitions
from eoslog.errors import UnknownTopicOrPartitionError


class Follower:
    """A command that follows, as a program of its own."""

    def __init__(self, *arguments: object) -> None:
        words = [sys.executable, "-m", "eoslog", *map(str, arguments), "--follow"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.stdout = self._process.stdout
        assert self.stdout is not None

    def lines(self, count: int) -> list[str]:
        assert self.stdout is not None
        return [self.stdout.readline() for _ in range(count)]

    def interrupt(self) -> tuple[int, str, str]:
        """Press Ctrl-C: status, the rest of what was printed, errors."""
        self._process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> tuple[int, str, str]:
        stdout, stderr = "", ""
        if self.stdout is not None and not self.stdout.closed:
            stdout, stderr = self._process.communicate(timeout=SECONDS_MAX)
        else:
            assert self._process.stderr is not None
            stderr = self._process.stderr.read()
        return self._process.wait(timeout=SECONDS_MAX), stdout, stderr

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def follow() -> Iterator[Callable[..., Follower]]:
    followers: list[Follower] = []

    def begin(*arguments: object) -> Follower:
        followers.append(Follower(*arguments))
        return followers[-1]

    yield begin
    for one in followers:
        one.kill()


def write(store: eoslog.Store, *values: bytes, topic: str = "orders", partition: int = 0) -> None:
    with store.producer() as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


def test_each_record_is_out_at_once_and_ctrl_c_is_a_clean_end(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders", partitions=2)
    write(store, b"old")
    follower = follow("consume", "orders", "--store", store_path)
    assert follower.lines(1) == ["old\n"]
    write(store, b"new")
    assert follower.lines(1) == ["new\n"]
    write(store, b"other", partition=1)
    assert follower.lines(1) == ["other\n"]
    assert len(store.processes()) == 1  # It takes part in nothing.
    assert follower.interrupt() == (DONE, "", "")


def test_it_ends_when_its_reader_has_gone_though_no_record_comes(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders")
    write(store, b"old")
    follower = follow("consume", "orders", "--store", store_path)
    assert follower.lines(1) == ["old\n"]
    follower.stdout.close()
    assert follower.end() == (DONE, "", "")


def test_what_is_undecided_waits_for_its_end(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders")
    producer = store.producer(transactional_id="till")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"aborted")
    producer.flush()
    follower = follow("consume", "orders", "--store", store_path, "--json")
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", b"committed")
    assert [json.loads(line)["value"] for line in follower.lines(1)] == ["committed"]
    assert follower.interrupt() == (DONE, "", "")


def test_a_pattern_takes_up_topics_that_are_made(open_store, store_path, follow):
    store = open_store()
    store.create_topics({"orders": 1, "bills": 1})
    write(store, b"1", topic="bills")
    write(store, b"2")
    follower = follow("consume", "^ord", "--format", "%t %s\\n", "--store", store_path)
    assert follower.lines(1) == ["orders 2\n"]
    store.create_topic("ordinals")
    write(store, b"3", topic="ordinals")
    assert follower.lines(1) == ["ordinals 3\n"]
    store.delete_topic("orders")
    store.create_topic("orders")
    write(store, b"4")
    assert follower.lines(1) == ["orders 4\n"]
    store.alter_topic("orders", partitions=2)
    write(store, b"5", partition=1)
    assert follower.lines(1) == ["orders 5\n"]
    assert follower.interrupt() == (DONE, "", "")


def test_a_topic_that_is_deleted_is_an_error(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders")
    write(store, b"old")
    follower = follow("consume", "orders", "--store", store_path)
    assert follower.lines(1) == ["old\n"]
    store.delete_topic("orders")
    status, stdout, stderr = follower.end()
    assert (status, stdout) == (FAILED, "")
    assert "no topic 'orders'" in stderr
    assert "UnknownTopicOrPartitionError" in stderr


def test_a_store_that_is_closed_and_opened_again_is_followed(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders")
    write(store, b"1")
    store.close()
    follower = follow("consume", "orders", "--store", store_path)
    assert follower.lines(1) == ["1\n"]
    for number in (2, 3):
        store = open_store()
        write(store, b"%d" % number)
        assert follower.lines(1) == [f"{number}\n"]
        store.close()
    assert follower.interrupt() == (DONE, "", "")


def test_records_that_are_deleted_before_they_are_read_are_named(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders")
    write(store, b"1")
    follower = follow("consume", "orders", "--store", store_path)
    assert follower.lines(1) == ["1\n"]
    os.kill(follower._process.pid, signal.SIGSTOP)
    eventually(lambda: "T" in _state(follower._process.pid))
    write(store, b"2", b"3")
    store.delete_records({eoslog.TopicPartition("orders", 0): 2})
    os.kill(follower._process.pid, signal.SIGCONT)
    assert follower.lines(1) == ["3\n"]
    status, stdout, stderr = follower.interrupt()
    assert (status, stdout) == (DONE, "")
    assert stderr == "orders-0: offsets 1 to 1 were deleted before they were read\n"


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][:1]


def test_it_ends_after_so_many_records(open_store, store_path, follow):
    store = open_store()
    store.create_topic("orders")
    write(store, b"1")
    follower = follow("consume", "orders", "--store", store_path, "--max-records", 3)
    assert follower.lines(1) == ["1\n"]
    write(store, b"2", b"3", b"4")
    assert follower.lines(2) == ["2\n", "3\n"]
    assert follower.end() == (DONE, "", "")


@pytest.mark.parametrize("options", [("--to", "5"), ("--group", "g")])
def test_what_does_not_go_with_it_is_wrong_use(store_path, options):
    answer = call("consume", "orders", "--follow", *options, "--store", store_path)
    assert_mistake(answer, WRONG_USE, "--follow", options[0])


@pytest.mark.parametrize("name", ["^o", "other"])
def test_a_topic_that_goes_as_it_is_found_ends_only_what_names_it(open_store, monkeypatch, name):
    store = open_store()
    for topic in ("orders", "other"):
        store.create_topic(topic)
    original = WantedPartitions.topics

    def topics(wanted: WantedPartitions, of: eoslog.Store) -> list[eoslog.TopicDescription]:
        monkeypatch.undo()
        found = original(wanted, of)
        of.delete_topic("other")
        return found

    wanted = WantedPartitions(name, ())
    reader = TopicReader(wanted, "read_committed", lambda log, at, end, count: (0, at), None, None)
    reader.attach(store)
    monkeypatch.setattr(WantedPartitions, "topics", topics)
    if name == "other":
        with pytest.raises(UnknownTopicOrPartitionError):
            reader.take_up()
        return
    assert reader.take_up() == [eoslog.TopicPartition("orders", 0)]
    store.create_topic("other")
    assert reader.take_up() == [eoslog.TopicPartition("other", 0)]
