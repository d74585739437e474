"""Group coordinator: members join, leave and die, and each is assigned what it reads.

There is no server: every process changes a group itself, by a record in the group's log, under the
lock that all processes share. `group_members` has the rules.

A member is dead if its process is, whose slot is locked as long as it lives, or if the member does
not poll for `max.poll.interval.ms`. Each look at a group expels its dead members. A static member
that is gone is dead after its session timeout, unless another one takes its place by then.

Invariants: a change is in the log before any member acts on it. What a dead member held is given to
others only by the record that removes the member, so its commits are refused from then on.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from eoslog.bindings.counter_page import CounterPage
from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common import clock
from eoslog.common.config import MAX_POLL_INTERVAL_MS, SESSION_TIMEOUT_MS
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, LogClosedError
from eoslog.fs.os_errors import named_os_errors
from eoslog.fs.private_files import make_directories, make_file
from eoslog.groups.log import GroupRecord
from eoslog.groups.members import (
    GroupMembers,
    Member,
    acknowledged,
    rebalanced,
    with_member,
    without_members,
)
from eoslog.groups.offsets import GroupOffsets
from eoslog.groups.records import MembersKey
from eoslog.session.process_slots import SLOT_BYTES, ProcessSlots
from eoslog.storage.topic_registry import TopicRegistry

_log = logging.getLogger(__name__)

_DIRECTORY_NAME = "members"
_NAME_BYTES = 16


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


class MemberSettings(NamedTuple):
    """Settings of a consumer as a member; `client_id` is for people, and a static member has an
    `instance_id`.
    """

    client_id: str
    strategies: tuple[str, ...]
    instance_id: str | None = None
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    max_poll_interval_ms: int = MAX_POLL_INTERVAL_MS


class MemberHeartbeats:
    """Times of the last polls of one store's members, for all its processes; a file each.

    A file's time of change is that of the member's last poll, on the monotonic clock, which all
    processes of a machine share. So a member that has stopped polling is found although its process
    lives, also if that process was stopped. Nothing here has to survive a restart: no member does.
    """

    def __init__(self, state_path: Path) -> None:
        self._path = state_path / _DIRECTORY_NAME

    def begin(self, member_id: str) -> None:
        """Make the file of a new member. Raises StoreFullError, StoreReadOnlyError."""
        path = self.path_of(member_id)
        with named_os_errors(f"making {path}"):
            make_directories(self._path)
            make_file(path)
            self._beat(path)

    def beat(self, member_id: str) -> None:
        """Note a poll; does nothing if the member has no file any more."""
        with suppress(FileNotFoundError):
            self._beat(self.path_of(member_id))

    def age_ms(self, member_id: str) -> int | None:
        """Return how long ago the member polled; None if it has not since the last restart."""
        try:
            beaten_ns = self.path_of(member_id).stat().st_mtime_ns
        except FileNotFoundError:
            return None
        age_ns = time.monotonic_ns() - beaten_ns
        return None if age_ns < 0 else age_ns // 1_000_000

    def end(self, member_id: str) -> None:
        """Remove the file of a member."""
        # As the interpreter ends nothing can be imported: the process's death shows as much.
        with suppress(OSError, ImportError):
            self.path_of(member_id).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove all files: the first process opens the store, and no earlier member is left."""
        if not self._path.is_dir():
            return
        with named_os_errors(f"clearing {self._path}"):
            for path in self._path.iterdir():
                path.unlink(missing_ok=True)

    @staticmethod
    def _beat(path: Path) -> None:
        now_ns = time.monotonic_ns()
        os.utime(path, ns=(now_ns, now_ns))

    def path_of(self, member_id: str) -> Path:
        import hashlib  # Of members alone: it loads OpenSSL.

        digest = hashlib.blake2b(member_id.encode(), digest_size=_NAME_BYTES)
        return self._path / digest.hexdigest()


