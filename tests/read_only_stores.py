"""What tests of reading without writing compare: a store's files, and what a store shows."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store_copies import copy_store

import eoslog
from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.bindings.transaction_entry import decode_transaction_value
from eoslog.common.topic_name import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from eoslog.errors import CorruptRecordError
from eoslog.fs.identity_files import META_PROPERTIES
from eoslog.storage.producer_id_range import STAGED_PRODUCER_ID_MIN
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


def check_reading(store_path: Path) -> None:
    """Compare what a reader is shown with what is there once a copy was opened, and recovered."""
    if not (store_path / META_PROPERTIES).exists():
        return
    copy = store_path.with_name(f"{store_path.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    copy_store(store_path, copy, symlinks=True)
    with unchanged(store_path), eoslog.open(store_path, read_only=True) as store:
        shown = everything_shown(store)
    with eoslog.open(copy) as store:
        expected = everything_shown(store)
    shutil.rmtree(copy)
    for name, log in expected.pop("logs").items():
        found = shown["logs"].pop(name, None)
        assert found == log, f"{name}: {found} and not {log}"
    assert shown.pop("logs") == {}
    assert shown == expected


def everything_shown(store: eoslog.Store) -> dict[str, Any]:
    """All that a store shows of its records, transactions and groups, internal topics too.

    Times of markers, and in internal topics, are left out: of what a recovery writes they are when
    it was made.
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
            is_recoveries = header.is_control or log.topic in INTERNAL_TOPICS
            times = [] if is_recoveries else [one.timestamp_ms for one in records]
            values = [(one.offset, one.key, shown_value(log.topic, one.value)) for one in records]
            batches.append((*known, header.is_control, times, values))
            offset = header.last_offset + 1
    return {
        "start": log.log_start_offset,
        "end": end,
        "stable": log.last_stable_offset,
        "batches": batches,
        "open": [repr(one) for one in log.open_transactions()],
        "aborted": [repr(one) for one in log.aborted_transactions(log.log_start_offset, end)],
        # A background thread forgets the ids of staged jobs at a time of its own.
        "producers": [
            (one.producer_id, one.producer_epoch, one.last_sequence)
            for one in log.producers()
            if one.producer_id < STAGED_PRODUCER_ID_MIN
        ],
    }


def shown_value(topic: str, value: bytes | None) -> object:
    """A record's value without times in it; a group's is in what the store shows of groups."""
    if topic == CONSUMER_OFFSETS_TOPIC:
        return value is None
    if topic != TRANSACTION_STATE_TOPIC or value is None:
        return value
    try:
        fields = decode_transaction_value(value)
    except CorruptRecordError:
        return value  # Of another kind.
    return {name: one for name, one in fields.items() if not name.endswith("_ms")}


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
