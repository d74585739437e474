"""The offsets of groups, over `__consumer_offsets`: commit, fetch, delete, expire.

The log is the truth: a group's state is what replaying its partition gives, and whoever asks reads
on from where the last one stopped, so that nobody has to be told of a transaction's marker. What
was replayed is kept in LMDB with the offset up to which it is true: opening does not read the log
anew.

Invariants: a plain commit, a deletion and an expiry of one partition take turns, so that no
tombstone meets an offset it was not meant for. An offset is not durable before the records that it
says were read. No lock that a waiting reader takes is held during an append.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from eoslog.bindings.record_batch import decode_records, iter_batches
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    GroupIdNotFoundError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.group_metadata import (
    NO_GENERATION,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    as_group_metadata,
    as_offset,
    check_group_id,
    check_may_commit,
)
from eoslog.group_offsets_index import GroupOffsetsIndex
from eoslog.group_offsets_state import GroupOffsetsState, WrittenOffset
from eoslog.offset_records import OffsetKey, OffsetValue, encode_offset_key, encode_offset_value
from eoslog.partition import Partition
from eoslog.producer_state_store import StateStoreDamagedError
from eoslog.state_log import state_partition_of
from eoslog.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.topic_partition import TopicPartition, as_topic_partition

_READ_BYTES = 4 << 20
_MINUTE_MS = 60_000
_NOTHING_YET = -1
_NEVER_EXPIRES_MS = 2**63 - 1

_FindKeys = Callable[[GroupOffsetsState], list[OffsetKey]]


class GroupPartitions(Protocol):
    """What the groups' offsets need of their store."""

    def existing_offsets_partitions(self) -> list[int]:
        """The partitions of `__consumer_offsets` that have a directory."""

    def offsets_partition(self, number: int) -> Partition:
        """One of them, opened, and made if it is not there."""

    def find(self, where: TopicPartition) -> Partition | None:
        """A partition of a user's topic, opened; None if there is none."""


