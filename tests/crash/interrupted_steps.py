"""An interrupt (Ctrl-C) at a chosen one of the places where a signal makes a difference: just
before the interpreter looks for one (behind a call, at the beginning of a function, at the end of a
loop's round), and as a function returns, whose caller may be C that goes on before it looks.

Closer than `interrupted_lines`: within a line a result may have been had and not be kept yet. And
true to life, since the signal is a real one. The trace function is C: one in Python holds on to the
locals that it shows, looks for signals itself, and is freed in the middle of a trace by a finalizer
that ends the tracing.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

from c_library import built_library
from crash.rows_topic import PACKAGE, is_of_the_package

SOURCE = Path(__file__).with_name("interrupted_steps.c")
_LOOKING = ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")


class _State(ctypes.Structure):
    _fields_ = (("count", ctypes.c_long), ("at", ctypes.c_long), ("last", ctypes.c_char * 512))


# A trace that was not ended, where the interrupt came on the way there, may outlive its owner.
_states: list[_State] = []


@cache
def _library() -> ctypes.PyDLL:
    with tempfile.TemporaryDirectory() as folder:
        include = f"-I{sysconfig.get_path('include')}"
        library = ctypes.PyDLL(str(built_library(SOURCE, Path(folder), include)))
    library.steps_arm.argtypes = [ctypes.POINTER(_State), ctypes.c_long]
    opcodes = bytes(dis.opmap[name] for name in _LOOKING)
    assert library.steps_prepare(os.fsencode(PACKAGE), opcodes, len(opcodes)) == 0
    return library


class Steps:
    """Counts the places of the package's functions, and interrupts at one of them; only in the main
    thread. A block of it ends the counting.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._state = _State()
        _states.append(self._state)

    @property
    def count(self) -> int:
        """How many places were come to; none is counted behind the one with the interrupt."""
        return self._state.count

    @property
    def last(self) -> str:
        """Where the interrupt was; "" if it did not come to that."""
        return os.fsdecode(self._state.last)

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
        collects = gc.isenabled()
        gc.disable()  # An interrupt would be lost in the finalizer of a stranger's garbage.
        try:
            with self.armed(step):
                call()
        except KeyboardInterrupt:
            if self.count < step:
                raise
        finally:
            if collects:
                gc.enable()
        return self.count >= step

    def armed(self, step: int) -> Steps:
        """For a block: Ctrl-C at the so-and-so-many-th place in it, wherever that comes out."""
        self.arm(step)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)  # And a last look for signals.

    def arm(self, step: int) -> None:
        """The same, without an end; in a handler of a signal, too."""
        self._library.steps_arm(self._state, step)


@contextmanager
def at_signals(function: Callable[[], object]) -> Iterator[None]:
    """Have a function called where the package's code would be interrupted; what a test's own code
    was just given is not lost by it.
    """

    def handle(_: int, frame: FrameType | None) -> None:
        if frame is not None and is_of_the_package(frame):
            function()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
