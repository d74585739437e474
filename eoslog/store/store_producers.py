"""What the partitions of a store know of producers: `Store.producers`."""

from typing import TYPE_CHECKING

from eoslog.bindings.partition_log import ProducerState
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.storage.topic_registry import TopicDescription

if TYPE_CHECKING:
    from eoslog.store.store import Store


def producers_of(store: "Store") -> dict[TopicPartition, list[ProducerState]]:
    """See `Store.producers`."""
    found: dict[TopicPartition, list[ProducerState]] = {}
    for topic in store.topics().values():
        found.update(_of_topic(store, topic))
    return found


def _of_topic(store: "Store", topic: TopicDescription) -> dict[TopicPartition, list[ProducerState]]:
    """Empty if the topic is deleted meanwhile, by whatever process."""
    try:
        return {where: store.partition(*where).producers() for where in topic.topic_partitions()}
    except (LogClosedError, UnknownTopicOrPartitionError):
        store._check_open()
        if store.topics().get(topic.name) == topic:
            raise
        return {}
