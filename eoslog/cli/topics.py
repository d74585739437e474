"""`eoslog topics`: list, create, describe, alter and delete."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import eoslog
from eoslog.cli.completion import complete_topics
from eoslog.cli.options import (
    Settings,
    alter_config_options,
    config_options,
    confirm,
    echo_json,
    given_config,
    noted_creation,
    shared_options,
)
from eoslog.cli.producers import find_partition
from eoslog.cli.table import print_rows
from eoslog.common.config import CLEANUP_POLICY, kept_for_kafka, parse_topic_config
from eoslog.common.topic_name import INTERNAL_TOPICS, check_user_topic_name
from eoslog.storage.topic_registry import cleanup_policy_of
from eoslog.store.store import engine_of, offset_bounds_of

_INTERNAL_OPTION = click.option(
    "--internal", is_flag=True, help="Also those that the store keeps its own records in."
)


@click.group(invoke_without_command=True)
@_INTERNAL_OPTION
@shared_options
def topics(settings: Settings, internal: bool) -> None:
    """List, create, describe, alter and delete topics. Without a subcommand: list."""
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        show_topics(settings, internal)
    elif internal:
        raise click.UsageError("--internal goes after `list`")


@topics.command("list")
@_INTERNAL_OPTION
@shared_options
def list_topics(settings: Settings, internal: bool) -> None:
    """List the topics with their partitions and offsets in use."""
    show_topics(settings, internal)


@topics.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True)
@config_options
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@shared_options
def create_topic(
    settings: Settings,
    name: str,
    partitions: int,
    pairs: tuple[str, ...],
    file: Path | None,
    if_not_exists: bool,
) -> None:
    """Create a topic; the store is created too where there is none."""
    config = given_config(pairs, file)
    parse_topic_config(config)
    check_user_topic_name(name)  # All before there is a store.
    with noted_creation(settings.path()):
        with eoslog.open(settings.path(), create=True) as store:
            store.create_topic(name, partitions=partitions, config=config, exist_ok=if_not_exists)
        if settings.as_json:
            echo_json({"topic": name, "partitions": partitions})
        else:
            click.echo(f"created {name} with {partitions} partition{'s' if partitions > 1 else ''}")


@topics.command("describe")
@click.argument("name", shell_complete=complete_topics)
@shared_options
def describe_topic(settings: Settings, name: str) -> None:
    """Show a topic's partitions (offsets, segments, bytes) and its settings as they hold."""
    with settings.read() as store:
        rows = partition_rows(store, name)
        config = topic_config(store, name)
        topic = store.topics().get(name)
        kept = {} if topic is None else kept_for_kafka(topic.config)
        if settings.as_json:
            kept_as_json = {"kept_for_kafka": kept} if kept else {}
            echo_json({"topic": name, "partitions": rows, "config": config, **kept_as_json})
            return
        columns = [column.removesuffix("_offset").replace("_", " ") for column in rows[0]]
        print_rows(columns, [list(row.values()) for row in rows], title=name)
        print_rows(("setting", "value"), list(config.items()))
        if kept:
            print_rows(("kept for Kafka", "value"), list(kept.items()))


@topics.command("alter")
@click.argument("name", shell_complete=complete_topics)
@click.option("--partitions", type=click.IntRange(min=1), help="How many there are to be.")
@alter_config_options
@shared_options
def alter_topic(
    settings: Settings,
    name: str,
    partitions: int | None,
    pairs: tuple[str, ...],
    file: Path | None,
    removed: tuple[str, ...],
) -> None:
    """Change a topic's settings, or add partitions; processes that have the store open follow.

    Keys go to other partitions once there are more; records that are there stay where they are.
    """
    config = given_config(pairs, file, removed)
    if not config and partitions is None:
        raise click.UsageError("give --config, --config-file, --delete-config or --partitions")
    with settings.open() as store:
        before = topic_config(store, name)
        altered = store.alter_topic(name, config, partitions=partitions)
        changed = [
            (one, before[one], now)
            for one, now in topic_config(store, name).items()
            if before.get(one) != now
        ]
        if settings.as_json:
            own = {"partitions": altered.partitions, "config": dict(altered.config)}
            echo_json({"topic": name, **own})
            return
        count = altered.partitions
        click.echo(f"{name} has {count} partition{'s' if count > 1 else ''}")
        if changed:
            print_rows(("setting", "before", "now"), changed)


@topics.command("delete")
@click.argument("name", shell_complete=complete_topics)
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete_topic(settings: Settings, name: str, yes: bool) -> None:
    """Delete a topic and all its records."""
    if not yes:
        confirm(f"Delete {name} and all its records?")
    with settings.open() as store:
        store.delete_topic(name)
        if settings.as_json:
            echo_json({"deleted": name})
        else:
            click.echo(f"deleted {name}")


def show_topics(settings: Settings, internal: bool) -> None:
    """Print every topic with its number of partitions and of offsets in use."""
    with settings.read() as store:
        names = [*store.topics(), *(internal_topics(store) if internal else ())]
        found = (topic_row(store, name) for name in sorted(names))
        rows = [one for one in found if one is not None]
        if settings.as_json:
            echo_json(rows)
            return
        print_rows(("topic", "partitions", "offsets"), [list(row.values()) for row in rows])


def topic_row(store: "eoslog.Store", name: str) -> dict[str, Any] | None:
    """One line of the list; None if another process has deleted the topic. Records take offsets,
    and so do the markers of transactions.
    """
    partitions = offset_bounds_of(store, name)
    if partitions is None:
        return None
    offsets = sum(map(len, partitions.values()))
    return {"topic": name, "partitions": len(partitions), "offsets": offsets}


def partition_rows(store: "eoslog.Store", name: str) -> list[dict[str, int]]:
    """The state of each partition of a topic. Raises UnknownTopicOrPartitionError."""
    logs = [(number, find_partition(store, name, number)) for number in _numbers(store, name)]
    return [
        {
            "partition": number,
            "log_start_offset": log.log_start_offset,
            "log_end_offset": log.log_end_offset,
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "segments": log.segment_count,
            "size_bytes": log.size_bytes,
        }
        for number, log in logs
    ]


def topic_config(store: "eoslog.Store", name: str) -> dict[str, int | str]:
    """A topic's settings: its own, else the store's, else the defaults."""
    engine = engine_of(store)
    topic = engine.registry.get(name)
    if topic is None:
        return {}
    return {**engine.partitions.config_of(topic), CLEANUP_POLICY: cleanup_policy_of(topic)}


def internal_topics(store: "eoslog.Store") -> list[str]:
    """The store's own topics, as far as something was written to them."""
    partitions = engine_of(store).partitions
    return [name for name in INTERNAL_TOPICS if partitions.existing_internal_partitions(name)]


def _numbers(store: "eoslog.Store", name: str) -> Sequence[int]:
    """The partitions of a topic; of an internal one, those that were written to."""
    if name in internal_topics(store):
        return engine_of(store).partitions.existing_internal_partitions(name)
    found = store.topics().get(name)
    if found is None:
        raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {name!r} in {store.path}")
    return range(found.partitions)
