"""What a handler of a signal does with a store that its thread is just using, whatever the two are:
it is done, or refused; nothing hangs, and what was told to be in is in, once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from crash.interrupted_lines import called_at
from crash.rows_topic import WHERE, is_of_the_package
from crash.transaction_trace import QUIET
from staged_jobs import quick_directory

import eoslog
from eoslog.errors import EoslogError

pytestmark = pytest.mark.crash


def raise_signal(_: str) -> None:
    signal.raise_signal(signal.SIGUSR1)


class Use:
    """A new store, and what was done with it: values that are in, and those that may be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = eoslog.open(path, create=True, durability="process", config=QUIET)
        self.store.create_topic("rows")
        self.store.create_topic("gone")
        self.count = 0
        self.acknowledged: list[bytes] = []
        self.in_doubt: set[bytes] = set()

    def write(self, call: Callable[[bytes], object]) -> None:
        self.count += 1
        value = b"%d" % self.count
        try:
            call(value)
        except RuntimeError as error:
            # One of the two calls ended the other's transaction, or closed the store.
            if "handler of a signal" not in str(error):
                self.in_doubt.add(value)
            raise
        except BaseException:
            self.in_doubt.add(value)
            raise
        self.acknowledged.append(value)

    def append(self) -> None:
        self.write(lambda value: self.store.producer().append("rows", 0, [value]))

    def append_named(self) -> None:
        self.write(lambda value: self.store.producer(name="n").append("rows", 0, [value]))

    def send(self) -> None:
        def sent(value: bytes) -> None:
            # Not by another thread, which may wait for this one.
            with self.store.producer(config={"linger.ms": 60_000}) as producer:
                producer.send("rows", value, partition=0)
                self.in_doubt.add(value)  # A close that is refused leaves it gathered.

        self.write(sent)

    def commit_transaction(self) -> None:
        self._commit(staged=False)

    def commit_staged(self) -> None:
        self._commit(staged=True)

    def _commit(self, *, staged: bool) -> None:
        def commit(value: bytes) -> None:
            with self.store.producer(transactional_id=f"t{staged}", staged=staged) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                producer.append("rows", 0, [value])
                producer.send_offsets_to_transaction({WHERE: 1}, "of transactions")
                producer.commit_transaction()

        self.write(commit)

    def commit_offsets(self) -> None:
        self.store.consumer(group="by hand").commit({WHERE: 0})

    def poll(self) -> None:
        with self.store.consumer() as consumer:
            consumer.assign([WHERE])
            consumer.poll(timeout=0)

    def poll_member(self) -> None:
        with self.store.consumer(group="members") as consumer:
            consumer.subscribe(["rows"])
            consumer.poll(timeout=0)
            consumer.commit()

    def create_topic(self) -> None:
        self.count += 1
        self.store.create_topic(f"topic-{self.count}")

    def delete_topic(self) -> None:
        self.store.delete_topic("gone")

    def verify(self) -> None:
        assert self.store.verify() == []

    def look(self) -> None:
        self.store.snapshot()
        self.store.metrics()
        self.store.groups()
        self.store.transactions()
        self.store.flush()

    def close(self) -> None:
        self.store.close()

    def check(self, where: str) -> None:
        for _ in range(2):
            with eoslog.open(self.path, config=QUIET) as opened:
                assert opened.verify() == [], where
                assert set(opened.topics()) >= {"rows"}, where
                with opened.consumer() as consumer:
                    consumer.assign([WHERE])
                    found = [record.value for record in consumer.poll(timeout=0)]
                assert set(self.acknowledged) <= set(found), where
                assert set(found) <= self.in_doubt | set(self.acknowledged), where
                assert len(found) == len(set(found)), where
                opened.create_topic("later", exist_ok=True)
                opened.producer().append("later", 0, [b"later"])
                with opened.producer(transactional_id="later") as producer:
                    producer.init_transactions()
                    with producer.transaction():
                        producer.append("later", 0, [b"later"])


CALLS: dict[str, Callable[[Use], object]] = {
    name: getattr(Use, name)
    for name in (
        *("append", "append_named", "send", "commit_transaction", "commit_staged"),
        *("commit_offsets", "poll", "poll_member", "create_topic", "delete_topic"),
        *("verify", "look", "close"),
    )
}


def call_within(path: Path, outer: str, inner: str, line: int) -> int:
    """The one within the other, before one of its lines; how many it had."""
    use = Use(path)
    refused: list[RuntimeError] = []

    def handle(*_: object) -> None:
        try:
            CALLS[inner](use)
        except EoslogError:
            pass
        except RuntimeError as error:
            assert "same thread" in str(error)
            refused.append(error)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with suppress(EoslogError), called_at(line, is_of_the_package, raise_signal) as seen:
            CALLS[outer](use)
    finally:
        signal.signal(signal.SIGUSR1, before)
    use.store.close()
    use.check(seen[-1] if seen else "")
    return len(seen)


SEED = os.environ.get("EOSLOG_SEED", "1")


def call_within_at_random_lines(directory: Path, outer: str, count: int) -> None:
    """Each call within the one, at lines that the seed says."""
    chosen = random.Random(f"{SEED} {outer}")
    lines = call_within(directory / "first", outer, "poll", 1)
    assert lines > 50
    for inner in CALLS:
        for number in range(count):
            line = chosen.randint(1, lines)
            print(f"seed {SEED}: {inner} within {outer}, line {line}")
            call_within(directory / f"{inner}-{number}", outer, inner, line)
            shutil.rmtree(directory / f"{inner}-{number}")


@pytest.mark.parametrize("outer", CALLS)
def test_each_call_within_another_one(tmp_path, outer):
    with quick_directory(tmp_path) as directory:
        call_within_at_random_lines(directory, outer, 2)


@pytest.mark.soak
@pytest.mark.parametrize("outer", CALLS)
def test_each_call_within_another_one_at_many_lines(tmp_path, outer):
    with quick_directory(tmp_path) as directory:
        call_within_at_random_lines(directory, outer, 40)
