"""How much each bench does: `full` for figures, `tiny` so that a test can run all of them.

The environment's EOSLOG_BENCH_SIZE chooses. Figures of a tiny run say nothing about speed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes, counts in pieces."""

    name: str
    rounds: int
    segment_bytes: int  # Of the topics that are appended to; also what one round appends.
    distinct_batches: int  # Different batches that a round appends in turn.
    idempotence_pairs: int
    send_count: int
    staged_bytes: int
    staged_segment_bytes: int
    read_bytes: int
    poll_count: int
    scan_segment_bytes: int
    scan_batch_count: int
    scan_large_batch_count: int
    lookup_count: int
    store_small_bytes: int
    store_large_bytes: int
    store_segment_bytes: int
    store_fallback_bytes: int  # The larger store's size where the disk has no room for it.
    open_rounds: int
    listed_partitions: int
    backup_rounds: int
    exchange_bytes: int
    recover_bytes: int
    tail_bytes: int
    producer_segment_bytes: int
    producer_count: int
    producer_return_count: int
    verdict_count: int
    synced_count: int
    synced_segment_bytes: int
    transaction_pairs: int
    transaction_count: int
    transaction_offsets_count: int
    transaction_synced_count: int
    transaction_init_count: int
    transaction_read_bytes: int
    open_transaction_count: int
    aborted_transaction_count: int
    snapshot_batches: int
    process_append_bytes: int
    process_rounds: int
    process_seconds: float
    wake_count: int
    takeover_count: int
    spark_rounds: int
    spark_warmup_rounds: int
    spark_rows: int
    spark_small_rows: int
    spark_decided_rows: int
    spark_micro_rounds: int
    spark_micro_batches: int
    spark_micro_batches_skipped: int
    checked_operation_count: int
    checked_rounds: int
    metrics_partitions: int
    metrics_rounds: int


FULL = Sizes(
    name="full",
    rounds=9,
    segment_bytes=512 * MIB,
    distinct_batches=16,
    idempotence_pairs=6_000,
    send_count=500_000,
    staged_bytes=256 * MIB,
    staged_segment_bytes=256 * MIB,
    read_bytes=GIB,
    poll_count=300_000,
    scan_segment_bytes=GIB,
    scan_batch_count=1_000_000,
    scan_large_batch_count=5_000,
    lookup_count=5_000,
    store_small_bytes=GIB,
    store_large_bytes=10 * GIB,
    store_segment_bytes=GIB,
    store_fallback_bytes=3 * GIB,
    open_rounds=15,
    listed_partitions=100,
    backup_rounds=9,
    exchange_bytes=256 * MIB,
    recover_bytes=2 * GIB,
    tail_bytes=256 * MIB,
    producer_segment_bytes=GIB,
    producer_count=1_000_000,
    producer_return_count=20_000,
    verdict_count=200_000,
    synced_count=2_000,
    synced_segment_bytes=64 * MIB,
    transaction_pairs=2_000,
    transaction_count=20_000,
    transaction_offsets_count=300_000,
    transaction_synced_count=1_000,
    transaction_init_count=500,
    transaction_read_bytes=512 * MIB,
    open_transaction_count=100_000,
    aborted_transaction_count=1_000_000,
    snapshot_batches=300_000,
    process_append_bytes=256 * MIB,
    process_rounds=31,
    process_seconds=1.0,
    wake_count=5_000,
    takeover_count=20,
    spark_rounds=5,
    spark_warmup_rounds=1,
    spark_rows=1_000_000,
    spark_small_rows=4_000_000,
    spark_decided_rows=1_000_000,
    spark_micro_rounds=10,
    spark_micro_batches=20,
    spark_micro_batches_skipped=4,
    checked_operation_count=1_000_000,
    checked_rounds=3,
    metrics_partitions=1_000,
    metrics_rounds=25,
)

TINY = Sizes(
    name="tiny",
    rounds=2,
    segment_bytes=4 * MIB,
    distinct_batches=2,
    idempotence_pairs=20,
    send_count=2_000,
    staged_bytes=10 * MIB,
    staged_segment_bytes=4 * MIB,
    read_bytes=2 * MIB,
    poll_count=2_000,
    scan_segment_bytes=4 * MIB,
    scan_batch_count=1_000,
    scan_large_batch_count=10,
    lookup_count=20,
    store_small_bytes=2 * MIB,
    store_large_bytes=8 * MIB,
    store_segment_bytes=2 * MIB,
    store_fallback_bytes=4 * MIB,
    open_rounds=2,
    listed_partitions=3,
    backup_rounds=1,
    exchange_bytes=2 * MIB,
    recover_bytes=4 * MIB,
    tail_bytes=MIB,
    producer_segment_bytes=4 * MIB,
    producer_count=2_000,
    producer_return_count=50,
    verdict_count=200,
    synced_count=20,
    synced_segment_bytes=4 * MIB,
    transaction_pairs=10,
    transaction_count=50,
    transaction_offsets_count=50,
    transaction_synced_count=8,
    transaction_init_count=5,
    transaction_read_bytes=2 * MIB,
    open_transaction_count=500,
    aborted_transaction_count=500,
    snapshot_batches=100,
    process_append_bytes=2 * MIB,
    process_rounds=2,
    process_seconds=0.1,
    wake_count=20,
    takeover_count=1,
    spark_rounds=1,
    spark_warmup_rounds=0,
    spark_rows=8_000,
    spark_small_rows=8_000,
    spark_decided_rows=8_000,
    spark_micro_rounds=1,
    spark_micro_batches=1,
    spark_micro_batches_skipped=0,
    checked_operation_count=2_000,
    checked_rounds=1,
    metrics_partitions=3,
    metrics_rounds=2,
)


def chosen_sizes() -> Sizes:
    """The sizes that EOSLOG_BENCH_SIZE names; `full` if it is not set."""
    name = os.environ.get("EOSLOG_BENCH_SIZE", FULL.name)
    for sizes in (FULL, TINY):
        if sizes.name == name:
            return sizes
    raise ValueError(f"EOSLOG_BENCH_SIZE={name!r}: {FULL.name} or {TINY.name}")