class _Groups:
    """One partition of `__consumer_offsets` and what it says."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.writing = threading.Lock()  # Taken first: from a look at the state to the append.
        self.lock = threading.Lock()  # Guards what follows.
        self.state = GroupOffsetsState()
        self.applied_offset = _NOTHING_YET  # Of the log; before it nothing was loaded.
        # How many transactional commits of a group are about to be written.
        self.announced: dict[str, int] = {}
        self.keeping = threading.Lock()  # One at a time writes to LMDB; taken before `lock`.
        self.kept_offset = _NOTHING_YET
        self.kept_generation = _NOTHING_YET  # Not that of what LMDB has: write all of it anew.


class GroupOffsets:
    """All groups of one store; for several threads."""

    def __init__(
        self,
        partitions: GroupPartitions,
        index: GroupOffsetsIndex,
        config: Mapping[str, int],
        sync: bool,
    ) -> None:
        self._partitions = partitions
        self._index = index
        self._retention_ms = config["offsets.retention.minutes"] * _MINUTE_MS
        self._metadata_max = config["offset.metadata.max.bytes"]
        self._sync = sync
        self._lock = threading.Lock()
        self._used: dict[int, _Groups] = {}
        self._held_back: dict[str, frozenset[OffsetKey]] = {}

    # Committing.

    def commit(
        self,
        group: str | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> None:
        """Commit offsets outside of a transaction: all of them or, on an error, none.

        They hold, and are as durable as the store's durability says, on return. Raises
        UnknownTopicOrPartitionError, OffsetMetadataTooLargeError, IllegalGenerationError,
        UnknownMemberIdError, InvalidRequestError, StoreError, ValueError, TypeError.
        """
        member = as_group_metadata(group)
        keys, values = self._columns(member, offsets)
        groups = self._groups(self.partition_of(member.group_id))
        with groups.writing:
            self._check_may_commit(groups, member)
            if not keys:
                return
            end = groups.partition.append_columns(values, keys).last_offset + 1
        if self._sync:
            groups.partition.sync_up_to(end)

    def prepare_transactional_commit(
        self,
        group: str | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> tuple[int, list[bytes], list[bytes]]:
        """What a transaction has to append to commit offsets with it: partition, keys, values.

        The partition is one of `__consumer_offsets`; the append is transactional, with the
        producer's id and epoch and without a sequence. Raises as `commit` does; nothing was written
        then.
        """
        member = as_group_metadata(group)
        keys, values = self._columns(member, offsets)
        number = self.partition_of(member.group_id)
        groups = self._groups(number)
        self._check_may_commit(groups, member)
        if keys:
            # Until the append is seen nothing of the group expires: a tombstone that came behind it
            # would take the offsets away. One that is being decided on is waited for.
            with groups.writing, groups.lock:
                announced = groups.announced.get(member.group_id, 0)
                groups.announced[member.group_id] = announced + 1
        return number, keys, values

    def prepare_staged_commit(
        self,
        group: str | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> tuple[int, list[bytes], list[bytes]]:
        """What a staged job has to append to commit offsets: partition, keys, values.

        Raises as `commit` does; nothing was written.
        """
        member = as_group_metadata(group)
        keys, values = self._columns(member, offsets)
        number = self.partition_of(member.group_id)
        self._check_may_commit(self._groups(number), member)
        return number, keys, values

    def adopt(self, number: int, keys: list[bytes], values: list[bytes], producer_id: int) -> None:
        """Append the offsets of a job that is decided, unless the partition holds them already.

        They are one batch under a producer id of their own. Not synced.
        """
        groups = self._groups(number)
        with groups.writing:
            if groups.partition.producer(producer_id) is None:
                groups.partition.append_columns(
                    values, keys, producer_id=producer_id, producer_epoch=0, base_sequence=0
                )

    def hold_back(self, application: str, keys: frozenset[OffsetKey]) -> None:
        """A job of an application is about to be decided: until `release` whoever wants stable
        offsets is told to wait for these.
        """
        if keys:
            self._held_back[application] = keys

    def release(self, application: str) -> None:
        """The offsets of the application's job are in, or will not come."""
        self._held_back.pop(application, None)

    def _is_held_back(self, key: OffsetKey) -> bool:
        return any(key in keys for keys in list(self._held_back.values()))

    def note(self, group: str, where: TopicPartition, offset: int) -> None:
        """Commit an offset that never expires, unless it is what the group has; not synced.

        The partition need not exist. Raises StoreError, CorruptRecordError.
        """
        key = OffsetKey(group, where)
        groups = self._groups(self.partition_of(group))
        with groups.writing:
            with self._caught_up(groups) as state:
                written = state.committed_at(key)
            if written is not None and written.value.offset == offset:
                return
            now_ms = time.time_ns() // 1_000_000
            value = OffsetValue(
                offset, commit_timestamp_ms=now_ms, expire_timestamp_ms=_NEVER_EXPIRES_MS
            )
            groups.partition.append_columns(
                [encode_offset_value(value)], [encode_offset_key(group, where)]
            )

    def withdraw(self, number: int, group: str | ConsumerGroupMetadata) -> None:
        """What `prepare_transactional_commit` announced will not be appended."""
        groups = self._groups(number)
        with groups.lock:
            self._heard_of(groups, as_group_metadata(group).group_id)

    @staticmethod
    def _heard_of(groups: _Groups, group: str) -> None:
        announced = groups.announced.get(group, 0)
        if announced > 1:
            groups.announced[group] = announced - 1
        else:
            groups.announced.pop(group, None)

    def partition_of(self, group: str) -> int:
        """The partition of `__consumer_offsets` with a group's offsets: Kafka's choice."""
        return state_partition_of(group)

    # Asking.

    def fetch(
        self, group: str, where: TopicPartition, require_stable: bool = False
    ) -> OffsetAndMetadata | None:
        """The committed offset of a group; None if it has none.

        With `require_stable` UnstableOffsetCommitError while a transaction that commits another one
        is not decided.
        """
        key = OffsetKey(check_group_id(group), where)
        if require_stable and self._is_held_back(key):
            raise UnstableOffsetCommitError(
                f"group {group!r} has an offset of {where} in a staged job that is decided and not "
                "complete"
            )
        groups = self._existing(self.partition_of(group))
        if groups is None:
            return None
        with self._caught_up(groups) as state:
            open_producers = state.open_producers(key)
            written = state.committed_at(key)
        if require_stable and open_producers:
            raise UnstableOffsetCommitError(
                f"group {group!r} has an offset of {where} in an undecided transaction of producer "
                f"id {', '.join(map(str, sorted(open_producers)))}"
            )
        return None if written is None else _without_times(written)

    def is_stable(self, group: str, where: TopicPartition) -> bool:
        """Whether no undecided transaction, and no job under way, commits an offset of it."""
        key = OffsetKey(group, where)
        if self._is_held_back(key):
            return False
        groups = self._existing(self.partition_of(group))
        if groups is None:
            return True
        with self._caught_up(groups) as state:
            return not state.open_producers(key)

    def all(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of every group; one that has only undecided ones has none."""
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for number in self._partitions.existing_offsets_partitions():
            with self._caught_up(self._groups(number)) as state:
                for group in state.groups():
                    committed = sorted(state.committed(group).items())
                    found[group] = {where: _without_times(one) for where, one in committed}
        return dict(sorted(found.items()))

    # Forgetting.

    def delete(self, group: str) -> None:
        """Forget a group with all its offsets, undecided ones too; durable like a commit.

        Raises GroupIdNotFoundError.
        """
        groups = self._existing(self.partition_of(check_group_id(group)))
        deleted = groups is not None and self._bury(
            groups, lambda state: state.keys_of_group(group), self._sync
        )
        if not deleted:
            raise GroupIdNotFoundError(f"there is no group {group!r}")

    def forget_topic(self, topic: str) -> None:
        """Forget all groups' offsets of a topic that is being deleted; durable like a commit."""
        for number in self._partitions.existing_offsets_partitions():
            groups = self._groups(number)
            self._bury(groups, lambda state: state.keys_of_topic(topic), self._sync)

    def expire(self, now_ms: int) -> int:
        """Forget offsets committed longer ago than `offsets.retention.minutes`; how many.

        None that an undecided transaction commits anew. Not synced: it would be done again.
        """
        oldest_ms = now_ms - self._retention_ms

        def expired(groups: _Groups) -> int:
            return self._bury(
                groups,
                lambda state: [
                    key
                    for key in state.expired(oldest_ms, now_ms)
                    if not groups.announced.get(key.group)
                ],
                sync=False,
            )

        numbers = self._partitions.existing_offsets_partitions()
        return sum(expired(self._groups(number)) for number in numbers)

    def write_again(self, number: int, upper_bound: int) -> bool:
        """Append anew, unsynced, each committed offset whose record stands below an offset.

        False, and nothing is written, while a transaction is open in the partition: a pending
        offset of it would count as older than the copy. The caller keeps transactions still.
        """
        groups = self._groups(number)
        with groups.writing:
            with self._caught_up(groups) as state:
                if groups.partition.open_transactions():
                    return False
                old = [
                    (OffsetKey(group, where), written.value)
                    for group in state.groups()
                    for where, written in state.committed(group).items()
                    if written.record_offset < upper_bound
                ]
            if old:
                groups.partition.append_columns(
                    [encode_offset_value(value) for _, value in old],
                    [encode_offset_key(*key) for key, _ in old],
                )
        return True

    # Keeping beside the log what was replayed.

    def persist(self, number: int) -> None:
        """Bring LMDB up to what a partition says, if it was used. Raises StoreFullError."""
        groups = self._used.get(number)
        if groups is None:
            return
        with groups.keeping:
            with groups.lock:
                with suppress(CorruptRecordError):
                    # Whoever asks for an offset meets it; what comes before it is worth keeping.
                    self._catch_up(groups)
                generation, offset = self._index.generation, groups.applied_offset
                whole = generation != groups.kept_generation
                state = groups.state
                rows = state.take_changed()
                if whole:
                    rows = state.all_rows()
                changes = [(row, state.row(row)) for row in rows]
            if not whole and not changes and offset == groups.kept_offset:
                return
            try:
                self._index.write(number, offset, changes, generation, whole)
            except BaseException:
                with groups.lock:
                    state.put_back_changed(rows)
                raise
            with groups.lock:
                if groups.state is state:  # Else it began anew meanwhile.
                    groups.kept_offset, groups.kept_generation = offset, generation

    def persist_all(self) -> None:
        """Bring LMDB up to what all partitions say that were used; raises the first error."""
        errors = []
        for number in list(self._used):
            try:
                self.persist(number)
            except EoslogError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    # How it is done.

    def _columns(
        self,
        member: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys and values of records that commit; what they say was read is durable by then."""
        if not isinstance(offsets, Mapping):
            raise TypeError(f"a mapping of partitions to offsets, not {type(offsets).__name__}")
        now_ms = time.time_ns() // 1_000_000
        keys, values, sources = [], [], []
        for given, offset in offsets.items():
            where = as_topic_partition(given)
            one = as_offset(offset, self._metadata_max)
            source = self._partitions.find(where)
            if source is None:
                raise UnknownTopicOrPartitionError(f"there is no partition {where}")
            value = OffsetValue(one.offset, one.leader_epoch, one.metadata, now_ms)
            keys.append(encode_offset_key(member.group_id, where))
            values.append(encode_offset_value(value))
            sources.append((source, one.offset))
        if self._sync:
            for source, position in sources:
                # Else a power cut could leave the offset and take records below it: those that
                # came in their place would never be read.
                source.sync_up_to(min(position, source.log_end_offset))
        return keys, values

    def _check_may_commit(self, groups: _Groups, member: ConsumerGroupMetadata) -> None:
        if member.generation_id == NO_GENERATION:
            return  # Anybody may, and nothing need be replayed for it.
        with self._caught_up(groups) as state:
            check_may_commit(member, state.is_known(member.group_id))

    def _bury(self, groups: _Groups, find: _FindKeys, sync: bool) -> int:
        """Write tombstones for what `find` names; how many."""
        with groups.writing:
            with self._caught_up(groups) as state:
                keys = [encode_offset_key(*key) for key in find(state)]
            if not keys:
                return 0
            end = groups.partition.append_columns([None] * len(keys), keys).last_offset + 1
        if sync:
            groups.partition.sync_up_to(end)
        return len(keys)

    def _existing(self, number: int) -> _Groups | None:
        """A partition's groups; None if nobody ever committed there."""
        groups = self._used.get(number)
        if groups is None and number in self._partitions.existing_offsets_partitions():
            groups = self._groups(number)
        return groups

    def _groups(self, number: int) -> _Groups:
        groups = self._used.get(number)
        if groups is None:
            partition = self._partitions.offsets_partition(number)
            with self._lock:
                groups = self._used.setdefault(number, _Groups(partition))
        return groups

    @contextmanager
    def _caught_up(self, groups: _Groups) -> Iterator[GroupOffsetsState]:
        """What the partition says now; nobody else looks or changes it within the block."""
        with groups.lock:
            self._catch_up(groups)
            yield groups.state

    def _catch_up(self, groups: _Groups) -> None:
        start = groups.partition.log_start_offset
        if _NOTHING_YET < groups.applied_offset < start:
            # The log lost records that nobody had asked for yet; what holds is in the others.
            groups.state, groups.applied_offset = GroupOffsetsState(), start
            groups.kept_generation = _NOTHING_YET
        if groups.applied_offset == _NOTHING_YET:
            self._load(groups)
        while groups.applied_offset < groups.partition.visible_end:
            self._replay_some(groups)

    def _load(self, groups: _Groups) -> None:
        """Begin with what LMDB has; with nothing if it has nothing."""
        number = groups.partition.partition
        groups.kept_generation = self._index.generation
        try:
            kept = self._index.read(number)
        except (StateStoreDamagedError, CorruptRecordError):
            self._index.forget(number)
            groups.kept_generation = self._index.generation
            kept = None
        offset = groups.partition.log_start_offset
        if kept is not None and kept.offset >= offset:
            for row, written in kept.rows:
                groups.state.install(row, written)
            groups.kept_offset = offset = kept.offset
        elif kept is not None:
            # The log lost its beginning since; what still holds is in what it has.
            groups.kept_generation = _NOTHING_YET
        groups.applied_offset = offset

    def _replay_some(self, groups: _Groups) -> None:
        partition = groups.partition
        data = memoryview(partition.read(groups.applied_offset, _READ_BYTES))
        for header in iter_batches(data):
            if header.last_offset < groups.applied_offset:
                continue
            batch = data[header.position_bytes : header.position_bytes + header.batch_bytes]
            try:
                records = decode_records(batch, CONSUMER_OFFSETS_TOPIC, partition.partition)
                touched = groups.state.replay(header, records)
            except CorruptRecordError as error:
                raise CorruptRecordError(
                    str(partition.path),
                    error.position_bytes,
                    f"the batch at offset {header.base_offset} is not of a group: {error.reason}",
                ) from error
            if header.is_transactional:
                for group in touched:
                    self._heard_of(groups, group)
            groups.applied_offset = header.last_offset + 1


def _without_times(written: WrittenOffset) -> OffsetAndMetadata:
    value = written.value
    return OffsetAndMetadata(value.offset, value.metadata, value.leader_epoch)
