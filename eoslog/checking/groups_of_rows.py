"""Rows that belong together, in numpy: the least per group, the row before, runs of equal keys."""

from typing import Any

import numpy as np

from eoslog.checking.history import NEVER_NS, NONE, OFFSET_BITS, Flags, Numbers


def least(groups: Numbers, values: Numbers, count: int, default: int = NEVER_NS) -> Numbers:
    """The least value of each group; `default` for a group without rows."""
    found = np.full(count, default, dtype=np.int64)
    np.minimum.at(found, groups, values)
    return found


def greatest(groups: Numbers, values: Numbers, count: int, default: int) -> Numbers:
    """The greatest value of each group; `default` for a group without rows."""
    found = np.full(count, default, dtype=np.int64)
    np.maximum.at(found, groups, values)
    return found


def any_of(groups: Numbers, chosen: Flags, count: int) -> Flags:
    """Return for each group if any of its rows is chosen."""
    found = np.zeros(count, dtype=bool)
    found[groups[chosen]] = True
    return found


def distinct(values: Numbers) -> Numbers:
    """The values that there are, sorted, each once."""
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
    """One number for a partition and an offset; their order is that of both.

    The offset behind the greatest one, an upper bound, is the first place of the next partition.
    """
    return (partitions << OFFSET_BITS) + offsets


def rows_of(keys: Numbers, key: int) -> Any:
    """The rows of a sorted column that hold a key, as a slice."""
    return slice(int(np.searchsorted(keys, key, "left")), int(np.searchsorted(keys, key, "right")))


def running_greatest(groups: Numbers, values: Numbers) -> Numbers:
    """Return for rows sorted by group the greatest value of the group up to and with each row."""
    ordered, ranks = np.unique(values, return_inverse=True)
    width = len(values) + 1
    found = np.maximum.accumulate(groups * width + ranks)
    return ordered[found - groups * width]


def greatest_before(
    groups: Numbers, times: Numbers, values: Numbers, asked_groups: Numbers, asked_times: Numbers
) -> Numbers:
    """Return for each that asks the greatest value of its group of an earlier time, or NONE.

    Times may be any numbers that order the rows; one that is the same is not earlier.
    """
    count = len(asked_groups)
    none = np.full(count, NONE, dtype=np.int64)
    group = np.concatenate([asked_groups, groups])
    time = np.concatenate([asked_times, times])
    value = np.concatenate([none, values])
    order = np.lexsort((np.arange(len(group)), time, group))  # Who asks at a time comes first.
    numbers = group_numbers(same_as_before(group[order]))
    greatest_so_far = running_greatest(numbers, value[order])
    asks = order < count
    found = np.empty(count, dtype=np.int64)
    found[order[asks]] = greatest_so_far[asks]
    return found
