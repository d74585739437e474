"""`eoslog groups`: where groups stand, as Kafka's consumer-groups tool shows and changes it."""

from typing import Any

import click

import eoslog
from eoslog import TopicPartition
from eoslog.cli.completion import complete_groups, complete_topics
from eoslog.cli.options import (
    Settings,
    as_duration_ms,
    as_moment_ms,
    confirm,
    echo_json,
    shared_options,
)
from eoslog.cli.output import note_of_work_done
from eoslog.cli.table import print_rows
from eoslog.common import clock
from eoslog.common.topic_partition import is_partition

# Kafka's columns and their order; "-" stands for what there is not.
DESCRIBE_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
MEMBERS_COLUMNS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "PROCESS")
STATE_COLUMNS = ("GROUP", "ASSIGNMENT-STRATEGY", "STATE", "GENERATION", "#MEMBERS")
RESET_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
TARGET_OPTIONS = (
    *("--to-earliest", "--to-latest", "--to-current", "--to-offset", "--shift-by"),
    *("--to-datetime", "--by-duration"),
)


@click.group(invoke_without_command=True)
@shared_options
def groups(settings: Settings) -> None:
    """List, describe, delete and reset groups. Without a subcommand: list."""
    if click.get_current_context().invoked_subcommand is None:
        show_groups(settings)


@groups.command("list")
@shared_options
def list_groups(settings: Settings) -> None:
    """List the groups, and of how many partitions each has an offset."""
    show_groups(settings)


@groups.command("describe")
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@click.option("--all-groups", is_flag=True, help="All groups that there are.")
@click.option("--members", is_flag=True, help="Show the consumers that share its partitions.")
@click.option("--state", is_flag=True, help="Show the state, in Kafka's words.")
@shared_options
def describe_groups(
    settings: Settings, names: tuple[str, ...], all_groups: bool, members: bool, state: bool
) -> None:
    """Show each partition's committed offset, its lag, and the member that reads it."""
    if bool(names) is all_groups:
        raise click.UsageError("name groups, or give --all-groups")
    if members and state:
        raise click.UsageError("--members and --state exclude each other")
    with settings.read() as store:
        known = store.groups()
        for name in names:
            check_group(known, name)
        rows: list[dict[str, Any]] = []
        for name in list(known) if all_groups else names:
            description = store.describe_group(name)
            if members:
                rows += member_rows(description)
            elif state:
                rows.append(state_row(description))
            else:
                rows += group_rows(store, description, known[name])
        if settings.as_json:
            echo_json(rows)
            return
        shown = [["-" if cell is None else cell for cell in row.values()] for row in rows]
        columns = MEMBERS_COLUMNS if members else STATE_COLUMNS if state else DESCRIBE_COLUMNS
        print_rows(columns, [row[: len(columns)] for row in shown])


@groups.command("delete")
@click.argument(
    "names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete_groups(settings: Settings, names: tuple[str, ...], yes: bool) -> None:
    """Forget groups with all their offsets; their readers start from scratch.

    A group that has members is refused.
    """
    with settings.open() as store:
        known = store.groups()
        for name in names:
            check_group(known, name)  # All are there, or none goes.
        if not yes:
            confirm(f"Delete {', '.join(names)} and all offsets?")
        for name in dict.fromkeys(names):
            store.delete_group(name)
        if settings.as_json:
            echo_json({"deleted": list(names)})
        else:
            click.echo(f"deleted {', '.join(names)}")


@groups.command("delete-offsets")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:0,1,..]",
    shell_complete=complete_topics,
    help="Of this topic's partitions.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete_offsets(settings: Settings, name: str, topics: tuple[str, ...], yes: bool) -> None:
    """Forget a group's offsets of topics; topics that its members read are refused."""
    with settings.open() as store:
        check_group(store.groups(), name)
        partitions = reset_partitions(store, name, topics)
        shown = ", ".join(map(str, partitions))
        if not yes:
            confirm(f"Delete the offsets of {name} at {shown}?")
        store.delete_offsets(name, partitions)
        if settings.as_json:
            echo_json({"group": name, "deleted": list(map(str, partitions))})
        else:
            click.echo(f"deleted the offsets of {name} at {shown}")


@groups.command("reset-offsets")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,..]",
    shell_complete=complete_topics,
    help="Of this topic's partitions.",
)
@click.option("--all-topics", is_flag=True, help="Of all topics the group has an offset of.")
@click.option("--to-earliest", is_flag=True, help="To the oldest record.")
@click.option("--to-latest", is_flag=True, help="After the newest record that is decided.")
@click.option("--to-current", is_flag=True, help="Where it is; the end where it has no offset.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset.")
@click.option("--shift-by", type=int, help="Forward by so many, back if negative.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first record at or after it: ISO 8601, or UTC."
)
@click.option("--by-duration", metavar="DURATION", help="To so long ago: PnDTnHnMnS.")
@click.option("--execute", is_flag=True, help="Do it; without, only what would be done is shown.")
@click.option("--dry-run", is_flag=True, help="Do nothing: the default.")
@shared_options
def reset_offsets(
    settings: Settings,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    dry_run: bool,
    **target: Any,
) -> None:
    """Send a group to other offsets; a group that is not there yet is made.

    An offset that a partition does not hold becomes the nearest one that it does. A group that has
    members is refused: they would go on where they are.
    """
    chosen = [(name, one) for name, one in target.items() if one is not None and one is not False]
    if len(chosen) != 1:
        raise click.UsageError(f"give one of {', '.join(TARGET_OPTIONS)}")
    if bool(topics) is all_topics:
        raise click.UsageError("give --topic or --all-topics")
    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other")
    with settings.open() if execute else settings.read() as store:
        partitions = reset_partitions(store, name, topics)
        offsets = new_offsets(store, name, partitions, *chosen[0])
        if execute:
            check_inactive(store, name)
            with store.consumer(group=name) as consumer:
                consumer.commit(offsets)
        rows = [
            {
                "group": name,
                "topic": where.topic,
                "partition": where.partition,
                "new_offset": offset,
            }
            for where, offset in offsets.items()
        ]
        if settings.as_json:
            echo_json({"executed": execute, "offsets": rows})
            return
        print_rows(RESET_COLUMNS, [list(row.values()) for row in rows])
        if not execute:
            with note_of_work_done():
                click.echo("nothing was changed: add --execute to do it", err=True)


