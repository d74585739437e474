"""State from replaying one partition of `__consumer_offsets`: offsets and members of groups.

- committed: group, partition -> the offset that holds, and the offset of its record;
- pending: producer id -> the offsets that its open transaction will commit;
- open: group, partition -> the producer ids that have it pending;
- members: group -> its members, and the offset of their record.

Invariants: a producer id is in `open` of a partition exactly while it has it pending. What was
written later wins, not what was decided later: a commit marker leaves an offset alone whose record
is newer than the transaction's. A tombstone removes the offset and whatever is pending for it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from eoslog.bindings.record_batch import BatchHeader, Record
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import CorruptRecordError
from eoslog.groups.members import GroupMembers
from eoslog.groups.records import (
    MembersKey,
    OffsetKey,
    OffsetValue,
    decode_members_key,
    decode_members_value,
    decode_offset_key,
    decode_offset_value,
)

NO_PRODUCER_ID = -1
ABORT_MARKER = 0
COMMIT_MARKER = 1
_MARKER_KEY = struct.Struct(">hh")


class WrittenOffset(NamedTuple):
    """A committed offset, and the offset of its record."""

    value: OffsetValue
    record_offset: int


class WrittenMembers(NamedTuple):
    """A group's members, and the offset of their record."""

    value: GroupMembers
    record_offset: int


class RowKey(NamedTuple):
    """Key of a row of the state: an offset is committed (no producer id), or pending for one;
    members are there without a producer id.
    """

    producer_id: int
    key: OffsetKey | MembersKey


Row = tuple[RowKey, WrittenOffset | WrittenMembers]


