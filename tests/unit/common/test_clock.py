"""The wall clock, and what a setting of it does to the expiry of what is too old."""

from __future__ import annotations

import time

import pytest

from eoslog.common import clock
from eoslog.common.clock import BEFORE_ALL_MS, ExpiryClock

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
BEGIN_MS = 56 * YEAR_MS


class Clocks:
    """The wall clock, which a test sets, and the time since the boot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms, self.boot_ms = BEGIN_MS, 77_000
        monkeypatch.setattr(clock, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(clock, "_boot_ms", lambda: self.boot_ms)

    def pass_by(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.boot_ms += milliseconds


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


def test_the_time_is_that_of_the_wall_clock():
    assert abs(clock.now_ms() / 1000 - time.time()) < 60
    assert abs(ExpiryClock().now_ms() / 1000 - time.time()) < 60


@pytest.mark.parametrize("set_by_ms", [0, 3_600_000, -3_600_000, DAY_MS, -DAY_MS])
def test_a_clock_that_is_set_by_a_day_at_most_is_believed(clocks, caplog, set_by_ms):
    expiry_clock = ExpiryClock()
    clocks.pass_by(10 * YEAR_MS)
    assert expiry_clock.now_ms() == clocks.now_ms
    clocks.now_ms += set_by_ms
    assert expiry_clock.now_ms() == clocks.now_ms
    assert caplog.records == []


@pytest.mark.parametrize("set_by_ms", [DAY_MS + 1, 200 * YEAR_MS, -DAY_MS - 1, -BEGIN_MS])
def test_after_a_clock_was_set_by_more_than_a_day_nothing_is_old(clocks, caplog, set_by_ms):
    expiry_clock = ExpiryClock()
    clocks.pass_by(YEAR_MS)
    clocks.now_ms += set_by_ms
    assert expiry_clock.now_ms() == BEFORE_ALL_MS
    clocks.pass_by(YEAR_MS)
    assert expiry_clock.now_ms() == BEFORE_ALL_MS
    clocks.now_ms -= set_by_ms
    assert expiry_clock.now_ms() == BEFORE_ALL_MS  # Until the next opening.
    assert len(caplog.records) == 1
    assert caplog.records[0].levelname == "WARNING"
    assert ExpiryClock().now_ms() == clocks.now_ms
