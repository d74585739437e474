"""Arguments that callers hand in: whole numbers, and functions that eoslog calls.

eoslog neither awaits nor iterates over what such a function returns. Called so, an async function
or a generator function returns at once and none of its code runs.
"""

import functools
import math
import operator
import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator
from pathlib import Path
from types import CoroutineType, FunctionType, MethodType
from typing import Any

_UNCALLED = (FunctionType, MethodType, functools.partial)


def whole_number(value: object, what: str) -> int:
    """Return the value as an int. Any whole number will do, numpy's too, but no truth value.

    Raises TypeError, which names the argument.
    """
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise TypeError(f"{what} must be an int, got {type(value).__name__}")


def path_of(value: object, what: str) -> Path:
    """Return the value as a path. Raises TypeError or ValueError, which name the argument."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{what} must be a str or a Path, got {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str or a Path, got one of bytes")
    try:
        if not text or b"\0" in os.fsencode(text):
            raise ValueError(f"{what} must be a directory's path, got {value!r}")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be UTF-8, got {text!r}") from error
    return Path(text)


def seconds(value: Any, what: str) -> float:
    """Return how long a call may wait: a number from 0 to infinity.

    Raises TypeError or ValueError, which name the argument.
    """
    if type(value) is float and value >= 0:
        return value
    try:
        is_positive = value >= 0
    except TypeError:
        raise TypeError(f"{what} must be a number of seconds, got {type(value).__name__}") from None
    if not is_positive:
        raise ValueError(f"{what} must be 0 or more, got {value}")
    try:
        return float(value)
    except OverflowError:  # An int beyond all floats.
        return math.inf


def check_synchronous(function: object, name: str, *, may_be_generator: bool = False) -> None:
    """Raise TypeError unless a call of the function runs it to its end.

    `name` is the parameter that the function was given for. With `may_be_generator` the caller
    iterates over the result, so a generator function is fine.
    """
    import inspect  # What it loads not every process needs.

    if not callable(function):
        raise TypeError(f"{name} must be a function, got {type(function).__name__}")
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    for one in (called, getattr(type(called), "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise TypeError(
                f"{name} must be a synchronous function, got an async one: it would not run, since "
                "eoslog does not await it"
            )
        if inspect.isgeneratorfunction(one) and not may_be_generator:
            raise TypeError(
                f"{name} must be a plain function, got a generator function: it would not run, "
                "since eoslog does not iterate over its result"
            )


def check_ran(result: object, name: str) -> None:
    """Raise TypeError for a result that stands for work which was not done by the call.

    Also for one of the collections of Python that has such an element.
    """
    elements: Iterable[object] = (result,)
    if isinstance(result, (list, tuple, set, frozenset)):
        elements = result
    elif isinstance(result, dict):
        elements = result.values()
    undone = [one for one in elements if _is_undone(one)]
    if not undone:
        return
    for one in undone:
        if isinstance(one, CoroutineType):
            one.close()  # The error says more than the warning that it was never awaited.
    kind = type(undone[0]).__name__
    inside = "" if undone[0] is result else f" in a {type(result).__name__}"
    raise TypeError(
        f"{name} returned a {kind}{inside}, which eoslog does not await, call or iterate over: it "
        "must do its work before it returns"
    )


def _is_undone(result: object) -> bool:
    if isinstance(result, threading.Thread):
        return result.ident is None or result.is_alive()
    if isinstance(result, Iterator):
        # A mock has all methods of an iterator, and is none: that gives itself.
        return iter(result) is result
    futures = sys.modules.get("concurrent.futures")  # Without it there is no Future.
    if futures is not None and isinstance(result, futures.Future):
        return True
    return isinstance(result, (Awaitable, AsyncGenerator, *_UNCALLED))
