"""What replaying one partition of `__consumer_offsets` gives: committed, pending and open offsets.

- committed: group, partition -> the offset that holds, and which record it is from;
- pending: producer id -> the offsets that its open transaction will commit;
- open: group, partition -> the producer ids that have it pending.

Invariants: a producer id is in `open` of a partition exactly while it has it pending. What was
written later wins, not what was decided later: a commit marker leaves an offset alone whose record
is newer than the transaction's. A tombstone removes the offset and whatever is pending for it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from eoslog.bindings.record_batch import BatchHeader, Record
from eoslog.offset_records import OffsetKey, OffsetValue, decode_offset_key, decode_offset_value
from eoslog.topic_partition import TopicPartition

NO_PRODUCER_ID = -1
ABORT_MARKER = 0
COMMIT_MARKER = 1
_MARKER_KEY = struct.Struct(">hh")


class WrittenOffset(NamedTuple):
    """An offset as a record of the log says it, and where that record is."""

    value: OffsetValue
    record_offset: int


class RowKey(NamedTuple):
    """Where an offset stands in the state: committed (no producer id), or pending for one."""

    producer_id: int
    key: OffsetKey


class GroupOffsetsState:
    """One partition's groups. No lock, no file: whoever has it guards it."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, WrittenOffset]] = {}
        self._pending: dict[int, dict[OffsetKey, WrittenOffset]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        self._changed: set[RowKey] = set()

    # What it says.

    def groups(self) -> list[str]:
        """The groups that have an offset, committed or pending; sorted."""
        return sorted(self._committed.keys() | self._open.keys())

    def is_known(self, group: str) -> bool:
        """Whether the group has an offset, committed or pending."""
        return group in self._committed or group in self._open

    def committed(self, group: str) -> dict[TopicPartition, WrittenOffset]:
        """The committed offsets of a group."""
        return dict(self._committed.get(group, {}))

    def committed_at(self, key: OffsetKey) -> WrittenOffset | None:
        """One committed offset, or None."""
        return self._committed.get(key.group, {}).get(key.topic_partition)

    def open_partitions(self, group: str) -> set[TopicPartition]:
        """The partitions for which the group has an offset pending."""
        return set(self._open.get(group, {}))

    def open_producers(self, key: OffsetKey) -> frozenset[int]:
        """The producer ids that have an offset pending for a partition of a group."""
        return frozenset(self._open.get(key.group, {}).get(key.topic_partition, ()))

    def keys_of_group(self, group: str) -> list[OffsetKey]:
        """Whatever a group has an offset for, committed or pending; each once, sorted."""
        partitions = self._committed.get(group, {}).keys() | self._open.get(group, {}).keys()
        return [OffsetKey(group, where) for where in sorted(partitions)]

    def keys_of_topic(self, topic: str) -> list[OffsetKey]:
        """Whatever any group has an offset of a topic's for; each once, sorted."""
        return [
            key
            for group in self.groups()
            for key in self.keys_of_group(group)
            if key.topic_partition.topic == topic
        ]

    def expired(self, oldest_commit_ms: int, now_ms: int) -> Iterator[OffsetKey]:
        """The offsets committed at or before a time, or past their own expiry; none that is open.

        So it is for groups without members: each offset counts from its own commit.
        """
        for group, offsets in self._committed.items():
            for where, written in offsets.items():
                value = written.value
                old = (
                    value.commit_timestamp_ms <= oldest_commit_ms
                    if value.expire_timestamp_ms < 0
                    else value.expire_timestamp_ms <= now_ms
                )
                if old and where not in self._open.get(group, {}):
                    yield OffsetKey(group, where)

    # Replay.

    def replay(self, header: BatchHeader, records: list[Record]) -> set[str]:
        """Take a batch of the log in; the groups that it has offsets of.

        Raises CorruptRecordError for a record that is not what Kafka writes there.
        """
        if header.is_control:
            for record in records:
                self._replay_marker(header.producer_id, record)
            return set()
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        touched = set()
        for record in records:
            key = None if record.key is None else decode_offset_key(record.key)
            if key is None:
                continue
            touched.add(key.group)
            if record.value is None:
                self._remove(key)
                continue
            written = WrittenOffset(decode_offset_value(record.value), record.offset)
            if producer_id == NO_PRODUCER_ID:
                self._set_committed(key, written)
            else:
                self._set_pending(producer_id, key, written)
        return touched

    def install(self, row: RowKey, written: WrittenOffset) -> None:
        """Put in what was kept beside the log; it does not count as a change."""
        if row.producer_id == NO_PRODUCER_ID:
            self._set_committed(row.key, written)
        else:
            self._set_pending(row.producer_id, row.key, written)
        self._changed.discard(row)

    # What is to be kept beside the log.

    def row(self, row: RowKey) -> WrittenOffset | None:
        """The newest of a row; None if it is gone."""
        if row.producer_id == NO_PRODUCER_ID:
            return self.committed_at(row.key)
        return self._pending.get(row.producer_id, {}).get(row.key)

    def take_changed(self) -> set[RowKey]:
        """The rows that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def put_back_changed(self, rows: set[RowKey]) -> None:
        """These could not be kept: they are still changed."""
        self._changed |= rows

    def all_rows(self) -> set[RowKey]:
        """Every row that there is."""
        rows = {
            RowKey(NO_PRODUCER_ID, OffsetKey(group, where))
            for group, offsets in self._committed.items()
            for where in offsets
        }
        rows |= {RowKey(one, key) for one, offsets in self._pending.items() for key in offsets}
        return rows

    # How it is done.

    def _replay_marker(self, producer_id: int, record: Record) -> None:
        key = record.key or b""
        if len(key) < _MARKER_KEY.size:
            return
        _, kind = _MARKER_KEY.unpack_from(key)
        if kind not in (ABORT_MARKER, COMMIT_MARKER):
            return
        for offset_key, written in self._pending.pop(producer_id, {}).items():
            self._changed.add(RowKey(producer_id, offset_key))
            self._close(producer_id, offset_key)
            if kind == COMMIT_MARKER:
                committed = self.committed_at(offset_key)
                if committed is None or written.record_offset > committed.record_offset:
                    self._set_committed(offset_key, written)

    def _set_committed(self, key: OffsetKey, written: WrittenOffset) -> None:
        self._committed.setdefault(key.group, {})[key.topic_partition] = written
        self._changed.add(RowKey(NO_PRODUCER_ID, key))

    def _set_pending(self, producer_id: int, key: OffsetKey, written: WrittenOffset) -> None:
        self._pending.setdefault(producer_id, {})[key] = written
        producers = self._open.setdefault(key.group, {}).setdefault(key.topic_partition, set())
        producers.add(producer_id)
        self._changed.add(RowKey(producer_id, key))

    def _remove(self, key: OffsetKey) -> None:
        offsets = self._committed.get(key.group)
        if offsets is not None and offsets.pop(key.topic_partition, None) is not None:
            self._changed.add(RowKey(NO_PRODUCER_ID, key))
            if not offsets:
                del self._committed[key.group]
        for producer_id in self.open_producers(key):
            pending = self._pending[producer_id]
            del pending[key]
            if not pending:
                del self._pending[producer_id]
            self._changed.add(RowKey(producer_id, key))
            self._close(producer_id, key)

    def _close(self, producer_id: int, key: OffsetKey) -> None:
        partitions = self._open[key.group]
        producers = partitions[key.topic_partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[key.topic_partition]
            if not partitions:
                del self._open[key.group]
