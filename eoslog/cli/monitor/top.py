"""`eoslog top`: a live view of a store's topics, groups, transactions and processes."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

import eoslog
from eoslog.cli.monitor.processes import process_rows, undecided_transactions
from eoslog.cli.options import Settings, echo_json, shared_options
from eoslog.cli.table import duration_text, is_of_numbers, print_rows, shown_text
from eoslog.common.topic_name import INTERNAL_TOPICS
from eoslog.errors import StoreReopenedError
from eoslog.store.metrics import StoreFigures, gather
from eoslog.store.store import parts_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eoslog import TransactionDescription

_LINES_OF_TABLE = 3  # Without its rows.
SECTIONS = ("topics", "groups", "transactions", "processes")


_CELLS: dict[str, dict[str, Callable[[dict[str, Any]], object]]] = {
    "topics": {
        "topic": lambda one: one["topic"],
        "partitions": lambda one: one["partitions"],
        "records/s": lambda one: round(one["records_per_s"]),
        "kB/s": lambda one: round(one["bytes_per_s"] / 1e3, 1),
        "log end": lambda one: one["log_end_offset"],
        "last stable": lambda one: one["last_stable_offset"],
        "undecided": lambda one: one["undecided"],
        "MB": lambda one: round(one["size_bytes"] / 1e6, 1),
    },
    "groups": {
        "group": lambda one: one["group"],
        "members": lambda one: one["members"],
        "of topic": lambda one: one["topic"] or "-",
        "lag": lambda one: one["lag"],
    },
    "transactions": {
        "transaction": lambda one: one["transactional_id"],
        "state": lambda one: one["state"],
        "age": lambda one: duration_text(one["age_ms"]),
        "timeout": lambda one: duration_text(one["timeout_ms"]),
        "of partitions": lambda one: one["partitions"],
        "process": lambda one: "-" if one["host"] is None else f"{one['process_id']} {one['host']}",
    },
    "processes": {
        "process": lambda one: one["process_id"],
        "host": lambda one: one["host"],
        "open for": lambda one: duration_text(one["open_ms"]),
        "open transactions": lambda one: len(one["transactional_ids"]),
        "group members": lambda one: len(one["members"]),
    },
}


class Look(NamedTuple):
    """The store at one moment, of the monotonic clock."""

    moment_s: float
    figures: StoreFigures
    transactions: "list[TransactionDescription]"
    processes: list[dict[str, Any]]


@click.command()
@click.option("--once", is_flag=True, help="Print one view, and end.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1, max=86_400),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two views, and over which rates are taken.",
)
@shared_options
def top(settings: Settings, once: bool, interval_s: float) -> None:
    """Show what goes on in a store, until Ctrl-C: rates, lag, transactions, processes.

    "undecided" are the records that readers of committed data do not get yet.
    """
    if once:
        with settings.read() as store:
            before = look_at(store)
            if before.processes:  # Else nothing changes.
                time.sleep(interval_s)
            shown = view(before, look_at(store))
            if settings.as_json:
                echo_json(shown)
                return
            click.echo(headline(store, shown))
            for name in SECTIONS:
                click.echo()
                print_rows(*table_of(name, shown))
        return
    if settings.as_json:
        raise click.UsageError("--json goes with --once")
    if sys.stdout is None or not sys.stdout.isatty():
        raise click.UsageError("standard output is no terminal: give --once")
    with suppress(KeyboardInterrupt):
        _show(settings, interval_s)


def _show(settings: Settings, interval_s: float) -> None:
    """Show the views one after the other; a store that was opened since is opened again."""
    from rich.console import Console  # What it loads only a terminal needs.
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            with suppress(StoreReopenedError), settings.read() as store:
                before = now = look_at(store)
                while True:
                    shown = view(before, now)
                    live.update(drawn(store, shown, console.height), refresh=True)
                    time.sleep(interval_s)
                    before, now = now, look_at(store)


def look_at(store: "eoslog.Store") -> Look:
    """Return how the store is now; no partition is opened, but those of open transactions."""
    transactions = undecided_transactions(store)
    figures = gather(parts_of(store).files, 0)
    return Look(time.monotonic(), figures, transactions, process_rows(store, transactions))


def view(before: Look, now: Look) -> dict[str, Any]:
    """Return what is shown of two looks, in each section the busiest or oldest first; rates are
    those between them.
    """
    return {
        "durability": now.figures.durability,
        "topics": sorted(
            _topics(before, now), key=lambda one: (-one["records_per_s"], -one["undecided"])
        ),
        "groups": sorted(_groups(now.figures), key=lambda one: -one["lag"]),
        "transactions": sorted(_transactions(now), key=lambda one: -one["age_ms"]),
        "processes": now.processes,
    }


def _topics(before: Look, now: Look) -> Iterator[dict[str, Any]]:
    passed_s = now.moment_s - before.moment_s
    ends_before = _sums(before.figures)
    for topic, (end, stable, age_s) in _sums(now.figures).items():
        size_bytes = now.figures.topic_bytes[topic]
        written = size_bytes - before.figures.topic_bytes.get(topic, size_bytes)
        appended = end - ends_before.get(topic, (end, 0, 0.0))[0]
        yield {
            "topic": topic,
            "partitions": now.figures.partition_counts[topic],
            "records_per_s": _rate(appended, passed_s),
            "bytes_per_s": _rate(written, passed_s),
            "log_end_offset": end,
            "last_stable_offset": stable,
            "undecided": end - stable,
            "oldest_transaction_s": age_s,
            "size_bytes": size_bytes,
        }


def _sums(figures: StoreFigures) -> dict[str, tuple[int, int, float]]:
    """Return of each topic of a user the sums of the log end offsets and the last stable offsets,
    and the age of its oldest transaction.
    """
    names = (one for one in figures.partition_counts if one not in INTERNAL_TOPICS)
    sums = dict.fromkeys(sorted(names), (0, 0, 0.0))
    for where, log, age_s in figures.partitions:
        if where.topic in sums:
            end, stable, oldest_s = sums[where.topic]
            end, stable = end + log.log_end_offset, stable + log.last_stable_offset
            sums[where.topic] = (end, stable, max(oldest_s, age_s))
    return sums


def _rate(count: int, passed_s: float) -> float:
    # Of a topic that was made again, or of which retention deleted more, it is not known.
    return round(count / passed_s, 1) if passed_s > 0 and count > 0 else 0.0


def _transactions(now: Look) -> Iterator[dict[str, Any]]:
    owners = {name: one for one in now.processes for name in one["transactional_ids"]}
    for one in now.transactions:
        owner = owners.get(one.transactional_id, {})
        yield {
            "transactional_id": one.transactional_id,
            "state": "Prepared" if one.prepared else one.transaction_state,
            "age_ms": max(0, one.transaction_duration_ms or 0),
            "timeout_ms": one.transaction_timeout_ms,
            "partitions": [str(where) for where in one.topic_partitions],
            "process_id": owner.get("process_id"),
            "host": owner.get("host"),
        }


def _groups(figures: StoreFigures) -> Iterator[dict[str, Any]]:
    for group in figures.groups:
        lags: dict[str | None, int] = {} if group.offsets else {None: 0}
        for where, (committed, end) in group.offsets.items():
            lags[where.topic] = lags.get(where.topic, 0) + max(0, end - committed)
        for topic, lag in lags.items():
            yield {"group": group.group, "members": group.members, "topic": topic, "lag": lag}


def headline(store: "eoslog.Store", shown: dict[str, Any]) -> str:
    """Return the line above the tables."""
    count = len(shown["processes"])
    open_in = f"open in {count} process{'' if count == 1 else 'es'}"
    return f"{open_in}, durability {shown['durability']}: {store.path}"


def table_of(name: str, shown: dict[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Return the columns and the rows of a section."""
    cells = _CELLS[name]
    rows = [[cell(one) for cell in cells.values()] for one in shown[name]]
    return list(cells), rows


def drawn(store: "eoslog.Store", shown: dict[str, Any], height: int) -> "RenderableType":
    """Return what a terminal of this height shows."""
    from rich.console import Group
    from rich.text import Text

    tables = [table_of(name, shown) for name in SECTIONS]
    left = max(0, height - 2 - _LINES_OF_TABLE * len(tables))
    first = Text(headline(store, shown), no_wrap=True, overflow="ellipsis")
    parts: list[RenderableType] = [first]
    for number, (columns, rows) in enumerate(tables):
        share = left // (len(tables) - number)
        count = len(rows) if len(rows) <= share else max(0, share - 1)
        left -= min(len(rows), share)
        parts.append(Text())
        parts.append(_drawn_table(columns, rows[:count]))
        if count < len(rows):
            parts.append(Text(f" and {len(rows) - count} more"))
    return Group(*parts)


def _drawn_table(columns: list[str], rows: list[list[object]]) -> "RenderableType":
    """Return a table with a line for each row: what has no room is cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_edge=False)
    for index, name in enumerate(columns):
        right = is_of_numbers([row[index] for row in rows])
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(shown_text(cell, ", ")) for cell in row))
    return table
