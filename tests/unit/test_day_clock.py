"""Ages by a clock of the day that is set: the time that went by, as far as the process saw it."""

from __future__ import annotations

import pytest

from eoslog import day_clock
from eoslog.day_clock import SETTINGS_MAX, DayClock
from eoslog.store_lock import moment_text

SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
BEGIN_MS = 56 * YEAR_MS
LOOK_MS = 10 * SECOND_MS


class World:
    """Two clocks, of which somebody sets one, and a process that looks now and then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.elapsed_ms = 77 * SECOND_MS
        self.ahead_ms = BEGIN_MS
        monkeypatch.setattr(day_clock, "_elapsed_ms", lambda: self.elapsed_ms)
        monkeypatch.setattr(day_clock, "_shown_ms", lambda: self.shown_ms)
        self.clock = DayClock()

    @property
    def shown_ms(self) -> int:
        return self.elapsed_ms + self.ahead_ms

    def pass_by(self, milliseconds: int, look_ms: int = LOOK_MS) -> None:
        """Let time go by, with looks."""
        until_ms = self.elapsed_ms + milliseconds
        while self.elapsed_ms < until_ms:
            self.elapsed_ms = min(until_ms, self.elapsed_ms + look_ms)
            self.clock.now_ms()


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_a_clock_that_nobody_sets(world):
    moment_ms = world.shown_ms
    world.pass_by(DAY_MS, HOUR_MS)
    assert world.clock.now_ms() == world.shown_ms == moment_ms + DAY_MS
    assert world.clock.age_ms(moment_ms) == DAY_MS
    assert world.clock.age_ms(moment_ms - YEAR_MS) == YEAR_MS + DAY_MS
    assert world.clock.age_ms(world.shown_ms + HOUR_MS) == -HOUR_MS
    assert world.clock.steady_ms(DAY_MS) == world.shown_ms
    assert world.clock.jump_count == 0


def test_a_thread_that_stands_still_between_its_looks_makes_no_jump(world, monkeypatch):
    def late() -> int:
        world.elapsed_ms += pauses_ms.pop() if pauses_ms else 0
        return world.shown_ms

    pauses_ms = [5 * SECOND_MS, 2 * SECOND_MS]
    monkeypatch.setattr(day_clock, "_shown_ms", late)
    assert world.clock.now_ms() == world.shown_ms
    assert pauses_ms == []
    assert world.clock.age_ms(BEGIN_MS + 77 * SECOND_MS) == 7 * SECOND_MS
    assert world.clock.jump_count == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, 10 * YEAR_MS, -HOUR_MS, -10 * YEAR_MS, -56 * YEAR_MS])
@pytest.mark.parametrize("unseen_ms", [0, 3 * SECOND_MS])
def test_a_jump_makes_nothing_older_or_younger(world, jump_ms, unseen_ms):
    """What was written down before it, a moment before it, after it, and before the opening."""
    before_ms = world.shown_ms
    world.pass_by(DAY_MS, HOUR_MS)
    world.elapsed_ms += unseen_ms
    last_ms = world.shown_ms
    world.elapsed_ms += SECOND_MS
    world.ahead_ms += jump_ms
    first_ms = world.shown_ms
    world.elapsed_ms += SECOND_MS
    assert world.clock.age_ms(last_ms) == 2 * SECOND_MS
    assert world.clock.jump_count == 1
    world.pass_by(HOUR_MS // 2)
    since_ms = HOUR_MS // 2 + SECOND_MS
    assert world.clock.age_ms(first_ms) == since_ms
    if jump_ms != -HOUR_MS:
        assert world.clock.age_ms(last_ms) == since_ms + SECOND_MS
        assert world.clock.age_ms(before_ms) == since_ms + SECOND_MS + unseen_ms + DAY_MS
    else:
        # The clock shows the last hour twice: it may have been now.
        assert -HOUR_MS // 2 <= world.clock.age_ms(last_ms) <= since_ms + SECOND_MS
    if jump_ms > 0:
        week_ago_ms = before_ms - 7 * DAY_MS
        assert world.clock.age_ms(week_ago_ms) == world.clock.age_ms(before_ms) + 7 * DAY_MS


def test_a_machine_that_wakes_in_1970_and_asks_the_network(world, monkeypatch):
    """Nothing becomes older than it is, and what is old by the right clock goes all the same."""
    world.ahead_ms = 5 * SECOND_MS
    world.clock = DayClock()
    written_ms = world.shown_ms
    world.pass_by(5 * SECOND_MS)
    world.ahead_ms = BEGIN_MS
    world.pass_by(HOUR_MS)
    assert world.clock.age_ms(written_ms) == HOUR_MS + 5 * SECOND_MS
    assert world.clock.age_ms(world.shown_ms - 8 * DAY_MS) == 8 * DAY_MS


def test_a_clock_that_is_set_back_again(world):
    """As when somebody sets a wrong year and sees it."""
    written_ms = world.shown_ms
    world.pass_by(HOUR_MS)
    for jump_ms in (YEAR_MS, -YEAR_MS):
        world.ahead_ms += jump_ms
        world.pass_by(HOUR_MS)
        assert world.clock.age_ms(written_ms) == world.elapsed_ms + BEGIN_MS - written_ms
    assert world.clock.jump_count == 2
    assert world.clock.steady_ms(DAY_MS) == world.shown_ms
    in_the_wrong_year_ms = world.shown_ms - HOUR_MS + YEAR_MS
    assert world.clock.age_ms(in_the_wrong_year_ms) == HOUR_MS


def test_the_steady_clock_believes_a_jump_once_all_before_it_is_that_old(world):
    world.pass_by(HOUR_MS)
    shown_ms = world.shown_ms
    world.ahead_ms += YEAR_MS
    assert world.clock.steady_ms(DAY_MS) == shown_ms
    world.pass_by(DAY_MS, HOUR_MS)
    assert world.clock.steady_ms(DAY_MS) == shown_ms + DAY_MS
    world.pass_by(HOUR_MS)
    assert world.clock.steady_ms(DAY_MS) == world.shown_ms == shown_ms + YEAR_MS + 25 * HOUR_MS
    assert world.clock.steady_ms(2 * DAY_MS) == shown_ms + 25 * HOUR_MS


def test_a_clock_that_is_adjusted_slowly_is_no_jump(world):
    written_ms = world.shown_ms
    for _ in range(1000):
        world.pass_by(LOOK_MS)
        world.ahead_ms += 5
    assert world.clock.jump_count == 0
    assert abs(world.clock.age_ms(written_ms) - 1000 * LOOK_MS) <= 5000


def test_a_clock_that_is_set_all_the_time_costs_no_memory(world):
    for _ in range(10 * SETTINGS_MAX):
        world.ahead_ms += HOUR_MS
        world.pass_by(LOOK_MS)
    assert len(world.clock._settings) == SETTINGS_MAX


@pytest.mark.parametrize("moment_ms", [0, -1, BEGIN_MS, 2**53, 2**63 - 1, -(2**63)])
def test_any_moment_has_a_text(moment_ms):
    assert moment_text(moment_ms)