class GroupOffsetsState:
    """The groups of one partition. Its owner guards it by a lock."""

    def __init__(self) -> None:
        self.replayed_offset = 0  # Of the log; set by the replay.
        self._committed: dict[str, dict[TopicPartition, WrittenOffset]] = {}
        self._pending: dict[int, dict[OffsetKey, WrittenOffset]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        self._members: dict[str, WrittenMembers] = {}
        # Rows that differ from those in LMDB, and the ones of them that are being written there.
        self._changed: set[RowKey] = set()
        self._being_kept: set[RowKey] = set()

    # Lookups.

    def groups(self) -> list[str]:
        """The groups that have an offset, committed or pending, or members, or had; sorted."""
        return sorted(self._committed.keys() | self._open.keys() | self._members.keys())

    def is_known(self, group: str) -> bool:
        """True if the group has an offset, committed or pending, or members, or had."""
        return group in self._committed or group in self._open or group in self._members

    def members(self, group: str) -> WrittenMembers | None:
        """The members of a group and where they stand; None if it never had any."""
        return self._members.get(group)

    def members_of(self, group: str) -> GroupMembers:
        """The members of a group."""
        written = self._members.get(group)
        return GroupMembers() if written is None else written.value

    def groups_with_members(self) -> list[str]:
        """The groups that have members now."""
        return [group for group, written in self._members.items() if written.value.members]

    def committed(self, group: str) -> dict[TopicPartition, WrittenOffset]:
        """The committed offsets of a group."""
        return dict(self._committed.get(group, {}))

    def committed_at(self, key: OffsetKey) -> WrittenOffset | None:
        """One committed offset, or None."""
        return self._committed.get(key.group, {}).get(key.topic_partition)

    def open_producers(self, key: OffsetKey) -> frozenset[int]:
        """The producer ids that have an offset pending for a partition of a group."""
        return frozenset(self._open.get(key.group, {}).get(key.topic_partition, ()))

    def offsets_to_replace(self) -> Iterator[int]:
        """The offsets of the committed records that open transactions are to replace."""
        for group, pending in self._open.items():
            for where in pending:
                written = self.committed_at(OffsetKey(group, where))
                if written is not None:
                    yield written.record_offset

    def keys_of_group(self, group: str) -> list[OffsetKey]:
        """Return the keys of all offsets of a group, committed or pending; each once, sorted."""
        partitions = self._committed.get(group, {}).keys() | self._open.get(group, {}).keys()
        return [OffsetKey(group, where) for where in sorted(partitions)]

    def keys_of_topic(self, topic: str) -> list[OffsetKey]:
        """Return the keys of all offsets of a topic, of any group; each once, sorted."""
        return [
            key
            for group in self.groups()
            for key in self.keys_of_group(group)
            if key.topic_partition.topic == topic
        ]

    def expired(self, oldest_commit_ms: int, now_ms: int) -> Iterator[OffsetKey]:
        """The offsets committed at or before a time, or past their own expiry.

        None that is open, and none of a topic that a member reads. For a group that lost its
        members the time counts from then at the earliest.
        """
        for group, offsets in self._committed.items():
            members = self.members_of(group)
            since_ms = members.state_timestamp_ms
            for where, written in offsets.items():
                value = written.value
                old = (
                    max(value.commit_timestamp_ms, since_ms) <= oldest_commit_ms
                    if value.expire_timestamp_ms < 0
                    else value.expire_timestamp_ms <= now_ms
                )
                if not old or where.topic in members.topics:
                    continue
                if where not in self._open.get(group, {}):
                    yield OffsetKey(group, where)

    def expired_groups(self, oldest_ms: int) -> list[str]:
        """The groups that lost their members at or before a time, and have no offset."""
        return [
            group
            for group, written in self._members.items()
            if not written.value.members
            and written.value.state_timestamp_ms <= oldest_ms
            and group not in self._committed
            and group not in self._open
        ]

    # Replay.

    def replay(self, header: BatchHeader, records: list[Record]) -> None:
        """Apply a batch of the log. Raises CorruptRecordError for a record that cannot be read."""
        if header.is_control:
            for record in records:
                self._replay_marker(header.producer_id, record)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for record in records:
            if record.key is None:
                continue
            key = decode_offset_key(record.key)
            if key is None:
                group = decode_members_key(record.key)
                if group is not None:
                    self._set_members(group, _members_of(record.value), record.offset)
            elif record.value is None:
                self._remove(key)
            else:
                written = WrittenOffset(decode_offset_value(record.value), record.offset)
                if producer_id == NO_PRODUCER_ID:
                    self._set_committed(key, written)
                else:
                    self._set_pending(producer_id, key, written)

    def apply(
        self, key: OffsetKey | MembersKey, value: OffsetValue | GroupMembers | None, offset: int
    ) -> None:
        """Apply a record that was just written outside of transactions, as replay would."""
        if isinstance(key, MembersKey):
            self._set_members(key.group, value if isinstance(value, GroupMembers) else None, offset)
        elif isinstance(value, OffsetValue):
            self._set_committed(key, WrittenOffset(value, offset))
        else:
            self._remove(key)

    def install(self, row: RowKey, written: WrittenOffset | WrittenMembers) -> None:
        """Put in a row of LMDB; it does not count as a change."""
        if isinstance(row.key, MembersKey):
            if isinstance(written, WrittenMembers):
                self._members[row.key.group] = written
        elif isinstance(written, WrittenOffset):
            if row.producer_id == NO_PRODUCER_ID:
                self._set_committed(row.key, written)
            else:
                self._set_pending(row.producer_id, row.key, written)
        self._changed.discard(row)

    # Rows to be kept in LMDB.

    def row(self, row: RowKey) -> WrittenOffset | WrittenMembers | None:
        """The newest of a row; None if it is gone."""
        if isinstance(row.key, MembersKey):
            return self._members.get(row.key.group)
        if row.producer_id == NO_PRODUCER_ID:
            return self.committed_at(row.key)
        return self._pending.get(row.producer_id, {}).get(row.key)

    def begin_keeping(self) -> frozenset[RowKey]:
        """Return the rows that changed since the last `kept`; one thread at a time writes them."""
        self._being_kept |= self._changed
        self._changed = set()
        return frozenset(self._being_kept)

    def kept(self) -> None:
        """Note that the rows of the last `begin_keeping` are stored; later changes are not."""
        self._being_kept = set()

    def all_rows(self) -> set[RowKey]:
        """Every row that there is."""
        rows = {
            RowKey(NO_PRODUCER_ID, OffsetKey(group, where))
            for group, offsets in self._committed.items()
            for where in offsets
        }
        rows |= {RowKey(one, key) for one, offsets in self._pending.items() for key in offsets}
        rows |= {RowKey(NO_PRODUCER_ID, MembersKey(group)) for group in self._members}
        return rows

    # An interrupt may come between any two steps, and then the batch is applied again: each step
    # can be repeated, and a change is noted before it is made.

    def _replay_marker(self, producer_id: int, record: Record) -> None:
        key = record.key or b""
        if len(key) < _MARKER_KEY.size:
            return
        _, kind = _MARKER_KEY.unpack_from(key)
        if kind not in (ABORT_MARKER, COMMIT_MARKER):
            return
        for offset_key, written in self._pending.get(producer_id, {}).items():
            self._changed.add(RowKey(producer_id, offset_key))
            if kind == COMMIT_MARKER:
                committed = self.committed_at(offset_key)
                if committed is None or written.record_offset > committed.record_offset:
                    self._set_committed(offset_key, written)
            self._close(producer_id, offset_key)
        # Last: a repetition after an interrupt finds all of it.
        self._pending.pop(producer_id, None)

    def _set_members(self, group: str, members: GroupMembers | None, offset: int) -> None:
        if members is None and group not in self._members:
            return
        self._changed.add(RowKey(NO_PRODUCER_ID, MembersKey(group)))
        if members is not None:
            self._members[group] = WrittenMembers(members, offset)
        else:
            del self._members[group]

    def _set_committed(self, key: OffsetKey, written: WrittenOffset) -> None:
        self._changed.add(RowKey(NO_PRODUCER_ID, key))
        self._committed.setdefault(key.group, {})[key.topic_partition] = written

    def _set_pending(self, producer_id: int, key: OffsetKey, written: WrittenOffset) -> None:
        self._changed.add(RowKey(producer_id, key))
        self._pending.setdefault(producer_id, {})[key] = written
        producers = self._open.setdefault(key.group, {}).setdefault(key.topic_partition, set())
        producers.add(producer_id)

    def _remove(self, key: OffsetKey) -> None:
        offsets = self._committed.get(key.group)
        if offsets is not None:
            if key.topic_partition in offsets:
                self._changed.add(RowKey(NO_PRODUCER_ID, key))
                del offsets[key.topic_partition]
            if not offsets:
                del self._committed[key.group]
        for producer_id in self.open_producers(key):
            self._changed.add(RowKey(producer_id, key))
            pending = self._pending.get(producer_id, {})
            pending.pop(key, None)
            if not pending:
                self._pending.pop(producer_id, None)
            self._close(producer_id, key)
        self._forget_closed(key)

    def _close(self, producer_id: int, key: OffsetKey) -> None:
        self._open.get(key.group, {}).get(key.topic_partition, set()).discard(producer_id)
        self._forget_closed(key)

    def _forget_closed(self, key: OffsetKey) -> None:
        partitions = self._open.get(key.group)
        if partitions is None:
            return
        if key.topic_partition in partitions and not partitions[key.topic_partition]:
            del partitions[key.topic_partition]
        if not partitions:
            del self._open[key.group]


def _members_of(value: bytes | None) -> GroupMembers | None:
    """Decode the members in a record; None for a record of a foreign kind."""
    if value is None:
        return None
    try:
        return decode_members_value(value)
    except CorruptRecordError:
        return None
