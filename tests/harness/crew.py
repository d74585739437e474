"""Many processes at work on one store, started, told, heard, killed and cleaned up by a test.

    with Crew(tmp_path / "store") as crew:
        ann, bob = crew.join(), crew.join()
        ann.call(make_topic, "orders")
        assert bob.call(topic_names) == ["orders"]
        ann.kill()
    with Member() as other:
        other.run("store = eoslog.open(path)", path=str(path))
        assert other.value("store.durability") == "commit"

The functions stand in a test's module or beside it, take a `Hand` (`member_main`) first, and get
and answer what JSON can say. `begin` does not wait for the end: programs that work until they are
killed say what they do, line by line.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from harness import member_main

# For a hang only: a machine may be busy, and any process stand still for seconds.
TIMEOUT_S = 120.0
_TAIL_BYTES = 6_000
_LOOK_EVERY_S = 0.0005

# The background thread is as busy as the work, so that it meets it.
BUSY = {
    "eoslog.checkpoint.interval.ms": 50,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.initial.task.delay.ms": 30,
    "producer.id.expiration.check.interval.ms": 100,
    "log.retention.check.interval.ms": 100,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
    "eoslog.spare.segments": 0,
}
# The background thread does nothing by itself.
QUIET = dict.fromkeys(BUSY, 3_600_000) | {"eoslog.spare.segments": 0}


class MemberError(Exception):
    """A call failed in the member: its error's class, text and traceback."""

    def __init__(self, kind: str, text: str, trace: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.trace = trace
        self.add_note(trace)


class Said(NamedTuple):
    """A line of a member. Moments of all processes are of one clock."""

    moment_ns: int
    word: str
    rest: list[Any]


class NurseryClient:
    """The nursery of this test run, or one that has more in its environment."""

    def __init__(self, **environment: str) -> None:
        # Whole messages: one request is one read.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.nursery", str(os.getpid())],
            stdin=theirs,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
        )
        theirs.close()
        self._socket = ours
        self._exits: dict[int, int] = {}
        self._lock = threading.Lock()  # Else one thread reads what another one waits for.

    def fork(self, files: list[int]) -> int:
        """A new member with these files as input, output and errors; its pid."""
        deadline = time.monotonic() + TIMEOUT_S
        with self._lock:
            socket.send_fds(self._socket, [b"{}"], files)
            while True:
                told = self._read(deadline)
                if "born" in told:
                    return int(told["born"])
                if not told and time.monotonic() > deadline:
                    raise AssertionError(f"the nursery bore no member within {TIMEOUT_S} s")

    def signal(self, pid: int, number: int) -> None:
        """Nothing if it has ended."""
        if pid not in self._exits:
            with contextlib.suppress(BrokenPipeError):  # Its members died with it.
                self._socket.sendall(json.dumps({"signal": number, "pid": pid}).encode())

    def exit_of(self, pid: int, timeout_s: float) -> int | None:
        """The exit status (below 0: a signal); None if it still lives after that time."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if pid in self._exits:
                    return self._exits[pid]
                told = self._read(min(deadline, time.monotonic() + _LOOK_EVERY_S))
            if not told and time.monotonic() >= deadline:
                return self._exits.get(pid)

    def _read(self, deadline: float) -> dict[str, Any]:
        """What the nursery tells next; nothing if it does not until the deadline."""
        self._socket.settimeout(max(0.0001, deadline - time.monotonic()))
        try:
            message = self._socket.recv(1 << 16)
        except TimeoutError:
            return {}
        except ConnectionError:
            message = b""
        if not message:
            raise AssertionError("the nursery is dead; what it said stands in the standard error")
        told: dict[str, Any] = json.loads(message)
        if "gone" in told:
            self._exits[told["gone"]] = told["exit"]
        elif "born" in told:
            self._exits.pop(told["born"], None)  # Another's, long ago.
        return told

    def stop(self) -> None:
        self._socket.close()
        self._process.wait(TIMEOUT_S)

    def is_dead(self) -> bool:
        return self._process.poll() is not None


_nurseries: list[NurseryClient] = []


def nursery() -> NurseryClient:
    """Started with the first crew, stopped with the interpreter."""
    if not _nurseries or _nurseries[-1].is_dead():
        _nurseries.append(NurseryClient())
        atexit.register(_nurseries[-1].stop)
    return _nurseries[-1]


class Member:
    """One process of a crew, or alone; killed with the block, if it is one's context."""

    def __init__(self, name: str = "member", of: NurseryClient | None = None) -> None:
        """Born by the nursery of all, or of another one: that has an environment of its own."""
        self.name = name
        self._nursery = of or nursery()
        self._said, self._errors = _memory_file("said"), _memory_file("errors")
        self._heard_bytes = 0
        self._cut = b""
        self._unheard: list[Said] = []
        self.all_said: list[Said] = []
        reader, self._commands = os.pipe()
        self.pid = self._nursery.fork([reader, self._said, self._errors])
        os.close(reader)
        self.ended: int | None = None

    def __repr__(self) -> str:
        return f"<member {self.name}, pid {self.pid}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dispose()

    # Telling.

    def begin(self, what: Callable[..., Any] | str, *arguments: Any, **named: Any) -> None:
        """Have it call a function or run code, with these names set before; go on here."""
        if isinstance(what, str):
            self._command("run", what, named)
        else:
            self._command("call", what.__module__, what.__name__, arguments, named)

    def answer(self, timeout_s: float = TIMEOUT_S) -> Any:
        """What the call answered that was begun last; its error is raised."""
        found = self.hear("did", "failed", timeout_s=timeout_s)
        if found.word == "failed":
            raise MemberError(*found.rest)
        return found.rest[0]

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Have it call a function, and wait for its answer."""
        self.begin(function, *arguments, **named)
        return self.answer()

    def run(self, code: str, **named: Any) -> None:
        """Have it run code, and wait for its end."""
        self.begin(code, **named)
        self.answer()

    def value(self, code: str, **named: Any) -> Any:
        """The value of an expression, as JSON has it."""
        self._command("value", code, named)
        return self.answer()

    def tell(self, line: str = "") -> None:
        """Let its code go on from `wait()`."""
        assert self._commands >= 0, f"{self} was told to end"
        os.write(self._commands, line.encode() + b"\n")

    def _command(self, *what: Any) -> None:
        self.tell(json.dumps(what))

    # Hearing.

    def hear(self, *words: str, timeout_s: float = TIMEOUT_S) -> Said:
        """The next line with one of these words, or any; lines before it are passed over."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.listen()
            while self._unheard:
                found = self._unheard.pop(0)
                if found.word in words or not words:
                    return found
                if found.word == "failed":
                    raise MemberError(*found.rest)
            if self.has_ended() and not self.listen():
                raise AssertionError(f"{self} ended with {self.ended}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{self} did not say {words} within {timeout_s} s\n{self.stacks()}"
                )
            time.sleep(_LOOK_EVERY_S)

    def hear_anew(self, *words: str) -> Said:
        """As `hear`, of what it says from now on."""
        self.listen()
        self._unheard = [one for one in self._unheard if one.word == "failed"]
        return self.hear(*words)

    def listen(self) -> list[Said]:
        """What it said since the last time; also kept for `hear` and in `all_said`."""
        if self._said < 0:
            return []
        new = _read(self._said, self._heard_bytes)
        self._heard_bytes += len(new)
        *lines, self._cut = (self._cut + new).split(b"\n")
        found = [Said(moment, word, rest) for moment, word, *rest in map(json.loads, lines)]
        self._unheard += found
        self.all_said += found
        return found

    # Ending.

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        if self.ended is None:
            self.ended = self._nursery.exit_of(self.pid, timeout_s)
        return self.ended is not None

    def signal(self, number: int) -> None:
        self._nursery.signal(self.pid, number)

    def kill(self) -> None:
        """SIGKILL; it is dead on return, and everything it said is heard."""
        self.signal(signal.SIGKILL)
        assert self.has_ended(TIMEOUT_S), f"{self} survived SIGKILL"
        self._let_go()

    def leave(self, timeout_s: float = TIMEOUT_S) -> None:
        """No more commands: it closes its store, if one is open, and must end well."""
        self.begin_to_leave()
        if not self.has_ended(timeout_s):
            raise AssertionError(f"{self} did not end within {timeout_s} s\n{self.stacks()}")
        self._let_go()
        assert self.ended == 0, f"{self} ended with {self.ended}\n{self.tail()}"

    def end(self) -> None:
        """Wait for the end of what it does, and of it."""
        self.answer()
        self.leave()

    def begin_to_leave(self) -> None:
        """As `leave`, without waiting."""
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def dispose(self) -> None:
        """Kill it if it lives, and close the files."""
        if not self.has_ended():
            self.kill()
        self._let_go()

    def _let_go(self) -> None:
        """Keep what it said, and close the files."""
        if self._said >= 0:
            self.listen()
            self.begin_to_leave()
            self._last_words = self.tail()
            for file in (self._said, self._errors):
                os.close(file)
            self._said = -1

    # For a failed test.

    def stacks(self) -> str:
        """The Python stacks of its threads, and the end of what it said."""
        self.signal(signal.SIGUSR1)
        time.sleep(0.3)
        return self.tail()

    def tail(self) -> str:
        if self._said < 0:
            return self._last_words
        errors = _read(self._errors)[-_TAIL_BYTES:].decode(errors="replace")
        said = _read(self._said)[-_TAIL_BYTES // 4 :].decode(errors="replace")
        return f"--- {self.name} said, at last:\n{said}\n--- its errors:\n{errors}"


def started(code: str, **named: Any) -> Member:
    """A process that runs the code."""
    member = Member()
    member.begin(code, **named)
    return member


PROGRAM = """
import builtins, sys
sys.argv = ["", *given]
builtins.print = lambda *words, **_: say(" ".join(map(str, words)))
"""


def printed_by(
    code: str,
    *arguments: object,
    of: NurseryClient | None = None,
    timeout_s: float = TIMEOUT_S,
) -> str:
    """Run a program, which may end by itself; what it printed."""
    with Member(of=of) as other:
        other.begin(PROGRAM + code, given=[str(one) for one in arguments])
        other.begin_to_leave()
        if not other.has_ended(timeout_s):
            raise AssertionError(f"{other} did not end within {timeout_s} s\n{other.stacks()}")
        other.listen()
        for one in other.all_said:
            if one.word == "failed":
                raise MemberError(*one.rest)
        assert other.ended == 0, f"{other} ended with {other.ended}\n{other.tail()}"
        return "".join(f"{one.word}\n" for one in other.all_said if one.word != "did")


def run_and_kill(path: Path, code: str) -> list[str]:
    """Run code with the open `store` in a process that is killed at its end; what it said."""
    with Member() as other:
        other.run("store = eoslog.open(path, create=True)", path=str(path))
        other.run(code)
        other.kill()
        return [one.word for one in other.all_said if one.word != "did"]


def _memory_file(name: str) -> int:
    """A file in which lines of several threads stand one after the other."""
    file = os.memfd_create(name)
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    return file


def _read(file: int, position_bytes: int = 0) -> bytes:
    """What a file holds from there on; where the member writes stays as it is."""
    return os.pread(file, os.fstat(file).st_size - position_bytes, position_bytes)


class Crew:
    """The members of one test, and the store they share."""

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "process",
        config: dict[str, int] | None = None,
        internal_segment_bytes: int = 0,
    ) -> None:
        self.path = path
        self.durability = durability
        self.config = BUSY if config is None else config
        self.options: dict[str, Any] = {
            "durability": durability,
            "config": self.config,
            "internal_segment_bytes": internal_segment_bytes,
        }
        self.members: list[Member] = []
        self._names = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        unwell = [one for one in self.members if one.has_ended() and one.ended not in (0, -9)]
        for member in self.members:
            member.dispose()
        if error is not None:
            told = str(error)
            for member in (one for one in unwell if str(one) not in told):
                error.add_note(f"{member} ended with {member.ended}\n{member.tail()}")
        elif unwell:
            texts = [f"{one} ended with {one.ended}\n{one.tail()}" for one in unwell]
            raise AssertionError("\n".join(texts))

    def hire(self, name: str = "member") -> Member:
        """A new process, which has no store open."""
        self.members.append(Member(f"{name}-{next(self._names)}"))
        return self.members[-1]

    def join(self, name: str = "member", **options: Any) -> Member:
        """A new process that has the store open; made if it is not there."""
        member = self.begin_to_join(name, **options)
        member.answer()
        return member

    def begin_to_join(self, name: str = "member", **options: Any) -> Member:
        """As `join`, without waiting for the opening's end: `answer()` does that."""
        member = self.hire(name)
        given = {"create": True} | self.options | options
        member.begin(member_main.open_store, str(self.path), **given)
        return member

    def living(self) -> list[Member]:
        return [one for one in self.members if not one.has_ended()]

    def kill_all(self) -> None:
        """SIGKILL to all before the first is waited for."""
        living = self.living()
        for member in living:
            member.signal(signal.SIGKILL)
        for member in living:
            member.kill()

    def all_leave(self) -> None:
        """Everybody closes at the same time."""
        living = self.living()
        for member in living:
            member.begin_to_leave()
        for member in living:
            member.leave()

    def forget_the_dead(self) -> None:
        """Free the files of members that ended well or were killed."""
        for member in self.members:
            if member.has_ended() and member.ended in (0, -9):
                member.dispose()
        self.members = [one for one in self.members if one.ended not in (0, -9)]
