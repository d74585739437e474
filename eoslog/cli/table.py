"""Tables on standard output. No value is cut, whatever the width of the terminal: names and ids are
what the next command is called with.

On a terminal that is too narrow the names of the columns fold, and lists between their elements.
Where that is not enough, rows are longer than the terminal's lines. Into a file or pipe a table
goes at its full width.
"""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, TextIO

import click

from eoslog.cli.options import standard_output

# Rich is imported where it is used: a listing into a pipe would take a quarter longer.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Where the name of a column is folded, a line of it has so many characters at least.
_HEADER_WIDTH_MIN = 6
_WORD_ENDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[-_ ])")
_UNBOUNDED_WIDTH = 1 << 30
# With these in the environment what is no terminal is treated as one.
_LIKE_A_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print rows under the names of their columns; texts and lists go left, numbers right.

    Raises OSError if the command was started without standard output.
    """
    standard_output()
    listed = [list(row) for row in rows]
    shown = [[shown_text(cell, ",") for cell in row] for row in listed]
    if is_plain(sys.stdout) and all(map(str.isascii, (*columns, *chain(*shown), title or ""))):
        _print_plain(columns, listed, shown, title)
        return
    print_rich_rows(columns, listed, title)


def moment_text(moment_ms: int) -> str:
    """Return a time for people, in UTC; `--from` and its like take it."""
    try:
        moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{moment_ms} ms"  # Beyond the calendar.
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def duration_text(duration_ms: int) -> str:
    """Return how long something takes, for people: "0.3 s", "5 min", "3 h 20 min", "2 d 4 h"."""
    seconds = max(0, duration_ms) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def is_plain(output: TextIO) -> bool:
    """Return True for a file or pipe, which gets a table at its full width, without colors."""
    return not output.isatty() and not any(name in os.environ for name in _LIKE_A_TERMINAL)


def is_of_numbers(cells: Sequence[object]) -> bool:
    """Return True if a column goes right."""
    return bool(cells) and not isinstance(cells[0], (str, list))


def _print_plain(
    columns: Sequence[str],
    listed: list[list[object]],
    shown: list[list[str]],
    title: str | None,
) -> None:
    """Print what rich prints into a pipe: characters of ASCII are one wide each."""
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    right = [is_of_numbers([row[index] for row in listed]) for index in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        )
        return f" {'   '.join(padded)} "

    rule = "─" * (sum(widths) + 3 * len(widths) - 1)
    lines = [*([] if title is None else [title]), line(columns), rule, *map(line, shown)]
    click.echo("\n".join(lines))


def shown_text(cell: object, comma: str) -> str:
    """Return the text that a cell shows; characters that do something to a terminal are escaped."""
    text = comma.join(map(str, cell)) if isinstance(cell, list) else str(cell)
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def print_rich_rows(
    columns: Sequence[str], listed: list[list[object]], title: str | None = None
) -> None:
    """Print rows by rich; see `print_rows`."""
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    comma = ", " if console.is_terminal else ","
    shown = [[shown_text(cell, comma) for cell in row] for row in listed]
    table = Table(box=box.SIMPLE, show_edge=False)
    for index, name in enumerate(columns):
        cells = [row[index] for row in listed]
        texts = [row[index] for row in shown]
        table.add_column(
            name,
            justify="right" if is_of_numbers(cells) else "left",
            overflow="fold",
            width=max(map(cell_len, [name, *texts])),
            min_width=max([min(len(name), _HEADER_WIDTH_MIN), *map(_least_width, cells)]),
        )
    for texts in shown:
        table.add_row(*map(Text, texts))
    print_table(table, console, title)


def print_table(table: "Table", console: "Console | None" = None, title: str | None = None) -> None:
    """Print a table; columns that have both a width and a least width may become narrower.

    Raises OSError if the command was started without standard output.
    """
    from rich.console import Console
    from rich.text import Text

    standard_output()
    console = console or Console()
    if console.is_terminal:
        _narrow(table, console)
    for column in table.columns:
        column.header = Text(_folded(str(column.header), column.width))
    wide = Console(width=max(_width_of(table, console), console.width))
    if title is not None:
        wide.print(Text(title, style="italic"), soft_wrap=True)
    wide.print(table)


def _narrow(table: "Table", console: "Console") -> None:
    """Take from the widest columns what the terminal has no room for, as far as that goes."""
    excess = _width_of(table, console) - console.width
    while excess > 0:
        spare = [
            column
            for column in table.columns
            if column.width is not None and column.width > (column.min_width or column.width)
        ]
        if not spare:
            return
        widest = max(spare, key=lambda column: column.width or 0)
        widest.width = (widest.width or 0) - 1
        excess -= 1


def _folded(name: str, width: int | None) -> str:
    """The name of a column in lines of so many characters, as far as its words allow."""
    from rich.cells import cell_len

    lines = [""]
    for word in _WORD_ENDS.split(name):
        if lines[-1] and width is not None and cell_len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _width_of(table: "Table", console: "Console") -> int:
    from rich.measure import Measurement

    unbounded = console.options.update(width=_UNBOUNDED_WIDTH)
    return Measurement.get(console, unbounded, table).maximum


def _least_width(cell: object) -> int:
    """Return the least width of the cell's column; a list folds between its elements, after a
    comma.
    """
    from rich.cells import cell_len

    pieces = [f"{one}," for one in cell] if isinstance(cell, list) else [cell]
    return max((cell_len(shown_text(one, "")) for one in pieces), default=0)
