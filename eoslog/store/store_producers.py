"""Producers as the partitions of a store know them: `Store.producers`."""

from eoslog.bindings.partition_log import ProducerState
from eoslog.common.topic_partition import TopicPartition
from eoslog.errors import LogClosedError, UnknownTopicOrPartitionError
from eoslog.storage.engine import Engine
from eoslog.storage.topic_registry import TopicDescription


def producers_of(engine: Engine) -> dict[TopicPartition, list[ProducerState]]:
    """See `Store.producers`."""
    found: dict[TopicPartition, list[ProducerState]] = {}
    for topic in engine.topics().values():
        found.update(_of_topic(engine, topic))
    return found


def _of_topic(engine: Engine, topic: TopicDescription) -> dict[TopicPartition, list[ProducerState]]:
    """Empty if the topic is deleted meanwhile, by whatever process."""
    try:
        return {where: engine.partition(*where).producers() for where in topic.topic_partitions()}
    except (LogClosedError, UnknownTopicOrPartitionError):
        engine.check_open()
        if engine.topics().get(topic.name) == topic:
            raise
        return {}
