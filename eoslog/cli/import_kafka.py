"""`eoslog import-kafka`: a store of the log directories of a stopped Kafka broker."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import eoslog
from eoslog import TopicPartition
from eoslog.cli.options import (
    Settings,
    counted,
    echo_json,
    parse_config,
    shared_options,
    standard_output,
)
from eoslog.cli.output import progress_line


@click.command("import-kafka")
@click.argument("sources", nargs=-1, required=True, metavar="SRC...", type=click.Path())
@click.argument("path", metavar="DEST", type=click.Path())
@click.option(
    "--config", "settings_of_all", multiple=True, metavar="NAME=VALUE", help="Of every topic."
)
@click.option(
    "--topic-config",
    "settings_of_topics",
    multiple=True,
    nargs=2,
    metavar="TOPIC NAME=VALUE",
    help="Of one topic.",
)
@click.option("--allow-missing", is_flag=True, help="Make partitions without a directory, empty.")
@click.option("--link", is_flag=True, help="Link sealed segments instead of copying them.")
@shared_options
def import_kafka(
    settings: Settings,
    sources: tuple[str, ...],
    path: str,
    settings_of_all: tuple[str, ...],
    settings_of_topics: tuple[tuple[str, str], ...],
    allow_missing: bool,
    link: bool,
) -> None:
    """Make the store DEST of SRC, all log directories of one stopped Kafka broker.

    The directories are only read. DEST must not exist, or be empty; --store is not asked for. What
    is not as it was in the broker is printed. See docs/study-a-broker.md.
    """
    standard_output()  # Before the work, all of whose answer would go there.
    topic_config: dict[str, dict[str, str]] = {}
    for topic, setting in settings_of_topics:
        topic_config.setdefault(topic, {}).update(parse_config((setting,), "--topic-config"))
    with progress_line("import") as progress:
        result = eoslog.import_kafka(
            sources,
            path,
            config=parse_config(settings_of_all),
            topic_config=topic_config,
            allow_missing=allow_missing,
            link=link,
            progress=progress,
        )
    if settings.as_json:
        echo_json(_as_json(result))
        return
    for text in _lines(result):
        click.echo(text)


def _as_json(result: "eoslog.KafkaImport") -> dict[str, Any]:
    found = asdict(result)
    found["missing"] = list(map(str, result.missing))
    found["holes"] = [{"partition": str(where), "below": at} for where, at in result.holes]
    found["cut"] = [{"partition": str(where), "bytes": count} for where, count in result.cut]
    for name in ("left_out", "other_groups"):
        found[name] = [one._asdict() for one in getattr(result, name)]
    return found


def _lines(result: "eoslog.KafkaImport") -> Iterator[str]:
    sizes = f"{result.copied_bytes / 1e6:,.1f} MB copied"
    if result.linked_bytes:
        sizes += f", {result.linked_bytes / 1e6:,.1f} MB linked"
    yield (
        f"{counted(result.topics, 'topic')} with {counted(result.partitions, 'partition')}, "
        f"{counted(result.groups, 'group')}, "
        f"{counted(result.transactional_ids, 'transactional id')} in {result.path}: {sizes}"
    )
    yield from _of("not closed cleanly by the broker", result.unclean)
    for where, count in result.cut:
        yield f"{where}: a torn batch of {count} bytes at its end is left out"
    for where, below in result.holes:
        yield f"{where}: offsets below {below} are missing, and the topic is not compacted"
    for what, reason in result.left_out:
        yield f"left out: {what}: {reason}"
    yield from _of("made empty", _names(result.missing))
    for one in result.ended_transactions:
        of = f"id {one.transactional_id}" if one.transactional_id else f"producer {one.producer_id}"
        end = "is still open" if one.end == "open" else f"was open, and is {one.end}"
        yield f"transaction of {of}: {end}"
    for group, kind in result.other_groups:
        yield f"group {group}: of its records ({kind}) only the committed offsets count here"
    yield from _of("a topic like others here", result.kafkas_topics)
    for setting in result.retention:
        yield f"deletes old records: {setting.of}: {setting.name}={setting.value}"
    for setting in result.not_applied:
        yield f"kept, without effect: {setting.of}: {setting.name}={setting.value}"
    for setting in result.not_taken_over:
        yield f"not taken over: {setting.of}: {setting.name}={setting.value}: {setting.reason}"


def _of(text: str, found: Iterable[Path | str]) -> Iterator[str]:
    return (f"{text}: {one}" for one in found)


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [str(where) for where in partitions]
