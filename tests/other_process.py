"""Another process that works beside the test: it does one thing after the other, as it is told."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType

_HEAD = """
import os, signal, sys
def say(*words): print(*words, flush=True)
def wait():
    line = sys.stdin.readline()
    if not line: os._exit(3)
    return line.strip()
"""


class OtherProcess:
    """Runs code that may `say(...)` a line, and `wait()` for one."""

    def __init__(self, code: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HEAD + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> str:
        """The next line it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(f"it said nothing more: {self._process.stderr.read()}")
        return line.strip()

    def tell(self, line: str = "") -> None:
        """Let it go on from its `wait()`."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL; it is gone on return."""
        self._process.kill()
        self._process.wait(timeout=30)

    def end(self) -> str:
        """Wait for its end, which must be a good one; what it said last."""
        said, complaints = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, complaints
        return said.strip()

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
