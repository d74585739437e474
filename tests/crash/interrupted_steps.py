"""An interrupt (Ctrl-C) at a chosen one of the places where a signal makes a difference: just
before the interpreter looks for one (behind a call, at the beginning of a function, at the end of a
loop's round), and as a function returns, whose caller may be C that goes on before it looks.

Closer than `interrupted_lines`: within a line a result may have been had and not be kept yet. And
true to life, since the signal is a real one.
"""

from __future__ import annotations

import _thread
import dis
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pytest

_LOOKING = ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")


@cache
def _places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions that look for signals."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in _LOOKING)


class _Signal:
    """SIGINT arrives as this object goes. All of that is C: whoever let go of it does not look."""

    __del__ = staticmethod(_thread.interrupt_main)


class Steps:
    """Counts the places of functions that are ours, and interrupts at one of them; only in the main
    thread.
    """

    def __init__(self, is_ours: Callable[[FrameType], bool]) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ:
            # The interpreter itself may crash where its tracing ends in the middle of a trace.
            pytest.skip("runs alone: pytest -p no:xdist, or make soak")
        self._is_ours = is_ours
        self.count = 0
        self.last = ""

    def each(self) -> Iterator[int]:
        """1, 2 and so on, until what was armed with the last one had fewer places."""
        step = 0
        while self.count >= step:
            step += 1
            yield step

    def interrupt(self, step: int, call: Callable[[], object]) -> bool:
        """Make the call, with Ctrl-C at its so-and-so-many-th place; whether it came to that.

        The interrupt may come out as something else, or not at all: that is the caller's to say.
        """
        try:
            with self.armed(step):
                call()
        except KeyboardInterrupt:
            if self.count < step:
                raise
        return self.count >= step

    @contextmanager
    def armed(self, step: int) -> Iterator[None]:
        """Ctrl-C at the so-and-so-many-th place from here on, wherever that comes out."""
        before = sys.gettrace()
        self.arm(step)
        try:
            yield
        finally:
            sys.settrace(before)  # And a last look for signals.

    def arm(self, step: int) -> None:
        """The same, for functions that are called from here on; in a handler of a signal, too."""
        self.count, self.last = 0, ""
        sys.settrace(self._at_call(step))

    def _is_near(self, frame: FrameType) -> bool:
        """Whether it is ours, or was called by what is."""
        caller = frame.f_back
        return self._is_ours(frame) or (caller is not None and self._is_ours(caller))

    def _at_call(self, step: int) -> Callable[[FrameType, str, object], Any]:
        def at_step(frame: FrameType, event: str, _: object) -> Any:
            if event == "return" or (event == "opcode" and frame.f_lasti in _places(frame.f_code)):
                self.count += 1
                if self.count == step:
                    code = frame.f_code
                    self.last = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
                    # Else the signal would be looked for in here, at the next event.
                    sys.settrace(None)
                    signal = _Signal()  # noqa: F841 - goes when this function does.
            return at_step

        def at_call(frame: FrameType, _event: str, _: object) -> Any:
            # What an exception in a finalizer comes to is the interpreter's own.
            if frame.f_code.co_name == "__del__" or not self._is_near(frame):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = self._is_ours(frame), False
            return at_step

        return at_call
