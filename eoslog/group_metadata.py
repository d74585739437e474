"""Who commits a group's offsets, and what is committed: a position and a text beside it."""

from dataclasses import dataclass
from typing import NamedTuple

from eoslog.errors import (
    IllegalGenerationError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
)
from eoslog.offset_records import NO_LEADER_EPOCH, STRING_BYTES_MAX
from eoslog.whole_number import whole_number

NO_GENERATION = -1
NO_MEMBER_ID = ""
_OFFSET_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: that of the record to be read next, and a text of the application's."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A group, and which member of which generation of it commits; `Consumer.group_metadata` makes
    it. Can be pickled.

    A consumer that was assigned its partitions by hand belongs to no generation: -1.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None


def as_group_metadata(group: object) -> ConsumerGroupMetadata:
    """The group as callers name it. TypeError, or InvalidRequestError for an impossible name."""
    if isinstance(group, ConsumerGroupMetadata):
        check_group_id(group.group_id)
        return group
    return ConsumerGroupMetadata(check_group_id(group))


def check_group_id(group: object) -> str:
    """The name, if a group may have it. TypeError or InvalidRequestError."""
    if not isinstance(group, str):
        raise TypeError(f"a group's name is a str, not {type(group).__name__}")
    if not group:
        raise InvalidRequestError("a group's name must not be empty")
    try:
        size_bytes = len(group.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"group name {group!r:.80}: {error}") from error
    if size_bytes > STRING_BYTES_MAX:
        raise InvalidRequestError(
            f"a group's name of {size_bytes} bytes; at most {STRING_BYTES_MAX} are allowed"
        )
    return group


def as_offset(given: object, metadata_characters_max: int) -> OffsetAndMetadata:
    """A number, or an OffsetAndMetadata, as the latter.

    TypeError, ValueError, or OffsetMetadataTooLargeError: the limit counts UTF-16 units, as Java's
    strings do.
    """
    if not isinstance(given, OffsetAndMetadata):
        given = OffsetAndMetadata(whole_number(given, "an offset"))
    offset = whole_number(given.offset, "an offset")
    leader_epoch = whole_number(given.leader_epoch, "a leader epoch")
    if not 0 <= offset <= _OFFSET_MAX:
        raise ValueError(f"offset {offset}: not from 0 to {_OFFSET_MAX}")
    if not NO_LEADER_EPOCH <= leader_epoch <= _INT32_MAX:
        raise ValueError(f"leader_epoch {leader_epoch}: not from -1 to {_INT32_MAX}")
    if not isinstance(given.metadata, str):
        raise TypeError(f"metadata is a str, not {type(given.metadata).__name__}")
    characters = len(given.metadata.encode("utf-16-le")) // 2
    if characters > metadata_characters_max:
        raise OffsetMetadataTooLargeError(
            f"metadata of {characters} characters; at most {metadata_characters_max} are allowed"
        )
    return OffsetAndMetadata(offset, given.metadata, leader_epoch)


def check_may_commit(group: ConsumerGroupMetadata, known: bool) -> None:
    """Raise what Kafka answers to a commit to a group without members; `known`: it has offsets.

    Without a generation the commit is accepted, whoever the member is: nobody else is in the group.
    """
    generation_id = whole_number(group.generation_id, "a generation")
    if generation_id < 0:
        return
    if not known:
        raise IllegalGenerationError(
            f"generation {generation_id} of group {group.group_id!r}, which nobody knows"
        )
    raise UnknownMemberIdError(
        f"group {group.group_id!r} has no members; who commits is {group.member_id!r} of "
        f"generation {generation_id}"
    )
