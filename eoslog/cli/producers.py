"""`eoslog producers`: the producers that partitions remember, as Kafka's describe-producers."""

from typing import Any

import click

import eoslog
from eoslog.bindings.partition_log import ProducerState
from eoslog.cli.completion import complete_topics
from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.table import print_rows
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.storage.unified_log import UnifiedLog
from eoslog.store.store import engine_of

_COLUMNS = (
    *("topic", "partition", "producer id", "epoch", "last sequence", "last offset"),
    *("last timestamp", "coordinator epoch", "transaction start offset"),
)


@click.command()
@click.option("--topic", shell_complete=complete_topics, help="Only this topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition of it.")
@shared_options
def producers(settings: Settings, topic: str | None, partition: int | None) -> None:
    """List, for each partition, the producers it remembers and where each stands."""
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    with settings.read() as store:
        rows = producer_rows(store, topic, partition)
        if settings.as_json:
            echo_json(rows)
            return
        print_rows(_COLUMNS, [list(row.values()) for row in rows])


def producer_rows(
    store: "eoslog.Store", topic: str | None, partition: int | None
) -> list[dict[str, Any]]:
    """One row for each producer of each partition asked for."""
    if topic is None:
        known = store.producers()
    else:
        found = store.topics()
        if topic not in found:
            raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
        numbers = range(found[topic].partitions) if partition is None else [partition]
        known = {
            eoslog.TopicPartition(topic, number): store.partition(topic, number).producers()
            for number in numbers
        }
    return [producer_row(where, state) for where in sorted(known) for state in known[where]]


def producer_row(where: "eoslog.TopicPartition", state: ProducerState) -> dict[str, Any]:
    """Return the row of what a partition remembers of a producer."""
    first_offset = state.current_txn_first_offset
    return {
        "topic": where.topic,
        "partition": where.partition,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "last_sequence": state.last_sequence,
        "last_offset": state.last_offset,
        "last_timestamp": state.last_timestamp,
        "coordinator_epoch": state.coordinator_epoch,
        "current_txn_first_offset": first_offset if first_offset >= 0 else None,
    }


def find_partition(store: "eoslog.Store", topic: str, number: int) -> UnifiedLog:
    """A partition of a user's topic, or one of an internal topic that the store has on disk.

    Raises UnknownTopicOrPartitionError.
    """
    if topic not in INTERNAL_TOPICS:
        return engine_of(store).partition(topic, number)
    partitions = engine_of(store).partitions
    if number not in partitions.existing_internal_partitions(topic):
        raise eoslog.errors.UnknownTopicOrPartitionError(
            f"no partition {number} of {topic} in {store.path}: nothing was written to it yet"
        )
    return partitions.internal_partition(topic, number)
