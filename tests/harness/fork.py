"""Forked children: work whose failure or death is the test's to judge, and deaths at a chosen call.

assert in_child(lambda: work()) == 3        # What it returned; its error is raised.
assert dies_in_child(lambda: work())        # It was killed.
with Fork(work) as child:                   # It works beside the test, as `work(fork)`.
    assert child.hear() == "ready"          # fork.say("ready")
    child.tell()                            # fork.wait()
    assert child.end() == 3
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from typing import Any, Self

# For a hang only.
SECONDS_MAX = 120
# What part of a call is done by one that dies within it, by the function's name.
WITHIN: dict[str, Callable[..., Any]] = {}


class ChildError(AssertionError):
    """The work failed in the child, or the child died: its traceback, or the signal."""


class Fork:
    """Work in a forked child. Both sides say and hear whatever can be pickled."""

    def __init__(self, work: Callable[[Fork], Any], seconds: int = SECONDS_MAX) -> None:
        self.pipe, theirs = Pipe()
        self._seconds = seconds
        self.exit: int | None = None  # Below 0: a signal.
        self.said: list[Any] = []
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe.close()
            self.pipe = theirs
            self._work_and_exit(work)
        theirs.close()

    # In the child.

    def _work_and_exit(self, work: Callable[[Fork], Any]) -> None:
        status = 1
        faulthandler.disable()
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(self._seconds)
            self.pipe.send(("done", work(self)))
            status = 0
        except BaseException:
            self.pipe.send(("failed", traceback.format_exc()[-20_000:]))
        finally:
            os._exit(status)

    def say(self, what: Any = None) -> None:
        self.pipe.send(("said", what))

    def wait(self) -> Any:
        """What it is told next; it ends where its parent has."""
        try:
            return self.pipe.recv()
        except EOFError:
            os._exit(3)

    def told(self, timeout_s: float = 0.0) -> bool:
        """Whether it is told something within that time, or its parent has ended."""
        return self.pipe.poll(timeout_s)

    # In the test.

    def hear(self) -> Any:
        """What it says next."""
        kind, what = self.receive()
        if kind == "done":
            raise ChildError(f"it ended, with {what!r}")
        self.said.append(what)
        return what

    def listen(self) -> list[Any]:
        """What it has said since the last time."""
        heard = len(self.said)
        while self.pipe.poll():
            self.hear()
        return self.said[heard:]

    def tell(self, what: Any = None) -> None:
        """Let it go on from its `wait()`."""
        self.pipe.send(what)

    def end(self) -> Any:
        """Wait for its end; what it returned."""
        while True:
            kind, what = self.receive()
            if kind == "done":
                self.reap()
                return what
            self.said.append(what)

    def died(self) -> bool:
        """Wait for its end; True if it was killed, False if it did all of its work."""
        try:
            self.end()
        except ChildError:
            if self.exit == -signal.SIGKILL:
                return True
            raise
        return False

    def kill(self) -> bool:
        """SIGKILL; dead on return, and all that it said is in `said`. False if it had ended."""
        os.kill(self.pid, signal.SIGKILL)
        return self.died()

    def receive(self) -> tuple[str, Any]:
        try:
            kind, what = self.pipe.recv()
        except (EOFError, OSError):
            kind, what = "dead", None
        if kind in ("said", "done"):
            return kind, what
        self.reap()
        if kind == "failed":
            raise ChildError(what)
        said = f"status {self.exit}"
        if self.exit is not None and self.exit < 0:
            said = signal.Signals(-self.exit).name
        if said == "SIGALRM":
            said += f": it took more than {self._seconds} s"
        raise ChildError(f"the process is dead: {said}")

    def reap(self) -> None:
        if self.exit is None:
            self.exit = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit is None:
            os.kill(self.pid, signal.SIGKILL)
            self.reap()


def in_child(work: Callable[[], Any], *, seconds: int = SECONDS_MAX) -> Any:
    """Do it in a fork; what it returned. Raises ChildError."""
    with Fork(lambda _: work(), seconds) as child:
        return child.end()


def dies_in_child(work: Callable[[], Any]) -> bool:
    """Do it in a fork; whether SIGKILL ended it. Raises ChildError if it failed."""
    with Fork(lambda _: work()) as child:
        return child.died()


def all_said(children: list[Fork]) -> Iterator[Any]:
    """What any of them says, until all have ended. Raises ChildError."""
    working = {child.pipe: child for child in children}
    while working:
        for pipe in connection.wait(list(working)):
            child = working[pipe]  # type: ignore[index]
            kind, what = child.receive()
            if kind == "said":
                yield what
            else:
                working.pop(pipe)  # type: ignore[call-overload]
                child.reap()


def as_nobody() -> None:
    """Root may enter and write everything: give that up, in this child process."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


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
