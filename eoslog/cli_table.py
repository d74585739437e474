"""Tables on the terminal; into a file or pipe they go whole, whatever their width."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from eoslog.cli_options import standard_output

# Wider than any of our tables: nothing is cut off where no terminal says how wide it is.
WIDTH_OF_FILES = 1000


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print rows under the names of their columns; texts go left, numbers right."""
    table = Table(title=title, box=box.SIMPLE, show_edge=False)
    listed = list(rows)
    for name, cell in zip(columns, listed[0] if listed else columns, strict=True):
        table.add_column(name, justify="left" if isinstance(cell, str) else "right")
    for row in listed:
        table.add_row(*map(str, row))
    print_table(table)


def print_table(table: Table) -> None:
    """Print to standard output. OSError if the command was started without one."""
    standard_output()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_FILES)
    console.print(table)
