"""What a recovery cut off, as the store tells it."""

from pathlib import Path
from typing import NamedTuple

from eoslog.common.topic_partition import TopicPartition


class CutTail(NamedTuple):
    """What recovery cut off a partition's log, behind which offset, and where it is kept."""

    topic_partition: TopicPartition
    bytes: int
    offset: int
    kept: Path

    def described(self) -> dict[str, object]:
        return {
            "partition": str(self.topic_partition),
            "bytes": self.bytes,
            "offset": self.offset,
            "kept": str(self.kept),
        }
