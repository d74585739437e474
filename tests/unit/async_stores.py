"""Stores for the tests of the asynchronous form: a coroutine runs with one in an event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from stores import QUIET

import eoslog.aio

TIMEOUT_S = 60
_replaced = pytest.MonkeyPatch()


def run_with_store(
    path: Path, body: Callable[[eoslog.aio.AsyncStore], Awaitable[Any]], *, partitions: int = 1
) -> Any:
    """Run `body(store)`; the store has a topic `t`."""

    async def main() -> Any:
        async with (
            asyncio.timeout(TIMEOUT_S),
            eoslog.aio.open(path, create=True, durability="process", config=QUIET) as store,
        ):
            await store.create_topic("t", partitions=partitions, exist_ok=True)
            try:
                return await body(store)
            finally:
                _replaced.undo()

    return asyncio.run(main())


class Gate:
    """In the place of a method: a call says that it began, and goes on when it is told to."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.count = 0
        self.began = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.count += 1
        self.began.set()
        assert self.go_on.wait(TIMEOUT_S)
        return self._method(*arguments, **named)

    async def until_begun(self) -> None:
        while not self.began.is_set():
            await asyncio.sleep(0.001)


def replace(owner: type, name: str, work: Callable[..., Any] | property) -> None:
    """Have calls of a method make `work(method, self, ...)`, until the body has ended."""
    if isinstance(work, property):
        _replaced.setattr(owner, name, work)
        return
    method = getattr(owner, name)
    _replaced.setattr(owner, name, lambda *given, **named: work(method, *given, **named))


def gated(owner: type, name: str) -> Gate:
    """Have calls of a method wait."""
    gate = Gate(lambda method, *arguments, **named: method(*arguments, **named))
    replace(owner, name, gate)
    return gate


def fail_once(
    owner: type, name: str, error: Exception, of: Callable[..., bool] = lambda *_: True
) -> None:
    """Have a method's next call fail, or the next one of some."""
    failures = [error]

    def work(method: Callable[..., Any], *arguments: Any) -> Any:
        if failures and of(*arguments):
            raise failures.pop()
        return method(*arguments)

    replace(owner, name, work)


def count_calls(owner: type, name: str) -> list[object]:
    """The objects whose method is called."""
    called: list[object] = []

    def work(method: Callable[..., Any], one: object, *arguments: Any, **named: Any) -> Any:
        called.append(one)
        return method(one, *arguments, **named)

    replace(owner, name, work)
    return called


async def steps(count: int = 10) -> None:
    """Let other tasks of the loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)
