"""Whether a handler of a signal calls: its thread may be in the middle of another call, and hold
locks that others wait for, whom this call would wait for in turn.
"""

import signal
import sys
import threading
from functools import partial
from types import CodeType, FrameType, FunctionType

PACKAGE = __name__.partition(".")[0]


def is_within_a_call() -> bool:
    """Whether a handler of a signal calls this, which came in the middle of a call of ours."""
    if threading.current_thread() is not threading.main_thread():
        return False  # Handlers run in that one alone.
    codes = _codes_of_handlers()
    frame: FrameType | None = sys._getframe(1)
    handled = False
    while frame is not None:
        if handled and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
            return True
        handled = handled or frame.f_code in codes
        frame = frame.f_back
    return False


def _codes_of_handlers() -> set[CodeType]:
    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        if callable(handler):
            function = getattr(handler, "__func__", handler)
            if not isinstance(function, FunctionType):  # An object that can be called.
                function = type(handler).__call__
            if isinstance(function, FunctionType):
                codes.add(function.__code__)
    return codes
