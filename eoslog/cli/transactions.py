"""`eoslog transactions`: what there is of transactions, as Kafka's tool shows it, and their end.

An opening of a store ends what producers of dead processes left open: what is listed is under
way in another process, decided, prepared for a decision from outside, or hanging.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from eoslog.cli.completion import complete_topics, complete_transactional_ids
from eoslog.cli.monitor.explain import explain
from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.producers import find_partition
from eoslog.cli.table import print_rows

if TYPE_CHECKING:
    from eoslog import TransactionDescription
    from eoslog.bindings.partition_log import ProducerState

_MS_PER_MINUTE = 60_000
_MAX_TIMEOUT_MINUTES = 15

LIST_COLUMNS = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBE_COLUMNS = (
    *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"),
    *("TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs"),
    "TopicPartitions",
)
PRODUCER_COLUMNS = (
    *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
    "CurrentTransactionStartOffset",
)
HANGING_COLUMNS = (
    *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset"),
    *("LastTimestamp", "Duration(min)"),
)


@click.group(invoke_without_command=True)
@shared_options
def transactions(settings: Settings) -> None:
    """List, describe and abort transactions; find those that hang. Without a subcommand: list."""
    if click.get_current_context().invoked_subcommand is None:
        show_transactions(settings)


@transactions.command("list")
@click.option(
    "--duration-filter",
    "duration_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="Only transactions that are open for longer; below 0, the default, all.",
)
@click.option(
    "--transactional-id-pattern",
    "pattern",
    metavar="REGEX",
    help="Only ids that the expression matches as a whole.",
)
@click.option("--state", "states", multiple=True, help="Only this state; may be given again.")
@click.option(
    "--producer-id", "producer_ids", type=int, multiple=True, help="Only this producer id."
)
@shared_options
def list_transactions(
    settings: Settings,
    duration_ms: int,
    pattern: str | None,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
) -> None:
    """List the transactional ids with their states."""
    if pattern is not None:
        _check_pattern(pattern)
    show_transactions(
        settings,
        states=states or None,
        producer_ids=producer_ids or None,
        pattern=pattern,
        duration_ms=duration_ms,
    )


@transactions.command("describe")
@click.option(
    "--transactional-id", required=True, metavar="ID", shell_complete=complete_transactional_ids
)
@shared_options
def describe_transaction(settings: Settings, transactional_id: str) -> None:
    """Show all that is known of a transactional id."""
    with settings.read() as store:
        found = store.describe_transaction(transactional_id)
        if settings.as_json:
            echo_json({**asdict(found), "topic_partitions": _names(found)})
        else:
            # On a narrow terminal the partitions fold, which they do as a list.
            print_rows(DESCRIBE_COLUMNS, [[*description_row(found)[:-1], _names(found)]])


@transactions.command("describe-producers")
@click.option("--topic", required=True, shell_complete=complete_topics)
@click.option("--partition", type=click.IntRange(min=0), required=True)
@shared_options
def describe_producers(settings: Settings, topic: str, partition: int) -> None:
    """Show the producers that a partition remembers, and since where their transactions are open.

    The partitions of internal topics can be named too.
    """
    with settings.read() as store:
        states = find_partition(store, topic, partition).producers()
        _print(settings, PRODUCER_COLUMNS, [_producer_row(state) for state in states])


@transactions.command("find-hanging")
@click.option("--topic", shell_complete=complete_topics, help="Only in this topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Only in this partition of it.")
@click.option(
    "--max-transaction-timeout",
    "timeout_minutes",
    type=click.IntRange(min=0),
    default=_MAX_TIMEOUT_MINUTES,
    show_default=True,
    metavar="MIN",
    help="Only those whose producers wrote nothing for longer.",
)
@shared_options
def find_hanging(
    settings: Settings, topic: str | None, partition: int | None, timeout_minutes: int
) -> None:
    """Find transactions that are open at a partition, and that nothing will ever end there."""
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    with settings.read() as store:
        if topic is not None and partition is not None:
            find_partition(store, topic, partition)
        found = store.find_hanging_transactions(
            max_transaction_timeout_ms=timeout_minutes * _MS_PER_MINUTE,
            topic=topic,
            partition=partition,
        )
        if settings.as_json:
            echo_json([asdict(one) for one in found])
            return
        rows = [list(asdict(one).values())[: len(HANGING_COLUMNS)] for one in found]
        print_rows(HANGING_COLUMNS, rows)


@transactions.command("abort")
@click.option(
    "--transactional-id",
    metavar="ID",
    shell_complete=complete_transactional_ids,
    help="End whatever the id has open, and fence.",
)
@click.option(
    "--topic", shell_complete=complete_topics, help="End a hanging transaction in this topic,"
)
@click.option("--partition", type=click.IntRange(min=0), help="in this partition of it,")
@click.option("--start-offset", type=click.IntRange(min=0), help="the one open since this offset.")
@shared_options
def abort_transaction(
    settings: Settings,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
) -> None:
    """Abort a transaction: that of a transactional id, or one that hangs at a partition.

    With --transactional-id the id's producer is fenced, whether a transaction is open or not; a
    transaction that is prepared for a decision from outside is aborted too.
    """
    place = (topic, partition, start_offset)
    if transactional_id is not None:
        if any(one is not None for one in place):
            raise click.UsageError("--transactional-id excludes a topic, partition and offset")
        with settings.open() as store:
            store.abort_transaction(transactional_id)
            _say_aborted(settings, {"transactional_id": transactional_id}, transactional_id)
            return
    if topic is None or partition is None or start_offset is None:
        raise click.UsageError(
            "name a --transactional-id, or a --topic, --partition and --start-offset"
        )
    with settings.open() as store:
        find_partition(store, topic, partition)
        store.abort_transaction(topic=topic, partition=partition, start_offset=start_offset)
        fields = {"topic": topic, "partition": partition, "start_offset": start_offset}
        _say_aborted(settings, fields, f"{topic}-{partition} from offset {start_offset} on")


transactions.add_command(explain)


def show_transactions(settings: Settings, **filters: Any) -> None:
    """Print the ids that the filters of `Store.transactions` let through."""
    with settings.read() as store:
        found = store.transactions(**filters)
        _print(settings, LIST_COLUMNS, [asdict(one) for one in found])


def _say_aborted(settings: Settings, fields: dict[str, Any], what: str) -> None:
    if settings.as_json:
        echo_json({"aborted": fields})
    else:
        click.echo(f"aborted {what}")


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        reason = f"{pattern!r} is no regular expression: {error}"
        raise click.BadParameter(reason, param_hint="--transactional-id-pattern") from error


def _names(found: "TransactionDescription") -> list[str]:
    return [f"{topic}-{number}" for topic, number in found.topic_partitions]


def description_row(found: "TransactionDescription") -> list[object]:
    """Return the fields in the order of the columns; None where Kafka or eoslog has no value."""
    return [
        found.coordinator_id,
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        found.transaction_timeout_ms,
        found.current_transaction_start_time_ms,
        found.transaction_duration_ms,
        ",".join(_names(found)),
    ]


def _producer_row(state: "ProducerState") -> dict[str, object]:
    """One row, in the order of the columns; a sequence and a start offset that are not are None."""
    first_offset = state.current_txn_first_offset
    return {
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "latest_coordinator_epoch": state.coordinator_epoch,
        "last_sequence": state.last_sequence,
        "last_timestamp": state.last_timestamp,
        "current_transaction_start_offset": first_offset if first_offset >= 0 else None,
    }


def _print(settings: Settings, columns: tuple[str, ...], rows: Iterable[dict[str, object]]) -> None:
    listed = list(rows)
    if settings.as_json:
        echo_json(listed)
        return
    print_rows(columns, [list(row.values()) for row in listed])
