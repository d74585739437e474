"""Consume-transform-produce loop of an event loop: `eoslog.read_process_write`, awaited.

Invariants: those of `eoslog.store.process_loop`. A task that is cancelled leaves nothing half done:
the transaction at hand is aborted, or, if its commit was begun, committed with its offsets.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable

from eoslog.aio.consumer import AsyncConsumer, with_consumer
from eoslog.aio.producer import AsyncTransactionalProducer, synchronous
from eoslog.aio.store import AsyncStore
from eoslog.bindings.record_batch import Record
from eoslog.common.topic_partition import TopicPartition
from eoslog.producer.transactional_producer import end_refused
from eoslog.store.process_loop import (
    ENDS_BY_ITSELF,
    LOOK_EVERY_S,
    LoopSettings,
    PolledWork,
    UnfinishedWorkError,
    check_done,
    check_shared_topics,
    checked_settings,
    is_caught_up,
    next_offsets,
)

Process = Callable[[AsyncTransactionalProducer, list[Record]], Awaitable[object]]


async def read_process_write(
    store: AsyncStore,
    process: Process,
    *,
    topics: Iterable[str | TopicPartition],
    group: str,
    share: bool = False,
    transactional_id: str | None = None,
    stop: Callable[[], bool] | None = None,
    until_caught_up: bool = False,
    max_records: int = 500,
    max_attempts: int = 1,
    dead_letter: str | None = None,
    poll_timeout_s: float = 1.0,
    transaction_timeout_ms: int = 60_000,
) -> int:
    """Process records exactly once, each poll's in one transaction; return how many.

    `eoslog.read_process_write` in an event loop, whose arguments and errors it has, but for
    `process`. A task that is cancelled aborts the transaction at hand, or, if its commit was begun,
    waits for its end; a later run goes on there.

    Parameters
    ----------
    process : async callable
        Called with an AsyncTransactionalProducer and up to `max_records` committed records, and
        awaited. It sends its output, and has awaited all that it began when it returns; futures of
        `send` need not be awaited: the commit fails if one of them did.
    stop : callable, optional
        A plain function, which the event loop calls; it must not block.

    Returns
    -------
    int
        Records that were done.
    """
    if not callable(process):
        raise TypeError(f"process must be an async function, got {type(process).__name__}")
    settings = await store.run(
        checked_settings,
        topics=topics,
        group=group,
        share=share,
        transactional_id=transactional_id,
        stop=stop,
        max_records=max_records,
        max_attempts=max_attempts,
        dead_letter=dead_letter,
        until_caught_up=until_caught_up,
        poll_timeout_s=poll_timeout_s,
        transaction_timeout_ms=transaction_timeout_ms,
    )
    return await _run(store, process, settings)


async def _run(store: AsyncStore, process: Process, settings: LoopSettings) -> int:
    """Run the loop; return how many records it did."""
    count = 0
    async with (
        store.producer(
            transactional_id=settings.transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
        ) as producer,
        store.consumer(group=settings.group, isolation_level="read_committed") as consumer,
    ):
        # First: an older loop must write nothing more before its offsets are looked at.
        await producer.init_transactions()
        if settings.shared:
            await consumer.subscribe(settings.shared)
        else:
            await consumer.assign(settings.partitions)
        while not settings.is_stopped():
            records = await _polled(store, consumer, settings)
            if records:
                ends = await with_consumer(consumer, next_offsets, records)
                work = PolledWork(records, ends, settings)
                count += await _process_polled(producer, consumer, process, work)
                if work.is_stopped:
                    break
            elif settings.until_caught_up and await with_consumer(consumer, is_caught_up):
                break
    return count


async def _process_polled(
    producer: AsyncTransactionalProducer,
    consumer: AsyncConsumer,
    process: Process,
    work: PolledWork,
) -> int:
    """Process the records of a poll, as `eoslog.store.process_loop` does."""
    count = 0
    while (piece := work.next_piece) is not None:
        try:
            async with producer.transaction():
                work.is_begun = True
                if piece.error is None:
                    with end_refused(synchronous(producer), ENDS_BY_ITSELF):
                        check_done(await _begun(process, producer, piece.records))
                else:
                    await producer.send_and_wait(*work.dead_letter())
                work.is_processed = True
                await producer.send_offsets_to_transaction(piece.offsets, consumer.group_metadata())
        except Exception as error:
            if work.is_left_to_others(error):
                # The next poll joins the group again.
                await consumer.seek_to_committed()
                break
            if not work.goes_on_after(error):
                raise
        else:
            count += work.done()
        if work.stops():
            break
    return count


def _begun(
    process: Process, producer: AsyncTransactionalProducer, records: list[Record]
) -> Awaitable[object]:
    begun = process(producer, records)
    if not inspect.isawaitable(begun):
        raise UnfinishedWorkError(
            f"process must be an async function: it returned a {type(begun).__name__}, which "
            "cannot be awaited"
        )
    return begun


async def _polled(
    store: AsyncStore, consumer: AsyncConsumer, settings: LoopSettings
) -> list[Record]:
    """Return what a poll gives, while shared topics are there."""
    timeout_s, max_records = settings.poll_timeout_s, settings.max_records
    if not settings.shared:
        return await consumer.poll(timeout=timeout_s, max_records=max_records)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    wait_s = min(timeout_s, LOOK_EVERY_S)
    while True:
        records = await consumer.poll(timeout=wait_s, max_records=max_records)
        check_shared_topics(store.store, settings)
        wait_s = min(deadline_s - loop.time(), LOOK_EVERY_S)
        if records or wait_s <= 0:
            return records
