"""Standard output that says its name where it takes no more.

Else a full disk below it would read as one below the store.
"""

import io
import os
import sys
from typing import Any

NAME = "standard output"


class _NamedOutput(io.FileIO):
    """The bytes go out as from any file; an error carries the name."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.filename is None:
                error.filename = NAME
            raise


def name_standard_output() -> None:
    """From now on an error of standard output names it. Nothing happens if there is none."""
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


def give_up_standard_output() -> None:
    """Nothing more goes there, also of what is buffered: a second error would say nothing new."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
