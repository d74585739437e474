"""Filters of a query that leave parts of the log unread: by topic, partition, offset and time.

Spark applies every filter itself as well, so a bound that is too wide costs time and no row. One
that is too narrow would lose rows: a filter that is not understood bounds nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from eoslog import TopicPartition
from eoslog.common.config import INT64_MAX
from eoslog.spark.source.offset_ranges import OffsetRange
from eoslog.storage.unified_log import UnifiedLog

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = ("partition", "offset")
_EXACT = (EqualTo, EqualNullSafe)
_LOWER = (GreaterThan, GreaterThanOrEqual, *_EXACT)
_UPPER = (LessThan, LessThanOrEqual, *_EXACT)


@dataclass
class _Bounds:
    """Values [first, last] that a column may have; `only` are all of them, if they are known."""

    first: int = -1
    last: int = INT64_MAX
    only: set[Any] | None = None

    def narrow(self, one: Filter, number: int) -> None:
        if isinstance(one, _LOWER):
            self.first = max(self.first, number + isinstance(one, GreaterThan))
        if isinstance(one, _UPPER):
            self.last = min(self.last, number - isinstance(one, LessThan))

    def allow(self, values: set[Any]) -> None:
        self.only = values if self.only is None else self.only & values

    def has(self, value: Any) -> bool:
        return self.only is None or value in self.only


@dataclass
class Pruning:
    """The part of the log that the filters of a query leave to read."""

    topic: _Bounds = field(default_factory=_Bounds)
    partition: _Bounds = field(default_factory=_Bounds)
    offset: _Bounds = field(default_factory=_Bounds)
    # Times of records need not rise: the first offset with a time is known, a last one is not.
    first_timestamp_ms: int = -1

    def add(self, one: Filter) -> None:
        """Take one filter into account; all of them hold for each row that is wanted."""
        column = getattr(one, "attribute", ("",))
        if len(column) != 1:
            return
        name, value = column[0], getattr(one, "value", None)
        if isinstance(one, In):
            cells = one.value
            if name == "topic" or (name in _NUMBERS and all(type(cell) is int for cell in cells)):
                getattr(self, name).allow(set(cells))
        elif name == "topic" and isinstance(one, _EXACT):
            self.topic.allow({value})
        elif name in _NUMBERS and type(value) is int:
            getattr(self, name).narrow(one, value)
        elif name == "timestamp" and isinstance(one, _LOWER) and isinstance(value, datetime):
            self._begin_at(value)

    def _begin_at(self, moment: datetime) -> None:
        if moment.tzinfo is not None:  # Else it depends on the session's time zone.
            moment_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
            self.first_timestamp_ms = max(self.first_timestamp_ms, moment_ms)

    def keeps(self, where: TopicPartition) -> bool:
        """Return True unless no row of the partition can pass the filters."""
        number = self.partition
        return (
            self.topic.has(where.topic)
            and number.has(where.partition)
            and number.first <= where.partition <= number.last
        )

    def ranges(
        self,
        ranges: Iterable[OffsetRange],
        partitions: Mapping[TopicPartition, UnifiedLog],
        isolation_level: str,
    ) -> list[OffsetRange]:
        """The parts of these ranges in which rows may be that pass the filters."""
        offset = self.offset
        if offset.only is not None:
            first = max(offset.first, min(offset.only, default=INT64_MAX))
            last = min(offset.last, max(offset.only, default=-1))
        else:
            first, last = offset.first, offset.last
        found = []
        for one in ranges:
            if not self.keeps(one.where):
                continue
            begin = max(one.first, first)
            if self.first_timestamp_ms >= 0:
                log = partitions[one.where]
                at = log.offset_for_timestamp(self.first_timestamp_ms, isolation_level)
                begin = one.upper_bound if at is None else max(begin, at[0])
            kept = OffsetRange(one.where, begin, min(one.upper_bound, last + 1))
            if kept.first < kept.upper_bound:
                found.append(kept)
        return found
