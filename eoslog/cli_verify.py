"""`eoslog verify`: check every batch, index entry and snapshot of a store."""

from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

import eoslog
from eoslog.cli_options import Settings, echo_json, shared_options


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
    """Check checksums, offsets, indexes and snapshots. Status 1 if anything is damaged."""
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
    """Check the partitions of the topics, all of them by default, one after the other."""
    found = store.topics()
    for name in names:
        if name not in found:
            raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {name!r} in {store.path}")
    targets = [
        (name, number)
        for name in names or sorted(found)
        for number in range(found[name].partitions)
    ]
    findings = Findings()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for name, number in progress.track(targets, description="verify"):
            log = store.partition(name, number)
            findings.problems.extend(log.verify())
            findings.partitions += 1
            findings.records += log.log_end_offset - log.log_start_offset
            findings.size_bytes += log.size_bytes
    return findings
