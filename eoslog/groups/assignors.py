"""Assignors: they assign the partitions of topics to the members of a group.

- range: topic by topic, each member a run of partitions, as Kafka's RangeAssignor does it;
- cooperative-sticky: evenly over all topics, and with as few moves as that takes.

Invariants: each partition of a topic that has readers goes to one member that reads it. The result
depends on the arguments alone, so it is the same in every process.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import InvalidConfigError

RANGE = "range"
STICKY = "cooperative-sticky"
DEFAULT_STRATEGIES = (RANGE, STICKY)

# Names of other clients.
_OTHER_NAMES = {
    "sticky": STICKY,
    "org.apache.kafka.clients.consumer.RangeAssignor": RANGE,
    "org.apache.kafka.clients.consumer.StickyAssignor": STICKY,
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": STICKY,
}

Topics = Mapping[str, Iterable[str]]
Counts = Mapping[str, int]
Assigned = Mapping[str, frozenset[TopicPartition]]
Assignment = dict[str, set[TopicPartition]]


def parse_strategies(given: object) -> tuple[str, ...]:
    """Parse "partition.assignment.strategy": a text with commas, or a list of names.

    Raises InvalidConfigError.
    """
    if isinstance(given, str):
        names: list[object] = list(given.split(","))
    elif isinstance(given, (list, tuple)):
        names = list(given)
    else:
        raise InvalidConfigError(f"partition.assignment.strategy must be names, got {given!r}")
    found = []
    for name in names:
        short = name.strip() if isinstance(name, str) else ""
        strategy = _OTHER_NAMES.get(short, short)
        if strategy not in ASSIGNORS:
            raise InvalidConfigError(
                f"partition.assignment.strategy: {name!r} is not one of {', '.join(ASSIGNORS)}"
            )
        found.append(strategy)
    if not found:
        raise InvalidConfigError("partition.assignment.strategy: no strategy is named")
    return tuple(dict.fromkeys(found))


def assign_ranges(topics: Topics, counts: Counts, assigned: Assigned) -> Assignment:
    """Assign runs of each topic's partitions to its members, in the order of their ids; the first
    ones get one more where it does not come out even.
    """
    result: Assignment = {member: set() for member in topics}
    for topic, readers in sorted(_readers(topics).items()):
        share, larger = divmod(counts.get(topic, 0), len(readers))
        first = 0
        for number, member in enumerate(readers):
            size = share + (number < larger)
            result[member].update(TopicPartition(topic, first + one) for one in range(size))
            first += size
    return result


def assign_sticky(topics: Topics, counts: Counts, assigned: Assigned) -> Assignment:
    """Assign partitions evenly; members keep what they are assigned as far as that allows.

    Each free partition goes to the reader with least. Then partitions move from the member with
    most to the reader of their topic with least, until no member has two more than another that
    could take one.
    """
    readers = _readers(topics)
    result: Assignment = {member: set() for member in topics}
    free = []
    for topic, members in sorted(readers.items()):
        for where in (TopicPartition(topic, number) for number in range(counts.get(topic, 0))):
            holder = next((one for one in members if where in assigned.get(one, ())), None)
            if holder is None:
                free.append(where)
            else:
                result[holder].add(where)
    for where in free:
        least = min(readers[where.topic], key=lambda one: (len(result[one]), one))
        result[least].add(where)
    _even_out(result, readers)
    return result


def _even_out(result: Assignment, readers: Mapping[str, list[str]]) -> None:
    """Move partitions, each to the member with least that reads its topic."""
    by_topic: dict[str, dict[str, list[TopicPartition]]] = {member: {} for member in result}
    for member, partitions in result.items():
        for where in sorted(partitions):
            by_topic[member].setdefault(where.topic, []).append(where)
    while True:
        move = _next_move(result, by_topic, readers)
        if move is None:
            return
        giver, topic, taker = move
        where = by_topic[giver][topic].pop()
        by_topic[taker].setdefault(topic, []).append(where)
        result[giver].remove(where)
        result[taker].add(where)


def _next_move(
    result: Assignment,
    by_topic: Mapping[str, Mapping[str, list[TopicPartition]]],
    readers: Mapping[str, list[str]],
) -> tuple[str, str, str] | None:
    """Return the next move: the giver, the topic and the receiver; None if all is even."""
    for giver in sorted(result, key=lambda one: (-len(result[one]), one)):
        for topic in sorted(by_topic[giver]):
            if not by_topic[giver][topic]:
                continue
            taker = min(readers[topic], key=lambda one: (len(result[one]), one))
            if len(result[taker]) + 1 < len(result[giver]):
                return giver, topic, taker
    return None


def _readers(topics: Topics) -> dict[str, list[str]]:
    """The members that read each topic, in the order of their ids."""
    found: dict[str, list[str]] = {}
    for member in sorted(topics):
        for topic in set(topics[member]):
            found.setdefault(topic, []).append(member)
    return found


ASSIGNORS: Mapping[str, Callable[[Topics, Counts, Assigned], Assignment]] = MappingProxyType(
    {RANGE: assign_ranges, STICKY: assign_sticky}
)
