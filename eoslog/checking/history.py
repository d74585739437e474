"""History: its words, its columns, and functions of groups of rows.

The words are the kinds of operations, their outcomes and their fields.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from eoslog.errors import EoslogError

SEND, POLL, SEEK, INIT, COMMIT, ABORT, OFFSETS, COMMITTED, ENDS = range(9)
KINDS: Final = (
    "send",
    "poll",
    "seek",
    "init",
    "commit",
    "abort",
    "offsets",
    "committed",
    "ends",
)

OK, FAIL, UNKNOWN = range(3)
OUTCOMES: Final = ("ok", "fail", "unknown")

READ_COMMITTED, READ_UNCOMMITTED = range(2)
ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")

# No transaction, no offset, no producer id, no row.
NONE: Final = -1
# The end of an operation that took effect at an unknown time, or never.
NEVER_NS: Final = 1 << 62
# Offsets and partitions share one 64-bit key.
OFFSET_BITS: Final = 44
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1
PARTITIONS_MAX: Final = 1 << (63 - OFFSET_BITS)
# The greatest number of a partition.
PARTITION_MAX: Final = (1 << 31) - 1

_EVERY = frozenset({"client", "op", "kind", "begin_ns", "end_ns", "outcome", "error", "note"})
_WRITER = frozenset({"transaction", "transactional_id", "producer_id", "producer_epoch"})
FIELDS: Final = {
    "send": _EVERY | _WRITER | {"topic", "partition", "offset", "value", "values"},
    "poll": _EVERY | {"isolation", "records", "next", "transaction"},
    "seek": _EVERY | {"positions"},
    "init": _EVERY | {"transactional_id", "producer_id", "producer_epoch"},
    "commit": _EVERY | _WRITER,
    "abort": _EVERY | _WRITER,
    "offsets": _EVERY | _WRITER | {"group", "offsets"},
    "committed": _EVERY | {"group", "offsets"},
    "ends": _EVERY | {"offsets", "isolation"},
}


# A history as columns: one row per operation, record, position and offset.
#
# Rows refer to each other by number. A name in the history (of a client, a transaction or a
# partition, or a record's value) is a number in the columns, and an index into a list.


Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Columns:
    """Columns of the same length, named by the subclass's annotations."""

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the columns, in their order."""
        return list(cls.__annotations__)

    def __len__(self) -> int:
        return len(self.__dict__[self.names()[0]])

    def where(self, rows: Any) -> "Any":
        """Return the rows that a mask or a list of row numbers chooses."""
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
    """One row per record of a `send`, in the order of the call."""

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
    """Offsets of partitions that an operation was given or returned; NONE if it had none."""

    op: Numbers
    partition: Numbers
    offset: Numbers


@dataclass
class Names:
    """Names of the numbers in the columns."""

    files: list[str]
    clients: list[str]
    transactions: list[str]
    transactional_ids: list[str]
    groups: list[str]
    topics: list[str]
    partitions: list[str]
    partition_topics: list[int]
    values: list[str | int]


@dataclass
class History:
    """History of a run: the calls of its clients, and their results. `read_history` makes it."""

    names: Names
    ops: Operations
    sends: Sends
    reads: Reads  # Of polls that are ok.
    next: Positions  # Where polls that are ok left the consumer.
    seeks: Positions
    offset_writes: Positions  # Of `offsets`; the group is the operation's.
    offset_reads: Positions  # Of `committed` that are ok.
    ends: Positions  # Of `ends` that are ok.


# Rows that belong together: the least per group, the row before, runs of equal keys.


def least(groups: Numbers, values: Numbers, count: int) -> Numbers:
    """Return the least value of each group; NEVER_NS for a group without rows."""
    found = np.full(count, NEVER_NS, dtype=np.int64)
    np.minimum.at(found, groups, values)
    return found


def least_row(groups: Numbers, rows: Numbers, count: int) -> Numbers:
    """Return the least row number of each group; NONE for a group without rows."""
    found = least(groups, rows, count)
    return np.where(found == NEVER_NS, NONE, found)


def greatest(groups: Numbers, values: Numbers, count: int) -> Numbers:
    """Return the greatest value of each group; NONE for a group without rows."""
    found = np.full(count, NONE, dtype=np.int64)
    np.maximum.at(found, groups, values)
    return found


def any_of(groups: Numbers, chosen: Flags, count: int) -> Flags:
    """Return for each group if any of its rows is chosen."""
    found = np.zeros(count, dtype=bool)
    found[groups[chosen]] = True
    return found


def distinct(values: Numbers) -> Numbers:
    """Return the different values, sorted."""
    ordered = np.sort(values)
    return ordered[~same_as_before(ordered)]


def same_as_before(*keys: Numbers) -> Flags:
    """Return for each of the sorted rows if it has the keys of the row before it."""
    same = np.ones(len(keys[0]), dtype=bool)
    same[:1] = False
    for key in keys:
        same[1:] &= key[1:] == key[:-1]
    return same


def group_numbers(same: Flags) -> Numbers:
    """Return for each of the sorted rows the number of its group, from 0 on."""
    numbers: Numbers = np.cumsum(~same, dtype=np.int64) - 1
    return numbers


def place_keys(partitions: Numbers, offsets: Numbers) -> Numbers:
    """Return one number for a partition and an offset; their order is that of both.

    The upper bound after the greatest offset is the first place of the next partition.
    """
    return (partitions << OFFSET_BITS) + offsets


def rows_of(keys: Numbers, key: int) -> Any:
    """Return the rows of a sorted column that hold a key, as a slice."""
    return slice(int(np.searchsorted(keys, key, "left")), int(np.searchsorted(keys, key, "right")))


def running_greatest(groups: Numbers, values: Numbers) -> Numbers:
    """Return for rows sorted by group the greatest value of the group up to each row, inclusive."""
    ordered, ranks = np.unique(values, return_inverse=True)
    width = len(values) + 1
    found = np.maximum.accumulate(groups * width + ranks)
    return ordered[found - groups * width]


def greatest_before(
    groups: Numbers, times: Numbers, values: Numbers, asked_groups: Numbers, asked_times: Numbers
) -> Numbers:
    """Return for each asked time the greatest value of its group at an earlier time, or NONE.

    Times may be any numbers that order the rows; an equal one is not earlier.
    """
    count = len(asked_groups)
    none = np.full(count, NONE, dtype=np.int64)
    group = np.concatenate([asked_groups, groups])
    time = np.concatenate([asked_times, times])
    value = np.concatenate([none, values])
    order = np.lexsort((np.arange(len(group)), time, group))  # At equal times the asked one first.
    numbers = group_numbers(same_as_before(group[order]))
    greatest_so_far = running_greatest(numbers, value[order])
    asks = order < count
    found = np.empty(count, dtype=np.int64)
    found[order[asks]] = greatest_so_far[asks]
    return found


# The error of a history that cannot be checked.


class HistoryError(EoslogError, ValueError):
    """A line of a history does not follow `docs/checking.md`; nothing was checked.

    Attributes
    ----------
    path : str
        The file.
    line_number : int
        The line, from 1.
    field : str
        The field; "" for the whole line.
    reason : str
        The error.
    """

    path: str
    line_number: int
    field: str
    reason: str

    def __init__(self, path: str, line_number: int, field: str, reason: str) -> None:
        place = f", field {field!r}" if field else ""
        super().__init__(f"{path}, line {line_number}{place}: {reason}")
        self.path = path
        self.line_number = line_number
        self.field = field
        self.reason = reason

    def __reduce__(self) -> tuple[type["HistoryError"], tuple[str, int, str, str]]:
        return type(self), (self.path, self.line_number, self.field, self.reason)
