"""Tasks that are cancelled at any moment: what they were told of their transactions and records is
what is in the log.
"""

import asyncio
import itertools
import random

import pytest

import eoslog.aio
from eoslog import TopicPartition

T0 = TopicPartition("t", 0)


async def cancelled_at_random(work, seconds_max):
    """Run a task and cancel it, some times more than once; None, or what it raised."""
    task = asyncio.create_task(work)
    for _ in range(random.choice([1, 1, 2, 3])):
        await asyncio.sleep(random.uniform(0, seconds_max))
        task.cancel()
    await asyncio.wait([task])
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def values(store):
    async with store.consumer() as consumer:
        await consumer.assign([T0])
        found = []
        while records := await consumer.poll(timeout=0):
            found += [record.value for record in records]
        return found


def run(path, body, durability):
    async def main():
        async with (
            asyncio.timeout(200),
            eoslog.aio.open(path, create=True, durability=durability) as store,
        ):
            await store.create_topic("t", exist_ok=True)
            await body(store)

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["process", "commit"])
def test_the_outcome_of_a_cancelled_transaction_is_that_of_the_log(tmp_path, durability):
    random.seed()
    outcomes = []

    async def transactions(store, name, committed):
        async with store.producer(transactional_id=name) as producer:
            await producer.init_transactions()

            async def write(number):
                async with producer.transaction():
                    for part in range(3):
                        told = await producer.send("t", b"%s:%d:%d" % (name.encode(), number, part))
                        if part == number % 4:
                            await told

            # How many of each there are depends on how quick the machine is.
            for number in itertools.count():
                if number >= 80 and min(map(outcomes.count, ("committed", "aborted"))) > 2:
                    break
                await cancelled_at_random(write(number), 0.002)
                outcomes.append(producer.outcome)
                if producer.outcome == "committed":
                    committed += [b"%s:%d:%d" % (name.encode(), number, part) for part in range(3)]

    async def body(store):
        lists = [[] for _ in range(4)]
        await asyncio.gather(
            *(transactions(store, f"x{number}", one) for number, one in enumerate(lists))
        )
        found = await values(store)
        for number, committed in enumerate(lists):
            assert [one for one in found if one.startswith(b"x%d:" % number)] == committed

    run(tmp_path / "s", body, durability)
    # A task that was cancelled before its first step has begun nothing.
    assert set(outcomes) <= {"committed", "aborted", None}


def test_a_cancelled_record_is_in_the_log_if_and_only_if_a_note_says_so(tmp_path):
    async def body(store):
        expected, denied = set(), set()
        async with store.producer() as producer:

            async def one(number):
                value = b"%d" % number
                task = asyncio.create_task(producer.send_and_wait("t", value))
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                if number % 3:
                    await asyncio.sleep(random.uniform(0, 0.0005))
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError as error:
                    notes = " ".join(getattr(error, "__notes__", []))
                    (expected if "is in the log" in notes else denied).add(value)
                else:
                    expected.add(value)

            for first in range(0, 2000, 10):
                await asyncio.gather(*(one(first + number) for number in range(10)))
        found = await values(store)
        assert len(found) == len(set(found))
        assert set(found) == expected
        assert len(denied) > 50 and len(expected) > 50

    run(tmp_path / "s", body, "process")


def test_a_loop_that_is_cancelled_at_random_reads_each_record_once(tmp_path):
    count = 3000

    async def body(store):
        async with store.producer() as producer, store.consumer(group="g") as consumer:
            await consumer.assign([T0])
            found = []

            async def write():
                for number in range(count):
                    await producer.send("t", b"%d" % number)
                    if number % 20 == 0:
                        await asyncio.sleep(0.0005)

            async def read():
                while True:
                    kind = random.randrange(3)
                    if kind == 0:
                        found.append((await consumer.getone()).value)
                    elif kind == 1:
                        found.extend(one.value for one in await consumer.poll(timeout=1))
                    else:
                        async for record in consumer:
                            found.append(record.value)
                            if random.randrange(20) == 0:
                                await consumer.commit()
                                break

            writing = asyncio.create_task(write())
            while len(found) < count:
                error = await cancelled_at_random(read(), 0.004)
                assert isinstance(error, asyncio.CancelledError), error
            await writing
            assert found == [b"%d" % number for number in range(count)]
            assert await consumer.position(T0) == count
            await consumer.commit()
            assert await consumer.committed(T0) == count

    run(tmp_path / "s", body, "process")
