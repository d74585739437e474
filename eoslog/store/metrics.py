"""Metrics of a store: `Store.metrics`. Nothing is opened or read for it."""

from contextlib import suppress
from typing import Any

from eoslog.errors import LogClosedError
from eoslog.storage.engine import Engine
from eoslog.storage.process_journal import ProcessJournal
from eoslog.storage.producer_rows import count_producer_rows
from eoslog.storage.unified_log import UnifiedLog

_NAMES = (
    "partitions",
    "partitions_failed",
    "segments",
    "size_bytes",
    "producers_in_memory",
    "producers_evicted",
    "producer_memory_bytes",
)


def store_metrics(
    engine: Engine, journal: ProcessJournal | None, checkpointer: dict[str, Any]
) -> dict[str, Any]:
    """Return counts and sizes; `partitions` and what follows it cover the open partitions alone."""
    return {
        "topics": len(engine.topics()),
        "partitions_unrecovered": len(engine.partitions.unrecovered),
        "cut_bytes": engine.partitions.cut_bytes,
        **_sums(engine),
        "producer_rows": count_producer_rows(engine.lmdb),
        "damaged_files": list(engine.checkpoints.damaged),
        "journal": journal.metrics() if journal is not None else {},
        "checkpointer": checkpointer,
    }


def _sums(engine: Engine) -> dict[str, int]:
    """Return the sums over the open partitions, without those of a topic that was just deleted."""
    of_each = []
    for partition in engine.partitions.opened():
        with suppress(LogClosedError):
            of_each.append(_figures(partition))
    return {name: sum(one[name] for one in of_each) for name in _NAMES}


def _figures(partition: UnifiedLog) -> dict[str, int]:
    values = (
        1,
        int(partition.failed),
        partition.segment_count,
        partition.size_bytes,
        partition.log.producer_count,
        partition.log.evicted_producer_count,
        partition.log.producer_memory_bytes,
    )
    return dict(zip(_NAMES, values, strict=True))
