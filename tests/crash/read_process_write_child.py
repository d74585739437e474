"""The child of the kill tests of the read-process-write loop: works until it is killed.

Arguments: the store's path, a seed and the durability. It copies the records of every source
partition to the sink's partition of the same number, as `outputs_of` says, with batches of sizes
that are drawn; now and then processing fails, as a program's own errors do. A line on standard
output says when a batch is begun, so that the parent can kill it in the middle of its work; for
each it reads a byte from standard input, so that it does not run far ahead of a parent that stands
still. At the end of that input it goes on as it likes.
"""

from __future__ import annotations

import os
import random
import sys
import zlib
from contextlib import suppress
from pathlib import Path

import eoslog

SOURCE, SINK, GROUP = "source", "sink", "copy"
PARTITIONS = 3
RECORDS = 6000


class ProcessingError(Exception):
    """The program's own: the same records come again."""


def outputs_of(value: bytes) -> list[bytes]:
    """What a record becomes: none to three records, small ones and large ones."""
    count = zlib.crc32(value) % 4
    return [b"%s/%d:" % (value, index) + b"y" * (index * 300) for index in range(count)]


def main() -> None:
    path, seed, durability = sys.argv[1:]
    noise = random.Random(int(seed))

    def process(producer: eoslog.Producer, records: list[eoslog.Record]) -> None:
        os.write(1, b"batch\n")
        os.read(0, 1)
        for number, record in enumerate(records):
            for output in outputs_of(record.value or b""):
                producer.send(SINK, value=output, partition=record.partition)
            if noise.random() < 0.001:
                producer.flush()
            if noise.random() < 0.0005:
                raise ProcessingError(number)

    config = {"eoslog.checkpoint.interval.ms": 50}
    with eoslog.open(Path(path), durability=durability, config=config) as store:
        done = False
        while not done:
            rounds = iter(range(noise.randrange(200)))
            with suppress(ProcessingError):
                eoslog.read_process_write(
                    store,
                    process,
                    topics=[SOURCE],
                    group=GROUP,
                    until_caught_up=True,
                    max_records=noise.choice((1, 10, 40, 100)),
                    poll_timeout_s=0.0,
                    stop=lambda rounds=rounds: next(rounds, None) is None,
                )
                done = next(rounds, None) is not None


if __name__ == "__main__":
    main()
