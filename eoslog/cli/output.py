"""Standard output that is named in the error where it takes no more.

Else a full disk below it would read as one below the store. A reader that has gone (`| head`) is no
failure: the exit status is that of the work, and a command that prints records ends there.

And one line of standard error that says how far a command has come.
"""

import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NAME = "standard output"


class ReaderGoneError(Exception):
    """The reader of the records that a command prints has gone. No OSError: nothing is to catch it
    but the end of the program.
    """


class _NamedOutput(io.FileIO):
    """The bytes go out as from any file; an error carries the name."""

    ends_with_reader = False
    has_written = False

    def write(self, data: Any) -> int:
        self.has_written = True
        try:
            return super().write(data)
        except BrokenPipeError as error:
            give_up(self.fileno())
            if self.ends_with_reader:
                raise ReaderGoneError(NAME) from error
            return len(data)
        except OSError as error:
            if error.filename is None:
                error.filename = NAME
            raise


def name_standard_output() -> None:
    """Have each error of standard output name it. Does nothing if there is none."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper) or stream is not sys.__stdout__:
        return
    stream.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_NamedOutput(stream.fileno(), "wb", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
    )


def end_with_reader() -> None:
    """Have a command that prints records raise ReaderGoneError once its reader is gone."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _NamedOutput):
        raw.ends_with_reader = True


def has_printed() -> bool:
    """Return True if the command has printed anything, or that is not known."""
    if sys.stdout is None:
        return False
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.has_written if isinstance(raw, _NamedOutput) else True


def reader_is_gone() -> bool:
    """Return True if standard output is a pipe that no process will read: a write would fail."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _NamedOutput):
        return False
    poll = select.poll()
    poll.register(raw.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def give_up(descriptor: int) -> None:
    """Discard all further output of a descriptor, also what is buffered: a second error would say
    nothing new.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def note_of_work_done() -> Iterator[None]:
    """A block that prints to standard error what was done: a missing reader is no failure."""
    try:
        yield
    except BrokenPipeError:
        give_up(sys.stderr.fileno())


@contextmanager
def progress_line(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield the function to call with what is done and with the total; it shows nothing
    where standard error is no terminal. The line is gone at the end.
    """
    from rich.console import Console  # What it loads not every command needs.
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(line, completed=done, total=total)
