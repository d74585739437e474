"""A look at a store's metrics with many partitions open, and Prometheus's text of it: CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logs import TOPIC, open_store
from measure import record
from sizes import Sizes

from eoslog import TopicPartition
from eoslog.store.collector import StoreCollector
from eoslog.store.metrics import gather
from eoslog.store.store import parts_of

client = pytest.importorskip("prometheus_client")

GROUPS = 5
GROUP_PARTITIONS_MAX = 20
SEGMENT_BYTES = 1 << 20


def cpu_seconds(work: Callable[[], object], rounds: int) -> list[float]:
    """CPU time of this process in each round."""
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return taken


def bench_metrics(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Of a store whose partitions this process wrote to, with groups that have offsets in some."""
    count = sizes.metrics_partitions
    with open_store(bench_path / "store", segment_bytes=SEGMENT_BYTES, partitions=count) as store:
        producer = store.producer()
        for number in range(count):
            producer.append(TOPIC, number, values=[b"x"])
        behind = min(count, GROUP_PARTITIONS_MAX)
        for number in range(GROUPS):
            with store.consumer(group=f"g{number}") as consumer:
                consumer.commit({TopicPartition(TOPIC, one): 0 for one in range(behind)})
        files = parts_of(store).files
        benchmark.pedantic(lambda: gather(files, 0), rounds=sizes.metrics_rounds, warmup_rounds=1)
        gathered = [
            one * 1e3 for one in cpu_seconds(lambda: gather(files, 0), sizes.metrics_rounds)
        ]
        registry = client.CollectorRegistry()
        registry.register(StoreCollector(store))
        text = client.generate_latest(registry).decode()
        sample_count = sum(not line.startswith("#") for line in text.splitlines())
        assert text.count("kafka_topic_partition_current_offset{") == count + len(
            [one for one in files.partitions.opened() if one.topic != TOPIC]
        )
        whole = cpu_seconds(lambda: client.generate_latest(registry), sizes.metrics_rounds)
    gather_s = statistics.median(gathered) / 1e3
    rendered = [(one - gather_s) / sample_count * 1e6 for one in whole]
    record(benchmark, "metrics_gather", statistics.median(gathered), spread=gathered)
    record(
        benchmark,
        "metrics_render",
        statistics.median(rendered),
        spread=rendered,
        beside=f"{sample_count} samples",
    )
