"""Names of Kafka's other clients for Python: an error says what the same thing is called here.

The clients are kafka-python, confluent-kafka and aiokafka. What they have under the same name and
meaning is not listed. Nothing is looked up before a name was not found.
"""

from collections.abc import Mapping
from typing import Never, TypeVar

from eoslog.common.config import BYTES, CONSUMER_SETTINGS, NO_SERVER, PRODUCER_SETTINGS, Setting

T = TypeVar("T")

_NO_START = "nothing is to be started: the object is ready when it is made"
_DURABLE = "a commit is durable when it returns"

_OF_MODULE = {
    "AIOKafkaConsumer": "eoslog.aio.open(path), then store.consumer(group=...)",
    "AIOKafkaProducer": "eoslog.aio.open(path), then store.producer()",
    "AdminClient": "eoslog.open(path), then store.create_topic(name) and the like",
    "ConsumerRecord": "eoslog.Record",
    "KafkaAdminClient": "eoslog.open(path), then store.create_topic(name) and the like",
    "KafkaConsumer": "eoslog.open(path), then store.consumer(group=...)",
    "KafkaError": "eoslog.errors.EoslogError; eoslog.errors.KafkaError has a code of Kafka",
    "KafkaException": "eoslog.errors.EoslogError",
    "KafkaProducer": "eoslog.open(path), then store.producer()",
    "Message": "eoslog.Record",
    "NewTopic": "store.create_topic(name, partitions)",
}
_OF_STORE = {
    "delete_topics": "delete_topic(name)",
    "describe_topics": "topics()",
    "list_topics": "topics()",
    "list_consumer_groups": "groups()",
    "list_groups": "groups()",
    "describe_consumer_groups": "describe_group(name)",
    "list_consumer_group_offsets": "groups()",
    "delete_consumer_groups": "delete_group(name)",
    "delete_consumer_group_offsets": "delete_offsets(group, partitions)",
}
_OF_PRODUCER = {
    "produce": "send(topic, value, key), whose on_delivery=... a flush() calls",
    "list_topics": "the store's topics()",
    "partitions_for": "the store's topics()",
    "start": _NO_START,
    "stop": "close()",
}
_OF_CONSUMER = {
    "consume": "poll(timeout=..., max_records=...)",
    "commit_async": f"commit(): {_DURABLE}",
    "commit_sync": f"commit(): {_DURABLE}",
    "consumer_group_metadata": "group_metadata()",
    "get_watermark_offsets": "beginning_offsets([...]) and end_offsets([...])",
    "highwater": "end_offsets([...])",
    "incremental_assign": "assign([...]), which keeps the positions of those that stay",
    "incremental_unassign": "assign([...]), which keeps the positions of those that stay",
    "list_topics": "the store's topics()",
    "memberid": "group_metadata().member_id",
    "partitions_for_topic": "the store's topics()",
    "start": _NO_START,
    "stop": "close()",
    "store_offsets": "commit(offsets)",
    "topics": "the store's topics()",
    "unassign": "unsubscribe()",
}
_READS_ONE_BY_ONE = {
    "getmany": "poll(timeout=..., max_records=...)",
    "getone": "poll(max_records=1), or a loop over the consumer",
}
_PARAMETERS = {
    "open": {"bootstrap_servers": NO_SERVER},
    "consumer": {
        "group_id": "group=...",
        "bootstrap_servers": NO_SERVER,
        "group_instance_id": 'config={"group.instance.id": ...}',
        "enable_auto_commit": "nothing is committed by itself: call commit()",
        "auto_commit_interval_ms": "nothing is committed by itself: call commit()",
        "consumer_timeout_ms": "poll(timeout=...), in seconds",
        "key_deserializer": BYTES,
        "value_deserializer": BYTES,
        "topics": "subscribe([...]) of the consumer",
    },
    "producer": {
        "bootstrap_servers": NO_SERVER,
        "key_serializer": BYTES,
        "value_serializer": BYTES,
        "acks": "eoslog.open(durability=...)",
    },
    "create_topic": {
        "num_partitions": "partitions=...",
        "topic_config": "config=...",
        "topic_configs": "config=...",
        "replication_factor": "there is one copy of a store",
        "topic": "name=...",
    },
    "poll": {
        "timeout_ms": "timeout=..., in seconds",
        "num_messages": "max_records=...",
        "max_poll_records": "max_records=...",
    },
    "poll_arrow": {"timeout_ms": "timeout=..., in seconds", "max_records": "max_bytes=..."},
    "subscribe": {
        "on_assign": "on_assigned=...",
        "on_revoke": "on_revoked=...",
        "topic": "topics=[...]",
    },
    "flush": {"timeout": "it returns once all is durable, or raises"},
    "commit": {
        "asynchronous": _DURABLE,
        "message": "offsets={TopicPartition(...): record.offset + 1}",
    },
}
_SETTINGS: Mapping[str, Mapping[str, Setting]] = {
    "consumer": CONSUMER_SETTINGS,
    "producer": PRODUCER_SETTINGS,
}
METHODS: Mapping[str, Mapping[str, str]] = {
    "Store": _OF_STORE,
    "AsyncStore": _OF_STORE,
    "Producer": _OF_PRODUCER | {"send_and_wait": "send(topic, value, key), then flush()"},
    "AsyncProducer": _OF_PRODUCER,
    "Consumer": _OF_CONSUMER | _READS_ONE_BY_ONE,
    "AsyncConsumer": _OF_CONSUMER,
}


def refuse_parameters(call: str, given: Mapping[str, object]) -> Never:
    """Raise the TypeError of a call for parameters that it does not have."""
    name = next(iter(given))
    text = f"{call}() got an unexpected keyword argument {name!r}"
    instead = _PARAMETERS.get(call, {}).get(name)
    setting = name.replace("_", ".")
    if instead is None and setting in _SETTINGS.get(call, {}):
        instead = f'config={{"{setting}": ...}}'
    raise TypeError(text if instead is None else f"{text}; in eoslog: {instead}")


def refuse_name(module: str, name: str) -> Never:
    """Raise the error for a name that a module does not have.

    For a name of another client it is an ImportError: `from eoslog import` would put another text
    in the place of that of an AttributeError.
    """
    text = f"module {module!r} has no attribute {name!r}"
    instead = _OF_MODULE.get(name)
    if instead is None:
        raise AttributeError(text)
    raise ImportError(f"{text}; in eoslog: {instead}", name=module)


class _Absent:
    """Stands for a method of another client; to have it is an AttributeError, as without it."""

    def __init__(self, name: str, instead: str) -> None:
        self._text = f"object has no attribute {name!r}; here it is: {instead}"

    def __get__(self, instance: object, owner: type) -> Never:
        raise AttributeError(f"{owner.__name__!r} {self._text}")


def with_methods_of_other_clients(of: type[T]) -> type[T]:
    """Have a class say what the methods of other clients are called; a decorator.

    `dir` of an object does not list them. They are no `__getattr__`, which would make every access
    to an attribute of the object slower.
    """
    methods = METHODS[of.__name__]
    for name, instead in methods.items():
        setattr(of, name, _Absent(name, instead))

    def listed(self: object) -> list[str]:
        return [name for name in object.__dir__(self) if name not in methods]

    setattr(of, "__dir__", listed)  # noqa: B010
    return of
