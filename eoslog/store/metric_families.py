"""A store's metrics by name: kafka_exporter's names for offsets and lag, `eoslog_` for the rest.

Units are base units; what only rises ends in `_total`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eoslog.bindings.counter_page import DURATION_BOUNDS_S
from eoslog.store.metrics import StoreFigures, gather
from eoslog.store.store import Store, parts_of

Labels = dict[str, str]
# Open transactions are counted by their age, each with all that are older.
_AGES_S = (0, 60, 600, 3600)


class MetricFamily(NamedTuple):
    """One metric: `kind` is Prometheus's, `name` has no suffix; each sample has a name, labels,
    which others may share with it, and a value.
    """

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[str, Labels, float]]


def metric_families(store: Store) -> list[MetricFamily]:
    """Return all metrics of an open store. Raises LogClosedError, StoreError."""
    parts = parts_of(store)
    parts.files.engine.check_open()
    figures = gather(parts.files, parts.checkpointer.metrics()["error_count"])
    return [*_of_offsets(figures), *_of_groups(figures), *_of_store(figures), *_counted(figures)]


def _gauge(name: str, text: str, samples: Iterable[tuple[Labels, float]]) -> MetricFamily:
    return MetricFamily(name, "gauge", text, [(name, *sample) for sample in samples])


def _of_offsets(figures: StoreFigures) -> Iterator[MetricFamily]:
    rows = [
        ({"topic": where.topic, "partition": str(where.partition)}, log, age_s)
        for where, log, age_s in figures.partitions
    ]
    yield _gauge(
        "kafka_topic_partitions",
        "Partitions of a topic.",
        [({"topic": topic}, count) for topic, count in figures.partition_counts.items()],
    )
    yield _gauge(
        "kafka_topic_partition_current_offset",
        "Offset of the next record of a partition.",
        [(labels, log.log_end_offset) for labels, log, _ in rows],
    )
    yield _gauge(
        "kafka_topic_partition_oldest_offset",
        "Offset of the oldest record of a partition.",
        [(labels, log.log_start_offset) for labels, log, _ in rows],
    )
    yield _gauge(
        "eoslog_partition_last_stable_offset_lag_records",
        "Records that read_committed consumers do not get yet, as a transaction is open.",
        [(labels, log.log_end_offset - log.last_stable_offset) for labels, log, _ in rows],
    )
    yield _gauge(
        "eoslog_partition_last_stable_offset_lag_seconds",
        "Age of the oldest open transaction of a partition; 0 without any.",
        [(labels, age_s) for labels, _, age_s in rows],
    )
    yield _gauge(
        "eoslog_topic_bytes",
        "Bytes of a topic's batches.",
        [({"topic": topic}, size) for topic, size in figures.topic_bytes.items()],
    )


def _of_groups(figures: StoreFigures) -> Iterator[MetricFamily]:
    offsets: list[tuple[Labels, float]] = []
    lags: list[tuple[Labels, float]] = []
    offset_sums: list[tuple[Labels, float]] = []
    lag_sums: list[tuple[Labels, float]] = []
    for group in figures.groups:
        sums: dict[str, tuple[int, int]] = {}
        for where, (committed, end) in group.offsets.items():
            of_group = {"consumergroup": group.group, "topic": where.topic}
            labels = {**of_group, "partition": str(where.partition)}
            lag = max(0, end - committed)
            offsets.append((labels, committed))
            lags.append((labels, lag))
            offset_sum, lag_sum = sums.get(where.topic, (0, 0))
            sums[where.topic] = (offset_sum + committed, lag_sum + lag)
        for topic, (offset_sum, lag_sum) in sums.items():
            of_group = {"consumergroup": group.group, "topic": topic}
            offset_sums.append((of_group, offset_sum))
            lag_sums.append((of_group, lag_sum))
    yield _gauge(
        "kafka_consumergroup_current_offset",
        "Committed offset of a group in a partition.",
        offsets,
    )
    yield _gauge(
        "kafka_consumergroup_current_offset_sum",
        "Sum of a group's committed offsets over the partitions of a topic.",
        offset_sums,
    )
    yield _gauge(
        "kafka_consumergroup_lag",
        "Records of a partition after the committed offset of a group.",
        lags,
    )
    yield _gauge(
        "kafka_consumergroup_lag_sum",
        "Sum of a group's lag over the partitions of a topic.",
        lag_sums,
    )
    yield _gauge(
        "kafka_consumergroup_members",
        "Members of a group.",
        [({"consumergroup": group.group}, group.members) for group in figures.groups],
    )


def _of_store(figures: StoreFigures) -> Iterator[MetricFamily]:
    ages = figures.transaction_ages_s
    yield _gauge(
        "eoslog_open_transactions",
        "Open transactions that are at least so old, without prepared ones.",
        [
            ({"older_than_seconds": str(least)}, sum(age >= least for age in ages))
            for least in _AGES_S
        ],
    )
    for name, text, value in (
        ("oldest_transaction_seconds", "Age of the oldest open transaction.", max(ages, default=0)),
        (
            "prepared_transactions",
            "Prepared transactions, which wait for their decision.",
            figures.prepared_transactions,
        ),
        ("processes", "Processes that have the store open.", figures.processes),
        (
            "partitions_unrecovered",
            "Partitions that no process opened since an unclean stop; they have no offsets here.",
            figures.partitions_unrecovered,
        ),
        (
            "partitions_failed",
            "Partitions that refuse appends, as a sync of them failed.",
            figures.partitions_failed,
        ),
        ("damaged_files", "Checkpoints that could not be read.", figures.damaged_files),
        (
            "journal_file_bytes",
            "Size of the commit journals' files.",
            figures.journal_file_bytes,
        ),
        (
            "process_producers_in_memory",
            "Producers that this process holds in memory, over its open partitions.",
            figures.producers_in_memory,
        ),
        ("producer_rows", "Producers that LMDB remembers.", figures.producer_rows),
        (
            "process_background_errors",
            "Errors that the background thread of this process met.",
            figures.background_errors,
        ),
        (
            "counted_since_timestamp_seconds",
            "When the counts began: the store's creation, unless they were lost.",
            (figures.counts.since_ms or 0) / 1000,
        ),
    ):
        yield _gauge(f"eoslog_{name}", text, [({}, value)])
    yield _gauge(
        "eoslog_store_info",
        "The durability that the store is open with.",
        [({"durability": figures.durability}, 1)],
    )


# Name, help, label, and the counter of each of its values.
_COUNTED: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    (
        "duplicate_batches",
        "Batches that were in the log already, and were acknowledged and not written again.",
        "",
        {"": "duplicate_batches"},
    ),
    (
        "duplicate_records",
        "Records of batches that were in the log already.",
        "",
        {"": "duplicate_records"},
    ),
    (
        "refused_requests",
        "Requests of producers refused for an old epoch (a fenced producer) or a sequence that "
        "does not follow.",
        "reason",
        {"epoch": "refused_epochs", "sequence": "refused_sequences"},
    ),
    (
        "producers_fenced",
        "Producers that lived, and were shut out by a newer one of their id or name, a timeout, or "
        "an administrator.",
        "",
        {"": "producers_fenced"},
    ),
    (
        "transactions",
        "Decided transactions.",
        "outcome",
        {"committed": "transactions_committed", "aborted": "transactions_aborted"},
    ),
    (
        "transactions_aborted_by_store",
        "Aborts that their producer did not ask for.",
        "reason",
        {
            "timeout": "aborted_timeout",
            "dead_process": "aborted_dead_process",
            "new_producer": "aborted_new_producer",
            "admin": "aborted_admin",
        },
    ),
    (
        "journal_records",
        "Records of the commit journals: each makes durable what waited for it.",
        "",
        {"": "journal_records"},
    ),
    ("journal_bytes", "Bytes written to the commit journals.", "", {"": "journal_bytes"}),
    (
        "journal_requests",
        "Waits for the disk that the commit journals ended.",
        "",
        {"": "journal_requests"},
    ),
    (
        "journal_retirements",
        "Halves of commit journals that were emptied.",
        "",
        {"": "journal_retirements"},
    ),
    (
        "journal_write_failures",
        "Writes to commit journals that failed.",
        "",
        {"": "journal_failures"},
    ),
    (
        "producers_evicted",
        "Producers dropped from memory; LMDB has them.",
        "",
        {"": "producers_evicted"},
    ),
    ("rebalances", "Rebalances of groups.", "", {"": "rebalances"}),
    (
        "group_members_expired",
        "Members removed since their process died, or they polled no more.",
        "",
        {"": "members_expired"},
    ),
    (
        "partitions_recovered",
        "Recoveries of partitions after unclean stops.",
        "",
        {"": "partitions_recovered"},
    ),
    ("cut_bytes", "Bytes that recoveries cut off, below state/cut/.", "", {"": "cut_bytes"}),
    (
        "retention_deleted_segments",
        "Segments that retention deleted.",
        "",
        {"": "retention_segments"},
    ),
    (
        "retention_deleted_bytes",
        "Bytes that retention deleted.",
        "",
        {"": "retention_bytes"},
    ),
    (
        "retention_deleted_records",
        "Records that retention deleted.",
        "",
        {"": "retention_records"},
    ),
)
_SYNC_DURATION = "eoslog_sync_duration_seconds"
_SYNCS = {"log": "log_syncs", "journal": "journal_writes"}


def _counted(figures: StoreFigures) -> Iterator[MetricFamily]:
    counts = figures.counts.counts
    for name, text, label, counters in _COUNTED:
        samples = [
            (f"eoslog_{name}_total", {label: value} if label else {}, counts.get(counter, 0))
            for value, counter in counters.items()
        ]
        yield MetricFamily(f"eoslog_{name}", "counter", text, samples)
    yield MetricFamily(
        _SYNC_DURATION,
        "histogram",
        "How long syncs of logs, and writes of commit journals, took.",
        [one for file, counter in _SYNCS.items() for one in _durations(counts, file, counter)],
    )


def _durations(
    counts: Mapping[str, int], file: str, counter: str
) -> Iterator[tuple[str, Labels, float]]:
    count = 0
    for bound_s in DURATION_BOUNDS_S:
        count += counts.get(f"{counter}_{round(bound_s * 1e6)}us", 0)
        yield f"{_SYNC_DURATION}_bucket", {"file": file, "le": str(bound_s)}, count
    count += counts.get(f"{counter}_slower", 0)
    yield f"{_SYNC_DURATION}_bucket", {"file": file, "le": "+Inf"}, count
    yield f"{_SYNC_DURATION}_count", {"file": file}, count
    yield f"{_SYNC_DURATION}_sum", {"file": file}, counts.get(f"{counter}_ns", 0) / 1e9
