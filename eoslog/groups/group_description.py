"""A group as operators see it: its state, its members, and what each of them reads."""

from collections.abc import Callable
from dataclasses import dataclass

from eoslog.common.topic_partition import TopicPartition
from eoslog.groups.group_members import GroupMembers


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A consumer that shares a group's partitions.

    `partitions` are those that it was assigned; `giving_up` are those that it was assigned before
    and reads until its next poll. `generation` is that of its last poll.
    """

    member_id: str
    client_id: str
    host: str
    process: str
    generation: int
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    giving_up: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members.

    `state` is one of Kafka's: "Empty" without members, "Stable", or "PreparingRebalance" while a
    member has yet to take note of a change. `strategy` is "" without members.
    """

    group: str
    state: str
    generation: int
    strategy: str
    members: tuple[MemberDescription, ...]


def described(
    group: str, members: GroupMembers, process_of: Callable[[bytes], str]
) -> GroupDescription:
    """The description of a group; `process_of` says whose a slot is."""
    return GroupDescription(
        group,
        members.state,
        members.generation,
        members.strategy or "",
        tuple(
            MemberDescription(
                member.member_id,
                member.client_id,
                member.client_host,
                process_of(member.slot),
                member.generation,
                member.topics,
                tuple(sorted(member.assigned)),
                tuple(sorted(member.to_give_up)),
            )
            for member in members.members
        ),
    )
