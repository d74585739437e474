"""The internal topics of a store, written from scratch for a Kafka broker.

Kafka's coordinators read these logs from the beginning. They get what holds: the newest record of
each transactional id, the committed offsets of each group, and the group without members, since no
consumer of the store lives on, with its generation. The records of transactions that stay open
follow as they are, under the same producer ids. The store's own records are left out: names of
producers, staged jobs, blocks of producer ids.

They are written by a store of their own, of which only the logs are kept: so their indexes and
producer snapshots are made by the code that makes all others.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eoslog.bindings.record_batch import BatchHeader, decode_records, iter_batches
from eoslog.bindings.transaction_record import decode_transaction_value
from eoslog.common import clock
from eoslog.common.config import INT64_MAX
from eoslog.common.topic_name import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    VERSION_TOPIC,
)
from eoslog.common.topic_partition import TopicPartition
from eoslog.exchange.bootstrap_checkpoint import ExportedTopic
from eoslog.exchange.log_directory import LogBounds
from eoslog.fs.identity_files import new_id, write_partition_metadata
from eoslog.fs.private_files import make_directories
from eoslog.groups.log import GroupLog, GroupPartition, GroupRecord
from eoslog.groups.members import GroupMembers
from eoslog.groups.records import (
    MembersKey,
    OffsetKey,
    decode_members_key,
    decode_members_value,
    decode_offset_key,
)
from eoslog.storage.topic_registry import INTERNAL_TOPIC_PARTITIONS
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.files import AS_LEFT, StoreFiles
from eoslog.store.parts import opened_parts
from eoslog.transactions.state_key import state_partition_of, transaction_key

# Settings with which a broker creates them, where they are not its topics' defaults; one replica.
_CONFIG = {
    CONSUMER_OFFSETS_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}
_KEY_FRONT = struct.Struct(">hh")  # The type, and how many bytes of the group follow.
_READ_BYTES = 4 << 20
_RECORDS_PER_APPEND = 1000

KeyAndValue = tuple[bytes, bytes | None]


@dataclass
class InternalRecords:
    """Records for the new logs, by partition; `batches` are those of open transactions, whole."""

    states: dict[int, list[KeyAndValue]] = field(default_factory=dict)
    offsets: dict[int, list[KeyAndValue]] = field(default_factory=dict)
    batches: dict[int, list[bytes]] = field(default_factory=dict)
    transactional_ids: int = 0
    groups: int = 0
    leader_epoch: int = -1  # The highest that a committed offset names.


def read_internal_records(files: StoreFiles) -> InternalRecords:
    """Collect what holds of the internal topics of an open store."""
    found = InternalRecords()
    for transactional_id, record in files.state_log.transactions():
        if record.value is not None:
            decode_transaction_value(record.value)  # An unreadable one is an error here, not there.
            number = state_partition_of(transactional_id)
            key = transaction_key(transactional_id)
            found.states.setdefault(number, []).append((key, record.value))
            found.transactional_ids += 1
    log = files.group_offsets.log
    for groups in log.existing():
        others, found.batches[groups.number] = _read_others(groups.partition)
        own = _read_groups(log, groups, {_group_of(key) for key, _ in others}, found)
        found.offsets[groups.number] = own + others
    return found


def _read_groups(
    log: GroupLog, groups: GroupPartition, foreign: set[bytes], found: InternalRecords
) -> list[KeyAndValue]:
    """Return the committed offsets of all groups, and the records of those that are not foreign."""
    now_ms = clock.now_ms()
    records = []
    with log.caught_up(groups) as state:
        for group in state.groups():
            keys = [
                key
                for key in state.keys_of_group(group)
                if key.topic_partition.topic != VERSION_TOPIC
            ]
            generation = state.members_of(group).generation
            if not keys and not generation and group.encode() not in foreign:
                continue  # A staged job's name, of which Kafka would make an empty group.
            found.groups += 1
            if group.encode() not in foreign:
                # Kafka counts the time that offsets live from when the group lost its members: from
                # the export on. Without such a record it is each offset's own age.
                empty = GroupMembers(generation, state_timestamp_ms=now_ms)
                records.append(GroupRecord(MembersKey(group), empty))
            for where, written in state.committed(group).items():
                if where.topic != VERSION_TOPIC:
                    found.leader_epoch = max(found.leader_epoch, written.value.leader_epoch)
                    records.append(GroupRecord(OffsetKey(group, where), written.value))
    return [record.encoded() for record in records]


def _read_others(partition: UnifiedLog) -> tuple[list[KeyAndValue], list[bytes]]:
    """Return the newest records of the kinds of groups that only Kafka has, and the batches of
    open transactions.
    """
    open_since = {one.producer_id: one.first_offset for one in partition.open_transactions()}
    others: dict[bytes, bytes] = {}
    batches = []
    for header, batch in _batches(partition):
        if header.is_control:
            continue
        if header.is_transactional:
            if header.base_offset >= open_since.get(header.producer_id, INT64_MAX):
                # It gets another base offset, which no checksum covers; a client's has 0.
                batches.append(bytes(8) + batch[8:])
            continue
        for record in decode_records(batch, CONSUMER_OFFSETS_TOPIC, partition.partition):
            if record.key is not None:
                others.pop(record.key, None)
                if record.value is not None and _is_foreign(record.key, record.value):
                    others[record.key] = record.value
    return list(others.items()), batches


def _is_foreign(key: bytes, value: bytes) -> bool:
    """True for a record of a kind of group that eoslog does not have."""
    if decode_offset_key(key) is not None:
        return False
    return decode_members_key(key) is None or decode_members_value(value) is None


def _group_of(key: bytes) -> bytes:
    """Return the group in a key, which follows the type in all of them."""
    _, size_bytes = _KEY_FRONT.unpack_from(key)
    return key[_KEY_FRONT.size :][:size_bytes]


def _batches(partition: UnifiedLog) -> Iterator[tuple[BatchHeader, memoryview]]:
    offset, end = partition.log_start_offset, partition.visible_end
    while offset < end:
        data = memoryview(partition.read(offset, _READ_BYTES))
        for header in iter_batches(data):
            yield header, data[header.position_bytes :][: header.batch_bytes]
            offset = header.last_offset + 1
        if not data:
            return  # Kafka compacted away what followed.


def write_internal_topics(
    place: Path, logs: Path, records: InternalRecords
) -> tuple[list[ExportedTopic], dict[TopicPartition, LogBounds]]:
    """Write all partitions of the internal topics into the directory `logs`; not synced.

    `place` is a new directory for the store that writes them.
    """
    bounds: dict[TopicPartition, LogBounds] = {}
    with opened_parts(place, None, create=True, mode=AS_LEFT) as parts:
        partitions = parts.files.partitions
        for number, rows in records.states.items():
            partition = partitions.state_partition(number)
            _append(partition, rows)
            bounds[partition.topic_partition] = bounds_of(partition)
        for number in records.offsets.keys() | records.batches.keys():
            rows, batches = records.offsets.get(number, []), records.batches.get(number, [])
            if rows or batches:
                partition = partitions.offsets_partition(number)
                _append(partition, rows)
                for batch in batches:
                    partition.append_batch(batch, verified=True)
                bounds[partition.topic_partition] = bounds_of(partition)
        made = {one.name: one.topic_id for one in parts.files.registry.all()}
    topics = []
    for name in sorted(INTERNAL_TOPICS):
        topic_id = made.get(name) or new_id()
        topics.append(ExportedTopic(name, topic_id, INTERNAL_TOPIC_PARTITIONS, _CONFIG[name]))
        for number in range(INTERNAL_TOPIC_PARTITIONS):
            where = TopicPartition(name, number)
            if where in bounds:
                (place / str(where)).rename(logs / str(where))
            else:
                make_directories(logs / str(where))
                write_partition_metadata(logs / str(where), topic_id, sync=False)
                bounds[where] = LogBounds(0, 0)
    return topics, bounds


def bounds_of(partition: UnifiedLog) -> LogBounds:
    """Return the offsets of an open partition."""
    return LogBounds(partition.log_start_offset, partition.log_end_offset)


def _append(partition: UnifiedLog, rows: list[KeyAndValue]) -> None:
    for first in range(0, len(rows), _RECORDS_PER_APPEND):
        some = rows[first : first + _RECORDS_PER_APPEND]
        partition.append_columns([value for _, value in some], [key for key, _ in some])
