"""Limits of a topic for the records of one call."""

from collections.abc import Mapping
from typing import NamedTuple

from eoslog.bindings.column_set import ColumnSet
from eoslog.common import clock
from eoslog.errors import InvalidTimestampError

NO_TIMESTAMP = -1


class TopicLimits(NamedTuple):
    """Largest batch and timestamps that a topic takes."""

    message_bytes_max: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    @classmethod
    def of(cls, config: Mapping[str, int]) -> "TopicLimits":
        """Return the limits in a topic's settings."""
        return cls(
            config["max.message.bytes"],
            config["message.timestamp.before.max.ms"],
            config["message.timestamp.after.max.ms"],
        )

    def check(self, columns: ColumnSet) -> None:
        """Raise InvalidTimestampError for a timestamp that the topic does not take (-1 is none),
        RecordTooLargeError for a record that no batch takes.
        """
        if columns.timestamps is not None:
            known = columns.timestamps[columns.timestamps != NO_TIMESTAMP]
            if known.size:
                self.check_timestamps(int(known.min()), int(known.max()))
        columns.check_sizes(self.message_bytes_max)

    def check_timestamps(self, oldest_ms: int, newest_ms: int) -> None:
        """Raise InvalidTimestampError unless the topic takes timestamps from one to the other."""
        now_ms = clock.now_ms()
        if (
            oldest_ms < 0
            or now_ms - oldest_ms > self.timestamp_before_max_ms
            or newest_ms - now_ms > self.timestamp_after_max_ms
        ):
            raise InvalidTimestampError(
                f"timestamps from {oldest_ms} to {newest_ms} are outside the topic's limits "
                f"[{max(0, now_ms - self.timestamp_before_max_ms)}, "
                f"{now_ms + self.timestamp_after_max_ms}]"
            )
