"""Waiting for what a test is about."""

from __future__ import annotations

import time
from collections.abc import Callable

# For a hang only: a machine may be busy.
SECONDS_MAX = 60.0


def eventually(condition: Callable[[], object], otherwise: str = "it did not happen") -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)
