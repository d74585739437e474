"""A staged job: what a task writes without a lock, and the decision that makes it part of the log.

Rows come as a data frame's do: batches of Arrow columns with a key, which chooses one of four
partitions. Durability `process`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pyarrow
from logs import BATCH_RECORDS, KB, TOPIC, arrow_batches, open_store, renew_segments
from measure import rates, record, round_seconds
from sizes import Sizes

from eoslog import StagedWriter
from eoslog.store.store import engine_of

PARTITIONS = 4
BATCHES_A_CALL = 10  # A data frame's batches have 10,000 rows.
APPLICATION = "bench-job"


def frames(distinct: int) -> list[tuple[pyarrow.Array, pyarrow.Array]]:
    """Columns of keys and values, 10,000 rows each."""
    made = []
    columns = arrow_batches(KB, max(2, distinct))
    for first in range(max(1, distinct // 8)):
        picked = [columns[(first + index) % len(columns)] for index in range(BATCHES_A_CALL)]
        values = pyarrow.concat_arrays(picked)
        keys = [b"key-%d" % (first * len(values) + index) for index in range(len(values))]
        made.append((pyarrow.array(keys, pyarrow.binary()), values))
    return made


def bench_staged_job(benchmark: Any, bench_path: Path, sizes: Sizes) -> None:
    """Rounds of one task each, decided by one commit; task and commit are timed apart."""
    path = bench_path / "store"
    given = frames(sizes.distinct_batches)
    frame_rows = BATCHES_A_CALL * BATCH_RECORDS
    call_count = max(1, sizes.staged_bytes // (frame_rows * KB))
    commit_seconds: list[float] = []
    job_rows = call_count * frame_rows
    with open_store(path, segment_bytes=sizes.staged_segment_bytes, partitions=PARTITIONS) as store:
        partitions = [engine_of(store).partition(TOPIC, number) for number in range(PARTITIONS)]
        messages: list[Any] = []

        def decide() -> None:
            """Commit what the round before staged."""
            if not messages:
                return
            version = len(commit_seconds)
            begin = time.perf_counter()
            done = store.commit_staged(APPLICATION, version, messages)
            commit_seconds.append(time.perf_counter() - begin)
            assert (done.committed, done.records) == (True, job_rows)
            messages.clear()
            for partition in partitions:
                renew_segments(partition)

        def run() -> None:
            run_id = f"run-{len(commit_seconds)}"
            with StagedWriter(
                path,
                APPLICATION,
                run_id,
                "attempt-0",
                partitions={TOPIC: PARTITIONS},
                durability="process",
            ) as writer:
                for index in range(call_count):
                    keys, values = given[index % len(given)]
                    writer.append(TOPIC, None, values, keys=keys)
            messages.append(writer.message)

        benchmark.pedantic(run, setup=decide, rounds=sizes.rounds, warmup_rounds=1)
        decide()
        rounds = sizes.rounds + 1
        assert len(commit_seconds) == rounds
        assert sum(one.log_end_offset for one in partitions) == rounds * job_rows
        assert min(one.log_end_offset for one in partitions) > 0
        # The same version again is a no-op.
        again = store.commit_staged(APPLICATION, rounds - 1, [])
        assert (again.committed, again.records) == (False, 0)
    gigabytes = job_rows * KB / 1e9
    written = rates(gigabytes, round_seconds(benchmark))
    adopted = rates(gigabytes, commit_seconds[1:])
    record(benchmark, "staged_write", statistics.median(written), spread=written)
    record(benchmark, "staged_commit", statistics.median(adopted), spread=adopted)
