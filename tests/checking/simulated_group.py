"""Members of a group, one after another, that process a partition, and are moved over parts of it.

Each commits with its transaction where it stands: behind what it polled, or where it was moved to
without a poll there. It skips records by a seek, looks ahead and comes back, loses records to
retention, aborts and goes back, or is killed while it commits.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WHERE = "t-0"


class Group:
    """The log, the group's offset and the history of both."""

    def __init__(self, seed: int, steps: int = 8) -> None:
        self.noise = random.Random(seed)
        self.lines: list[dict[str, Any]] = []
        self.now = 0
        self.start = self.end = self.members = self.attempts = 0
        self.stands = 0
        self.send(self.noise.randrange(4, 12))
        member = Member(self)
        for _ in range(steps):
            if self.noise.random() < 0.3:
                self.send(self.noise.randrange(1, 4))
            if self.noise.random() < 0.15:
                self.start = self.noise.randint(self.start, self.end)
            if not member.process():
                member = Member(self)

    def do(self, client: str, kind: str, outcome: str = "ok", **fields: Any) -> dict[str, Any]:
        self.now += 10
        line: dict[str, Any] = {"client": client, "kind": kind, "begin_ns": self.now}
        line |= {"end_ns": None if outcome == "unknown" else self.now + 5, "outcome": outcome}
        self.lines.append(line | fields)
        return self.lines[-1]

    def send(self, count: int) -> None:
        values = list(range(self.end, self.end + count))
        self.do("source", "send", topic="t", partition=0, values=values, offset=self.end)
        self.end += count

    def write(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


class Member:
    """A consumer of the group and the producer of its transactions."""

    def __init__(self, group: Group) -> None:
        self.group, self.noise = group, group.noise
        group.members += 1
        self.name = f"member-{group.members}"
        self.seek(group.stands)

    def seek(self, position: int, *, told: bool | None = None) -> None:
        self.position = position
        told = self.noise.random() < 0.6 if told is None else told
        self.group.do(self.name, "seek", positions={WHERE: position if told else None})

    def poll(self, count: int, **fields: Any) -> int:
        """How many records it was given."""
        if self.position < self.group.start:
            self.seek(self.noise.choice((self.group.start, self.group.end)), told=False)
        first = self.position
        self.position = min(first + count, self.group.end)
        records = [[offset, offset] for offset in range(first, self.position)]
        told = {"records": {WHERE: records} if records else {}, "next": {WHERE: self.position}}
        self.group.do(self.name, "poll", **told, **fields)
        return len(records)

    def be_moved(self) -> None:
        """Forwards, or somewhere and back again."""
        stood, ahead = self.position, self.noise.randint(self.position, self.group.end)
        chance = self.noise.random()
        if chance < 0.4:
            self.seek(ahead, told=True)
        elif chance < 0.6:
            self.seek(self.group.end)
        elif chance < 0.9 and stood >= self.group.start:
            self.seek(ahead)
            if self.noise.random() < 0.5:
                self.poll(2)
            self.seek(self.noise.randint(stood, max(stood, self.position)), told=True)

    def process(self) -> bool:
        """One transaction, if there is anything to process; whether the member lives on."""
        self.group.attempts += 1
        of = {"transaction": f"attempt-{self.group.attempts}"}
        given = 0
        for _ in range(self.noise.choice((1, 1, 2))):
            given += self.poll(self.noise.randrange(1, 4), **of)
            if self.noise.random() < 0.4:
                self.be_moved()
        if not given:
            return True
        reached = self.position
        self.group.do(self.name, "offsets", group="g", offsets={WHERE: reached}, **of)
        if self.noise.random() < 0.1:
            self.be_moved()
        return self.end(reached, of)

    def end(self, reached: int, of: dict[str, str]) -> bool:
        chance = self.noise.random()
        if chance < 0.6:
            self.group.do(self.name, "commit", **of)
            self.group.stands = reached
            return self.noise.random() < 0.8
        if chance < 0.75:
            self.group.do(self.name, "commit", "unknown", **of)
            self.group.stands = self.noise.choice((self.group.stands, reached))
            return False
        self.group.do(self.name, "abort", **of)
        if self.noise.random() < 0.3:
            return False
        self.seek(self.group.stands)
        if self.noise.random() < 0.3:
            self.be_moved()
        return True
