"""The wall clock. No other module of `eoslog` or `eoslog.spark` reads it; native code does."""

import logging
import time

_DAY_MS = 86_400_000
# Earlier than any moment that is written down: compared with it nothing is old.
BEFORE_ALL_MS = -(1 << 62)

_log = logging.getLogger(__name__)


def _system_ms() -> int:
    """Return the time of the wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


now_ms = _system_ms
_ahead_ms = 0


def move(ahead_ms: int) -> None:
    """Have this process read the clocks so much later, or as they are with 0: for tests."""
    global now_ms, _ahead_ms
    _ahead_ms = ahead_ms
    now_ms = (lambda: _system_ms() + ahead_ms) if ahead_ms else _system_ms


class ExpiryClock:
    """The time by which one opening of a store deletes what is too old.

    Invariant: once the wall clock was set by more than a day since the opening, nothing is old.
    """

    def __init__(self) -> None:
        self._ahead_ms = now_ms() - _boot_ms()
        self._was_set = False

    def now_ms(self) -> int:
        """Return the time of the wall clock; BEFORE_ALL_MS once it was set by more than a day."""
        moment_ms = now_ms()
        set_by_ms = moment_ms - _boot_ms() - self._ahead_ms
        if abs(set_by_ms) > _DAY_MS and not self._was_set:
            self._was_set = True
            _log.warning(
                "the wall clock was set by %+.1f days since the store was opened: nothing is "
                "deleted by its age until it is opened again",
                set_by_ms / _DAY_MS,
            )
        return BEFORE_ALL_MS if self._was_set else moment_ms


def _boot_ms() -> int:
    """The milliseconds since the boot, by the clock that runs during sleep and is never set."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + _ahead_ms
