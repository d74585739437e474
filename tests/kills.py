"""Forked children that kill themselves with SIGKILL at a chosen call of a chosen function."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What part of a call is done by one that dies within it, by the function's name.
WITHIN: dict[str, Callable[..., Any]] = {}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def in_child(work: Callable[[], Any], tmp_path: Path) -> Any:
    """Run the work in a forked process; its result, or None if it was killed."""
    report = tmp_path / "report"
    report.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            report.write_text(json.dumps(work()))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, "the child failed; see its traceback"
    return json.loads(report.read_text())


@dataclass(frozen=True)
class Kill:
    """Death at the n-th call (from 1) of a function: before it, after it, or `within` it."""

    owner: Any
    name: str
    nth: int = 1
    when: str = "before"

    def __str__(self) -> str:
        owner = getattr(self.owner, "__name__", str(self.owner)).rsplit(".", 1)[-1]
        return f"{self.when} {owner}.{self.name} {self.nth}"

    def arm(self) -> None:
        """Replace the function, in this process for good."""
        original = getattr(self.owner, self.name)
        calls = 0

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls < self.nth:
                return original(*arguments, **options)
            if self.when == "within":
                WITHIN[self.name](original, *arguments, **options)
            elif self.when == "after":
                original(*arguments, **options)
            die()
            return None

        setattr(self.owner, self.name, call)
