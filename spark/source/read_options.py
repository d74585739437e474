"""The options of a read, checked before Spark plans anything: those of Spark's Kafka source.

`maxBytesPerPartition` is one of our own, and `pushDownPredicate` is that of Spark's JDBC source. A
batch and a stream know different ones; what has a meaning for the other alone is refused where
Kafka's source refuses it, and else ignored, with a warning.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eoslog.spark.source.offset_bounds import (
    STRATEGY,
    OffsetBound,
    check_order,
    ending_bound,
    starting_bound,
)
from eoslog.spark.source.offset_json import EARLIEST, LATEST
from eoslog.spark.source.offset_ranges import SplitRule
from eoslog.spark.source.read_schema import INCLUDE_HEADERS
from eoslog.spark.source.topic_choice import CHOICE_OPTIONS, TopicChoice
from eoslog.spark.source_options import check_options, find, flag, store_path, text, whole

_log = logging.getLogger(__name__)

Isolation = Literal["read_committed", "read_uncommitted"]

_ISOLATION_LEVEL = "kafka.isolation.level"
_GROUP = "kafka.group.id"
PUSH_DOWN = "pushDownPredicate"
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", STRATEGY)
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
# Kafka's source has them for its clients, and a group id is a label only: Spark keeps the offsets.
_WITHOUT_USE = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
KNOWN_OPTIONS = frozenset(
    {
        *CHOICE_OPTIONS,
        *_STARTING,
        *_ENDING,
        *_OF_STREAMS,
        *_WITHOUT_USE,
        _ISOLATION_LEVEL,
        _GROUP,
        INCLUDE_HEADERS,
        PUSH_DOWN,
        "failOnDataLoss",
        "minPartitions",
        "maxRecordsPerPartition",
        "maxBytesPerPartition",
    }
)
# Options that this process has warned of as ignored.
_warned: set[str] = set()
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)?")
_MILLISECONDS_IN = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class ReadOptions:
    """Options that batch and streaming reads share; plain values, to be sent to tasks."""

    store: Path
    choice: TopicChoice
    starting: OffsetBound
    ending: OffsetBound
    isolation_level: Isolation
    fail_on_data_loss: bool
    split: SplitRule
    # Of streams; "" and 0: none.
    group: str = ""
    max_offsets_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 0

    @classmethod
    def of_batch(cls, options: Mapping[str, str]) -> "ReadOptions":
        """The options of a batch read: from earliest to latest, if they do not say.

        Raises ValueError that names the option which is missing, unknown or wrong.
        """
        check_options(options, KNOWN_OPTIONS, "batch read")
        _tell_ignored(options, (*_OF_STREAMS, *_WITHOUT_USE, _GROUP), "a batch read")
        starting = starting_bound(options, EARLIEST, stream=False)
        ending = ending_bound(options)
        check_order(starting, ending)
        return _common(options, starting, ending)

    @classmethod
    def of_stream(cls, options: Mapping[str, str]) -> "ReadOptions":
        """The options of a streaming read: from latest on, if they do not say.

        Raises ValueError.
        """
        check_options(options, KNOWN_OPTIONS, "streaming read")
        _tell_ignored(options, (*_WITHOUT_USE, PUSH_DOWN), "a streaming read")
        for name in _ENDING:
            if find(options, name) is not None:
                raise ValueError(f"option {name}: a streaming read has no end")
        fewest = whole(options, "minOffsetsPerTrigger", 0, 1)
        most = whole(options, "maxOffsetsPerTrigger", 0, 1)
        if most and fewest > most:
            raise ValueError(f"minOffsetsPerTrigger {fewest} is above maxOffsetsPerTrigger {most}")
        return _common(
            options,
            starting_bound(options, LATEST, stream=True),
            OffsetBound("endingOffsets", LATEST),
            text(options, _GROUP) or "",
            most,
            fewest,
            _duration_ms(options, "maxTriggerDelay", "15m"),
        )


def _common(
    options: Mapping[str, str],
    starting: OffsetBound,
    ending: OffsetBound,
    group: str = "",
    most: int = 0,
    fewest: int = 0,
    delay_ms: int = 0,
) -> ReadOptions:
    split = SplitRule(
        whole(options, "minPartitions", 0, 1),
        whole(options, "maxRecordsPerPartition", 0, 1),
        whole(options, "maxBytesPerPartition", 0, 1),
    )
    return ReadOptions(
        store_path(options),
        TopicChoice.of(options),
        starting,
        ending,
        _isolation_of(options),
        flag(options, "failOnDataLoss", True),
        split,
        group,
        most,
        fewest,
        delay_ms,
    )


def _isolation_of(options: Mapping[str, str]) -> Isolation:
    level = (text(options, _ISOLATION_LEVEL) or "read_committed").strip().lower()
    if level == "read_committed":
        return "read_committed"
    if level == "read_uncommitted":
        return "read_uncommitted"
    raise ValueError(
        f"option {_ISOLATION_LEVEL} must be read_committed or read_uncommitted, got {level!r}"
    )


def _duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    given = text(options, name) or default
    match = _DURATION.fullmatch(given.strip().lower())
    if match is None:
        raise ValueError(f"option {name} must be a time like 500ms, 30s or 15m, got {given!r}")
    return int(match[1]) * _MILLISECONDS_IN[match[2] or "ms"]


def _tell_ignored(options: Mapping[str, str], names: tuple[str, ...], use: str) -> None:
    for name in names:
        if find(options, name) is not None and name not in _warned:
            _warned.add(name)
            _log.warning("option %s is ignored: %s has no use for it", name, use)
