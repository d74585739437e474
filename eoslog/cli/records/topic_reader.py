"""Reading of topics for `eoslog consume`: up to where they end, or on and on."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import click

import eoslog
from eoslog import TopicDescription, TopicPartition
from eoslog.cli.options import as_duration_ms, as_moment_ms
from eoslog.common import clock
from eoslog.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from eoslog.storage.topic_registry import partition_of
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of

FETCH_RECORDS = 1000
FETCH_BYTES = 1 << 20
# Without a record, signals, new topics and the output's reader are looked for so often.
LOOK_S = 0.2
PATTERN_MARK = "^"

# Writes records of a partition from an offset on, below another one and at most so many (-1: all);
# returns how many, and the offset to go on from.
Write = Callable[[UnifiedLog, int, int, int], tuple[int, int]]


class Bound(NamedTuple):
    """Place in each partition: an offset, or with a time the first record at or after it."""

    offset: int = -1
    moment_ms: int = -1

    @classmethod
    def parse(cls, text: str, option: str) -> "Bound":
        """Return the place that an option names: an offset, "latest", a time, or an age."""
        if text == "latest":
            return cls()
        if text.isdecimal():
            return cls(offset=int(text))
        return cls(moment_ms=as_time_or_age_ms(text, option, ", no offset and not latest"))

    def offset_in(self, log: UnifiedLog, isolation: str) -> int:
        """Return the offset in a partition. Raises OffsetOutOfRangeError."""
        end = log.readable_end(isolation)
        if self.moment_ms >= 0:
            found = log.offset_for_timestamp(self.moment_ms, isolation)
            return end if found is None else min(found[0], end)
        if self.offset < 0:
            return end
        check_offset(log.topic_partition, self.offset, log.log_start_offset, end)
        return self.offset


def as_time_or_age_ms(text: str, option: str, instead: str = "") -> int:
    """Milliseconds since 1970 of a time, or of an age (PT10M) before now; none is below 0.

    `instead` is what else the option takes, for the error.
    """
    if text.startswith("P"):
        return max(0, clock.now_ms() - as_duration_ms(text, option))
    return max(0, as_moment_ms(text, option, f", no age like PT10M{instead}"))


class WantedPartitions:
    """Partitions that a command names.

    `topic` is a name, or with "^" before it a regular expression of the beginnings of names; None
    is all topics. `partitions` are numbers; none are all. Raises BadParameter.
    """

    def __init__(self, topic: str | None, partitions: tuple[int, ...]) -> None:
        self._topic = topic
        # One that is named twice is read once, where it is named first.
        self._partitions = dict.fromkeys(partitions)
        self._pattern: re.Pattern[str] | None = None
        if topic is None:
            self._pattern = re.compile("")
        elif topic.startswith(PATTERN_MARK):
            try:
                self._pattern = re.compile(topic)
            except re.error as error:
                reason = f"{topic!r} is no regular expression: {error}"
                raise click.BadParameter(reason, param_hint="TOPIC") from error

    @property
    def are_of_a_pattern(self) -> bool:
        """True if topics come and go: one that is not there is none of them."""
        return self._pattern is not None

    def topics(self, store: "eoslog.Store") -> list[TopicDescription]:
        """Return the topics that there are now. Raises UnknownTopicOrPartitionError for a name that
        is not there.
        """
        known = store.topics()
        if self._pattern is not None:
            return [known[name] for name in sorted(known) if self._pattern.match(name)]
        if self._topic not in known:
            raise UnknownTopicOrPartitionError(f"no topic {self._topic!r} in {store.path}")
        return [known[self._topic]]

    def of(self, topic: TopicDescription) -> list[TopicPartition]:
        """Return the partitions of a topic; what topics of a pattern do not have is left out.

        Raises UnknownTopicOrPartitionError.
        """
        numbers = self._partitions or range(topic.partitions)
        if self._pattern is None:
            return [partition_of(topic, number) for number in numbers]
        return [TopicPartition(topic.name, one) for one in numbers if one < topic.partitions]


class TopicReader:
    """Reads partitions of topics one after the other, and knows how far it came."""

    def __init__(
        self,
        wanted: WantedPartitions,
        isolation: str,
        write: Write,
        max_records: int | None,
        start: Bound | None,
    ) -> None:
        self._wanted = wanted
        self._isolation = isolation
        self._write = write
        self.left = max_records
        self._start = (
            start  # Of what is there at first; what comes later is read from its beginning.
        )
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        # By the topic's id: one that is made again under its name is read from its beginning.
        self._positions: dict[tuple[str, int], int] = {}
        self.moved: dict[TopicPartition, int] = {}

    @property
    def is_done(self) -> bool:
        """True if all records that were asked for are written."""
        return self.left == 0

    def attach(self, store: "eoslog.Store") -> None:
        """Read this store from now on, from where it came."""
        self._store = store
        self._logs = {}

    def reopen(self) -> None:
        """Open the partitions again: one was closed. Raises what it says if that was the store."""
        engine_of(self._store).check_open()
        self._logs = {}

    def take_up(self) -> list[TopicPartition]:
        """Take up the partitions that are there now, and return those that are new.

        Raises UnknownTopicOrPartitionError for a topic that is named and not there, and
        OffsetOutOfRangeError.
        """
        found: dict[TopicPartition, UnifiedLog] = {}
        new = []
        for topic in self._wanted.topics(self._store):
            for where in self._wanted.of(topic):
                log = self._logs.get(where)
                if log is None or log.topic_id != topic.topic_id:
                    try:
                        log = engine_of(self._store).partition(*where)
                    except UnknownTopicOrPartitionError:
                        if self._wanted.are_of_a_pattern:
                            continue  # It was deleted just now.
                        raise
                found[where] = log
                if (log.topic_id, where.partition) not in self._positions:
                    first = log.log_start_offset
                    if self._start is not None:
                        first = self._start.offset_in(log, self._isolation)
                    self._positions[log.topic_id, where.partition] = first
                    new.append(where)
        self._logs = found
        self._start = None
        return new

    def go_to(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Go on at these offsets, as far as the partitions still have them."""
        for where, offset in offsets.items():
            if offset is not None:
                log = self._logs[where]
                self._positions[log.topic_id, where.partition] = max(offset, log.log_start_offset)

    def ends(self, end: Bound | None = None) -> dict[TopicPartition, int]:
        """Return where each partition ends, for a consumer of the isolation level, or at `end`."""
        return {
            where: log.readable_end(self._isolation)
            if end is None
            else end.offset_in(log, self._isolation)
            for where, log in self._logs.items()
        }

    def read(
        self, ends: Mapping[TopicPartition, int], stops: Callable[[], bool] = lambda: False
    ) -> None:
        """Write the records below these ends, until there were enough or `stops` says so."""
        for where, upper_bound in ends.items():
            log = self._logs[where]
            key = (log.topic_id, where.partition)
            while self._positions[key] < upper_bound and not self.is_done and not stops():
                position = self._positions[key]
                wanted = -1 if self.left is None else self.left
                count, following = self._write(log, position, upper_bound, wanted)
                if following == position:
                    break
                self._positions[key] = self.moved[where] = following
                if self.left is not None:
                    self.left -= count

    def skip_what_is_gone(self) -> list[str]:
        """Go to where the partitions begin whose next records were deleted; return what is gone."""
        skipped = []
        for where, log in self._logs.items():
            key, start = (log.topic_id, where.partition), log.log_start_offset
            if self._positions[key] < start:
                skipped.append(f"{where}: offsets {self._positions[key]} to {start - 1}")
                self._positions[key] = start
        return skipped

    def wait(self) -> None:
        """Wait until there may be something to read, or to look for."""
        engine_of(self._store).signal.wait(self._logs.values(), self._is_ready, LOOK_S)

    def _is_ready(self) -> bool:
        return any(
            log.readable_end(self._isolation) > self._positions[log.topic_id, where.partition]
            for where, log in self._logs.items()
        )


def check_offset(target: TopicPartition, offset: int, start: int, end: int) -> None:
    """Raise OffsetOutOfRangeError for an offset that the partition does not reach."""
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"no offset {offset} in {target.topic}-{target.partition}, which has {start} to {end}"
        )
