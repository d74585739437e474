"""Several locks as one block."""

from __future__ import annotations

import threading

import pytest

from eoslog.bindings.lock_block import IfFree, LockBlock


class Named:
    """A lock that notes what becomes of it."""

    def __init__(self, name, noted, fails=""):
        self.name, self.noted, self.fails = name, noted, fails

    def __enter__(self):
        if self.fails == "enter":
            raise OSError(self.name)
        self.noted.append(f"+{self.name}")
        return self.name

    def __exit__(self, *error):
        self.noted.append(f"-{self.name}")
        if self.fails == "exit":
            raise OSError(self.name)


def test_locks_are_taken_in_order_and_released_in_reverse():
    noted = []
    block = LockBlock(
        Named("a", noted),
        Named("b", noted),
        prepare=lambda *given: noted.append(given) or "ready",
        finish=lambda: noted.append("finish"),
    )
    with block as given:
        assert given == "ready"
        noted.append("body")
    assert noted == ["+a", "+b", ("a", "b"), "body", "finish", "-b", "-a"]


@pytest.mark.parametrize("where", ["lock", "prepare"])
def test_nothing_is_held_after_an_error_of_entering(where):
    noted = []

    def fail(*_):
        raise KeyboardInterrupt

    locks = [Named("a", noted), Named("b", noted, "enter" if where == "lock" else "")]
    with pytest.raises((OSError, KeyboardInterrupt)), LockBlock(*locks, prepare=fail):
        raise AssertionError("not reached")
    assert noted == (["+a", "-a"] if where == "lock" else ["+a", "+b", "-b", "-a"])


@pytest.mark.parametrize("how", ["body", "finish", "release"])
def test_all_are_released_after_an_error(how):
    noted = []

    def fail():
        raise OSError("finish")

    block = LockBlock(
        Named("a", noted),
        Named("b", noted, "exit" if how == "release" else ""),
        finish=fail if how == "finish" else None,
    )
    with pytest.raises(OSError), block:
        if how == "body":
            raise OSError(how)
    assert noted == ["+a", "+b", "-b", "-a"]


def test_a_lock_that_is_taken_is_not_waited_for():
    lock = threading.Lock()
    with IfFree(lock) as held:
        assert held
        with IfFree(lock) as again:
            assert not again
        assert lock.locked()
    assert not lock.locked()
    with LockBlock(IfFree(lock), prepare=lambda held: held) as given:
        assert given
        assert lock.locked()
