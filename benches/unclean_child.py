"""A process that appends to a store and dies of SIGKILL, some bytes past its last checkpoint.

python benches/unclean_child.py STORE SEGMENT_BYTES HEAD_BYTES TAIL_BYTES
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from logs import KB, TOPIC, arrow_batches, fill

import eoslog

CHECKPOINT_INTERVAL_MS = 1_000
CHECKPOINT_WAIT_SECONDS = 120


def checkpointed_offset(store_path: Path) -> int:
    """The recovery point of partition 0 in Kafka's checkpoint file; 0 without one."""
    try:
        lines = (store_path / "recovery-point-offset-checkpoint").read_text().splitlines()
    except FileNotFoundError:
        return 0
    for line in lines[2:]:
        topic, partition, offset = line.split()
        if (topic, partition) == (TOPIC, "0"):
            return int(offset)
    return 0


def main() -> None:
    store_path = Path(sys.argv[1])
    segment_bytes, head_bytes, tail_bytes = (int(one) for one in sys.argv[2:])
    config = {
        "log.flush.offset.checkpoint.interval.ms": CHECKPOINT_INTERVAL_MS,
        "log.initial.task.delay.ms": 0,
    }
    store = eoslog.open(store_path, create=True, durability="commit", config=config)
    store.create_topic(TOPIC, partitions=1, config={"segment.bytes": segment_bytes})
    producer = store.producer()
    columns = arrow_batches(KB, 4)

    def append(column: object) -> None:
        producer.append(TOPIC, partition=0, values=column)

    head_count = fill(append, columns, head_bytes)
    producer.flush()
    deadline = time.monotonic() + CHECKPOINT_WAIT_SECONDS
    while checkpointed_offset(store_path) < head_count:
        if time.monotonic() > deadline:
            raise SystemExit(f"no checkpoint at {head_count} after {CHECKPOINT_WAIT_SECONDS} s")
        time.sleep(0.01)
    tail_count = fill(append, columns, tail_bytes)
    print(head_count + tail_count, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
