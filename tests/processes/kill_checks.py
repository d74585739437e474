"""What must hold of a store after any of its processes was killed, and what they had said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harness.crew import Member, Said
from processes.kill_programs import (
    COPIES,
    COPIES_GROUP,
    EVENTS,
    MEMBERS_GROUP,
    NUMBERS_GROUP,
    PARTITIONS,
    SHARES,
    copies_of,
    number_at,
    records_at,
)

from eoslog import TopicPartition


@dataclass
class LaneSaid:
    """What the processes of a lane said of its numbers: attempts that were tried, and how ended."""

    tried: dict[int, set[str]] = field(default_factory=dict)
    acknowledged: dict[int, str] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)

    @property
    def acknowledged_end(self) -> int:
        return max(self.acknowledged, default=-1) + 1

    @property
    def tried_end(self) -> int:
        return max(self.tried, default=-1) + 1


@dataclass
class Watched:
    """One look of a reader: where it began, up to where it got, and what it saw."""

    member: str
    isolation_level: str
    partition: int
    position: int
    end: int
    seen: list[list[Any]] = field(default_factory=list)


@dataclass
class Known:
    """What all processes of all rounds said."""

    lanes: dict[str, LaneSaid] = field(default_factory=dict)
    watched: list[Watched] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    transactional: dict[str, int] = field(default_factory=dict)  # Lane -> its number.

    def take(self, member: Member, isolation_level: str, said: Iterable[Said]) -> None:
        """All that a member said, from its first line on."""
        watched: Watched | None = None
        for _, word, rest in said:
            self.counts[word] = self.counts.get(word, 0) + 1
            if word in ("try", "ack", "abort"):
                self._take_of_lane(word, *rest)
            elif word == "watch":
                partition, position = rest
                watched = Watched(member.name, isolation_level, partition, position, position)
                self.watched.append(watched)
            elif word == "saw":
                assert watched is not None
                watched.end = rest[0]
                watched.seen += rest[1]

    def _take_of_lane(self, word: str, name: str, number: int, attempt: str) -> None:
        lane = self.lanes.setdefault(name, LaneSaid())
        if word == "try":
            lane.tried.setdefault(number, set()).add(attempt)
        elif word == "ack":
            before = lane.acknowledged.setdefault(number, attempt)
            assert before == attempt, f"{name}: {number} was committed by {before} and {attempt}"
        else:
            lane.aborted.add(attempt)

    # Checks.

    def check(self, found: dict[str, Any]) -> None:
        """Nothing acknowledged is lost, nothing is twice, nothing aborted was read, all agrees."""
        assert found["verify"] == []
        by_lane = self._records_by_lane(found["committed"][EVENTS])
        numbers = found["offsets"].get(NUMBERS_GROUP, {})
        for name, lane in self.lanes.items():
            rows = by_lane.get(name, [[] for _ in range(PARTITIONS)])
            if name in self.transactional:
                end = numbers.get(str(number_at(self.transactional[name])), 0)
                check_transactions(name, lane, rows, end)
            else:
                check_appends(name, lane, rows)
        unknown = by_lane.keys() - self.lanes.keys()
        assert not unknown, f"records of nobody: {unknown}"
        self._check_copies(found, COPIES, COPIES_GROUP)
        self._check_copies(found, SHARES, MEMBERS_GROUP)
        self._check_watched(found)

    def _records_by_lane(self, partitions: list[list[list[Any]]]) -> dict[str, list[list[str]]]:
        by_lane: dict[str, list[list[str]]] = {}
        for partition, rows in enumerate(partitions):
            offsets = [offset for offset, _ in rows]
            assert offsets == sorted(set(offsets))
            for _, value in rows:
                lane = by_lane.setdefault(value.split(":")[0], [[] for _ in range(PARTITIONS)])
                lane[partition].append(value)
        return by_lane

    def _check_copies(self, found: dict[str, Any], topic: str, group: str) -> None:
        """A topic holds what the records below a group's offsets become, in their order."""
        offsets = found["offsets"].get(group, {})
        for partition in range(PARTITIONS):
            end = offsets.get(str(TopicPartition(EVENTS, partition)), 0)
            wanted = [
                copy.decode()
                for offset, value in found["committed"][EVENTS][partition]
                if offset < end
                for copy in copies_of(value.encode())
            ]
            there = [value for _, value in found["committed"][topic][partition]]
            assert there == wanted, f"{topic} of partition {partition} up to {end}: " + first_of(
                there, wanted
            )

    def _check_watched(self, found: dict[str, Any]) -> None:
        texts = {
            "read_committed": found["committed"][EVENTS],
            "read_uncommitted": found["all"],
        }
        for one in self.watched:
            rows = [
                [offset, value[:60]]
                for offset, value in texts[one.isolation_level][one.partition]
                if one.position <= offset < one.end
            ]
            assert one.seen == rows, (
                f"{one.member}, {one.isolation_level}, partition {one.partition} from "
                f"{one.position} to {one.end}: {first_of(one.seen, rows)}"
            )


def check_transactions(name: str, lane: LaneSaid, rows: list[list[str]], end: int) -> None:
    """Each number below the group's offset is there once, as one attempt wrote it everywhere."""
    assert lane.acknowledged_end <= end <= lane.tried_end, (
        f"{name}: acknowledged up to {lane.acknowledged_end}, tried up to {lane.tried_end}, "
        f"the group stands at {end}"
    )
    attempts: dict[int, set[str]] = {}
    for partition, values in enumerate(rows):
        there = []
        for value in values:
            _, number, index, attempt, _ = value.split(":")
            there.append(f"{name}:{number}:{index}")
            attempts.setdefault(int(number), set()).add(attempt)
        wanted = [
            one for number in range(end) for one in records_at(name, number).get(partition, [])
        ]
        assert there == wanted, f"{name}, partition {partition}: {first_of(there, wanted)}"
    for number, ones in attempts.items():
        assert len(ones) == 1, f"{name}: transaction {number} is of attempts {ones}"
        assert ones <= lane.tried[number], f"{name}: nobody tried {number} as {ones}"
        assert not ones & lane.aborted, f"{name}: {number} was aborted by its process"
        known = lane.acknowledged.get(number)
        assert known is None or ones == {known}, f"{name}: {number} is of {ones}, not of {known}"


def check_appends(name: str, lane: LaneSaid, rows: list[list[str]]) -> None:
    """The positions of a producer stand in one partition, in order, from 0 on."""
    values = [value for ones in rows for value in ones]
    positions = [int(value.split(":")[1]) for value in values]
    assert positions == list(range(len(positions))), (
        f"{name}: lost, moved or repeated: {first_of(positions, list(range(len(positions))))}"
    )
    assert lane.acknowledged_end <= len(positions) <= lane.tried_end, (
        f"{name}: {len(positions)} records, acknowledged {lane.acknowledged_end}, tried "
        f"{lane.tried_end}"
    )


def first_of(there: list[Any], wanted: list[Any]) -> str:
    """Where two lists differ first."""
    for index, (one, other) in enumerate(zip(there, wanted, strict=False)):
        if one != other:
            return f"at index {index} stands {one}, not {other}"
    return f"{len(there)} there, {len(wanted)} wanted"
