"""Interrupts (Ctrl-C) of one call after the other, at random places, also of those that clear up: a
name's records are in its partition once and in order, and a transaction or a staged job is whole or
not there.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import suppress

import pytest
from crash.interrupted_steps import Steps
from stores import QUIET

import eoslog
from eoslog import StagedWriter, TopicPartition
from eoslog.errors import EoslogError, IllegalStateError, TransactionAbortableError
from eoslog.store.store import parts_of

pytestmark = [
    pytest.mark.crash,
    # An interrupt may come into a finalizer, which the interpreter goes on without.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ENDED = {"commit": "committed", "abort": "aborted"}
NOT_ENDED, NOTHING_OPEN = "call it again", "no transaction is open"


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt.
    """The call has returned nothing."""


class Interrupter:
    """Makes calls, some of which are interrupted."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.interrupts = 0
        self.calls = []
        self._steps = Steps()
        self._lengths = {}

    def call(self, function, *given, chance=0.5, **named):
        """What the call returns or raises; Interrupted, which may hide an error of it."""
        kind, returned = function.__qualname__, []
        length = self._lengths.get(kind, 100)
        step = self.random.randint(1, length + 2) if self.random.random() < chance else 1 << 60
        was_cut = self._steps.interrupt(step, lambda: returned.append(function(*given, **named)))
        if was_cut:
            self.interrupts += 1
        else:
            self._lengths[kind] = max(10, self._steps.count)
        self.calls = [*self.calls[-30:], (kind, given, self._steps.last)]
        if was_cut and not returned:
            raise Interrupted
        return returned[0]

    def until_done(self, function, *given, chance=0.5, **named):
        """The same, called again and again."""
        while True:
            with suppress(Interrupted):
                return self.call(function, *given, chance=chance, **named)
            chance *= 0.8


def values_of(store, topic):
    """What is committed in each of its partitions."""
    with store.consumer() as consumer:
        found = []
        for number in range(2):
            consumer.assign([TopicPartition(topic, number)])
            records = consumer.poll(timeout=0, max_records=1_000_000)
            found.append([int(record.value) for record in records])
        return found


class Named:
    """A program that asks how many records of its name are there, and sends the next ones."""

    def __init__(self, store, made):
        self.store, self.made, self.producer = store, made, None

    def step(self):
        chance = self.made.random.random
        if self.producer is None:
            config = {"linger.ms": self.made.random.choice([0, 1, 60_000]), "batch.size": 300}
            self.producer = self.made.until_done(
                self.store.producer, name="importer", config=config
            )
        partition, producer = self.made.random.randrange(2), self.producer
        with suppress(Interrupted):
            first = self.made.call(producer.next_sequence, "named", partition)
            values = [b"%d" % (first + number) for number in range(self.made.random.randint(1, 25))]
            if chance() < 0.4:
                self.made.call(producer.append, "named", partition, values)
            else:
                for value in values:
                    self.made.call(producer.send, "named", value, partition=partition, chance=0.05)
            if chance() < 0.5:
                self.made.call(producer.flush)
        if chance() < 0.1:
            self.made.until_done(producer.close)
            self.producer = None

    def check(self):
        if self.producer is not None:
            self.producer.flush()
        for number, found in enumerate(values_of(self.store, "named")):
            assert found == list(range(len(found)))
            if self.producer is not None:
                assert self.producer.next_sequence("named", number) == len(found)


