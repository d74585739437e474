"""A history as columns: one row per operation, record, position and offset.

Rows name each other by number. Whatever has a name in the history (a client, a transaction, a
topic's partition, a record's value) is a number in the columns and found by it in a list.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Columns:
    """Columns of the same length, named by the subclass's annotations."""

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    @classmethod
    def names(cls) -> list[str]:
        """The columns' names, in their order."""
        return list(cls.__annotations__)

    def __len__(self) -> int:
        return len(self.__dict__[self.names()[0]])

    def where(self, rows: Any) -> "Any":
        """The rows that a mask or a list of row numbers chooses."""
        return type(self)(**{name: self.__dict__[name][rows] for name in self.names()})


class Operations(Columns):
    """One row per operation."""

    client: Numbers
    kind: Numbers
    outcome: Numbers
    begin: Numbers
    end: Numbers  # NEVER_NS where the outcome is not known.
    transaction: Numbers
    transactional_id: Numbers
    producer_id: Numbers
    epoch: Numbers
    group: Numbers
    isolation: Numbers
    file: Numbers
    line: Numbers


class Sends(Columns):
    """One row per record that a `send` was to write, in the order of the call."""

    op: Numbers
    topic: Numbers
    partition: Numbers
    offset: Numbers
    value: Numbers


class Reads(Columns):
    """One row per record that a `poll` returned, in its order."""

    op: Numbers
    partition: Numbers
    offset: Numbers
    value: Numbers


class Positions(Columns):
    """Offsets of partitions that an operation was given or answered; NONE where it had none."""

    op: Numbers
    partition: Numbers
    offset: Numbers


@dataclass
class Names:
    """What the numbers of the columns stand for."""

    files: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)
    transactional_ids: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    partitions: list[str] = field(default_factory=list)
    partition_topics: list[int] = field(default_factory=list)
    values: list[str | int] = field(default_factory=list)


@dataclass
class History:
    """What clients did and were told; `read_history` makes it."""

    names: Names
    ops: Operations
    sends: Sends
    reads: Reads  # Of polls that are ok.
    next: Positions  # Where polls that are ok left the consumer.
    seeks: Positions
    offset_writes: Positions  # Of `offsets`; the group is the operation's.
    offset_reads: Positions  # Of `committed` that are ok.
    ends: Positions  # Of `ends` that are ok.
