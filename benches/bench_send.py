"""send() from Python: one record of 100 bytes a call, durability `process`, up to a flush().

Rounds include the calls' loop, the batches' appends and the flush at the end; segments are recycled
between rounds.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from logs import TOPIC, open_store, random_values, renew_segments
from measure import rates, record, round_seconds
from sizes import Sizes

from eoslog.store.store import engine_of

VALUE_BYTES = 100
KEYED_PARTITIONS = 4
DISTINCT_VALUES = 1000


def distinct_values() -> list[bytes]:
    return [row.tobytes() for row in random_values(VALUE_BYTES, DISTINCT_VALUES)]


def bench_send(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Records without a key, one partition."""
    values = distinct_values()
    given = [values[index % DISTINCT_VALUES] for index in range(sizes.send_count)]
    with open_store(bench_path / "store", segment_bytes=sizes.segment_bytes) as store:
        partition = engine_of(store).partition(TOPIC, 0)
        producer = store.producer()

        def run() -> None:
            send = producer.send
            for value in given:
                send(TOPIC, value)
            producer.flush()

        benchmark.pedantic(
            run, setup=lambda: renew_segments(partition), rounds=sizes.rounds, warmup_rounds=1
        )
        end = partition.log_end_offset
        assert end == (sizes.rounds + 1) * sizes.send_count
        found, _ = partition.fetch_records(end - 1, 1, 1 << 20)
        assert [one.value for one in found] == [given[-1]]
    speed = rates(sizes.send_count, round_seconds(benchmark))
    record(benchmark, "send", statistics.median(speed), spread=speed)


def bench_send_keyed(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Records with a key of 8 bytes that chooses one of four partitions."""
    values = distinct_values()
    given = [
        (values[index % DISTINCT_VALUES], index.to_bytes(8, "big"))
        for index in range(sizes.send_count)
    ]
    store_path = bench_path / "store"
    # All spare segments together are as large as the one of the bench above: more dirty pages have
    # the kernel slow down each write.
    segment_bytes = sizes.segment_bytes // KEYED_PARTITIONS
    with open_store(store_path, segment_bytes=segment_bytes, partitions=KEYED_PARTITIONS) as store:
        partitions = [
            engine_of(store).partition(TOPIC, number) for number in range(KEYED_PARTITIONS)
        ]
        producer = store.producer()

        def run() -> None:
            send = producer.send
            for value, key in given:
                send(TOPIC, value, key)
            producer.flush()

        def renew() -> None:
            for partition in partitions:
                renew_segments(partition)

        benchmark.pedantic(run, setup=renew, rounds=sizes.rounds, warmup_rounds=1)
        counts = [partition.log_end_offset for partition in partitions]
        assert sum(counts) == (sizes.rounds + 1) * sizes.send_count
        assert min(counts) > 0
    speed = rates(sizes.send_count, round_seconds(benchmark))
    record(benchmark, "send_keyed", statistics.median(speed), spread=speed)
