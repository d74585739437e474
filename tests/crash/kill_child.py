"""The child of the kill test: appends and reports each acknowledged append on a pipe, until killed.

Arguments: store path, number of partitions, the round, the durability. Everything is single-threaded
but for the partitions' own threads, so that a kill can fall anywhere.
"""

from __future__ import annotations

import os
import random
import sys
import threading

import eoslog

TOPIC = "killed"
PRODUCER_NAME = "worker-{}"


def value_of(partition: int, position: int) -> bytes:
    """A record says which one it is; sizes differ, so that batches end anywhere in a page."""
    return b"%d:%d:" % (partition, position) + b"x" * (position * 37 % 400)


def append_forever(store: eoslog.Store, partition: int, report: int, seed: int) -> None:
    """Go on where the named producer left off; one line per acknowledged append."""
    noise = random.Random(seed)
    producer = store.producer(name=PRODUCER_NAME.format(partition))
    position = producer.next_sequence(TOPIC, partition)
    os.write(report, b"start %d %d\n" % (partition, position))
    while True:
        count = noise.choice((1, 1, 2, 7, 40))
        values = [value_of(partition, position + index) for index in range(count)]
        os.write(report, b"try %d %d %d\n" % (partition, position, count))
        producer.append(TOPIC, partition=partition, values=values)
        os.write(report, b"ack %d %d %d\n" % (partition, position, count))
        position += count
        if noise.random() < 0.02:
            producer.flush()


def main() -> None:
    path, partitions, seed, durability = sys.argv[1:]
    store = eoslog.open(path, durability=durability)
    threads = [
        threading.Thread(target=append_forever, args=(store, partition, 1, int(seed) + partition))
        for partition in range(int(partitions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
