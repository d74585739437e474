"""Subscription of a consumer: its topics, and the listeners for partitions that come and go."""

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from eoslog.bindings.thread_lock import ThreadLock
from eoslog.common.arguments import check_ran, check_synchronous
from eoslog.common.config import SESSION_TIMEOUT
from eoslog.common.topic_name import check_user_topic_name
from eoslog.common.topic_partition import TopicPartition
from eoslog.consumer.positions import ConsumerPositions
from eoslog.errors import InvalidConfigError, InvalidTopicError
from eoslog.groups.assignors import DEFAULT_STRATEGIES, parse_strategies
from eoslog.groups.coordinator import GroupCoordinator, MemberSettings
from eoslog.groups.membership import GroupMembership, Partitions

# Called with the consumer, and the partitions.
OnChange = Callable[[Any, list[TopicPartition]], object]
DEFAULT_CLIENT_ID = "eoslog"
CLIENT_ID_CHARACTERS_MAX = 200
# As Kafka has it: a topic could be named so.
_INSTANCE_ID = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_PATTERN_MARK = "^"  # No topic's name begins with it.


def split_membership(
    config: Mapping[str, object] | None,
) -> tuple[Mapping[str, object] | None, MemberSettings]:
    """A consumer's configuration without its part in a group, and that part, which lacks
    "max.poll.interval.ms".

    Raises InvalidConfigError.
    """
    if not isinstance(config, Mapping):
        return config, MemberSettings(DEFAULT_CLIENT_ID, DEFAULT_STRATEGIES)
    rest = dict(config)
    client_id = rest.pop("client.id", DEFAULT_CLIENT_ID)
    if not isinstance(client_id, str) or not 0 < len(client_id) <= CLIENT_ID_CHARACTERS_MAX:
        raise InvalidConfigError(
            f"client.id must have 1 to {CLIENT_ID_CHARACTERS_MAX} characters, got {client_id!r:.80}"
        )
    try:
        client_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidConfigError(f"client.id={client_id!r:.80}: {error}") from error
    strategies = parse_strategies(rest.pop("partition.assignment.strategy", DEFAULT_STRATEGIES))
    settings = MemberSettings(client_id, strategies)
    instance_id = rest.pop("group.instance.id", None)
    if instance_id is None:
        return rest, settings
    if not isinstance(instance_id, str) or not _INSTANCE_ID.fullmatch(instance_id):
        raise InvalidConfigError(
            "group.instance.id must be 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-', got "
            f"{instance_id!r:.80}"
        )
    timeout_ms = rest.pop(SESSION_TIMEOUT.name, SESSION_TIMEOUT.default)
    return rest, settings._replace(
        instance_id=instance_id, session_timeout_ms=int(SESSION_TIMEOUT.parse(timeout_ms))
    )


class WantedTopics(NamedTuple):
    """Topics by name, and by the patterns that names match from their beginning on."""

    names: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]

    def matches(self, name: str) -> bool:
        """True if the topic is wanted."""
        return name in self.names or any(one.match(name) for one in self.patterns)


class Listeners(NamedTuple):
    """Listeners to call; `on_revoked` stands in for `on_lost` where there is none."""

    on_assigned: OnChange | None
    on_revoked: OnChange | None
    on_lost: OnChange | None


def wanted_topics(topics: object, pattern: object) -> WantedTopics:
    """Return the topics that `subscribe` was given. TypeError, InvalidTopicError, ValueError for a
    bad pattern.
    """
    if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be a list of names, got {type(topics).__name__}")
    names, patterns = [], []
    for topic in topics:
        if not isinstance(topic, str):
            raise TypeError(f"topic name must be a str, got {type(topic).__name__}")
        if topic.startswith(_PATTERN_MARK):
            patterns.append(_compiled(topic))
        else:
            check_user_topic_name(topic)
            names.append(topic)
    if pattern is not None:
        patterns.append(_compiled(pattern))
    return WantedTopics(tuple(sorted(set(names))), tuple(patterns))


