"""Places in a job at which a test lets it go wrong, slow or not on at all: files in a folder.

The file `<step>` says what whoever comes to the step has to do; without it nothing happens. The
file `<step>.reached` has a line for each time that somebody was there: his process. So a test
steers tasks and commits in whatever process, and of whatever driver, Spark runs them.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# raise, kill: once. fail: raise, each time. slow: a pause, each time. hold: until the test sets
# something else, or opens the gate. survive: hold, and outlive the driver, whose end Spark tells
# its Python processes by a SIGHUP.
Action = Literal["raise", "kill", "fail", "slow", "hold", "survive"]
SLOW_S = 0.05
LONGEST_WAIT_S = 120.0
# Whoever is held so long was forgotten.
HELD_MAX_S = 600.0


class GateError(RuntimeError):
    """What goes wrong on purpose."""


@dataclass(frozen=True)
class Gates:
    """The gates of one job. It may be pickled, and used in any process that sees the folder."""

    folder: str

    # For the test.

    def set(self, step: str, action: Action) -> None:
        Path(self.folder).mkdir(exist_ok=True)
        self._path(f"{step}.reached").unlink(missing_ok=True)
        new = self._path(f"{step}.new")
        new.write_text(action)
        new.rename(self._path(step))

    def open(self, step: str) -> None:
        self._path(step).unlink(missing_ok=True)

    def reached(self, step: str) -> int:
        """How often somebody came to the step."""
        return self._found(step)[1]

    def process_at(self, step: str) -> int:
        """The process that came to the step last."""
        return self._found(step)[0]

    def wait_for(self, step: str, timeout_s: float = LONGEST_WAIT_S) -> None:
        """Wait until somebody comes to the step."""
        until_s = time.monotonic() + timeout_s
        while not self.reached(step):
            assert time.monotonic() < until_s, f"nobody came to the step {step!r}"
            time.sleep(0.02)

    # For the job.

    def come_to(self, step: str) -> None:
        """Do what the test wants done at this step."""
        action = self._action(step)
        if action is None:
            return
        if action == "survive":
            # First: the test may kill the driver as soon as it knows that somebody is here.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._say_reached(step)
        until_s = time.monotonic() + HELD_MAX_S
        while action in ("hold", "survive"):
            if time.monotonic() > until_s:
                raise GateError(f"{step}: nobody opened the gate")
            time.sleep(0.02)
            action = self._action(step)
        if action == "slow":
            time.sleep(SLOW_S)
        elif action == "fail":
            raise GateError(f"{step}: goes wrong on purpose")
        elif action is not None:
            self._path(step).unlink(missing_ok=True)
            if action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise GateError(f"{step}: goes wrong on purpose")

    def _action(self, step: str) -> str | None:
        try:
            return self._path(step).read_text()
        except FileNotFoundError:
            return None

    def _say_reached(self, step: str) -> None:
        # A line at the end, by one write: two that come at once are counted both.
        with self._path(f"{step}.reached").open("a") as lines:
            lines.write(f"{os.getpid()}\n")

    def _path(self, name: str) -> Path:
        return Path(self.folder, name)

    def _found(self, step: str) -> tuple[int, int]:
        try:
            processes = self._path(f"{step}.reached").read_text().split()
        except FileNotFoundError:
            return 0, 0
        return (int(processes[-1]), len(processes)) if processes else (0, 0)
