"""A consumer's membership of its group: it joins, takes partitions, gives them up, leaves.

All of it happens when the consumer polls. What it has to give up it gives up then, before it reads
anything more; only after it has acknowledged that are the partitions assigned to others.

Invariants: `held` is what the consumer reads, and is kept nowhere else: an interrupt at any step
leaves the two the same, and the next poll goes on from there. It is never more than the member
holds by the group's record, unless the member was removed from the group; then its commits are
refused, and its next poll finds that before it reads. `generation` and `member_id` are those of
what is held.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import FencedInstanceIdError
from eoslog.groups.coordinator import GroupCoordinator, MemberSettings
from eoslog.groups.members import NOTHING, GroupMembers, Member, covers
from eoslog.groups.metadata import NO_MEMBER_ID, ConsumerGroupMetadata, replaced_text
from eoslog.storage.unified_log import UnifiedLog

# How often a member looks for dead members, and how often at most it writes its heartbeat.
LOOK_AROUND_S = 0.5
_BEATS_PER_INTERVAL = 20
_NEVER_S = float("-inf")
_NOTHING_SEEN = -2
# If a group changes more often than this within one poll, the next poll goes on.
_STEPS_MAX = 100

Partitions = list[TopicPartition]


class Reader(Protocol):
    """The consumer, as its membership uses it."""

    called: bool  # True once the user's function was called; the membership sets it to False.

    def reads(self) -> frozenset[TopicPartition]:
        """Return the partitions that the consumer reads."""

    def take(self, partitions: Partitions) -> None:
        """Read these partitions from now on; none of them if it raises."""

    def stop(self, partitions: Partitions) -> None:
        """Stop reading these partitions."""

    # These call the user's function; an error of it undoes nothing.

    def assigned(self, partitions: Partitions) -> None:
        """Report partitions that were taken; for a new member maybe none."""

    def give_up(self, partitions: Partitions) -> None:
        """Report partitions that are about to go to others."""

    def lose(self, partitions: Partitions) -> None:
        """Report partitions that others may have already."""


class GroupMembership:
    """One consumer's membership; its thread uses it. `leave` may come from another thread."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        group: str,
        reader: Reader,
        find_topics: Callable[[], tuple[str, ...]],
        settings: MemberSettings,
    ) -> None:
        self.group = group
        self.member_id = NO_MEMBER_ID
        # Generation and member id of the last poll as a member; a removed member still claims them.
        self._claim: tuple[int, str] | None = None
        self._coordinator = coordinator
        self._reader = reader
        self._find_topics = find_topics
        self._settings = settings
        interval_ms = settings.max_poll_interval_ms
        if self._is_static:
            interval_ms = min(interval_ms, settings.session_timeout_ms)
        self._beat_every_s = min(LOOK_AROUND_S, interval_ms / 1000 / _BEATS_PER_INTERVAL)
        self._fenced_because: str | None = None  # Another has taken this static member's place.
        self._beaten_s = _NEVER_S
        self._looked_around_s = time.monotonic()
        self._seen = _NOTHING_SEEN  # Of the group's changes.
        self._topics: tuple[str, ...] = ()
        self._counts: dict[str, int] = {}
        self._reported_joining = False
        self._unreported = NOTHING  # What was taken, or is about to be, and was not reported.
        self._leaving = False
        self._is_written = False  # Its joining is in the group's log, or was.
        self._lock = ThreadLock()  # Between joining and leaving.

    def __del__(self) -> None:
        # Takes no lock: the collector may call it anywhere, also where the group's lock is held.
        if getattr(self, "member_id", NO_MEMBER_ID):
            self._coordinator.abandon(self.member_id, keeps_place=self._is_static)

    @property
    def _is_static(self) -> bool:
        return self._settings.instance_id is not None

    @property
    def held(self) -> frozenset[TopicPartition]:
        """Partitions that the consumer reads."""
        return self._reader.reads()

    def metadata(self, topic_ids: Mapping[str, str]) -> ConsumerGroupMetadata:
        """Return the identity that commits, for topics of these ids; before the consumer has ever
        joined, that of no member.

        After a member left or was removed it is its last one, which the group refuses.
        """
        if self._claim is None:
            return ConsumerGroupMetadata(self.group, topic_ids=topic_ids)
        return ConsumerGroupMetadata(
            self.group, *self._claim, self._settings.instance_id, topic_ids=topic_ids
        )

    @property
    def has_joined(self) -> bool:
        """True if the consumer ever was a member."""
        return self._claim is not None

    @property
    def partition(self) -> UnifiedLog:
        """The partition of the log with the group's changes."""
        return self._coordinator.log.of_group(self.group).partition

    def has_news(self) -> bool:
        """Return True if `follow` has something to do. Now and then, look for dead members."""
        if self._fenced_because is not None:
            return True
        self._beat()
        now_s = time.monotonic()
        if now_s - self._looked_around_s >= LOOK_AROUND_S:
            self._looked_around_s = now_s
            self._coordinator.expel_dead(self.group)
        _, version = self._coordinator.look(self.group)
        topics = self._find_topics()
        return (
            version != self._seen
            or topics != self._topics
            or self._coordinator.counts(topics) != self._counts
        )

    def follow(self) -> None:
        """Join, give up and take partitions, as the group's record asks. Each poll begins with it.

        Raises what the reader's methods raise, InconsistentGroupProtocolError and StoreError; the
        next call goes on from there. After FencedInstanceIdError each call raises it.
        """
        if not self.has_news():
            return
        for _ in range(_STEPS_MAX):
            if self._leaving:
                # `leave` was interrupted before the reader stopped.
                self._reader.stop(sorted(self.held))
                return
            topics = self._find_topics()
            members, version = self._coordinator.look(self.group)
            member = members.get(self.member_id)
            self._is_written |= member is not None
            if member is None:
                self._check_place(members)
                self._join(topics)
            elif self._settled(members, member, topics):
                counts = self._coordinator.counts(topics)
                self._take(member)
                self._seen, self._topics, self._counts = version, topics, counts
                return

    def leave(self, *, report: bool) -> None:
        """Give everything up and leave the group. With `report`, call the user's function."""
        try:
            if report and self.held:
                members, _ = self._coordinator.look(self.group)
                if members.get(self.member_id) is not None:
                    self._release(self.held)
                else:
                    self._lose()
        finally:
            with self._lock:
                self._leaving = True
            if self.member_id and self._is_static:
                self._coordinator.go_away(self.member_id)
            elif self.member_id:
                self._coordinator.leave(self.group, self.member_id)
            self.member_id = NO_MEMBER_ID

    # How it is done.

    def _check_place(self, members: GroupMembers) -> None:
        """Raise FencedInstanceIdError if another member has taken the place of this one; before a
        joining that failed is made again, the one there is its predecessor.
        """
        successor = members.of_instance(self._settings.instance_id)
        if successor is not None and self.member_id and self._is_written:
            self._fenced_because = replaced_text(self.group, self.member_id, successor)
            self._lose()
        if self._fenced_because is not None:
            raise FencedInstanceIdError(self._fenced_because)

    def _join(self, topics: tuple[str, ...]) -> None:
        if (self.member_id or self.held) and not self._leaving:
            self._lose()
        member = self._coordinator.new_member(self._settings, topics)
        with self._lock:
            if not self._leaving:
                # First: after an interrupt, the next look finds whether it has joined.
                self.member_id, self._reported_joining = member.member_id, False
                self._is_written = False
                self._beaten_s = time.monotonic()
                self._coordinator.join(self.group, member)
                self._is_written = True

    def _lose(self) -> None:
        """Lose what is held: others removed the member. Until then it commits under its old id."""
        lost = sorted(self.held)
        try:
            if lost:
                self._reader.lose(lost)
        finally:
            # After an interrupt it is done again.
            self._reader.stop(lost)
            self._coordinator.forget(self.member_id)
            self.member_id = NO_MEMBER_ID

    def _settled(self, members: GroupMembers, member: Member, topics: tuple[str, ...]) -> bool:
        """Take one step towards the group's record; True if there was none to take."""
        self._claim = (member.generation, member.member_id)
        gone = self.held - member.assigned
        if gone:
            self._release(gone)
        if gone or member.to_give_up or member.generation != members.generation:
            self._coordinator.acknowledge(self.group, member._replace(held=self.held))
            return False
        if member.topics != topics:
            self._coordinator.subscribe(self.group, member, topics)
            return False
        if not covers(members, topics, self._coordinator.counts(topics)):
            self._coordinator.rebalance(self.group)
            return False
        return True

    def _release(self, gone: Iterable[TopicPartition]) -> None:
        given_up = sorted(gone)
        try:
            self._reader.give_up(given_up)
        finally:
            # After an interrupt they are held, and the next poll gives them up.
            self._reader.stop(given_up)

    def _take(self, member: Member) -> None:
        gained = member.assigned - self.held
        if gained:
            self._unreported |= gained
            self._reader.take(sorted(gained))
        news = sorted(self._unreported & member.assigned)
        if not news and self._reported_joining:
            return
        done = self._reader.called = False
        try:
            self._reader.assigned(news)
            done = True
        finally:
            # Else an interrupt came before the user's function was called: the next poll calls it.
            if done or self._reader.called:
                self._unreported, self._reported_joining = NOTHING, True

    def _beat(self) -> None:
        now_s = time.monotonic()
        if self.member_id and now_s - self._beaten_s >= self._beat_every_s:
            self._beaten_s = now_s
            self._coordinator.heartbeats.beat(self.member_id)
