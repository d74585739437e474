"""An interrupt (Ctrl-C) between two steps of the interpreter, at a chosen one of the places where
signals come: behind a call, at the beginning of a function, at the end of a loop's round.

Closer than `interrupted_lines`: within a line a result may have been had and not be kept yet.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

_BEFORE_SIGNALS = ("CALL", "RESUME", "JUMP_BACKWARD")


@cache
def _places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions in front of which a handler may run."""
    found, behind = [], False
    for instruction in dis.get_instructions(code):
        if behind:
            found.append(instruction.offset)
        behind = instruction.opname.startswith(_BEFORE_SIGNALS)
    return frozenset(found)


class Steps:
    """Counts the places of functions that are ours, and interrupts at one of them."""

    def __init__(self, is_ours: Callable[[FrameType], bool]) -> None:
        self._is_ours = is_ours
        self.count = 0
        self.last = ""

    def interrupt(self, step: int, call: Callable[[], object]) -> bool:
        """Make the call, with Ctrl-C at its so-and-so-many-th place; whether it came to that.

        The interrupt may come out as something else, or not at all: that is the caller's to say.
        """
        self.count, self.last = 0, ""
        before = sys.gettrace()
        sys.settrace(self._at_call(step))
        try:
            call()
        except KeyboardInterrupt:
            if self.count < step:
                raise
        finally:
            sys.settrace(before)
        return self.count >= step

    def _at_call(self, step: int) -> Callable[[FrameType, str, object], Any]:
        def at_step(frame: FrameType, event: str, _: object) -> Any:
            if event == "opcode" and frame.f_lasti in _places(frame.f_code):
                self.count += 1
                if self.count == step:
                    code = frame.f_code
                    self.last = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
                    raise KeyboardInterrupt(self.last)
            return at_step

        def at_call(frame: FrameType, _event: str, _: object) -> Any:
            # What an exception in a finalizer comes to is the interpreter's own.
            if not self._is_ours(frame) or frame.f_code.co_name == "__del__":
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return at_step

        return at_call
