"""Ages by a clock of the day that is set: the time that went by, as far as the process saw it."""

from __future__ import annotations

import concurrent.futures

import pytest

from eoslog.bindings.shared_page import CLOCK_SETTINGS_MAX, LOCK_CLOCK, SESSION_BYTES, SharedPage
from eoslog.session import day_clock
from eoslog.session.day_clock import DayClock
from eoslog.session.store_lock import moment_text

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
    for _ in range(10 * CLOCK_SETTINGS_MAX):
        world.ahead_ms += HOUR_MS
        world.pass_by(LOOK_MS)
    assert len(world.clock._settings) == CLOCK_SETTINGS_MAX


@pytest.mark.parametrize("moment_ms", [0, -1, BEGIN_MS, 2**53, 2**63 - 1, -(2**63)])
def test_any_moment_has_a_text(moment_ms):
    assert moment_text(moment_ms)


# Several processes.


@pytest.fixture
def page(tmp_path):
    session = bytes(SESSION_BYTES)
    shared = SharedPage(str(tmp_path / "shared"), session, create=True)
    yield shared
    shared.close()


def new_process(page):
    clock = DayClock()
    clock.share(page)
    return clock


@pytest.mark.parametrize("jump_ms", [2 * HOUR_MS, 10 * YEAR_MS, -10 * YEAR_MS, -56 * YEAR_MS])
@pytest.mark.parametrize("noticed", [False, True])
def test_one_who_comes_after_a_jump(world, page, jump_ms, noticed):
    """Whether the others have noticed it by then, or he is the first."""
    world.clock.share(page)
    before_ms = world.shown_ms
    world.pass_by(HOUR_MS)
    world.ahead_ms += jump_ms
    if noticed:
        world.pass_by(HOUR_MS)
    since_ms = world.elapsed_ms + BEGIN_MS - before_ms
    newcomer = new_process(page)
    assert newcomer.age_ms(before_ms) == since_ms
    assert newcomer.steady_ms(DAY_MS) == world.shown_ms - max(jump_ms, 0)
    assert world.clock.age_ms(before_ms) == since_ms
    assert page.clock_settings_count() == 2
    assert newcomer.jump_count == world.clock.jump_count == 1
    world.pass_by(DAY_MS, HOUR_MS)
    assert newcomer.age_ms(before_ms) == world.clock.age_ms(before_ms) == since_ms + DAY_MS


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -2 * DAY_MS])
@pytest.mark.parametrize("newcomer_first", [False, True])
def test_one_who_comes_after_the_clock_was_set_back_knows_when_the_others_looked_last(
    world, page, jump_ms, newcomer_first
):
    world.clock.share(page)
    world.pass_by(10 * DAY_MS, HOUR_MS)
    # Of these moments the clock shows none twice.
    moments_ms = [world.shown_ms + jump_ms - back_ms for back_ms in (SECOND_MS, DAY_MS, 5 * DAY_MS)]
    ages_ms = [world.shown_ms - moment_ms for moment_ms in moments_ms]
    world.ahead_ms += jump_ms
    if newcomer_first:
        newcomer = new_process(page)
    world.clock.now_ms()
    if not newcomer_first:
        newcomer = new_process(page)
    for clock in (newcomer, world.clock):
        assert [clock.age_ms(moment_ms) for moment_ms in moments_ms] == ages_ms


def test_what_the_others_were_not_told_is_no_look_of_theirs(world, page, monkeypatch):
    """A process that saw a jump, and could not tell: the look of one who can is older."""
    monkeypatch.setattr(day_clock, "_LOCK_TIMEOUT_S", 0.01)
    world.clock.share(page)
    world.pass_by(DAY_MS, HOUR_MS)
    looked_ms = page.clock_looked_ms()
    assert looked_ms == world.elapsed_ms
    world.ahead_ms -= HOUR_MS
    with concurrent.futures.ThreadPoolExecutor(1) as stopped:
        stopped.submit(page.lock, LOCK_CLOCK).result()
        world.pass_by(DAY_MS, HOUR_MS)
        stopped.submit(page.unlock, LOCK_CLOCK).result()
    assert page.clock_looked_ms() == looked_ms
    newcomer = new_process(page)
    assert page.clock_settings()[-1][1] == looked_ms
    assert newcomer.age_ms(world.shown_ms - HOUR_MS) == HOUR_MS
    assert world.clock.age_ms(world.shown_ms - HOUR_MS) == HOUR_MS
    assert page.clock_looked_ms() == world.elapsed_ms


def test_one_who_stood_still_while_the_clock_was_set_and_set_back(world, page):
    world.clock.share(page)
    stopped = new_process(page)
    world.ahead_ms += YEAR_MS
    world.pass_by(HOUR_MS)
    in_the_wrong_year_ms = world.shown_ms
    world.ahead_ms -= YEAR_MS
    world.pass_by(HOUR_MS)
    assert stopped.age_ms(in_the_wrong_year_ms) == HOUR_MS
    assert stopped.jump_count == 2
    assert page.clock_settings_count() == 3


def test_whoever_hears_of_a_jump_looks_at_the_clock_after_that(world, page, monkeypatch):
    """Else what it had read just before would be one more, back."""
    world.clock.share(page)
    other = new_process(page)
    count = page.clock_settings_count()

    def jump_meanwhile() -> int:
        """Another process notices between this one's look at the page and at the clock."""
        if jumps_ms:
            world.ahead_ms += jumps_ms.pop()
            other.now_ms()
        return world.shown_ms

    jumps_ms = [YEAR_MS]
    monkeypatch.setattr(day_clock, "_shown_ms", jump_meanwhile)
    assert world.clock.now_ms() == world.shown_ms
    assert page.clock_settings_count() == count + 1
    assert world.clock.jump_count == other.jump_count == 1


def test_many_jumps_and_one_who_comes_then(world, page):
    world.clock.share(page)
    for _ in range(3 * CLOCK_SETTINGS_MAX):
        world.ahead_ms += HOUR_MS
        world.pass_by(LOOK_MS)
    before_ms = world.shown_ms
    world.ahead_ms += YEAR_MS
    newcomer = new_process(page)
    assert newcomer.jump_count == 3 * CLOCK_SETTINGS_MAX + 1
    assert newcomer.age_ms(before_ms) == 0
    assert len(newcomer._settings) == CLOCK_SETTINGS_MAX


def test_whoever_holds_the_lock_of_the_settings_and_was_stopped(world, page, monkeypatch):
    monkeypatch.setattr(day_clock, "_LOCK_TIMEOUT_S", 0.01)
    world.clock.share(page)
    before_ms = world.shown_ms
    world.ahead_ms += YEAR_MS
    with concurrent.futures.ThreadPoolExecutor(1) as stopped:
        stopped.submit(page.lock, LOCK_CLOCK).result()
        assert world.clock.age_ms(before_ms) == 0
        assert page.clock_settings_count() == 1
        stopped.submit(page.unlock, LOCK_CLOCK).result()
    # Whoever comes finds it by himself.
    assert new_process(page).age_ms(before_ms) == 0
    assert page.clock_settings_count() == 2
    assert world.clock.age_ms(before_ms) == 0
    assert world.clock.jump_count == 1
