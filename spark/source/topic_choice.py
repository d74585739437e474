"""Partitions that a read is of: `subscribe`, `subscribePattern` or `assign`, as in Kafka's source.

A pattern is matched again each time, so that a stream finds topics that are made later.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from eoslog import Store, TopicPartition
from eoslog.errors import UnknownTopicOrPartitionError
from eoslog.spark.source.offset_json import parse_partitions
from eoslog.spark.source_options import text

CHOICE_OPTIONS = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True)
class TopicChoice:
    """One of the three: names of topics, a pattern of whole names, or partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "TopicChoice":
        """The choice that the options make. Raises ValueError unless it is exactly one."""
        given = {
            name: value for name in CHOICE_OPTIONS if (value := text(options, name)) is not None
        }
        if len(given) != 1:
            raise ValueError(
                f"a read needs one of the options {', '.join(CHOICE_OPTIONS)}, "
                f"and has {' and '.join(given) or 'none'}"
            )
        if "assign" in given:
            return cls(assigned=parse_partitions("assign", given["assign"]))
        if "subscribePattern" in given:
            return cls(pattern=_checked_pattern(given["subscribePattern"].strip()))
        names = {name.strip() for name in given["subscribe"].split(",")}
        if "" in names:
            raise ValueError(f"option subscribe has an empty name: {given['subscribe']!r}")
        return cls(topics=tuple(sorted(names)))

    def partitions(
        self, store: Store, known: Collection[TopicPartition] | None = ()
    ) -> list[TopicPartition]:
        """The chosen partitions that there are, sorted.

        Raises UnknownTopicOrPartitionError for one that was named and is not there, unless it is
        among those that are `known` of before: what to do about its loss is the caller's affair.
        None stands for all that there could be.
        """
        counts = {name: topic.partitions for name, topic in store.topics().items()}
        missing: list[str]
        if self.assigned:
            there = [w for w in self.assigned if 0 <= w.partition < counts.get(w.topic, 0)]
            missing = [str(w) for w in self.assigned if w not in there and w not in (known or ())]
        else:
            names = self._names(counts)
            there = [TopicPartition(name, n) for name in names for n in range(counts.get(name, 0))]
            known_topics = {where.topic for where in known or ()}
            missing = [name for name in names if name not in counts and name not in known_topics]
        if missing and known is not None:
            raise UnknownTopicOrPartitionError(f"{store.path} has no {', '.join(missing)}")
        return sorted(there)

    def _names(self, counts: Mapping[str, int]) -> list[str]:
        if self.pattern is None:
            return list(self.topics)
        pattern = re.compile(self.pattern)
        return [name for name in sorted(counts) if pattern.fullmatch(name)]


def _checked_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"option subscribePattern {pattern!r}: {error}") from None
    return pattern
