"""One line on the terminal that says how far a command has come."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_line(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield the function to call with what is done and with the total; it shows nothing
    where the console is no terminal. The line is gone at the end.
    """
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(line, completed=done, total=total)
