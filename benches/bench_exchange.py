"""Files of records in and out: JSON lines of the envelope, 1 KB values of text.

The rate is that of the file's bytes to the process's seconds of processor time. The store is open,
and each import has a topic of its own, in a durable store.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from logs import KB
from measure import record
from sizes import Sizes

import eoslog

WORDS = b"the quick brown fox jumps over a lazy dog".split()
LINES_WRITTEN = 1000


def write_lines(path: Path, file_bytes: int) -> int:
    """A file of about so many bytes, as an export writes it; how many it has."""
    chosen = numpy.random.default_rng(1).integers(0, len(WORDS), (LINES_WRITTEN, KB // 3))
    values = [b" ".join(WORDS[one] for one in row)[:KB].decode() for row in chosen]
    lines = [
        {
            "topic": "bench",
            "partition": 0,
            "offset": offset,
            "timestamp_ms": 1_700_000_000_000,
            "key": None,
            "value": value,
            "headers": [],
        }
        for offset, value in enumerate(values)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with path.open("wb") as file:
        while file.tell() < file_bytes:
            file.write(text)
    return path.stat().st_size


def bench_exchange(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Import and export in turns, after one of each."""
    source, target = bench_path / "in.jsonl", bench_path / "out.jsonl"
    size = write_lines(source, sizes.exchange_bytes)
    rates: dict[str, list[float]] = {"import_json_lines": [], "export_json_lines": []}

    def timed(name: str, work: Callable[[], object]) -> None:
        begin_s = time.process_time()
        work()
        rates[name].append(size / (time.process_time() - begin_s) / 1e6)

    with eoslog.open(bench_path / "store", create=True) as store:

        def run() -> None:
            store.create_topic("bench")
            timed("import_json_lines", lambda: eoslog.import_file(store, "bench", source))
            timed("export_json_lines", lambda: eoslog.export_topic(store, "bench", target))
            store.delete_topic("bench")

        run()
        for name in rates:
            rates[name].clear()
        benchmark.pedantic(run, rounds=sizes.rounds, warmup_rounds=0)
    for name, measured in rates.items():
        record(benchmark, name, statistics.median(measured), spread=measured)
