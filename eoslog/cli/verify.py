"""`eoslog verify`: check a store against its logs; `--repair` cuts and rebuilds what may be."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

import eoslog
from eoslog import TopicPartition
from eoslog.cli.completion import complete_topics
from eoslog.cli.options import Settings, counted, echo_json, shared_options, standard_output
from eoslog.cli.output import progress_line
from eoslog.errors import (
    CorruptRecordError,
    EoslogError,
    LogClosedError,
    UnknownTopicOrPartitionError,
)
from eoslog.inspect.store_copy import copied_store
from eoslog.inspect.store_repair import Change, Loss, Refusal, StoreRepair
from eoslog.storage.damage import UNREADABLE, problem_of
from eoslog.storage.lmdb_environment import DIRECTORY_NAME as LMDB_NAME
from eoslog.storage.topic_registry import TopicDescription
from eoslog.store.store import abandon, engine_of, parts_of, verify_counting

# What these say is in memory while the store is open, and goes into new ones with its close.
_KEPT_IN_MEMORY = (f"/{LMDB_NAME}", ".snapshot")


@dataclass
class Findings:
    """Findings of a check of a store; it is sound if there are no problems.

    `records` are the sound ones, aborted ones too; the markers of transactions are none.
    `recovered` is what opening the store cut off after the last whole batches.
    """

    partitions: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    recovered: list[dict[str, Any]] = field(default_factory=list)


@click.command()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic; may be given again.",
)
@click.option("--repair", is_flag=True, help="Cut what is torn, rebuild what is derived.")
@click.option(
    "--dry-run", is_flag=True, help="With --repair: repair a copy, and say what was done there."
)
@shared_options
def verify(settings: Settings, topics: tuple[str, ...], repair: bool, dry_run: bool) -> None:
    """Check all of a store against its logs. Status 1 if anything is damaged."""
    standard_output()  # Before the work, all of whose answer would go there.
    if dry_run and not repair:
        raise click.UsageError("--dry-run: only with --repair")
    if repair:
        if topics:
            raise click.UsageError("--repair is of the whole store: not with --topic")
        if dry_run:
            repaired = rehearse_repair(settings.path())
            ends = f"; a repair would end with status {int(not repaired.succeeded)}"
            show_rehearsal(settings, repaired, ends)
            sound = repaired.succeeded and not repaired.possible
        else:
            repaired = repair_store(settings.path())
            show_repair(settings, repaired)
            sound = repaired.succeeded
    else:
        with settings.read() as store:
            findings = verify_store(store, topics)
            show(settings, findings)
        sound = not findings.problems
    if not sound:
        click.get_current_context().exit(1)


def shown(problem: dict[str, Any]) -> str:
    """A problem in one line."""
    return f"{problem['path']} at byte {problem['position_bytes']}: {problem['reason']}"


def show(settings: Settings, findings: Findings, **more: Any) -> None:
    """Print what was found."""
    if settings.as_json:
        echo_json({"sound": not findings.problems, **vars(findings), **more})
        return
    for one in findings.recovered:
        where, size, offset = one["partition"], one["bytes"], one["offset"]
        if one["kept"] is None:
            click.echo(f"{where}: the next opening cuts {size} bytes off after offset {offset}")
            continue
        click.echo(
            f"{where}: opening it cut {size} bytes off after offset {offset}; they are kept in "
            f"{one['kept']}"
        )
    for problem in findings.problems:
        click.echo(shown(problem))
    count = len(findings.problems)
    verdict = f"{count} problem{'s' if count > 1 else ''}" if count else "sound"
    click.echo(
        f"{verdict}: {counted(findings.records, 'record')} in "
        f"{counted(findings.partitions, 'partition')}, "
        f"{findings.size_bytes / 1e6:,.1f} MB"
    )


@dataclass
class Repair:
    """Result of a repair: what it did, and what it left, with the reason.

    `possible` was not done, since something is refused. `findings` are those of the last check;
    None if it was not reached.
    """

    done: list[Change | Loss] = field(default_factory=list)
    possible: list[Change | Loss] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    findings: Findings | None = None

    @property
    def succeeded(self) -> bool:
        return not self.refused and self.findings is not None and not self.findings.problems


def repair_store(path: Path) -> Repair:
    """Repair what may be repaired."""
    with StoreRepair(path) as repair:
        repair.write_journals_back()
        torn, refused = repair.look_at_tails()
        if refused:
            return Repair(possible=[*repair.planned(torn)], refused=refused)
        changes: list[Change | Loss] = [*repair.cut(torn)]
    # No other process may come between check and repair: what is derived changes with use.
    findings = verified_alone(path)
    if findings.problems:
        with StoreRepair(path) as repair:
            derived, refused = repair.remedies(findings.problems)
            if refused:
                return Repair(changes, [*derived], refused)
            repair.set_aside(derived)
        changes += derived
        findings = verified_alone(path, given_up=changes)
    return Repair(changes, findings=findings)


def rehearse_repair(path: Path) -> Repair:
    """Repair a copy of the store: what `repair_store` would do."""
    with StoreRepair(path) as repair:  # No other process changes the store.
        # What journals hold is seen in the copy alone, into which they are written back.
        if not repair.has_journals:
            torn, refused = repair.look_at_tails()
            if refused:
                return Repair(possible=[*repair.planned(torn)], refused=refused)
        with copied_store(path.absolute()) as copy:
            return _moved(repair_store(copy), copy, path.absolute())


def _moved(repair: Repair, copy: Path, path: Path) -> Repair:
    """Return the repair in words of the store of which this was a copy."""

    def moved(value: Any) -> Any:
        if isinstance(value, Path):
            return Path(moved(str(value)))
        return value.replace(str(copy), str(path)) if isinstance(value, str) else value

    def each(found: Iterable[Any]) -> list[Any]:
        return [
            replace(one, **{name: moved(value) for name, value in vars(one).items()})
            for one in found
        ]

    findings = repair.findings
    if findings is not None:
        problems = [
            {name: moved(value) for name, value in one.items()} for one in findings.problems
        ]
        findings = replace(findings, problems=problems)
    possible = each(repair.done + repair.possible)
    return Repair(possible=possible, refused=each(repair.refused), findings=findings)


def verified_alone(path: Path, *, given_up: list[Change | Loss] | None = None) -> Findings:
    """Open the store, check it, and close it; as it is, if what is wrong would be written again.

    With `given_up` staged jobs are completed without the files that are gone; it gets what is lost.
    """
    with eoslog.open(path, create=False, durability=None) as store:
        if len(store.processes()) > 1:
            others = ", ".join(str(one.process_id) for one in store.processes()[1:])
            raise eoslog.errors.StoreInUseError(
                f"{store.path}: a repair needs the store for itself, and these processes have "
                f"opened it: {others}"
            )
        if given_up is not None:
            given_up += map(Loss.of, parts_of(store).staged.give_up_lost_files())
        findings = verify_store(store, ())
        if any(str(one["path"]).endswith(_KEPT_IN_MEMORY) for one in findings.problems):
            abandon(store)
        return findings


def show_repair(settings: Settings, repair: Repair) -> None:
    """Print what a repair did."""
    for one in repair.done:
        # Where something is refused, that alone is the JSON.
        if not settings.as_json or repair.refused:
            click.echo(f"done: {one}", err=settings.as_json)
    if repair.refused or repair.findings is None:
        show_rehearsal(settings, repair)
        return
    changes = [one.described() for one in repair.done]
    show(settings, repair.findings, changes=changes, refused=[])


def show_rehearsal(settings: Settings, repair: Repair, ends: str = "") -> None:
    """Print what was not done: what would be, and what stands against it."""
    planned, refused = repair.possible, repair.refused
    left = [] if repair.findings is None else repair.findings.problems
    if settings.as_json:
        document = {
            "sound": not planned and not refused and not left,
            "planned": [one.described() for one in planned],
            "refused": [one.described() for one in refused],
        }
        echo_json(document | ({"problems": left} if left else {}))
        return
    for change in planned:
        click.echo(f"would be done: {change}")
    for refusal in refused:
        click.echo(f"refused: {refusal}")
    for problem in left:
        click.echo(f"would be left: {shown(problem)}")
    changed = planned or refused or left
    what = "nothing was changed" if changed else "nothing to repair"
    click.echo(f"{what}: {len(planned)} repairs possible, {len(refused)} refused{ends}")


def verify_store(store: "eoslog.Store", names: tuple[str, ...]) -> Findings:
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
    counts: dict[TopicPartition, int] = {}
    with progress_line("verify") as progress:
        if names:
            for done, target in enumerate(targets):
                progress(done, len(targets))
                findings.problems.extend(
                    problems_of(
                        store, found[target.topic], target, partial(counts.__setitem__, target)
                    )
                )
        else:
            findings.problems.extend(
                verify_counting(
                    store,
                    lambda done, count, _: progress(done, count),
                    counts.__setitem__,
                )
            )
    for target in targets:
        # One that another process has deleted since does not count.
        with suppress(CorruptRecordError, UnknownTopicOrPartitionError, LogClosedError):
            log = store.partition(*target)
            findings.size_bytes += log.size_bytes
            findings.partitions += 1
            findings.records += counts.get(target, 0)
    findings.recovered = [one.described() for one in engine_of(store).partitions.cuts]
    return findings


def problems_of(
    store: "eoslog.Store",
    topic: TopicDescription,
    target: TopicPartition,
    counted: Callable[[int], object] | None = None,
) -> list[dict[str, Any]]:
    """Return the problems of one partition; one that cannot even be opened is a problem as well.

    Raises UnknownTopicOrPartitionError if the topic is deleted during the check.
    """
    try:
        found = engine_of(store).partition(*target).verify(counted=counted)
    except UNREADABLE as error:
        found = [problem_of(error)]
    except EoslogError:
        if store.topics().get(topic.name) == topic:
            raise
    if store.topics().get(topic.name) != topic:
        raise UnknownTopicOrPartitionError(f"topic {topic.name!r} was deleted during the check")
    return found
