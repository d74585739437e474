"""A store as event loops use it."""

import asyncio
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Concatenate, Never, ParamSpec, TypeVar, overload

from eoslog.aio.calls import Calls, awaited, make_call, until_over
from eoslog.aio.consumer import AsyncConsumer
from eoslog.aio.opening import ClosedByBlock, Opening
from eoslog.aio.producer import AsyncProducer, AsyncTransactionalProducer
from eoslog.aio.rounds import Rounds
from eoslog.aio.waiter import TailWaiter
from eoslog.common.arguments import check_synchronous
from eoslog.common.durability import Durability
from eoslog.common.other_clients import with_methods_of_other_clients
from eoslog.errors import EoslogError, OutOfMemoryError
from eoslog.producer.producer import Producer
from eoslog.producer.transactional_producer import DEFAULT_TIMEOUT_MS, TransactionalProducer
from eoslog.session.background_thread import BackgroundThread
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
        self._store = self._synchronous = store
        self._owns_store = owns_store
        self._calls = Calls()
        self._waiter = TailWaiter(engine_of(store).signal)
        self._users: weakref.WeakSet[AsyncProducer | AsyncConsumer] = weakref.WeakSet()
        # Of producers that may be dropped by now.
        self._unfinished: set[Rounds] = set()
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
        """Call `function(store, ...)` in a thread: `await store.run(eoslog.Store.verify)`.

        A call that was begun ends, also if the task is cancelled.

        Raises
        ------
        TypeError
            The function is async: a thread would not await it.
        """
        check_synchronous(function, "function", may_be_generator=True)
        return await self._call(function, self._store, *arguments, **named)

    async def _call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await self._calls.run(function, *arguments, **named)

    create_topic = awaited(Store.create_topic)  # type: ignore[arg-type]
    create_topics = awaited(Store.create_topics)
    alter_topic = awaited(Store.alter_topic)
    delete_topic = awaited(Store.delete_topic)
    delete_records = awaited(Store.delete_records)
    topics = awaited(Store.topics)
    groups = awaited(Store.groups)
    delete_group = awaited(Store.delete_group)
    delete_offsets = awaited(Store.delete_offsets)
    snapshot = awaited(Store.snapshot)
    flush = awaited(Store.flush)

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
    ) -> Opening[AsyncTransactionalProducer]: ...

    def producer(
        self,
        name: str | None = None,
        config: Mapping[str, object] | None = None,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        **others: Never,
    ) -> Opening[AsyncProducer] | Opening[AsyncTransactionalProducer]:
        """Return a new producer: `await` it, or `async with` it.

        Arguments and errors are those of `Store.producer`; "linger.ms" and "batch.size" have no
        effect.
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
                **others,
            )
            made: AsyncProducer
            if isinstance(producer, TransactionalProducer):
                made = AsyncTransactionalProducer(
                    self._store, producer, self._calls, self._unfinished
                )
            else:
                made = AsyncProducer(self._store, producer, self._calls, self._unfinished)
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
        """Return a new consumer: `await` it, or `async with` it. See `Store.consumer`."""

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

        A second call does nothing, and so does one in a forked child. The first error is raised;
        all is closed all the same.
        """
        if self._closed or self._calls.is_forked:
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
                continue  # What it gathered is appended below.
            try:
                await user.close()
            except EoslogError as error:
                errors.append(error)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        for rounds in [one for one in list(self._unfinished) if one.belongs_to(loop)]:
            rest = await rounds.finish(lambda: None, surely=True)
            cancelled = cancelled or rest.cancelled
            errors += [one for one in rounds.failures if isinstance(one, EoslogError)]
        try:
            stopper.start()
        except OutOfMemoryError:
            make_call(stopping, self._stop)  # The process may have no more threads.
        ended = await until_over(stopping, surely=True)
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
        failures = [error for rounds in list(self._unfinished) for error in rounds.make_left()]
        if self._owns_store:
            self._store.close()
        if failures:
            raise failures[0]

    def _check_enter(self) -> None:
        engine_of(self._store).check_open()
