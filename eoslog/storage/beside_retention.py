"""Reading from some offset on, while retention may delete what stands there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from eoslog.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from eoslog.storage.partition import Partition

T = TypeVar("T")


def from_what_is_left(partition: "Partition", first: int, read: Callable[[int], T]) -> T:
    """`read` from an offset on, or from the log's start if that is higher; again, if retention
    came in between.
    """
    while True:
        offset = max(first, partition.log_start_offset)
        try:
            return read(offset)
        except OffsetOutOfRangeError:
            if partition.log_start_offset <= offset:
                raise