def _compiled(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(f"pattern must be a str or a re.Pattern, got {type(pattern).__name__}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidTopicError(f"pattern {pattern!r}: {error}") from error


def listeners(
    on_assigned: OnChange | None,
    on_revoked: OnChange | None,
    on_lost: OnChange | None,
    listener: Any,
) -> Listeners:
    """Return the listeners to call; a `listener` has the methods of Kafka's. TypeError."""
    if listener is not None:
        if on_assigned or on_revoked or on_lost:
            raise TypeError("give either listener or on_assigned, on_revoked and on_lost")
        for name in ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost"):
            method = getattr(listener, name, None)
            if method is not None or name != "on_partitions_lost":
                check_synchronous(method, f"listener.{name}")
        return Listeners(
            lambda _, partitions: listener.on_partitions_assigned(partitions),
            lambda _, partitions: listener.on_partitions_revoked(partitions),
            (lambda _, partitions: listener.on_partitions_lost(partitions))
            if hasattr(listener, "on_partitions_lost")
            else None,
        )
    for name, one in (
        ("on_assigned", on_assigned),
        ("on_revoked", on_revoked),
        ("on_lost", on_lost),
    ):
        if one is not None:
            check_synchronous(one, name)
    return Listeners(on_assigned, on_revoked, on_lost)


class ConsumerSubscription:
    """The subscription of one consumer, which is its part in the group too."""

    def __init__(
        self,
        consumer: object,
        positions: ConsumerPositions,
        call_lock: ThreadLock,
        begin_to_read: Callable[[Partitions], None],
        coordinator: GroupCoordinator,
        group: str,
        wanted: WantedTopics,
        told: Listeners,
        settings: MemberSettings,
    ) -> None:
        """`begin_to_read` is a method of the consumer; `call_lock` is released around listeners."""
        self.wanted = wanted
        self.told = told
        self._coordinator = coordinator
        # The consumer is not held: when nothing refers to it, it leaves its group.
        reader = _Reader(consumer, positions, call_lock, begin_to_read, weakref.ref(self))
        this = weakref.ref(self)
        self.member = GroupMembership(
            coordinator,
            group,
            reader,
            lambda: _topics_of(this()),
            settings,
        )

    def topics(self) -> tuple[str, ...]:
        """The topics as they are now: those named, there or not, and those that match."""
        if not self.wanted.patterns:
            return self.wanted.names
        found = self._coordinator.matching(self.wanted.matches)
        return tuple(sorted({*self.wanted.names, *found}))


def _topics_of(subscription: ConsumerSubscription | None) -> tuple[str, ...]:
    return () if subscription is None else subscription.topics()


class _Reader:
    """The consumer's side of the membership."""

    def __init__(
        self,
        consumer: object,
        positions: ConsumerPositions,
        call_lock: ThreadLock,
        begin_to_read: Callable[[Partitions], None],
        subscription: "weakref.ref[ConsumerSubscription]",
    ) -> None:
        self.called = False
        self._consumer = weakref.ref(consumer)
        self._positions = positions
        self._call_lock = call_lock
        self._begin_to_read = weakref.WeakMethod(begin_to_read)
        self._subscription = subscription

    def reads(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions.partitions)

    def take(self, partitions: Partitions) -> None:
        begin_to_read = self._begin_to_read()
        if begin_to_read is not None:
            begin_to_read(partitions)

    def stop(self, partitions: Partitions) -> None:
        self._positions.drop(partitions)

    def assigned(self, partitions: Partitions) -> None:
        self._tell("on_assigned", partitions)

    def give_up(self, partitions: Partitions) -> None:
        self._tell("on_revoked", partitions)

    def lose(self, partitions: Partitions) -> None:
        self._tell("on_lost", partitions)

    def _tell(self, name: str, partitions: Partitions) -> None:
        consumer, subscription = self._consumer(), self._subscription()
        if consumer is None or subscription is None:
            return
        told: OnChange | None = getattr(subscription.told, name)
        if told is None and name == "on_lost":
            told = subscription.told.on_revoked
        if told is not None:
            own = list(partitions)
            self.called = True
            self._call_lock.call_released(_call, told, name, consumer, own)


def _call(
    function: OnChange, name: str, consumer: object, partitions: list[TopicPartition]
) -> None:
    check_ran(function(consumer, partitions), name)
