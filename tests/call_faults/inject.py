"""Each call to the operating system that a store's work makes fails once, by its number.

`python -m call_faults.inject --part 0.05` (in `tests/`): so much of all numbers, spread evenly. A
child per fault does the work; what it left is checked by another, without the fault. Prints how
many calls of each kind there were, how many faults were injected, and what went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from call_faults import failing_calls, standard_work
from crash.transaction_trace import end_of_life
from staged_jobs import quick_directory

import eoslog

PRELOADED = "EOSLOG_FAILING_CALLS"
SECONDS_MAX = 60
ERRORS = {
    "open": (errno.EMFILE, errno.EACCES, errno.EROFS, errno.ENFILE, errno.ENOSPC),
    "map": (errno.ENOMEM,),
    "truncate": (errno.EIO, errno.ENOSPC),
    "reserve": (errno.ENOSPC, errno.EIO),
    "write": (errno.EIO, errno.ENOSPC),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC, errno.EROFS),
    "link": (errno.EMLINK, errno.ENOSPC),
    "unlink": (errno.EIO, errno.EROFS),
    "make_folder": (errno.ENOSPC, errno.EROFS),
    "memory": (errno.ENOMEM,),
    "change": (errno.EROFS, errno.EIO, errno.ENOSPC),
}
# A disk that takes nothing more goes on taking nothing.
FOR_GOOD = ("change",)


class Fault(NamedTuple):
    kind: str
    number: int
    error: int
    again: bool

    def __str__(self) -> str:
        name = errno.errorcode[self.error]
        return f"{self.kind}:{self.number}:{name}:{'again' if self.again else 'once'}"

    @classmethod
    def of(cls, text: str) -> Fault:
        kind, number, name, how = text.split(":")
        return cls(kind, int(number), getattr(errno, name), how == "again")


def in_a_child(work: Callable[[], Any]) -> Any:
    """What the work answers in a forked child. Raises RuntimeError, with what went wrong there."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        said = ["died", ""]
        try:
            signal.alarm(SECONDS_MAX)
            said = ["done", work()]
        except BaseException:
            said = ["failed", traceback.format_exc()[-6000:]]
        finally:
            with contextlib.suppress(BaseException):
                os.write(write_end, json.dumps(said).encode()[:60_000])
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"the process ended with status {status}")
    kind, answer = json.loads(text)
    if kind != "done":
        raise RuntimeError(str(answer))
    return answer


class Injector:
    """Of one kind of store; all faults begin with a copy of it."""

    def __init__(self, root: Path, *, journal: bool) -> None:
        self.root = root
        self.journal = journal
        self.begun = root / "begun"
        self.path = root / "store"
        in_a_child(lambda: standard_work.make(self.begun))

    def count(self, kind: str) -> int:
        """How many calls of the kind the work makes."""
        return int(self._with(Fault(kind, 0, errno.EIO, False))[0])

    def inject(self, fault: Fault) -> list[str]:
        """Let it happen; the errors that calls raised. Raises RuntimeError for a broken promise."""
        _, hits, _, errors = self._with(fault)
        return errors if hits else ["nothing failed"]

    def _with(self, fault: Fault) -> tuple[int, int, str | None, list[str]]:
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self.begun, self.path)

        def both() -> tuple[int, int, str | None, list[str]]:
            work = standard_work.Work(self.path, journal=self.journal)
            below = self.path / "state" / "journal" if self.journal else self.path
            failing_calls.arm(below, fault.kind, fault.number, fault.error, again=fault.again)
            try:
                work.run()
            finally:
                count, hits, resynced = failing_calls.disarm()
            assert resynced is None, f"{resynced} was synced again after its sync had failed"
            store = work.store
            if isinstance(store, eoslog.Store) and not store.closed:
                end_of_life(store)
            try:
                stays_full = fault.again and fault.error == errno.ENOSPC
                standard_work.check(work, stays_full=stays_full)
            except AssertionError as error:
                raise AssertionError(f"{error}; calls raised {work.errors}") from error
            return count, hits, resynced, work.errors

        count, hits, resynced, errors = in_a_child(both)
        return count, hits, resynced, errors


def chosen(injector: Injector, part: float, kinds: list[str]) -> tuple[list[Fault], dict[str, int]]:
    """So much of all faults there are; of each kind, errno and manner some."""
    counts = {kind: injector.count(kind) for kind in kinds}
    faults = [
        Fault(kind, number, error, again)
        for kind, count in counts.items()
        for error in ERRORS[kind]
        for again in ((True,) if kind in FOR_GOOD else (False, True))
        for number in range(1, count + 1)
    ]
    wanted = max(1, round(len(faults) * part))
    return [faults[at * len(faults) // wanted] for at in range(wanted)], counts


def run(arguments: argparse.Namespace) -> int:
    """Inject what was asked for; print what was found."""
    failures = 0
    raised: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    with quick_directory(Path(tempfile.gettempdir())) as root:
        injector = Injector(root, journal=arguments.journal)
        if arguments.fault:
            faults, counts = [Fault.of(one) for one in arguments.fault], {}
        else:
            faults, counts = chosen(injector, arguments.part, arguments.kind or list(ERRORS))
        for fault in faults:
            injected[fault.kind] += 1
            try:
                errors = injector.inject(fault)
            except RuntimeError as error:
                failures += 1
                print(f"{fault}:\n{error}\n", flush=True)
                continue
            raised.update(errors or ["no call raised"])
    for kind, count in injected.items():
        print(f"{kind}: {counts.get(kind, 0)} calls, {count} faults injected")
    if arguments.verbose:
        for name, count in raised.most_common():
            print(f"{count:6} {name}")
    print(f"{sum(injected.values())} faults, {failures} broken promises")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="call_faults.inject", description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of all faults, from 0 to 1")
    parser.add_argument("--kind", action="append", choices=list(ERRORS))
    parser.add_argument("--fault", action="append", help="one: kind:number:errno:once or again")
    parser.add_argument("--journal", action="store_true", help="calls of the commit journal alone")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    if PRELOADED not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            library = failing_calls.build_library(Path(folder))
            environment = os.environ | {"LD_PRELOAD": str(library), PRELOADED: "1"}
            command = [sys.executable, "-m", "call_faults.inject", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    logging.disable(logging.CRITICAL)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
