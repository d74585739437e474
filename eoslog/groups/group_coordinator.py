"""Group coordinator: members join, leave and die, and each is assigned what it reads.

There is no server: every process changes a group itself, by a record of it in the group's log,
under the lock that all processes share. `group_members` has the rules.

A member dies with its process, whose slot is locked as long as it lives, or for the group when it
does not poll for `max.poll.interval.ms`. Whoever looks at a group takes its dead out.

Invariants: a change is in the log before anybody acts on it. What a dead member held is given to
others only by the record that it is no member any more, so its commits are refused from then on.
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from eoslog.common import clock
from eoslog.errors import EoslogError, LogClosedError
from eoslog.groups.group_description import GroupDescription, described
from eoslog.groups.group_log import GroupLog, GroupPartition, GroupRecord
from eoslog.groups.group_members import (
    GroupMembers,
    Member,
    acknowledged,
    rebalanced,
    with_member,
    without_members,
)
from eoslog.groups.group_offsets import GroupOffsets
from eoslog.groups.group_offsets_state import MembersKey
from eoslog.groups.member_heartbeats import MemberHeartbeats
from eoslog.storage.topic_registry import TopicDescription

SLOT_BYTES = 16


class Processes(Protocol):
    """Processes that have the store open; `ProcessSlots` knows them."""

    own: bytes

    def alive(self, slot: bytes) -> bool:
        """True if the process of a slot lives and has the store open."""

    def describe(self, slot: bytes) -> str:
        """Describe the owner of a slot, for people."""


class Topics(Protocol):
    """Topics of the store."""

    def get(self, name: str) -> TopicDescription | None:
        """The topic, unless it does not exist or is being deleted."""

    def all(self) -> list[TopicDescription]:
        """Every topic, internal ones too."""


class GroupCoordinator:
    """The members of all groups of one store, as one process sees and changes them."""

    def __init__(
        self,
        group_offsets: GroupOffsets,
        topics: Topics,
        state_path: Path,
        slots: Processes | None = None,
    ) -> None:
        self._log: GroupLog = group_offsets.log
        self._offsets = group_offsets
        self._topics = topics
        self._slots = slots
        self._own_slot = uuid.uuid4().bytes if slots is None else slots.own
        self._heartbeats = MemberHeartbeats(state_path)
        self._lock = threading.RLock()
        self._local: dict[str, str] = {}  # Members of this process, and their groups.
        self._abandoned: set[str] = set()  # Members whose consumers are gone.
        self._closed = False
        self._process_id = os.getpid()
        group_offsets.watch_members(self.expel_dead)

    def begin(self) -> None:
        """Begin as the first process that opens the store: all earlier members are gone."""
        self._heartbeats.forget_all()

    # What there is.

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of these topics, of those that exist and are not internal."""
        found = {}
        for name in topics:
            topic = self._topics.get(name)
            if topic is not None and not topic.internal:
                found[name] = topic.partitions
        return found

    def matching(self, matches: Callable[[str], object]) -> tuple[str, ...]:
        """The topics, without the internal ones, whose names match."""
        names = [topic.name for topic in self._topics.all() if not topic.internal]
        return tuple(sorted(name for name in names if matches(name)))

    def partition_of(self, group: str) -> GroupPartition:
        """The partition with a group's records; made if need be."""
        return self._log.of(self._log.partition_of(group))

    def look(self, group: str) -> tuple[GroupMembers, int]:
        """The members of a group, and a number that differs after every change."""
        with self._log.caught_up(self.partition_of(group)) as state:
            written = state.members(group)
        return (GroupMembers(), -1) if written is None else written

    def describe(self, group: str) -> GroupDescription | None:
        """A group with its members, without the dead; None if there is none."""
        groups = self._log.if_there(self._log.partition_of(group))
        if groups is None:
            return None
        self.expel_dead(group)
        with self._log.caught_up(groups) as state:
            if not state.is_known(group):
                return None
            written = state.members(group)
        members = GroupMembers() if written is None else written.value
        process_of = (lambda slot: "") if self._slots is None else self._slots.describe
        return described(group, members, process_of)

    def is_dead(self, member: Member) -> bool:
        """True if a member's process or consumer is gone, or the member does not poll."""
        if member.slot == self._own_slot:
            if member.member_id in self._abandoned:
                return True
        elif (
            self._slots is None
            or len(member.slot) != SLOT_BYTES
            or not self._slots.alive(member.slot)
        ):
            return True
        age_ms = self._heartbeats.age_ms(member.member_id)
        return age_ms is None or age_ms > member.max_poll_interval_ms

    # Members of this process.

    def new_member(
        self,
        client_id: str,
        topics: tuple[str, ...],
        strategies: tuple[str, ...],
        max_poll_interval_ms: int,
    ) -> Member:
        """A consumer of this process as a member; of no group yet."""
        return Member(
            f"{client_id}-{uuid.uuid4()}",
            client_id,
            socket.gethostname(),
            max_poll_interval_ms,
            topics,
            strategies,
            self._own_slot,
        )

    def join(self, group: str, member: Member) -> None:
        """Make a consumer a member. Raises InconsistentGroupProtocolError, StoreError."""
        with self._lock:
            if self._closed:
                raise LogClosedError("the store is closed")
            self._local[member.member_id] = group
        self._heartbeats.begin(member.member_id)
        self._change(group, lambda now: with_member(now, member, self._counts_for(now, member)))

    def subscribe(self, group: str, member: Member, topics: tuple[str, ...]) -> None:
        """A member reads other topics from now on."""
        changed = replace(member, topics=topics)

        def change(now: GroupMembers) -> GroupMembers:
            if now.get(member.member_id) is None:
                return now
            return with_member(now, changed, self._counts_for(now, changed))

        self._change(group, change)

    def acknowledge(self, group: str, member: Member) -> None:
        """A member, which reads what it holds here, has taken note of the group as it is."""

        def change(now: GroupMembers) -> GroupMembers:
            if now.get(member.member_id) is None:
                return now
            return acknowledged(now, member.member_id, member.held, self._counts_for(now))

        self._change(group, change)

    def rebalance(self, group: str) -> None:
        """Topics have come, gone or grown."""
        self._change(group, lambda now: rebalanced(now, self._counts_for(now)))

    def leave(self, group: str, member_id: str) -> None:
        """A member is one no more; what it held goes to others at once."""
        # First: should this be cut short, others find it dead.
        self._heartbeats.end(member_id)
        self._change(group, lambda now: without_members(now, [member_id], self._counts_for(now)))
        self.forget(member_id)

    def forget(self, member_id: str) -> None:
        """A consumer of this process is no member, whoever took it out."""
        self._heartbeats.end(member_id)
        with self._lock:
            self._local.pop(member_id, None)
            self._abandoned.discard(member_id)

    def abandon(self, member_id: str) -> None:
        """A member's consumer is gone without a word. Takes no lock: it may be called anywhere."""
        if os.getpid() == self._process_id:  # Else a forked child let go of its copy.
            self._abandoned.add(member_id)
            self._heartbeats.end(member_id)

    def beat(self, member_id: str) -> None:
        """A member polls."""
        self._heartbeats.beat(member_id)

    # The dead.

    def expel_dead(self, group: str) -> None:
        """Take the dead out of a group."""
        members, _ = self.look(group)
        if any(map(self.is_dead, members.members)):
            self._change(group, lambda now: now)

    def look_after_members(self) -> None:
        """Take the dead out of all groups that this process has to do with."""
        for groups in self._log.used():
            with self._log.caught_up(groups) as state:
                names = state.groups_with_members()
            for name in names:
                self.expel_dead(name)

    def close(self) -> None:
        """The store is about to be closed: the members of this process leave."""
        with self._lock:
            self._closed = True
            local = list(self._local.items())
        for member_id, group in local:
            with suppress(EoslogError):
                self.leave(group, member_id)

    # How it is done.

    def _change(self, group: str, change: Callable[[GroupMembers], GroupMembers]) -> None:
        """Write what `change` makes of a group without its dead, unless that is what it was."""
        groups = self.partition_of(group)
        with self._log.writing(groups):
            with self._log.caught_up(groups) as state:
                written = state.members(group)
            before = GroupMembers() if written is None else written.value
            dead = [one.member_id for one in before.members if self.is_dead(one)]
            after = change(without_members(before, dead, self._counts_for(before)))
            if after == before:
                return
            if after.state != before.state:
                after = replace(after, state_timestamp_ms=clock.now_ms())
            else:
                after = replace(after, state_timestamp_ms=before.state_timestamp_ms)
            self._log.append(groups, [GroupRecord(MembersKey(group), after)])
        for member_id in dead:
            self.forget(member_id)

    def _counts_for(self, group: GroupMembers, *more: Member) -> dict[str, int]:
        return self.counts(group.topics.union(*(member.topics for member in more)))
