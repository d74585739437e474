"""Each file that a store can make again is lost, one by one: what was acknowledged is there.

`python -m call_faults.lost_files --part 0.1` (in `tests/`): so much of all cases, spread evenly. A
file is gone, or as it was some work before; the process before had closed the store, or died.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from call_faults import standard_work
from harness.fork import in_child
from staged_jobs import quick_directory
from store_copies import copy_store

ENDS = ("closed", "died")
HOW = ("gone", "old")
# These are the data (docs/architecture.md), or what the store is told by.
KEPT = ("*.log", "meta.properties", "state/journal/*", "staging/**/*")


class Loss(NamedTuple):
    end: str
    how: str
    file: str

    def __str__(self) -> str:
        return ":".join(self)


class Stores:
    """A store for each end, with what was appended there, and as it was before its last work."""

    def __init__(self, root: Path, *, journal: bool) -> None:
        self.path = root / "store"
        self._root = root
        self._work: dict[str, bytes] = {}
        for end in ENDS:
            self._work[end] = in_child(lambda end=end: self._make(end, journal))
            self.path.rename(self.left(end))

    def left(self, end: str) -> Path:
        return self._root / end

    def before(self, end: str) -> Path:
        return self._root / f"before-{end}"

    def _make(self, end: str, journal: bool) -> bytes:
        standard_work.make(self.path)
        size = standard_work.LARGE_JOURNAL if journal else 0
        work = standard_work.Work(self.path, journal_bytes=size)
        work.live()
        copy_store(self.path, self.before(end))
        work.live(closes=end == "closed")
        return pickle.dumps(work)

    def losses(self) -> list[Loss]:
        """All there are, of files of a kind one after the other."""
        return [
            Loss(end, how, file)
            for end in ENDS
            for how in HOW
            for file in self._derived(end)
            if how != "old" or self._is_older(end, file)
        ]

    def _derived(self, end: str) -> list[str]:
        kept = {path for pattern in KEPT for path in self.left(end).rglob(pattern)}
        found = sorted(path for path in self.left(end).rglob("*") if path.is_file())
        return [str(path.relative_to(self.left(end))) for path in found if path not in kept]

    def _is_older(self, end: str, file: str) -> bool:
        before = self.before(end) / file
        return before.is_file() and before.read_bytes() != (self.left(end) / file).read_bytes()

    def lose(self, loss: Loss) -> None:
        """Have it lost, and check the store. Raises AssertionError for a broken promise."""
        shutil.rmtree(self.path, ignore_errors=True)
        copy_store(self.left(loss.end), self.path)
        file = self.path / loss.file
        if loss.how == "gone":
            file.unlink()
        else:
            shutil.copyfile(self.before(loss.end) / loss.file, file)
        work = pickle.loads(self._work[loss.end])
        in_child(lambda: standard_work.check(work, start_is_old=loss.how == "old"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="call_faults.lost_files", description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of all cases, from 0 to 1")
    parser.add_argument("--loss", action="append", help="one: end:how:file")
    parser.add_argument("--journal", action="store_true", help="durable commits by a journal")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failures = 0
    with quick_directory(Path(tempfile.gettempdir())) as root:
        stores = Stores(root, journal=arguments.journal)
        losses = stores.losses()
        wanted = max(1, round(len(losses) * arguments.part))
        chosen = [losses[at * len(losses) // wanted] for at in range(wanted)]
        if arguments.loss:
            chosen = [Loss(*one.split(":")) for one in arguments.loss]
        for loss in chosen:
            try:
                stores.lose(loss)
            except AssertionError as error:
                failures += 1
                print(f"{loss}:\n{error}\n", flush=True)
    print(f"{len(chosen)} of {len(losses)} losses, {failures} broken promises")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
