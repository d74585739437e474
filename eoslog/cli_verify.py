"""`eoslog verify`: check every batch and index entry of a store."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

import eoslog
from eoslog import TopicPartition
from eoslog.cli_options import Settings, echo_json, shared_options
from eoslog.errors import (
    CorruptRecordError,
    LogClosedError,
    UnknownTopicOrPartitionError,
)
from eoslog.store_verification import problem_of


@dataclass
class Findings:
    """What a check of a store found; it is sound if there are no problems."""

    partitions: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)


@click.command()
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given again.")
@shared_options
def verify(settings: Settings, topics: tuple[str, ...]) -> None:
    """Check checksums, offsets, indexes and aborted transactions. Status 1 if any is damaged."""
    console = Console(stderr=True)
    with settings.open() as store:
        findings = verify_store(store, topics, console)
    if settings.as_json:
        echo_json({"sound": not findings.problems, **vars(findings)})
    else:
        for problem in findings.problems:
            click.echo(
                f"{problem['path']} at byte {problem['position_bytes']}: {problem['reason']}"
            )
        verdict = f"{len(findings.problems)} problems" if findings.problems else "sound"
        click.echo(
            f"{verdict}: {findings.records:,} records in {findings.partitions} partitions, "
            f"{findings.size_bytes / 1e6:,.1f} MB"
        )
    if findings.problems:
        click.get_current_context().exit(1)


def verify_store(store: "eoslog.Store", names: tuple[str, ...], console: Console) -> Findings:
    """Check the partitions of the topics named; by default all there are, internal ones too.

    What is counted are the topics' own partitions, as far as they can be opened.
    """
    found = store.topics()
    for name in names:
        if name not in found:
            raise UnknownTopicOrPartitionError(f"no topic {name!r} in {store.path}")
    targets = [
        TopicPartition(name, number)
        for name in names or sorted(found)
        for number in range(found[name].partitions)
    ]
    findings = Findings()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task("verify", total=None)
        if names:
            for done, target in enumerate(targets):
                progress.update(line, completed=done, total=len(targets))
                findings.problems.extend(problems_of(store, target))
        else:
            findings.problems.extend(
                store.verify(
                    lambda done, count, _: progress.update(line, completed=done, total=count)
                )
            )
    for target in targets:
        # One that another process has deleted meanwhile does not count.
        with suppress(CorruptRecordError, UnknownTopicOrPartitionError, LogClosedError):
            log = store.partition(*target)
            findings.partitions += 1
            findings.records += log.log_end_offset - log.log_start_offset
            findings.size_bytes += log.size_bytes
    return findings


def problems_of(store: "eoslog.Store", target: TopicPartition) -> list[dict[str, Any]]:
    """What is wrong with one partition; one that cannot even be opened is a problem as well."""
    try:
        return store.partition(*target).verify()
    except CorruptRecordError as error:
        return [problem_of(error)]
