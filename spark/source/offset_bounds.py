"""Bounds of a read: what the options say, and which offsets these are in a store.

A time beats offsets, and a time for all partitions beats one for each, as in Spark's Kafka source.
"latest" is an offset that cuts no transaction in two, given by the caller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from eoslog import TopicPartition
from eoslog.common.config import INT64_MAX
from eoslog.errors import OffsetOutOfRangeError
from eoslog.spark.source.data_loss import report_data_loss
from eoslog.spark.source.offset_json import EARLIEST, LATEST, listed, parse_offsets
from eoslog.spark.source_options import text, whole
from eoslog.storage.unified_log import UnifiedLog

Edge = Literal["starting", "ending"]
STRATEGY = "startingOffsetsByTimestampStrategy"


@dataclass(frozen=True)
class OffsetBound:
    """One edge of a read: an offset or a time for each partition, or one for all of them."""

    option: str
    everywhere: int | None = None  # EARLIEST or LATEST; in milliseconds where `is_time`.
    each: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False
    # Where there is no record at or after the time: an error, or the end.
    fail_without_match: bool = False

    @property
    def is_fixed(self) -> bool:
        """True if it is the same offset whenever it is looked up, but for retention."""
        if self.is_time:
            return self.fail_without_match
        return self.everywhere != LATEST and LATEST not in self.each.values()

    def number_of(self, where: TopicPartition | None) -> int | None:
        """The offset or time of a partition, or of all; None if the options do not say."""
        return self.everywhere if where is None else self.each.get(where, self.everywhere)


def starting_bound(options: Mapping[str, str], default: int, *, stream: bool) -> OffsetBound:
    """Return where the options let a read begin; a batch cannot begin at the end. Raises
    ValueError.
    """
    strategy = (text(options, STRATEGY) or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ValueError(f"option {STRATEGY} must be error or latest, got {strategy!r}")
    bound = _bound_of(options, "starting", default, fail_without_match=strategy == "error")
    if not stream and not bound.is_time and LATEST in (bound.everywhere, *bound.each.values()):
        raise ValueError(f"option {bound.option}: a batch read cannot begin at latest (-1)")
    return bound


def ending_bound(options: Mapping[str, str]) -> OffsetBound:
    """Return where the options let a batch read end: at latest, if they do not say. Raises
    ValueError.
    """
    bound = _bound_of(options, "ending", LATEST, fail_without_match=False)
    if not bound.is_time and EARLIEST in (bound.everywhere, *bound.each.values()):
        raise ValueError(f"option {bound.option}: a read cannot end at earliest (-2)")
    return bound


def check_order(starting: OffsetBound, ending: OffsetBound) -> None:
    """Raise ValueError if the options let a read end before it begins."""
    if starting.is_time is not ending.is_time:
        return
    partitions = sorted({*starting.each, *ending.each})
    for where in (None, *partitions):
        first, end = starting.number_of(where), ending.number_of(where)
        # EARLIEST and LATEST are below 0.
        if first is not None and end is not None and first > end >= 0:
            place = "" if where is None else f" in {where}"
            raise ValueError(
                f"option {ending.option}{place} is {end}, and {starting.option} is {first}: "
                "the read would end before it begins"
            )


def _bound_of(
    options: Mapping[str, str], edge: Edge, default: int, *, fail_without_match: bool
) -> OffsetBound:
    name = f"{edge}Timestamp"
    if text(options, name) is not None:
        time_ms = whole(options, name, 0, 0)
        return OffsetBound(name, time_ms, {}, True, fail_without_match)
    name = f"{edge}OffsetsByTimestamp"
    if (given := text(options, name)) is not None:
        times_ms = parse_offsets(name, given)
        if not all(0 <= time_ms <= INT64_MAX for time_ms in times_ms.values()):
            raise ValueError(f"option {name}: milliseconds must be from 0 to {INT64_MAX}")
        return OffsetBound(name, None, times_ms, True, fail_without_match)
    name = f"{edge}Offsets"
    given = (text(options, name) or "").strip()
    words = {"": default, "earliest": EARLIEST, "latest": LATEST}
    if given.lower() in words:
        return OffsetBound(name, words[given.lower()])
    offsets = parse_offsets(name, given)
    if any(offset < EARLIEST for offset in offsets.values()):
        raise ValueError(f"option {name}: offsets must be 0 or more, -1 (latest) or -2 (earliest)")
    return OffsetBound(name, None, offsets)


def starting_offsets(
    bound: OffsetBound,
    partitions: Iterable[UnifiedLog],
    latest: Mapping[TopicPartition, int],
    isolation_level: str,
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, int]:
    """The offset at which each partition's read begins.

    Raises ValueError if the options do not speak of exactly these partitions,
    OffsetOutOfRangeError for an offset that is not in the log, and for a time without records at
    or after it.
    """
    found: dict[TopicPartition, int] = {}
    for where, partition, wanted in _wanted(bound, partitions):
        earliest = partition.log_start_offset
        if bound.is_time:
            found[where] = _offset_at(bound, partition, wanted, latest[where], isolation_level)
            continue
        if wanted in (EARLIEST, LATEST):
            found[where] = earliest if wanted == EARLIEST else max(earliest, latest[where])
            continue
        # What is not decided yet may begin the read of a stream, which waits for it.
        end = partition.log_end_offset
        if not earliest <= wanted <= end:
            report_data_loss(
                fail_on_data_loss,
                f"{bound.option} of {where} is {wanted}, and the log has {earliest} to {end}",
            )
        found[where] = min(max(earliest, wanted), end)
    return found


def ending_offsets(
    bound: OffsetBound,
    partitions: Iterable[UnifiedLog],
    latest: Mapping[TopicPartition, int],
    isolation_level: str,
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, int]:
    """The offset before which each partition's read ends. Raises as `starting_offsets` does."""
    found: dict[TopicPartition, int] = {}
    for where, partition, wanted in _wanted(bound, partitions):
        if bound.is_time:
            at = _offset_at(bound, partition, wanted, latest[where], isolation_level)
            found[where] = min(at, latest[where])
            continue
        if wanted == LATEST:
            found[where] = latest[where]
            continue
        end = partition.readable_end(isolation_level)
        if wanted > end:
            report_data_loss(
                fail_on_data_loss,
                f"{bound.option} of {where} is {wanted}, and {isolation_level} ends at {end}",
            )
        found[where] = min(wanted, end)
    return found


def _wanted(
    bound: OffsetBound, partitions: Iterable[UnifiedLog]
) -> Iterable[tuple[TopicPartition, UnifiedLog, int]]:
    known = {partition.topic_partition: partition for partition in partitions}
    if bound.everywhere is None and bound.each.keys() != known.keys():
        raise ValueError(
            f"option {bound.option} must name each partition that is read, and no other: it has "
            f"{listed(bound.each)}; read are {listed(known)}"
        )
    for where, partition in known.items():
        number = bound.each[where] if bound.everywhere is None else bound.everywhere
        yield where, partition, number


def _offset_at(
    bound: OffsetBound, partition: UnifiedLog, time_ms: int, latest: int, isolation_level: str
) -> int:
    at = partition.offset_for_timestamp(time_ms, isolation_level)
    if at is not None:
        return at[0]
    if bound.fail_without_match:
        raise OffsetOutOfRangeError(
            f"{bound.option}: {partition.topic_partition} has no record at or after {time_ms} ms; "
            f"with option {STRATEGY}=latest its read begins at the end"
        )
    return max(latest, partition.log_start_offset)
