"""Blocks written as generators: they are contextlib's, but for the interrupts."""

import _thread
import contextlib
import inspect
import signal
import threading
import traceback

import pytest

from eoslog.bindings.guarded_block import guarded_block
from eoslog.bindings.held_locks import HeldLocks

MAKERS = [guarded_block, contextlib.contextmanager]


def locked_by(make, lock):
    @make
    def locked():
        with lock:
            # Ctrl-C, by C alone: Python meets it where it looks for signals the next time.
            [*map(_thread.interrupt_main, [signal.SIGINT])]
            yield

    return locked


def test_an_interrupt_between_the_yield_and_the_block_gives_the_lock_back():
    lock = threading.Lock()
    entered = False
    try:
        with locked_by(guarded_block, lock)():
            entered = True
    except KeyboardInterrupt:
        assert not lock.locked()
    else:
        pytest.fail("there was no interrupt")
    assert entered


def test_with_contextlib_the_lock_is_held_as_long_as_the_exception():
    lock = threading.Lock()
    try:
        with locked_by(contextlib.contextmanager, lock)():
            pass
    except KeyboardInterrupt:
        assert lock.locked()


def test_an_interrupt_between_the_block_and_its_end_gives_the_lock_back():
    lock = threading.Lock()

    @guarded_block
    def locked():
        with lock:
            yield

    try:
        with locked():
            [*map(_thread.interrupt_main, [signal.SIGINT])]
    except KeyboardInterrupt:
        assert not lock.locked()
    else:
        pytest.fail("there was no interrupt")


@pytest.mark.parametrize("make", MAKERS)
def test_the_block_gets_what_the_generator_yields(make):
    seen = []

    class Owner:
        @make
        def block(self, one, *, two):
            """What it is."""
            seen.append("begin")
            yield one, two
            seen.append("end")

    with Owner().block(1, two=2) as given:
        seen.append(given)
    assert seen == ["begin", (1, 2), "end"]
    assert Owner.block.__name__ == "block"
    assert Owner.block.__doc__ == "What it is."
    assert list(inspect.signature(Owner.block).parameters) == ["self", "one", "two"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", [ValueError, StopIteration, RuntimeError, KeyboardInterrupt])
def test_an_exception_goes_through_as_it_is(make, kind):
    @make
    def block():
        try:
            yield
        finally:
            seen.append("end")

    seen, error = [], kind("why")
    with pytest.raises(kind) as caught, block():
        raise error
    assert caught.value is error
    assert seen == ["end"]
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_an_exception_goes_through_as_it_is"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("error", [ValueError("v"), StopIteration("s"), GeneratorExit()])
def test_an_exception_is_swallowed(make, error):
    @make
    def block():
        with contextlib.suppress(type(error)):
            yield

    with block():
        raise error


@pytest.mark.parametrize("make", MAKERS)
def test_an_exception_is_replaced(make):
    @make
    def block():
        try:
            yield
        except ValueError as error:
            raise KeyError("k") from error

    with pytest.raises(KeyError) as caught, block():
        raise ValueError("v")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("make", MAKERS)
def test_a_generator_that_yields_too_seldom_or_too_often_is_refused(make):
    closed = []

    @make
    def never():
        yield from ()

    @make
    def twice():
        try:
            yield
            yield
        finally:
            closed.append(1)

    @make
    def again_after_an_error():
        try:
            try:
                yield
            except ValueError:
                yield
        finally:
            closed.append(2)

    with pytest.raises(RuntimeError, match="didn't yield"), never():
        pass
    with pytest.raises(RuntimeError, match="didn't stop"), twice():
        pass
    with pytest.raises(RuntimeError, match="didn't stop after throw"), again_after_an_error():
        raise ValueError("v")
    assert closed == [1, 2]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_raised_before_the_yield_is_raised(make):
    @make
    def block(lock):
        with lock:
            raise ValueError("v")
            yield

    lock = threading.Lock()
    with pytest.raises(ValueError, match="v"), block(lock):
        pass
    assert not lock.locked()


def test_held_locks_are_given_back_also_if_one_of_them_cannot_be():
    class Failing:
        def __enter__(self):
            return 7

        def __exit__(self, *error):
            raise ValueError("v")

    first, last = threading.Lock(), threading.Lock()
    with pytest.raises(ValueError, match="v"), HeldLocks() as held:
        held.take(first)
        assert held.enter(Failing()) == 7
        assert held.take_if_free(last)
        assert not held.take_if_free(first)
        assert first.locked()
        assert last.locked()
    assert not first.locked()
    assert not last.locked()
