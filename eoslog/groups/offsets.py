"""The offsets of groups, over `__consumer_offsets`: commit, fetch, delete, expire.

The state of a group is the replay of its partition of the log: see `group_log`.

Invariants: a commit, a deletion and an expiry of one partition take turns, in all processes, so
that no tombstone meets an offset it was not meant for. A member of a generation that commits is
one when the offset is written, not only when the call began. An offset is of the topic that it was
checked for, or is not written: none is written after the tombstones of a deletion, for a new topic
of the name. An offset is not durable before the records below it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from eoslog.bindings.client_transaction import OffsetsTarget
from eoslog.bindings.lock_block import LockBlock
from eoslog.bindings.shared_page import SharedPage
from eoslog.bindings.transaction_entry import TransactionPart
from eoslog.common import clock
from eoslog.common.config import NO_LIMIT
from eoslog.common.topic_name import CONSUMER_OFFSETS_TOPIC
from eoslog.common.topic_partition import TopicPartition, as_topic_partition
from eoslog.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from eoslog.groups.log import GroupLog, GroupPartition, GroupRecord
from eoslog.groups.members import GroupMembers
from eoslog.groups.metadata import (
    NO_GENERATION,
    NO_MEMBER_ID,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    as_group_metadata,
    as_offset,
    check_group_id,
    check_may_commit,
)
from eoslog.groups.offsets_index import GroupOffsetsIndex
from eoslog.groups.offsets_state import GroupOffsetsState, WrittenOffset
from eoslog.groups.records import (
    MembersKey,
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from eoslog.storage.opened_partitions import OpenedPartitions
from eoslog.storage.unified_log import UnifiedLog

# Of the batch of a staged job's offsets, and of its marker.
STAGED_OFFSETS_EPOCH = 0
_STAGED_MARKER_EPOCH = 1
_MINUTE_MS = 60_000
_BEFORE_ALL_MS = -(2**63)

_FindKeys = Callable[[GroupOffsetsState], list[OffsetKey | MembersKey]]
TopicIds = Mapping[TopicPartition, str]


class OffsetCommit(NamedTuple):
    """Records that commit offsets when appended, and the ids of their topics.

    `number` is a partition of `__consumer_offsets`.
    """

    number: int
    keys: list[bytes]
    values: list[bytes]
    topic_ids: TopicIds


class GroupOffsets:
    """Offsets of all groups of one store; for several threads."""

    def __init__(
        self,
        partitions: OpenedPartitions,
        index: GroupOffsetsIndex,
        config: Mapping[str, int],
        sync: bool,
        shared: SharedPage,
    ) -> None:
        self.log = GroupLog(partitions, index, sync, shared)
        self._partitions = partitions
        self._retention_minutes = config["offsets.retention.minutes"]
        self._metadata_max = config["offset.metadata.max.bytes"]
        self._sync = sync
        self._is_held_back: Callable[[OffsetKey], bool] = lambda key: False
        self._find_applications: Callable[[], Callable[[str], bool]] = lambda: lambda group: False
        self._expel_dead: Callable[[str], object] = lambda group: None

    def watch_members(self, expel_dead: Callable[[str], object]) -> None:
        """Call `expel_dead(group)` before a call is refused, or an offset stays, because of the
        group's members.
        """
        self._expel_dead = expel_dead

    def ask_staged(
        self,
        is_held_back: Callable[[OffsetKey], bool],
        find_applications: Callable[[], Callable[[str], bool]],
    ) -> None:
        """Use the state of staged jobs: `is_held_back` is True of an offset of a job that is
        decided and did not write it yet. `find_applications` returns a function that is True of a
        group with the name of an application: such a group does not expire.
        """
        self._is_held_back = is_held_back
        self._find_applications = find_applications

    # Committing.

    def commit(
        self,
        group: str | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> None:
        """Commit offsets outside of a transaction: all of them or, on an error, none.

        On return they hold, and are as durable as the store's durability. Raises
        UnknownTopicOrPartitionError, OffsetMetadataTooLargeError, IllegalGenerationError,
        UnknownMemberIdError, InvalidRequestError, StoreError, ValueError, TypeError.
        """
        member = as_group_metadata(group)
        values, topic_ids = self._values(member, offsets)
        groups = self.log.of_group(member.group_id)
        with self.log.writing(groups):
            self._check_may_commit(groups, member, topic_ids)
            if not values:
                return
            self._check_still_there(topic_ids)
            records = [
                GroupRecord(OffsetKey(member.group_id, where), value)
                for where, value in values.items()
            ]
            result = self.log.append(groups, records)
        self.log.sync(groups, result)

    def prepare_commit(
        self,
        group: str | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> OffsetCommit:
        """Prepare the records that a transaction, or a staged job, has to append to commit offsets.

        A transaction appends them with the producer's id and epoch and without a sequence, in a
        `writing` block, after `check_prepared` in it. Raises as `commit` does; nothing was written
        then.
        """
        member = as_group_metadata(group)
        values, topic_ids = self._values(member, offsets)
        number = self.log.partition_of(member.group_id)
        self._check_may_commit(self.log.of(number), member, topic_ids, transactional=True)
        keys = [encode_offset_key(member.group_id, where) for where in values]
        return OffsetCommit(number, keys, [*map(encode_offset_value, values.values())], topic_ids)

    def writing(self, number: int) -> AbstractContextManager[object]:
        """Return a block for the append of what `prepare_commit` answered.

        Within it no partition goes from one member to another, and nothing of the groups expires: a
        tombstone after the append would remove the offsets.
        """
        return self.log.writing(self.log.of(number))

    def target_of(
        self,
        group: str | ConsumerGroupMetadata,
        prepared: OffsetCommit,
        part: TransactionPart,
        topics_count: int,
    ) -> OffsetsTarget | None:
        """Return where more offsets of the same partitions may be appended without a look at the
        group; None if there has to be one: a member's claim is checked each time, and the records
        below an offset may have to be synced. `topics_count` was read before the preparation.
        """
        if self._sync or _claims(as_group_metadata(group)):
            return None
        return self.log.offsets_target(prepared.number, part, prepared.keys, topics_count)

    def check_prepared(
        self, number: int, group: str | ConsumerGroupMetadata, topic_ids: TopicIds
    ) -> None:
        """Check, in a `writing` block, that what `prepare_commit` answered may still be appended.

        Raises IllegalGenerationError or UnknownMemberIdError if the member is none any more,
        UnknownTopicOrPartitionError if a topic does not have the prepared id any more.
        """
        member = as_group_metadata(group)
        self._check_may_commit(self.log.of(number), member, topic_ids, transactional=True)
        self._check_still_there(topic_ids)

    def committing_all(
        self, partitions: Mapping[str | ConsumerGroupMetadata, Iterable[TopicPartition]]
    ) -> LockBlock[None]:
        """Return a block like that of `writing`, for several groups whose members were checked: for
        the decision of a job that commits offsets of these partitions for them.

        It takes no lock for groups without a claim of membership.
        """
        claiming = [
            (self.log.partition_of(one.group_id), one, set(of))
            for one, of in ((as_group_metadata(group), of) for group, of in partitions.items())
            if _claims(one)
        ]

        def check(*_: object) -> None:
            for number, member, of in claiming:
                self._check_may_commit(self.log.of(number), member, of, transactional=True)

        numbers = sorted({number for number, _, _ in claiming})
        locks = (self.log.writing(self.log.of(number)) for number in numbers)
        return LockBlock(*locks, prepare=check)

    def adopt(
        self,
        number: int,
        columns: Callable[[], tuple[list[bytes], list[bytes]]],
        producer_id: int,
    ) -> None:
        """Append the offsets of a job that is decided, unless the partition holds them already.

        They are a transaction of one batch, with a producer id of its own and a commit marker:
        Kafka's coordinator takes a batch with a producer id for a transaction in any case.
        `columns` returns keys and values; it is called with the lock held, so that no deletion of a
        topic comes between. Not synced.
        """
        groups = self.log.of(number)
        partition = groups.partition
        with self.log.writing(groups):
            if partition.producer(producer_id) is None:
                keys, values = columns()
                if not keys:
                    return
                partition.append_columns(
                    values,
                    keys,
                    producer_id=producer_id,
                    producer_epoch=STAGED_OFFSETS_EPOCH,
                    base_sequence=0,
                    transactional=True,
                )
            # If the batch was there, its marker may be missing; a second one is not written.
            commit_staged_offsets(partition, producer_id)

    def is_staged_batch_in(self, number: int, producer_id: int) -> bool:
        """True if a partition has the batch of a staged job's offsets, with its marker or not."""
        return self._staged_epoch(number, producer_id) is not None

    def are_staged_committed(self, number: int, producer_id: int) -> bool:
        """True if a partition has the batch of a staged job's offsets and its marker."""
        return self._staged_epoch(number, producer_id) == _STAGED_MARKER_EPOCH

    def _staged_epoch(self, number: int, producer_id: int) -> int | None:
        where = TopicPartition(CONSUMER_OFFSETS_TOPIC, number)
        if not self._partitions.has_files(where):
            return None
        found = self.log.of(number).partition.producer(producer_id)
        return None if found is None else found.producer_epoch

    def ensure_group(self, group: str) -> None:
        """Create a group without members and offsets, unless it exists; not synced.

        Raises StoreError, CorruptRecordError.
        """
        groups = self.log.of_group(group)
        with self.log.writing(groups):
            with self.log.caught_up(groups) as state:
                is_there = state.members(group) is not None
            if not is_there:
                self.log.append(groups, [empty_group(group)])

    # Asking.

    def fetch(
        self, group: str, where: TopicPartition, require_stable: bool = False
    ) -> OffsetAndMetadata | None:
        """The committed offset of a group; None if it has none.

        With `require_stable`, raises UnstableOffsetCommitError while a transaction that commits
        another one is not decided.
        """
        key = OffsetKey(check_group_id(group), where)
        if require_stable and self._is_held_back(key):
            raise UnstableOffsetCommitError(
                f"group {group!r} has an offset of {where} in a staged job that is decided and not "
                "complete"
            )
        groups = self.log.if_there(group)
        if groups is None:
            return None
        with self.log.caught_up(groups) as state:
            open_producers = state.open_producers(key)
            written = state.committed_at(key)
        if require_stable and open_producers:
            raise UnstableOffsetCommitError(
                f"group {group!r} has an offset of {where} in an undecided transaction of producer "
                f"id {', '.join(map(str, sorted(open_producers)))}"
            )
        return None if written is None else _without_times(written)

    def is_stable(self, group: str, where: TopicPartition) -> bool:
        """True if no undecided transaction, and no incomplete job, commits an offset of it."""
        key = OffsetKey(group, where)
        if self._is_held_back(key):
            return False
        groups = self.log.if_there(group)
        if groups is None:
            return True
        with self.log.caught_up(groups) as state:
            return not state.open_producers(key)

    def all(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of every group; one that has only undecided ones, or only members,
        has none.
        """
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for groups in self.log.existing():
            with self.log.caught_up(groups) as state:
                for group in state.groups():
                    committed = sorted(state.committed(group).items())
                    found[group] = {where: _without_times(one) for where, one in committed}
        return dict(sorted(found.items()))

    # Forgetting.

    def delete(self, group: str) -> None:
        """Forget a group with all its offsets, undecided ones too; durable like a commit.

        Raises GroupIdNotFoundError, NonEmptyGroupError.
        """

        def keys(state: GroupOffsetsState) -> list[OffsetKey | MembersKey]:
            written = state.members(group)
            if written is None:
                return [*state.keys_of_group(group)]
            if written.value.members:
                raise NonEmptyGroupError(
                    f"group {group!r} has {len(written.value.members)} members"
                )
            return [*state.keys_of_group(group), MembersKey(group)]

        groups = self.log.if_there(check_group_id(group))
        count = 0
        if groups is not None:
            with self.log.writing(groups):
                self._expel_dead(group)
                count = self._bury(groups, keys, sync=True)
        if not count:
            raise GroupIdNotFoundError(f"there is no group {group!r}")

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget a group's offsets of partitions, undecided ones too; durable like a commit.

        Raises GroupIdNotFoundError, GroupSubscribedToTopicError, UnknownTopicOrPartitionError.
        """
        wanted = {as_topic_partition(one) for one in partitions}
        for where in wanted:
            self._source_of(where)

        def keys(state: GroupOffsetsState) -> list[OffsetKey | MembersKey]:
            if not state.is_known(group):
                raise GroupIdNotFoundError(f"there is no group {group!r}")
            for topic in sorted({where.topic for where in wanted}):
                if topic in state.members_of(group).topics:
                    raise GroupSubscribedToTopicError(
                        f"group {group!r} has members that read topic {topic!r}"
                    )
            return [key for key in state.keys_of_group(group) if key.topic_partition in wanted]

        groups = self.log.if_there(check_group_id(group))
        if groups is None:
            raise GroupIdNotFoundError(f"there is no group {group!r}")
        with self.log.writing(groups):
            self._expel_dead(group)
            self._bury(groups, keys, sync=True)

    def forget_topic(self, topic: str) -> None:
        """Forget all groups' offsets of a topic that is being deleted; durable like a commit."""
        for groups in self.log.existing():
            self._bury(groups, lambda state: [*state.keys_of_topic(topic)], sync=True)

    def expire(self, now_ms: int) -> int:
        """Forget offsets committed longer ago than `offsets.retention.minutes`, or past an expiry
        of their own. Returns their count.

        An offset stays while an undecided transaction commits another one, or a member of the group
        reads its topic; a dead one's session ends here. Groups without members and offsets go too,
        unless they have the name of an application. Not synced: it would be done again.
        """
        is_application = self._find_applications()
        oldest_ms = _BEFORE_ALL_MS
        if self._retention_minutes != NO_LIMIT:
            oldest_ms = now_ms - self._retention_minutes * _MINUTE_MS

        def keys(state: GroupOffsetsState) -> list[OffsetKey | MembersKey]:
            return [*state.expired(oldest_ms, now_ms)]

        def groups_gone(state: GroupOffsetsState) -> list[OffsetKey | MembersKey]:
            gone = state.expired_groups(oldest_ms)
            return [MembersKey(group) for group in gone if not is_application(group)]

        count = 0
        for groups in self.log.existing():
            with self.log.caught_up(groups) as state:
                names = state.groups_with_members()
            for name in names:
                self._expel_dead(name)
            count += self._bury(groups, keys, sync=False)
            self._bury(groups, groups_gone, sync=False)
        return count

    # How it is done.

    def _values(
        self,
        member: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    ) -> tuple[dict[TopicPartition, OffsetValue], TopicIds]:
        """Return the values that commit, and the ids of their topics. The records that the offsets
        count as read are durable on return.
        """
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets must map partitions to offsets, got {type(offsets).__name__}")
        now_ms = clock.now_ms()
        values: dict[TopicPartition, OffsetValue] = {}
        topic_ids: dict[TopicPartition, str] = {}
        for given, offset in offsets.items():
            where = as_topic_partition(given)
            one = as_offset(offset, self._metadata_max)
            source = self._source_of(where)
            if source.topic_id != member.topic_ids.get(where.topic, source.topic_id):
                raise _another_topic(where)
            if self._sync:
                # Else a power cut could keep the offset and take records below it: later ones with
                # their offsets would never be read.
                source.make_durable(min(one.offset, source.log_end_offset))
            topic_ids[where] = source.topic_id
            values[where] = OffsetValue(one.offset, one.leader_epoch, one.metadata, now_ms)
        return values, topic_ids

    def _source_of(self, where: TopicPartition) -> UnifiedLog:
        """Return a partition that offsets may be of. Raises UnknownTopicOrPartitionError."""
        source = self._partitions.find(where)
        if source is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {where}")
        return source

    def _check_still_there(self, topic_ids: TopicIds) -> None:
        """Refuse offsets of a topic that was deleted since they were checked. Called in a `writing`
        block: a deletion that is not seen here buries what is written. The partitions were open
        when they were checked, and are until they are deleted.
        """
        for where, topic_id in topic_ids.items():
            source = self._partitions.if_open(where)
            if source is None or source.topic_id != topic_id:
                raise _another_topic(where)

    def _check_may_commit(
        self,
        groups: GroupPartition,
        who: ConsumerGroupMetadata,
        partitions: Collection[TopicPartition],
        *,
        transactional: bool = False,
    ) -> None:
        claims = _claims(who)
        if transactional and not claims:
            return  # Allowed without a replay.
        members, known = self._members(groups, who.group_id)
        if members.members and not claims:
            self._expel_dead(who.group_id)
            members, known = self._members(groups, who.group_id)
        check_may_commit(who, partitions, members, known, transactional)

    def _members(self, groups: GroupPartition, group: str) -> tuple[GroupMembers, bool]:
        """Return the members of a group, and True if it exists."""
        with self.log.caught_up(groups) as state:
            return state.members_of(group), state.is_known(group)

    def _bury(self, groups: GroupPartition, find: _FindKeys, sync: bool) -> int:
        """Write tombstones for the keys that `find` returns. Returns their count.

        A group that has nothing left gets one of its own: without it Kafka keeps an empty group.
        """
        with self.log.writing(groups):
            with self.log.caught_up(groups) as state:
                keys = find(state)
                left = _left_with_nothing(state, keys)
            if not keys:
                return 0
            records = [GroupRecord(key, None) for key in [*keys, *left]]
            result = self.log.append(groups, records)
        if sync:
            self.log.sync(groups, result)
        return len(keys)


def commit_staged_offsets(partition: UnifiedLog, producer_id: int) -> bool:
    """Write the commit marker of a staged job's offsets; False if it is there already."""
    result = partition.append_marker(producer_id, _STAGED_MARKER_EPOCH, None, True)
    return not result.duplicate


def empty_group(group: str) -> GroupRecord:
    """The record of a group without members."""
    now_ms = clock.now_ms()
    return GroupRecord(MembersKey(group), GroupMembers(state_timestamp_ms=now_ms))


def _left_with_nothing(
    state: GroupOffsetsState, keys: Collection[OffsetKey | MembersKey]
) -> list[MembersKey]:
    """The groups without members that have no offset but these."""
    gone = set(keys)
    groups = dict.fromkeys(key.group for key in keys if isinstance(key, OffsetKey))
    return [
        MembersKey(group)
        for group in groups
        if state.members(group) is None and gone.issuperset(state.keys_of_group(group))
    ]


def _another_topic(where: TopicPartition) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(
        f"{where}: the topic was deleted since it was read; its offset does not apply to a new "
        "topic of the name"
    )


def _claims(who: ConsumerGroupMetadata) -> bool:
    """True if it has a member id or a generation."""
    return (
        who.generation_id != NO_GENERATION
        or who.member_id != NO_MEMBER_ID
        or who.group_instance_id is not None
    )


def _without_times(written: WrittenOffset) -> OffsetAndMetadata:
    value = written.value
    return OffsetAndMetadata(value.offset, value.metadata, value.leader_epoch)
