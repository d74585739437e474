"""Functions that callers hand in, which eoslog calls and neither awaits nor iterates over.

Called so, an async function or a generator function returns at once and none of its code runs.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import Any


def check_synchronous(function: object, name: str, *, may_be_generator: bool = False) -> None:
    """Raise TypeError unless a call of the function runs it to its end.

    `name` is the parameter that the function was given for. With `may_be_generator` the caller
    iterates over the result, so a generator function is fine.
    """
    if not callable(function):
        raise TypeError(f"{name} must be a function, got {type(function).__name__}")
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    for one in (called, getattr(type(called), "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise TypeError(
                f"{name} must be a synchronous function, got an async one: it is called and not "
                "awaited, so it would not run"
            )
        if inspect.isgeneratorfunction(one) and not may_be_generator:
            raise TypeError(
                f"{name} must be a plain function, got a generator function: nothing iterates over "
                "what it returns, so it would not run"
            )


def check_ran(result: object, name: str) -> None:
    """Raise TypeError for a result that stands for work which was not done by the call."""
    # A mock has all methods of an iterator, and is none: that gives itself.
    is_iterator = isinstance(result, Iterator) and iter(result) is result
    if not is_iterator and not isinstance(result, (Awaitable, AsyncGenerator)):
        return
    kind = type(result).__name__
    if inspect.iscoroutine(result):
        result.close()  # The error says more than the warning that it was never awaited.
    raise TypeError(
        f"{name} returned a {kind}, which nothing awaits or iterates over: it must do its work "
        "before it returns"
    )
