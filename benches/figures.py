"""Every figure that the benches give: what it says, its unit, and what it is to reach.

A bench records its figures under these names; the report makes a row of each, in this order. None
is a timed test: a figure that was missed is a row that says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row of the table. Without a bound it is there to compare with."""

    what: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def reached(self, measured: float) -> bool | None:
        """Whether the measured value keeps the bound; None where there is none."""
        if self.at_least is not None:
            return measured >= self.at_least
        if self.at_most is not None:
            return measured <= self.at_most
        return None


FIGURES: dict[str, Figure] = {
    # bench_append.py
    "append_1kb": Figure("columnar append, 1 KB values, 1,000 a batch, Arrow", "GB/s", at_least=4),
    "append_1kb_beside_write": Figure(
        "the same beside a plain write() of the same bytes to a fresh file", "times", at_least=0.8
    ),
    "append_1kb_engine": Figure("the same, by the engine without the Python API", "GB/s"),
    "append_1kb_list": Figure("the same from a list of bytes", "GB/s"),
    "append_1kb_numpy": Figure("the same from a numpy array", "GB/s"),
    "append_100b": Figure(
        "columnar append, 100-byte values, 1,000 a batch", "records/s", at_least=20e6
    ),
    "append_100b_beside_write": Figure("the same beside a plain write() to a fresh file", "times"),
    "idempotence_cost": Figure(
        "idempotence on against off, batches of 1,000 values of 1 KB", "% slower", at_most=1
    ),
    "idempotence_cost_100b": Figure("the same, values of 100 bytes", "% slower", at_most=1),
    "idempotence_cost_engine": Figure(
        "the same, by the engine without the Python API", "% slower", at_most=1
    ),
    # bench_send.py
    "send": Figure("send() one record at a time, 100 bytes", "records/s", at_least=1e6),
    "send_keyed": Figure("the same with a key of 8 bytes, 4 partitions", "records/s"),
    # bench_staged.py
    "staged_write": Figure("a staged task: 1 KB values with keys, 4 partitions", "GB/s"),
    "staged_commit": Figure("commit of the staged files: decision and adoption", "GB/s"),
    # bench_read.py
    "poll_arrow": Figure("poll_arrow of 1 KB records from page cache", "GB/s", at_least=4),
    "scan_duckdb": Figure("sum of octet_length over a scan in DuckDB, CPU time", "GB/s"),
    "scan_duckdb_beside_poll_arrow": Figure(
        "the same beside poll_arrow, CPU time", "times", at_least=0.8
    ),
    "fetch_columns": Figure("poll_arrow, by the engine without the Python API", "GB/s"),
    "poll": Figure("poll() of 1 KB records, 500 at a time", "records/s"),
    "scan": Figure("header-only scan, batches of 10 records of 100 bytes", "batches/s", 10e6),
    "scan_large": Figure("header-only scan, batches of 1,000 records of 100 bytes", "batches/s"),
    "lookup_time": Figure("offsets_for_times(), one partition, batches of 1,000 of 1 KB", "µs"),
    # bench_open.py
    "open_small": Figure("opening a cleanly closed store of 1 GiB", "ms", at_most=50),
    "open_large": Figure("opening a cleanly closed store of 10 GiB", "ms", at_most=50),
    "open_ratio": Figure("the large one beside the small one", "times", at_most=1.2),
    "open_cold": Figure("the large one, none of its files in page cache", "ms"),
    **{
        f"list_{name}": Figure(f"`eoslog {name}` of 100 partitions, CPU time", "s", at_most=0.2)
        for name in ("topics", "groups", "transactions")
    },
    "recover": Figure("recovery after an unclean stop, log scanned", "GB/s", at_least=2),
    "recover_store": Figure("opening a store whose process was killed, from disk", "ms"),
    "recover_share": Figure(
        "bytes it read from disk beside those that the last checkpoint does not cover",
        "times",
        at_most=1.2,
    ),
    "close_synced": Figure("closing a store that was flushed before", "ms"),
    # bench_backup.py
    "backup_stop": Figure(
        "longest wait of an append for a backup of a live store of 1 GiB, 3 transactional writers",
        "ms",
        at_most=10,
    ),
    "backup_rate": Figure("its rate, recovered and synced", "GB/s"),
    "backup_beside_cp": Figure(
        "the same beside cp of the logs and a sync, under the same writers", "times", at_least=0.7
    ),
    # bench_metrics.py
    "metrics_gather": Figure(
        "a look at a store's metrics, 1,000 partitions open, CPU time", "ms", at_most=5
    ),
    "metrics_render": Figure("Prometheus's text of it, CPU time of a sample", "µs", at_most=6),
    # bench_producers.py
    "producer_held": Figure("memory per producer held", "bytes", at_most=256),
    "producer_evicted": Figure("memory per producer evicted", "bytes", at_most=0),
    "verdict_growth": Figure("an append among 1 million producers beside one among 1", "times"),
    "producer_return": Figure("an append by a producer that was evicted, median", "µs"),
    # bench_durable.py
    "append_synced": Figure("single append of 1 KB, durability always, median", "µs"),
    "append_synced_beside_pwrite": Figure(
        "the same beside a bare pwrite() and fdatasync(), medians", "times"
    ),
    "append_synced_p99": Figure("the same, 99th percentile", "µs"),
    "append_synced_threads": Figure("the same by 8 threads that share syncs", "records/s"),
    "flush_p99": Figure("flush() of 128 records of 1 KB, 99th percentile", "µs"),
    # bench_transactions.py
    "transaction_append": Figure(
        "transactions of 1,000 records of 1 KB beside the same appends without",
        "% slower",
        at_most=3.1,
    ),
    "transaction_small": Figure(
        "a transaction of 10 records of 100 bytes to 2 partitions, median", "µs", at_most=10
    ),
    "transaction_one": Figure(
        "a transaction of one record, durability process, median", "µs", at_most=6.67
    ),
    "transaction_offsets": Figure(
        "a transaction of one record with the offset of one group, processor time of all threads "
        "beside the same without",
        "times",
        at_most=3.5,
    ),
    "transaction_synced": Figure(
        "a transaction of one record of 1 KB, durability commit, median", "µs"
    ),
    "transaction_synced_beside_two_files": Figure(
        "the same beside a bare pwrite() and fdatasync() of two files, medians",
        "times",
        at_most=1.11,
    ),
    "transaction_synced_p99": Figure("the same, 99th percentile", "µs"),
    "transaction_threads": Figure("the same by 16 threads that share syncs", "records/s"),
    "transaction_threads_growth": Figure("the same beside one thread", "times", at_least=6),
    "snapshot_beside_writers": Figure(
        "8 threads whose transactions overlap, beside Store.snapshot in a loop: their rate beside "
        "that without",
        "times",
        at_least=0.8,
    ),
    "snapshot_stop": Figure(
        "the same, the longest time that a running transaction took for an append or its commit",
        "ms",
        at_most=10,
    ),
    "read_committed": Figure(
        "read_committed beside read_uncommitted, transactions of 1,000 of 1 KB, none aborted",
        "% slower",
        at_most=3.1,
    ),
    "read_committed_aborts": Figure(
        "the same with every other transaction aborted, per committed byte", "% slower", at_most=11
    ),
    "open_transactions_growth": Figure(
        "a transaction while 100,000 others are open beside one while 1 is", "times", at_most=1.5
    ),
    "aborted_transactions_growth": Figure(
        "a committed read among 1 million aborted transactions beside one among 1",
        "times",
        at_most=1.5,
    ),
    "transaction_init": Figure(
        "init_transactions() of an id that the store knows, median", "µs", at_most=1000
    ),
    # bench_processes.py
    "processes_two_partitions": Figure(
        "2 processes to 2 partitions beside one, 1 KB values, 1,000 a batch", "times", at_least=1.8
    ),
    "processes_one_partition": Figure(
        "4 processes to one partition beside one, batches of 10 values of 100 bytes",
        "times",
        at_least=0.7,
    ),
    "processes_one_partition_pause": Figure(
        "the longest time in which one of the four wrote nothing", "ms", at_most=100
    ),
    "wake_up": Figure(
        "from an append to the record in another process's waiting consumer, median",
        "µs",
        at_most=20,
    ),
    "wake_up_p99": Figure("the same, 99th percentile", "µs", at_most=200),
    "tail_reader_cost": Figure(
        "a writer at full speed with another process reading at the tail", "% slower", at_most=10
    ),
    "takeover": Figure(
        "an append that waits for a lock whose holder is killed, longest", "ms", at_most=10
    ),
    # bench_spark.py
    "spark_write_1kb": Figure(
        "df.write of 1 KB values beside a sink that only counts bytes", "times", at_least=0.8
    ),
    "spark_write_beside_parquet": Figure("the same beside df.write.parquet", "times", at_least=1),
    "spark_write_100b": Figure(
        "df.write of 100-byte values beside a sink that only counts bytes", "times", at_least=0.7
    ),
    "spark_write_1kb_process": Figure(
        "df.write of 1 KB values, durability process, beside a sink that only counts bytes",
        "times",
        at_least=0.8,
    ),
    "spark_write_beside_parquet_process": Figure(
        "the same beside df.write.parquet", "times", at_least=1
    ),
    "spark_write_100b_process": Figure(
        "df.write of 100-byte values, durability process, beside a sink that only counts bytes",
        "times",
        at_least=0.7,
    ),
    "spark_write_plain": Figure(
        "the limit: a Python sink that writes 1 KB values to plain files, beside the counting sink",
        "times",
    ),
    "spark_write_plain_synced": Figure("the same, with an fsync of each file", "times"),
    "spark_write_noise_beside_parquet": Figure(
        "df.write of 1 KB values that do not compress, beside df.write.parquet",
        "times",
        at_least=1,
    ),
    "spark_write_noise_beside_parquet_process": Figure(
        "the same, durability process", "times", at_least=1
    ),
    "spark_sync_alone": Figure(
        "fsync alone of the bytes of 1 million values of 1 KB, in new files", "s"
    ),
    "spark_decision_cost": Figure(
        "1 million rows of 100 bytes with the driver's decision beside without",
        "% slower",
        at_most=3,
    ),
    "spark_micro_batch": Figure(
        "a micro-batch of 1,000 rows, over that of a Python sink that does nothing",
        "ms",
        at_most=15,
    ),
    "spark_micro_batch_plain": Figure(
        "the limit: the same for a Python sink that syncs its tasks' files and one record", "ms"
    ),
    "spark_read_noop": Figure(
        "batch read of 1 KB values into noop beside a Python source of batches from memory",
        "times",
        at_least=0.8,
    ),
    "spark_read_count": Figure("the same into count()", "times", at_least=0.8),
    "spark_rdd_write": Figure(
        "an RDD born in Python, 1 KB values, by write_partitions",
        "rows/s per core",
        at_least=500_000,
    ),
    "spark_rdd_write_process": Figure(
        "the same, durability process", "rows/s per core", at_least=500_000
    ),
    # bench_exchange.py
    "import_json_lines": Figure(
        "import of JSON lines, 1 KB text values, processor time", "MB/s", at_least=150
    ),
    "export_json_lines": Figure("export of the same, processor time", "MB/s", at_least=200),
    # bench_checking.py
    "check_history": Figure("checking a clean history of 1 million operations", "s", at_most=60),
    "check_processor": Figure("processor time of that", "s"),
}
