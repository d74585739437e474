"""A topic's partition as a name: what every part of the store is addressed by."""

from typing import NamedTuple


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
