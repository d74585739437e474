"""A topic's partition as a name: what every part of the store is addressed by."""

from typing import NamedTuple

from eoslog.common.arguments import whole_number


class TopicPartition(NamedTuple):
    """A partition of a topic; `str()` gives the name of its directory, `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, name: str) -> "TopicPartition":
        """The partition that a directory or a key `topic-partition` names; ValueError if none."""
        topic, dash, digits = name.rpartition("-")
        if not dash or not topic or not digits.isascii() or not digits.isdigit():
            raise ValueError(f"{name!r} is not <topic>-<partition>")
        if len(digits) > 1 and digits.startswith("0"):
            raise ValueError(f"{name!r} has a partition with leading zeros")
        return cls(topic, int(digits))


def as_topic_partition(given: object) -> TopicPartition:
    """Convert what a caller named a partition with: a TopicPartition, or a pair like it; else
    TypeError.
    """
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return TopicPartition(given[0], whole_number(given[1], "a partition"))
    raise TypeError(f"a TopicPartition is expected, not {given!r:.80}")
