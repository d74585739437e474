"""An interrupt (Ctrl-C) before a chosen line of chosen functions."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def is_of_a_block(source: str) -> bool:
    """No signal comes between a block and its end, where the line of `with` is passed again, nor at
    a `try:`, which no handler guards.
    """
    return source.startswith("with ") or source == "try:"


@contextmanager
def interrupted_at(
    line: int,
    is_ours: Callable[[FrameType], bool],
    is_passed_over: Callable[[str], bool] = is_of_a_block,
) -> Iterator[list[str]]:
    """Ctrl-C before the so-and-so-many-th line of functions that are ours; gives the lines seen.

    A line is not counted if its text is passed over: no signal can come just there.
    """
    seen: list[str] = []

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and not is_passed_over(source_of(frame)):
            seen.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            if len(seen) == line:
                raise KeyboardInterrupt(seen[-1])
        return at_line

    def at_call(frame: FrameType, _event: str, _: object) -> Any:
        return at_line if is_ours(frame) else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield seen
    finally:
        sys.settrace(before)


def source_of(frame: FrameType) -> str:
    """The text of the line that is next."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
