"""Say which setting it is that leaves a worker no room for the files of a store.

Spark applies two settings as limits on the address space of its Python processes: that of executors
to tasks, that of planning to what a data source does on the driver. A mapped file counts in full,
whether its pages are in memory or not: a store maps `segment.bytes` for each partition that
is written to, and each segment that is read. What does not fit fails with a MemoryError that knows
nothing of Spark.
"""

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eoslog.errors import StoreError

TASK_SETTING = "spark.executor.pyspark.memory"
PLANNER_SETTING = "spark.sql.planner.pythonExecution.memory"
# Where Spark gives its Python processes the limit, in MB; that of a task is its executor's share.
_VARIABLES = {
    "PYSPARK_PLANNER_MEMORY_MB": PLANNER_SETTING,
    "PYSPARK_EXECUTOR_MEMORY_MB": TASK_SETTING,
}
_MB = 1 << 20
# What the loader of shared libraries says, and Python where a thread's stack does not fit.
_OF_OTHERS = ((ImportError, "failed to map segment"), (RuntimeError, "can't start new thread"))


class MemoryLimitError(StoreError):
    """A limit on this process's memory leaves no room for the files of the store.

    The message names the limit and where to raise it. A job that was being committed may be
    decided: run it again under the same version, which adds nothing a second time.
    """

    outcome = "unknown"


@contextmanager
def explained(store: str | os.PathLike[str]) -> Iterator[None]:
    """Raise MemoryLimitError for want of memory within, if a limit on this process is the reason.

    Without such a limit, and for all other errors, what was raised goes on as it is.
    """
    try:
        yield
    except Exception as error:
        limit_bytes = address_space_limit()
        if limit_bytes is None or not _is_want_of_memory(error):
            raise
        raise MemoryLimitError(_message(Path(store), limit_bytes, error)) from error


def address_space_limit() -> int | None:
    """Return how much address space this process may have, in bytes; None if there is no limit."""
    soft_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft_bytes == resource.RLIM_INFINITY else soft_bytes


def setting_of_limit(limit_bytes: int) -> str:
    """The setting that made the limit: one of Spark's two, or the shell's."""
    for variable, setting in _VARIABLES.items():
        text = os.environ.get(variable, "")
        if text.isdecimal() and int(text) == limit_bytes // _MB:
            return setting
    return "ulimit -v"


def _is_want_of_memory(error: BaseException) -> bool:
    """True if the error, or its cause, reports that there is no memory left."""
    seen: BaseException | None = error
    while seen is not None:
        # LMDB and Arrow have classes of their own for it, the first of which is no MemoryError.
        if isinstance(seen, MemoryError) or type(seen).__name__ == "MemoryError":
            return True
        if isinstance(seen, OSError) and seen.errno == errno.ENOMEM:
            return True
        if any(isinstance(seen, kind) and words in str(seen) for kind, words in _OF_OTHERS):
            return True
        seen = seen.__cause__
    return False


def _message(store: Path, limit_bytes: int, error: BaseException) -> str:
    setting = setting_of_limit(limit_bytes)
    share = ", shared by an executor's tasks," if setting == TASK_SETTING else ""
    return (
        f"no memory for the files of {store}: {setting}{share} allows this process "
        f"{limit_bytes // _MB} MB of address space, of which it had {_peak_mb()} MB; each mapped "
        "segment counts in full. Raise it, or make topics with smaller segment.bytes "
        f"({type(error).__name__}: {error})"
    )


def _peak_mb() -> int:
    """The most that this process had: what it maps now is less, as the error has unmapped some."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    (kilobytes,) = re.findall(r"^VmPeak:\s*(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) >> 10
