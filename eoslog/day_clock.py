"""The clock of the day, with the jumps that it made while the store was open.

What is deleted by its age, and what times out, has a time of the day written down. If somebody sets
the clock, such a time is taken for what it was: a moment of the clock as it was then. So nothing
becomes years old in an instant, and nothing stays young for years.

Invariants: an age is never above the time that went by since, as far as this process saw it; a
moment that two settings of the clock have both shown is taken for the later one; what was written
down before this process looked at a clock that is wrong already cannot be told.
"""

import logging
import time
from dataclasses import dataclass

from eoslog.store_lock import moment_text

# Less than that is an adjustment, and the clock's own wandering.
JUMP_MS_MIN = 1000
SETTINGS_MAX = 64
# Two looks that are no further apart are of one moment.
_ONE_MOMENT_MS = 100

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Setting:
    """The clock between two jumps: it shows the elapsed time and so much more."""

    begin_ms: int  # What it may have shown first and last.
    end_ms: int
    ahead_ms: int
    ended_ms: int | None = None  # In elapsed time.


class DayClock:
    """One process's. It is looked at whenever it is asked; one thread does."""

    def __init__(self) -> None:
        self.jump_count = 0
        self._looked_ms, shown_ms = _both_ms()
        self._settings = [_Setting(shown_ms, shown_ms, shown_ms - self._looked_ms)]

    def now_ms(self) -> int:
        """What the clock shows."""
        elapsed_ms, shown_ms = _both_ms()
        current = self._settings[-1]
        since_ms = elapsed_ms - self._looked_ms
        if abs(shown_ms - elapsed_ms - current.ahead_ms) >= JUMP_MS_MIN:
            _log.warning(
                "the clock of the day was set from %s to %s: ages go by the time that went by",
                moment_text(elapsed_ms + current.ahead_ms),
                moment_text(shown_ms),
            )
            # At any moment since the last look.
            current.end_ms = elapsed_ms + current.ahead_ms
            current.ended_ms = elapsed_ms
            current = _Setting(shown_ms - since_ms, shown_ms, 0)
            self._settings.append(current)
            del self._settings[:-SETTINGS_MAX]
            self.jump_count += 1
        current.end_ms = max(current.end_ms, shown_ms)
        current.ahead_ms = shown_ms - elapsed_ms
        self._looked_ms = elapsed_ms
        return shown_ms

    def age_ms(self, moment_ms: int) -> int:
        """How long ago it was that the clock showed a moment; below 0 if it has yet to."""
        self.now_ms()
        ages = [
            self._looked_ms + one.ahead_ms - moment_ms
            for one in self._settings
            if one.begin_ms <= moment_ms <= one.end_ms
        ]
        if ages:
            return min(ages)
        # Before the process looked: by the setting that came next, in the clock's own order.
        later = [one for one in self._settings if one.begin_ms > moment_ms]
        nearest = min(later, key=lambda one: one.begin_ms, default=self._settings[-1])
        return self._looked_ms + nearest.ahead_ms - moment_ms

    def steady_ms(self, over_ms: int) -> int:
        """The earliest that the clock could show now, had nobody set it for so long.

        Whatever was written down at a moment that is `over_ms` before that is at least so old.
        """
        self.now_ms()
        since_ms = self._looked_ms - over_ms
        return self._looked_ms + min(
            one.ahead_ms
            for one in self._settings
            if one.ended_ms is None or one.ended_ms >= since_ms
        )


def _both_ms() -> tuple[int, int]:
    """What both clocks show at one moment: a thread that stood still between two looks would take
    its own standing for a jump.
    """
    elapsed_ms = _elapsed_ms()
    while True:
        shown_ms, after_ms = _shown_ms(), _elapsed_ms()
        if after_ms - elapsed_ms < _ONE_MOMENT_MS:
            return elapsed_ms, shown_ms
        elapsed_ms = after_ms


def _shown_ms() -> int:
    return time.time_ns() // 1_000_000


def _elapsed_ms() -> int:
    """Of the clock that nobody sets; it goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
