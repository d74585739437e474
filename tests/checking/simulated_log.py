"""A plain model of a log with transactions, and random clients whose clean history it records.

Each call takes effect at one moment, somewhere between its beginning and its end; the calls of
different clients overlap. Clients are killed, fenced and answered late; a reader is given what its
isolation level allows, no more and no less.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IN, OUT, PLAIN = "in", "out", "plain"
PARTITIONS = [f"{topic}-{number}" for topic in (IN, OUT, PLAIN) for number in range(2)]
GROUP = "loop"
# Its offsets are written in transactions and outside of them, to any place.
MOVED = "moved"


@dataclass
class Transaction:
    name: str
    records: list[tuple[str, int]] = field(default_factory=list)
    state: str = "open"
    offsets: dict[str, int] = field(default_factory=dict)
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Entry:
    """What stands at an offset: a record, or the marker of a transaction."""

    value: str | None
    transaction: Transaction | None


class Log:
    """The partitions, the group's offsets and who is fenced."""

    def __init__(self) -> None:
        self.entries: dict[str, list[Entry]] = {name: [] for name in PARTITIONS}
        self.group: dict[str, int] = {}
        # Of the other group: how many offsets had been written before this one, and the offset.
        self.moved: dict[str, tuple[int, int]] = {}
        self.moves = 0

    def append(self, where: str, value: str, transaction: Transaction | None = None) -> int:
        self.entries[where].append(Entry(value, transaction))
        offset = len(self.entries[where]) - 1
        if transaction is not None:
            transaction.records.append((where, offset))
        return offset

    def decide(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        for where in {where for where, _ in transaction.records}:
            self.entries[where].append(Entry(None, transaction))
        if state == "committed":
            self.group.update(transaction.offsets)
            # What was written later holds, whatever was committed later.
            for where, written in transaction.moved.items():
                self.moved[where] = max(written, self.moved.get(where, written))

    def move(self, where: str, offset: int, transaction: Transaction | None = None) -> None:
        """Write an offset of the group that is moved both ways."""
        self.moves += 1
        of = self.moved if transaction is None else transaction.moved
        of[where] = (self.moves, offset)

    def last_stable(self, where: str) -> int:
        for offset, entry in enumerate(self.entries[where]):
            if entry.transaction is not None and entry.transaction.state == "open":
                return offset
        return len(self.entries[where])

    def read(self, where: str, position: int, count: int, committed: bool) -> tuple[list[Any], int]:
        end = self.last_stable(where) if committed else len(self.entries[where])
        found: list[Any] = []
        while position < end and len(found) < count:
            entry = self.entries[where][position]
            aborted = entry.transaction is not None and entry.transaction.state == "aborted"
            if entry.value is not None and not (committed and aborted):
                found.append([position, entry.value])
            position += 1
        return found, position


class Client:
    """One client: its operations follow one another."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.free_at = 0

    def do(self, kind: str, act: Any, outcome: str = "ok", **fields: Any) -> dict[str, Any]:
        """Run `act` at a moment of its own; what it returns are fields of the answer."""
        noise = self.world.noise
        moment = self.world.now = max(self.world.now + 3, self.free_at + 1)
        begin = max(self.free_at + 1, moment - noise.randrange(20))
        answer = act() or {}
        self.free_at = moment + noise.randrange(20)
        line = {"client": self.name, "kind": kind, "begin_ns": begin, "end_ns": self.free_at}
        if outcome == "unknown":
            line["end_ns"] = None
        line |= {"outcome": outcome} | fields | answer
        self.world.lines.append(line)
        return line


class Reader(Client):
    """A consumer of some partitions."""

    def __init__(self, world: World, name: str, partitions: Iterable[str], committed: bool) -> None:
        super().__init__(world, name)
        self.isolation = "read_committed" if committed else "read_uncommitted"
        self.at = dict.fromkeys(partitions, 0)
        self.do("seek", lambda: None, positions=dict(self.at))

    def seek(self) -> None:
        where = self.world.noise.choice(sorted(self.at))
        self.at[where] = self.world.noise.randint(0, self.at[where])
        self.do("seek", lambda: None, positions={where: self.at[where]})

    def poll(self, **fields: Any) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            records, ranges = {}, {}
            for where, position in self.at.items():
                count = self.world.noise.randrange(1, 5)
                committed = self.isolation == "read_committed"
                found, after = self.world.log.read(where, position, count, committed)
                self.at[where], ranges[where] = after, (position, after)
                if found:
                    records[where] = found
            told = {"next": dict(self.at)}
            return {"records": records, "_ranges": ranges} | told

        return self.do("poll", act, isolation=self.isolation, **fields)


class Writer(Client):
    """One life of a transactional id; with `loop` it makes its records from those it reads."""

    def __init__(self, world: World, lane: int, life: int) -> None:
        super().__init__(world, f"lane-{lane}-{life}")
        self.lane, self.life = lane, life
        self.id = f"id-{lane}"
        self.epoch = world.epochs[lane] = world.epochs.get(lane, -1) + 1
        self.dead = False
        self.do("init", self._take_over, transactional_id=self.id, **self.producer)
        self.reader = Reader(world, f"reads-{lane}-{life}", [f"{IN}-{lane % 2}"], True)

    @property
    def producer(self) -> dict[str, int]:
        return {"producer_id": 100 + self.lane, "producer_epoch": self.epoch}

    def _take_over(self) -> None:
        older = self.world.writers.get(self.lane)
        if older is not None and older.open is not None and older.open.state == "open":
            self.world.log.decide(older.open, "aborted")
        self.open: Transaction | None = None

    @property
    def fenced(self) -> bool:
        return self.world.writers[self.lane] is not self

    def run(self) -> None:
        """One transaction, or what a zombie is answered."""
        world, noise = self.world, self.world.noise
        name = f"{self.name}-{world.count()}"
        of = {"transaction": name}
        # What the init of a client said, its operations may say or not.
        if noise.random() < 0.7:
            of["transactional_id"] = self.id
        if noise.random() < 0.7:
            of |= self.producer
        if self.fenced:
            fields = {"topic": OUT, "partition": 0, "value": f"zombie-{world.count()}"}
            self.do("send", lambda: None, "fail", **fields, **of)
            self.do("commit", lambda: None, "fail", **of)
            self.dead = True
            return
        self.open = transaction = Transaction(name)
        if self.lane < 2 and not self._take_inputs(transaction, of):
            return
        for _ in range(noise.randrange(1, 4)):
            self._send(transaction, of)
            if noise.random() < 0.3:
                world.move_group(self, transaction, of)
            world.others()
            if self.fenced:
                return
        self._end(transaction, of)

    def _take_inputs(self, transaction: Transaction, of: dict[str, Any]) -> bool:
        """What the loop reads, and the offsets behind it."""
        where = f"{IN}-{self.lane}"
        if self.reader.at[where] != self.world.log.group.get(where, 0):
            self.reader.at[where] = self.world.log.group.get(where, 0)
            self.reader.do("seek", lambda: None, positions=dict(self.reader.at))
        polled = self.reader.poll()
        if not polled["records"]:
            self.open = None
            return False
        polled["transaction"] = transaction.name
        after = self.reader.at[where]
        transaction.offsets[where] = after
        self.do("offsets", lambda: None, group=GROUP, offsets={where: after}, **of)
        return True

    def _send(self, transaction: Transaction, of: dict[str, Any]) -> None:
        world, noise = self.world, self.world.noise
        topic, number = (OUT if self.lane < 2 else noise.choice((IN, OUT))), noise.randrange(2)
        values = [f"t{world.count()}" for _ in range(noise.choice((1, 1, 3)))]
        answered = noise.random() < 0.5

        def act() -> dict[str, Any]:
            offsets = [world.log.append(f"{topic}-{number}", one, transaction) for one in values]
            return {"offset": offsets[0]} if answered else {}

        what = {"value": values[0]} if len(values) == 1 else {"values": values}
        self.do("send", act, topic=topic, partition=number, **what, **of)

    def _end(self, transaction: Transaction, of: dict[str, Any]) -> None:
        decide, noise = self.world.log.decide, self.world.noise
        chance = noise.random()
        if chance < 0.15:
            self.do("abort", lambda: decide(transaction, "aborted"), **of)
        elif chance < 0.3:
            # Killed in its commit: nobody was told how it ended.
            committed = noise.random() < 0.5
            act = (lambda: decide(transaction, "committed")) if committed else (lambda: None)
            self.do("commit", act, "unknown", **of)
            self.dead = True
        elif chance < 0.4:
            self.dead = True  # Killed before.
        else:
            self.do("commit", lambda: decide(transaction, "committed"), **of)
        if transaction.state != "open":
            self.open = None


class World:
    """The log, its clients and the history."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.noise = random.Random(seed)
        self.log = Log()
        self.lines: list[dict[str, Any]] = []
        self.now = 100
        self.counted = 0
        self.epochs: dict[int, int] = {}
        self.writers: dict[int, Writer] = {}
        self.zombies: list[Writer] = []
        self.plain = [Client(self, f"plain-{number}") for number in range(2)]
        self.readers = [
            Reader(self, f"reader-{number}", PARTITIONS, number != 1) for number in range(3)
        ]
        self.watcher = Client(self, "watcher")
        for where in PARTITIONS[:2]:
            self.move_group(self.plain[0], None, {}, where)
        for lane in range(4):
            self.writers[lane] = Writer(self, lane, 0)
        for _ in range(steps):
            self.step()
        self.finish()

    def count(self) -> int:
        self.counted += 1
        return self.counted

    def step(self) -> None:
        chance, noise = self.noise.random(), self.noise
        if chance < 0.5:
            writer = self.writers[noise.randrange(4)]
            if writer.dead or noise.random() < 0.1:
                self.replace(writer)
            else:
                writer.run()
        elif self.zombies and chance < 0.55:
            self.zombies.pop().run()
        else:
            self.others()

    def replace(self, writer: Writer) -> None:
        """A successor takes the id over; what it replaced may not know."""
        successor = Writer(self, writer.lane, writer.life + 1)
        self.writers[writer.lane] = successor
        if not writer.dead:
            self.zombies.append(writer)

    def others(self) -> None:
        """Something that takes no part in a transaction."""
        noise = self.noise
        chance = noise.random()
        if chance < 0.4:
            self.send_plain(noise.choice(self.plain))
        elif chance < 0.8:
            noise.choice(self.readers).poll()
        elif chance < 0.9:
            noise.choice(self.readers).seek()
        elif chance < 0.93:
            self.ask_ends(noise.choice(("read_committed", "read_uncommitted")))
        elif chance < 0.96:
            self.move_group(noise.choice(self.plain), None, {})
        elif chance < 0.98:
            self.ask_moved()
        else:
            self.ask_group()

    def move_group(
        self,
        client: Client,
        transaction: Transaction | None,
        of: dict[str, Any],
        where: str | None = None,
    ) -> None:
        """Somebody writes an offset, which may be any."""
        where = where or self.noise.choice(PARTITIONS[:2])
        offset = self.noise.randrange(8)
        first = where not in self.log.moved
        outcome = "ok" if first else self.noise.choice(("ok", "ok", "fail", "unknown"))
        happens = outcome == "ok" or (outcome == "unknown" and self.noise.random() < 0.5)

        def act() -> None:
            if happens:
                self.log.move(where, offset, transaction)

        client.do("offsets", act, outcome, group=MOVED, offsets={where: offset}, **of)

    def ask_moved(self) -> None:
        def act() -> dict[str, Any]:
            found = {where: self.log.moved.get(where, (0, None)) for where in PARTITIONS[:2]}
            return {"offsets": {where: offset for where, (_, offset) in found.items()}}

        self.watcher.do("committed", act, group=MOVED)

    def send_plain(self, client: Client) -> None:
        noise = self.noise
        topic, number = noise.choice((IN, PLAIN)), noise.randrange(2)
        value = f"p{self.count()}"
        outcome = noise.choice(("ok", "ok", "ok", "fail", "unknown"))
        happens = outcome == "ok" or (outcome == "unknown" and noise.random() < 0.5)
        answered = outcome == "ok" and noise.random() < 0.5

        def act() -> dict[str, Any]:
            offset = self.log.append(f"{topic}-{number}", value) if happens else None
            return {"offset": offset} if answered else {}

        told = number if noise.random() < 0.8 or answered else None
        client.do("send", act, outcome, topic=topic, partition=told, value=value)

    def ask_ends(self, isolation: str) -> None:
        def act() -> dict[str, Any]:
            if isolation == "read_committed":
                return {"offsets": {where: self.log.last_stable(where) for where in PARTITIONS}}
            return {"offsets": {where: len(all_) for where, all_ in self.log.entries.items()}}

        self.watcher.do("ends", act, isolation=isolation)

    def ask_group(self) -> None:
        def act() -> dict[str, Any]:
            return {"offsets": {where: self.log.group.get(where) for where in PARTITIONS[:2]}}

        self.watcher.do("committed", act, group=GROUP)

    def finish(self) -> None:
        """Successors end what is open; everything is read to its end."""
        for zombie in self.zombies:
            zombie.run()
        for writer in list(self.writers.values()):
            self.replace(writer)
        for client in self.plain:
            self.send_plain(client)
        self.now = max(self.now, *(line["end_ns"] or 0 for line in self.lines)) + 100
        self.ask_ends("read_uncommitted")
        self.ask_moved()
        self.ask_group()
        for committed in (True, False):
            reader = Reader(self, f"final-{committed}", PARTITIONS, committed)
            while reader.poll()["records"] or reader.at != {
                where: len(all_) for where, all_ in self.log.entries.items()
            }:
                pass
            reader.poll()
            reader.poll()
        for reader in self.readers:
            while reader.poll()["records"]:
                pass
            reader.poll()

    def write(self, path: Path) -> Path:
        """The history as a file; what begins with _ is for the tests."""
        with path.open("w") as file:
            for line in self.lines:
                told = {name: one for name, one in line.items() if not name.startswith("_")}
                file.write(json.dumps(told) + "\n")
        return path
