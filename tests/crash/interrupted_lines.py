"""An interrupt (Ctrl-C), or a handler's call, before a chosen line of chosen functions."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

INLINED = sys.version_info >= (3, 12)
COMPREHENSION = re.compile(r"\S for .+ in ")


def is_of_a_block(source: str) -> bool:
    """No signal comes between a block and its end, where the line of `with` is passed again, nor at
    a `try:`, which no handler guards, nor where a comprehension begins that is part of its
    function, as since Python 3.12: there the end of a block around it would be left out.
    """
    if INLINED and COMPREHENSION.search(source):
        return True
    return source.startswith("with ") or source == "try:"


@contextmanager
def called_at(
    line: int,
    is_ours: Callable[[FrameType], bool],
    call: Callable[[str], object],
    is_passed_over: Callable[[str], bool] = is_of_a_block,
) -> Iterator[list[str]]:
    """A call, as of a signal's handler, before the so-and-so-many-th line of functions that are
    ours; gives the lines seen.

    A line is not counted if its text is passed over: no signal can come just there.
    """
    seen: list[str] = []

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not is_passed_over(source_of(frame)):
            seen.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            if len(seen) == line:
                call(seen[-1])
        return at_line

    def at_call(frame: FrameType, _event: str, _: object) -> Any:
        # What an exception in a finalizer comes to is the interpreter's own.
        return at_line if is_ours(frame) and frame.f_code.co_name != "__del__" else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield seen
    finally:
        sys.settrace(before)


def interrupted_at(
    line: int,
    is_ours: Callable[[FrameType], bool],
    is_passed_over: Callable[[str], bool] = is_of_a_block,
) -> AbstractContextManager[list[str]]:
    """Ctrl-C before a line, as `called_at`."""

    def interrupt(where: str) -> None:
        raise KeyboardInterrupt(where)

    return called_at(line, is_ours, interrupt, is_passed_over)


def source_of(frame: FrameType) -> str:
    """The text of the line that is next."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
