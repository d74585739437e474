"""`eoslog verify`: check a store against its logs; `--repair` cuts and makes anew what may be."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

import eoslog
from eoslog import TopicPartition
from eoslog.cli_options import Settings, echo_json, shared_options, standard_output
from eoslog.damage import UNREADABLE, problem_of
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    LogClosedError,
    UnknownTopicOrPartitionError,
)
from eoslog.producer_state_store import DIRECTORY_NAME as LMDB_NAME
from eoslog.store_repair import Change, Refusal, StoreRepair
from eoslog.topic_registry import TopicDescription

# What these say is in memory while the store is open, and goes into new ones with its close.
_KEPT_IN_MEMORY = (f"/{LMDB_NAME}", ".snapshot")


@dataclass
class Findings:
    """What a check of a store found; it is sound if there are no problems.

    `recovered` is what opening the store cut off behind the last whole batches.
    """

    partitions: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    recovered: list[dict[str, Any]] = field(default_factory=list)


@click.command()
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given again.")
@click.option("--repair", is_flag=True, help="Cut what is torn, have made anew what is derived.")
@click.option(
    "--dry-run", is_flag=True, help="With --repair: say what would be cut, change nothing."
)
@shared_options
def verify(settings: Settings, topics: tuple[str, ...], repair: bool, dry_run: bool) -> None:
    """Check all of a store against its logs. Status 1 if anything is damaged."""
    standard_output()  # Before the work, all of whose answer would go there.
    console = Console(stderr=True)
    if dry_run and not repair:
        raise click.UsageError("--dry-run: only with --repair")
    if repair:
        if topics:
            raise click.UsageError("--repair is of the whole store: not with --topic")
        sound = repair_store(settings, dry_run, console)
    else:
        with settings.open() as store:
            findings = verify_store(store, topics, console)
        show(settings, findings)
        sound = not findings.problems
    if not sound:
        click.get_current_context().exit(1)


def show(settings: Settings, findings: Findings, **more: Any) -> None:
    """Print what was found."""
    if settings.as_json:
        echo_json({"sound": not findings.problems, **vars(findings), **more})
        return
    for one in findings.recovered:
        click.echo(
            f"{one['partition']}: opening it cut {one['bytes']} bytes off behind offset "
            f"{one['offset']}; they are kept in {one['kept']}"
        )
    for problem in findings.problems:
        click.echo(f"{problem['path']} at byte {problem['position_bytes']}: {problem['reason']}")
    count = len(findings.problems)
    verdict = f"{count} problem{'s' if count > 1 else ''}" if count else "sound"
    click.echo(
        f"{verdict}: {findings.records:,} records in {findings.partitions} partitions, "
        f"{findings.size_bytes / 1e6:,.1f} MB"
    )


def repair_store(settings: Settings, dry_run: bool, console: Console) -> bool:
    """Repair what may be repaired, and say what was done; whether the store is sound now."""
    path = settings.path()
    with StoreRepair(path) as repair:
        torn, refused = repair.look_at_tails()
        planned = repair.planned(torn)
        if refused or dry_run:
            return say_what_would_be(settings, planned, refused)
        changes = repair.cut(torn)
    # Nobody else may come between the check and what follows it: what is derived changes with use.
    findings = verified_alone(settings, console)
    if findings.problems:
        with StoreRepair(path) as repair:
            derived, refused = repair.remedies(findings.problems)
            if refused:
                for one in changes:
                    click.echo(f"done: {one}", err=settings.as_json)
                return say_what_would_be(settings, derived, refused)
            repair.set_aside(derived)
        changes += derived
        findings = verified_alone(settings, console)
    if not settings.as_json:
        for one in changes:
            click.echo(f"done: {one}")
    show(settings, findings, changes=[one.described() for one in changes], refused=[])
    return not findings.problems


def verified_alone(settings: Settings, console: Console) -> Findings:
    """Open the store, check it, and close it; as it is, if what is wrong would be written again."""
    with settings.open() as store:
        if len(store.processes()) > 1:
            others = ", ".join(str(one.process_id) for one in store.processes()[1:])
            raise eoslog.errors.StoreInUseError(
                f"{store.path}: a repair needs the store for itself, and these processes opened it "
                f"meanwhile: {others}"
            )
        findings = verify_store(store, (), console)
        if any(str(one["path"]).endswith(_KEPT_IN_MEMORY) for one in findings.problems):
            store._abandon()
        return findings


def say_what_would_be(settings: Settings, planned: list[Change], refused: list[Refusal]) -> bool:
    """Nothing was changed: what would be, and what stands against it."""
    if settings.as_json:
        echo_json(
            {
                "sound": not planned and not refused,
                "planned": [one.described() for one in planned],
                "refused": [one.described() for one in refused],
            }
        )
    else:
        for change in planned:
            click.echo(f"would be done: {change}")
        for refusal in refused:
            click.echo(f"refused: {refusal}")
        what = "nothing to cut" if not planned and not refused else "nothing was changed"
        click.echo(f"{what}: {len(planned)} repairs possible, {len(refused)} refused")
    return not planned and not refused


def verify_store(store: "eoslog.Store", names: tuple[str, ...], console: Console) -> Findings:
    """Check the partitions of the topics named; by default all there is, internal ones too.

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
                findings.problems.extend(problems_of(store, found[target.topic], target))
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
            records, size_bytes = log.log_end_offset - log.log_start_offset, log.size_bytes
            findings.partitions += 1
            findings.records += records
            findings.size_bytes += size_bytes
    findings.recovered = [one.described() for one in store._partitions.cuts]
    return findings


def problems_of(
    store: "eoslog.Store", topic: TopicDescription, target: TopicPartition
) -> list[dict[str, Any]]:
    """What is wrong with one partition; one that cannot even be opened is a problem as well.

    Raises UnknownTopicOrPartitionError if the topic is deleted meanwhile.
    """
    try:
        found = store.partition(*target).verify()
    except UNREADABLE as error:
        found = [problem_of(error)]
    except EoslogError:
        if store.topics().get(topic.name) == topic:
            raise
    if store.topics().get(topic.name) != topic:
        raise UnknownTopicOrPartitionError(f"topic {topic.name!r} was deleted meanwhile")
    return found
