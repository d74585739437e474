"""The child of the kill tests: appends, and reports each step on standard output until it dies.

Arguments: "bindings" or "store", the path, a seed, the durability, and what was acknowledged before
(JSON: one position for each lane). A lane is one producer on one partition, in a thread of its own.

A line is written in one piece, before and after each append: "try", then "ack" or "dup". With the
bindings a lane goes on after its last acknowledged record, as a client whose answer was lost: it
sends the same batches again. With the store it asks `next_sequence`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

from partition_files import PartitionFiles

import eoslog

TOPIC = "killed"
PARTITIONS = 2
LANES_PER_PARTITION = 2
LANES = PARTITIONS * LANES_PER_PARTITION
SEGMENT_BYTES = 1 << 15
EPOCH = 0
# Many kills of little work say more than few kills of much.
PAUSE_SECONDS = 0.0005


def value_of(lane: int, position: int) -> bytes:
    """A record says which one it is; sizes differ, so that batches end anywhere in a page."""
    return b"%d:%d:" % (lane, position) + b"x" * (position * 37 % 400)


def batch_count(lane: int, position: int) -> int:
    """How many records the batch that begins at `position` has: the same in every run."""
    return random.Random(lane * 1_000_003 + position).choice((1, 1, 2, 7, 40))


def values_from(lane: int, position: int, count: int) -> list[bytes]:
    return [value_of(lane, position + index) for index in range(count)]


def report(what: str, *numbers: int) -> None:
    line = " ".join([what, *map(str, numbers)]) + "\n"
    os.write(1, line.encode())


class BindingsChild:
    """Partitions opened as after a kill; the producers come back from snapshots and the log."""

    def __init__(self, path: Path, durability: str, acknowledged: list[int]) -> None:
        self._durability = durability
        self._acknowledged = acknowledged
        config = {"segment.bytes": SEGMENT_BYTES, "eoslog.spare.segments": 1}
        self._logs = [
            PartitionFiles(path / str(partition), config).open(clean=False)
            for partition in range(PARTITIONS)
        ]

    def lane(self, lane: int, noise: random.Random) -> None:
        log = self._logs[lane % PARTITIONS]
        position = self._acknowledged[lane]
        report("start", lane, position)
        while True:
            count = batch_count(lane, position)
            report("try", lane, position, count)
            result = log.append_columns(
                values_from(lane, position, count),
                timestamp_ms=1_790_000_000_000 + position,
                producer_id=lane,
                producer_epoch=EPOCH,
                base_sequence=position,
            )
            if self._durability == "always":
                log.flush(False)
            report("dup" if result.duplicate else "ack", lane, position, count)
            position += count
            self._look_after(log, noise)
            time.sleep(PAUSE_SECONDS)

    def _look_after(self, log, noise: random.Random) -> None:
        """What the store's own thread does now and then."""
        chance = noise.random()
        if chance < 0.01 and self._durability != "process":
            log.flush()
        elif chance < 0.02:
            log.roll()
        elif chance < 0.025:
            log.prepare_spare()


class StoreChild:
    """Named producers, which ask where they left off."""

    def __init__(self, path: Path, durability: str, acknowledged: list[int]) -> None:
        config = {"eoslog.checkpoint.interval.ms": 50}
        self._store = eoslog.open(path, durability=durability, config=config)

    def lane(self, lane: int, noise: random.Random) -> None:
        partition = lane % PARTITIONS
        producer = self._store.producer(name=f"lane-{lane}")
        position = producer.next_sequence(TOPIC, partition)
        report("start", lane, position)
        one_by_one = noise.random() < 0.5
        while True:
            count = batch_count(lane, position)
            report("try", lane, position, count)
            values = values_from(lane, position, count)
            if one_by_one:
                for value in values:
                    producer.send(TOPIC, value=value, partition=partition)
                producer.flush()
            else:
                producer.append(TOPIC, partition=partition, values=values)
            report("ack", lane, position, count)
            position += count
            time.sleep(PAUSE_SECONDS)


def main() -> None:
    kind, path, seed, durability, acknowledged = sys.argv[1:]
    child = {"bindings": BindingsChild, "store": StoreChild}[kind](
        Path(path), durability, json.loads(acknowledged)
    )
    for lane in range(LANES):
        noise = random.Random(int(seed) * LANES + lane)
        threading.Thread(target=guarded, args=(child.lane, lane, noise), daemon=True).start()
    time.sleep(60)
    report("late")


def guarded(work, lane: int, noise: random.Random) -> None:
    """An error in a lane ends the process, and its message is the test's."""
    try:
        work(lane, noise)
    except BaseException as error:
        print(f"lane {lane}: {error!r}", file=sys.stderr, flush=True)
        os._exit(3)


if __name__ == "__main__":
    main()
