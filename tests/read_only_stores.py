"""What tests of reading without writing compare: a store's files, and what a store shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import eoslog
from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import parts_of

_READ_BYTES = 1 << 20


def files_of(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory: mode, size, times of the last change, content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([root, *root.rglob("*")]):
        state = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        times = state.st_mtime_ns, state.st_ctime_ns
        found[str(path.relative_to(root))] = (state.st_mode, state.st_size, *times, content)
    return found


@contextmanager
def unchanged(root: Path) -> Iterator[None]:
    """A block that leaves all files of a directory as they are."""
    before = files_of(root)
    yield
    assert files_of(root) == before


def everything_shown(store: eoslog.Store) -> dict[str, Any]:
    """All that a store shows of its records, transactions and groups, internal topics too.

    Times of markers are left out: those of a recovery are when it was made.
    """
    topics = store.topics()
    listings = store.transactions()
    partitions = parts_of(store).files.partitions
    logs = [
        one
        for topic in parts_of(store).files.registry.all()
        for where in topic.topic_partitions()
        if partitions.has_files(where) and (one := partitions.find_of_any_topic(where)) is not None
    ]
    return {
        "topics": topics,
        "groups": store.groups(),
        "transactions": listings,
        "logs": {str(one.topic_partition): _shown_of(one) for one in logs if one.log_end_offset},
        "committed": {name: _committed(store, name) for name in topics},
    }


def _shown_of(log: UnifiedLog) -> dict[str, Any]:
    batches = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        data = memoryview(log.read(offset, _READ_BYTES))
        for header in iter_batches(data):
            whole = data[header.position_bytes : header.position_bytes + header.batch_bytes]
            records = decode_records(whole, log.topic, log.partition)
            known = header.base_offset, header.producer_id, header.producer_epoch
            values = [(one.offset, one.key, one.value) for one in records]
            times = [] if header.is_control else [one.timestamp_ms for one in records]
            # A record of an internal topic that a recovery writes has the time of that in it.
            hidden = log.topic.startswith("__") and header.base_offset > 0
            batches.append((*known, header.is_control, *(() if hidden else (values, times))))
            offset = header.last_offset + 1
    return {
        "start": log.log_start_offset,
        "end": end,
        "stable": log.last_stable_offset,
        "batches": batches,
        "open": [repr(one) for one in log.open_transactions()],
        "aborted": [repr(one) for one in log.aborted_transactions(log.log_start_offset, end)],
        "producers": [
            (one.producer_id, one.producer_epoch, one.last_sequence) for one in log.producers()
        ],
    }


def _committed(store: eoslog.Store, topic: str) -> list[tuple[int, int, bytes | None]]:
    consumer = store.consumer()
    parts = range(store.topics()[topic].partitions)
    where = [eoslog.TopicPartition(topic, number) for number in parts]
    consumer.assign(where)
    ends = consumer.end_offsets(where)
    found: list[tuple[int, int, bytes | None]] = []
    while any(consumer.position(one) < ends[one] for one in where):
        read = consumer.poll(timeout=0.0, max_records=10_000)
        if not read:
            break
        found += [(one.partition, one.offset, one.value) for one in read]
    return sorted(found)
