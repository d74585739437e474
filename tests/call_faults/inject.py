"""Each call to the operating system that a store's work makes fails once, by its number.

`python -m call_faults.inject --part 0.05` (in `tests/`): so much of all numbers, spread evenly. A
child per fault does the work; what it left is checked by another, without the fault. Prints how
many calls of each kind there were, how many faults were injected, and what went wrong.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

from call_faults import failing_calls, standard_work
from call_faults.beside_work import check_beside, work_beside
from harness.fork import Fork, in_child
from staged_jobs import quick_directory
from store_copies import copy_store

PRELOADED = "EOSLOG_FAILING_CALLS"
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
    manner: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}:{errno.errorcode[self.error]}:{self.manner}"

    @classmethod
    def of(cls, text: str) -> Fault:
        kind, number, name, manner = text.split(":")
        return cls(kind, int(number), getattr(errno, name), manner)


class Injector:
    """Of one kind of work; all faults begin with a copy of one store."""

    def __init__(self, root: Path, arguments: argparse.Namespace) -> None:
        self.begun = root / "begun"
        self.path = root / "store"
        self.arguments = arguments
        in_child(lambda: standard_work.make(self.begun))

    def counts(self, kinds: list[str]) -> dict[str, int]:
        """How many calls of each kind the work makes."""
        self._with(Fault("every", 0, errno.EIO, "once"))
        return {kind: failing_calls.counted(kind) for kind in kinds}

    def inject(self, fault: Fault) -> list[str]:
        """Let it happen; the errors that calls raised. AssertionError is a broken promise."""
        hits, errors = self._with(fault)
        return errors if hits else ["nothing failed"]

    def _with(self, fault: Fault) -> tuple[int, list[str]]:
        shutil.rmtree(self.path, ignore_errors=True)
        copy_store(self.begun, self.path)
        failing_calls.begin()
        if not self.arguments.beside:
            work, hits = in_child(lambda: self._work(fault))
            in_child(lambda: self._check(fault, work, None))
            return hits, work.errors
        # In the process beside nothing fails, unless it takes two processes for the fault.
        joins = partial(self._join, fault) if fault.manner == "overlap" else None
        with Fork(lambda fork: work_beside(fork, self.path, joins)) as beside:
            beside.hear()
            work, hits = in_child(lambda: self._work(fault))
            beside.tell()
            writes = beside.end()
        in_child(lambda: self._check(fault, work, writes))
        return hits, work.errors + writes.errors

    def _join(self, fault: Fault) -> None:
        file = self.arguments.file or ("state/journal*" if self.arguments.journal else "")
        failing_calls.join(self.path, *fault, file)

    def _work(self, fault: Fault) -> tuple[standard_work.Work, int]:
        arguments = self.arguments
        size = standard_work.LARGE_JOURNAL if arguments.dies else standard_work.SMALL_JOURNAL
        work = standard_work.Work(
            self.path, journal_bytes=size if arguments.journal else 0, dies=arguments.dies
        )
        self._join(fault)
        try:
            work.run()
        finally:
            _, hits, resynced = failing_calls.disarm()
        assert resynced is None, f"{resynced} was synced again after its sync had failed"
        return work, hits

    def _check(
        self, fault: Fault, work: standard_work.Work, beside: standard_work.Work | None
    ) -> None:
        try:
            stays_full = fault.manner == "again" and fault.error == errno.ENOSPC
            standard_work.check(work, start_is_old=stays_full)
            if beside is not None:
                check_beside(self.path, beside, retained=bool(work.gone))
        except AssertionError as error:
            errors = work.errors + (beside.errors if beside else [])
            raise AssertionError(f"{error}; calls raised {errors}") from error


def chosen(injector: Injector, part: float, kinds: list[str]) -> tuple[list[Fault], dict[str, int]]:
    """So much of all faults there are; of each kind, errno and manner some."""
    counts = injector.counts(kinds)
    manners = ["overlap"] if injector.arguments.overlap else ["once", "again"]
    faults = [
        Fault(kind, number, error, manner)
        for kind, count in counts.items()
        for error in ERRORS[kind]
        for manner in (["again"] if kind in FOR_GOOD else manners)
        for number in range(1, count + 1)
    ]
    wanted = min(len(faults), max(1, round(len(faults) * part)))
    return [faults[at * len(faults) // wanted] for at in range(wanted)], counts


def run(arguments: argparse.Namespace) -> int:
    """Inject what was asked for; print what was found."""
    failures = 0
    raised: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    with quick_directory(Path(tempfile.gettempdir())) as root:
        injector = Injector(root, arguments)
        if arguments.fault:
            faults, counts = [Fault.of(one) for one in arguments.fault], {}
        else:
            faults, counts = chosen(injector, arguments.part, arguments.kind or list(ERRORS))
        for fault in faults:
            injected[fault.kind] += 1
            try:
                errors = injector.inject(fault)
            except AssertionError as error:
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
    parser.add_argument("--fault", action="append", help="one: kind:number:errno:manner")
    parser.add_argument("--file", default="", help="of these files alone: a pattern of the shell")
    parser.add_argument("--journal", action="store_true", help="with a journal; its files alone")
    parser.add_argument("--dies", action="store_true", help="the process dies after the fault")
    parser.add_argument("--beside", action="store_true", help="another process works there too")
    parser.add_argument(
        "--overlap", action="store_true", help="a call hangs until another one has failed"
    )
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
