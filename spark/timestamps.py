"""Timestamps: Spark counts microseconds since 1970, a record milliseconds.

Both are instants, so no time zone has a part in the conversion. A record's time is 0 or more, as
in Kafka's producer.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from eoslog.errors import InvalidTimestampError

if TYPE_CHECKING:
    import numpy.typing as npt

    Ticks = npt.NDArray[np.int64]

# The last millisecond that Spark can hold, in the year 294,247.
TIME_MAX_MS = (2**63 - 1) // 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Of a unit, as Arrow names it: milliseconds in it, and how many of it are a millisecond.
_UNITS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}


def record_times(times: "Ticks", unit: str) -> "Ticks":
    """Return the times of a column as the milliseconds of records, rounded down.

    Raises InvalidTimestampError for a time before 1970, ValueError for one that is too late.
    """
    factor, divisor = _UNITS[unit]
    oldest, newest = int(times.min()), int(times.max())
    _check_time_min(oldest, unit)
    check_time_max(newest * factor // divisor)
    return times * factor // divisor


def record_time(moment: datetime) -> int:
    """Return the milliseconds of a record; a datetime without a zone is local, as Spark makes it.

    Raises as `record_times`.
    """
    micros = _microseconds(moment)
    _check_time_min(micros, "us")
    return micros // 1000


def _microseconds(moment: datetime) -> int:
    if moment.tzinfo is not None:
        return (moment - _EPOCH) // _MICROSECOND
    second = moment.replace(microsecond=0)
    try:
        seconds = datetime.timestamp(second)
    except (OverflowError, ValueError):
        # Python looks at the days beside it, which the years 1 and 9999 may not have.
        seconds = time.mktime(second.timetuple())
    return int(seconds) * 1_000_000 + moment.microsecond


def _check_time_min(oldest: int, unit: str) -> None:
    if oldest < 0:
        raise InvalidTimestampError(
            f"timestamp {oldest} {unit} is before 1970, where no record's time is; in integer "
            "milliseconds -1 is none"
        )


def check_time_max(time_ms: int) -> None:
    """Raise ValueError for a time that Spark cannot hold."""
    if time_ms > TIME_MAX_MS:
        raise ValueError(f"timestamp {time_ms} ms is no time that Spark can hold")


def spark_times(times_ms: "Ticks") -> "tuple[Ticks, npt.NDArray[np.bool_] | None]":
    """Return the times of records in Spark's microseconds, in the same memory, and which of them
    Spark cannot hold.
    """
    beyond = None
    if times_ms.max() > TIME_MAX_MS or times_ms.min() < -TIME_MAX_MS:
        beyond = (times_ms > TIME_MAX_MS) | (times_ms < -TIME_MAX_MS)
        times_ms[beyond] = 0
    times_ms *= 1000
    return times_ms, beyond
