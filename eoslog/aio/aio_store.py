"""A store as event loops use it."""

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Concatenate, Never, ParamSpec, TypeVar, overload

from eoslog.aio.aio_calls import Calls, make_call, until_over
from eoslog.aio.aio_consumer import AsyncConsumer
from eoslog.aio.aio_opening import ClosedByBlock, Opening
from eoslog.aio.aio_producer import AsyncProducer, AsyncTransactionalProducer
from eoslog.aio.aio_waiter import TailWaiter
from eoslog.common.arguments import check_synchronous
from eoslog.common.durability import Durability
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import EoslogError, OutOfMemoryError
from eoslog.groups.group_metadata import OffsetAndMetadata
from eoslog.producer.producer import Producer
from eoslog.producer.transactional_producer import DEFAULT_TIMEOUT_MS, TransactionalProducer
from eoslog.session.background_thread import BackgroundThread
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.store import Store, engine_of

P = ParamSpec("P")
T = TypeVar("T")


@with_methods_of_other_clients
class AsyncStore(ClosedByBlock):
    """An open store for event loops; `eoslog.aio.open` makes it. A context manager.

    Its calls are those of `eoslog.Store`, awaited; `run` awaits any other. Threads of its own make
    them, so that no event loop waits for a disk, a lock or another process.
    """

    _kind = "store"

    def __init__(self, store: Store, owns_store: bool) -> None:
        self._store = store
        self._owns_store = owns_store
        self._calls = Calls()
        self._waiter = TailWaiter(engine_of(store).signal)
        self._users: weakref.WeakSet[AsyncProducer | AsyncConsumer] = weakref.WeakSet()
        self._closed = False

    # Who it is.

    @property
    def store(self) -> Store:
        """The synchronous store, for calls from threads."""
        return self._store

    @property
    def path(self) -> Path:
        """The store's directory, absolute."""
        return self._store.path

    @property
    def durability(self) -> Durability:
        """Durability level of the open store."""
        return self._store.durability

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child."""
        return self._closed or self._store.closed

    def __repr__(self) -> str:
        return f"<eoslog.aio.AsyncStore of {self._store!r}>"

    def __reduce__(self) -> Never:
        raise TypeError("a store cannot be pickled or copied: open it where it is needed")

    # Calls.

    async def run(
        self,
        function: Callable[Concatenate[Store, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """`function(store, ...)` in a thread: `await store.run(eoslog.Store.verify)`.

        A call that was begun ends, also if the task is cancelled meanwhile. Raises TypeError for an
        async function, which a thread would not await.
        """
        check_synchronous(function, "function", may_be_generator=True)
        return await self._calls.run(function, self._store, *arguments, **named)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
        **others: Never,
    ) -> TopicDescription:
        """Create a topic; durable on return. See `Store.create_topic`."""
        return await self._calls.run(
            self._store.create_topic, name, partitions, config, exist_ok=exist_ok, **others
        )

    async def create_topics(
        self,
        partitions: Mapping[str, int],
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> dict[str, TopicDescription]:
        """Create many topics at once; durable on return. See `Store.create_topics`."""
        return await self._calls.run(
            self._store.create_topics, partitions, config, exist_ok=exist_ok
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. See `Store.delete_topic`."""
        await self._calls.run(self._store.delete_topic, name)

    async def topics(self) -> dict[str, TopicDescription]:
        """The topics by name, without the internal ones."""
        return await self._calls.run(self._store.topics)

    async def groups(self) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """The committed offsets of every group."""
        return await self._calls.run(self._store.groups)

    async def delete_group(self, name: str) -> None:
        """Forget a group with all its offsets; durable on return."""
        await self._calls.run(self._store.delete_group, name)

    async def snapshot(self, topics: Iterable[str] | None = None) -> dict[TopicPartition, int]:
        """Offsets that cut no transaction and no job. See `Store.snapshot`."""
        return await self._calls.run(self._store.snapshot, topics)

    async def flush(self) -> None:
        """Make everything that was appended so far power-safe, by whomever it was appended."""
        await self._calls.run(self._store.flush)

    # Writing and reading.

    @overload
    def producer(
        self, name: str | None = None, config: Mapping[str, object] | None = None
    ) -> Opening[AsyncProducer]: ...

    @overload
    def producer(
        self,
        name: None = None,
        config: Mapping[str, object] | None = None,
        *,
        transactional_id: str,
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        staged: bool = False,
    ) -> Opening[AsyncTransactionalProducer]: ...

    def producer(
        self,
        name: str | None = None,
        config: Mapping[str, object] | None = None,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        staged: bool = False,
        **others: Never,
    ) -> Opening[AsyncProducer] | Opening[AsyncTransactionalProducer]:
        """A new producer: `await` it, or `async with` it. See `Store.producer` for its arguments.

        It gathers what its tasks send by itself: "linger.ms" and "batch.size" mean nothing to it.
        """

        async def open_it() -> AsyncProducer:
            # Whatever the arguments are, the store looks at them.
            make: Callable[..., Producer] = self._store.producer
            producer = await self._calls.make(
                make,
                name,
                config,
                transactional_id=transactional_id,
                transaction_timeout_ms=transaction_timeout_ms,
                staged=staged,
                **others,
            )
            made: AsyncProducer
            if isinstance(producer, TransactionalProducer):
                made = AsyncTransactionalProducer(self._store, producer, self._calls)
            else:
                made = AsyncProducer(self._store, producer, self._calls)
            self._users.add(made)
            return made

        return Opening(open_it)

    def consumer(
        self,
        group: str | None = None,
        isolation_level: str = "read_committed",
        auto_offset_reset: str = "earliest",
        config: Mapping[str, object] | None = None,
        **others: Never,
    ) -> Opening[AsyncConsumer]:
        """A new consumer: `await` it, or `async with` it. See `Store.consumer`."""

        async def open_it() -> AsyncConsumer:
            consumer = await self._calls.make(
                self._store.consumer, group, isolation_level, auto_offset_reset, config, **others
            )
            made = AsyncConsumer(consumer, self._calls, self._waiter)
            self._users.add(made)
            return made

        return Opening(open_it)

    # Closing.

    async def close(self) -> None:
        """Close the producers and consumers made here, and the store if it was opened here.

        A second call does nothing. The first error is raised; all is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        stopping: Future[None] = Future()
        stopper = BackgroundThread("eoslog-aio-close", partial(make_call, stopping, self._stop))
        try:
            await self._close(stopping, stopper)
        except (KeyboardInterrupt, SystemExit):
            # Ctrl-C came in a step of this task, which does not resume.
            if stopping.cancel():
                self._stop()
            stopper.join()
            raise

    async def _close(self, stopping: "Future[None]", stopper: BackgroundThread) -> None:
        loop = asyncio.get_running_loop()
        errors: list[EoslogError] = []
        cancelled: asyncio.CancelledError | None = None
        for user in list(self._users):
            if isinstance(user, AsyncProducer) and not user.belongs_to(loop):
                continue  # Closing the store flushes it.
            try:
                await user.close()
            except EoslogError as error:
                errors.append(error)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        try:
            stopper.start()
        except OutOfMemoryError:
            make_call(stopping, self._stop)  # The process may have no more threads.
        ended = await until_over(stopping, lambda: False)
        stopper.join()
        if isinstance(ended.error, EoslogError):
            errors.append(ended.error)
        for other in errors[1:]:
            errors[0].add_note(f"and: {other}")
        if errors and cancelled is None:
            raise errors[0]
        if cancelled is not None:
            for failure in errors:
                cancelled.add_note(f"closing the store failed: {failure}")
            raise cancelled
        ended.value()

    def _stop(self) -> None:
        self._waiter.stop()
        self._calls.stop()
        if self._owns_store:
            self._store.close()

    def _check_enter(self) -> None:
        engine_of(self._store).check_open()