class Transactional:
    """A program that ends each transaction, however often it has to ask for it."""

    def __init__(self, store, made):
        self.store, self.made, self.topic = store, made, "tx"
        self.producer, self.number = None, 0

    def step(self):
        if self.producer is None:
            self._open()
        self.number += 1
        try:
            self.made.call(self.producer.begin_transaction, chance=0.2)
        except Interrupted:
            with suppress(IllegalStateError):
                self.producer.begin_transaction()
        written = [0, 0]
        try:
            self._write(written)
            whole = True
        except (Interrupted, TransactionAbortableError):
            whole = False
        outcome = self._end()
        found = [values.count(self.number) for values in values_of(self.store, self.topic)]
        assert all(one <= most for one, most in zip(found, written, strict=True))
        if outcome == "aborted":
            assert found == [0, 0]
        elif outcome == "committed" and whole:
            assert found == written
        elif whole:
            assert found in ([0, 0], written)

    def check(self):
        """Nothing of what is over holds back a reader."""
        for found in values_of(self.store, self.topic):
            assert max(Counter(found).values(), default=0) <= 12

    def _open(self):
        self.producer = self.store.producer(transactional_id="tx")
        # Told by the second call that the first was through.
        with suppress(IllegalStateError):
            self.made.until_done(self.producer.init_transactions)

    def _write(self, written):
        value, producer = b"%d" % self.number, self.producer
        for _ in range(self.made.random.randint(1, 3)):
            how, partition = self.made.random.random(), self.made.random.randrange(2)
            if how < 0.5:
                written[partition] += 1
                self.made.call(producer.send, self.topic, value, partition=partition, chance=0.3)
            elif how < 0.8:
                written[partition] += 2
                self.made.call(producer.append, self.topic, partition, [value, value])
            elif how < 0.9:
                self.made.call(producer.flush)
            else:
                offsets = {TopicPartition("named", 0): self.number}
                self.made.call(producer.send_offsets_to_transaction, offsets, "g")

    def _end(self):
        """Commit or abort, now and then with a change of mind; how it ended, as far as is known."""
        producer, asked = self.producer, set()
        wants = self.made.random.choice(["commit", "abort"])
        while True:
            asked.add(wants)
            end = producer.commit_transaction if wants == "commit" else producer.abort_transaction
            try:
                self.made.call(end)
            except Interrupted:
                if self.made.random.random() < 0.1:
                    with suppress(EoslogError):
                        self.made.until_done(producer.close)
                    self.producer = None
                    return "unknown"
                if self.made.random.random() < 0.3:
                    wants = "abort" if wants == "commit" else "commit"
            except TransactionAbortableError:
                assert wants == "commit"
                wants = "abort"
            except IllegalStateError as error:
                if NOT_ENDED in str(error):
                    wants = "abort" if wants == "commit" else "commit"
                    continue
                assert NOTHING_OPEN in str(error)
                return "unknown" if len(asked) > 1 else ENDED[wants]
            else:
                return ENDED[wants]


class Loading:
    """A program that stages jobs, and commits each, however often it has to ask, or gives it up."""

    producer = None

    def __init__(self, store, made):
        self.store, self.made = store, made
        self.run_id, self.number, self.attempts = None, 0, 0

    def step(self):
        if self.run_id is None or self.made.random.random() < 0.1:
            self.run_id = self.made.until_done(self.store.begin_run, "load")
        self.number += 1
        written = [self.made.random.randint(0, 3), self.made.random.randint(1, 3)]
        messages = [self.made.until_done(self._stage, written)]
        version = self.store.application("load").version + 1
        offsets = {"g-load": {TopicPartition("named", 0): self.number}}
        is_in = None
        while is_in is None:
            try:
                self.made.call(self.store.commit_staged, "load", version, messages, offsets=offsets)
                is_in = True
            except Interrupted:
                if self.made.random.random() < 0.2:
                    self.made.until_done(self.store.sweep_run, "load", self.run_id)
                    is_in = self.store.application("load").version == version
                    parts_of(self.store).staged.recover_dead_peers()  # Completes what is decided.
                    self.run_id = None
        found = [values.count(self.number) for values in values_of(self.store, "staged")]
        assert found == (written if is_in else [0, 0])

    def _stage(self, counts):
        self.attempts += 1
        with StagedWriter(
            self.store.path,
            "load",
            self.run_id,
            f"{self.attempts}",
            partitions={"staged": 2},
            durability="process",
        ) as writer:
            for partition, count in enumerate(counts):
                writer.append("staged", partition, [b"%d" % self.number] * count)
        return writer.message

    def check(self):
        """Nothing of what is over holds back a reader."""
        for found in values_of(self.store, "staged"):
            assert max(Counter(found).values(), default=0) <= 3


@pytest.mark.parametrize(
    "rounds", [150, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_what_is_interrupted_again_and_again_is_whole(tmp_path, rounds):
    seed = int(os.environ.get("EOSLOG_SEED", "1"))
    made, path = Interrupter(seed), tmp_path / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        for topic in ("named", "tx", "staged"):
            store.create_topic(topic, partitions=2)
        machines = [
            Named(store, made),
            Transactional(store, made),
            Loading(store, made),
        ]
        try:
            for number in range(rounds):
                made.random.choice(machines).step()
                if number % 20 == 0:
                    for machine in machines:
                        machine.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}, after {made.calls}")
            raise
        for machine in machines:
            if machine.producer is not None:
                machine.producer.close()
        assert {one.transaction_state for one in store.transactions()} <= {
            "Empty",
            "CompleteCommit",
            "CompleteAbort",
        }
    with eoslog.open(path, durability="process", config=QUIET) as store:
        assert store.verify() == []
    print(f"seed {seed}: {rounds} rounds, {made.interrupts} interrupts")
    assert made.interrupts > rounds / 2
