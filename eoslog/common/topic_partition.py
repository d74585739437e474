"""Name of a partition of a topic."""

from typing import NamedTuple

_DIGITS_MAX = 10  # Of 2**31 - 1.


class TopicPartition(NamedTuple):
    """Partition of a topic; `str()` gives the name of its directory, `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, name: str) -> "TopicPartition":
        """Return the partition that `topic-partition` names. Raises ValueError."""
        topic, dash, digits = name.rpartition("-")
        if not dash or not topic or not is_partition(digits):
            raise ValueError(f"{name!r:.80} is not <topic>-<partition>")
        if len(digits) > 1 and digits.startswith("0"):
            raise ValueError(f"{name!r} has a partition with leading zeros")
        return cls(topic, int(digits))


def is_partition(text: str) -> bool:
    """True if a text is the number of a partition, in digits."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def as_topic_partition(given: object) -> TopicPartition:
    """Return a TopicPartition, or a pair like it, as a TopicPartition. Raises TypeError."""
    if type(given) is TopicPartition and type(given[1]) is int and type(given[0]) is str:
        return given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        from eoslog.common.arguments import whole_number  # What it loads not every caller needs.

        return TopicPartition(given[0], whole_number(given[1], "a partition"))
    raise TypeError(f"expected a TopicPartition, got {given!r:.80}")
