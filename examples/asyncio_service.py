"""A service on asyncio: tasks write orders, a worker bills them in transactions, and is cancelled.

The worker is cancelled again and again, at any moment, also in the middle of a commit. The next one
goes on behind the orders whose bills are in the log; at the end every order has one bill.
"""

import asyncio
import random
import sys
import tempfile

import eoslog.aio
from eoslog import TopicPartition
from eoslog.aio import AsyncStore

CUSTOMERS = 20
ORDERS_EACH = 200
CANCELLATIONS = 10
ORDERS = TopicPartition("orders", 0)


async def customer(store: AsyncStore, name: int) -> None:
    """One of many tasks that write at the same time; their records are appended together."""
    async with store.producer() as producer:
        for number in range(ORDERS_EACH):
            sent = await producer.send_and_wait("orders", b"%d/%d" % (name, number))
            assert sent.topic == "orders"
            await asyncio.sleep(random.uniform(0, 0.002))


async def worker(store: AsyncStore) -> None:
    """Read, write and commit, for ever."""
    async with (
        store.producer(transactional_id="billing") as producer,
        store.consumer(group="billing") as consumer,
    ):
        # First: an older worker must write nothing more before its offsets are looked at.
        await producer.init_transactions()
        await consumer.assign([ORDERS])
        while True:
            records = await consumer.poll(timeout=60, max_records=50)
            if not records:
                continue
            async with producer.transaction():
                for record in records:
                    await producer.send("bills", b"bill for " + (record.value or b""))
                await producer.send_offsets_to_transaction(
                    {ORDERS: await consumer.position(ORDERS)}, consumer.group_metadata()
                )


async def bills(store: AsyncStore, count: int) -> list[bytes]:
    """So many bills; they are awaited."""
    found: list[bytes] = []
    async with store.consumer() as consumer:
        await consumer.assign([TopicPartition("bills", 0)])
        async for record in consumer:
            found.append(record.value or b"")
            if len(found) == count:
                # Whatever else there is: one bill too many would be seen.
                found += [one.value or b"" for one in await consumer.poll(timeout=0.1)]
                break
    return found


async def main(store_path: str) -> bool:
    async with eoslog.aio.open(store_path, create=True) as store:
        await store.create_topic("orders", exist_ok=True)
        await store.create_topic("bills", exist_ok=True)
        reading = asyncio.create_task(bills(store, CUSTOMERS * ORDERS_EACH))
        customers = [asyncio.create_task(customer(store, name)) for name in range(CUSTOMERS)]
        cancelled = 0
        while cancelled < CANCELLATIONS:
            working = asyncio.create_task(worker(store))
            await asyncio.sleep(random.uniform(0.02, 0.06))
            working.cancel()
            await asyncio.wait([working])
            cancelled += 1
        working = asyncio.create_task(worker(store))
        await asyncio.gather(*customers)
        found = await reading
        working.cancel()
        await asyncio.wait([working])
    expected = [
        b"bill for %d/%d" % (name, number)
        for name in range(CUSTOMERS)
        for number in range(ORDERS_EACH)
    ]
    exact = sorted(found) == sorted(expected)
    print(f"cancelled {cancelled} times; each of {len(found)} orders has its bill, once: {exact}")
    return exact


if __name__ == "__main__":
    if len(sys.argv) > 1:
        done = asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            done = asyncio.run(main(f"{folder}/store"))
    sys.exit(0 if done else 1)
