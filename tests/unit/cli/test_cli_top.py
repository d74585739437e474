"""`eoslog top`: what goes on in a store, at one look and live."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from cli_calls import DONE, WRONG_USE, assert_mistake, call
from harness.waiting import SECONDS_MAX
from read_only_stores import unchanged

import eoslog
from eoslog import TopicPartition
from eoslog.cli.monitor import top as cli_top


@pytest.fixture
def store(open_store):
    store = open_store()
    store.create_topics({"orders": 2, "bills": 1})
    store.producer().append("orders", 0, [b"x" * 100] * 10)
    store.consumer("readers").commit({TopicPartition("orders", 0): 4})
    return store


def shown(store_path, *options):
    answer = call("top", "--once", "--json", *options, "--store", store_path)
    assert answer.status == DONE, answer
    return answer.json


def test_one_look_has_topics_groups_transactions_and_processes(store, store_path):
    till = store.producer(transactional_id="till", transaction_timeout_ms=50_000)
    till.init_transactions()
    till.begin_transaction()
    till.append("orders", 1, [b"1", b"2"])
    till.flush()
    found = shown(store_path, "--interval", 0.1)
    orders, bills = found["topics"]  # The one with a transaction first.
    assert (bills["topic"], bills["log_end_offset"], bills["undecided"]) == ("bills", 0, 0)
    assert (orders["partitions"], orders["log_end_offset"]) == (2, 12)
    assert (orders["last_stable_offset"], orders["undecided"]) == (10, 2)
    assert (orders["records_per_s"], orders["bytes_per_s"]) == (0.0, 0.0)
    assert orders["oldest_transaction_s"] > 0
    assert orders["size_bytes"] > 1000
    assert found["groups"] == [{"group": "readers", "members": 0, "topic": "orders", "lag": 6}]
    (transaction,) = found["transactions"]
    assert transaction.pop("age_ms") >= 0
    assert transaction == {
        "transactional_id": "till",
        "state": "Ongoing",
        "timeout_ms": 50_000,
        "partitions": ["orders-1"],
        "process_id": os.getpid(),
        "host": os.uname().nodename,
    }
    (process,) = found["processes"]
    assert (process["process_id"], process["transactional_ids"]) == (os.getpid(), ["till"])


def test_rates_are_those_between_two_looks(store, store_path):
    with eoslog.open(store_path, read_only=True) as reader:
        before = cli_top.look_at(reader)
        store.producer().append("orders", 1, [b"x" * 100] * 20)
        now = cli_top.look_at(reader)
        passed_s = 4.0
        found = cli_top.view(before, now._replace(moment_s=before.moment_s + passed_s))
    orders, _ = found["topics"]
    written = orders["size_bytes"] - before.figures.topic_bytes["orders"]
    assert orders["records_per_s"] == 20 / passed_s
    assert orders["bytes_per_s"] == round(written / passed_s, 1) > 400


def test_a_store_that_is_closed_is_shown_as_it_is(store, store_path):
    store.close()
    with unchanged(store_path):
        found = shown(store_path)  # Without a wait of a second: nothing changes.
    assert [one["log_end_offset"] for one in found["topics"]] == [0, 10]
    assert found["processes"] == []


def test_one_look_as_tables(store, store_path):
    answer = call("top", "--once", "--interval", "0.1", "--store", store_path)
    lines = answer.stdout.splitlines()
    assert lines[0] == f"open in 1 process, durability process: {store_path}"
    names = [line.split()[0] for line in lines if line.strip() and "─" not in line][1:]
    assert names == [
        *("topic", "bills", "orders", "group", "readers", "transaction", "process"),
        str(os.getpid()),
    ]


@pytest.mark.parametrize(
    ("options", "word"),
    [(("--json",), "--once"), ((), "no terminal"), (("--interval", "0"), "--interval")],
)
def test_wrong_options_are_wrong_use(store_path, options, word):
    assert_mistake(call("top", *options, "--store", store_path), WRONG_USE, word)


class Screen:
    """The command on a terminal."""

    def __init__(self, *arguments: object) -> None:
        self._terminal, theirs = pty.openpty()
        words = [sys.executable, "-m", "eoslog", *map(str, arguments)]
        environment = os.environ | {"TERM": "xterm", "LINES": "40", "COLUMNS": "120"}
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
        )
        os.close(theirs)
        self._drawn = b""

    def wait_for(self, condition: Callable[[bytes], bool]) -> None:
        """Wait until what is drawn since the last call satisfies a condition."""
        deadline_s = time.monotonic() + SECONDS_MAX
        while not condition(self._drawn):
            assert time.monotonic() < deadline_s, self._drawn
            self._read()
        self._drawn = b""

    def _read(self) -> bool:
        if select.select([self._terminal], [], [], 0.1)[0]:
            try:
                self._drawn += os.read(self._terminal, 1 << 16)
            except OSError:  # The command has ended.
                return False
        return True

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C: status and errors."""
        self.process.send_signal(signal.SIGINT)
        while self.process.poll() is None:
            self._read()
        assert self.process.stderr is not None
        return self.process.returncode, self.process.stderr.read().decode()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_the_live_view_follows_until_ctrl_c(store, open_store, store_path, is_open):
    if not is_open:
        store.close()
    screen = Screen("top", "--interval", "0.1", "--store", store_path)
    try:
        screen.wait_for(lambda drawn: b"orders" in drawn and b"readers" in drawn)
        store.close()
        screen.wait_for(lambda drawn: b"open in 0 processes" in drawn)
        again = open_store()
        screen.wait_for(lambda drawn: b"open in 1 process" in drawn)
        again.create_topic("visits")
        screen.wait_for(lambda drawn: b"visits" in drawn)
        assert screen.interrupt() == (DONE, "")
    finally:
        screen.end()