def show_groups(settings: Settings) -> None:
    """Print every group with the number of its partitions."""
    with settings.read() as store:
        rows = [
            {"group": name, "partitions": len(offsets)} for name, offsets in store.groups().items()
        ]
        if settings.as_json:
            echo_json(rows)
        else:
            print_rows(("group", "partitions"), [list(row.values()) for row in rows])


def group_rows(
    store: "eoslog.Store",
    group: "eoslog.GroupDescription",
    offsets: dict[TopicPartition, eoslog.OffsetAndMetadata],
) -> list[dict[str, Any]]:
    """One row for each partition of a group, in the order of Kafka's columns."""
    rows = []
    topics = store.topics()
    readers = {where: member for member in group.members for where in member.partitions}
    readers |= {where: member for member in group.members for where in member.giving_up}
    for where in sorted({*offsets, *readers}):
        committed = offsets.get(where)
        current_offset = None if committed is None else committed.offset
        # The version of an application's staged jobs is of no topic, and has no log.
        known = where.topic in topics
        log_end_offset = store.partition(*where).log_end_offset if known else None
        lag = None
        if log_end_offset is not None and current_offset is not None:
            lag = max(0, log_end_offset - current_offset)
        reader = readers.get(where)
        rows.append(
            {
                "group": group.group,
                "topic": where.topic,
                "partition": where.partition,
                "current_offset": current_offset,
                "log_end_offset": log_end_offset,
                "lag": lag,
                # No member, where partitions are assigned by hand.
                "consumer_id": None if reader is None else reader.member_id,
                "host": None if reader is None else reader.host,
                "client_id": None if reader is None else reader.client_id,
            }
        )
    return rows


def member_rows(group: "eoslog.GroupDescription") -> list[dict[str, Any]]:
    """One row for each member; what comes after the columns is for --json."""
    return [
        {
            "group": group.group,
            "consumer_id": member.member_id,
            "host": member.host,
            "client_id": member.client_id,
            "partition_count": len(member.partitions),
            "process": member.process or None,
            "generation": member.generation,
            "topics": list(member.topics),
            "partitions": list(map(str, member.partitions)),
            "giving_up": list(map(str, member.giving_up)),
        }
        for member in group.members
    ]


def state_row(group: "eoslog.GroupDescription") -> dict[str, Any]:
    """The one row of a group's state."""
    return {
        "group": group.group,
        "strategy": group.strategy or None,
        "state": group.state,
        "generation": group.generation,
        "member_count": len(group.members),
    }


def check_group(known: dict[str, Any], name: str) -> None:
    """Raise GroupIdNotFoundError unless the group is there."""
    if name not in known:
        raise eoslog.errors.GroupIdNotFoundError(f"there is no group {name!r}")


def check_inactive(store: "eoslog.Store", name: str) -> None:
    """Raise NonEmptyGroupError if the group has members: they would go on where they are."""
    if name in store.groups():
        members = store.describe_group(name).members
        if members:
            raise eoslog.errors.NonEmptyGroupError(
                f"group {name!r} has {len(members)} members: close their consumers first"
            )


def reset_partitions(
    store: "eoslog.Store", name: str, topics: tuple[str, ...]
) -> list[TopicPartition]:
    """The partitions that --topic names; without, all that the group has an offset of."""
    if not topics:
        known = store.groups()
        check_group(known, name)
        existing = store.topics()
        return [where for where in known[name] if where.topic in existing]
    found: dict[TopicPartition, None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        description = store.topics().get(topic)
        if description is None:
            raise eoslog.errors.UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
        if not colon:
            found |= dict.fromkeys(description.topic_partitions())
            continue
        for number in numbers.split(","):
            if not is_partition(number):
                raise click.BadParameter(f"{text!r:.80} is not TOPIC:0,1", param_hint="--topic")
            found[TopicPartition(topic, int(number))] = None
    return list(found)


def new_offsets(
    store: "eoslog.Store",
    name: str,
    partitions: list[TopicPartition],
    target: str,
    value: Any,
) -> dict[TopicPartition, int]:
    """Return the offset that each partition of the group is to go to, within what its log holds.

    `target` is the name of an option, `value` what it was given.
    """
    since_ms = None
    if target == "to_datetime":
        since_ms = as_moment_ms(value, "--to-datetime")
    elif target == "by_duration":
        since_ms = clock.now_ms() - as_duration_ms(value, "--by-duration")
    with store.consumer(group=name) as consumer:
        starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        wanted = dict(starts if target == "to_earliest" else ends)
        if since_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, max(0, since_ms)))
            wanted |= {where: one.offset for where, one in found.items() if one is not None}
    if target == "to_offset":
        wanted = dict.fromkeys(partitions, value)
    current = store.groups().get(name, {})
    for where in partitions if target in {"to_current", "shift_by"} else ():
        if where in current:
            wanted[where] = current[where].offset + (value if target == "shift_by" else 0)
        elif target == "shift_by":
            raise click.ClickException(f"group {name!r} has no offset of {where} to shift")
    return {where: min(max(wanted[where], starts[where]), ends[where]) for where in partitions}
