"""Writers that number their records, and what must be in the log after any of them was killed.

A lane is one row of records at one partition: of a producer with a name, over all its lives; or of
a producer without one, for its only life. A value is `lane:position:padding`. The writer says
"try" before each call and "ack" after it, with the offset it was given.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.crew import Said
from harness.member_main import Hand

import eoslog
from eoslog import TopicPartition

TOPIC = "lanes"


def value_of(lane: str, position: int) -> bytes:
    """Sizes differ, so that batches end anywhere in a page."""
    return b"%s:%d:" % (lane.encode(), position) + b"x" * (position * 37 % 300)


def count_at(lane: str, position: int) -> int:
    """How many records the call that begins at a position has: the same in every life."""
    return random.Random(f"{lane} {position}").choice((1, 1, 1, 2, 7, 30))


def write_lane(
    hand: Hand,
    lane: str,
    partition: int,
    *,
    named: bool = False,
    seconds: float = 3600.0,
    pause_s: float = 0.0,
) -> int:
    """Append for some time, once at least; how many records the lane has then."""
    end_s = time.monotonic() + seconds
    with hand.store.producer(name=lane if named else None) as producer:
        first = position = producer.next_sequence(TOPIC, partition) if named else 0
        hand.say("start", lane, position)
        while position == first or time.monotonic() < end_s:
            count = count_at(lane, position)
            values = [value_of(lane, position + index) for index in range(count)]
            hand.say("try", lane, position, count)
            if count == 2:
                for value in values:
                    producer.send(TOPIC, value=value, partition=partition)
                producer.flush()
                hand.say("ack", lane, position, count, -1)
            else:
                result = producer.append(TOPIC, partition=partition, values=values)
                hand.say("ack", lane, position, count, result.base_offset)
            position += count
            if pause_s:
                time.sleep(pause_s)
    return position


@dataclass
class Lane:
    """What a lane said: everything below `acknowledged` is in, nothing from `attempted` on."""

    acknowledged: int = 0
    attempted: int = 0
    offsets: dict[int, int] = field(default_factory=dict)  # Of positions that had an answer.
    acks: list[int] = field(default_factory=list)  # Their moments in ns.


class Lanes:
    """All lanes of a test."""

    def __init__(self) -> None:
        self.by_name: dict[str, Lane] = {}

    def take(self, said: Iterable[Said]) -> None:
        for moment_ns, word, rest in said:
            if word not in ("start", "try", "ack"):
                continue
            name, position, *numbers = rest
            lane = self.by_name.setdefault(name, Lane())
            if word == "start":
                assert lane.acknowledged <= position <= max(lane.attempted, 0), (
                    f"lane {name}: it has {lane.acknowledged} records at least and "
                    f"{lane.attempted} at most, but was told to go on at {position}"
                )
            elif word == "try":
                lane.attempted = max(lane.attempted, position + numbers[0])
            else:
                count, base_offset = numbers
                lane.acknowledged = position + count
                lane.acks.append(moment_ns)
                if base_offset >= 0:
                    lane.offsets |= {position + one: base_offset + one for one in range(count)}

    def check(self, records: dict[int, dict[int, bytes]]) -> None:
        """The log (partition -> offset -> value) has each lane once and in order."""
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in self.by_name}
        for partition, values in records.items():
            for offset, value in sorted(values.items()):
                name, position, _ = value.decode().split(":", 2)
                assert name in found, f"partition {partition}: a record of nobody: {value[:40]!r}"
                assert value == value_of(name, int(position)), f"partition {partition} at {offset}"
                found[name].append((int(position), offset))
        for name, places in found.items():
            lane = self.by_name[name]
            positions = [position for position, _ in places]
            assert positions == list(range(len(positions))), (
                f"lane {name}: lost, moved or repeated: {first_gap(positions)}"
            )
            assert lane.acknowledged <= len(positions) <= lane.attempted, (
                f"lane {name}: {len(positions)} records, {lane.acknowledged} acknowledged, "
                f"{lane.attempted} attempted"
            )
            moved = [
                (position, offset, lane.offsets[position])
                for position, offset in places
                if lane.offsets.get(position, offset) != offset
            ]
            assert moved == [], f"lane {name}: (position, offset, the offset it was told)"


def first_gap(positions: list[int]) -> str:
    for index, position in enumerate(positions):
        if position != index:
            return f"at index {index} of {len(positions)} stands {position}"
    return f"{len(positions)} in order"


def make_store(
    path: Path, partitions: int, segment_bytes: int = 1 << 16, topic: str = TOPIC
) -> None:
    with eoslog.open(path, create=True, config={"eoslog.spare.segments": 0}) as store:
        store.create_topic(topic, partitions, config={"segment.bytes": segment_bytes})


def records_of(
    store: eoslog.Store, topic: str = TOPIC, isolation_level: str = "read_committed"
) -> dict[int, dict[int, bytes]]:
    """All records of a topic: partition -> offset -> value."""
    found: dict[int, dict[int, bytes]] = {}
    with store.consumer(isolation_level=isolation_level) as consumer:
        for number in range(store.topics()[topic].partitions):
            consumer.assign([TopicPartition(topic, number)])
            values = found[number] = {}
            while records := consumer.poll(timeout=0, max_records=10_000):
                for record in records:
                    assert record.offset not in values
                    values[record.offset] = record.value or b""
    return found
