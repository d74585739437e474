"""Stores for the tests of the asynchronous form: a coroutine runs with one in an event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stores import QUIET

import eoslog.aio

TIMEOUT_S = 60


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
            return await body(store)

    return asyncio.run(main())


class Gate:
    """In the place of a method: a call says that it began, and goes on when it is told to."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.began = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.began.set()
        assert self.go_on.wait(TIMEOUT_S)
        return self._method(*arguments, **named)

    async def until_begun(self) -> None:
        while not self.began.is_set():
            await asyncio.sleep(0.001)


async def steps(count: int = 10) -> None:
    """Let other tasks of the loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)
