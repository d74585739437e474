"""Metadata of a commit: the member that commits a group's offsets, the offsets, and their texts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from eoslog.common.arguments import whole_number
from eoslog.common.config import INT64_MAX
from eoslog.common.record_fields import STRING_BYTES_MAX
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
)
from eoslog.groups.members import GroupMembers, Member
from eoslog.groups.records import NO_LEADER_EPOCH

NO_GENERATION = -1
NO_MEMBER_ID = ""
_INT32_MAX = 2**31 - 1
# The same few groups are named again and again.
_GROUPS_REMEMBERED = 1024


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the record to be read next, and a text of the application."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A group, and which member of which generation of it commits; `Consumer.group_metadata` makes
    it. Can be pickled.

    A consumer that was assigned its partitions by hand belongs to no generation: -1. That of a
    subscribed one is the group's at its last poll. `topic_ids` are those of the topics that it
    reads: what it read of one says nothing of another that was made under its name.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


def as_group_metadata(group: object) -> ConsumerGroupMetadata:
    """The metadata of a group, or of a group's name. Raises TypeError or InvalidRequestError."""
    if isinstance(group, ConsumerGroupMetadata):
        check_group_id(group.group_id)
        if not isinstance(group.topic_ids, Mapping):
            raise TypeError(f"topic_ids must be a mapping, got {type(group.topic_ids).__name__}")
        return group
    return _without_member(check_group_id(group))


@lru_cache(_GROUPS_REMEMBERED)
def _without_member(group_id: str) -> ConsumerGroupMetadata:
    return ConsumerGroupMetadata(group_id)


def check_group_id(group: object) -> str:
    """Return the name of a group. Raises TypeError, or InvalidRequestError if it is not allowed."""
    if not isinstance(group, str):
        raise TypeError(f"a group's name must be a str, got {type(group).__name__}")
    return _checked_name(group)


@lru_cache(_GROUPS_REMEMBERED)
def _checked_name(group: str) -> str:
    if not group:
        raise InvalidRequestError("a group's name must not be empty")
    try:
        size_bytes = len(group.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"group name {group!r:.80}: {error}") from error
    if size_bytes > STRING_BYTES_MAX:
        raise InvalidRequestError(
            f"a group's name must have at most {STRING_BYTES_MAX} bytes, got {size_bytes}"
        )
    return group


def as_offset(given: object, metadata_characters_max: int) -> OffsetAndMetadata:
    """A number, or an OffsetAndMetadata, as the latter.

    Raises TypeError, ValueError, or OffsetMetadataTooLargeError: the limit counts UTF-16 units, as
    Java's strings do.
    """
    if type(given) is int and 0 <= given <= INT64_MAX:
        return OffsetAndMetadata(given)
    if not isinstance(given, OffsetAndMetadata):
        given = OffsetAndMetadata(whole_number(given, "an offset"))
    offset = whole_number(given.offset, "an offset")
    leader_epoch = whole_number(given.leader_epoch, "a leader epoch")
    if not 0 <= offset <= INT64_MAX:
        raise ValueError(f"offset {offset} is outside [0, {INT64_MAX}]")
    if not NO_LEADER_EPOCH <= leader_epoch <= _INT32_MAX:
        raise ValueError(f"leader_epoch {leader_epoch} is outside [-1, {_INT32_MAX}]")
    if not isinstance(given.metadata, str):
        raise TypeError(f"metadata must be a str, got {type(given.metadata).__name__}")
    characters = len(given.metadata.encode("utf-16-le")) // 2
    if characters > metadata_characters_max:
        raise OffsetMetadataTooLargeError(
            f"metadata must have at most {metadata_characters_max} characters, got {characters}"
        )
    return OffsetAndMetadata(offset, given.metadata, leader_epoch)


def replaced_text(group_id: str, member_id: str, successor: Member) -> str:
    """Return the reason for which a static member is refused whose place another one has taken."""
    return (
        f"group {group_id!r}: {successor.member_id!r} has taken the place of {member_id!r}, with "
        f"the same group.instance.id {successor.instance_id!r}"
    )


def check_may_commit(
    who: ConsumerGroupMetadata,
    partitions: Collection[TopicPartition],
    members: GroupMembers,
    known: bool,
    transactional: bool,
) -> None:
    """Raise Kafka's errors for a commit of offsets of these partitions. Also refuse offsets of
    partitions that another member holds, which Kafka does not. `known`: the group has members or
    offsets, or had.

    A caller with a generation or a member id must be a member, in its current generation. A caller
    without either commits to a group without members, and in a transaction to any group: the
    transactional id alone fences it.
    """
    generation_id = whole_number(who.generation_id, "a generation")
    if not members.members:
        if generation_id < 0:
            return
        if not known:
            raise IllegalGenerationError(
                f"generation {generation_id} of group {who.group_id!r}, which does not exist"
            )
        raise UnknownMemberIdError(
            f"group {who.group_id!r} has no members; {who.member_id!r} of generation "
            f"{generation_id} commits"
        )
    if generation_id < 0 and not who.member_id and who.group_instance_id is None:
        if transactional:
            return
        raise UnknownMemberIdError(
            f"group {who.group_id!r} has {len(members.members)} members, and this consumer is none "
            "of them: it has partitions assigned by hand"
        )
    member = members.get(who.member_id)
    if member is None:
        successor = members.of_instance(who.group_instance_id)
        if successor is not None:
            raise FencedInstanceIdError(replaced_text(who.group_id, who.member_id, successor))
        raise UnknownMemberIdError(
            f"{who.member_id!r} is not a member of group {who.group_id!r}, or not any more: it "
            "left, its process died, or it did not poll for max.poll.interval.ms"
        )
    if generation_id != member.generation:
        raise IllegalGenerationError(
            f"{who.member_id!r} commits for generation {generation_id} of group "
            f"{who.group_id!r}, and is in {member.generation}: partitions may have gone to others"
        )
    if not member.held.issuperset(partitions):
        for other in members.members:
            theirs = other.held.intersection(partitions)
            if theirs and other is not member:
                raise IllegalGenerationError(
                    f"{min(theirs)} is read by {other.member_id!r} of group {who.group_id!r}, and "
                    f"{who.member_id!r} has given it up: what it read before is not committed now"
                )
