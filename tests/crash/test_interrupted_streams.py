"""An interrupt (Ctrl-C) at any step of an append of a stream: whole chunks are in, each once, the
stream is released, and the producer goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash.interrupted_steps import Steps, at_signals
from stores import QUIET

import eoslog
from eoslog import TopicPartition

pa = pytest.importorskip("pyarrow")
pytestmark = [
    pytest.mark.crash,
    # An interrupt may come into a finalizer, which the interpreter goes on without.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SCHEMA = pa.schema([("value", pa.binary())])
CHUNKS = 3


def stream(step: int, released: list[int]) -> Any:
    def chunks() -> Iterator[pa.RecordBatch]:
        try:
            for number in range(CHUNKS):
                values = [b"%d %d %d" % (step, number, row) for row in (0, 1)]
                yield pa.record_batch({"value": values}, schema=SCHEMA)
        finally:
            released.append(step)

    return pa.RecordBatchReader.from_batches(SCHEMA, chunks())


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("transactional", [False, True])
def test_at_every_step(tmp_path: Path, transactional: bool) -> None:
    steps, interrupts, released = Steps(), 0, list[int]()
    level = "read_committed" if transactional else "read_uncommitted"
    with eoslog.open(tmp_path / "s", create=True, durability="process", config=QUIET) as store:
        store.create_topic("rows")
        consumer = store.consumer(isolation_level=level)
        consumer.assign([TopicPartition("rows", 0)])
        name = {"transactional_id": "x"} if transactional else {"name": "x"}
        producer = store.producer(**name)
        if transactional:
            producer.init_transactions()

        def append(step: int) -> None:
            if transactional:
                with producer.transaction():
                    producer.append("rows", 0, stream(step, released))
            else:
                producer.append("rows", 0, stream(step, released))

        with at_signals(interrupt):
            for step in steps.each():
                interrupts += steps.interrupt(step, lambda step=step: append(step))
                found = [record.value for record in consumer.poll(0)]
                whole = [
                    b"%d %d %d" % (step, number, row) for number in range(CHUNKS) for row in (0, 1)
                ]
                sizes = (0, len(whole)) if transactional else range(0, len(whole) + 1, 2)
                assert found in [whole[:size] for size in sizes], steps.last
                if not transactional:
                    assert (
                        producer.next_sequence("rows", 0)
                        == store.partition("rows", 0).log_end_offset
                    )
                # A stream that was not begun is released with its last reference.
                assert released.count(step) <= 1, steps.last
        assert interrupts > 40
        append(0)
        assert len(consumer.poll(0)) == 2 * CHUNKS
        assert released.count(0) == 1
        producer.close()
