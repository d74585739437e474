"""Tables for a terminal, and with characters that are not one wide each."""

import re
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from eoslog.cli.options import standard_output
from eoslog.cli.table import is_of_numbers, shown_text

# Where the name of a column is folded, a line of it has so many characters at least.
_HEADER_WIDTH_MIN = 6
_WORD_ENDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[-_ ])")
_UNBOUNDED_WIDTH = 1 << 30


def print_rich_rows(
    columns: Sequence[str], listed: list[list[object]], title: str | None = None
) -> None:
    """Print rows; see `print_rows`."""
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


def print_table(table: Table, console: Console | None = None, title: str | None = None) -> None:
    """Print a table; columns that have both a width and a least width may become narrower.

    Raises OSError if the command was started without standard output.
    """
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


def _narrow(table: Table, console: Console) -> None:
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
    lines = [""]
    for word in _WORD_ENDS.split(name):
        if lines[-1] and width is not None and cell_len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _width_of(table: Table, console: Console) -> int:
    unbounded = console.options.update(width=_UNBOUNDED_WIDTH)
    return Measurement.get(console, unbounded, table).maximum


def _least_width(cell: object) -> int:
    """Return the least width of the cell's column; a list folds between its elements, after a
    comma.
    """
    pieces = [f"{one}," for one in cell] if isinstance(cell, list) else [cell]
    return max((cell_len(shown_text(one, "")) for one in pieces), default=0)
