"""Files and directories that go to disk together: syncs that wait at once share the disk's work.

Six of them, one after the other, are six waits for the disk. Six at once are one or two: a file
system writes what changed in its directories for all of them in one go.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

SYNC_THREADS_MAX = 16


def run_together(syncs: Iterable[Callable[[], object]]) -> None:
    """Call all of them, several at once; when it returns each has ended.

    Raises the error of the first that failed.
    """
    waiting = list(syncs)
    if len(waiting) < 2:
        for sync in waiting:
            sync()
        return
    started: list[Future[object]] = []
    with ThreadPoolExecutor(min(SYNC_THREADS_MAX, len(waiting)), "eoslog-sync") as threads:
        for sync in waiting:
            try:
                started.append(threads.submit(sync))
            except RuntimeError:
                # A process that is limited in its memory, or in its threads, gets no more of them.
                break
    for future in started:
        future.result()
    for sync in waiting[len(started) :]:
        sync()


def with_those_above(directory: Path, highest: Path) -> list[Path]:
    """A directory and those above it, up to the highest."""
    found = [directory]
    while directory != highest:
        directory = directory.parent
        found.append(directory)
    return found
