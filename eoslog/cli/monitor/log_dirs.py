"""`eoslog log-dirs`: what takes a store's space on disk."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from eoslog.cli.completion import complete_topics
from eoslog.cli.options import Settings, counted, echo_json, shared_options
from eoslog.cli.table import print_rows
from eoslog.errors import UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from eoslog import LogDirectory

COLUMNS = ("directory", "holds", "files", "bytes", "on disk")
HOLDS = {
    ".": "checkpoints and the store's ids",
    "staging": "staged files",
    "state": "topics, settings, locks",
    "state/control": "offsets and locks of partitions",
    "state/cut": "bytes that a recovery cut off; eoslog does not read them",
    "state/journal": "commit journals",
    "state/lmdb": "index of producers, transactions and groups",
    "state/members": "members of groups",
    "state/metrics": "counts of events",
    "state/processes": "processes that have the store open",
    "state/spare": "files for segments to come, and of deleted ones",
    "state/spare-journal": "files for journals to come",
}


@click.command("log-dirs")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="The partitions of this topic.",
)
@shared_options
def log_dirs(settings: Settings, topics: tuple[str, ...]) -> None:
    """Show what takes a store's space on disk, the largest first: a line for each topic.

    "on disk" is what the file system has given to the files, also ahead of the records to come.
    """
    with settings.read() as store:
        found = store.describe_log_dirs()
        if topics:
            known = {one.topic_partition.topic for one in found if one.topic_partition is not None}
            for topic in topics:
                if topic not in known:
                    raise UnknownTopicOrPartitionError(f"no topic {topic!r} in {store.path}")
            found = [
                one
                for one in found
                if one.topic_partition is not None and one.topic_partition.topic in topics
            ]
        if settings.as_json:
            echo_json([_fields(one) for one in found])
            return
        columns = (COLUMNS[0], *COLUMNS[2:]) if topics else COLUMNS
        figures = [(one.file_count, one.size_bytes, one.allocated_bytes) for one in found]
        rows = (
            [[one.path, *sizes] for one, sizes in zip(found, figures, strict=True)]
            if topics
            else _rows(found)
        )
        rows.sort(key=lambda row: (-int(str(row[-1])), str(row[0])))
        total = [sum(one[index] for one in figures) for index in range(3)]
        print_rows(columns, [*rows, ["all", *([] if topics else [""]), *total]])


def _fields(one: "LogDirectory") -> dict[str, object]:
    where = one.topic_partition
    return {
        "directory": one.path,
        "topic": None if where is None else where.topic,
        "partition": None if where is None else where.partition,
        "file_count": one.file_count,
        "size_bytes": one.size_bytes,
        "allocated_bytes": one.allocated_bytes,
    }


def _rows(found: "Iterable[LogDirectory]") -> list[list[object]]:
    """Return a row for each topic, and for each directory that is no partition's."""
    sums: dict[str, list[int]] = {}
    for one in found:
        where = one.topic_partition
        name = one.path if where is None else f"{where.topic}-*"
        figures = (1, one.file_count, one.size_bytes, one.allocated_bytes)
        before = sums.setdefault(name, [0, 0, 0, 0])
        sums[name] = [before[index] + figures[index] for index in range(4)]
    return [
        [name, HOLDS.get(name, counted(count, "partition") if "*" in name else ""), *rest]
        for name, (count, *rest) in sums.items()
    ]
