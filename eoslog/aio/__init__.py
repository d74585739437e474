"""eoslog for asyncio: the same store, producers and consumers, whose calls are awaited.

import asyncio
import eoslog.aio

async def main():
    async with eoslog.aio.open("data/", create=True) as store:
        await store.create_topic("orders", exist_ok=True)
        async with store.producer() as producer:
            await producer.send_and_wait("orders", b"...")

asyncio.run(main())
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Never

from eoslog.aio.calls import Calls
from eoslog.aio.consumer import AsyncConsumer
from eoslog.aio.opening import Opening
from eoslog.aio.producer import AsyncProducer, AsyncTransactionalProducer
from eoslog.aio.store import AsyncStore
from eoslog.common.durability import REMEMBERED
from eoslog.common.other_clients import refuse_name
from eoslog.common.record_metadata import RecordMetadata
from eoslog.store import opening
from eoslog.store.store import Store

if TYPE_CHECKING:
    from eoslog.aio.process_loop import read_process_write as read_process_write

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncStore",
    "AsyncTransactionalProducer",
    "RecordMetadata",
    "open",
    "read_process_write",
    "wrap",
]


def open(
    path: str | os.PathLike[str],
    *,
    create: bool = False,
    durability: str | None = REMEMBERED,
    config: Mapping[str, object] | None = None,
    read_only: bool = False,
    **others: Never,
) -> Opening[AsyncStore]:
    """Open a store: `await` it, or `async with` it. See `eoslog.open` for arguments and errors."""

    async def open_it() -> AsyncStore:
        calls = Calls(threads_max=1)
        try:
            store = await calls.make(
                opening.open,
                path,
                create=create,
                durability=durability,
                config=config,
                read_only=read_only,
                **others,
            )
        finally:
            calls.stop()
        return AsyncStore(store, owns_store=True)

    return Opening(open_it)


def __getattr__(name: str) -> Any:
    if name != "read_process_write":
        refuse_name(__name__, name)
    from eoslog.aio.process_loop import read_process_write  # Not every program has a loop.

    globals()[name] = read_process_write
    return read_process_write


def wrap(store: Store) -> AsyncStore:
    """Wrap a store that is open already; closing the result leaves the store open."""
    return AsyncStore(store, owns_store=False)