class GroupCoordinator:
    """The members of all groups of one store, as one process sees and changes them."""

    def __init__(
        self,
        group_offsets: GroupOffsets,
        topics: TopicRegistry,
        state_path: Path,
        slots: ProcessSlots,
        counters: CounterPage,
        *,
        follows: bool = False,
    ) -> None:
        """`follows`: the store is only read, beside the processes that change it."""
        self.log = group_offsets.log
        self._follows = follows
        self._topics = topics
        self._slots = slots
        self._counters = counters
        self.heartbeats = MemberHeartbeats(state_path)
        self._lock = ThreadLock()
        # Members of this process, their groups, and if these keep their places.
        self._local: dict[str, tuple[str, bool]] = {}
        self._abandoned: set[str] = set()  # Members whose consumers are gone.
        self._closed = False
        self._process_id = os.getpid()
        group_offsets.watch_members(self.expel_dead)

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

    def look(self, group: str) -> tuple[GroupMembers, int]:
        """Return the members of a group, and a number that differs after every change."""
        with self.log.caught_up(self.log.of_group(group)) as state:
            written = state.members(group)
        return (GroupMembers(), -1) if written is None else written

    def describe(self, group: str) -> GroupDescription | None:
        """A group with its members, without the dead; None if there is none."""
        groups = self.log.if_there(group)
        if groups is None:
            return None
        if not self._follows:
            self.expel_dead(group)
        with self.log.caught_up(groups) as state:
            if not state.is_known(group):
                return None
            members = state.members_of(group)
        dead = [one.member_id for one in members.members if self.is_dead(one)]
        if dead:
            # As the next process that looks has it.
            members = without_members(members, dead, self._counts_for(members))
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
                    self._slots.describe(member.slot),
                    member.generation,
                    member.topics,
                    tuple(sorted(member.assigned)),
                    tuple(sorted(member.to_give_up)),
                )
                for member in members.members
            ),
        )

    def member_counts(self) -> dict[str, int]:
        """Return how many members that live each group has that this process uses; groups without
        any are left out.
        """
        counts = {}
        for groups in self.log.used():
            with self.log.caught_up(groups) as state:
                found = {name: state.members_of(name) for name in state.groups_with_members()}
            for name, members in found.items():
                counts[name] = sum(not self.is_dead(one) for one in members.members)
        return counts

    def is_dead(self, member: Member) -> bool:
        """True if a member's process or consumer is gone, or the member does not poll. The place of
        a static one that is gone is kept for its session timeout.
        """
        limit_ms = member.max_poll_interval_ms
        if self._is_gone(member):
            if member.instance_id is None:
                return True
            limit_ms = member.session_timeout_ms
        age_ms = self.heartbeats.age_ms(member.member_id)
        return age_ms is None or age_ms > limit_ms

    def _is_gone(self, member: Member) -> bool:
        if member.slot == self._slots.own:
            return member.member_id in self._abandoned
        return len(member.slot) != SLOT_BYTES or not self._slots.alive(member.slot)

    # Members of this process.

    def new_member(self, settings: MemberSettings, topics: tuple[str, ...]) -> Member:
        """Return a consumer of this process as a member, of no group yet."""
        import uuid  # Of members alone, too.

        # Ranges follow the order of the ids: the next one of an instance has the same place.
        prefix = settings.client_id if settings.instance_id is None else settings.instance_id
        return Member(
            f"{prefix}-{uuid.uuid4()}",
            settings.client_id,
            os.uname().nodename,
            settings.max_poll_interval_ms,
            topics,
            settings.strategies,
            self._slots.own,
            instance_id=settings.instance_id,
            session_timeout_ms=settings.session_timeout_ms,
        )

    def join(self, group: str, member: Member) -> None:
        """Make a consumer a member. Raises InconsistentGroupProtocolError, StoreError."""
        with self._lock:
            if self._closed:
                raise LogClosedError("the store is closed")
            self._local[member.member_id] = group, member.instance_id is not None
        self.heartbeats.begin(member.member_id)
        self._change(group, lambda now: with_member(now, member, self._counts_for(now, member)))

    def subscribe(self, group: str, member: Member, topics: tuple[str, ...]) -> None:
        """Have a member read other topics from now on."""
        changed = member._replace(topics=topics)

        def change(now: GroupMembers) -> GroupMembers:
            if now.get(member.member_id) is None:
                return now
            return with_member(now, changed, self._counts_for(now, changed))

        self._change(group, change)

    def acknowledge(self, group: str, member: Member) -> None:
        """Note that a member, which reads what it holds here, knows the group as it is."""

        self._change(
            group,
            lambda now: acknowledged(now, member.member_id, member.held, self._counts_for(now)),
        )

    def rebalance(self, group: str) -> None:
        """Assign partitions again: topics have come, gone or grown."""
        self._change(group, lambda now: rebalanced(now, self._counts_for(now)))

    def leave(self, group: str, member_id: str) -> None:
        """Remove a member; what it held goes to others at once."""
        # First: after an interrupt, others find it dead.
        self.heartbeats.end(member_id)
        self._change(
            group,
            lambda now: without_members(now, [member_id], self._counts_for(now)),
            left=member_id,
        )
        self.forget(member_id)

    def go_away(self, member_id: str) -> None:
        """Keep a static member's place for its successor: its session timeout begins."""
        self.heartbeats.beat(member_id)
        self.abandon(member_id, keeps_place=True)
        with self._lock:
            self._local.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """Note that a consumer of this process is no member any more."""
        self.heartbeats.end(member_id)
        with self._lock:
            self._local.pop(member_id, None)
            self._abandoned.discard(member_id)

    def abandon(self, member_id: str, *, keeps_place: bool) -> None:
        """Note that a member's consumer was collected without a close. Takes no lock."""
        if os.getpid() == self._process_id:  # Else a forked child dropped its copy.
            self._abandoned.add(member_id)
            if not keeps_place:
                self.heartbeats.end(member_id)

    # The dead.

    def expel_dead(self, group: str) -> None:
        """Remove the dead members of a group."""
        if self._follows:
            return
        members, _ = self.look(group)
        if any(map(self.is_dead, members.members)):
            self._change(group, lambda now: now)

    def look_after_members(self) -> None:
        """Remove the dead members of all groups that this process uses."""
        for groups in self.log.used():
            with self.log.caught_up(groups) as state:
                names = state.groups_with_members()
            for name in names:
                self.expel_dead(name)

    def close(self) -> None:
        """Remove the members of this process, but keep the places of static ones: the store is
        about to be closed.
        """
        with self._lock:
            self._closed = True
            local = list(self._local.items())
        for member_id, (group, keeps_place) in local:
            with suppress(EoslogError):
                if keeps_place:
                    self.go_away(member_id)
                else:
                    self.leave(group, member_id)

    # How it is done.

    def _change(
        self, group: str, change: Callable[[GroupMembers], GroupMembers], *, left: str = ""
    ) -> None:
        """Write what `change` makes of a group without its dead members, if that is a change. The
        member `left` is not dead.
        """
        groups = self.log.of_group(group)
        with self.log.writing(groups):
            with self.log.caught_up(groups) as state:
                before = state.members_of(group)
            dead = [one.member_id for one in before.members if self.is_dead(one)]
            after = change(without_members(before, dead, self._counts_for(before)))
            if after == before:
                return
            if after.state != before.state:
                after = replace(after, state_timestamp_ms=clock.now_ms())
            else:
                after = replace(after, state_timestamp_ms=before.state_timestamp_ms)
            self.log.append(groups, [GroupRecord(MembersKey(group), after)])
            self._counters.add("rebalances", after.generation != before.generation)
            self._counters.add("members_expired", len({*dead} - {left}))
            _log_change(group, before, after, {*dead} - {left})
        replaced = {member_id for member_id, _ in _replacements(before, after)}
        for member_id in {*dead} | replaced:
            self.forget(member_id)

    def _counts_for(self, group: GroupMembers, *more: Member) -> dict[str, int]:
        return self.counts(group.topics.union(*(member.topics for member in more)))


