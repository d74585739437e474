"""Tables on standard output. No value is cut, whatever the width of the terminal: names and ids are
what the next command is called with.

On a terminal that is too narrow the names of the columns fold, and lists between their elements.
Where that is not enough, rows are longer than the terminal's lines. Into a file or pipe a table
goes at its full width.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TextIO

import click

from eoslog.cli.options import standard_output

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
    # On the way of a command whose output goes into a pipe it would be a quarter of all work.
    from eoslog.cli.rich_table import print_rich_rows

    print_rich_rows(columns, listed, title)


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
