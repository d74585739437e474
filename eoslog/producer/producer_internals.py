"""The internal face of producers, for clients that gather records themselves."""

from eoslog.common.topic_partition import TopicPartition
from eoslog.producer.producer import Producer
from eoslog.producer.transaction_client_state import ClientState
from eoslog.producer.transactional_producer import TransactionalProducer
from eoslog.storage.topic_registry import TopicDescription


def check_appendable(producer: Producer) -> None:
    """Raise the producer's error if it takes no records now."""
    producer._check_appendable()


def known_topic(producer: Producer, topic: str) -> TopicDescription:
    """Return a topic's description. Raises UnknownTopicOrPartitionError, TypeError."""
    return producer._known_topic(topic)


def known_partition(producer: Producer, topic: TopicDescription, partition: int) -> TopicPartition:
    """Return a partition of the topic. Raises UnknownTopicOrPartitionError, TypeError."""
    return producer._known_partition(topic, partition)


def state_of(producer: TransactionalProducer) -> ClientState:
    """Return the state of the producer's transaction."""
    return producer._state


def is_ended(producer: TransactionalProducer) -> bool:
    """Return True if the block's transaction was ended inside the block."""
    return producer._is_ended()


def is_refused(producer: TransactionalProducer) -> bool:
    """Return True if the producer is closed or fenced."""
    return producer._refusal is not None


def was_late(producer: TransactionalProducer) -> bool:
    """Return True if the transaction was aborted because it was older than its timeout."""
    return producer._was_late


def abort_after(producer: TransactionalProducer, error: BaseException) -> None:
    """Abort the open transaction; a failure becomes a note of the error."""
    producer._abort_after(error)
