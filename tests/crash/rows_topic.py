"""One topic with one partition that a test writes to, and what is read there; what code is ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from stores import QUIET

import eoslog
from eoslog import TopicPartition

PACKAGE = str(Path(eoslog.__file__).parent)
TOPIC = "rows"
WHERE = TopicPartition(TOPIC, 0)


def is_of_the_package(frame: FrameType) -> bool:
    """For `called_at`: any line of the package."""
    return frame.f_code.co_filename.startswith(PACKAGE)


@contextmanager
def opened_with_rows(path: Path, durability: str = "process") -> Iterator[eoslog.Store]:
    """A new store with the topic."""
    with eoslog.open(path, create=True, durability=durability, config=QUIET) as opened:
        opened.create_topic(TOPIC)
        yield opened


def values(store: eoslog.Store) -> list[bytes | None]:
    """All that is committed there, in order."""
    with store.consumer() as consumer:
        consumer.assign([WHERE])
        return [record.value for record in consumer.poll(timeout=0, max_records=100_000)]
