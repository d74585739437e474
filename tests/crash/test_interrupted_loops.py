"""Ctrl-C that comes out of a step of an event loop: `asyncio.run` ends, and the calls are whole."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
from crash.interrupted_steps import Steps
from short_form import short_form
from stores import QUIET

import eoslog
import eoslog.aio
from eoslog import TopicPartition
from eoslog.errors import EoslogError

pytestmark = pytest.mark.crash

# Every so-and-so-many-th place; a number without common divisors with what repeats.
STRIDE = 23
GIVES_UP_S = 30.0


async def write(producer, first):
    for number in range(first, first + 3):
        await producer.send_and_wait("rows", b"%d" % number, partition=0)
    futures = [
        await producer.send("rows", b"%d" % number, partition=0)
        for number in range(first + 3, first + 6)
    ]
    await producer.flush()
    for future in futures:
        await future


async def commit(producer, first):
    for number in range(first, first + 2):
        async with producer.transaction():
            await producer.send("rows", b"%d" % number, partition=0)
            await producer.send("rows", b"%d" % number, partition=1)


async def read(consumer):
    consumer.assign([TopicPartition("rows", 0)])
    for _ in range(3):
        await consumer.poll(0.001)


def ignore(_loop, _context):
    """Of tasks that ended by the interrupt: nobody is left to ask them."""


async def program(path, steps, step):
    """All that a loop does; the interrupt comes at once, and not as a cancellation."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.get_running_loop().set_exception_handler(ignore)
    store = await eoslog.aio.open(path, durability="process", config=QUIET)
    async with (
        store,
        store.producer() as plain,
        store.consumer() as consumer,
        store.producer(transactional_id="a") as a,
        store.producer(transactional_id="b") as b,
    ):
        await a.init_transactions()
        await b.init_transactions()
        first = 100 * step
        with steps.armed(step):
            await asyncio.gather(
                write(plain, first),
                commit(a, first + 10),
                commit(b, first + 20),
                read(consumer),
            )
            await plain.close()
            await a.close()


def check(path, place):
    """Each record once; of a transaction both records or none; nothing left open."""
    with eoslog.open(path, durability="process", config=QUIET) as store:
        with store.consumer() as consumer:
            consumer.assign([TopicPartition("rows", 0), TopicPartition("rows", 1)])
            records = consumer.poll(timeout=0, max_records=1_000_000)
        found = [
            Counter(int(one.value) for one in records if one.partition == number)
            for number in range(2)
        ]
        assert {count for one in found for count in one.values()} <= {1}, place
        both = {number: count for number, count in found[0].items() if number % 100 >= 10}
        assert both == found[1], place
        assert store.verify() == [], place
        states = {found.transaction_state for found in store.transactions()}
        assert states <= {"Empty", "CompleteCommit", "CompleteAbort"}, place


@contextmanager
def given_up():
    """More of them where one did not suffice; gives whether that was so."""
    came, is_over = threading.Event(), threading.Event()

    def give_up():
        is_over.wait(GIVES_UP_S)
        while not is_over.wait(1):
            came.set()
            os.kill(os.getpid(), signal.SIGINT)

    watching = threading.Thread(target=give_up)
    watching.start()
    try:
        yield came
    finally:
        is_over.set()
        watching.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("first", short_form(range(1, STRIDE, 3), 7))
def test_an_interrupt_of_the_loop_is_its_end(tmp_path, first):
    path = tmp_path / "store"
    with eoslog.open(path, create=True, durability="process", config=QUIET) as store:
        store.create_topic("rows", partitions=2)
    steps, step = Steps(), first
    handler = signal.getsignal(signal.SIGINT)
    try:
        while steps.count >= step - STRIDE:
            with given_up() as came, suppress(KeyboardInterrupt, EoslogError):
                asyncio.run(program(path, steps, step))
            assert not came.is_set(), f"place {step}: {steps.last}"
            check(path, steps.last)
            step += STRIDE
    finally:
        signal.signal(signal.SIGINT, handler)
        # Here, and not within whatever comes next: what is said of a task that was left
        # parses its source, and Python 3.11 cannot do that in the middle of another parse.
        gc.collect()
    assert step > 20 * STRIDE
