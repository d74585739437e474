"""`docs/coming-from.md`: each of our calls beside another client's does something with a store."""

from __future__ import annotations

import asyncio
import json
import re
import textwrap
from pathlib import Path

import pytest

import eoslog
import eoslog.aio
from eoslog import TopicPartition
from eoslog.common import other_clients

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
ORDERS_0 = TopicPartition("orders", 0)


def rows(title: str) -> list[str]:
    """Our calls in the table of a section: the first code of each last cell."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    found = [re.match(r"`([^`]+)`", line.rstrip(" |").split(" | ")[-1]) for line in lines]
    assert None not in found
    return [one[1] for one in found if one is not None]


PLAIN = sorted({*rows("confluent-kafka"), *rows("kafka-python")})
AWAITED = rows("aiokafka")


@pytest.fixture
def orders(store):
    """The store with three orders, and groups that read one."""
    store.create_topic("orders")
    with store.producer() as producer:
        producer.append("orders", 0, [b"a", b"b", b"c"])
    for group in ("billing", "old"):
        store.consumer(group=group).commit({ORDERS_0: 1})
    return store


def test_the_rows_are_found():
    assert len(rows("confluent-kafka")) >= 20
    assert len(rows("kafka-python")) >= 12
    assert len(AWAITED) >= 10


@pytest.mark.parametrize("code", PLAIN)
def test_a_call_runs(orders, code):
    transactional = orders.producer(transactional_id="t")
    transactional.init_transactions()
    consumer = orders.consumer(group="reader")
    if "subscribe" not in code:
        consumer.assign([ORDERS_0])
    with orders.consumer() as other:
        other.assign([ORDERS_0])
        record = other.poll()[0]
    names = {
        "store": orders,
        "producer": orders.producer(),
        "transactional": transactional,
        "consumer": consumer,
        "record": record,
        "orders_0": ORDERS_0,
        "json": json,
    }
    exec(code, names)


@pytest.mark.parametrize("code", AWAITED)
def test_an_awaited_call_runs(orders, code):
    async def run() -> None:
        async with eoslog.aio.wrap(orders) as store:
            transactional = await store.producer(transactional_id="t")
            if "init_transactions" not in code:
                await transactional.init_transactions()
            consumer = await store.consumer(group="reader")
            await consumer.assign([ORDERS_0])
            names = {
                "asyncio": asyncio,
                "store": store,
                "producer": await store.producer(),
                "transactional": transactional,
                "consumer": consumer,
                "orders_0": ORDERS_0,
            }
            exec(f"async def call():\n{textwrap.indent(code, '    ')}", names)
            await names["call"]()

    asyncio.run(run())


def test_names_of_other_clients_are_on_the_page_or_in_an_error():
    """What stands in a first cell does not exist here, or means the same."""
    text = PAGE.read_text(encoding="utf-8")
    for name in ("KafkaProducer", "KafkaConsumer", "AIOKafkaProducer"):
        assert name in text
        with pytest.raises(ImportError, match="in eoslog"):
            getattr(eoslog, name)
    assert other_clients.METHODS["Consumer"]["consume"]
