"""Offsets and partitions as Spark's Kafka source writes them: `{"topic": {"0": 123}}`.

The same text stands in options, in the checkpoints of streaming queries and in their progress.
Written topics and partitions are sorted, since Spark compares offsets by their text.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from eoslog import TopicPartition
from eoslog.common.json_text import loads_json
from eoslog.common.topic_partition import is_partition

LATEST, EARLIEST = -1, -2
# What a streaming query's offsets say besides, under names that no topic has: where its first batch
# began, and which topic of the name it is.
BEGAN, ID = " (start)", " (id)"

NestedOffsets = dict[str, dict[str, int]]


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """The number of each partition in an option's text, each named once.

    Raises ValueError that names the option.
    """
    example = (
        f'option {option} must be JSON like {{"topic": {{"0": 123, "1": -1}}}}, each name once, '
        f"got {text!r:.200}"
    )
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _object(text, example).items():
        if not isinstance(numbers, dict):
            raise ValueError(example)  # noqa: TRY004 (the option's text is wrong)
        if topic.endswith((BEGAN, ID)):
            continue  # Of a query's progress or checkpoint.
        for partition, number in numbers.items():
            if not is_partition(partition) or type(number) is not int:
                raise ValueError(example)
            where = TopicPartition(topic, int(partition))
            if where in found:  # As in {"0": 1, "00": 2}.
                raise ValueError(example)
            found[where] = number
    return found


def parse_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    """The partitions in an option's text, `{"topic": [0, 1]}`, sorted. Raises ValueError."""
    example = f'option {option} must be JSON like {{"topic": [0, 1]}}, got {text!r:.200}'
    found: set[TopicPartition] = set()
    for topic, numbers in _object(text, example).items():
        if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
            raise ValueError(example)
        found.update(TopicPartition(topic, number) for number in numbers)
    if not found:
        raise ValueError(example)
    return tuple(sorted(found))


def as_nested(offsets: Mapping[TopicPartition, int]) -> NestedOffsets:
    """Offsets in the shape that Spark keeps as JSON."""
    nested: NestedOffsets = {}
    for where in sorted(offsets):
        nested.setdefault(where.topic, {})[str(where.partition)] = offsets[where]
    return nested


def from_nested(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The offset of each partition in what `as_nested` made."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, offsets in nested.items()
        for partition, offset in offsets.items()
    }


def listed(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for an error's text."""
    return ", ".join(map(str, sorted(partitions))) or "none"


def _object(text: str, example: str) -> dict[str, Any]:
    try:
        found = loads_json(text, names_once=True)
    except ValueError:
        raise ValueError(example) from None
    if not isinstance(found, dict):
        raise ValueError(example)  # noqa: TRY004 (the option's text is wrong)
    return found
