"""Faults for tasks, as `each_task` of `write_partitions` takes them."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal


def task() -> tuple[int, int]:
    """The Spark partition of the running task, and which attempt at it this is."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId(), context.attemptNumber()


@dataclass(frozen=True)
class Fault:
    """The first attempts at one partition stage some rows or batches, and then go wrong."""

    kind: Literal["raise", "kill"]
    partition: int = 0
    attempts: int = 1
    after: int = 1

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        partition, attempt = task()
        if partition != self.partition or attempt >= self.attempts:
            yield from rows
            return
        yield from islice(rows, self.after)
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(f"attempt {attempt} goes wrong on purpose")


@dataclass(frozen=True)
class FailWhileAnotherWrites:
    """Partition 1 fails for good while partition 0 is writing, which goes on after that.

    The file `written` in the folder says how many rows partition 0 has written so far. It is there
    from the first row on, and whole at any moment, also when Spark kills the worker that writes it.
    """

    folder: str
    row_pause_s: float = 0.05

    def __call__(self, rows: Iterator[Any]) -> Iterator[Any]:
        partition, _ = task()
        written = Path(self.folder, "written")
        if partition == 1:
            while not written.exists():
                time.sleep(0.01)
            raise RuntimeError("fails for good")
        for number, row in enumerate(rows):
            yield row
            if partition == 0:
                next_count = written.with_suffix(".next")
                next_count.write_text(str(number + 1))
                next_count.replace(written)
                time.sleep(self.row_pause_s)
