"""When the background thread looks for transactions that are open for too long."""

from types import SimpleNamespace

import pytest

from eoslog.common import clock
from eoslog.transactions.timeouts import NextTimeout

NOW_MS = 1_000_000


@pytest.fixture
def now_ms(monkeypatch):
    moment = [NOW_MS]
    monkeypatch.setattr(clock, "now_ms", lambda: moment[0])
    return moment


def open_for(timeout_ms):
    return SimpleNamespace(state="Ongoing", prepared=False, timeout_ms=timeout_ms, start_ms=NOW_MS)


def test_each_time_is_reported_once_whatever_became_of_the_ones_before(now_ms):
    """None of them moves: they cannot be aborted."""
    entries = SimpleNamespace(undecided=lambda: [open_for(300), open_for(100), open_for(200)])
    next_timeout = NextTimeout(SimpleNamespace(entries=entries), SimpleNamespace(ends=dict))
    reported = []
    for now_ms[0] in range(NOW_MS, NOW_MS + 400, 50):
        if next_timeout.has_come():
            reported.append(now_ms[0] - NOW_MS)
    assert reported == [150, 250, 350]
    next_timeout.forget()
    assert next_timeout.has_come()
