"""`eoslog delete-records`: what Kafka's delete-records tool does, and by time."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import eoslog
from eoslog import TopicPartition
from eoslog.cli.completion import complete_topics
from eoslog.cli.options import Settings, as_moment_ms, confirm, echo_json, shared_options
from eoslog.cli.output import note_of_work_done
from eoslog.cli.table import print_rows
from eoslog.common.json_text import check_kinds, loads_json

COLUMNS = ("topic", "partition", "log start offset")
DRY_RUN_COLUMNS = (*COLUMNS, "records", "freed bytes")
_FILE_VERSION = 1
_PLACE = re.compile(r"([^:]+):(\d{1,10}):(-1|\d{1,19})", re.ASCII)


@click.command("delete-records")
@click.option(
    "--offset",
    "places",
    multiple=True,
    metavar="TOPIC:PARTITION:OFFSET",
    help="All below this offset; -1: all that is decided.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Offsets in a file, as Kafka's --offset-json-file.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Of this topic, all before --before.",
)
@click.option("--before", metavar="TIME", help="In ISO 8601; UTC without a zone.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete_records(
    settings: Settings,
    places: tuple[str, ...],
    path: Path | None,
    topics: tuple[str, ...],
    before: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete the oldest records of partitions, below offsets or before a time."""
    if sum((bool(places), path is not None, before is not None)) != 1:
        raise click.UsageError("give one of --offset, --file, --before")
    if bool(topics) is not (before is not None):
        raise click.UsageError("--topic and --before go together")
    what: dict[str, Any]
    if before is not None:
        what = {"before_ms": as_moment_ms(before, "--before"), "topics": topics}
        question = f"Delete the records of {', '.join(topics)} before {before}?"
    else:
        offsets = offsets_of(places) if path is None else offsets_in(path)
        what = {"offsets": offsets}
        below = [f"{offset} of {where}" for where, offset in offsets.items()]
        question = f"Delete the records below offset {', '.join(below)}?"
    with settings.read() if dry_run else settings.open() as store:
        if dry_run:
            show_dry_run(settings, store.deletable_records(**what), before)
            return
        if not yes:
            confirm(question)
        rows = [
            {"topic": where.topic, "partition": where.partition, "log_start_offset": offset}
            for where, offset in store.delete_records(**what).items()
        ]
        if settings.as_json:
            echo_json({"executed": True, "partitions": rows})
        else:
            print_rows(COLUMNS, [list(row.values()) for row in rows])


def show_dry_run(
    settings: Settings,
    found: Mapping[TopicPartition, "eoslog.DeletableRecords"],
    before: str | None,
) -> None:
    """Print what would go, and which older records would stay."""
    rows = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "log_start_offset": one.offset,
            "record_count": one.record_count,
            "freed_bytes": one.freed_bytes,
            "older_left": one.older_left,
        }
        for where, one in found.items()
    ]
    if settings.as_json:
        echo_json({"executed": False, "partitions": rows})
        return
    print_rows(DRY_RUN_COLUMNS, [list(row.values())[: len(DRY_RUN_COLUMNS)] for row in rows])
    with note_of_work_done():
        for where, one in found.items():
            if one.older_left:
                click.echo(
                    f"warning: timestamps of {where} are out of order: {one.older_left} records "
                    f"from offset {one.offset} on are before {before}, and stay",
                    err=True,
                )
        click.echo("nothing was deleted", err=True)


def offsets_of(places: tuple[str, ...]) -> dict[TopicPartition, int]:
    """The offsets that --offset names."""
    found: dict[TopicPartition, int] = {}
    for text in places:
        parts = _PLACE.fullmatch(text)
        if parts is None:
            raise _bad_offset(f"{text!r:.80} is not TOPIC:PARTITION:OFFSET", "--offset")
        place = TopicPartition(parts[1], int(parts[2]))
        if place in found:
            raise _bad_offset(f"{place} occurs twice", "--offset")
        found[place] = int(parts[3])
    return found


def offsets_in(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a file of Kafka's kafka-delete-records.sh."""
    found: dict[TopicPartition, int] = {}
    try:
        data = loads_json(path.read_bytes(), names_once=True)
        if data.get("version", _FILE_VERSION) != _FILE_VERSION:
            raise _bad_offset(f"{path} has version {data['version']!r:.80}, not 1", "--file")
        for one in data["partitions"]:
            check_kinds(str, one["topic"])
            check_kinds(int, one["partition"], one["offset"])
            place = TopicPartition(one["topic"], one["partition"])
            if place in found:
                raise _bad_offset(f"{path} has {place} twice", "--file")
            found[place] = one["offset"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _bad_offset(
            f'{path} is not {{"partitions": [{{"topic": ..., "partition": ..., "offset": ...}}], '
            f'"version": 1}}: {error!r}',
            "--file",
        ) from None
    return found


def _bad_offset(text: str, option: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint=option)
