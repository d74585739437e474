"""Names of Kafka's other clients: the error says what the same thing is called here."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle

import pytest

import eoslog
import eoslog.aio
from eoslog.common.other_clients import METHODS
from eoslog.errors import InvalidConfigError

PARAMETERS = [
    ("consumer", {"group_id": "g"}, "group=..."),
    ("consumer", {"bootstrap_servers": "localhost"}, "there are no servers"),
    ("consumer", {"enable_auto_commit": True}, r"call commit\(\)"),
    ("consumer", {"value_deserializer": bytes}, "decode them yourself"),
    ("consumer", {"max_poll_records": 5}, r'config=\{"max.poll.records": ...\}'),
    ("consumer", {"group": "g", "consumer_timeout_ms": 5}, r"poll\(timeout=...\), in seconds"),
    ("producer", {"bootstrap_servers": "localhost"}, "there are no servers"),
    ("producer", {"linger_ms": 5}, r'config=\{"linger.ms": ...\}'),
    ("producer", {"enable_idempotence": True}, r'config=\{"enable.idempotence": ...\}'),
    ("producer", {"acks": "all"}, r"durability=..."),
    ("create_topic", {"name": "u", "num_partitions": 3}, "partitions=..."),
    ("create_topic", {"name": "u", "replication_factor": 3}, "one copy"),
    ("poll", {"timeout_ms": 5}, "timeout=..., in seconds"),
    ("poll", {"num_messages": 5}, "max_records=..."),
    ("poll_arrow", {"timeout_ms": 5}, "timeout=..., in seconds"),
    ("subscribe", {"topics": ["t"], "on_assign": print}, "on_assigned=..."),
    ("subscribe", {"topics": ["t"], "on_revoke": print}, "on_revoked=..."),
    ("commit", {"asynchronous": True}, "durable"),
    ("commit", {"message": None}, "offsets="),
]
OF_STORES = ("consumer", "producer", "create_topic")


@pytest.mark.parametrize(("call", "given", "words"), PARAMETERS)
def test_parameters_of_other_clients(store, call, given, words):
    store.create_topic("t")
    on = store if call in OF_STORES else store.consumer(group="g")
    name = list(given)[-1]
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'.*{words}"):
        getattr(on, call)(**given)

    async def main() -> None:
        async with eoslog.aio.wrap(store) as store_of_loop:
            on = store_of_loop
            if call not in OF_STORES:
                on = await store_of_loop.consumer(group="g")
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'.*{words}"):
                await getattr(on, call)(**given)

    asyncio.run(main())
    assert list(store.topics()) == ["t"]


def test_parameters_of_nobody(store, tmp_path):
    calls = [
        (eoslog.open, {"path": tmp_path / "new", "create": True}),
        (store.consumer, {}),
        (store.producer, {}),
        (store.create_topic, {"name": "t"}),
        (store.consumer(group="g").poll, {}),
        (store.consumer(group="g").subscribe, {"topics": ["t"]}),
    ]
    for call, given in calls:
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'nonsense'$"):
            call(**given, nonsense=1)
    assert not (tmp_path / "new").exists()
    assert store.topics() == {}
    with pytest.raises(TypeError, match="there are no servers"):
        eoslog.open(tmp_path / "new", create=True, bootstrap_servers="localhost")
    with pytest.raises(TypeError, match="there are no servers"):
        asyncio.run(opened(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


async def opened(path) -> None:
    await eoslog.aio.open(path, create=True, bootstrap_servers="localhost")


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda store: store.producer(), "produce", r"send\(topic, value, key\)"),
        (lambda store: store.producer(transactional_id="x"), "produce", "send"),
        (lambda store: store.producer(), "stop", r"close\(\)"),
        (lambda store: store.producer(), "send_and_wait", r"send\(.*flush\(\)"),
        (lambda store: store.consumer(), "consume", r"poll\(timeout=..., max_records=...\)"),
        (lambda store: store.consumer(), "getmany", r"poll\("),
        (lambda store: store.consumer(), "commit_sync", r"commit\(\)"),
        (lambda store: store.consumer(), "store_offsets", r"commit\(offsets\)"),
        (lambda store: store, "delete_topics", r"delete_topic\("),
        (lambda store: store, "list_topics", r"topics\(\)"),
    ],
)
def test_methods_of_other_clients(store, make, name, words):
    on = make(store)
    with pytest.raises(AttributeError, match=f"no attribute '{name}'.*{words}"):
        getattr(on, name)
    assert not hasattr(on, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = on.nonsense


@pytest.mark.parametrize("module", ["eoslog", "eoslog.aio"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("KafkaConsumer", r"store.consumer\("),
        ("AIOKafkaProducer", r"eoslog.aio.open"),
        ("KafkaError", r"eoslog.errors.EoslogError"),
    ],
)
def test_imports_of_other_clients(module, name, words):
    with pytest.raises(ImportError, match=f"no attribute '{name}'; in eoslog: .*{words}"):
        exec(f"from {module} import {name}")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec(f"from {module} import nonsense")


def test_a_timeout_of_a_flush(store):
    async def asynchronous() -> None:
        async with eoslog.aio.wrap(store).producer() as producer:
            with pytest.raises(TypeError, match="'timeout'; in eoslog: it returns once all"):
                await producer.flush(10)

    asyncio.run(asynchronous())
    for give in (lambda flush: flush(10), lambda flush: flush(timeout=10)):
        with pytest.raises(TypeError, match="'timeout'; in eoslog: it returns once all"):
            give(store.producer().flush)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("bootstrap.servers", "no servers"),
        ("security.protocol", "no servers"),
        ("value.serializer", "bytes"),
    ],
)
def test_settings_of_other_clients(store, setting, words):
    for make in (store.producer, store.consumer):
        with pytest.raises(InvalidConfigError, match=f"in eoslog: .*{words}"):
            make(config={setting: "x"})
    with pytest.raises(InvalidConfigError, match=f"in eoslog: .*{words}"):
        eoslog.open(store.path, config={setting: "x"})


def test_a_forgotten_await(tmp_path):
    opening = eoslog.aio.open(tmp_path / "s", create=True)
    with pytest.raises(AttributeError, match="'producer': the object is not open yet; await"):
        _ = opening.producer


def test_a_method_that_there_is_is_not_hidden(store):
    async def asynchronous() -> dict[str, type]:
        async with eoslog.aio.wrap(store) as store_of_loop:
            made = [await store_of_loop.producer(), await store_of_loop.consumer()]
            return {type(one).__name__: type(one) for one in [*made, store_of_loop]}

    classes = asyncio.run(asynchronous())
    classes |= {type(one).__name__: type(one) for one in (store, store.producer())}
    classes |= {"Consumer": eoslog.Consumer}
    assert classes.keys() == METHODS.keys()
    for name, cls in classes.items():
        for method in METHODS[name]:
            assert not hasattr(cls, method)
            assert not any(method in vars(one) for one in cls.__mro__[1:])
        assert inspect.getmembers(cls)


def test_what_is_never_copied_says_so_as_before(store):
    for one in (store, store.producer(), store.consumer()):
        for call in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be pickled or copied"):
                call(one)
