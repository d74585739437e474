"""Names of Kafka's other clients for Python: an error says what the same thing is called here.

The clients are kafka-python, confluent-kafka and aiokafka. What they have under the same name and
meaning is not listed. Nothing is looked up before a name was not found.
"""

from collections.abc import Mapping
from typing import Never, TypeVar

from eoslog.common.config import CONSUMER_SETTINGS, PRODUCER_SETTINGS, Setting

T = TypeVar("T")

_NO_SERVER = "a store is a directory, which eoslog.open takes: there are no servers"
_BYTES = "keys and values are bytes: encode and decode them yourself"
_NO_START = "nothing is to be started: the object is ready when it is made"
_DURABLE = "a commit is durable when it returns"

_OF_MODULE = {
    "AIOKafkaConsumer": "eoslog.aio.open(path), then store.consumer(group=...)",
    "AIOKafkaProducer": "eoslog.aio.open(path), then store.producer()",
    "AdminClient": "eoslog.open(path), then store.create_topic(name) and the like",
    "KafkaAdminClient": "eoslog.open(path), then store.create_topic(name) and the like",
    "KafkaConsumer": "eoslog.open(path), then store.consumer(group=...)",
    "KafkaProducer": "eoslog.open(path), then store.producer()",
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
}
_OF_PRODUCER = {
    "produce": "send(topic, value, key)",
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
    "open": {"bootstrap_servers": _NO_SERVER},
    "consumer": {
        "group_id": "group=...",
        "bootstrap_servers": _NO_SERVER,
        "enable_auto_commit": "nothing is committed by itself: call commit()",
        "auto_commit_interval_ms": "nothing is committed by itself: call commit()",
        "consumer_timeout_ms": "poll(timeout=...), in seconds",
        "key_deserializer": _BYTES,
        "value_deserializer": _BYTES,
        "topics": "subscribe([...]) of the consumer",
    },
    "producer": {
        "bootstrap_servers": _NO_SERVER,
        "key_serializer": _BYTES,
        "value_serializer": _BYTES,
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


def attribute_text(name: str) -> str:
    """Return what a name of another client is called in this package, for the end of an error; ""
    for others.
    """
    instead = _OF_MODULE.get(name)
    return "" if instead is None else f"; in eoslog: {instead}"


class _Absent:
    """Stands for a method of another client; to have it is an AttributeError, as without it."""

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Never:
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}; "
            f"here it is: {self._instead}"
        )


def with_methods_of_other_clients(of: type[T]) -> type[T]:
    """Have a class say what the methods of other clients are called; a decorator."""
    for name, instead in METHODS[of.__name__].items():
        absent = _Absent(instead)
        absent.__set_name__(of, name)
        setattr(of, name, absent)
    return of
