"""Read, process, write: a loop that is killed again and again, and still does all exactly once.

The script starts itself as a child that reads orders and writes an invoice for each, and kills it a
few times. Each new child goes on behind the orders whose invoices are in the log; at the end every
order has one invoice, and there is no other.
"""

import random
import subprocess
import sys
import tempfile
import time

import eoslog
from eoslog import Producer, Record, TopicPartition

ORDERS = 200_000
PARTITIONS = 2
KILLS = 5


def invoice_of(order: bytes) -> bytes:
    number, amount = order.split(b":")
    return b"invoice %s: %d.00" % (number, int(amount) * 2)


def process(producer: Producer, orders: list[Record]) -> None:
    """Called in a transaction, with up to 500 orders; their offsets are committed with it."""
    for order in orders:
        producer.send(
            "invoices",
            key=order.key,
            value=invoice_of(order.value or b""),
            partition=order.partition,
        )


def work(store_path: str) -> None:
    with eoslog.open(store_path) as store:
        eoslog.read_process_write(
            store,
            process,
            topics=["orders"],
            group="billing",
            until_caught_up=True,
            poll_timeout_s=0.0,
        )


def values(store: eoslog.Store, topic: str, partition: int) -> list[bytes]:
    with store.consumer() as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        found: list[bytes] = []
        while records := consumer.poll(timeout=0.0, max_records=10_000):
            found += [record.value or b"" for record in records]
        return found


def main(store_path: str) -> None:
    with eoslog.open(store_path, create=True) as store:
        store.create_topic("orders", partitions=PARTITIONS, exist_ok=True)
        store.create_topic("invoices", partitions=PARTITIONS, exist_ok=True)
        with store.producer() as producer:
            for number in range(ORDERS):
                order = b"%d:%d" % (number, number % 1000)
                producer.send("orders", value=order, partition=number % PARTITIONS)

    killed = 0
    for attempt in range(KILLS + 1):
        child = subprocess.Popen([sys.executable, __file__, "--work", store_path])
        if attempt < KILLS:
            time.sleep(random.uniform(0.15, 0.35))
            killed += child.poll() is None
            child.kill()
        if child.wait() not in (0, -9):
            sys.exit("the child failed")

    exact = True
    with eoslog.open(store_path) as store:
        for partition in range(PARTITIONS):
            expected = [invoice_of(order) for order in values(store, "orders", partition)]
            exact = exact and values(store, "invoices", partition) == expected
    print(f"killed {killed} times; each order has its invoice, once and in order: {exact}")
    sys.exit(0 if exact else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"{folder}/store")