def _replacements(before: GroupMembers, after: GroupMembers) -> list[tuple[str, str]]:
    """The ids of static members whose places others have taken, and those of the others."""
    pairs = [(one.member_id, after.of_instance(one.instance_id)) for one in before.members]
    return [(old, new.member_id) for old, new in pairs if new and new.member_id != old]


def _why_again(before: GroupMembers, after: GroupMembers, joined: int, left: int) -> str:
    """Return why partitions are assigned again; replaced static members are no reason."""
    if not after.members:
        return "no member is left"
    if joined or left:
        return f"{joined} joined, {left} left"
    if [one.topics for one in before.members] != [one.topics for one in after.members]:
        return "members read other topics"
    if any(one.to_give_up for one in before.members):
        return "what members gave up is assigned"
    return "there are other partitions"


def _log_change(
    group: str, before: GroupMembers, after: GroupMembers, dead: Collection[str]
) -> None:
    """Log who joined and left, and that partitions are assigned again."""
    replacements = _replacements(before, after)
    old = {member.member_id for member in before.members} - {one for one, _ in replacements}
    new = {member.member_id for member in after.members} - {one for _, one in replacements}
    for replaced, member_id in replacements:
        _log.info("group %r: member %s takes the place of %s", group, member_id, replaced)
    for member_id in sorted(new - old):
        _log.info("group %r: member %s joins", group, member_id)
    for member_id in sorted(old - new):
        why = "it died, or polled no more in time" if member_id in dead else "it left"
        _log.info("group %r: member %s is removed: %s", group, member_id, why)
    if after.generation != before.generation:
        _log.info(
            "group %r: rebalance to generation %d: %d members, %d partitions: %s",
            *(group, after.generation, len(after.members)),
            sum(len(member.assigned) for member in after.members),
            _why_again(before, after, len(new - old), len(old - new)),
        )
    if _log.isEnabledFor(logging.DEBUG):
        for member in after.members:
            _log.debug(
                "group %r: generation %d: member %s is assigned %s, gives up %s",
                *(group, after.generation, member.member_id),
                *(sorted(map(str, member.assigned)), sorted(map(str, member.to_give_up))),
            )
