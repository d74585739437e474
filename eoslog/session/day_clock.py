"""The clock of the day, with the jumps that it made while the store was open.

What is deleted by its age, and what times out, has a time of the day written down. If somebody sets
the clock, such a time is taken for what it was: a moment of the clock as it was then. So nothing
becomes years old in an instant, and nothing stays young for years.

The processes of a store tell each other, on the page that they share, so that one which comes after
the clock was set knows of it too.

Invariants: an age is never above the time that went by since, as far as these processes saw it; a
moment that two settings of the clock have both shown is taken for the later one; what was written
down before the first of them looked at a clock that is wrong already cannot be told.
"""

import logging
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from eoslog.bindings.shared_page import CLOCK_SETTINGS_MAX, LOCK_CLOCK, SharedPage
from eoslog.errors import StoreInUseError
from eoslog.session.store_lock import moment_text

# Less than that is an adjustment, and the clock's own wandering.
JUMP_MS_MIN = 1000
# Two looks that are no further apart are of one moment.
_ONE_MOMENT_MS = 100
# Whoever holds the lock of the settings for longer was stopped: it goes without.
_LOCK_TIMEOUT_S = 1.0

_log = logging.getLogger(__name__)


class _Setting(NamedTuple):
    """The clock from one jump on: it shows the elapsed time and so much more."""

    noticed_ms: int  # In elapsed time, as is the look before that: it was set in between.
    looked_ms: int
    ahead_ms: int


class DayClock:
    """One process's. It is looked at whenever it is asked."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shared: SharedPage | None = None
        self._heard_count = 0
        self._told = True  # Whether the others know the newest setting, too.
        self.jump_count = 0
        self._looked_ms, shown_ms = _both_ms()
        # Of the last one the page has what it was at first, and the clock wanders.
        self._ahead_ms = shown_ms - self._looked_ms
        self._settings = [_Setting(self._looked_ms, self._looked_ms, self._ahead_ms)]

    def share(self, shared: SharedPage) -> None:
        """Go by what all processes of the session noticed, and tell them, from now on."""
        with self._lock, shared.held(LOCK_CLOCK):
            if shared.clock_settings_count() == 0:
                for one in self._settings:
                    shared.note_clock_setting(*one)
                self._heard_count = shared.clock_settings_count()
            self._shared = shared
        self.now_ms()

    def now_ms(self) -> int:
        """What the clock shows."""
        with self._lock:
            shared = self._shared
            if shared is not None and shared.clock_settings_count() > self._heard_count:
                self._notice()
            # Read after that: a look from before a setting that was heard of would be a jump back.
            elapsed_ms, shown_ms = _both_ms()
            if self._is_jump(elapsed_ms, shown_ms):
                self._notice()
                elapsed_ms, shown_ms = _both_ms()
            self._ahead_ms = shown_ms - elapsed_ms
            self._looked_ms = elapsed_ms
            if self._shared is not None and self._told:
                self._shared.note_clock_look(elapsed_ms)
            return shown_ms

    def age_ms(self, moment_ms: int) -> int:
        """How long ago it was that the clock showed a moment; below 0 if it has yet to."""
        with self._lock:
            self.now_ms()
            looked_ms, settings = self._looked_ms, list(self._bounds())
        ages = [
            looked_ms + ahead_ms - moment_ms
            for begin_ms, end_ms, ahead_ms in settings
            if begin_ms <= moment_ms <= end_ms
        ]
        if ages:
            return min(ages)
        # Before anybody looked: by the setting that came next, in the clock's own order.
        later = [one for one in settings if one[0] > moment_ms]
        _, _, ahead_ms = min(later, default=settings[-1])
        return looked_ms + ahead_ms - moment_ms

    def steady_ms(self, over_ms: int) -> int:
        """The earliest that the clock could show now, had nobody set it for so long.

        Whatever was written down at a moment that is `over_ms` before that is at least so old.
        """
        with self._lock:
            self.now_ms()
            since_ms = self._looked_ms - over_ms
            aheads_ms = [self._ahead_ms]
            for one, following in zip(self._settings, self._settings[1:], strict=False):
                if following.noticed_ms >= since_ms:
                    aheads_ms.append(one.ahead_ms)
            return self._looked_ms + min(aheads_ms)

    def _bounds(self) -> Iterator[tuple[int, int, int]]:
        """Each setting: what the clock may have shown first and last, and how far it is ahead."""
        for number, one in enumerate(self._settings):
            if number + 1 == len(self._settings):
                shown_ms = self._looked_ms + self._ahead_ms
                first_ms = one.looked_ms + min(one.ahead_ms, self._ahead_ms)
                yield first_ms, shown_ms, self._ahead_ms
            else:
                ended_ms = self._settings[number + 1].noticed_ms
                yield one.looked_ms + one.ahead_ms, ended_ms + one.ahead_ms, one.ahead_ms

    def _is_jump(self, elapsed_ms: int, shown_ms: int) -> bool:
        return abs(shown_ms - elapsed_ms - self._ahead_ms) >= JUMP_MS_MIN

    def _notice(self) -> None:
        """Hear what others noticed, and tell them of what is new."""
        if self._shared is not None:
            try:
                with self._shared.held(LOCK_CLOCK, _LOCK_TIMEOUT_S):
                    self._hear(self._shared)
                    self._add(self._shared)
                    return
            except StoreInUseError:
                pass  # Whoever has it was stopped: this process goes by what it saw itself.
        self._add(None)

    def _hear(self, shared: SharedPage) -> None:
        count = shared.clock_settings_count()
        if count > self._heard_count:
            self._heard_count = count
            self.jump_count = max(self.jump_count, count - 1)
            self._settings = [_Setting(*one) for one in shared.clock_settings()]
            self._told = True
            self._looked_ms, _, self._ahead_ms = self._settings[-1]
        # Whoever looks for the first time knows when the others did.
        self._looked_ms = max(self._looked_ms, shared.clock_looked_ms())

    def _add(self, shared: SharedPage | None) -> None:
        """Note the clock's newest setting, if nobody has yet."""
        elapsed_ms, shown_ms = _both_ms()
        if not self._is_jump(elapsed_ms, shown_ms):
            return
        _log.warning(
            "the clock of the day was set from %s to %s: ages go by the time that went by",
            moment_text(elapsed_ms + self._ahead_ms),
            moment_text(shown_ms),
        )
        # At any moment since the last look.
        self._settings[-1] = self._settings[-1]._replace(ahead_ms=self._ahead_ms)
        new = _Setting(elapsed_ms, self._looked_ms, shown_ms - elapsed_ms)
        self._settings.append(new)
        del self._settings[:-CLOCK_SETTINGS_MAX]
        self.jump_count += 1
        self._told = shared is not None or self._shared is None
        if shared is not None:
            shared.note_clock_setting(*new)
            self._heard_count = shared.clock_settings_count()
        self._looked_ms, self._ahead_ms = elapsed_ms, shown_ms - elapsed_ms


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
